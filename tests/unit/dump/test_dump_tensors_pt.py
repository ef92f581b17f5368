"""Captured tensors in .pt files."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.values import HostTensor, TensorSpec

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
# torch saves them since 2.5.
SAVED_LATER = (
    {"uint16", "uint32", "uint64"} if Version(torch.__version__) < Version("2.5") else set()
)
SAVED_DTYPES = sorted(set(DTYPES) - SAVED_LATER)

NAME = "Torch.add.0.forward.input.0.pt"


class Touch:
    """An object whose unpickling makes a file: how a test sees that a pickle was run."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (open, (self.marker, "w"))


def load(folder: Path, dtype: str = "float32", shape: tuple[int, ...] = (2,)) -> HostTensor:
    return CapturedTensors(folder).tensor(TensorSpec(dtype, shape, data_name=NAME), "input_args.0")


def refused(folder: Path, dtype: str = "float32", shape: tuple[int, ...] = (2,)) -> str:
    with pytest.raises(NotCheckable) as reason:
        load(folder, dtype, shape)
    text = str(reason.value)
    assert text.startswith(f"input_args.0: {NAME} ")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("dtype", SAVED_DTYPES)
def test_a_tensor_of_every_dtype_is_read_into_its_carrier(tmp_path: Path, dtype: str) -> None:
    saved = torch.tensor([[0.0, 1.0, 1.5]]).to(getattr(torch, dtype))
    torch.save(saved, tmp_path / NAME)
    tensor = load(tmp_path, dtype, (1, 3))
    assert tensor.dtype == dtype
    assert tensor.data.dtype == DTYPES[dtype].carrier
    expected = saved.to(torch.complex128 if DTYPES[dtype].kind == "complex" else torch.float64)
    np.testing.assert_array_equal(tensor.data.astype(expected.numpy().dtype), expected.numpy())


def test_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    saved = torch.tensor([3.3895313892515355e38, 2.0**-133, -1.0 - 2.0**-7], dtype=torch.bfloat16)
    torch.save(saved, tmp_path / NAME)
    tensor = load(tmp_path, "bfloat16", (3,))
    assert tensor.data.dtype == np.float32
    assert tensor.data.tolist() == [3.3895313892515355e38, 2.0**-133, -1.0 - 2.0**-7]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_scalars_and_empty_tensors_keep_their_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    torch.save(torch.ones(shape), tmp_path / NAME)
    assert load(tmp_path, "float32", shape).shape == shape


def test_parameters_views_and_conjugates_are_read_as_what_they_show(tmp_path: Path) -> None:
    torch.save(torch.nn.Parameter(torch.tensor([1.0, 2.0])), tmp_path / NAME)
    assert load(tmp_path).data.tolist() == [1.0, 2.0]
    torch.save(torch.arange(6.0).reshape(3, 2).t()[0, 1:], tmp_path / NAME)
    assert load(tmp_path).data.tolist() == [2.0, 4.0]
    torch.save(torch.tensor([1 + 2j, 3 - 1j]).conj(), tmp_path / NAME)
    assert load(tmp_path, "complex64").data.tolist() == [1 - 2j, 3 + 1j]


def test_another_shape_or_dtype_is_named(tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / NAME)
    assert "has shape [3], the dump says [2]" in refused(tmp_path)
    assert "holds float32, the dump says int64" in refused(tmp_path, "int64", (3,))


def test_what_is_no_tensor_is_named(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / NAME)
    assert "holds a dict, not a tensor" in refused(tmp_path)


def test_a_pickle_in_a_pt_file_is_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pickle.loads(pickle.dumps(Touch(marker))).close()
    assert marker.exists()
    marker.unlink()
    for zipped in (True, False):
        torch.save(Touch(marker), tmp_path / NAME, _use_new_zipfile_serialization=zipped)
        assert "is not a readable .pt file" in refused(tmp_path)
    (tmp_path / NAME).write_bytes(pickle.dumps(Touch(marker), protocol=2))
    assert "is not a readable .pt file" in refused(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize("raw", [b"", b"garbage", b"PK\x03\x04garbage", b"\x80\x02"])
def test_a_broken_pt_file_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / NAME).write_bytes(raw)
    assert "is not a readable .pt file" in refused(tmp_path)


def test_a_pt_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / NAME)
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes()[:-40])
    assert "is not a readable .pt file" in refused(tmp_path)


def test_an_old_pt_file_that_is_cut_anywhere_is_named(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer, _use_new_zipfile_serialization=False)
    whole = buffer.getvalue()
    for length in range(0, len(whole) - 1, 7):
        (tmp_path / NAME).write_bytes(whole[:length])
        assert "is not a readable .pt file" in refused(tmp_path)


# torch 2.15 says that it looks at each index of the sparse tensor.
@pytest.mark.filterwarnings("ignore:Validating sparse tensor:UserWarning")
@pytest.mark.parametrize("kind", ["sparse", "meta", "fp8 fnuz"])
def test_a_tensor_that_numpy_cannot_hold_is_named(tmp_path: Path, kind: str) -> None:
    plain = torch.ones(2)
    tensors = {
        "sparse": plain.to_sparse(),
        "meta": plain.to("meta"),
        "fp8 fnuz": plain.to(torch.float8_e4m3fnuz),
    }
    torch.save(tensors[kind], tmp_path / NAME)
    assert "pt" in refused(tmp_path)
