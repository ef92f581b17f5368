"""The loss scale of MindSpore's scalers is in the header of a step, and a step whose update is skipped is
a step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, amp, mint, nn

from ray_precheck import private_parts
from ray_precheck.capture import Capture
from ray_precheck.dump.parse import open_dump

X = Tensor(np.ones((2, 3), np.float32))
Overflows = Callable[[int], bool]


class Net(nn.Cell):
    """The mean of a product with one matrix, and with a factor that may be infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((3, 2), np.float32)), name="weight")

    def construct(self, x: Tensor, factor: Tensor) -> Tensor:
        return mint.mean(mint.matmul(x, self.weight)) * factor


def factors(steps: int, overflows: Overflows) -> list[Tensor]:
    return [Tensor(np.float32(np.inf if overflows(step) else 1.0)) for step in range(steps)]


def train(
    steps: int,
    overflows: Overflows = lambda _: False,
    scaler: Any = None,
    *,
    adjusts_first: bool = False,
) -> None:
    """Train with a scale of 1024; the gradients of some steps are infinite."""
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    scaler = scaler or amp.DynamicLossScaler(1024.0, 2, 100)
    grad = ms.value_and_grad(lambda f: scaler.scale(net(X, f)), None, net.trainable_params())
    for factor in factors(steps, overflows):
        _, gradients = grad(factor)
        is_finite = amp.all_finite(gradients)
        if adjusts_first:
            scaler.adjust(is_finite)
        if is_finite:
            optimizer(scaler.unscale(gradients))
        if not adjusts_first:
            scaler.adjust(is_finite)


