"""The values of tensors beside a dump: its tensor files, and the sketches of a step.

Comes in: a `TensorSpec` with a `data_name`. Goes out: a `HostTensor`. Called by `inputs` in real
mode, and by `runtime.shipper` for the bytes of files that another machine is to decode. The
files are untrusted data: `.npy` is read without pickles, `.pt` with torch's weights-only loader,
`.safetensors` has no code in it, and no name may lead out of the dump's folder. Bytes that came from
another machine are decoded with the same checks, and problems of that machine are reported here in the same
words.

Sketches come in as they are made, and go out to `sketches.npy`, one row of 64 float32 for each, which
`numpy.load` reads once the step is over and `read_sketches` at any time. Called by a capture, and by the
commands that compare two captures. A row is written by one call, before the record that names it. Whatever
kills the process costs at most the row that was being written: a reader cuts a torn last row, and does not
believe the number of rows in the header, which is 0 until the file is finished. The element of a tensor in
dump.json has `"sketch": ROW`, and `"sketch_exponent": E` where the row was divided by 2^E because float32
could not hold it (a mask full of the smallest float32 has such sums).
"""

import math
import os
import re
import struct
import tokenize
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

import numpy as np

from ray_precheck.dump.safetensors import SUFFIX as SAFETENSORS
from ray_precheck.dump.safetensors import element_of, only_tensor, widening
from ray_precheck.errors import DumpError, NotCheckable
from ray_precheck.foreign import first_line, open_file, shown
from ray_precheck.numerics.sketch import BUCKETS
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
# The files that are refused by their size alone: they hold one tensor, and no more of a storage.
JUDGED_BY_SIZE = (".npy", SAFETENSORS)
# Sparse tensors are compared element by element up to this size, which takes 1 GiB in float32.
MOST_DENSE = 1 << 28
# The address of an object differs in each process, so a row with it would differ too.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class TensorFiles(Protocol):
    """Where captured files are: in a folder of this machine, or in memory."""

    def open(self, name: str) -> BufferedReader:
        """Open the file of a `data_name`; raise `NotCheckable` with the reason."""


@dataclass(frozen=True)
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

    def ship(self, name: str, limit_bytes: int) -> "Shipped":
        """Return the bytes or facts that another machine needs to decode a file as this machine
        would.

        A file of more than `limit_bytes` is not read.
        """
        try:
            with self.open(name) as opened:
                size = os.fstat(opened.fileno()).st_size
                if size > limit_bytes:
                    return _too_large(name, size, limit_bytes)
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
    """Return the size of the largest `.npy` or `.safetensors` file that is read for a tensor."""
    if isinstance(spec.storage, Sparse):
        places = spec.storage.nnz * (len(spec.shape) + 1) + math.prod(spec.shape[:-1])
        return (spec.stored.size + places) * _LARGEST_ELEMENT_BYTES + _LARGEST_HEADER_BYTES
    return spec.size * _LARGEST_ELEMENT_BYTES + _LARGEST_HEADER_BYTES


def is_captured(spec: TensorSpec) -> bool:
    """Return whether the dump names a file of a kind that is read."""
    return bool(spec.data_name) and PurePath(spec.data_name or "").suffix in _READERS


def captured_file(spec: TensorSpec) -> PurePath:
    """Return the file of a captured tensor; raise `NotCheckable` where the dump names none that is read."""
    if not spec.data_name:
        raise NotCheckable("the dump names no file for this tensor (data_name)")
    if not is_captured(spec):
        raise NotCheckable(f"{shown(spec.data_name)} is neither .npy, .pt nor .safetensors")
    return PurePath(spec.data_name)


def _too_large(name: str, size_bytes: int, most_bytes: int) -> SizeOnly | Refused:
    if PurePath(name).suffix in JUDGED_BY_SIZE:
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
            convert = partial(_sparse_host, name=name, dtype=spec.dtype)
            found = _of_pt(opened, name, spec, convert)
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
        file = captured_file(spec)
        with self._files.open(str(spec.data_name)) as opened:
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


def require_file_size(opened: BufferedReader, name: str, spec: TensorSpec) -> None:
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
        require_file_size(opened, name, spec)
        data = np.load(opened, allow_pickle=False)
    except UNREADABLE as error:
        raise unreadable(name, error) from None
    if not isinstance(data, np.ndarray):
        raise NotCheckable(f"{name} holds an archive, a single array is expected")
    return data


def open_safetensors(opened: BufferedReader, name: str, spec: TensorSpec) -> str:
    """Let an open file of safetensors stand where the elements of its tensor begin; return the canonical
    dtype that these have in the file.

    Raises:
        NotCheckable: it is unreadable, too large, holds other tensors, or does not fit.
    """
    require_file_size(opened, name, spec)
    try:
        found = only_tensor(opened)
    except UNREADABLE as error:
        raise unreadable(name, error) from None
    require_shape(found.shape, name, spec)
    opened.seek(found.begin)
    return found.dtype


def _read_safetensors(opened: BufferedReader, name: str, spec: TensorSpec) -> Array:
    dtype = open_safetensors(opened, name, spec)
    element, widen = element_of(dtype), widening(dtype)
    try:
        raw = np.frombuffer(bytearray(opened.read(spec.size * element.itemsize)), element)
        data = raw.reshape(spec.shape)
    except UNREADABLE as error:
        raise unreadable(name, error) from None
    return data if widen is None else widen(data)


