"""Captured tensors that another machine decodes: the same bits, and the same reasons."""

import os
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.dump.tensors import (
    CapturedTensors,
    FolderFiles,
    Refused,
    ShippedFiles,
    SizeOnly,
    is_captured,
    most_file_bytes,
)
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit

NAME = "Mint.add.0.forward.input.0.npy"
HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n"


class Touch:
    """An object whose unpickling makes a file: how a test sees that a pickle was run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.marker,))


def shipped(folder: Path, spec: TensorSpec) -> ShippedFiles:
    """Return the file of a tensor as it arrives on another machine."""
    name = spec.data_name or ""
    files = ShippedFiles({name: FolderFiles(folder).ship(name, most_file_bytes(spec))})
    arrived = pickle.loads(pickle.dumps(files))
    assert isinstance(arrived, ShippedFiles)
    return arrived


def load(folder: Path, spec: TensorSpec) -> tuple[Array, Array]:
    """Return a tensor as it is read here, and as another machine reads it."""
    here = CapturedTensors(folder).tensor(spec, "x")
    there = CapturedTensors(shipped(folder, spec)).tensor(spec, "x")
    assert here.dtype == there.dtype
    return here.data, there.data


def refused(folder: Path, spec: TensorSpec) -> str:
    """Return why a tensor cannot be used, which is the same here and on another machine."""
    reasons = []
    for source in (CapturedTensors(folder), CapturedTensors(shipped(folder, spec))):
        with pytest.raises(NotCheckable) as reason:
            source.tensor(spec, "input_args.0")
        reasons.append(str(reason.value))
    assert reasons[0] == reasons[1]
    assert reasons[0].startswith("input_args.0: ")
    return reasons[0]


def float32(*shape: int, name: str = NAME) -> TensorSpec:
    return TensorSpec("float32", shape, data_name=name)


def npy_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if dtype.carrier == name])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_an_npy_file_arrives_bit_by_bit(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / NAME, np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    here, there = load(tmp_path, TensorSpec(dtype, shape, data_name=NAME))
    assert (here.dtype, here.shape) == (there.dtype, there.shape)
    assert here.tobytes() == there.tobytes()


def test_every_bit_of_a_large_tensor_arrives_and_may_be_written(tmp_path: Path) -> None:
    saved = np.random.default_rng(0).integers(0, 2**32, (1 << 20,), np.uint32).view(np.float32)
    np.save(tmp_path / NAME, saved)
    here, there = load(tmp_path, float32(1 << 20))
    assert here.tobytes() == there.tobytes() == saved.tobytes()
    there[0] = 1.0  # An operator may change its input in place.
    # NumPy 2 gives a view of an array of its own.
    assert (there if there.base is None else there.base).flags.owndata


def test_fortran_order_arrives(tmp_path: Path) -> None:
    np.save(tmp_path / NAME, np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    here, there = load(tmp_path, float32(2, 3))
    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        b"\x93NUMPY",
        b"PK\x03\x04garbage",
        npy_header("{'descr': '<f4'}\n"),
        npy_header("exit()\n"),
        npy_header("{'descr': ("),
        npy_header("{[]: 1}\n"),
        npy_header(HEADER),
        npy_header(HEADER) + b"\x00" * 5,
        npy_header(HEADER.replace("(2,)", "(1000000000000000,)")),
        npy_header(HEADER.replace("(2,)", "(3,)")) + b"\x00" * 12,
        npy_header(HEADER.replace("f4", "i8")) + b"\x00" * 16,
    ],
)
def test_a_broken_file_is_refused_in_the_same_words(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / NAME).write_bytes(raw)
    assert NAME in refused(tmp_path, float32(2))


def test_an_npy_file_cut_at_any_byte_is_refused_in_the_same_words(tmp_path: Path) -> None:
    np.save(tmp_path / NAME, np.ones(2, np.float32))
    whole = (tmp_path / NAME).read_bytes()
    for length in range(0, len(whole), 3):
        (tmp_path / NAME).write_bytes(whole[:length])
        assert "not a readable .npy file" in refused(tmp_path, float32(2))


@pytest.mark.parametrize(
    "name",
    [
        "missing.npy",
        "../secret.npy",
        "up/secret.npy",
        "/etc/hostname.npy",
        "pipe.npy",
        "loop.npy",
        "folder.npy",
        "x\x00.npy",
        "\ud800.npy",
        "a" * 300 + ".npy",
        "../" * 1000 + "etc/passwd.npy",
        "x.bin",
        ".npy",
        "..",
        "",
    ],
    ids=lambda name: ascii(name[:20]),
)
def test_a_name_of_no_file_is_refused_in_the_same_words(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    np.save(tmp_path / "secret.npy", np.ones(2, np.float32))
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    (folder / "loop.npy").symlink_to(folder / "loop.npy")
    (folder / "folder.npy").mkdir()
    os.mkfifo(folder / "pipe.npy")
    refused(folder, float32(2, name=name))
    assert FolderFiles(folder).size_bytes(name) <= (1 << 12)  # a folder has a size too


def test_a_file_that_is_too_large_is_refused_in_the_same_words_without_being_read(
    tmp_path: Path,
) -> None:
    with (tmp_path / NAME).open("wb") as file:
        file.write(npy_header(HEADER))
        file.truncate(1 << 30)
    assert FolderFiles(tmp_path).ship(NAME, most_file_bytes(float32(2))) == SizeOnly(1 << 30)
    tracemalloc.start()
    text = refused(tmp_path, float32(2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "has 1073741824 bytes, more than a tensor of shape [2] takes" in text
    assert peak < 10 << 20


def test_a_file_that_holds_more_than_its_own_tensor_is_refused_in_the_same_words(
    tmp_path: Path,
) -> None:
    """Another tensor of the record may name the same file, and have it sent as a whole."""
    np.save(tmp_path / NAME, np.ones(10_000, np.float64))
    small, large = float32(2), TensorSpec("float64", (10_000,), data_name=NAME)
    files = shipped(tmp_path, large)
    assert CapturedTensors(files).tensor(large, "x").data.sum() == 10_000
    with pytest.raises(NotCheckable) as there:
        CapturedTensors(files).tensor(small, "x")
    with pytest.raises(NotCheckable) as here:
        CapturedTensors(tmp_path).tensor(small, "x")
    assert str(here.value) == str(there.value)
    assert "more than a tensor of shape [2] takes" in str(there.value)


def test_a_file_that_cannot_be_read_is_refused_in_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / NAME, np.ones(2, np.float32))

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("ray_precheck.dump.tensors.open_file", denied)
        text = refused(tmp_path, float32(2))
    where = tmp_path / NAME
    assert text == (
        f"input_args.0: {NAME} is not a readable .npy file: [Errno 13] Permission denied: '{where}'"
    )


def test_a_file_that_fails_while_it_is_read_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / NAME, np.ones(2, np.float32))

    def fail(*_: object) -> None:
        raise MemoryError("Unable to allocate 136 bytes")

    with monkeypatch.context() as patch:
        patch.setattr("ray_precheck.dump.tensors.np.empty", fail)
        content = FolderFiles(tmp_path).ship(NAME, 1 << 20)
    reason = f"{NAME} is not a readable .npy file: Unable to allocate 136 bytes"
    assert content == Refused(reason)


def test_bytes_with_a_pickle_are_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for objects in (True, False):
        if objects:
            np.save(tmp_path / NAME, np.array([Touch(marker)] * 2, dtype=object), allow_pickle=True)
        else:
            (tmp_path / NAME).write_bytes(pickle.dumps(Touch(marker)))
        assert "not a readable .npy file" in refused(tmp_path, float32(2))
    assert not marker.exists()


@pytest.mark.parametrize("content", [SizeOnly(1 << 40), SizeOnly(0), np.empty(0, np.uint8)])
def test_what_arrives_is_trusted_no_more_than_a_file(content: SizeOnly | Array) -> None:
    with pytest.raises(NotCheckable):
        CapturedTensors(ShippedFiles({NAME: content})).tensor(float32(2), "x")


def test_a_file_that_was_not_sent_is_named() -> None:
    files = ShippedFiles({"other.npy": Refused("no file")})
    with pytest.raises(NotCheckable, match=rf"^x: '{NAME}' was not sent by the machine"):
        CapturedTensors(files).tensor(float32(2), "x")


@pytest.fixture
def open_files() -> Iterator[list[str]]:
    """The files that are open, to be compared at the end."""
    before = sorted(os.listdir("/proc/self/fd"))
    yield before
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("open_files")
def test_no_file_is_left_open(tmp_path: Path) -> None:
    np.save(tmp_path / NAME, np.ones(2, np.float32))
    load(tmp_path, float32(2))
    refused(tmp_path, float32(3))
    (tmp_path / NAME).write_bytes(b"PK\x03\x04garbage")
    refused(tmp_path, float32(2))
    with pytest.raises(NotCheckable, match="not a readable"):  # larger than any file can be
        CapturedTensors(ShippedFiles({NAME: SizeOnly(-1)})).tensor(float32(2), "x")


def test_what_has_a_file_is_known_without_looking_for_it() -> None:
    named = {"a.npy": True, "a.pt": True, "a.bin": False, ".npy": False, "": False}
    assert {n: is_captured(float32(2, name=n)) for n in named} == named
    assert not is_captured(TensorSpec("float32", (2,)))


def test_a_size_is_known_without_reading(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"12345")
    assert FolderFiles(tmp_path).size_bytes(NAME) == 5
    assert FolderFiles(tmp_path).size_bytes("missing.npy") == 0
