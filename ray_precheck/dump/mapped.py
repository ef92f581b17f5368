"""Captured tensors that are read in pieces, so that they need not fit into memory.

Comes in: a `TensorSpec` with a `data_name`, and where the files are. Goes out: a `MappedTensor`, whose
pieces are carriers (see `schema.dtypes`). Called by `trace.difference`, which reads two tensors side by
side. The files are mapped into memory: what is read are pages that the system may drop again. The
rules for untrusted files are those of `dump.tensors`: no pickles, torch's weights-only loader, names that
stay in the folder, the shape of the dump; a few numbers that were expanded to a shape are refused.

Plain tensors in files of `torch.save`, read without torch, whose import takes longer than they do. The file
is a zip archive: `data.pkl` is a pickle that names the storage, and `data/{key}` has the storage's bytes,
uncompressed (pytorch.org/docs/stable/notes/serialization.html). The pickle is untrusted: of the names in it
only those below stand for anything, and what they stand for here keeps numbers, and runs nothing.
"""

import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.dump.tensors import (
    UNREADABLE,
    FolderFiles,
    TensorFiles,
    captured_file,
    elements_of,
    require_dtype,
    require_npy_size,
    require_pt_size,
    require_shape,
    unreadable,
)
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import Quantized, TensorSpec

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
    fits = found.offset >= 0 and begin + count * kind.itemsize <= member.file_size
    if member.compress_type != zipfile.ZIP_STORED or not fits:
        raise _NotPlain
    opened.seek(member.header_offset + _HEADER - _LENGTHS.size)
    begin += member.header_offset + _HEADER + sum(_LENGTHS.unpack(opened.read(_LENGTHS.size)))
    opened.seek(begin)
    return PlainTensor(found.storage.dtype, found.shape, _elements(opened, kind, count, is_mapped))


def _is_little(archive: zipfile.ZipFile, order: zipfile.ZipInfo) -> bool:
    # Of another size it is not even unpacked: it may be a gigabyte of zeros.
    return order.file_size == len(b"little") and archive.read(order) == b"little"


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


_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, requires_grad, hooks: tensor,
    ("collections", "OrderedDict"): dict,
}


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A captured tensor in row-major order.

    `raw` are its elements as they stand in the file, `(N,)`; `widen` makes a carrier of some of them,
    None where they are one already. `dtype` is the canonical name.
    """

    dtype: str
    shape: tuple[int, ...]
    raw: Array
    widen: Callable[[Array], Array] | None = None

    def carrier(self, some: Array) -> Array:
        """Return elements of `raw` as a carrier."""
        return some if self.widen is None else self.widen(some)


class MappedTensors:
    """Opens tensors of a dump; a path stands for the files in that folder.

    A file is mapped into memory, or else read. If a mapped file is cut later on, the system ends the process
    that looks at the pages that are gone (SIGBUS).
    """

    def __init__(self, files: TensorFiles | Path, *, is_mapped: bool = True) -> None:
        self._files = FolderFiles(files) if isinstance(files, Path) else files
        self._is_mapped = is_mapped

    def read_whole(self) -> "MappedTensors":
        """Return an opener of the same files that reads them."""
        return MappedTensors(self._files, is_mapped=False)

    def open(self, spec: TensorSpec) -> MappedTensor:
        """Map the captured tensor of `spec`, checked against its recorded dtype and shape.

        Raises:
            NotCheckable: no file is recorded, it is missing or unreadable, or it does not fit.
        """
        file = captured_file(spec)
        with self._files.open(str(spec.data_name)) as opened:
            raw, widen = _READERS[file.suffix](opened, file.name, spec, self._is_mapped)
        if isinstance(spec.storage, Quantized):
            meant = spec.storage.meant(raw.reshape(spec.shape)).astype(np.float32)
            return MappedTensor("float32", spec.shape, meant.reshape(-1))
        if widen is None:
            require_dtype(raw.dtype, file.name, spec)
            carrier = np.dtype(DTYPES[spec.dtype].carrier)
            if raw.dtype != carrier:
                return MappedTensor(spec.dtype, spec.shape, raw, lambda some: some.astype(carrier))
        return MappedTensor(spec.dtype, spec.shape, raw, widen)


_Found = tuple[Array, Callable[[Array], Array] | None]


def _open_npy(opened: BufferedReader, name: str, spec: TensorSpec, is_mapped: bool) -> _Found:
    try:
        require_npy_size(opened, name, spec)
        shape, fortran, dtype = _read_header(opened)
        if dtype.hasobject:
            raise NotCheckable(f"{name} holds Python objects, which are not read")
        require_shape(shape, name, spec)
        flat = _elements(opened, dtype, spec.size, is_mapped)
        # Only an array in Fortran's order is copied, which is that of the transposed shape, transposed.
        return (flat.reshape(shape[::-1]).T.reshape(-1) if fortran else flat), None
    except UNREADABLE as error:
        raise unreadable(name, error) from None


def map_npy(opened: BufferedReader, name: str) -> Array:
    """Return the array in an open `.npy` file, mapped into memory, of whatever dtype and shape it is.

    Raises:
        NotCheckable: it is torn, or holds Python objects.
    """
    try:
        shape, fortran, dtype = _read_header(opened)
        if dtype.hasobject:
            raise NotCheckable(f"{name} holds Python objects, which are not read")
        flat = _elements(opened, dtype, prod(shape), is_mapped=True)
        found: Array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
        return found
    except UNREADABLE as error:
        raise unreadable(name, error) from None


def _elements(opened: BufferedReader, dtype: np.dtype[Any], size: int, is_mapped: bool) -> Array:
    """Return the elements of an open file from where it stands, `(size,)`; raises ValueError for a cut
    file."""
    begin, wanted = opened.tell(), size * dtype.itemsize
    if not size:
        return np.zeros(0, dtype)
    content = b"" if is_mapped else opened.read(wanted)
    there = os.fstat(opened.fileno()).st_size - begin if is_mapped else len(content)
    if there < wanted:
        raise ValueError(f"the file is cut: it has {there} bytes of elements, expected {wanted}")
    if is_mapped:
        return np.asarray(np.memmap(opened, dtype, "r", begin, (size,)))
    return np.frombuffer(content, dtype)


def _read_header(opened: BufferedReader) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is in Fortran's order, and dtype (NumPy Enhancement Proposal 1)."""
    files: Any = np.lib.format  # has no types
    version = files.read_magic(opened)
    read = files.read_array_header_1_0 if version == (1, 0) else files.read_array_header_2_0
    shape, fortran, dtype = read(opened)
    return tuple(shape), bool(fortran), dtype


