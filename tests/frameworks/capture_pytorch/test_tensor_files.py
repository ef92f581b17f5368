"""The files of captured tensors are those of `torch.save`, and stay whole whatever was there before."""

import io
import os
import zipfile
from pathlib import Path

import pytest
import torch

from ray_precheck.capture import Capture
from ray_precheck.capture.pytorch.tensors.files import CapturedFiles, saved_tensor

pytestmark = pytest.mark.frameworks
DTYPES = """float32 float64 float16 bfloat16 int8 uint8 int16 int32 int64 bool complex64
    complex128""".split()
VALUES = "archive/data/0"


def refuse(*_: object) -> None:
    raise AssertionError("torch.save writes the first file of a kind alone")


def written(tensor: torch.Tensor, folder: Path) -> Path:
    """The file of a tensor that is written like an earlier one of its dtype and shape."""
    files = CapturedFiles(folder)
    files.save(torch.ones_like(tensor), "first")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(torch, "save", refuse)
        return folder / files.save(tensor, "x")


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (5, 1, 7)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_reads_a_tensor_of_each_dtype(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    tensor = (torch.randn(shape) * 50).to(getattr(torch, dtype))
    path = written(tensor, tmp_path)
    for is_mapped in (False, True):
        found = torch.load(path, weights_only=True, mmap=is_mapped)
        assert found.dtype == tensor.dtype
        assert found.stride() == tensor.stride()
        assert torch.equal(found, tensor)


@pytest.mark.parametrize("shape", [(), (300,), (70_000, 2), (4, 1, 0x10000)])
def test_the_pickle_is_the_one_that_torch_writes(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor, target = torch.randn(shape), io.BytesIO()
    torch.save(tensor, target)
    with zipfile.ZipFile(target) as theirs, zipfile.ZipFile(written(tensor, tmp_path)) as ours:
        assert ours.read("archive/data.pkl") == theirs.read("archive/data.pkl")
        assert {"byteorder", "version"} <= {name.partition("/")[2] for name in ours.namelist()}
        assert ours.read("archive/version") == theirs.read("archive/version")


@pytest.mark.parametrize("size", [1, 3, 1000, 100_001])
def test_every_member_has_its_checksum_and_the_values_are_aligned(
    size: int, tmp_path: Path
) -> None:
    tensor = torch.randn(size)
    path = written(tensor, tmp_path)
    with zipfile.ZipFile(path) as found:
        assert found.testzip() is None
        offset = found.getinfo(VALUES).header_offset
    raw = path.read_bytes()
    name, extra = (int.from_bytes(raw[offset + at : offset + at + 2], "little") for at in (26, 28))
    begin = offset + 30 + name + extra
    assert begin % 64 == 0
    assert raw[begin : begin + 4 * size] == tensor.numpy().tobytes()


def test_a_file_that_is_written_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "writev", lambda file, pieces: os.write(file, bytes(pieces[0])[:7]))
    tensor = torch.randn(1000)
    assert torch.equal(torch.load(written(tensor, tmp_path), weights_only=True), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0),
        torch.randn(3, requires_grad=True),
        torch.randn(3, 4).t(),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.nn.Parameter(torch.randn(3)),
        torch.zeros(3).to(torch.float8_e5m2),
    ],
)
def test_a_tensor_that_is_not_plain_has_a_file_as_well(
    tensor: torch.Tensor, tmp_path: Path
) -> None:
    name = CapturedFiles(tmp_path).save(tensor, "x")
    found = torch.load(tmp_path / name, weights_only=True)
    assert torch.equal(found.to(torch.complex128), tensor.detach().to(torch.complex128))
    assert found.dtype == tensor.dtype


def test_an_earlier_file_is_replaced_and_its_other_names_stay(tmp_path: Path) -> None:
    first, second = torch.zeros(5), torch.ones(5)
    files = CapturedFiles(tmp_path)
    files.save(first, "a")
    files.save(first, "b")
    assert os.path.samefile(tmp_path / "a.pt", tmp_path / "b.pt")
    again = CapturedFiles(tmp_path)
    again.save(second, "a")
    assert torch.equal(torch.load(tmp_path / "a.pt"), second)
    assert torch.equal(torch.load(tmp_path / "b.pt"), first)
    again.save(second, "b")
    assert torch.equal(torch.load(tmp_path / "b.pt"), second)


@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e4m3fn", "float8_e5m2"])
def test_a_file_of_safetensors_has_the_same_values(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    tensor = (torch.randn(shape) * 50).to(getattr(torch, dtype))
    name = CapturedFiles(tmp_path, as_safetensors=True).save(tensor, "x")
    # The format has no complex128.
    assert name == ("x.pt" if dtype == "complex128" else "x.safetensors")
    found = saved_tensor(tmp_path / name)
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    assert torch.equal(found.to(wide), tensor.to(wide))


def test_safetensors_has_views_and_conjugates_as_they_read_and_no_sparse_tensor(
    tmp_path: Path,
) -> None:
    whole = torch.randn(4, 4, dtype=torch.complex64)
    files = CapturedFiles(tmp_path, as_safetensors=True)
    for number, tensor in enumerate((whole.t()[1:], whole.conj(), whole.conj().imag)):
        found = saved_tensor(tmp_path / files.save(tensor, f"{number}"))
        assert torch.equal(found, tensor)
    assert files.save(torch.eye(3).to_sparse(), "sparse") == "sparse.pt"
    assert files.save(torch.nn.Parameter(torch.ones(2)), "weight") == "weight.safetensors"


def test_the_same_tensor_of_two_names_is_one_file_of_safetensors(tmp_path: Path) -> None:
    tensor, files = torch.ones(5), CapturedFiles(tmp_path, as_safetensors=True)
    one, two = files.save(tensor, "a"), files.save(tensor, "b")
    assert os.path.samefile(tmp_path / one, tmp_path / two)


def test_values_that_change_unseen_and_back_are_those_of_each_call(tmp_path: Path) -> None:
    tensor = torch.zeros(4)
    values = tensor.numpy()  # its changes give no new version
    with Capture(
        tmp_path, task="tensor", step_by="manual", data_mode=["input"], framework="pytorch"
    ) as capture:
        for value in (0.0, 1.0, 0.0):
            values[:] = value
            torch.neg(tensor)
        capture.step()
    found = [torch.load(path)[0] for path in sorted(tmp_path.glob("step0/*/*/*.pt"))]
    assert found == [0, 1, 0]
