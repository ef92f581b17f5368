"""Plain tensors in files of `torch.save`, read without torch, whose import takes longer than they do.

Comes in: an open file. Goes out: its elements as a NumPy array, or None for whatever is not a plain tensor:
then torch reads the file, and says what is wrong with it. Called by `dump.mapped`.

The file is a zip archive: `data.pkl` is a pickle that names the storage, and `data/{key}` has the storage's
bytes, uncompressed (pytorch.org/docs/stable/notes/serialization.html). The pickle is untrusted: of the names
in it only those below stand for anything, and what they stand for here keeps numbers, and runs nothing.
"""

import os
import pickle
import struct
import sys
import zipfile
from io import BufferedReader, BytesIO
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.schema.dtypes import Array

BFLOAT16 = "bfloat16"
_DTYPES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": BFLOAT16,
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
# A pickle of one tensor has some 200 bytes.
_LARGEST_PICKLE = 1 << 16
# The header of a file in an archive: 26 bytes, then the lengths of its name and of its extra field.
_HEADER, _LENGTHS = 30, struct.Struct("<HH")


class PlainTensor(NamedTuple):
    """The elements of a tensor in row-major order, `(N,)`, those of bfloat16 as the uint16 of their bits."""

    dtype: str
    shape: tuple[int, ...]
    raw: Array


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Rebuilt(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _NotPlain(Exception):
    """The file holds something else than a plain tensor."""


def read_plain_tensor(opened: BufferedReader, *, is_mapped: bool) -> PlainTensor | None:
    """Return the tensor in an open file, mapped into memory or read; None where torch has to look."""
    try:
        return _read(opened, is_mapped)
    except (
        _NotPlain, pickle.UnpicklingError, zipfile.BadZipFile, OSError, EOFError, ValueError, TypeError,
        KeyError, IndexError, AttributeError, ImportError, NotImplementedError, RuntimeError, struct.error,
        OverflowError, MemoryError, RecursionError,
    ):  # fmt: skip
        return None


def _read(opened: BufferedReader, is_mapped: bool) -> PlainTensor:
    archive = zipfile.ZipFile(opened)
    members = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1 or members[pickles[0]].file_size > _LARGEST_PICKLE:
        raise _NotPlain
    folder = pickles[0].removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if sys.byteorder != "little" or (order in members and not _is_little(archive, members[order])):
        raise _NotPlain
    found = _TensorUnpickler(BytesIO(archive.read(pickles[0]))).load()
    if not isinstance(found, _Rebuilt) or found.strides != _row_major(found.shape):
        raise _NotPlain
    kind = np.dtype(np.uint16 if found.storage.dtype == BFLOAT16 else found.storage.dtype)
    member = members[f"{folder}data/{found.storage.key}"]
    count, begin = prod(found.shape), found.offset * kind.itemsize
    if (
        member.compress_type != zipfile.ZIP_STORED
        or found.offset < 0
        or begin + count * kind.itemsize > member.file_size
    ):
        raise _NotPlain
    opened.seek(member.header_offset + _HEADER - _LENGTHS.size)
    begin += member.header_offset + _HEADER + sum(_LENGTHS.unpack(opened.read(_LENGTHS.size)))
    raw = _elements(opened, kind, count, begin, is_mapped)
    return PlainTensor(found.storage.dtype, found.shape, raw)


def _is_little(archive: zipfile.ZipFile, order: zipfile.ZipInfo) -> bool:
    # Of another size it is not even unpacked: it may be a gigabyte of zeros.
    return order.file_size == len(b"little") and archive.read(order) == b"little"


def _elements(
    opened: BufferedReader, kind: np.dtype[Any], count: int, begin: int, is_mapped: bool
) -> Array:
    if not count:
        return np.zeros(0, kind)
    if os.fstat(opened.fileno()).st_size < begin + count * kind.itemsize:
        raise _NotPlain
    if is_mapped:
        return np.asarray(np.memmap(opened, kind, "r", begin, (count,)))
    opened.seek(begin)
    content = opened.read(count * kind.itemsize)
    if len(content) < count * kind.itemsize:
        raise _NotPlain
    return np.frombuffer(content, kind)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


class _TensorUnpickler(pickle.Unpickler):
    """Loads a pickle in which names stand for what keeps numbers, and for nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is not None:
            return known
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise _NotPlain

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, _ = pid
        if kind != "storage" or dtype not in _DTYPES.values() or type(key) is not str:
            raise _NotPlain
        return _Storage(dtype, key)


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any, hooks: Any
) -> _Rebuilt:
    """Take the place of what torch rebuilds tensors with; a tensor with further metadata is not plain."""
    numbers = (offset, *shape, *strides)
    if type(storage) is not _Storage or not all(type(each) is int for each in numbers):
        raise _NotPlain
    return _Rebuilt(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: Any, requires_grad: Any, hooks: Any) -> Any:
    return tensor


_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("collections", "OrderedDict"): dict,
}
