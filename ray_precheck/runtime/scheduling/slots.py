"""The device slots as the scheduler knows them: their states, and the batches of their workers.

Pure, a part of the scheduler and called by it alone. Counts are kept up to date, so that an event
does not take longer when there are more devices.

The record that broke a worker: the crashes of each record, and the quarantined records. Pure, a part of the
scheduler and called by it alone.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ray_precheck.runtime.scheduling.commands import SendBatch, Stage
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Cause, Done, Task, WorkerFailure


class SlotState(Enum):
    """The state of a slot's worker."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    GIVEN_UP = "given up"


@dataclass(slots=True)
class Slot:
    """A slot and the batches of its worker.

    `place` is the unit that fails together: slots on the CPU of one machine share it, each device is
    its own. `moves_to` is the place of the next worker, None where it is the same. `fresh`: the worker
    has run nothing, or nothing but the single record of its present batch. `batch` are the tasks
    that it runs now, by index, and `following` is the batch that it begins afterwards. `quarantined` is
    the record that runs next, alone, once the worker is fresh. `reserved` is a later batch whose files
    are on their way.
    """

    place: str
    moves_to: str | None = None
    state: SlotState = SlotState.STARTING
    fresh: bool = False
    ticket: int = 0
    stage: Stage = Stage.CHECK
    batch: dict[int, Task] = field(default_factory=dict)
    following: SendBatch | None = None
    quarantined: Task | None = None
    reserved: SendBatch | None = None
    failed_starts: int = 0


class SlotTable(dict[str, Slot]):
    """The slots by their labels; `places` gives the place of each.

    `kept` counts the quarantined records and the reserved batches of all slots, `in_batches` the records that
    workers have.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        super().__init__((name, Slot(place)) for name, place in places.items())
        self.kept = self.in_batches = 0
        self._idle: dict[str, None] = {}
        self._reserving: dict[str, None] = {}
        self._living = len(self)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all slots but these, before any of them has been given up."""
        for name in self.keys() - names:
            del self[name]
        self._living = len(self)

    def add(self, name: str, place: str) -> None:
        """Add the slot of a device that has joined."""
        self[name] = Slot(place)
        self._living += 1

    def enter(self, name: str, state: SlotState) -> None:
        """Set the state of a slot."""
        slot = self[name]
        self._living += (slot.state is SlotState.GIVEN_UP) - (state is SlotState.GIVEN_UP)
        slot.state = state
        if state is SlotState.IDLE:
            self._idle[name] = None
        else:
            self._idle.pop(name, None)

    @property
    def has_living(self) -> bool:
        """Whether there is a slot that has not been given up."""
        return self._living > 0

    @property
    def living(self) -> int:
        """How many slots have not been given up."""
        return self._living

    def idle(self) -> list[str]:
        """Return the slots whose worker waits for a batch."""
        return list(self._idle)

    def busy(self) -> list[str]:
        """Return the slots whose worker has a batch."""
        return [name for name, slot in self.items() if slot.state is SlotState.BUSY]

    def has_one_batch(self, name: str) -> bool:
        """Return whether the worker of a slot has a batch and none behind it."""
        slot = self.get(name)
        return slot is not None and slot.state is SlotState.BUSY and slot.following is None

    def is_elsewhere(self, place: str) -> bool:
        """Return whether there is a slot at another place that has not been given up."""
        return any(
            slot.place != place and slot.state is not SlotState.GIVEN_UP for slot in self.values()
        )

    def give(self, name: str, batch: SendBatch) -> None:
        """Note that a worker has got a batch."""
        slot = self[name]
        self.enter(name, SlotState.BUSY)
        self._put_in_work(slot, batch)
        self.in_batches += len(batch.tasks)
        # A record that shares its worker with other records cannot be convicted by its break.
        slot.fresh = slot.fresh and len(slot.batch) == 1

    def _put_in_work(self, slot: Slot, batch: SendBatch) -> None:
        slot.ticket, slot.stage = batch.ticket, batch.stage
        slot.batch = {task.index: task for task in batch.tasks}

    def take(self, name: str) -> dict[int, Task]:
        """Remove and return the batch that a worker runs, by index of the records."""
        slot = self[name]
        batch, slot.batch = slot.batch, {}
        self.in_batches -= len(batch)
        return batch

    def follow(self, name: str, batch: SendBatch) -> None:
        """Note that a worker has got another batch, which it begins after the present one."""
        self[name].following = batch
        self.in_batches += len(batch.tasks)

    def advance(self, name: str) -> bool:
        """Make the following batch of a worker the present one; return False if there is none."""
        slot = self[name]
        batch, slot.following = slot.following, None
        if batch is not None:
            self._put_in_work(slot, batch)
        return batch is not None

    def recall(self, name: str) -> SendBatch | None:
        """Remove and return the following batch of a worker, None if there is none."""
        slot = self[name]
        batch, slot.following = slot.following, None
        self.in_batches -= 0 if batch is None else len(batch.tasks)
        return batch

    def keep_quarantined(self, name: str, quarantined: Task | None) -> Task | None:
        """Keep a quarantined record for a slot, or none; return the one that it had."""
        slot = self[name]
        before, slot.quarantined = slot.quarantined, quarantined
        self.kept += (quarantined is not None) - (before is not None)
        return before

    def reserve(self, name: str, batch: SendBatch | None) -> SendBatch | None:
        """Reserve a batch for a slot, or none; return the batch that it had."""
        slot = self[name]
        before, slot.reserved = slot.reserved, batch
        self.kept += (batch is not None) - (before is not None)
        if batch is None:
            self._reserving.pop(name, None)
        else:
            self._reserving[name] = None
        return before

    def with_reserve(self) -> str:
        """Return a slot for which a batch is reserved, "" if there is none."""
        return next(iter(self._reserving), "")


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
            return self.rows.unchecked(task, failure.reason)
        self._crashes[task.index, cause] += 1
        self._broke_at[task.index] = place
        if fresh and self._crashes[task.index, cause] >= CRASHES_NEEDED[cause]:
            return failure.done or self.rows.failed(task, cause.outcome, failure.reason)
        self.quarantined.append(task)
        return None

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
