"""Who is to blame where a worker breaks: the strikes against each record, and who is a suspect.

Comes in: casualties. Goes out: the result of a record that is found guilty, or a suspect to run
again, alone on a fresh worker. Pure, a part of the scheduler and called by it alone.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Protocol

from ray_precheck.schema.casualty import Casualty, Cause
from ray_precheck.schema.done import Done
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Task

# The last strike must come alone on a fresh worker. A crash is confirmed by one retry. SIGKILL and a
# lost worker may come from outside (the kernel's memory killer, a node that goes down), so they are
# confirmed by two.
STRIKES = {
    Cause.CRASHED: 2,
    Cause.KILLED: 3,
    Cause.SILENT: 3,
    Cause.LOST: 3,
    Cause.TIMED_OUT: 1,
    Cause.OUT_OF_MEMORY: 1,
    Cause.POISONED: 1,
}
# A record is run in a batch at most once, which tells nothing where the whole worker was lost; then
# alone at most once on a used worker, where the first strike makes it a suspect. A suspect is always
# alone and fresh: at worst it is one strike short of every cause before the next one convicts it.
# Before all that its bench may have been tried in vain by another process than its device.
MAX_RUNS = 1 + 2 + sum(strikes - 1 for strikes in STRIKES.values()) + 1
# The time limit grows by this many times the estimated cost: estimates are made for one CPU core.
COST_SLACK = 20.0
START_ATTEMPTS = 3


class Rows(Protocol):
    """Writes the rows of records that no worker answers for; every `Job` does."""

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        """Return the rows of a record that broke its worker."""

    def unchecked(self, task: Task, reason: str) -> Done:
        """Return the rows of a record that could not be done."""


@dataclass(slots=True)
class Blame:
    """The strikes of a run. `rows` writes the rows of who is found guilty."""

    rows: Rows
    suspects: deque[Task] = field(default_factory=deque)
    _strikes: Counter[tuple[int, Cause]] = field(default_factory=Counter)
    _broke_at: dict[int, str] = field(default_factory=dict)

    def strike(self, task: Task, casualty: Casualty, place: str, *, fresh: bool) -> Done | None:
        """Count a strike; return the verdict if it was on a fresh worker of its own and enough are
        counted, else the record becomes a suspect.
        """
        cause = casualty.cause
        if cause is Cause.OVER_BUDGET:  # measured in its own time: to repeat it would tell nothing
            return self.over_budget(task, casualty)
        self._strikes[task.index, cause] += 1
        self._broke_at[task.index] = place
        if fresh and self._strikes[task.index, cause] >= STRIKES[cause]:
            return casualty.done or self._failure(task, casualty)
        self.suspects.append(task)
        return None

    def over_budget(self, task: Task, casualty: Casualty) -> Done:
        """Return the result of a record whose bench took too long: it could not be checked."""
        return self.rows.unchecked(task, casualty.reason)

    def _failure(self, task: Task, casualty: Casualty) -> Done:
        return self.rows.failed(task, casualty.cause.outcome, casualty.reason)

    def take_suspect(self, place: str, *, elsewhere: bool) -> Task | None:
        """Take a record to run alone: not where it broke a worker, so long as there is elsewhere.

        A device that breaks every worker must not make healthy records guilty.
        """
        for task in self.suspects:
            if not elsewhere or self._broke_at.get(task.index) != place:
                self.suspects.remove(task)
                return task
        return None
