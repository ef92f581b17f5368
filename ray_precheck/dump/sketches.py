"""The sketches of a step on one rank, in a file beside the dump.

Comes in: sketches as they are made. Goes out: `sketches.npy`, one row of 64 float32 for each, which
`numpy.load` reads once the step is over and `read_sketches` at any time. Called by the session, and by
whatever compares two captures.

A row is written by one call, before the record that names it. Whatever kills the process costs at most
the row that was being written: a reader cuts a torn last row, and does not believe the number of rows in
the header, which is 0 until the file is finished.

The element of a tensor in dump.json has `"sketch": ROW`, and `"sketch_exponent": E` where the row was
divided by 2^E because float32 could not hold it (a mask full of the smallest float32 has such sums).
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file
from ray_precheck.numerics.sketch import BUCKETS, Array

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
        self._write(row.tobytes(), self.size)
        self.rows += 1
        fields = f'"sketch": {self.rows - 1}'
        return f'{fields}, "sketch_exponent": {exponent}' if exponent else fields

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
    if largest and not _SMALL < largest < _LARGE:
        exponent = math.frexp(largest)[1]
        # Sums of the largest float64 numbers are infinite.
        with np.errstate(all="ignore"):
            return np.ldexp(buckets, -exponent).astype("<f4"), exponent
    return buckets.astype("<f4"), exponent


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


def finish_sketches(folder: Path) -> int:
    """Cut what a killed process has left at a whole row, complete its header, and return its rows.

    Raises:
        DumpError: the file is no file of sketches.
        OSError: it cannot be written.
    """
    path = folder / SKETCHES
    count = len(read_sketches(folder))
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(_HEADER + count * _ROW)
            file.write(_header(count))
    return count


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
