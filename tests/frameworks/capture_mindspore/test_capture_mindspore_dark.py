"""What a capture of MindSpore could not see is named at its end; what it saw whole is called complete."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore_networks import NETWORKS, gradients_of

from ray_precheck.capture import Capture

HERE = Path(__file__).name
Ended = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture
def ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Ended:
    """Capture an action; return what is said at the end, and the header."""

    def run(action: Callable[[], object], **options: Any) -> tuple[str, dict[str, Any]]:
        capfd.readouterr()
        with Capture(tmp_path, step_by="manual", framework="mindspore", **options):
            action()
        (dump,) = tmp_path.glob("step0/*/dump.json")
        return capfd.readouterr().err, json.loads(dump.read_text())

    return run


class Block(nn.Cell):
    """A Cell of which a part is dark."""

    def __init__(self, dark: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = nn.Dense(4, 4)
        self.dark = dark

    def construct(self, x: Tensor) -> Any:
        inner = self.inner(x)
        return self.dark(inner) + inner


class Net(nn.Cell):
    """A model with such a Cell."""

    def __init__(self, dark: Callable[..., Any]) -> None:
        super().__init__()
        self.block = Block(dark)

    def construct(self, x: Tensor) -> Any:
        return self.block(x).sum()


def batch() -> Tensor:
    return Tensor(np.random.rand(2, 4).astype(np.float32))


def below(x: Tensor) -> Tensor:
    """What an extension does: its calls go past the functions that Python has."""
    return ms._c_expression.pyboost_exp(ops.Exp(), [x])


@ms.jit
def compiled(x: Tensor) -> Tensor:
    return x * 2


def through_a_thread(x: Tensor) -> Tensor:
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(mint.exp(x)))
    thread.start()
    thread.join()
    return found[0]


def through_a_pool(x: Tensor) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ops.Exp(), x).result()


def through_numpy(x: Tensor) -> Tensor:
    return Tensor(np.tanh(x.asnumpy()))


def from_numpy(x: Tensor) -> Tensor:
    return Tensor.from_numpy(np.tanh(x.asnumpy()))


NO_PRODUCER = "a tensor that no recorded call made"
PLANTED: dict[str, tuple[Callable[..., Any], str]] = {
    "compiled function": (compiled, "the function compiled, compiled by ms.jit"),
    "thread": (
        through_a_thread,
        "operators in another thread (through_a_thread.<locals>.<lambda>)",
    ),
    "pool of threads": (through_a_pool, "Primitive.Exp the first of them"),
    "operator below": (below, NO_PRODUCER),
    "view of an operator below": (lambda x: below(x).view(4, 2).view(2, 4), NO_PRODUCER),
    "without a graph": (lambda x: below(ops.stop_gradient(x)), NO_PRODUCER),
    "numpy": (through_numpy, "values that went through numpy"),
    "numpy without a copy": (from_numpy, "values that went through numpy"),
}


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_dark_place_is_named_with_cell_and_line(ended: Ended, planted: str, level: str) -> None:
    dark, what = PLANTED[planted]
    net, x = Net(dark), batch()
    step = ms.value_and_grad(net, None, net.trainable_params())
    said, header = ended(lambda: step(x), model=net, level=level)
    assert header["dark"]["count"] == 1, header["dark"]
    (place,) = header["dark"]["places"]
    assert what in place["what"]
    assert place["module"].startswith("block.")
    assert HERE in place["place"]
    assert f"{place['what']} ({place['module']}, {place['place']}" in said


def test_an_operator_of_the_script_has_a_record(ended: Ended) -> None:
    double = ops.Custom(lambda x: x * 2, lambda shape: shape, lambda kind: kind, "pyfunc")
    x = batch()
    said, header = ended(lambda: mint.exp(double(x)))
    assert header["dark"]["count"] == 0
    assert [*header["data"]] == ["Primitive.Custom.0.forward", "Mint.exp.0.forward"]
    assert "it is complete" in said


@pytest.mark.parametrize("name", NETWORKS)
def test_what_was_seen_whole_is_called_complete(ended: Ended, name: str) -> None:
    net, inputs, loss = NETWORKS[name]()
    said, header = ended(lambda: gradients_of(net, inputs, loss), model=net)
    assert header["dark"] == {"count": 0, "places": []}
    assert "it is complete" in said


class Squared(nn.Cell):
    """A Cell with a backward pass of its own."""

    def construct(self, x: Tensor) -> Tensor:
        return x * x

    def bprop(self, x: Tensor, out: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (2 * x * gradient,)


def second_order() -> None:
    x = batch()
    ms.grad(lambda x: (ms.grad(lambda x: mint.exp(x).sum())(x) * 2).sum())(x)


def accumulated() -> None:
    net = nn.SequentialCell(nn.Dense(4, 3), Squared(), nn.Dropout(p=0.5), nn.Dense(3, 1))
    net.set_train()
    net[0].recompute()
    step = ms.value_and_grad(lambda x: net(x).mean(), None, net.trainable_params())
    _, gradients = step(batch())
    for _ in range(2):
        loss, more = step(batch())
        gradients = [one + other * 0.5 for one, other in zip(gradients, more, strict=True)]
        print(float(loss.asnumpy()))
    for parameter, each in zip(net.trainable_params(), gradients, strict=True):
        ops.assign_sub(parameter, each * 0.1)
    ops.clip_by_global_norm(tuple(gradients))


def data() -> None:
    rows = np.random.rand(8, 4).astype(np.float32)
    loader = ms.dataset.NumpySlicesDataset(rows, shuffle=False).batch(4)
    net = nn.Dense(4, 2)
    for (x,) in loader.create_tuple_iterator():
        mean = net(x).mean().asnumpy()
        assert np.isfinite(mean)
    net(ms.tensor([[0.5] * 4])) * Tensor.from_numpy(np.ones((1, 2), np.float32))
    ops.normal((2, 3), Tensor(0.0), Tensor(1.0)) + mint.zeros((2, 3)) + ops.arange(3)


def views() -> None:
    x = batch()
    y = mint.exp(x)
    a, b = ops.split(y, 1)
    z = (a.T.view(2, 2)[0] + b[0, :2]).value()
    z[0] = 1.0
    z += 1
    ops.stop_gradient(z).astype(ms.float16).copy().expand_dims(0).sum().item()
    for row in y:
        row * 2
    ops.depend(y, z) * 2


HONEST = {
    "second order": second_order,
    "accumulated gradients": accumulated,
    "data": data,
    "views": views,
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_is_called_complete(ended: Ended, name: str) -> None:
    said, header = ended(HONEST[name])
    assert header["dark"] == {"count": 0, "places": []}
    assert len(header["data"]) > 3
    assert "it is complete" in said


def test_a_program_that_runs_in_a_thread_is_recorded(ended: Ended) -> None:
    x = batch()

    def run() -> None:
        thread = threading.Thread(target=lambda: mint.exp(x) * 2)
        thread.start()
        thread.join()

    _, header = ended(run)
    assert header["dark"]["count"] == 0
    assert [*header["data"]] == ["Mint.exp.0.forward", "Tensor.__mul__.0.forward"]
