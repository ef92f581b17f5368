"""The bell by which a check process wakes the worker that waits for it: not for each short answer,
but in time.

Called by both ends: the worker that started the process has the `Bell`, the process the `Ringer`.
The answers themselves lie in the pipe meanwhile, where the death of the process does not touch
them.
"""

import contextlib
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

# How many answers may lie in the pipe unread: some KB, and a socket takes about 200 KB.
_MOST_UNREAD = 16


class Bell:
    """The end that hears: use `close` to end it."""

    def __init__(self) -> None:
        self._fd, self._far_fd = os.pipe()

    @contextmanager
    def far_end(self) -> Iterator[int]:
        """Yield the descriptor that the other process is to inherit; it is closed here afterwards."""
        try:
            yield self._far_fd
        finally:
            os.close(self._far_fd)

    def wait(self, seconds: float) -> None:
        """Wait until it rings, the other end is gone, or the time is over.

        Raises:
            OSError: it is closed.
        """
        if self._fd < 0:
            raise OSError("the bell is closed")
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(seconds * 1e3):
            os.read(self._fd, 1 << 10)

    def close(self) -> None:
        """Close it; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Ringer:
    """The end that rings: at the end of a batch, and when enough has been sent since the last
    ring."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = 0

    def sent(self, *, is_last: bool, is_large: bool) -> None:
        """An answer is in the pipe; `is_last`: nothing follows it."""
        self._unread += 1
        if is_last or is_large or self._unread >= _MOST_UNREAD:
            self._unread = 0
            with contextlib.suppress(OSError):  # The other end is gone.
                os.write(self._fd, b"\0")
