"""What a hostile record reaches of a framework: nothing but operators, and no more memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from records import Element, call, statistics_checker, tensor

from ray_precheck.check.checker import Checker
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.mindspore.bench.mapping import resolve_mindspore
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.frameworks

ODD = ["\ud800", "\x00", "=1+1", "a" * 900, "", " ", "__class__", "\u0663"]
# Modules of torch that make what they are asked for, or that are imported when they are asked for.
DOORS = [
    "ops",
    "ops.aten",
    "classes",
    "onnx",
    "backends",
    "backends.cudnn",
    "utils",
    "jit",
    "nn.Module",
]


@pytest.mark.parametrize("prefix", ["Torch", "Functional", "Tensor", "VF"])
@pytest.mark.parametrize("door", [*DOORS, "add", "linalg", "Tensor"])
@pytest.mark.parametrize("odd", ODD, ids=map(ascii, range(len(ODD))))
def test_no_name_raises_anything_else_when_it_is_looked_up(
    prefix: str, door: str, odd: str
) -> None:
    for api in (odd, f"{door}.{odd}", f"{odd}.{door}"):
        with pytest.raises(NotCheckable):
            resolve_torch(ApiName(prefix, api, 0))
        with pytest.raises(NotCheckable):
            resolve_mindspore(ApiName(prefix, api, 0))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("api", ["add", "load", "load_library", "export", "save", "abs", "compile"])
def test_no_module_is_a_way_to_something_else(door: str, api: str) -> None:
    with pytest.raises(NotCheckable, match=r"is not an operator of torch|has no torch\."):
        resolve_torch(ApiName("Torch", f"{door}.{api}", 0))


def test_looking_a_name_up_imports_nothing() -> None:
    code = (
        "import sys; from ray_precheck.frameworks.pytorch.names import resolve_torch, _overridable\n"
        "from ray_precheck.errors import NotCheckable\n"
        "from ray_precheck.schema.record import ApiName\n"
        "_overridable(); before = set(sys.modules)\n"
        "for api in ('onnx.export', 'distributed.x', 'ops.a.b', 'classes.c.d', 'utils.x.y'):\n"
        "    try: resolve_torch(ApiName('Torch', api, 0))\n"
        "    except NotCheckable: pass\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["Tensor.const_data_ptr", "Tensor.data_ptr"])
def test_an_address_is_no_output(torch_checker: Checker, name: str) -> None:
    result = torch_checker.check(call(name, tensor(3)))
    assert result.outcome is Outcome.SKIPPED
    assert "it touches more than its tensors" in result.message


def test_a_function_cannot_be_passed_as_a_memory_format(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`distance_function` is called by an operator that may be called."""
    called: list[Any] = []
    monkeypatch.setattr(torch, "load", lambda *args: called.append(args))
    function = Element(type="torch.memory_format", format="torch.load")
    name = "Functional.triplet_margin_with_distance_loss"
    tensors = [tensor(2, 3) for _ in range(3)]
    result = torch_checker.check(call(name, *tensors, distance_function=function))
    assert not called
    assert result.outcome is Outcome.SKIPPED
    assert "does not say which memory_format" in result.message


@pytest.mark.parametrize(
    "shape",
    [(10**6, 10**6), (1,) * 33, (1,) * 64, (0, 10**18), (10**9, 10**9), (2**62,)],
    ids=str,
)
def test_a_shape_that_fits_nowhere_is_skipped_before_it_is_made(shape: tuple[int, ...]) -> None:
    checker = statistics_checker("pytorch", memory_limit_bytes=1 << 28)
    result = checker.check(
        call("Torch.add", tensor(*shape), tensor(*shape), grads=[tensor(*shape)])
    )
    assert (result.forward, result.backward) == (Verdict.SKIP, Verdict.SKIP)
    assert "ray_precheck failed" not in result.message
    assert any(text in result.message for text in ("GiB of memory", "cannot be made"))


@pytest.mark.parametrize("shape", [[-1], [1.5], [2**70], ["a"], [1] * 100_000], ids=range(5))
def test_a_shape_that_is_none_is_skipped(torch_checker: Checker, shape: list[Any]) -> None:
    result = torch_checker.check(call("Torch.abs", Element({**tensor(2), "shape": shape})))
    assert result.outcome is Outcome.SKIPPED
    assert "ray_precheck failed" not in result.message
    assert len(result.message) < 500


def test_a_few_numbers_that_are_expanded_are_not_copied_to_their_whole_shape(
    tmp_path: Path,
) -> None:
    torch.save(torch.ones(1).expand(10**6, 10**5), tmp_path / "x.pt")
    spec = TensorSpec("float32", (2,), data_name="x.pt")
    with pytest.raises(NotCheckable, match=r"has shape \[1000000, 100000\], the dump says \[2\]"):
        CapturedTensors(tmp_path).tensor(spec, "x")


@pytest.mark.parametrize("depth", [10, 63, 65, 990, 5000, 200_000])
@pytest.mark.parametrize("field", ["dtype", "shape", "Max", "type", "value", "data_name"])
def test_a_field_nested_without_end_is_a_value_or_a_reason(
    torch_checker: Checker, field: str, depth: int
) -> None:
    payload = call("Torch.abs", Element({**tensor(2), field: "NESTED"}))
    assert payload.forward is not None
    nested = b"[" * depth + b"]" * depth
    raw = payload.forward.replace(b'"NESTED"', nested)
    result = torch_checker.check(type(payload)(0, payload.name, raw, None))
    assert "ray_precheck failed" not in result.message
    assert len(result.message) < 500
