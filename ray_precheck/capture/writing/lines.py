"""A file that one process lets grow by whole lines, and that others may read meanwhile.

Comes in: lines. Goes out: a file that ends with a line break whatever happens between two calls, locked as
long as the process lives. Called by `log`.
"""

import errno
import fcntl
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path

from ray_precheck.foreign import regular_file

# A reader that asks whether a log is locked holds its lock for some microseconds.
_PATIENCE_S = 0.5
_INTERVAL_S = 0.01
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class LineFile:
    """A locked file that `append` adds lines to; it is empty at first.

    A child that this process forks does not write to it, and does not keep it locked.

    Raises:
        BlockingIOError: another process has it.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_locked(path, _FLAGS)
        self.size = 0
        _OPEN.add(self)

    @property
    def is_open(self) -> bool:
        """Whether lines can be added."""
        return self._file >= 0

    def clear(self) -> None:
        """Remove what another capture has left in the file."""
        os.ftruncate(self._file, 0)

    def append(self, line: str) -> None:
        """Add a line, which ends with a line break; `size` grows when it is whole.

        Raises:
            OSError: a part of the line may have been written, which `cut_to` removes.
        """
        # A lone surrogate, which UTF-8 does not have, becomes the escape that JSON has for it.
        raw = line.encode("utf-8", "backslashreplace")
        length = len(raw)
        written = os.write(self._file, raw)
        while written < length:  # the disk is almost full, or the file has almost reached its limit
            written += os.write(self._file, raw[written:])
        self.size += length

    def cut_to(self, size: int) -> None:
        """Remove what was added since the file had this size.

        Where even this is refused, nothing is added any more: the file ends with a torn line.
        """
        self.size = size
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self.close()

    def close(self) -> None:
        """Unlock and close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)


def open_locked(path: Path, flags: int) -> int:
    """Return the descriptor of a file that is locked until it is closed, or until the process ends.

    On a file system without locks it is not locked.

    Raises:
        BlockingIOError: another process has it.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        file = regular_file(path, flags | os.O_CLOEXEC, 0o640)
        try:
            if _lock(file) and _is_still(path, file):
                return file
        except OSError:  # there are no locks
            return file
        os.close(file)
        if time.monotonic() > until:
            raise BlockingIOError(
                errno.EWOULDBLOCK, f"another process is writing {path.name}", str(path)
            )
        time.sleep(_INTERVAL_S)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, file: int) -> bool:
    """Return whether a name still stands for the file that was opened by it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


_OPEN: "weakref.WeakSet[LineFile]" = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """Close the files in a forked child, such as a worker of a data loader.

    What it calls is no part of the step, and its copy of the lock would outlive the parent.
    """
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_leave_to_the_parent)
