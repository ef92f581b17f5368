"""The order of an actor's batches: the next batch is prepared while the one before runs.

Called by the worker actor, whose batches come on two threads. They are numbered as they are sent,
from 1 on without a gap; Ray may begin them in any order.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class Turns:
    """Lets batches pass two gates, each in the order of their numbers: to be handed in, one after the
    other, and to run, one at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passed = {"handing in": 0, "running": 0}
        self._obsolete = 0

    def handing_in(self, turn: int) -> AbstractContextManager[bool]:
        """Wait until the batches before are handed in; yields whether this one still counts."""
        return self._gate("handing in", turn)

    def running(self, turn: int) -> AbstractContextManager[bool]:
        """Wait until the batches before are over; yields whether this one still counts."""
        return self._gate("running", turn)

    @contextmanager
    def _gate(self, gate: str, turn: int) -> Iterator[bool]:
        with self._changed:
            self._changed.wait_for(lambda: self._passed[gate] >= turn - 1)
            counts = turn > self._obsolete
        try:
            yield counts
        finally:
            with self._changed:
                self._passed[gate] = max(self._passed[gate], turn)
                self._changed.notify_all()

    def forget(self, last: int) -> None:
        """Let the batches up to `last` count no more, and wait for none of them."""
        with self._changed:
            self._obsolete = last
            self._passed = dict.fromkeys(self._passed, last)
            self._changed.notify_all()
