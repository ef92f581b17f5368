"""Standard output and standard error that survive a reader who leaves early (`... | head -1`), and any text.

Called once by the process of a command, before it does anything. A run must not end because its
reader has left: its rows are in its files, and its exit code sums them up. So the code of a command
whose reader has left is the command's own, and nothing is printed about it. Names of a dump and of folders
may have characters that a terminal obeys, and bytes that are no text: both are written as escapes.
"""

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from ray_precheck.dump.names import without_controls

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def outlive_readers() -> None:
    """Replace standard output and standard error by streams that drop text once their reader has
    left.

    A stream that is closed from the beginning (`2>&-`) drops everything. Text that cannot be
    written for another reason is dropped on standard error, which holds no results, and is an error
    on standard output.
    """
    sys.stdout = _patient(sys.stdout, loses_all=False)
    sys.stderr = _patient(sys.stderr, loses_all=True)


def _patient(stream: TextIO | None, *, loses_all: bool) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    stream.flush()
    raw = _Outlet(stream.fileno(), loses_all=loses_all)
    return _Screen(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=loses_all or stream.isatty(),
    )


class _Screen(io.TextIOWrapper):
    """A stream of text without control characters but for the ends of lines and the progress bar's."""

    def write(self, text: str) -> int:
        super().write(without_controls(text))
        return len(text)


class _Outlet(io.RawIOBase):
    """A file descriptor that leads nowhere once its reader has left."""

    def __init__(self, fd: int, *, loses_all: bool) -> None:
        self._fd = fd
        self._lost: type[OSError] = OSError if loses_all else BrokenPipeError

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return os.write(self._fd, data)
        except OSError as error:
            # Also where it is raised: once, not again when Python flushes at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._fd)
            os.close(nowhere)
            if not isinstance(error, self._lost):
                raise
            return memoryview(data).nbytes
