"""Captured tensors in .pt files that another machine decodes: the same bits and reasons."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from ray_precheck.dump.tensors import CapturedTensors, FolderFiles, Refused, ShippedFiles
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
# torch saves them since 2.5.
SAVED_LATER = (
    {"uint16", "uint32", "uint64"} if Version(torch.__version__) < Version("2.5") else set()
)
SAVED_DTYPES = sorted(set(DTYPES) - SAVED_LATER)

NAME = "Torch.add.0.forward.input.0.pt"
LARGE = 1 << 30
# torch 2.13 writes them into an old file, but cannot read them back without pickles.
NOT_IN_OLD_FILES = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")


class Touch:
    """An object whose unpickling makes a file: how a test sees that a pickle was run."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (open, (self.marker, "w"))


def shipped(folder: Path, most_bytes: int = LARGE) -> CapturedTensors:
    files = ShippedFiles({NAME: FolderFiles(folder).ship(NAME, most_bytes)})
    return CapturedTensors(pickle.loads(pickle.dumps(files)))


def refused(folder: Path, spec: TensorSpec) -> str:
    """Return why a tensor cannot be used, which is the same here and on another machine."""
    reasons = []
    for source in (CapturedTensors(folder), shipped(folder)):
        with pytest.raises(NotCheckable) as reason:
            source.tensor(spec, "input_args.0")
        reasons.append(str(reason.value))
    assert reasons[0] == reasons[1]
    return reasons[0]


SPEC = TensorSpec("float32", (2,), data_name=NAME)


@pytest.mark.parametrize("dtype", SAVED_DTYPES)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_of_every_dtype_arrives_bit_by_bit(
    tmp_path: Path, dtype: str, zipped: bool
) -> None:
    saved = torch.tensor([[0.0, 1.0, 1.5]]).to(getattr(torch, dtype))
    torch.save(saved, tmp_path / NAME, _use_new_zipfile_serialization=zipped)
    spec = TensorSpec(dtype, (1, 3), data_name=NAME)
    if not zipped and dtype in NOT_IN_OLD_FILES:
        assert "is not a readable .pt file" in refused(tmp_path, spec)
        return
    here = CapturedTensors(tmp_path).tensor(spec, "x")
    there = shipped(tmp_path).tensor(spec, "x")
    assert (here.dtype, here.data.dtype, here.shape) == (there.dtype, there.data.dtype, there.shape)
    assert here.data.tobytes() == there.data.tobytes()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_cut_anywhere_is_refused_in_the_same_words(tmp_path: Path, zipped: bool) -> None:
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer, _use_new_zipfile_serialization=zipped)
    whole = buffer.getvalue()
    for length in range(0, len(whole) - 1, 29):
        (tmp_path / NAME).write_bytes(whole[:length])
        assert "is not a readable .pt file" in refused(tmp_path, SPEC)


# torch 2.15 says that it looks at each index of the sparse tensor.
@pytest.mark.filterwarnings("ignore:Validating sparse tensor:UserWarning")
def test_what_is_no_fitting_tensor_is_refused_in_the_same_words(tmp_path: Path) -> None:
    for saved, reason in [
        ({"weight": torch.ones(2)}, "holds a dict, not a tensor"),
        (torch.ones(3), "has shape [3], the dump says [2]"),
        (torch.ones(1).expand(10**6, 10**5), "has shape [1000000, 100000], the dump says [2]"),
        (torch.ones(2, dtype=torch.int64), "holds int64, the dump says float32"),
        (torch.ones(2).to_sparse(), "pt"),
    ]:
        torch.save(saved, tmp_path / NAME)
        assert reason in refused(tmp_path, SPEC)


def test_bytes_with_a_pickle_are_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for zipped in (True, False):
        torch.save(Touch(marker), tmp_path / NAME, _use_new_zipfile_serialization=zipped)
        assert "is not a readable .pt file" in refused(tmp_path, SPEC)
    assert not marker.exists()


def test_a_view_is_sent_with_the_storage_that_it_is_a_part_of(tmp_path: Path) -> None:
    torch.save(torch.arange(100_000.0)[[0]].expand(2)[:2], tmp_path / NAME)
    torch.save(torch.arange(100_000.0)[5:7], tmp_path / NAME)
    assert shipped(tmp_path).tensor(SPEC, "x").data.tolist() == [5.0, 6.0]


def test_a_file_of_more_bytes_than_may_be_sent_is_named_with_both(tmp_path: Path) -> None:
    torch.save(torch.arange(100_000.0)[5:7], tmp_path / NAME)
    size = (tmp_path / NAME).stat().st_size
    assert isinstance(FolderFiles(tmp_path).ship(NAME, size - 1), Refused)
    with pytest.raises(NotCheckable) as reason:
        shipped(tmp_path, size - 1).tensor(SPEC, "x")
    assert str(reason.value) == (
        f"x: {NAME} has {size} bytes, more than the {size - 1} that are sent to another machine"
        " for it; --shared-fs has the workers read it themselves"
    )
    assert shipped(tmp_path, size).tensor(SPEC, "x").data.tolist() == [5.0, 6.0]
