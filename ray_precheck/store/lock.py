"""One writer at a time: a lock on the result CSV, held by whoever writes it.

Called by the journal, and by a resume for the time of its repair. The lock ends with its process,
also with one that is killed; on file systems without locks there is none.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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

    Raises:
        BlockingIOError: another process holds it.
    """
    handle = -1
    with suppress(OSError):  # What cannot be read is told by whoever reads it.
        handle = os.open(path, os.O_RDONLY)
    try:
        if handle >= 0:
            lock_file(handle)
        yield
    finally:
        if handle >= 0:
            os.close(handle)
