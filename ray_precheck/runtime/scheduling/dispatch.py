"""What waits for a worker, and what each worker is given next.

Comes in: the names of slots whose worker is idle, or will be soon. Goes out: the batch for each, with
the commands that come before it. Pure, a part of the scheduler and called by it alone. The order in
which it gives out records: quarantined ones (each alone, on a fresh worker), those that must run alone,
the batch that is reserved for the slot, the queue.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ray_precheck.runtime.scheduling.bench_stage import BenchStage
from ray_precheck.runtime.scheduling.commands import Command, Forget, Prepare, SendBatch
from ray_precheck.runtime.scheduling.cost_model import CostModel
from ray_precheck.runtime.scheduling.crash_counts import COST_SLACK, CrashCounts
from ray_precheck.runtime.scheduling.slots import Slot, SlotTable
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.runtime.scheduling.task_queue import TaskQueue
from ray_precheck.schema.task import Task


@dataclass(slots=True)
class Dispatch:
    """Gives out the records of the `queue`, those that must run `alone`, and the quarantined ones.

    `timeout_s` is the time limit of a cheap record. With `bench_suffices` workers without a device
    do whole records, so devices leave no bench to them. `ahead` are the slots to which captured
    files have to be sent before a batch, so their next batch is chosen while they have one.
    """

    queue: TaskQueue
    slots: SlotTable
    bench: BenchStage
    crash_counts: CrashCounts
    model: CostModel
    timeout_s: float
    bench_suffices: bool = False
    ahead: frozenset[str] = frozenset()
    alone: deque[Task] = field(default_factory=deque)
    _last_ticket: int = 0
    # Slots that were given a batch and may be sent a second one behind it; a dict keeps their order.
    _has_one: dict[str, None] = field(default_factory=dict)

    @property
    def has_waiting(self) -> bool:
        """Whether any record waits for a worker, those included that slots keep for later."""
        return bool(self.queue or self.alone or self.crash_counts.quarantined or self.slots.kept)

    def order(self, name: str, tasks: Sequence[Task], stage: Stage, transfer: int = 0) -> SendBatch:
        """Return a batch of tasks for a slot, under a new ticket and with a time limit for each."""
        self._last_ticket += 1
        limits = tuple([self.timeout_s + COST_SLACK * task.cost_s for task in tasks])
        if stage is Stage.DEVICE:
            self.bench.promise(self._last_ticket, tasks, sum(map(self.model.bench_s, tasks)))
        return SendBatch(name, self._last_ticket, tuple(tasks), limits, stage, transfer)

    def prepare(self, batch: SendBatch) -> list[Command]:
        """Return the command that sends the files of a batch to its slot, if the slot needs them."""
        if batch.slot not in self.ahead:
            return []
        return [Prepare(batch.slot, batch.ticket, batch.tasks)]

    def give(self, name: str) -> list[Command]:
        """Give an idle slot its next batch; if no record waits for it, its state stays as it was.

        A second batch is given by `follow_all`.
        """
        slot = self.slots[name]
        commands: list[Command] = []
        # Files are sent in turn: those of a quarantined record would wait for the room of a reserved batch.
        batch = self.slots.reserve(name, None) if slot.quarantined is None else None
        if batch is None:
            commands = self.release(name)
            tasks, stage, more = self._next_batch(name)
            commands += more
            if not tasks:
                return commands
            batch = self.order(name, tasks, stage)
            commands += self.prepare(batch)
        self.slots.give(name, batch)
        self._has_one[name] = None
        return [*commands, batch, *self._reserve(name)]

    def follow_all(self) -> list[Command]:
        """Give a second batch to the slots that were given a batch since the last call.

        So if many workers begin at once, each has a batch before any of them has two.
        """
        names, self._has_one = self._has_one, {}
        return [
            command
            for name in names
            if self.slots.has_one_batch(name)
            for command in self.follow(name)
        ]

    def follow(self, name: str) -> list[Command]:
        """Give a busy worker its next batch, so that it need not wait for the driver between two.

        It gets none if files have to be sent first, or if a record waits that must run alone.
        """
        slot = self.slots[name]
        if name in self.ahead or slot.moves_to is not None or slot.fresh:
            return []
        if self.alone or self.crash_counts.quarantined:
            return []
        if not self.queue or not self.queue.is_ample(len(self.slots), self.model):
            return []
        tasks, stage = self.from_queue(may_split=True, busy=slot)
        batch = self.order(name, tasks, stage)
        self.slots.follow(name, batch)
        return [batch]

    def from_queue(
        self, *, may_split: bool, busy: Slot | None = None
    ) -> tuple[tuple[Task, ...], Stage]:
        """Take a batch from the queue; return its tasks, and the part of each that the worker does.

        `busy` is the slot that the batch is for, if this slot still works on another batch.
        """
        room = self.bench.room_bytes if may_split and not self.bench_suffices else 0
        spare_s = 0.0
        if room and self.bench.is_full:
            # Devices that choose at the same time would all choose alike from the backlog alone.
            spare_s = self.bench.backlog_s - (0.0 if busy is None else self._work_s(busy))
        tasks, splits = self.queue.take(len(self.slots), room, self.model, spare_s)
        return tasks, Stage.DEVICE if splits else Stage.CHECK

    def _work_s(self, slot: Slot) -> float:
        """Return how long the batch of a slot is expected to take the device."""
        device_s = sum(map(self.model.device_s, slot.batch.values()))
        if slot.stage is Stage.DEVICE:
            return device_s
        return device_s + sum(map(self.model.bench_s, slot.batch.values()))

    def _next_batch(self, name: str) -> tuple[tuple[Task, ...], Stage, list[Command]]:
        """Return the tasks that a slot does next, their stage, and the commands that come before."""
        quarantined = self.slots.keep_quarantined(name, None)
        if quarantined is not None:
            return (quarantined,), Stage.CHECK, []
        if self.alone:
            return (self.alone.popleft(),), Stage.CHECK, []
        # If the queue is empty, the batch that is reserved for a busy slot is taken back.
        commands = [] if self.queue else self.release(self.slots.with_reserve() or name)
        tasks, stage = self.from_queue(may_split=True)
        return tasks, stage, commands

    def _reserve(self, name: str) -> list[Command]:
        """Reserve the next batch of a slot to which its files have to be sent."""
        if name not in self.ahead or self.slots[name].reserved is not None:
            return []
        tasks, stage = self.from_queue(may_split=False)
        if not tasks:
            return []
        batch = self.order(name, tasks, stage)
        self.slots.reserve(name, batch)
        return self.prepare(batch)

    def release(self, name: str) -> list[Command]:
        """Put the batch that is reserved for a slot back to the queue."""
        reserved = self.slots.reserve(name, None)
        if reserved is None:
            return []
        self.queue.put_back(reserved.tasks)
        return [Forget(reserved.ticket)]

    def recall(self, name: str) -> list[Command]:
        """Put the second batch of a slot back to the queue: the slot's worker will not begin it."""
        following = self.slots.recall(name)
        if following is None:
            return []
        self.bench.withdraw(following.ticket)
        self.queue.put_back(following.tasks)
        return [Forget(following.ticket)]

    def give_back(self, name: str) -> list[Command]:
        """Take from a slot the quarantined record and the reserved batch that it keeps for later."""
        quarantined = self.slots.keep_quarantined(name, None)
        if quarantined is not None:
            self.crash_counts.quarantined.appendleft(quarantined)
        return self.release(name)

    def choose_quarantined(self, name: str) -> None:
        """Have a slot run a quarantined record next; one that it kept goes back: the slot may have moved."""
        before = self.slots.keep_quarantined(name, None)
        if before is not None:
            self.crash_counts.quarantined.appendleft(before)
        if self.crash_counts.quarantined:
            place = self.slots[name].place
            elsewhere = self.slots.is_elsewhere(place)
            self.slots.keep_quarantined(
                name, self.crash_counts.take_quarantined(place, elsewhere=elsewhere)
            )
