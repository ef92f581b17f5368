"""Small tensors of a long list are looked at together, and say what each says alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_precheck import private_parts
from ray_precheck.capture import Capture
from ray_precheck.capture.pytorch import elements
from ray_precheck.capture.pytorch.tensors.many import SMALL_BYTES, SmallTensors
from ray_precheck.capture.pytorch.tensors.text import TensorTexts
from ray_precheck.capture.pytorch.tensors.values import statistics

pytestmark = pytest.mark.frameworks
current_mode: Any = private_parts.find(private_parts.FUNCTION_MODE)
INF = float("inf")
SPECIAL = [
    [0.0, 0.0, 0.0],
    [0.0, -0.0, 1.0],
    [1e-20, 2e-20, 0.0],  # the squares vanish in float32
    [1e-30, 0.0, 0.0],
    [3e38, 1.0, -3e38],  # and overflow
    [1e18, 1e18, 1e18],
    [float("nan"), 1.0, 2.0],
    [INF, 1.0, -INF],
    [-INF, 0.0, 0.0],
    [1.0, 2.0, 3.0],
]


def test_many_tensors_have_the_statistics_of_each() -> None:
    torch.manual_seed(0)
    shapes = [(), (1,), (7,), (32,), (8, 32), (3, 1, 5), (1000,), (8192,), (64, 128)]
    scales = [1e-25, 1e-3, 1.0, 1e4, 1e30]
    tensors = [torch.randn(shape) * scale for _ in range(3) for shape in shapes for scale in scales]
    tensors += [torch.tensor(each) for each in SPECIAL]
    tensors += [torch.tensor(each) for each in (float("nan"), INF, -0.0, 1e-45)]
    tensors += [torch.nn.Parameter(torch.randn(8, 32)), torch.randn(4, 8)[1:]]
    alone = [TensorTexts(statistics).fields(each) for each in tensors]
    wanted = [
        text if each.nbytes <= SMALL_BYTES else ""
        for each, text in zip(tensors, alone, strict=True)
    ]
    assert SmallTensors().fields_of_many(tensors) == wanted


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(SMALL_BYTES // 4 + 1),
        torch.ones(3, 4).t(),
        torch.ones(3, dtype=torch.float64),
        torch.ones(0),
        torch.ones(3, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj().imag,
        torch.ones(2, 2).to_sparse(),
    ],
)
def test_other_tensors_are_looked_at_alone(tensor: torch.Tensor) -> None:
    assert not SmallTensors().fields(tensor)
    assert SmallTensors().fields_of_many([tensor, torch.ones(1)])[0] == ""


def test_small_tensors_are_looked_at_each_time() -> None:
    small = SmallTensors()
    x = torch.randn(3, 4)
    whole = [x, x.view(12), torch.nn.Parameter(x.clone()), x[1:], x.t(), x[0, 0], x.double()]
    alone = [TensorTexts(statistics).fields(each) for each in whole]
    assert [small.fields(each) for each in whole] == [*alone[:4], "", "", ""]
    assert small.fields_of_many(whole) == [*alone[:4], "", alone[5], ""]
    x.numpy()[0, 0] = 7.0  # which gives it no new version
    assert '"Max":7.0' in small.fields(x)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.functionalize])
def test_what_a_transform_has_wrapped_is_not_looked_at_as_it_is(transform: Any) -> None:
    said: list[Any] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            said.extend([SmallTensors().fields(x), *SmallTensors().fields_of_many([x])])
        return x.sum()

    transform(look)(torch.ones(2))
    assert said == ["", ""]


def updated(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the record of an optimizer of many parameters of all kinds, and all of the dump."""
    torch.manual_seed(0)
    shapes = [(4,), (4, 3), (4,), (), (9000,), (4,), (4, 3), (4,), (2, 0), (4,)]
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    parameters += [
        torch.nn.Parameter(torch.randn(3, 4).t()),
        torch.nn.Parameter(torch.randn(4).double()),
    ]
    parameters.append(torch.nn.Parameter(parameters[0].detach()[1:]))  # in the memory of another
    parameters[2].data[1] = float("nan")
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    with Capture(folder, framework="pytorch", step_by="manual") as capture:
        for _ in range(2):
            for each in parameters:
                each.grad = torch.randn_like(each)
            optimizer.step()
            capture.step()
    (dump,) = folder.glob("step1/*/dump.json")
    text = dump.read_text().replace(str(dump.parent), "")
    return dict(json.loads(text)["data"]["Optimizer.Adam.0.forward"]), text


def test_an_update_says_of_each_tensor_what_it_would_say_of_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    original = SmallTensors.fields_of_many

    def counted(self: SmallTensors, values: Sequence[Any]) -> list[str]:
        texts = original(self, values)
        counts.append(sum(map(bool, texts)))
        return texts

    monkeypatch.setattr(SmallTensors, "fields_of_many", counted)
    record, together = updated(tmp_path / "together")
    # Parameters, gradients and three states before the second step, all but the gradients after each.
    assert sum(counts) > 100
    groups = {each["param_dtype"]["value"]: each for each in record["input_args"]}
    params = groups["torch.float32"]["params"]
    assert params[-1]["shares"].endswith(".params.0")
    assert params[-1]["offset"] == 1
    assert params[2]["structure"]["nan"] == 1
    counts.clear()
    monkeypatch.setattr(elements, "_MANY", 1 << 30)
    assert updated(tmp_path / "alone")[1] == together
    assert not counts


class Doubling(torch.optim.Optimizer):
    """Calls operators in its step, and asks which modes are on."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.modes: list[Any] = []

    def step(self, closure: Any = None) -> Any:
        self.modes.append(current_mode())
        loss = closure() if closure is not None else None
        self.modes.append(current_mode())
        with torch.no_grad():
            for each in self.param_groups[0]["params"]:
                each.mul_(2)
        return loss


@pytest.mark.parametrize("raises", [False, True])
def test_operators_of_an_update_pass_no_mode_and_those_around_it_are_recorded(
    tmp_path: Path, raises: bool
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer, x = Doubling(model.parameters()), torch.ones(1, 3)

    def closure() -> Any:
        loss = model(x).sum()
        loss.backward()
        return loss

    def broken() -> torch.Tensor:
        raise ValueError

    with Capture(tmp_path, framework="pytorch", model=model, step_by="manual"):
        if raises:
            with pytest.raises(ValueError):
                optimizer.step(broken)
        optimizer.step(closure)
        torch.ones(2).cosh()
    assert optimizer.modes[-2:] == [None, None]
    (dump,) = tmp_path.glob("step0/*/dump.json")
    keys = [key for key in json.loads(dump.read_text())["data"] if key.endswith(".forward")]
    assert [key.rsplit(".", 2)[0] for key in keys] == [
        "Functional.linear",
        "Tensor.sum",
        "Optimizer.Doubling",
        "Torch.ones",
        "Tensor.cosh",
    ]
