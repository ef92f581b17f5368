"""The clock of a check: which phase it is in (inputs, device or bench), and the seconds of each phase.

Called by the checker. Every change of phase is told to the worker that watches the process, because
the device and the bench have limits of their own: a device that gives no answer is an error, a bench
that takes too long is a SKIP.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ray_precheck.schema.task import Phase


class PhaseClock:
    """Counts the seconds of each phase of one check; calls `tell` at every change of phase."""

    def __init__(self, tell: Callable[[Phase], None] = lambda phase: None) -> None:
        self._tell = tell
        self._phase = Phase.INPUTS
        self._since = time.perf_counter()
        self.seconds = dict.fromkeys(Phase, 0.0)

    def start(self) -> None:
        """Begin a check, in the phase of its inputs, with all seconds at 0."""
        self.enter(Phase.INPUTS)
        self.seconds = dict.fromkeys(Phase, 0.0)

    def enter(self, phase: Phase) -> Phase:
        """Begin a phase; return the phase before."""
        now = time.perf_counter()
        before = self._phase
        self.seconds[before] += now - self._since
        self._phase, self._since = phase, now
        if phase is not before:
            self._tell(phase)
        return before

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Count the seconds of a block as this phase; afterwards the phase before goes on."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)
