"""The wakeup by which a check process wakes the worker that waits for its answers.

The process sends one for several short answers, so that the worker does not wake up for each. The worker
has the `Wakeup`, the process the `WakeupSender`. The answers wait in the pipe meanwhile, where they can be
read even if the process dies.
"""

import contextlib
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

# The number of short answers, some KB, that wait in the pipe before a wakeup; the pipe takes about 200 KB.
_MOST_UNREAD = 16


class Wakeup:
    """The worker's end; `close` frees its descriptor."""

    def __init__(self) -> None:
        self._fd, self._far_fd = os.pipe()

    @contextmanager
    def far_end(self) -> Iterator[int]:
        """Yield the descriptor that the check process inherits; it is closed here afterwards."""
        try:
            yield self._far_fd
        finally:
            os.close(self._far_fd)

    def wait(self, seconds: float) -> None:
        """Wait until a wakeup comes, the process is gone, or the seconds are over.

        Raises:
            OSError: it was closed here.
        """
        if self._fd < 0:
            raise OSError("the wakeup is closed")
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(seconds * 1e3):
            os.read(self._fd, 1 << 10)

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WakeupSender:
    """The check process's end: it sends a wakeup at the end of a batch, after an answer with tensors, and
    after every `_MOST_UNREAD` short answers."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = 0

    def sent(self, *, is_last: bool, is_large: bool) -> None:
        """Note an answer in the pipe, and send a wakeup if it is time; `is_last`: no answer follows it,
        `is_large`: it holds tensors."""
        self._unread += 1
        if is_last or is_large or self._unread >= _MOST_UNREAD:
            self._unread = 0
            with contextlib.suppress(OSError):  # The worker is gone.
                os.write(self._fd, b"\0")
