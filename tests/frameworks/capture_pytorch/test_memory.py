"""What a capture looks at stays as it was, and memory that has changed hands is looked at again."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_precheck.capture.pytorch.recorder import TorchRecorder
from ray_precheck.capture.pytorch.tensors import memory
from ray_precheck.capture.pytorch.tensors.memory import (
    SeenTensors,
    array_of,
    borrowed_array,
    borrowed_bytes,
    glimpse_of,
)
from ray_precheck.capture.pytorch.tensors.values import host_summary

pytestmark = pytest.mark.frameworks
# Memory that the system gives out by itself, at the same place again.
_LARGE = 1 << 23
OPTIONS: list[dict[str, Any]] = [
    {},
    {"task": "tensor"},
    {"sketch": True},
    {"summary_mode": "md5"},
    {"summary_mode": "xor"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_a_tensor_that_was_looked_at_can_give_its_memory_back(
    captured: Callable[..., dict[str, Any]], options: dict[str, Any], dtype: torch.dtype
) -> None:
    x = torch.ones(3, 4).to(dtype)
    records = captured(lambda: torch.cat([x, x]), **options)
    assert "Torch.cat.0.forward" in records
    x.untyped_storage().resize_(0)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
def test_a_tensor_whose_memory_was_taken_away_has_no_values(
    captured: Callable[..., dict[str, Any]], options: dict[str, Any], dtype: torch.dtype
) -> None:
    x = torch.ones(30_000).to(dtype)
    x.untyped_storage().resize_(0)
    records = captured(lambda: torch.empty_like(x), **options)
    found = records["Torch.empty_like.0.forward"]["input_args"][0]
    assert (found["shape"], found["Max"], found["Norm"]) == ([30_000], None, None)
    assert not {"data_name", "sketch"} & set(found)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3e38),
        torch.tensor(6e4, dtype=torch.float16),
        torch.tensor(1e308, dtype=torch.float64),
        torch.tensor(2e38 + 2e38j, dtype=torch.complex64),
        torch.tensor(1e308 + 1e308j, dtype=torch.complex128),
        torch.tensor(2**62),
    ],
    ids=lambda value: str(value.dtype),
)
def test_values_near_the_end_of_a_dtype_warn_of_nothing(
    captured: Callable[..., dict[str, Any]], options: dict[str, Any], value: torch.Tensor
) -> None:
    """A warning is an error here, as under `python -W error`, and would end the capture."""
    records = captured(lambda: value.expand(30_000).clone(), **options)
    (found,) = records["Tensor.clone.0.forward"]["output"]
    assert found["shape"] == [30_000]
    # There is no wider dtype for sums of int64, float64 and complex128.
    narrow = value.dtype in (torch.float16, torch.float32, torch.complex64)
    if narrow and "Mean" in found:
        assert found["Mean"] == pytest.approx(abs(value.item()), rel=1e-6)


@pytest.mark.parametrize("size", [1, 100, 8192, 8193, 200_000])
def test_borrowed_memory_holds_the_values(size: int) -> None:
    tensor = torch.randn(size)
    assert np.array_equal(borrowed_array(tensor), tensor.numpy())
    assert borrowed_bytes(tensor).tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("size", [3, 10_000, 300_000])
def test_a_signalling_nan_raises_nothing_where_numpy_was_asked_to(size: int) -> None:
    tensor = torch.full((size,), 0x7F800001, dtype=torch.int32).view(torch.float32)
    with np.errstate(all="raise"):
        found = host_summary(tensor)
    assert found is not None
    assert all(np.isnan(each) for each in found)


@pytest.mark.parametrize("size", [2, 8192, 8193, 1 << 17, (1 << 17) + 1, 500_000])
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_the_statistics_of_any_size_are_those_of_float64(size: int, scale: float) -> None:
    tensor = torch.randn(size) * scale
    wide = tensor.double()
    expected = (tensor.max().item(), tensor.min().item(), wide.mean().item(), wide.norm().item())
    assert host_summary(tensor) == pytest.approx(expected, rel=1e-5, abs=1e-7 * scale)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12)[3:9:2],
        torch.ones(1).expand(2, 3),
        torch.tensor(2.5, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3j]),
        torch.ones(0, 3),
        torch.ones(3, dtype=torch.float16),
    ],
)
def test_numpy_sees_the_same_values_without_writing(tensor: torch.Tensor) -> None:
    found = array_of(tensor)
    expected = tensor.clone().numpy()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)
    assert not found.size or not found.flags.writeable


def test_the_array_keeps_the_memory() -> None:
    found = array_of(torch.full((1000,), 3.0))
    others = [torch.zeros(1000) for _ in range(20)]
    assert (found == 3).all(), others


@pytest.mark.parametrize("tensor", [torch.tensor([1j]).conj(), torch.ones(2, dtype=torch.bfloat16)])
def test_what_numpy_cannot_hold_is_refused_as_by_torch(tensor: torch.Tensor) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        array_of(tensor)


def test_memory_that_was_given_to_another_tensor_is_looked_at_again() -> None:
    seen = SeenTensors(lambda tensor: str(tensor[0].item()), ordered=False)
    first = torch.ones(_LARGE)
    place = first.untyped_storage().data_ptr()
    assert seen.of(first) == "1.0"
    first.untyped_storage().resize_(0)
    others: list[torch.Tensor] = []
    while not others or others[-1].untyped_storage().data_ptr() != place:
        if len(others) > 10:
            pytest.skip("the memory is not given out again")
        others.append(torch.full((_LARGE,), 2.0))
    assert others[-1]._version == first._version
    assert seen.of(others[-1]) == "2.0"


def _scale(x: torch.Tensor) -> None:
    """Scale as a gradient scaler does, whose kernel raises no version."""
    torch._amp_foreach_non_finite_check_and_unscale_([x], torch.zeros(1), torch.tensor(2.0))


def _through_numpy(x: torch.Tensor) -> None:
    x.numpy().reshape(-1)[-1] = 2.0


def _through_address(x: torch.Tensor) -> None:
    """Write into 5 % of the memory, as an extension does."""
    length = max(x.numel() // 20, 1)
    values = torch.full((length,), 3.0)
    place = x.data_ptr() + x.numel() // 3 * x.element_size()
    ctypes.memmove(place, values.data_ptr(), length * x.element_size())


@pytest.mark.parametrize("options", [*OPTIONS[:4], {"level": "mix", "task": "tensor"}], ids=str)
@pytest.mark.parametrize("size", [1, 3, 4096, 4097, 100_000])
@pytest.mark.parametrize("change", [_scale, _through_numpy, _through_address])
def test_values_that_change_without_a_version_are_looked_at_again(
    captured: Callable[..., dict[str, Any]],
    options: dict[str, Any],
    size: int,
    change: Callable[[torch.Tensor], None],
) -> None:
    x = torch.ones(size)

    def action() -> None:
        torch.sum(x)
        version = x._version
        change(x)
        assert x._version == version
        torch.sum(x)
        torch.sum(x.reshape(-1, 1))

    records = captured(action, **options)
    given = [records[f"Torch.sum.{number}.forward"]["input_args"][0] for number in range(3)]
    assert [each["Max"] for each in given] == [1.0, x.max().item(), x.max().item()]
    if options.get("summary_mode"):
        assert given[0]["md5"] != given[1]["md5"]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("size", [3, 100_000])
def test_memory_of_an_accelerator_that_a_kernel_writes_into_is_looked_at_again(
    captured: Callable[..., dict[str, Any]],
    options: dict[str, Any],
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A kernel of Triton writes into a buffer that a recorded call has made."""
    on_accelerator(monkeypatch, options)
    x, written = torch.ones(size), []

    def action() -> None:
        buffer = torch.zeros_like(x)
        _through_address(buffer)
        written.append(torch.sum(buffer))
        torch.cumsum(buffer, 0)

    records = captured(action, **options)
    made = records["Torch.zeros_like.0.forward"]["output"][0]
    given = [records[f"Torch.{name}.0.forward"]["input_args"][0] for name in ("sum", "cumsum")]
    if options.get("summary_mode") != "xor":
        assert [made["Max"], *(each["Max"] for each in given)] == [0, 3, 3]
    if options.get("summary_mode") == "md5":
        assert made["md5"] != given[0]["md5"] == given[1]["md5"]
    if "data_name" in made:
        (folder,) = tmp_path.glob("dump0/step0/*/dump_tensor_data")
        assert torch.load(folder / given[0]["data_name"]).sum() == written[0]
        # What the memory still holds is written once.
        names = [each["data_name"] for each in given]
        assert len({(folder / name).stat().st_ino for name in names}) == 1


