"""Which worker runs what, and what becomes of records that break theirs: events in, commands out.

Pure: no Ray, no clock, no I/O. The driver turns Ray's news into calls of `Scheduler` and carries
out the commands that they return. Workers pull: each has at most one batch in flight, sized by
estimated cost, so that a slow device does not hold the run.

A record is always in exactly one place: the queue, among those that must run alone, among the
suspects, in one batch, or recorded. A worker that breaks says which record it was at; that one
becomes a suspect and the rest of the batch goes back to the queue. A suspect runs alone on a fresh
worker, and only what happens there can make it guilty.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ray_precheck.schema.casualty import BatchReport, Casualty, Cause
from ray_precheck.schema.result import TaskResult, failed
from ray_precheck.schema.task import Task

MAX_BATCH_RECORDS = 64
TARGET_BATCH_S = 0.4
START_ATTEMPTS = 3
# The time limit grows by this many times the estimated cost: estimates are made for one CPU core.
COST_SLACK = 20.0
# How often a record must break its worker to be found guilty, the last time alone on a fresh one.
# A crash is confirmed by one retry. SIGKILL and a lost worker may come from outside (the kernel's
# memory killer, a node that goes down), so they are confirmed by two.
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
MAX_RUNS = 2 + sum(strikes - 1 for strikes in STRIKES.values()) + 1


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Have a fresh worker on a slot: start one, or replace the one that is there."""

    slot: str


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send tasks to the worker of a slot; each may take its number of seconds, one after the other.

    The answer must name the `ticket`: an answer to an older one comes too late.
    """

    slot: str
    ticket: int
    tasks: tuple[Task, ...]
    limits_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """Write results; each record is in exactly one of these commands."""

    results: tuple[TaskResult, ...]


@dataclass(frozen=True, slots=True)
class GiveUpDevice:
    """A device could not be started; the others go on."""

    slot: str
    reason: str


Command = StartWorker | SendBatch | Record | GiveUpDevice


class SlotState(Enum):
    """Where the worker of a slot is in its life."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    GIVEN_UP = "given up"


@dataclass(slots=True)
class _Slot:
    """`place` is what dies together: slots on the CPU of one machine share it, devices do not.

    `moves_to` is the place of its next worker, None where that stays. `fresh`: nothing has run on the
    worker but, at most, the one record that it has now. `suspect` is what the slot will run as soon
    as its worker is fresh.
    """

    place: str
    moves_to: str | None = None
    state: SlotState = SlotState.STARTING
    fresh: bool = False
    ticket: int = 0
    batch: dict[int, Task] = field(default_factory=dict)
    suspect: Task | None = None
    failed_starts: int = 0