def _read_pt(opened: BufferedReader, name: str, spec: TensorSpec) -> Array:
    return _of_pt(opened, name, spec, partial(_dense_elements, name=name))


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
    return NotCheckable(f"{file.name} is not a readable {file.suffix} file: {_reason(error)}")


def _reason(error: Exception) -> str:
    line = _ADDRESS.sub("", first_line(error) or type(error).__name__)
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."


def _to_numpy(value: Any) -> Array:
    import torch

    if value.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        value = value.to(torch.float32)
    return np.asarray(value.resolve_conj().contiguous().numpy())


_READERS = {".npy": _read_npy, ".pt": _read_pt, SAFETENSORS: _read_safetensors}

SKETCHES = "sketches.npy"
# The magic text, version 1.0 of the format, and the length of what follows (NumPy Enhancement Proposal 1).
_HEADER = 128
_MAGIC = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
_ROW = BUCKETS * 4
# Beyond these, a sketch is stored with an exponent.
_SMALL, _LARGE = 2.0**-90, 2.0**120


class SketchFile:
    """The sketches of a step; `append` writes one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / SKETCHES
        self.rows = 0
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        self._write(_header(0), 0)

    @property
    def size(self) -> int:
        """The bytes that the file has."""
        return _HEADER + self.rows * _ROW

    def append(self, buckets: Array) -> str:
        """Write a sketch, `(64,)` float64, and return the fields of a tensor's element that name it.

        Raises:
            OSError: it cannot be written; the file ends with the row before.
        """
        row, exponent = stored(buckets)
        fields = self._added(row.tobytes())
        return f'{fields}, "sketch_exponent": {exponent}' if exponent else fields

    def append_row(self, row: bytes, largest: float) -> str | None:
        """Write 64 buckets that are little-endian float32 already, and `largest` in size, as `append` does;
        return None, and write nothing, where they need an exponent.

        Raises:
            OSError: it cannot be written; the file ends with the row before.
        """
        return self._added(row) if _is_plain(largest) else None

    def _added(self, row: bytes) -> str:
        self._write(row, self.size)
        self.rows += 1
        return f'"sketch": {self.rows - 1}'

    def close(self) -> None:
        """Close the file as it is."""
        os.close(self._file)

    def finish(self) -> None:
        """Write the number of rows into the header, and close the file."""
        self._write(_header(self.rows), 0)
        self.close()

    def _write(self, raw: bytes, place: int) -> None:
        if os.pwrite(self._file, raw, place) != len(raw):  # the disk is full, or a limit is reached
            os.ftruncate(self._file, place)
            raise OSError(28, "No space left on device", str(self.path))


def stored(buckets: Array) -> tuple[Array, int]:
    """Return a sketch as it is stored: 64 little-endian float32, and the exponent, mostly 0."""
    largest = float(np.maximum.reduce(np.abs(buckets)))
    exponent = 0
    if not _is_plain(largest):
        exponent = math.frexp(largest)[1]
        # Sums of the largest float64 numbers are infinite.
        with np.errstate(all="ignore"):
            return np.ldexp(buckets, -exponent).astype("<f4"), exponent
    return buckets.astype("<f4"), exponent


def _is_plain(largest: float) -> bool:
    """Return whether float32 holds a sketch of this largest size without an exponent."""
    return not largest or _SMALL < largest < _LARGE


def read_sketches(folder: Path) -> Array:
    """Return the rows of a step, `(rows, 64)` float32, also of one whose process was killed.

    No file is no rows. Use `sketch_of` to get the sketch of an element.

    Raises:
        DumpError: the file is none of these.
    """
    path = folder / SKETCHES
    try:
        with open_file(path) as file:
            header = file.read(_HEADER)
            if len(header) < _HEADER and _MAGIC[: len(header)] == header[: len(_MAGIC)]:
                return np.zeros((0, BUCKETS), np.float32)  # killed at the very beginning
            if not header.startswith(_MAGIC) or f", {BUCKETS})".encode() not in header:
                raise DumpError(
                    f"{path} holds no sketches: it begins with {header[:16]!r}, expected a NumPy file"
                    f" of {BUCKETS} columns of float32; it was changed, or belongs to another program"
                )
            count = (os.fstat(file.fileno()).st_size - _HEADER) // _ROW
            raw = file.read(count * _ROW)
    except FileNotFoundError:
        return np.zeros((0, BUCKETS), np.float32)
    except OSError as error:
        raise DumpError(f"{path} cannot be read: {error.strerror}") from error
    return np.frombuffer(raw[: len(raw) // _ROW * _ROW], "<f4").reshape(-1, BUCKETS)


def sketch_of(element: Mapping[str, Any], rows: Array) -> Array | None:
    """Return the sketch that an element of a dump names, `(64,)` float64; None where it has none.

    An element whose row is missing has none either: its file was cut.
    """
    row, exponent = element.get("sketch"), element.get("sketch_exponent", 0)
    if type(row) is not int or type(exponent) is not int or not 0 <= row < len(rows):
        return None
    with np.errstate(over="ignore"):
        buckets: Array = np.ldexp(rows[row].astype(np.float64), max(-2000, min(exponent, 2000)))
    return buckets


def _header(rows: int) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {BUCKETS}), }}"
    return _MAGIC + text.encode().ljust(_HEADER - len(_MAGIC) - 1) + b"\n"