def on_accelerator(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Look at tensors on the CPU as at those of an accelerator."""
    monkeypatch.setattr(memory, "_is_on_host", lambda _: False)
    if not options.get("summary_mode"):
        monkeypatch.setattr(TorchRecorder, "_values", lambda self, x: self._device.text(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 70), (5, 4)])
def test_a_glimpse_of_an_accelerator_sees_each_element(
    dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_accelerator(monkeypatch, {})
    x = torch.zeros(shape).to(dtype)
    view = x.t() if x.dim() == 2 else x
    look, before = glimpse_of(view, waits=True)
    assert look(view) == before
    for at in range(x.numel()):
        x.view(-1)[at] = 1
        assert look(view) != before
        x.view(-1)[at] = 0
    assert look(view) == before
    look, before = glimpse_of(view)
    assert look(view) != before


@pytest.mark.parametrize("shape", [(200, 300), (20, 30, 40), (3, 4, 5, 6, 7, 8, 9)])
def test_a_glimpse_of_a_view_is_of_its_own_elements(shape: tuple[int, ...]) -> None:
    whole = torch.zeros(shape)
    view = whole[..., 1:2]
    assert not view.is_contiguous()
    look, before = glimpse_of(view)
    whole[..., 2:] = 1  # beside it
    assert look(view) == before
    view += 1
    assert look(view) != before


def test_a_glimpse_of_a_large_tensor_sees_a_change_of_a_few_percent() -> None:
    x = torch.zeros(1000, 512)
    look, before = glimpse_of(x)
    for start in range(0, x.numel(), 7919):
        piece = x.view(-1)[start : start + x.numel() // 30]
        piece += 1
        assert look(x) != before
        piece.zero_()
        assert look(x) == before
    columns = x[:, 100:132]
    columns += 1
    assert look(x) != before
