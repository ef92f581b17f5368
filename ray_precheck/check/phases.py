"""What a check is at, and how long each part of it took.

Called by the checker. Whoever watches the process is told of every change: a device that gives no
answer is an error, a bench that takes too long is not.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ray_precheck.schema.phase import Phase


class PhaseClock:
    """Counts the seconds of each phase of one check; `tell` is told of every change."""

    def __init__(self, tell: Callable[[Phase], None] = lambda phase: None) -> None:
        self._tell = tell
        self._phase = Phase.INPUTS
        self._since = time.perf_counter()
        self.seconds = dict.fromkeys(Phase, 0.0)

    def start(self) -> None:
        """Begin a check: its inputs come first."""
        self.enter(Phase.INPUTS)
        self.seconds = dict.fromkeys(Phase, 0.0)

    def enter(self, phase: Phase) -> Phase:
        """Begin a phase; returns the one before."""
        now = time.perf_counter()
        before = self._phase
        self.seconds[before] += now - self._since
        self._phase, self._since = phase, now
        if phase is not before:
            self._tell(phase)
        return before

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Be in a phase for a while."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)
