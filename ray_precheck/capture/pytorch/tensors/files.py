"""The files of captured tensors.

Comes in: a tensor and the name of its place. Goes out: a `.pt` file that `torch.load(weights_only=True)`
reads, or one of safetensors. Called for each tensor of a record where the task is `tensor`.

The same tensor in several records is written once; its other names are links to that file.

A capture of tensors writes a thousand files a step. Those of one dtype and shape differ in their values and
the checksum of these alone, so `torch.save` writes the first one, and the others are written like it. The
processor time of a float32 tensor of 64, 4,096, 65,536 and 1,048,576 elements is 0.54, 0.8, 0.71 and 0.82 of
that of `torch.save` (44 against 81 us for the smallest; torch 2.13, one thread, medians, 2026-11-28). Where
there is a process that writes (`shared_writer`), it makes all but the first one, and the links.
"""

import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from struct import pack, unpack
from typing import Any, NamedTuple, TypeAlias

import torch

from ray_precheck.capture.pytorch.tensors.memory import (
    Glimpse,
    SeenTensors,
    borrowed_bytes,
    glimpse_of,
    is_freed,
)
from ray_precheck.capture.writing.shared_writer import SharedWriter
from ray_precheck.dump.safetensors import NAMES, SUFFIX, head_of, only_tensor
from ray_precheck.numerics.one_pass import crc32_of

# The fields of larger archives have other places (zip64).
_MOST_BYTES = 1 << 31
_MOST_KINDS = 4096
# The values of a tensor, and what stands in front of them and behind.
Pieces: TypeAlias = tuple[bytes, Any, bytes]
# How many bytes the header of a file in an archive has, and behind which the lengths of its name and of its
# extra field stand (APPNOTE 4.3.7).
_HEADER, _LENGTHS = 30, 26


class _Around(NamedTuple):
    """What stands before and behind the values in an archive, and their checksum, which stands there, too."""

    head: bytes
    tail: bytes
    checksum: bytes
    # Where in the archive it stands.
    places: tuple[int, int]


# By dtype and shape; None where no archive can be written like the first one.
_KNOWN: dict[tuple[torch.dtype, torch.Size], _Around | None] = {}


class CapturedFiles:
    """Writes tensors into a folder."""

    def __init__(
        self,
        folder: Path,
        glimpse: Callable[[torch.Tensor], Glimpse] = glimpse_of,
        *,
        as_safetensors: bool = False,
        writer: SharedWriter | None = None,
    ) -> None:
        self._writer = writer
        self._folder = folder
        self._as_safetensors = as_safetensors
        self._name = ""
        self.seen = SeenTensors(self._write, ordered=True, glimpse=glimpse)
        self.written_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, tensor: torch.Tensor, name: str) -> str:
        """Write a tensor under a name, and return the name of its file."""
        name += SUFFIX if self._as_safetensors and _has_format(tensor) else ".pt"
        self._name = name
        first = self.seen.of(tensor)
        if first != name:
            self._link(first, name, tensor)
        return name

    def _link(self, first: str, name: str, tensor: torch.Tensor) -> None:
        if self._writer is not None and self._writer.link(first, name):
            return
        try:
            self._new(name, lambda target: os.link(f"{self._folder}/{first}", target))
        except OSError:  # a file system without links, or too many of them
            self._name = name
            self._write(tensor)

    def _write(self, tensor: torch.Tensor) -> str:
        """Write the values alone: a view does not bring the storage that it is a view of."""
        values = tensor.detach()
        if values.layout is not torch.strided:
            path = self._save(values)
            self.written_bytes += path.stat().st_size
            return self._name
        size = values.numel() * values.element_size()
        is_own = values.untyped_storage().nbytes() == size
        if values.is_conj() or values.is_neg():
            values = values.resolve_conj().resolve_neg()
        is_own = is_own and values.is_contiguous()
        values = values.contiguous()
        self.written_bytes += size
        if self._name.endswith(SUFFIX):
            self._put(_safetensors(values.cpu()))
            return self._name
        is_plain = type(values) is torch.Tensor and values.is_cpu and 0 < size < _MOST_BYTES
        kind = values.dtype, values.shape
        around = _KNOWN.get(kind) if is_plain and values.data_ptr() else None
        if around is not None:
            self._put_like(around, borrowed_bytes(values))
            return self._name
        path = self._save(values if is_own else values.clone())
        if is_plain and values.data_ptr() and kind not in _KNOWN:
            if len(_KNOWN) >= _MOST_KINDS:
                _KNOWN.clear()
            _KNOWN[kind] = _around(path, values)
        return self._name

    def _put_like(self, around: _Around, values: Any) -> None:
        """Write the values of a tensor like the first of its kind."""
        writer, pieces = self._writer, (around.head, values, around.tail)
        if writer is None or not writer.file(self._name, pieces, around.places):
            own = pack("<I", crc32_of(values))
            head, tail = (part.replace(around.checksum, own) for part in around[:2])
            self._new(self._name, lambda target: _write_pieces((head, values, tail), target))

    def _put(self, pieces: Pieces) -> None:
        if self._writer is None or not self._writer.file(self._name, pieces):
            self._new(self._name, lambda target: _write_pieces(pieces, target))

    def _save(self, values: torch.Tensor) -> Path:
        """Let torch write a tensor."""
        path = self._folder / self._name
        path.unlink(missing_ok=True)  # it may be a link to another tensor's
        with path.open("wb") as file:  # given a name torch writes it into the archive
            torch.save(values, file)
        return path

    def _new(self, name: str, make: Callable[[str], None]) -> None:
        """Let `make` make a file, in the place of one that an earlier capture has left."""
        target = f"{self._folder}/{name}"
        try:
            make(target)
        except FileExistsError:
            os.unlink(target)
            make(target)


