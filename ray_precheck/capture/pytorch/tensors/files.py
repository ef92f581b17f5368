"""The files of captured tensors.

Comes in: a tensor and the name of its place. Goes out: a `.pt` file that `torch.load(weights_only=True)`
reads. Called for each tensor of a record where the task is `tensor`.

The same tensor in several records is written once; its other names are links to that file.
"""

import errno
import functools
import io
import os
import pickle
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

import torch

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.tensors.memory import (
    Glimpse,
    SeenTensors,
    borrowed_bytes,
    glimpse_of,
)

_STORAGES: dict[torch.dtype, type[Any]] = {
    getattr(torch, dtype): getattr(torch, f"{name}Storage")
    for dtype, name in {
        "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16",
        "int8": "Char", "uint8": "Byte", "int16": "Short", "int32": "Int", "int64": "Long",
        "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
    }.items()
}  # fmt: skip
_rebuild = private_parts.find(private_parts.TENSOR_REBUILDING)
# Larger archives need the fields of zip64.
_MOST_BYTES = 1 << 31
# Where the values begin: torch can map a file whose storages are aligned so.
_ALIGNMENT = 64
_DATE = pack("<HH", 0, 0x21)  # 1980-01-01, the first that the format has


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether `save` can write a tensor."""
    return (
        _rebuild is not None
        and type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.dtype in _STORAGES
        and 0 < tensor.numel() * tensor.element_size() < _MOST_BYTES
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        and tensor.is_contiguous()
        and tensor.data_ptr() != 0
    )


def save(tensor: torch.Tensor, path: str) -> None:
    """Write a plain tensor to a new file.

    Raises:
        FileExistsError: there is a file with that name.
        OSError: it cannot be written.
    """
    values: Any = borrowed_bytes(tensor)
    head, middle, behind, end = _parts(tensor.dtype, tensor.shape)
    checksum = pack("<I", zlib.crc32(values))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _write(file, [head, checksum, middle, values, behind, checksum, end])
    finally:
        os.close(file)


def _write(file: int, pieces: list[Any]) -> None:
    """Write pieces one after the other."""
    left = sum(len(piece) for piece in pieces)
    written = os.writev(file, pieces)
    if written == left:
        return
    rest = memoryview(b"".join(pieces))[written:]
    while rest:  # the disk is almost full, or the file has almost reached its limit
        count = os.write(file, rest)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest = rest[count:]


class _Parts(NamedTuple):
    """What stands before the checksum of the values, between it and the values, behind them up to where the
    checksum stands again, and after that."""

    head: bytes
    middle: bytes
    behind: bytes
    end: bytes


class _Member(NamedTuple):
    name: bytes
    size: int
    checksum: int
    offset: int


@functools.lru_cache(maxsize=4096)
def _parts(dtype: torch.dtype, shape: torch.Size) -> _Parts:
    size = shape.numel() * torch.empty(0, dtype=dtype).element_size()
    head, members = b"", []
    for name, contents in (("data.pkl", _pickled(dtype, shape)), ("byteorder", sys.byteorder)):
        raw = contents if isinstance(contents, bytes) else contents.encode()
        member = _member(name, raw, len(head))
        head += _local(member) + raw
        members.append(member)
    values = _Member(b"archive/data/0", size, 0, len(head))
    padding = -(len(head) + len(_local(values)) + 4) % _ALIGNMENT
    # An extra field of an unknown kind, which readers skip.
    extra = b"FB" + pack("<H", padding) + b"Z" * padding
    local = _local(values, extra)
    version = _member("version", b"3\n", len(head) + len(local) + size)
    behind = _local(version) + b"3\n"
    central = [_central(member) for member in (*members, values, version)]
    start = version.offset + len(behind)
    length = sum(map(len, central))
    end = b"PK\5\6" + pack("<HHHHIIH", 0, 0, 4, 4, length, start, 0)
    first = behind + b"".join(central[:2])
    of_values, place = central[2], _CENTRAL_CHECKSUM
    return _Parts(
        head + local[:_LOCAL_CHECKSUM],
        local[_LOCAL_CHECKSUM + 4 :],
        first + of_values[:place],
        of_values[place + 4 :] + central[3] + end,
    )


# Where the checksum stands in the header of a member, and in its entry in the directory (APPNOTE 4.3.7,
# 4.3.12).
_LOCAL_CHECKSUM, _CENTRAL_CHECKSUM = 14, 16


def _member(name: str, raw: bytes, offset: int) -> _Member:
    return _Member(f"archive/{name}".encode(), len(raw), zlib.crc32(raw), offset)


def _local(member: _Member, extra: bytes = b"") -> bytes:
    """Return the header of a member."""
    sizes = pack("<III", member.checksum, member.size, member.size)
    lengths = pack("<HH", len(member.name), len(extra))
    return b"PK\3\4" + pack("<HHH", 20, 0, 0) + _DATE + sizes + lengths + member.name + extra


def _central(member: _Member) -> bytes:
    """Return the entry of a member in the archive's directory."""
    sizes = pack("<III", member.checksum, member.size, member.size)
    rest = pack("<HHHHHII", len(member.name), 0, 0, 0, 0, 0, member.offset)
    return b"PK\1\2" + pack("<HHHH", 20, 20, 0, 0) + _DATE + sizes + rest + member.name


