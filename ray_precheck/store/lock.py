"""The lock on the result CSV, held by the process that writes it.

Called by the journal, and by a resume for the time of its repair. A run as a whole holds a claim
(`claim`); this lock is for the writer of a run that was killed, which may live a little longer than
its driver. The lock ends with its process. On file systems without locks there is no such lock.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray_precheck.foreign import regular_file

# The writer of a run that was killed may live a little longer than its driver.
_PATIENCE_S = 10.0
_INTERVAL_S = 0.05


def lock_file(handle: int, patience_s: float = _PATIENCE_S) -> None:
    """Lock an open file until it is closed.

    Raises:
        BlockingIOError: another process holds the lock for longer than `patience_s`.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise BlockingIOError(errno.EWOULDBLOCK, "another run is writing them") from None
            time.sleep(_INTERVAL_S)
        except OSError:
            return
        else:
            return


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, where there is one.

    A writer that completes a run puts another file in its place: then that one is locked.

    Raises:
        BlockingIOError: another process holds it.
    """
    handle = _open_locked(path)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _open_locked(path: Path) -> int:
    """Return the descriptor of the locked file, -1 where there is none that can be read."""
    while True:
        try:
            handle = regular_file(path, os.O_RDONLY)
        except OSError:
            return -1  # The functions that read the file report that it cannot be read.
        try:
            lock_file(handle)
            if os.path.samestat(path.stat(), os.fstat(handle)):
                return handle
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(handle)
            raise
        os.close(handle)
