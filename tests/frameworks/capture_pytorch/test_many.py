"""What writes most tensors says what `TensorTexts` says of each, with and without the extension."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_precheck import private_parts
from ray_precheck.capture import Capture
from ray_precheck.capture.pytorch import elements
from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors import many
from ray_precheck.capture.pytorch.tensors.many import (
    LOOKED_AT_BYTES,
    SMALL_BYTES,
    QuickTexts,
    SmallTensors,
    quick_texts,
)
from ray_precheck.capture.pytorch.tensors.text import TensorTexts
from ray_precheck.capture.pytorch.tensors.values import statistics
from ray_precheck.numerics.one_pass import COMPILED

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


@pytest.fixture(params=["compiled", "not compiled"])
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> QuickTexts:
    if request.param == "not compiled":
        monkeypatch.setattr(many, "COMPILED", None)
    elif COMPILED is None:
        pytest.skip("the extension was not built")
    texts = quick_texts()
    assert texts is not None
    return texts


@pytest.fixture
def compiled() -> QuickTexts:
    if COMPILED is None:
        pytest.skip("the extension was not built")
    texts = quick_texts()
    assert texts is not None
    return texts


def test_many_tensors_have_the_statistics_of_each(quick: QuickTexts) -> None:
    torch.manual_seed(0)
    shapes = [(), (1,), (7,), (32,), (8, 32), (3, 1, 5), (1000,), (8192,), (64, 128), (70_000,)]
    scales = [1e-25, 1e-3, 1.0, 1e4, 1e30]
    tensors = [torch.randn(shape) * scale for _ in range(3) for shape in shapes for scale in scales]
    tensors += [torch.tensor(each) for each in SPECIAL]
    tensors += [torch.tensor(each) for each in (float("nan"), INF, -0.0, 1e-45)]
    tensors += [torch.nn.Parameter(torch.randn(8, 32)), torch.randn(4, 8)[1:]]
    tensors += [each.to(dtype) for each in tensors for dtype in (torch.float16, torch.bfloat16)]
    tensors += [torch.randn(300, 500).t(), torch.randn(2, 3, 400, 5).transpose(1, 2)[1:]]
    alone = [TensorTexts(statistics).fields(each) for each in tensors]
    found = quick.fields_of_many(tensors)
    if isinstance(quick, SmallTensors):
        small = [
            each.nbytes <= SMALL_BYTES and each.dtype is torch.float32 and each.is_contiguous()
            for each in tensors
        ]
        assert [bool(text) for text in found] == small
        alone = [text if is_small else "" for text, is_small in zip(alone, small, strict=True)]
    assert found == alone
    assert [quick.fields(each, None) for each in tensors] == alone


def test_values_with_gaps_and_repeated_ones_are_looked_at_in_their_order(
    compiled: QuickTexts,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 50, 32)
    tensors = [x[..., :7], x[..., 5], x[:, 1:4, ::3], x.transpose(1, 2)[..., 3:], x[1, 2, 3, ::5]]
    tensors += [x[:, :, None].expand(4, 6, 2, 50, 32), x[0, 0, 0].expand(9, 32), x[:, :1, 2:3, 4:9]]
    tensors += [x[:, :, :1].expand(4, 6, 50, 32), torch.randn(1).expand(500), x[..., 1:2].squeeze()]
    tensors += [x[0, 0].as_strided((5, 9), (2, 3)), torch.randn(1, 3).expand(4, 3).t()]
    tensors += [x.to(dtype)[..., 2:9] for dtype in (torch.float16, torch.bfloat16)]
    tensors += [torch.tensor([1.0, each, -2.0, each])[::3] for each in (float("nan"), INF, -0.0)]
    assert not any(each.is_contiguous() for each in tensors)
    alone = [TensorTexts(statistics).fields(each) for each in tensors]
    assert [compiled.fields(each, None) for each in tensors] == alone
    assert compiled.fields_of_many(tensors) == alone
    x.detach().mul_(2)  # nothing of them is remembered
    alone = [TensorTexts(statistics).fields(each) for each in tensors]
    assert [compiled.fields(each, None) for each in tensors] == alone


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(300, 500)[:, 1:],
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.int32),
        torch.ones(0),
        torch.ones(3, device="meta"),
        torch.ones(2, dtype=torch.complex64).conj().imag,
        torch._efficientzerotensor((2,)),
        torch.ones(2, 2).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        3.0,
    ],
)
def test_other_tensors_are_looked_at_alone(quick: QuickTexts, tensor: Any) -> None:
    assert not quick.fields(tensor, None)
    assert quick.fields_of_many([tensor, torch.ones(1)])[0] == ""


def test_memory_that_was_taken_away_is_looked_at_alone(quick: QuickTexts) -> None:
    tensor = torch.ones(LOOKED_AT_BYTES)
    quick.fields(tensor, None)
    tensor.untyped_storage().resize_(0)
    assert not quick.fields(tensor, None)


def test_small_tensors_are_looked_at_each_time(quick: QuickTexts) -> None:
    x = torch.randn(3, 4)
    whole = [x, x.view(12), torch.nn.Parameter(x.clone()), x[1:]]
    alone = [TensorTexts(statistics).fields(each) for each in whole]
    assert [quick.fields(each, None) for each in whole] == alone
    x.numpy()[0, 0] = 7.0  # which gives it no new version
    assert '"Max":7.0' in quick.fields(x, None)


def test_a_large_tensor_is_looked_at_once(compiled: QuickTexts) -> None:
    met: list[Any] = []
    x = torch.randn(300, 300)
    for each in (x, x, x.view(-1), x.t(), x.detach(), x[:200], x[:200]):
        compiled.fields(each, met.append)
    assert len(met) == 2
    assert compiled.fields(x.t(), None) == TensorTexts(statistics).fields(x.t())


def add(x: torch.Tensor) -> None:
    x.add_(1)


def scale_by_numpy(x: torch.Tensor) -> None:
    array = x.numpy()
    array *= 2


def zero_some_rows(x: torch.Tensor) -> None:
    x.data[17:37] = 0


def give_other_memory(x: torch.Tensor) -> None:
    x.data = x * 2


@pytest.mark.parametrize("change", [add, scale_by_numpy, zero_some_rows, give_other_memory])
def test_a_large_tensor_that_was_changed_is_looked_at_again(
    compiled: QuickTexts, change: Any
) -> None:
    x = torch.randn(300, 300)
    view = x.view(-1)
    before = compiled.fields(x, None)
    change(x)
    assert compiled.fields(x, None) == TensorTexts(statistics).fields(x) != before
    assert compiled.fields(view, None) == TensorTexts(statistics).fields(view)


def test_memory_that_another_tensor_has_got_is_looked_at_again(compiled: QuickTexts) -> None:
    met: list[Any] = []
    for _ in range(3):
        compiled.fields(torch.zeros(300, 300), lambda each: met.append(each.data_ptr()))
    assert len(met) == 3


def test_what_is_forgotten_is_looked_at_again(compiled: QuickTexts) -> None:
    met: list[int] = []

    def count(tensor: torch.Tensor) -> None:
        met.append(tensor.numel())

    x, y = torch.randn(300, 300), torch.randn(1000, 1000)
    parts = [x, x[100:], y, *torch.split(y, 100)]
    for forgotten, expected in ((None, 13), (x, 2), (y[5:], 11), (torch.empty(0), 0)):
        met.clear()
        if forgotten is not None:
            compiled.forget(forgotten)
        for each in parts:
            compiled.fields(each, count)
        assert len(met) == expected
    met.clear()
    compiled.forget_all()
    for each in parts:
        compiled.fields(each, count)
    assert len(met) == 13


def test_many_are_remembered(compiled: QuickTexts) -> None:
    met: list[Any] = []
    x = torch.randn(70_000)
    parts = [x[place:] for place in range(3000)]
    for _ in range(2):
        for each in parts:
            compiled.fields(each, met.append)
    assert len(met) == 3000
    assert compiled.fields(parts[17], None) == TensorTexts(statistics).fields(parts[17])


def test_inference_tensors_are_looked_at_each_time(compiled: QuickTexts) -> None:
    met: list[Any] = []
    with torch.inference_mode():
        x = torch.randn(300, 300)
        for _ in range(2):
            compiled.fields(x, met.append)
        assert compiled.fields(x, None) == TensorTexts(statistics).fields(x)
    assert len(met) == 2


def test_what_is_raised_where_a_tensor_is_met_comes_through(quick: QuickTexts) -> None:
    def met(_: torch.Tensor) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        quick.fields(torch.ones(2), met)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.functionalize])
def test_what_a_transform_has_wrapped_is_not_looked_at_as_it_is(
    quick: QuickTexts, transform: Any
) -> None:
    said: list[Any] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            said.extend([quick.fields(x, None), *quick.fields_of_many([x])])
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
    original = TorchRecorder._elements_of_many

    def counted(self: TorchRecorder, values: Sequence[Any], place: str) -> list[str]:
        texts = original(self, values, place)
        counts.append(sum(map(bool, texts)))
        return texts

    monkeypatch.setattr(TorchRecorder, "_elements_of_many", counted)
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