class _Storage:
    """Stands for the storage of the values."""


class _Tensor:
    """Is pickled as a tensor that has a storage for itself."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= max(size, 1)
        shape = tuple(self.shape)
        return _rebuild, (
            _Storage(), 0, shape, tuple(reversed(strides)), False, OrderedDict(),
        )  # fmt: skip


def _pickled(dtype: torch.dtype, shape: torch.Size) -> bytes:
    told = ("storage", _STORAGES[dtype], "0", "cpu", shape.numel())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return told if isinstance(value, _Storage) else None

    target = io.BytesIO()
    Pickler(target, protocol=2).dump(_Tensor(shape))
    return target.getvalue()


class CapturedFiles:
    """Writes tensors into a folder."""

    def __init__(
        self, folder: Path, glimpse: Callable[[torch.Tensor], Glimpse] = glimpse_of
    ) -> None:
        self._folder = folder
        self._name = ""
        self.seen = SeenTensors(self._write, ordered=True, glimpse=glimpse)
        self.written_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, tensor: torch.Tensor, name: str) -> str:
        """Write a tensor under a name, and return the name of its file."""
        name = f"{name}.pt"
        self._name = name
        first = self.seen.of(tensor)
        if first != name:
            self._link(first, name, tensor)
        return name

    def _link(self, first: str, name: str, tensor: torch.Tensor) -> None:
        try:
            self._new(name, lambda target: os.link(f"{self._folder}/{first}", target))
        except OSError:  # a file system without links, or too many of them
            self._name = name
            self._write(tensor)

    def _write(self, tensor: torch.Tensor) -> str:
        """Write the values alone: a view does not bring the storage that it is a view of."""
        values = tensor.detach()
        if values.layout is not torch.strided:
            return self._write_whole(values)
        own = values.untyped_storage().nbytes() == values.numel() * values.element_size()
        if values.is_conj() or values.is_neg():
            values = values.resolve_conj().resolve_neg()
        if not (own and values.is_contiguous()):
            values = values.contiguous().clone()
        if is_plain(values):
            self._new(self._name, lambda target: save(values, target))
        else:
            self._write_whole(values)
        self.written_bytes += values.numel() * values.element_size()
        return self._name

    def _write_whole(self, values: torch.Tensor) -> str:
        """Write a tensor of a layout or a dtype that only torch itself writes."""
        path = self._folder / self._name
        path.unlink(missing_ok=True)
        torch.save(values, path)
        if values.layout is not torch.strided:
            self.written_bytes += path.stat().st_size
        return self._name

    def _new(self, name: str, make: Callable[[str], None]) -> None:
        """Let `make` make a file, in the place of one that an earlier capture has left."""
        target = f"{self._folder}/{name}"
        try:
            make(target)
        except FileExistsError:
            os.unlink(target)
            make(target)
