"""Captured tensors of a dump with `task: tensor`.

Comes in: a `TensorSpec` with a `data_name`. Goes out: a `HostTensor`. Called by `datagen` in real
mode. The files are somebody else's data: `.npy` is read without pickles, `.pt` with torch's
weights-only loader, and no name may lead out of the dump's folder.
"""

import os
import struct
import tokenize
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.dump.shown import shown
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostTensor, TensorSpec

# What np.load and torch.load raise on files that are broken or made up; neither documents it.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    TypeError,
    LookupError,
    AssertionError,
    MemoryError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
)
# What an element of an .npy file takes at most (complex128), and the header before the elements.
_LARGEST_ELEMENT_BYTES = 16
_LARGEST_HEADER_BYTES = 1 << 16
_LONGEST_REASON = 200


class CapturedTensors:
    """Reads tensors from the folder `dump_tensor_data` of a dump."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        """Return the captured tensor of `spec`, checked against its recorded dtype and shape.

        Raises:
            NotCheckable: no file is recorded, it is missing or unreadable, or it does not fit.
        """
        file = self._locate(spec, path)
        data = _READERS[file.suffix](file, spec, path)
        _require_shape(data, file, spec, path)
        carrier = DTYPES[spec.dtype].carrier
        same_kind = data.dtype.kind == np.dtype(carrier).kind
        if not same_kind or not np.can_cast(data.dtype, carrier, casting="same_kind"):
            raise NotCheckable(
                f"{path}: {file.name} holds {data.dtype}, the dump says {spec.dtype}"
            )
        return HostTensor(spec.dtype, data.astype(carrier, copy=False))

    def _locate(self, spec: TensorSpec, path: str) -> Path:
        if not spec.data_name:
            raise NotCheckable(f"{path}: the dump names no file for this tensor (data_name)")
        file = self._folder / spec.data_name
        if file.suffix not in _READERS:
            raise NotCheckable(f"{path}: {shown(spec.data_name)} is neither .npy nor .pt")
        try:
            is_file = file.is_file()
        except OSError:  # such as a name longer than the file system takes
            is_file = False
        if not is_file:
            raise NotCheckable(f"{path}: no file {shown(spec.data_name)} in {self._folder}")
        if not file.resolve().is_relative_to(self._folder.resolve()):
            raise NotCheckable(f"{path}: {shown(spec.data_name)} leads out of the dump's folder")
        return file


def _require_shape(data: Any, file: Path, spec: TensorSpec, path: str) -> None:
    if tuple(data.shape) != spec.shape:
        raise NotCheckable(
            f"{path}: {file.name} has shape {list(data.shape)}, the dump says {list(spec.shape)}"
        )


def _read_npy(file: Path, spec: TensorSpec, path: str) -> Array:
    try:
        with file.open("rb") as opened:
            # What memory a record needs is known from the dump; a larger file would take more.
            size = os.fstat(opened.fileno()).st_size
            if size > spec.size * _LARGEST_ELEMENT_BYTES + _LARGEST_HEADER_BYTES:
                raise NotCheckable(
                    f"{path}: {file.name} has {size} bytes, more than a tensor of shape"
                    f" {list(spec.shape)} takes"
                )
            data = np.load(opened, allow_pickle=False)
    except _UNREADABLE as error:
        raise NotCheckable(
            f"{path}: {file.name} is not a readable .npy file: {_first_line(error)}"
        ) from None
    if not isinstance(data, np.ndarray):
        raise NotCheckable(f"{path}: {file.name} holds an archive, a single array is expected")
    return data


def _read_pt(file: Path, spec: TensorSpec, path: str) -> Array:
    import pickle

    import torch

    try:
        value: Any = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(value, torch.Tensor):
            raise NotCheckable(f"{path}: {file.name} holds a {type(value).__name__}, not a tensor")
        # Before it is copied: a few numbers can be expanded to any shape.
        _require_shape(value, file, spec, path)
        return _to_numpy(value.detach())
    except (*_UNREADABLE, pickle.UnpicklingError) as error:
        raise NotCheckable(
            f"{path}: {file.name} is not a readable .pt file: {_first_line(error)}"
        ) from None


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."


def _to_numpy(value: Any) -> Array:
    import torch

    if value.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        value = value.to(torch.float32)
    return np.asarray(value.resolve_conj().contiguous().numpy())


_READERS = {".npy": _read_npy, ".pt": _read_pt}
