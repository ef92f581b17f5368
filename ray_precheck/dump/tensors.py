"""Captured tensors of a dump with `task: tensor`.

Comes in: a `TensorSpec` with a `data_name`. Goes out: a `HostTensor`. Called by `datagen` in real
mode, and by `runtime.shipper` for the bytes of files that another machine is to decode. The
files are untrusted data: `.npy` is read without pickles, `.pt` with torch's weights-only loader,
and no name may lead out of the dump's folder. Bytes that came from another machine are decoded with
the same checks, and problems of that machine are reported here in the same words.
"""

import math
import os
import re
import struct
import tokenize
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

import numpy as np

from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import open_file, shown
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostTensor, Sparse, Storage, TensorSpec

T = TypeVar("T")
# The exceptions of np.load and torch.load on broken or made-up files; neither documents them.
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    MemoryError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
)
# The largest element of an .npy file (complex128), and the largest header before the elements.
_LARGEST_ELEMENT_BYTES = 16
_LARGEST_HEADER_BYTES = 1 << 16
_LONGEST_REASON = 200
# An archive of so many bytes unpacks to 16 MiB at most.
_HARMLESS_BYTES = 1 << 14
_ARCHIVE = b"PK\x03\x04"
# Sparse tensors are compared element by element up to this size, which takes 1 GiB in float32.
MOST_DENSE = 1 << 28
# The address of an object differs in each process, so a row with it would differ too.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class TensorFiles(Protocol):
    """Where captured files are: in a folder of this machine, or in memory."""

    def open(self, name: str) -> BufferedReader:
        """Open the file of a `data_name`; raise `NotCheckable` with the reason."""


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files in the folder `dump_tensor_data` of a dump."""

    folder: Path

    def open(self, name: str) -> BufferedReader:
        """Open a file.

        Raises:
            NotCheckable: it is missing, leads out of the folder, or may not be read.
        """
        file = self.folder / name
        try:
            is_file = file.is_file()
        except OSError:  # such as a name longer than the file system takes
            is_file = False
        if not is_file:
            raise NotCheckable(f"no file {shown(name)} in {self.folder}")
        # A plain name that is no link leads nowhere else, and to resolve it takes as long as to read it.
        is_plain = os.sep not in name and not file.is_symlink()
        if not is_plain and not file.resolve().is_relative_to(self.folder.resolve()):
            raise NotCheckable(f"{shown(name)} leads out of the dump's folder")
        try:
            return open_file(file)
        except OSError as error:
            raise unreadable(name, error) from None

    def size_bytes(self, name: str) -> int:
        """Return the size of a file, 0 if it does not exist; its permissions are not checked."""
        try:
            return os.stat(self.folder / name).st_size
        except (OSError, ValueError):  # ValueError: a name that no file system takes
            return 0

    def ship(self, name: str, most_bytes: int) -> "Shipped":
        """Return the bytes or facts that another machine needs to decode a file as this machine
        would.

        A file of more than `most_bytes` is not read.
        """
        try:
            with self.open(name) as opened:
                size = os.fstat(opened.fileno()).st_size
                if size > most_bytes:
                    return _too_large(name, size, most_bytes)
                data = np.empty(size, np.uint8)
                return data[: opened.readinto(data.data)]
        except NotCheckable as reason:
            return Refused(str(reason))
        except (OSError, MemoryError) as error:
            return Refused(str(unreadable(name, error)))


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that cannot be read, with the reason, which a message puts after the argument's
    path."""

    reason: str


@dataclass(frozen=True, slots=True)
class SizeOnly:
    """A file that is too large for its tensor: the size is enough to refuse it."""

    size_bytes: int


# The bytes of a file as uint8, so that Ray's object store and pickle hand them on uncopied; or why
# there are none.
Shipped = Array | SizeOnly | Refused


@dataclass(frozen=True, slots=True)
class ShippedFiles:
    """Files that were read on another machine, by `data_name`."""

    files: Mapping[str, Shipped]

    def open(self, name: str) -> BufferedReader:
        """Open a file from memory, so that the loaders work, and fail, as they do on disk.

        Raises:
            NotCheckable: where it was read it could not be used, or it was not sent.
        """
        content = self.files.get(name)
        if content is None:
            raise NotCheckable(f"{shown(name)} was not sent by the machine that has the dump")
        if isinstance(content, Refused):
            raise NotCheckable(content.reason)
        try:
            return _in_memory(content)
        except OSError as error:
            raise unreadable(name, error) from None


def _in_memory(content: Array | SizeOnly) -> BufferedReader:
    opened = os.fdopen(os.memfd_create("captured"), "rb")
    try:
        if isinstance(content, SizeOnly):
            os.ftruncate(opened.fileno(), content.size_bytes)  # a hole, which takes no memory
        else:
            left = content.data
            while left:
                left = left[os.write(opened.fileno(), left) :]
            os.lseek(opened.fileno(), 0, os.SEEK_SET)
    except OSError:
        opened.close()
        raise
    return opened