class Cell(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's own, which asks an Ascend device whether a gradient is infinite."""

    def get_overflow_status(self, status: Tensor, compute_output: Any) -> Any:
        return mint.logical_not(amp.all_finite(compute_output))


def header_of(folder: Path, step: int) -> dict[str, Any]:
    (dump,) = folder.glob(f"step{step}/*/dump.json")
    return dict(json.loads(dump.read_text()))


@pytest.mark.parametrize("adjusts_first", [False, True])
@pytest.mark.parametrize("overflow", [0, 1])
def test_a_step_that_the_scaler_skips_is_a_step(
    tmp_path: Path, overflow: int, adjusts_first: bool
) -> None:
    with Capture(tmp_path, framework="mindspore", steps="0-2"):
        train(4, lambda step: step == overflow, adjusts_first=adjusts_first)
    headers = [header_of(tmp_path, step) for step in range(3)]
    scales = [1024.0] * (overflow + 1) + [512.0] * (2 - overflow)
    assert [header["loss_scale"] for header in headers] == scales
    skipped = [header.get("update_skipped", False) for header in headers]
    assert skipped == [step == overflow for step in range(3)]
    for header in headers:  # each holds one training step
        assert [key for key in header["data"] if "matmul" in key] == [
            "Mint.matmul.0.forward",
            "Mint.matmul.0.backward",
        ]
    assert not (tmp_path / "step3").exists()


def test_skipped_steps_count_where_they_are_not_captured(tmp_path: Path) -> None:
    with Capture(tmp_path, framework="mindspore", steps=[2]):
        train(4, lambda step: step < 2)
    assert header_of(tmp_path, 2)["loss_scale"] == 256.0
    assert not (tmp_path / "step1").exists()


def test_a_static_scale_is_told_and_never_moves(tmp_path: Path) -> None:
    with Capture(tmp_path, framework="mindspore"):
        train(2, lambda step: step == 0, amp.StaticLossScaler(8.0))
    headers = [header_of(tmp_path, step) for step in range(2)]
    assert [header["loss_scale"] for header in headers] == [8.0, 8.0]
    assert [header.get("update_skipped") for header in headers] == [True, None]


def test_a_scaler_of_the_script_is_seen(tmp_path: Path) -> None:
    class Own(amp.DynamicLossScaler):
        def scale(self, inputs: Any) -> Any:
            return super().scale(inputs)

    with Capture(tmp_path, framework="mindspore"):
        train(2, lambda step: step == 0, Own(16.0, 2, 100))
    assert [header_of(tmp_path, step)["loss_scale"] for step in range(2)] == [16.0, 8.0]


@pytest.mark.parametrize("overflow", [0, 1])
def test_a_cell_that_trains_with_a_scale_of_its_own_is_seen(tmp_path: Path, overflow: int) -> None:
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    manager = nn.DynamicLossScaleUpdateCell(1024, 2, 100)
    cell = Cell(net, optimizer, scale_sense=manager)
    cell.set_train()
    with Capture(tmp_path, framework="mindspore", steps="0-2"):
        for factor in factors(4, lambda step: step == overflow):
            cell(X, factor)
    headers = [header_of(tmp_path, step) for step in range(3)]
    scales = [1024.0] * (overflow + 1) + [512.0] * (2 - overflow)
    assert [header["loss_scale"] for header in headers] == scales
    assert [header.get("update_skipped", False) for header in headers] == [
        step == overflow for step in range(3)
    ]
    assert not (tmp_path / "step3").exists()


def test_a_training_without_scaler_has_no_scale(tmp_path: Path) -> None:
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    grad = ms.grad(net, None, net.trainable_params())
    with Capture(tmp_path, framework="mindspore"):
        optimizer(grad(X, Tensor(np.float32(1))))
    assert "loss_scale" not in header_of(tmp_path, 0)


SCALER = amp.DynamicLossScaler(4.0, 2, 100)


@pytest.mark.parametrize("how", [{}, {"capture_mode": "bytecode"}], ids=str)
@pytest.mark.parametrize("steps", ["0", "1"])
def test_a_scaler_within_a_compiled_function_is_found_as_it_was(
    tmp_path: Path, how: dict[str, Any], steps: str
) -> None:
    def scaled(x: Tensor) -> Tensor:
        return SCALER.scale(x)

    found: list[Any] = []
    own = amp.DynamicLossScaler.scale
    compiled = ms.jit(scaled, **how)
    with Capture(tmp_path, framework="mindspore", step_by="manual", steps=steps):
        assert amp.DynamicLossScaler.scale is not own
        executor = private_parts.find(private_parts.MINDSPORE_JIT)
        compile_it = executor.compile

        def compile_and_look(*args: Any, **kwargs: Any) -> Any:
            found.append(amp.DynamicLossScaler.scale)
            return compile_it(*args, **kwargs)

        executor.compile = compile_and_look
        try:
            assert np.array_equal(compiled(X).asnumpy(), 4 * X.asnumpy())
        finally:
            executor.compile = compile_it
        assert amp.DynamicLossScaler.scale is not own
    assert set(found) <= {own}
    assert found or how


@pytest.mark.parametrize("steps", [[0], None])
def test_after_the_capture_the_scaler_is_as_it_was(tmp_path: Path, steps: list[int] | None) -> None:
    kinds = (amp.LossScaler, amp.DynamicLossScaler, amp.StaticLossScaler)
    before = [dict(vars(kind)) for kind in kinds]
    with Capture(tmp_path, framework="mindspore", steps=steps):
        assert dict(vars(amp.DynamicLossScaler)) != before[1]
        train(2)
    assert [dict(vars(kind)) for kind in kinds] == before


def test_steps_that_end_otherwise_have_their_scale(tmp_path: Path) -> None:
    with Capture(tmp_path, framework="mindspore", step_by="forward"):
        train(2, lambda step: step == 0)
    assert header_of(tmp_path, 0)["loss_scale"] == 1024.0
    assert header_of(tmp_path, 0)["update_skipped"] is True


def test_the_precheck_reads_a_dump_with_a_loss_scale(tmp_path: Path) -> None:
    with Capture(tmp_path, framework="mindspore"):
        train(1, lambda _: True)
    (path,) = tmp_path.glob("step0/*/dump.json")
    with open_dump(path) as dump:
        assert (dump.framework, dump.task) == ("mindspore", "statistics")
        assert any(call.name.startswith("Mint.matmul") for call in dump.calls)