@dataclass(slots=True)
class Scheduler:
    """The state of a run. `tasks` are in the order to run them, the costly ones first.

    `places` says for each slot by its label what it shares its fate with. `with_backward` are the
    indices of calls that have a backward record, for the rows of records that no worker answers for.
    """

    tasks: Iterable[Task]
    places: Mapping[str, str]
    timeout_s: float
    with_backward: frozenset[int] = frozenset()
    draining: bool = False
    _queue: deque[Task] = field(init=False)
    _alone: deque[Task] = field(init=False, default_factory=deque)
    _suspects: deque[Task] = field(init=False, default_factory=deque)
    _strikes: Counter[tuple[int, Cause]] = field(init=False, default_factory=Counter)
    _broke_at: dict[int, str] = field(init=False, default_factory=dict)
    _slots: dict[str, _Slot] = field(init=False)
    _cost_left_s: float = field(init=False)
    _last_ticket: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._queue = deque(self.tasks)
        self._slots = {slot: _Slot(place) for slot, place in self.places.items()}
        self._cost_left_s = sum(task.cost_s for task in self._queue)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to send and nothing is in flight."""
        waiting = bool(
            self._queue
            or self._alone
            or self._suspects
            or any(slot.suspect for slot in self._slots.values())
        )
        return not (waiting and not self.draining) and not self.in_flight

    @property
    def in_flight(self) -> int:
        """Number of records that a worker has."""
        return sum(len(slot.batch) for slot in self._slots.values())

    @property
    def has_devices(self) -> bool:
        """Whether any device has not been given up."""
        return any(slot.state is not SlotState.GIVEN_UP for slot in self._slots.values())

    @property
    def busy_slots(self) -> list[str]:
        """The slots whose worker has a batch."""
        return [name for name, slot in self._slots.items() if slot.state is SlotState.BUSY]

    def start(self) -> list[Command]:
        """Begin: start a worker on every slot, but on no more than there are records.

        Where these slots share one place, one elsewhere is started too: the place may be bad.
        """
        names = list(self._slots)
        wanted, others = names[: max(1, len(self._queue))], names[max(1, len(self._queue)) :]
        places = {self._slots[name].place for name in wanted}
        if self._queue and len(places) == 1:
            wanted += [name for name in others if self._slots[name].place not in places][:1]
        self._slots = {name: self._slots[name] for name in wanted}
        return [StartWorker(name) for name in wanted]

    def drain(self) -> None:
        """Send nothing more; what is in flight may finish."""
        self.draining = True

    def worker_ready(self, name: str) -> list[Command]:
        """A fresh worker has started and waits for work; without a start to wait for: nothing."""
        slot = self._slots.get(name)
        if slot is None or slot.state is not SlotState.STARTING:
            return []
        slot.failed_starts = 0
        slot.fresh = True
        return self._feed(name)

    def start_failed(self, name: str, reason: str) -> list[Command]:
        """A worker could not start: try again a few times, then give the device up."""
        slot = self._slots.get(name)
        if slot is None or slot.state is not SlotState.STARTING or self.draining:
            return []
        slot.failed_starts += 1
        if slot.failed_starts < START_ATTEMPTS:
            return [StartWorker(name)]
        slot.state = SlotState.GIVEN_UP
        if slot.suspect is not None:
            self._suspects.appendleft(slot.suspect)
            slot.suspect = None
        return [GiveUpDevice(name, reason)]

    def revive(self, name: str, place: str) -> list[Command]:
        """A slot has a new place, or a device that was given up is there again.

        A batch in flight finishes where it is.
        """
        slot = self._slots.get(name)
        if slot is None or self.draining:
            return []
        slot.moves_to = place
        if slot.state is SlotState.BUSY:
            return []
        slot.failed_starts = 0
        return [self._restart(name)]

    def batch_done(self, name: str, ticket: int, report: BatchReport) -> list[Command]:
        """A batch has come back: record what is finished, and see to what broke the worker.

        An answer that comes late or twice, or that is none to this batch, changes nothing.
        """
        slot = self._slots.get(name)
        if slot is None or not slot.batch or ticket != slot.ticket:
            return []
        batch, slot.batch = slot.batch, {}
        answers = {result.index: result for result in report.results if result.index in batch}
        for index in answers:
            del batch[index]
        commands: list[Command] = [Record(tuple(answers.values()))] if answers else []
        casualty = report.casualty
        broken = batch.get(casualty.index) if casualty is not None else None
        if broken is not None:
            batch = self._requeue_after(broken.index, batch)
        if batch:
            silent = "its worker gave no result for it"
            commands += self._break_all(name, batch, Cause.SILENT, silent)
        if casualty is not None and broken is not None:
            commands += self._strike(name, broken, casualty)
        slot.fresh = False
        if casualty is not None or slot.moves_to is not None:
            return [*commands, *self._replace(name)]
        return [*commands, *self._feed(name)]

    def _requeue_after(self, broken: int, batch: Mapping[int, Task]) -> dict[int, Task]:
        """Requeue what comes after the record that broke the worker: it was not run.

        Returns what comes before: it was run, and its results are missing.
        """
        order = list(batch)
        position = order.index(broken)
        self._requeue(batch[index] for index in order[position + 1 :])
        return {index: batch[index] for index in order[:position]}

    def worker_lost(
        self, name: str, ticket: int, reason: str, cause: Cause = Cause.LOST
    ) -> list[Command]:
        """The whole worker is gone (`ticket` 0: while it was idle) and needs a successor.

        Nobody knows which record it was at, so those of its batch run again one by one.
        """
        slot = self._slots.get(name)
        awaited = {SlotState.BUSY: slot.ticket, SlotState.IDLE: 0} if slot is not None else {}
        if slot is None or ticket != awaited.get(slot.state):
            return []
        batch, slot.batch = slot.batch, {}
        return [*self._break_all(name, batch, cause, reason), *self._replace(name)]

    def _break_all(
        self, name: str, batch: Mapping[int, Task], cause: Cause, reason: str
    ) -> list[Command]:
        """Deal with records that got no answer, where nobody says which one was running."""
        if self.draining:
            self._requeue(batch.values())
            return []
        if len(batch) > 1:
            self._alone.extend(batch.values())
            return []
        return [
            command
            for index, task in batch.items()
            for command in self._strike(name, task, Casualty(index, cause, reason))
        ]

    def _strike(self, name: str, task: Task, casualty: Casualty) -> list[Command]:
        """Count a strike against a record; convict it if that was on a fresh worker of its own."""
        slot, cause = self._slots[name], casualty.cause
        self._strikes[task.index, cause] += 1
        self._broke_at[task.index] = slot.place
        was_fresh, slot.fresh = slot.fresh, False
        if was_fresh and self._strikes[task.index, cause] >= STRIKES[cause]:
            return [Record((casualty.result or self._failure(task, casualty),))]
        self._suspects.append(task)
        return []

    def _failure(self, task: Task, casualty: Casualty) -> TaskResult:
        has_backward = task.index in self.with_backward
        outcome = casualty.cause.outcome
        return failed(task.index, task.name, outcome, casualty.reason, has_backward)

    def _requeue(self, tasks: Iterable[Task]) -> None:
        """Put tasks that were not run back to the head of the queue."""
        waiting = list(tasks)
        self._queue.extendleft(reversed(waiting))
        self._cost_left_s += sum(task.cost_s for task in waiting)

    def _replace(self, name: str) -> list[Command]:
        """Start a successor where there is something left for it; it takes on the next suspect."""
        slot = self._slots[name]
        if self.draining or self.finished:
            slot.state, slot.fresh = SlotState.STARTING, False
            return []
        start = self._restart(name)
        self._choose_suspect(slot)
        return [start]

    def _restart(self, name: str) -> StartWorker:
        slot = self._slots[name]
        slot.state, slot.fresh = SlotState.STARTING, False
        if slot.moves_to is not None:
            slot.place, slot.moves_to = slot.moves_to, None
        return StartWorker(name)

    def wake(self) -> list[Command]:
        """Feed the workers that are idle while records wait (after another worker's death)."""
        if not (self._queue or self._alone or self._suspects):
            return []
        commands: list[Command] = []
        for name, slot in self._slots.items():
            if slot.state is SlotState.IDLE:
                commands.extend(self._feed(name))
        return commands

    def _feed(self, name: str) -> list[Command]:
        slot = self._slots[name]
        slot.state = SlotState.IDLE
        if self.draining:
            return []
        self._choose_suspect(slot)
        if slot.suspect is not None and not slot.fresh:
            return [self._restart(name)]
        batch = self._next_batch(slot)
        if not batch:
            return []
        self._last_ticket += 1
        slot.state, slot.ticket = SlotState.BUSY, self._last_ticket
        slot.batch = {task.index: task for task in batch}
        # Whoever shares its worker with others cannot be convicted there.
        slot.fresh = slot.fresh and len(batch) == 1
        limits = tuple(self.timeout_s + COST_SLACK * task.cost_s for task in batch)
        return [SendBatch(name, slot.ticket, batch, limits)]

    def _choose_suspect(self, slot: _Slot) -> None:
        """Have a slot run a suspect next; the one that it had goes back, as the slot may have moved."""
        if slot.suspect is not None:
            self._suspects.appendleft(slot.suspect)
        slot.suspect = self._take_suspect(slot.place)

    def _take_suspect(self, place: str) -> Task | None:
        """Take a record to run alone: not where it broke a worker, so long as there is elsewhere.

        A device that breaks every worker must not make healthy records guilty.
        """
        elsewhere = any(
            slot.place != place and slot.state is not SlotState.GIVEN_UP
            for slot in self._slots.values()
        )
        for task in self._suspects:
            if not elsewhere or self._broke_at.get(task.index) != place:
                self._suspects.remove(task)
                return task
        return None

    def _next_batch(self, slot: _Slot) -> tuple[Task, ...]:
        if slot.suspect is not None:
            suspect, slot.suspect = slot.suspect, None
            return (suspect,)
        if self._alone:
            return (self._alone.popleft(),)
        # Guided self-scheduling (Polychronopoulos and Kuck, IEEE Trans. Computers C-36, 1987): a
        # share of what is left, so that the last batches are small and all devices end together.
        share = self._cost_left_s / (2 * max(1, len(self._slots)))
        budget = min(TARGET_BATCH_S, share)
        batch: list[Task] = []
        spent = 0.0
        while self._queue and len(batch) < MAX_BATCH_RECORDS:
            if batch and spent + self._queue[0].cost_s > budget:
                break
            task = self._queue.popleft()
            spent += task.cost_s
            batch.append(task)
        self._cost_left_s -= spent
        return tuple(batch)