def most_file_bytes(spec: TensorSpec) -> int:
    """Return the size of the largest `.npy` file that is read for a tensor."""
    if isinstance(spec.storage, Sparse):
        places = spec.storage.nnz * (len(spec.shape) + 1) + math.prod(spec.shape[:-1])
        return (spec.stored.size + places) * _LARGEST_ELEMENT_BYTES + _LARGEST_HEADER_BYTES
    return spec.size * _LARGEST_ELEMENT_BYTES + _LARGEST_HEADER_BYTES


def is_captured(spec: TensorSpec) -> bool:
    """Return whether the dump names a file of a kind that is read."""
    return bool(spec.data_name) and PurePath(spec.data_name or "").suffix in _READERS


def _too_large(name: str, size_bytes: int, most_bytes: int) -> SizeOnly | Refused:
    if PurePath(name).suffix == ".npy":
        return SizeOnly(size_bytes)
    return Refused(
        f"{PurePath(name).name} has {size_bytes} bytes, more than the {most_bytes} that are sent to"
        " another machine for it; --shared-fs has the workers read it themselves"
    )


class CapturedTensors:
    """Reads tensors from files; a path stands for the files in that folder."""

    def __init__(self, files: TensorFiles | Path) -> None:
        self._files = FolderFiles(files) if isinstance(files, Path) else files

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Return the captured tensor of `spec`, checked against its recorded dtype and shape.

        Raises:
            NotCheckable: no file is recorded, it is missing or unreadable, or it does not fit.
        """
        try:
            if isinstance(spec.storage, Sparse):
                return self._sparse(spec, spec.storage)
            return HostTensor(spec.dtype, self._carrier_array(spec), storage=spec.storage)
        except NotCheckable as reason:
            raise NotCheckable(f"{path}: {reason}") from None

    def _sparse(self, spec: TensorSpec, storage: Sparse) -> HostTensor:
        """Return a sparse tensor, which its file holds as torch writes it."""
        name = PurePath(spec.data_name or "").name
        if PurePath(name).suffix != ".pt":
            raise NotCheckable(f"the dump names no .pt file for this sparse tensor: {shown(name)}")
        with self._files.open(spec.data_name or "") as opened:
            found = _read_sparse(opened, name, spec)
        mine = found.storage
        assert isinstance(mine, Sparse)
        if (mine.layout, mine.nnz, mine.block) != (storage.layout, storage.nnz, storage.block):
            raise NotCheckable(f"{name} holds another sparse tensor than the dump says")
        require_dtype(found.data.dtype, name, spec)
        data = found.data.astype(DTYPES[spec.dtype].carrier, copy=False)
        return replace(found, data=data, storage=replace(mine, coalesced=storage.coalesced))

    def _carrier_array(self, spec: TensorSpec) -> Array:
        if not spec.data_name and spec.vmapped > 1:
            raise NotCheckable(
                f"vmap runs this call once for {spec.vmapped} samples, whose tensors are not captured; a"
                " capture with task statistics lets one sample be checked with generated inputs"
            )
        if not spec.data_name:
            raise NotCheckable("the dump names no file for this tensor (data_name)")
        if not is_captured(spec):
            raise NotCheckable(f"{shown(spec.data_name)} is neither .npy nor .pt")
        file = PurePath(spec.data_name)
        with self._files.open(spec.data_name) as opened:
            data = _READERS[file.suffix](opened, file.name, spec)
        require_shape(data.shape, file.name, spec)
        require_dtype(data.dtype, file.name, spec)
        return data.astype(DTYPES[spec.dtype].carrier, copy=False)


class RememberedTensors(CapturedTensors):
    """Reads each tensor once. Its arrays are shared: nobody may write to them."""

    def __init__(self, files: TensorFiles | Path) -> None:
        super().__init__(files)
        self._read: dict[tuple[str, str, tuple[int, ...], Storage | None], HostTensor] = {}

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Return the captured tensor of `spec`; see `CapturedTensors.tensor`."""
        key = (spec.data_name or "", spec.dtype, spec.shape, spec.storage)
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = super().tensor(spec, path)
            found.data.flags.writeable = False
        return found


def require_shape(shape: Iterable[int], name: str, spec: TensorSpec) -> None:
    """Raise `NotCheckable` where a file has another shape than the dump says."""
    found = tuple(shape)
    if found != spec.shape:
        raise NotCheckable(f"{name} has shape {list(found)}, the dump says {list(spec.shape)}")


