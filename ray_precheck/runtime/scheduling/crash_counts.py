"""The record that broke a worker: the crashes of each record, and the quarantined records.

Comes in: failures. Goes out: the result of a record that has enough crashes; else it is quarantined and
runs again, alone on a fresh worker. Pure, a part of the scheduler and called by it alone.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Protocol

from ray_precheck.schema.done import Done
from ray_precheck.schema.failure import Cause, WorkerFailure
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Task

# The number of breaks by which a record is convicted; at the last of them it must have run alone on a
# fresh worker. A crash is confirmed by one retry. SIGKILL and a lost worker may come from outside (the
# kernel's memory killer, a node that goes down), so they are confirmed by two retries.
CRASHES_NEEDED = {
    Cause.CRASHED: 2,
    Cause.KILLED: 3,
    Cause.SILENT: 3,
    Cause.LOST: 3,
    Cause.TIMED_OUT: 1,
    Cause.OUT_OF_MEMORY: 1,
    Cause.POISONED: 1,
}
# The most runs of a record: its bench in another process, in vain (1); in a batch, whose loss counts no
# crash where the whole worker is lost, and alone on a used worker, where the first crash puts it into
# quarantine (2); then alone on fresh workers, where it has at worst one crash less than needed of every
# cause (the sum) before the next crash convicts it (1).
MAX_RUNS = 1 + 2 + sum(crashes - 1 for crashes in CRASHES_NEEDED.values()) + 1
# The time limit grows by this many times the estimated cost: estimates are made for one CPU core.
COST_SLACK = 20.0
START_ATTEMPTS = 3


class Rows(Protocol):
    """The part of a `Job` that makes the rows of records for which no worker answers."""

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the rows of a record that broke its worker."""

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the rows of a record that could not be done."""


@dataclass(slots=True)
class CrashCounts:
    """The crashes of a run by record. `rows` makes the rows of records that are convicted."""

    rows: Rows
    quarantined: deque[Task] = field(default_factory=deque)
    _crashes: Counter[tuple[int, Cause]] = field(default_factory=Counter)
    _broke_at: dict[int, str] = field(default_factory=dict)

    def count_crash(
        self, task: Task, failure: WorkerFailure, place: str, *, fresh: bool
    ) -> Done | None:
        """Count a crash of a record.

        Returns its result if the record ran alone on a `fresh` worker and has enough crashes; else it
        is quarantined, and None is returned.
        """
        cause = failure.cause
        if cause is Cause.OVER_BUDGET:  # only the time of this bench counts: a retry takes as long
            return self.over_budget(task, failure)
        self._crashes[task.index, cause] += 1
        self._broke_at[task.index] = place
        if fresh and self._crashes[task.index, cause] >= CRASHES_NEEDED[cause]:
            return failure.done or self._failure(task, failure)
        self.quarantined.append(task)
        return None

    def over_budget(self, task: Task, failure: WorkerFailure) -> Done:
        """Return the result of a record whose bench took too long: it could not be checked."""
        return self.rows.unchecked(task, failure.reason)

    def _failure(self, task: Task, failure: WorkerFailure) -> Done:
        return self.rows.failed(task, failure.cause.outcome, failure.reason)

    def take_quarantined(self, place: str, *, elsewhere: bool) -> Task | None:
        """Remove and return the first quarantined record that may run at `place`, None if there is none.

        `elsewhere`: there are slots at other places, so a quarantined record does not run again at the place
        where it broke a worker: a broken device must not get healthy records convicted.
        """
        for task in self.quarantined:
            if not elsewhere or self._broke_at.get(task.index) != place:
                self.quarantined.remove(task)
                return task
        return None
