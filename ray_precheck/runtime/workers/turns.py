"""The order of a worker's batches: the next batch is handed in while the batch before it runs.

Called by the worker actor, which gets batches on two threads. The driver numbers the batches of a
worker from 1 on without a gap; Ray may begin the calls in any order.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class Turns:
    """Lets batches pass two gates, each in the order of their numbers and one at a time: first to be
    handed in to the check process, then to run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._passed = {"handing in": 0, "running": 0}
        self._obsolete = 0

    def handing_in(self, turn: int) -> AbstractContextManager[bool]:
        """Wait until all batches before this one are handed in; yield False if it was forgotten."""
        return self._gate("handing in", turn)

    def running(self, turn: int) -> AbstractContextManager[bool]:
        """Wait until all batches before this one have run; yield False if it was forgotten."""
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
        """Forget the batches up to `last`: they do nothing, and no batch waits for them."""
        with self._changed:
            self._obsolete = last
            self._passed = dict.fromkeys(self._passed, last)
            self._changed.notify_all()
