"""The rows of a watched training: `watch_{rank}.csv`, and TensorBoard's event file.

Comes in: one row a step. Goes out: files that have whole rows whenever the process is killed. Called by
`watch`. A training that is started again in the same folder goes on in the same file, below the earlier
rows. A column that comes later (the modules of a second optimizer) is added at the end, and empty in the rows
before it.
"""

import codecs
import csv
import errno
import io
import math
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from ray_precheck.capture.rules import COLUMNS
from ray_precheck.capture.writing.log import open_locked
from ray_precheck.errors import UsageError
from ray_precheck.foreign import open_text

Cell: TypeAlias = float | int | str | None
STEP, RANK, TIME, CAPTURED, TRIGGER = "Step", "Rank", "Time", "Captured", "Trigger"
FIXED = (
    *(STEP, RANK, TIME),
    *(heading for heading in COLUMNS.values() if heading != STEP),
    *(CAPTURED, TRIGGER),
)


class WatchTable:
    """A CSV that is appended to, row by row, by one process.

    Raises:
        UsageError: the file has other columns than those of a watch.
        BlockingIOError: another process writes it.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = list(FIXED)
        self._file = open_locked(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with ExitStack() as on_error:
            on_error.callback(os.close, self._file)
            self._go_on()
            on_error.pop_all()

    def _go_on(self) -> None:
        """Find the columns of an earlier run, and cut off a row that it has not finished."""
        head = _head(FIXED)
        size = os.fstat(self._file).st_size
        if size < len(head) and head.startswith(os.pread(self._file, size, 0)):
            # Empty, or the process was killed within its first line.
            os.ftruncate(self._file, 0)
            os.write(self._file, head)
            return
        with open_text(self.path) as file:
            found = next(csv.reader(file), [])
        if tuple(found[: len(FIXED)]) != FIXED:
            raise UsageError(
                f"{self.path} was not written by capture --watch; remove it, or name another folder"
            )
        self.columns = found
        place = size
        while os.pread(self._file, 1, place - 1) != b"\n":
            place -= 1
        os.ftruncate(self._file, place)

    def write(self, row: Mapping[str, Cell]) -> None:
        """Append a row, which is in the file when this returns.

        Raises:
            OSError: it cannot be written; the file ends with the row before.
        """
        new = [column for column in row if column not in self.columns]
        if new:
            self._widen(new)
        line = _line([_text(row.get(column)) for column in self.columns])
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _widen(self, new: Sequence[str]) -> None:
        """Write the file again with further columns; it appears as a whole."""
        columns = [*self.columns, *new]
        part = self.path.with_suffix(".part")
        empty = b"," * len(new)
        file = open_locked(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            with open(self.path, "rb") as rows, os.fdopen(os.dup(file), "wb") as written:
                written.write(_head(columns))
                next(rows)
                for row in rows:
                    written.write(row.rstrip(b"\n") + empty + b"\n")
            os.replace(part, self.path)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file, self.columns = file, columns

    def close(self) -> None:
        """Let another process have the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _head(columns: Sequence[str]) -> bytes:
    return codecs.BOM_UTF8 + _line(columns)


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([" ".join(cell.split("\n")) for cell in cells])
    return text.getvalue().encode()


def _text(value: Cell) -> str:
    # Seven digits are those of the float32 that norms are.
    return f"{value:.7g}" if isinstance(value, float) else "" if value is None else str(value)


def has_tensorboard() -> bool:
    """Return whether TensorBoard is installed, which reads the event files."""
    return find_spec("tensorboard") is not None


class EventFile:
    """TensorBoard's event file of one process, `events.out.tfevents.{time}.{host}.{pid}.watch`.

    The bytes are written here: `torch.utils.tensorboard` imports TensorFlow where that is installed. A
    record is its length (8 bytes), the masked CRC-32C of the length, an `Event`, and its masked CRC-32C
    (tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto).

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}.watch"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        version = b"brain.Event:2"
        self._write(struct.pack("<Bd", 0x09, time.time()) + b"\x1a" + _sized(version))

    def write(self, step: int, row: Mapping[str, Cell]) -> None:
        """Append the numbers of a row: `Grad Norm layers.0` is drawn as `Grad Norm/layers.0`."""
        summary = b""
        for column, value in row.items():
            if not isinstance(value, float | int) or column in (STEP, RANK):
                continue
            tag = _tag(column).encode()
            summary += b"\x0a" + _sized(
                b"\x0a" + _sized(tag) + struct.pack("<Bf", 0x15, _single(value))
            )
        head = struct.pack("<Bd", 0x09, time.time()) + b"\x10" + _varint(step)
        self._write(head + b"\x2a" + _sized(summary))

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        checks = (struct.pack("<I", _masked_crc(part)) for part in (length, event))
        os.write(self._file, length + next(checks) + event + next(checks))


def _tag(column: str) -> str:
    for heading in ("Grad Norm", "Param Norm"):
        if column.startswith(heading + " "):
            return f"{heading}/{column[len(heading) + 1 :]}"
    return column


def _single(value: float) -> float:
    """Return a number that float32 can hold; infinity in the place of what is beyond."""
    return math.copysign(math.inf, value) if abs(value) > 3.4028234e38 else float(value)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli's polynomial, reflected
        table.append(byte)
    return table


_CRC = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