def _around(path: Path, tensor: torch.Tensor) -> _Around | None:
    """Return what stands around the values of a tensor in its file; None where the checksum is not told from
    other bytes."""
    values: Any = borrowed_bytes(tensor)
    checksum = pack("<I", crc32_of(values))
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        begin = next(each for each in archive.infolist() if each.filename.endswith("/data/0"))
        file.seek(begin.header_offset + _LENGTHS)
        start = begin.header_offset + _HEADER + sum(unpack("<HH", file.read(4)))
        file.seek(0)
        head = file.read(start)
        file.seek(start + len(values))
        tail = file.read()
    # Once beside the values, once in the directory.
    behind = start + len(values)
    places = [each.start() for each in re.finditer(re.escape(checksum), head)]
    places += [behind + each.start() for each in re.finditer(re.escape(checksum), tail)]
    return _Around(head, tail, checksum, (places[0], places[1])) if len(places) == 2 else None


def saved_tensor(path: Path) -> torch.Tensor:
    """Return the tensor of a file that `CapturedFiles` has written.

    Raises:
        Exception: any of `torch.load`; ValueError where a file of safetensors is none.
    """
    if path.suffix != SUFFIX:
        return torch.load(path)  # type: ignore[no-any-return]
    with path.open("rb") as file:
        found = only_tensor(file)
        file.seek(found.begin)
        raw = bytearray(file.read())
    dtype = getattr(torch, found.dtype)
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(found.shape)


def _has_format(tensor: torch.Tensor) -> bool:
    """Return whether safetensors has the dtype and the layout of a tensor, which has values."""
    return (
        tensor.layout is torch.strided
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and str(tensor.dtype).removeprefix("torch.") in NAMES
        and not (tensor.is_meta or tensor.is_nested or is_freed(tensor))
    )


def _safetensors(tensor: torch.Tensor) -> Pieces:
    """Return the file of a contiguous tensor on the CPU."""
    head = head_of(str(tensor.dtype).removeprefix("torch."), tensor.shape)
    return head, borrowed_bytes(tensor) if tensor.numel() else b"", b""


def _write_pieces(pieces: Pieces, path: str) -> None:
    """Write pieces to a new file.

    Raises:
        FileExistsError: there is a file with that name.
        OSError: it cannot be written.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        written = os.writev(file, pieces)
        if written < sum(map(len, pieces)):  # the disk is almost full, or the file at its limit
            with open(file, "wb", closefd=False) as rest:
                rest.write(b"".join(pieces)[written:])
    finally:
        os.close(file)
