"""Captured tensors in .npy files, and names that lead elsewhere."""

import gc
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.dump.tensors import CapturedTensors, most_file_bytes
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit

NAME = "Mint.add.0.forward.input.0.npy"


class Touch:
    """An object whose unpickling makes a file: how a test sees that a pickle was run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.marker,))


def load(folder: Path, dtype: str, shape: tuple[int, ...], name: str | None = NAME) -> Array:
    return (
        CapturedTensors(folder)
        .tensor(TensorSpec(dtype, shape, data_name=name), "input_args.0")
        .data
    )


def refused(
    folder: Path, dtype: str = "float32", shape: tuple[int, ...] = (2,), name: str | None = NAME
) -> str:
    """Return why a tensor cannot be used; it starts with the argument's path."""
    with pytest.raises(NotCheckable) as reason:
        load(folder, dtype, shape, name)
    text = str(reason.value)
    assert text.startswith("input_args.0: ")
    return text


def npy_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if dtype.carrier == name])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_an_npy_file_of_every_numpy_dtype_is_read_as_it_is(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    saved = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    np.save(tmp_path / NAME, saved)
    data = load(tmp_path, dtype, shape)
    assert data.dtype == dtype
    np.testing.assert_array_equal(data, saved)


def test_a_bfloat16_tensor_lies_in_an_npy_file_of_float32(tmp_path: Path) -> None:
    saved = np.array([1.0, 1.0 + 2.0**-7], dtype=np.float32)
    np.save(tmp_path / NAME, saved)
    tensor = CapturedTensors(tmp_path).tensor(TensorSpec("bfloat16", (2,), data_name=NAME), "x")
    assert tensor.dtype == "bfloat16"
    np.testing.assert_array_equal(tensor.data, saved)


def test_an_array_in_fortran_order_keeps_its_elements_in_place(tmp_path: Path) -> None:
    saved = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.save(tmp_path / NAME, saved)
    np.testing.assert_array_equal(load(tmp_path, "float32", (2, 3)), saved)


def test_a_file_in_a_folder_below_is_found(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    np.save(tmp_path / "rank0" / NAME, np.ones(2, np.float32))
    assert load(tmp_path, "float32", (2,), f"rank0/{NAME}").tolist() == [1.0, 1.0]


def test_a_tensor_without_a_file_name_is_named(tmp_path: Path) -> None:
    for name in (None, ""):
        assert "the dump names no file" in refused(tmp_path, name=name)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    text = refused(tmp_path)
    assert f"no file {NAME!r} in {tmp_path}" in text


@pytest.mark.parametrize("name", ["x.bin", "x", "x.npz", "x.npy.gz", "x.NPY", ".npy"])
def test_only_npy_and_pt_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert "is neither .npy, .pt nor .safetensors" in refused(tmp_path, name=name)


@pytest.mark.parametrize("shape", [(3,), (2, 1), ()])
def test_another_shape_is_named_with_both(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / NAME, np.ones(2, np.float32))
    assert f"has shape [2], the dump says {list(shape)}" in refused(tmp_path, shape=shape)


@pytest.mark.parametrize(
    ("saved", "recorded"),
    [("complex64", "float32"), ("float32", "int32"), ("<U3", "float32"), ("int64", "bool")],
)
def test_another_dtype_is_named_with_both(tmp_path: Path, saved: str, recorded: str) -> None:
    np.save(tmp_path / NAME, np.ones(2).astype(saved))
    assert f"holds {np.dtype(saved)}, the dump says {recorded}" in refused(tmp_path, recorded)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path, depth: int) -> None:
    folder = tmp_path / "a" / "dump_tensor_data"
    folder.mkdir(parents=True)
    np.save(folder.parents[depth - 1] / "secret.npy", np.ones(2, np.float32))
    assert "leads out" in refused(folder, name="../" * depth + "secret.npy")


def test_an_absolute_path_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", np.ones(2, np.float32))
    assert "leads out" in refused(folder, name=str(tmp_path / "secret.npy"))


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", np.ones(2, np.float32))
    (folder / NAME).symlink_to(tmp_path / "secret.npy")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    assert "leads out" in refused(folder)
    assert "leads out" in refused(folder, name="up/secret.npy")


def test_a_folder_beside_with_the_same_beginning_is_outside(tmp_path: Path) -> None:
    for folder in ("dump_tensor_data", "dump_tensor_data_2"):
        (tmp_path / folder).mkdir()
    np.save(tmp_path / "dump_tensor_data_2" / NAME, np.ones(2, np.float32))
    text = refused(tmp_path / "dump_tensor_data", name=f"../dump_tensor_data_2/{NAME}")
    assert "leads out" in text


def test_a_link_within_the_folder_and_a_folder_that_is_a_link_are_fine(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    np.save(folder / "x.npy", np.ones(2, np.float32))
    (folder / NAME).symlink_to(folder / "x.npy")
    (tmp_path / "dump_tensor_data").symlink_to(folder, target_is_directory=True)
    assert load(tmp_path / "dump_tensor_data", "float32", (2,)).tolist() == [1.0, 1.0]


def test_a_pickle_in_an_npy_file_is_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pickle.loads(pickle.dumps(Touch(marker)))
    assert marker.exists()
    marker.unlink()
    np.save(tmp_path / NAME, np.array([Touch(marker)] * 2, dtype=object), allow_pickle=True)
    assert "not a readable .npy file" in refused(tmp_path)
    (tmp_path / NAME).write_bytes(pickle.dumps(Touch(marker)))
    assert "not a readable .npy file" in refused(tmp_path)
    assert not marker.exists()


def refused_and_left_open(folder: Path) -> tuple[str, list[str]]:
    """Return why a tensor cannot be used, and the files that were left open."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            text = refused(folder)
        except zipfile.BadZipFile as error:  # let go of here: it holds the open file
            text = repr(error)
        gc.collect()
    return text, [str(w.message) for w in seen if issubclass(w.category, ResourceWarning)]


def test_an_archive_with_the_name_of_an_array_is_refused_and_closed(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(2, np.float32))
    (tmp_path / "x.npz").rename(tmp_path / NAME)
    text, left_open = refused_and_left_open(tmp_path)
    assert "holds an archive" in text
    assert left_open == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        b"\x93NUMPY",
        npy_header("{'descr': 'zzz', 'fortran_order': False, 'shape': (2,)}\n"),
        npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n"),
        npy_header("{'descr': '<f4'}\n"),
        npy_header("exit()\n"),
    ],
)
def test_a_broken_npy_file_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / NAME).write_bytes(raw)
    assert f"{NAME} is not a readable .npy file" in refused(tmp_path)


@pytest.mark.parametrize(
    "raw",
    [
        npy_header("{'descr': ("),  # tokenize.TokenError
        npy_header("{[]: 1}\n"),  # TypeError
        npy_header("{'descr': ('<f4',), 'fortran_order': False, 'shape': (2,)}\n"),  # IndexError
        # MemoryError
        npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,)}\n"),
    ],
)
def test_a_broken_header_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / NAME).write_bytes(raw)
    assert f"{NAME} is not a readable .npy file" in refused(tmp_path)


def test_a_broken_archive_is_named_and_closed(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"PK\x03\x04garbage")
    text, left_open = refused_and_left_open(tmp_path)
    assert f"{NAME} is not a readable .npy file" in text
    assert left_open == []


def test_a_name_longer_than_the_file_system_takes_is_a_missing_file(tmp_path: Path) -> None:
    assert "no file" in refused(tmp_path, name="a" * 300 + ".npy")


def test_a_file_of_integers_is_no_float_tensor(tmp_path: Path) -> None:
    np.save(tmp_path / NAME, np.ones(2, np.int64))
    assert "holds int64, the dump says float32" in refused(tmp_path)


def test_a_file_may_be_as_large_as_its_tensor_can_be(tmp_path: Path) -> None:
    path, data = tmp_path / NAME, np.array([1.0, 2.0], np.float32)
    np.save(path, data)
    most = most_file_bytes(TensorSpec("float32", (2,)))
    os.truncate(path, most)
    np.testing.assert_array_equal(load(tmp_path, "float32", (2,)), data)
    os.truncate(path, most + 1)
    assert f"has {most + 1} bytes, more than a tensor of shape [2] takes" in refused(tmp_path)
