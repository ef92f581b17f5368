"""Which worker runs what, and what becomes of records that break theirs: events in, commands out.

Pure: no Ray, no clock, no I/O. The driver turns Ray's news into calls of `Scheduler` and carries
out the commands that they return. Workers pull: each has at most one batch in flight, sized by
estimated cost, so that a slow device does not hold the run.

A record is always in exactly one place: in the queue, among the records that must run alone, among
the quarantined ones, in one batch (which a device or a bench worker has, or which is reserved for a
device), waiting for a bench, or recorded. A worker that breaks says which record was running; this record
is quarantined, and the rest of the batch goes back to the queue. A quarantined record runs alone on
a fresh worker, and only a break of that worker convicts it. A record whose bench breaks a bench
worker has no crash counted: it is checked again, device and bench together.

What waits for a worker, and what each worker is given next. Pure, a part of the scheduler and called by it
alone. The order in which it gives out records: quarantined ones (each alone, on a fresh worker), those that
must run alone, the batch that is reserved for the slot, the queue.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from ray_precheck.runtime.scheduling.bench_stage import BenchStage, Transfer
from ray_precheck.runtime.scheduling.commands import (
    Command,
    Forget,
    GiveUpDevice,
    Prepare,
    Record,
    SendBatch,
    Stage,
    StartWorker,
)
from ray_precheck.runtime.scheduling.queue import CostModel, TaskQueue
from ray_precheck.runtime.scheduling.slots import (
    COST_SLACK,
    START_ATTEMPTS,
    CrashCounts,
    Rows,
    Slot,
    SlotState,
    SlotTable,
)
from ray_precheck.schema.task import BatchReport, Cause, Task, WorkerFailure


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
        is_first = not (self.alone or self.crash_counts.quarantined) and bool(self.queue)
        if not is_first or not self.queue.is_ample(len(self.slots), self.model):
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
        tasks, is_whole = slot.batch.values(), slot.stage is not Stage.DEVICE
        device_s = sum(map(self.model.device_s, tasks))
        return device_s + (sum(map(self.model.bench_s, tasks)) if is_whole else 0.0)

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
        self._let_go(name)
        return self.release(name)

    def _let_go(self, name: str) -> None:
        """Take from a slot the quarantined record that it keeps for later."""
        quarantined = self.slots.keep_quarantined(name, None)
        if quarantined is not None:
            self.crash_counts.quarantined.appendleft(quarantined)

    def choose_quarantined(self, name: str) -> None:
        """Have a slot run a quarantined record next; one that it kept goes back: the slot may have moved."""
        self._let_go(name)
        if self.crash_counts.quarantined:
            place = self.slots[name].place
            elsewhere = self.slots.is_elsewhere(place)
            self.slots.keep_quarantined(
                name, self.crash_counts.take_quarantined(place, elsewhere=elsewhere)
            )


@dataclass(slots=True)
class Scheduler:
    """The state of a run. `tasks` are in the order to run them, the costly ones first.

    `places` has the place of each slot by its label. `rows` writes the rows of records that no worker answers
    for. `bench` holds the bench workers, if there are any; with `bench_suffices` they may also do whole
    records (whose results were captured). `ahead` are the slots to which captured files have to be sent;
    their files are sent one batch ahead. `grows`: more tasks may come (`add`). `machines` has the machine of
    each slot whose place is not its machine.
    """

    tasks: Iterable[Task]
    places: Mapping[str, str]
    timeout_s: float
    rows: Rows
    draining: bool = False
    grows: bool = False
    bench: BenchStage = field(default_factory=lambda: BenchStage({}, 0))
    bench_suffices: bool = False
    ahead: InitVar[frozenset[str]] = frozenset()
    machines: Mapping[str, str] = field(default_factory=dict)
    model: CostModel = field(default_factory=CostModel)
    _slots: SlotTable = field(init=False)
    _dispatch: Dispatch = field(init=False)

    def __post_init__(self, ahead: frozenset[str]) -> None:
        self._slots = SlotTable(self.places)
        self._dispatch = Dispatch(
            TaskQueue(deque(self.tasks)),
            self._slots,
            self.bench,
            CrashCounts(self.rows),
            self.model,
            self.timeout_s,
            self.bench_suffices,
            ahead,
        )

    @property
    def finished(self) -> bool:
        """Whether nothing is left to send and nothing is in flight."""
        left = self._dispatch.has_waiting or not self.bench.is_empty
        return not (left and not self.draining) and not self.in_flight

    @property
    def in_flight(self) -> int:
        """Number of records that a worker has."""
        return self._slots.in_batches + self.bench.in_flight

    @property
    def has_devices(self) -> bool:
        """Whether any device has not been given up."""
        return self._slots.has_living

    @property
    def busy_slots(self) -> list[str]:
        """The slots whose worker has a batch, those for benches too."""
        return [*self._slots.busy(), *self.bench.busy()]

    def start(self) -> list[Command]:
        """Begin: start a worker on every slot, but no more workers than there are records, unless their
        number `grows`.

        If these slots share one place, a worker at another place is started too, because the first
        place may be bad.
        """
        names, most = list(self._slots), max(1, len(self._dispatch.queue))
        if self.grows:
            most = len(names)
        wanted, others = names[:most], names[most:]
        places = {self._slots[name].place for name in wanted}
        if self._dispatch.queue and len(places) == 1:
            wanted += [name for name in others if self._slots[name].place not in places][:1]
        self._slots.keep_only(wanted)
        return [StartWorker(name) for name in [*wanted, *self.bench.names]]

    def send_files_to(self, slots: frozenset[str]) -> None:
        """Set the slots to which captured files have to be sent from now on."""
        self._dispatch.ahead = slots

    def add(self, tasks: Iterable[Task]) -> None:
        """Take new tasks; `wake` gives them out."""
        self._dispatch.queue.append(tasks)

    @property
    def room(self) -> int:
        """How many more tasks there are workers for."""
        waiting = len(self._dispatch.queue) + len(self._dispatch.alone)
        return max(0, self._slots.living - self.in_flight - waiting)

    def drain(self) -> None:
        """Send no more batches; the batches in flight may finish."""
        self.draining = True

    def add_slot(self, name: str, place: str) -> list[Command]:
        """Start a worker on a slot whose device has joined the cluster."""
        if name in self._slots or self.draining:
            return []
        self._slots.add(name, place)
        return [StartWorker(name)]

    def add_bench(self, name: str, place: str) -> list[Command]:
        """Start a bench worker on a core that has joined the cluster."""
        if name in self.bench or self.draining:
            return []
        self.bench.add(name, place)
        return [StartWorker(name)]

    def place_lost(self, place: str, benches: Iterable[str]) -> list[Command]:
        """Check again the records whose bench worker or transfer was on a machine that is gone."""
        commands = self._check_again(self.bench.lose_waiting(place))
        for name in benches:
            commands += self._check_lost(self.bench.remove(name))
        return [*commands, *self._feed_benches()]

    def worker_ready(self, name: str) -> list[Command]:
        """Give work to a fresh worker that has started; a start that nobody awaits changes nothing."""
        if name in self.bench:
            self.bench.ready(name)
            return self._feed_benches()
        slot = self._slots.get(name)
        if slot is None or slot.state is not SlotState.STARTING:
            return []
        slot.failed_starts = 0
        slot.fresh = True
        return self._feed(name)

    def start_failed(self, name: str, reason: str) -> list[Command]:
        """Start a worker again that could not start; after a few times give its device up."""
        if name in self.bench:
            if self.draining or not self.bench.is_starting(name):
                return []
            if self.bench.start_failed(name):
                return [StartWorker(name)]
            return [GiveUpDevice(name, reason), *self._feed_benches()]
        slot = self._slots.get(name)
        if slot is None or slot.state is not SlotState.STARTING or self.draining:
            return []
        slot.failed_starts += 1
        if slot.failed_starts < START_ATTEMPTS:
            return [StartWorker(name)]
        self._slots.enter(name, SlotState.GIVEN_UP)
        return [*self._dispatch.give_back(name), GiveUpDevice(name, reason)]

    def slot_lost(self, name: str, reason: str) -> list[Command]:
        """Give up a slot whose machine is gone, until the slot is revived."""
        slot = self._slots.get(name)
        if slot is None:
            return []
        self.bench.withdraw(slot.ticket)
        commands = self._dispatch.recall(name)
        commands += self._break_all(name, self._slots.take(name), Cause.LOST, reason)
        self._slots.enter(name, SlotState.GIVEN_UP)
        return [*commands, *self._dispatch.give_back(name)]

    def revive(self, name: str, place: str) -> list[Command]:
        """Use a slot that has a new place, or whose device was given up and is there again.

        If its worker has a batch, this batch finishes at the old place.
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
        """Record the results of a batch that has come back, and deal with the record that broke the worker.

        An answer that comes late or twice, or that belongs to another batch, changes nothing.
        """
        if name in self.bench:
            return self._bench_done(name, ticket, report)
        slot = self._slots.get(name)
        if slot is None or not slot.batch or ticket != slot.ticket:
            return []
        batch = self._slots.take(name)
        commands = self._record_answers(batch, report)
        if slot.stage is Stage.DEVICE:
            commands += self._pass_on(name, batch, report)
        failure = report.failure
        if failure is not None:
            commands += self._dispatch.recall(name)
        broken = batch.get(failure.index) if failure is not None else None
        if broken is not None:
            batch = self._requeue_after(broken.index, batch)
        if batch:
            silent = "its worker gave no result for it"
            commands += self._break_all(name, batch, Cause.SILENT, silent)
        if failure is not None and broken is not None:
            commands += self._count_crash(name, broken, failure)
        slot.fresh = False
        if self._slots.advance(name):
            return commands if self.draining else [*commands, *self._dispatch.follow(name)]
        if failure is not None or slot.moves_to is not None:
            return [*commands, *self._replace(name)]
        return [*commands, *self._feed(name)]

    def _record_answers(self, batch: dict[int, Task], report: BatchReport) -> list[Command]:
        """Take the finished records out of a batch; learn from the time that they have taken."""
        answers = {result.index: result for result in report.results if result.index in batch}
        for index, result in answers.items():
            self.model.learn(batch.pop(index), result)
        return [Record(tuple(answers.values()))] if answers else []

    def _pass_on(self, name: str, batch: dict[int, Task], report: BatchReport) -> list[Command]:
        """Take the records that the device has measured out of a batch; they wait for a bench now."""
        slot = self._slots[name]
        machine = self.machines.get(name, slot.place)
        self.bench.withdraw(slot.ticket)
        measured = {each.index: each for each in report.measured if each.index in batch}
        for index, each in measured.items():
            self.model.learn_device(batch[index], each.elapsed_s)
        tasks = tuple(batch.pop(index) for index in measured)
        if not tasks or self.draining:
            self._dispatch.queue.put_back(tasks)
            return [Forget(slot.ticket)]
        nbytes = sum(each.nbytes for each in measured.values())
        bench_s = sum(map(self.model.bench_s, tasks))
        transfer = Transfer(slot.ticket, machine, tasks, nbytes, report.handover_s, bench_s)
        self.bench.arrive(transfer)
        return self._feed_benches()

    def _bench_done(self, name: str, ticket: int, report: BatchReport) -> list[Command]:
        transfer = self.bench.done(name, ticket)
        if transfer is None:
            return []
        batch = {task.index: task for task in transfer.tasks}
        commands = self._record_answers(batch, report)
        failure = report.failure
        if failure is None and transfer.ticket and not batch:
            self.model.learn_handover(transfer.tasks, transfer.made_s, report)
        if failure is not None and failure.cause is Cause.OVER_BUDGET:
            slow = batch.pop(failure.index, None)
            if slow is not None:
                commands.append(Record((self.rows.unchecked(slow, failure.reason),)))
        # A bench tells nothing about the device, so a record whose bench breaks has no crash counted.
        self._dispatch.alone.extend(batch.values())
        if transfer.ticket:
            commands.append(Forget(transfer.ticket))
        lost = [] if failure is None else self._lose_bench(name)
        return [*commands, *lost, *self._feed_benches()]

    def _lose_bench(self, name: str) -> list[Command]:
        """Start a new bench worker; the records of the old one are checked again, each as a whole."""
        commands = self._check_lost(self.bench.lose(name))
        return commands if self.draining else [*commands, StartWorker(name)]

    def _check_lost(self, batches: Mapping[int, Transfer]) -> list[Command]:
        """Check again the records of a lost bench worker; its batches may still have waited for files."""
        return [*(Forget(ticket) for ticket in batches), *self._check_again(batches.values())]

    def _check_again(self, transfers: Iterable[Transfer]) -> list[Command]:
        commands: list[Command] = []
        for transfer in transfers:
            self._dispatch.alone.extend(transfer.tasks)
            commands += [Forget(transfer.ticket)] if transfer.ticket else []
        return commands

    def _feed_benches(self) -> list[Command]:
        """Give the bench workers the transfers that wait for them, and whole records if they may do those."""
        if self.draining:
            return []
        # Where no bench worker is left, devices check the records whose transfers wait.
        commands = [] if self.bench.has_living else self._check_again(self.bench.lose_waiting())
        while found := self.bench.next_assignment():
            name, transfer = found
            batch = self._dispatch.order(name, transfer.tasks, Stage.BENCH, transfer.ticket)
            self.bench.assign(name, batch.ticket, transfer)
            commands += [*self._dispatch.prepare(batch), batch]
        if not self.bench_suffices:
            return commands
        for name in self.bench.with_room(self._dispatch.ahead):
            tasks, stage = self._dispatch.from_queue(may_split=False)
            if not tasks:
                break
            batch = self._dispatch.order(name, tasks, stage)
            self.bench.take(name, batch.ticket, tasks)
            commands += [*self._dispatch.prepare(batch), batch]
        return commands

    def _requeue_after(self, broken: int, batch: Mapping[int, Task]) -> dict[int, Task]:
        """Requeue the records after the one that broke the worker, because they were not run.

        Returns the records before it, which were run and whose results are missing.
        """
        order = list(batch)
        position = order.index(broken)
        self._dispatch.queue.put_back(batch[index] for index in order[position + 1 :])
        return {index: batch[index] for index in order[:position]}

    def worker_lost(self, name: str, ticket: int, reason: str) -> list[Command]:
        """Replace a worker whose actor is gone, not only its process (`ticket` 0: it was idle).

        It is unknown which record was running, so the records of its batch run again one by one.
        """
        if name in self.bench:
            return [*self._lose_bench(name), *self._feed_benches()]
        slot = self._slots.get(name)
        awaited = {SlotState.BUSY: slot.ticket, SlotState.IDLE: 0} if slot is not None else {}
        if slot is None or ticket != awaited.get(slot.state):
            return []
        self.bench.withdraw(slot.ticket)
        commands = self._dispatch.recall(name)
        commands += self._break_all(name, self._slots.take(name), Cause.LOST, reason)
        return [*commands, *self._replace(name)]

    def _break_all(
        self, name: str, batch: Mapping[int, Task], cause: Cause, reason: str
    ) -> list[Command]:
        """Deal with records that got no answer, where it is unknown which of them was running."""
        if self.draining:
            self._dispatch.queue.put_back(batch.values())
            return []
        if len(batch) > 1:
            self._dispatch.alone.extend(batch.values())
            return []
        return [
            command
            for index, task in batch.items()
            for command in self._count_crash(name, task, WorkerFailure(index, cause, reason))
        ]

    def _count_crash(self, name: str, task: Task, failure: WorkerFailure) -> list[Command]:
        """Count a crash of a record; convict it if it ran alone on a fresh worker."""
        slot = self._slots[name]
        was_fresh, slot.fresh = slot.fresh, False
        verdict = self._dispatch.crash_counts.count_crash(
            task, failure, slot.place, fresh=was_fresh
        )
        return [] if verdict is None else [Record((verdict,))]

    def _replace(self, name: str) -> list[Command]:
        """Start a successor of a worker if records are left; it runs the next quarantined record first."""
        if self.draining or (self.finished and not self.grows):
            self._slots.enter(name, SlotState.STARTING)
            self._slots[name].fresh = False
            return []
        start = self._restart(name)
        self._dispatch.choose_quarantined(name)
        return [start]

    def _restart(self, name: str) -> StartWorker:
        slot = self._slots[name]
        self._slots.enter(name, SlotState.STARTING)
        slot.fresh = False
        if slot.moves_to is not None:
            slot.place, slot.moves_to = slot.moves_to, None
        return StartWorker(name)

    def wake(self) -> list[Command]:
        """Give batches to the workers that are idle while records wait (after another worker's death),
        then a second batch to the workers that have one. Called after all news of a step."""
        commands = self._feed_benches()
        if not self._dispatch.has_waiting:
            return commands
        for name in self._slots.idle():
            commands.extend(self._feed(name))
        return commands if self.draining else [*commands, *self._dispatch.follow_all()]

    def _feed(self, name: str) -> list[Command]:
        slot = self._slots[name]
        self._slots.enter(name, SlotState.IDLE)
        if self.draining:
            return []
        self._dispatch.choose_quarantined(name)
        if slot.quarantined is not None and not slot.fresh:
            return [self._restart(name)]
        return self._dispatch.give(name)
