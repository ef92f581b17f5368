"""Captured tensors that are read in pieces: the values of the loader, under the same rules."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.dump.mapped import MappedTensor, MappedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit

OPENERS = {"mapped": MappedTensors, "read": lambda folder: MappedTensors(folder).read_whole()}
chosen = "mapped"


@pytest.fixture(autouse=True, params=list(OPENERS))
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "chosen", request.param)


VALUES = np.arange(12, dtype=np.float32).reshape(3, 4) / 3


def opened(folder: Path, name: str, dtype: str = "float32", shape: Any = (3, 4)) -> MappedTensor:
    return OPENERS[chosen](folder).open(TensorSpec(dtype, tuple(shape), data_name=name))


def values(tensor: MappedTensor) -> Any:
    return tensor.carrier(tensor.raw).reshape(tensor.shape)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_npy_file_is_mapped(tmp_path: Path, version: tuple[int, int]) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, VALUES, version)
    found = opened(tmp_path, "x.npy")
    assert not found.raw.flags.owndata
    assert not found.raw.flags.writeable
    np.testing.assert_array_equal(values(found), VALUES)


@pytest.mark.parametrize("array", [VALUES, VALUES[0, 0], np.zeros((0, 3), np.float32)])
def test_any_shape_is_read(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "x.npy", array)
    np.testing.assert_array_equal(values(opened(tmp_path, "x.npy", shape=array.shape)), array)


def test_fortran_order_is_read_in_row_major_order(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(VALUES))
    np.testing.assert_array_equal(values(opened(tmp_path, "x.npy")), VALUES)


def test_a_narrower_file_is_widened(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES.astype(np.float16))
    found = opened(tmp_path, "x.npy")
    assert found.raw.dtype == np.float16
    assert values(found).dtype == np.float32


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("shape.npy", "has shape \\[4, 3\\], the dump says \\[3, 4\\]"),
        ("dtype.npy", "holds int64, the dump says float32"),
        ("torn.npy", "not a readable .npy file"),
        ("objects.npy", "holds Python objects"),
        ("archive.npy", "not a readable .npy file"),
        ("large.npy", "more than a tensor of shape"),
        ("absent.npy", "no file"),
        ("x.bin", "neither .npy, .pt nor .safetensors"),
        ("", "names no file"),
    ],
)
def test_a_file_that_does_not_fit_says_why(tmp_path: Path, name: str, reason: str) -> None:
    np.save(tmp_path / "shape.npy", VALUES.T)
    np.save(tmp_path / "dtype.npy", VALUES.astype(np.int64))
    np.save(tmp_path / "large.npy", np.zeros(20_000))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "archive.npz", VALUES)
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    np.save(tmp_path / "torn.npy", VALUES)
    (tmp_path / "torn.npy").write_bytes((tmp_path / "torn.npy").read_bytes()[:150])
    with pytest.raises(NotCheckable, match=reason):
        opened(tmp_path, name)


def test_a_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "x.npy", VALUES)
    with pytest.raises(NotCheckable, match="leads out of the dump's folder"):
        opened(tmp_path / "in", "../x.npy")
