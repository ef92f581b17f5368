"""Which worker runs what, and what becomes of records whose worker died: events in, commands out.

Pure: no Ray, no clock, no I/O. The driver turns Ray's news into calls of `Scheduler` and carries
out the commands that they return. Workers pull: each has at most one batch in flight, sized by
estimated cost, so that a slow device does not hold the run.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from ray_precheck.schema.result import Outcome, TaskResult, failed
from ray_precheck.schema.task import Task

MAX_BATCH_RECORDS = 64
TARGET_BATCH_S = 0.4
START_ATTEMPTS = 3
# A record that killed this many workers while it ran alone is the one that kills.
ALONE_CRASHES = 2
# The deadline grows by this many times the estimated cost: estimates are made for one CPU core.
COST_SLACK = 20.0


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a fresh worker on a slot."""

    slot: str


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send tasks to the worker of a slot; it has `deadline_s` seconds for all of them."""

    slot: str
    tasks: tuple[Task, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Record a result that no worker gave: its record killed the worker or gave no answer."""

    result: TaskResult


@dataclass(frozen=True, slots=True)
class GiveUpDevice:
    """A device could not be started; the others go on."""

    slot: str
    reason: str


Command = StartWorker | SendBatch | Report | GiveUpDevice


class SlotState(Enum):
    """Where the worker of a slot is in its life."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    GIVEN_UP = "given up"


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.STARTING
    batch: tuple[Task, ...] = ()
    failed_starts: int = 0


@dataclass(slots=True)
class Scheduler:
    """The state of a run. `tasks` are in the order to run them, the costly ones first.

    `with_backward` are the indices of calls that have a backward record, for the rows of records
    that no worker answers for.
    """

    tasks: Iterable[Task]
    slots: Iterable[str]
    timeout_s: float
    with_backward: frozenset[int] = frozenset()
    draining: bool = False
    _queue: deque[Task] = field(init=False)
    _suspects: deque[Task] = field(init=False, default_factory=deque)
    _crashes: dict[int, int] = field(init=False, default_factory=dict)
    _crashed_on: dict[int, str] = field(init=False, default_factory=dict)
    _slots: dict[str, _Slot] = field(init=False)
    _cost_left_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._queue = deque(self.tasks)
        self._slots = {slot: _Slot() for slot in self.slots}
        self._cost_left_s = sum(task.cost_s for task in self._queue)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to send and nothing is in flight."""
        waiting = bool(self._queue or self._suspects) and not self.draining
        return not waiting and not self.in_flight

    @property
    def in_flight(self) -> int:
        """Number of records that a worker has."""
        return sum(len(slot.batch) for slot in self._slots.values())

    @property
    def has_devices(self) -> bool:
        """Whether any device has not been given up."""
        return any(slot.state is not SlotState.GIVEN_UP for slot in self._slots.values())

    def start(self) -> list[Command]:
        """Begin: start a worker on every slot, but on no more than there are records."""
        wanted = list(self._slots)[: max(1, len(self._queue))]
        for slot in list(self._slots):
            if slot not in wanted:
                del self._slots[slot]
        return [StartWorker(slot) for slot in wanted]

    def drain(self) -> None:
        """Send nothing more; what is in flight may finish."""
        self.draining = True

    def worker_ready(self, slot: str) -> list[Command]:
        """A worker has started and waits for work."""
        self._slots[slot].failed_starts = 0
        return self._feed(slot)

    def start_failed(self, slot: str, reason: str) -> list[Command]:
        """A worker could not start: try again a few times, then give the device up."""
        state = self._slots[slot]
        state.failed_starts += 1
        if state.failed_starts < START_ATTEMPTS:
            return [StartWorker(slot)]
        state.state = SlotState.GIVEN_UP
        return [GiveUpDevice(slot, reason)]

    def batch_done(self, slot: str, results: Iterable[TaskResult]) -> list[Command]:
        """A batch has come back; what it does not answer for runs again, alone."""
        answered = {result.index for result in results}
        missing = [task for task in self._slots[slot].batch if task.index not in answered]
        alone = len(self._slots[slot].batch) == 1
        self._slots[slot].batch = ()
        commands: list[Command] = []
        for task in missing:
            if alone and self._is_guilty(task, Outcome.CRASHED):
                has_backward = task.index in self.with_backward
                reason = "its worker gave no result for it"
                result = failed(task.index, task.name, Outcome.CRASHED, reason, has_backward)
                commands.append(Report(result))
            else:
                self._suspects.append(task)
        return [*commands, *self._feed(slot)]

    def worker_lost(self, slot: str, reason: str, outcome: Outcome) -> list[Command]:
        """The worker died or was killed (`outcome` CRASHED or TIMED_OUT) and needs a successor.

        Records that were in a batch with others run again one by one. One that was alone is found
        guilty: at once if it gave no answer in its time, else when it does it a second time.
        """
        state = self._slots[slot]
        batch, state.batch = state.batch, ()
        self._crashed_on.update({task.index: slot for task in batch})
        commands: list[Command] = []
        if len(batch) == 1 and self._is_guilty(batch[0], outcome):
            task = batch[0]
            has_backward = task.index in self.with_backward
            commands.append(Report(failed(task.index, task.name, outcome, reason, has_backward)))
        else:
            self._suspects.extend(batch)
        state.state = SlotState.STARTING
        if self.finished or self.draining:
            return commands
        return [*commands, StartWorker(slot)]

    def _is_guilty(self, task: Task, outcome: Outcome) -> bool:
        if outcome is Outcome.TIMED_OUT:
            return True
        self._crashes[task.index] = self._crashes.get(task.index, 0) + 1
        return self._crashes[task.index] >= ALONE_CRASHES

    def _feed(self, slot: str) -> list[Command]:
        state = self._slots[slot]
        batch = () if self.draining else self._next_batch(slot)
        state.batch = batch
        state.state = SlotState.BUSY if batch else SlotState.IDLE
        if not batch:
            return []
        slack = COST_SLACK * sum(task.cost_s for task in batch)
        return [SendBatch(slot, batch, self.timeout_s + slack)]

    def wake(self) -> list[Command]:
        """Feed the workers that are idle while records wait (after another worker's death)."""
        commands: list[Command] = []
        for slot, state in self._slots.items():
            if state.state is SlotState.IDLE:
                commands.extend(self._feed(slot))
        return commands

    def _next_suspect(self, slot: str) -> Task | None:
        """Return a record to run alone: not where its worker died, so long as there is elsewhere.

        A device that kills every worker must not make healthy records guilty.
        """
        elsewhere = any(
            other != slot and state.state is not SlotState.GIVEN_UP
            for other, state in self._slots.items()
        )
        for task in self._suspects:
            if not elsewhere or self._crashed_on.get(task.index) != slot:
                self._suspects.remove(task)
                return task
        return None

    def _next_batch(self, slot: str) -> tuple[Task, ...]:
        suspect = self._next_suspect(slot)
        if suspect is not None:
            return (suspect,)
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