def _open_pt(opened: BufferedReader, name: str, spec: TensorSpec, is_mapped: bool) -> _Found:
    plain = read_plain_tensor(opened, is_mapped=is_mapped)
    if plain is not None and (plain.dtype != BFLOAT16 or spec.dtype == BFLOAT16):
        require_shape(plain.shape, name, spec)
        return plain.raw, _from_bfloat16 if plain.dtype == BFLOAT16 else None
    opened.seek(0)
    return _open_by_torch(opened, name, spec, is_mapped)


def _open_by_torch(opened: BufferedReader, name: str, spec: TensorSpec, is_mapped: bool) -> _Found:
    import torch

    try:
        require_pt_size(opened, name, spec)
        value = _load(opened, is_mapped)
        if not isinstance(value, torch.Tensor):
            raise NotCheckable(f"{name} holds a {type(value).__name__}, not a tensor")
        require_shape(tuple(value.shape), name, spec)
        if value.layout is not torch.strided:
            value = torch.from_numpy(elements_of(value.detach()))
        value = value.detach().resolve_conj().resolve_neg()
        if not value.is_contiguous():
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                raise NotCheckable(f"{name} holds fewer numbers than its shape has elements")
            value = value.contiguous()
        return _as_numpy(value.reshape(-1), name, spec)
    except (*UNREADABLE, pickle.UnpicklingError) as error:
        raise unreadable(name, error) from None


def _load(opened: BufferedReader, is_mapped: bool) -> Any:
    """Load a file, mapped if that is wanted and it is of the format since torch 1.6."""
    import zipfile

    import torch

    mapped = is_mapped and zipfile.is_zipfile(opened)
    opened.seek(0)
    # torch maps files by name alone; this is the file that has been checked, whatever its name is now.
    source: Any = f"/proc/self/fd/{opened.fileno()}" if mapped else opened
    return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)


def _as_numpy(value: Any, name: str, spec: TensorSpec) -> _Found:
    import torch

    if value.dtype == torch.bfloat16 and spec.dtype == "bfloat16":
        return value.view(torch.int16).numpy().view(np.uint16), _from_bfloat16
    if value.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        numbers = torch.arange(256, dtype=torch.uint8).view(value.dtype).to(torch.float32).numpy()
        return value.view(torch.uint8).numpy(), lambda some: numbers[some]
    if value.dtype == torch.bfloat16:
        value = value.to(torch.float32)
    return value.numpy(), None


def _from_bfloat16(some: Array) -> Array:
    wide = some.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


_READERS = {".npy": _open_npy, ".pt": _open_pt}