def require_dtype(found: np.dtype[Any], name: str, spec: TensorSpec) -> None:
    """Raise `NotCheckable` where a file has another kind of numbers than the dump says, or wider ones."""
    carrier = np.dtype(DTYPES[spec.dtype].carrier)
    if found.kind != carrier.kind or not np.can_cast(found, carrier, casting="same_kind"):
        raise NotCheckable(f"{name} holds {found}, the dump says {spec.dtype}")


def require_npy_size(opened: BufferedReader, name: str, spec: TensorSpec) -> None:
    """Raise `NotCheckable` where a file is larger than its tensor can be.

    The dump tells how much memory a record needs; a larger file would take more.
    """
    size = os.fstat(opened.fileno()).st_size
    if size > most_file_bytes(spec):
        raise NotCheckable(
            f"{name} has {size} bytes, more than a tensor of shape {list(spec.shape)} takes"
        )


def require_pt_size(opened: BufferedReader, name: str, spec: TensorSpec) -> None:
    """Raise `NotCheckable` where an archive unpacks to more than itself and than its tensor can be.

    torch.save packs nothing, and a file of zeros may unpack to a thousand times its size: torch unpacks
    `deflate` alone, which packs 1,032 bytes into one at most. A small file is no harm.

    Raises:
        zipfile.BadZipFile: it begins as an archive and is none.
    """
    size = os.fstat(opened.fileno()).st_size
    is_archive = size > _HARMLESS_BYTES and opened.read(len(_ARCHIVE)) == _ARCHIVE
    opened.seek(0)
    if not is_archive:
        return
    unpacked = sum(member.file_size for member in zipfile.ZipFile(opened).infolist())
    opened.seek(0)
    if unpacked > max(size, most_file_bytes(spec)):
        raise NotCheckable(
            f"{name} unpacks to {unpacked} bytes, more than a tensor of shape {list(spec.shape)} takes"
        )


def _read_npy(opened: BufferedReader, name: str, spec: TensorSpec) -> Array:
    try:
        require_npy_size(opened, name, spec)
        data = np.load(opened, allow_pickle=False)
    except UNREADABLE as error:
        raise unreadable(name, error) from None
    if not isinstance(data, np.ndarray):
        raise NotCheckable(f"{name} holds an archive, a single array is expected")
    return data


def _read_pt(opened: BufferedReader, name: str, spec: TensorSpec) -> Array:
    return _of_pt(opened, name, spec, lambda value: _dense_elements(value, name))


def _read_sparse(opened: BufferedReader, name: str, spec: TensorSpec) -> HostTensor:
    return _of_pt(opened, name, spec, lambda value: _sparse_host(value, name, spec.dtype))


def _of_pt(opened: BufferedReader, name: str, spec: TensorSpec, convert: Callable[[Any], T]) -> T:
    import pickle

    import torch

    try:
        require_pt_size(opened, name, spec)
        value: Any = torch.load(opened, map_location="cpu", weights_only=True)
        if not isinstance(value, torch.Tensor):
            raise NotCheckable(f"{name} holds a {type(value).__name__}, not a tensor")
        # Before it is copied: a few numbers can be expanded to any shape.
        require_shape(value.shape, name, spec)
        return convert(value.detach())
    except (*UNREADABLE, pickle.UnpicklingError) as error:
        raise unreadable(name, error) from None


def _dense_elements(value: Any, name: str) -> Array:
    import torch

    if value.layout is not torch.strided:
        raise NotCheckable(f"{name} holds a sparse tensor, the dump does not say so")
    return _to_numpy(value)


def _sparse_host(value: Any, name: str, dtype: str) -> HostTensor:
    import torch

    from ray_precheck.frameworks.pytorch.storages import host_of

    if value.layout is torch.strided or value.is_nested:
        raise NotCheckable(f"{name} holds a dense tensor, the dump says a sparse one")
    stored = value._values() if value.layout is torch.sparse_coo else value.values()
    return host_of(value, _to_numpy(stored), dtype)


def elements_of(value: Any) -> Array:
    """Return all elements of a tensor, those of a sparse one that are not stored among them."""
    import torch

    if value.layout is torch.strided:
        return _to_numpy(value)
    if value.numel() > MOST_DENSE:
        raise NotCheckable(f"it is sparse, and has more than {MOST_DENSE} elements")
    return _sparse_host(value, "", "").dense.data


def unreadable(name: str, error: Exception) -> NotCheckable:
    """Return what says why a file cannot be read."""
    file = PurePath(name)
    return NotCheckable(f"{file.name} is not a readable {file.suffix} file: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n", 1)[0] or type(error).__name__
    line = _ADDRESS.sub("", line)
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."


def _to_numpy(value: Any) -> Array:
    import torch

    if value.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        value = value.to(torch.float32)
    return np.asarray(value.resolve_conj().contiguous().numpy())


_READERS = {".npy": _read_npy, ".pt": _read_pt}
