"""Which worker runs what, and what becomes of records that break theirs: events in, commands out.

Pure: no Ray, no clock, no I/O. The driver turns Ray's news into calls of `Scheduler` and carries
out the commands that they return. Workers pull: each has at most one batch in flight, sized by
estimated cost, so that a slow device does not hold the run.

A record is always in exactly one place: the queue, among those that must run alone, among the
suspects, in one batch (of a device or of a bench worker, or reserved for one), waiting for its
bench, or recorded. A worker that breaks says which record it was at; that one becomes a suspect and
the rest of the batch goes back to the queue. A suspect runs alone on a fresh worker, and only what
happens there can make it guilty. A bench that breaks its worker blames nobody: the record is
checked again, device and bench together.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field

from ray_precheck.runtime.scheduling.bench_stage import BenchStage, Parcel
from ray_precheck.runtime.scheduling.blame import START_ATTEMPTS, Blame, Rows
from ray_precheck.runtime.scheduling.commands import (
    Command,
    Forget,
    GiveUpDevice,
    Record,
    StartWorker,
)
from ray_precheck.runtime.scheduling.cost_model import CostModel
from ray_precheck.runtime.scheduling.dispatch import Dispatch
from ray_precheck.runtime.scheduling.slots import SlotState, SlotTable
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.runtime.scheduling.task_queue import TaskQueue
from ray_precheck.schema.casualty import BatchReport, Casualty, Cause
from ray_precheck.schema.task import Task


@dataclass(slots=True)
class Scheduler:
    """The state of a run. `tasks` are in the order to run them, the costly ones first.

    `places` says for each slot by its label what it shares its fate with. `rows` writes
    the rows of records that no worker answers for.
    `bench` are the workers for benches, where there are any; with `bench_suffices` they may also do
    whole records (whose results were captured). `ahead` are the slots that captured files have to be
    sent to, which is done one batch ahead; `machines` says where slots are whose place is not their
    machine.
    """

    tasks: Iterable[Task]
    places: Mapping[str, str]
    timeout_s: float
    rows: Rows
    draining: bool = False
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
            Blame(self.rows),
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
        """Begin: start a worker on every slot, but on no more than there are records.

        Where these slots share one place, one elsewhere is started too: the place may be bad.
        """
        names, most = list(self._slots), max(1, len(self._dispatch.queue))
        wanted, others = names[:most], names[most:]
        places = {self._slots[name].place for name in wanted}
        if self._dispatch.queue and len(places) == 1:
            wanted += [name for name in others if self._slots[name].place not in places][:1]
        self._slots.keep_only(wanted)
        return [StartWorker(name) for name in [*wanted, *self.bench.names]]

    def send_files_to(self, slots: frozenset[str]) -> None:
        """Know from now on which slots captured files have to be sent to."""
        self._dispatch.ahead = slots

    def drain(self) -> None:
        """Send nothing more; what is in flight may finish."""
        self.draining = True

    def add_slot(self, name: str, place: str) -> list[Command]:
        """A device has joined."""
        if name in self._slots or self.draining:
            return []
        self._slots.add(name, place)
        return [StartWorker(name)]

    def add_bench(self, name: str, place: str) -> list[Command]:
        """A core has joined that can run benches."""
        if name in self.bench or self.draining:
            return []
        self.bench.add(name, place)
        return [StartWorker(name)]

    def place_lost(self, place: str, benches: Iterable[str]) -> list[Command]:
        """A machine is gone, with these bench workers and what devices there have made."""
        commands = self._check_again(self.bench.lose_waiting(place))
        for name in benches:
            commands += self._check_lost(self.bench.remove(name))
        return [*commands, *self._feed_benches()]

    def worker_ready(self, name: str) -> list[Command]:
        """A fresh worker has started and waits for work; without a start to wait for: nothing."""
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
        """A worker could not start: try again a few times, then give the device up."""
        if name in self.bench:
            return [] if self.draining else self._bench_start_failed(name, reason)
        slot = self._slots.get(name)
        if slot is None or slot.state is not SlotState.STARTING or self.draining:
            return []
        slot.failed_starts += 1
        if slot.failed_starts < START_ATTEMPTS:
            return [StartWorker(name)]
        self._slots.enter(name, SlotState.GIVEN_UP)
        return [*self._dispatch.give_back(name), GiveUpDevice(name, reason)]

    def _bench_start_failed(self, name: str, reason: str) -> list[Command]:
        if not self.bench.is_starting(name):
            return []
        if self.bench.start_failed(name):
            return [StartWorker(name)]
        return [GiveUpDevice(name, reason), *self._feed_benches()]

    def slot_lost(self, name: str, reason: str) -> list[Command]:
        """The machine of a slot is gone: nothing more happens there until it is revived."""
        slot = self._slots.get(name)
        if slot is None:
            return []
        self.bench.withdraw(slot.ticket)
        commands = self._dispatch.recall(name)
        commands += self._break_all(name, self._slots.take(name), Cause.LOST, reason)
        self._slots.enter(name, SlotState.GIVEN_UP)
        return [*commands, *self._dispatch.give_back(name)]

    def revive(self, name: str, place: str) -> list[Command]:
        """A slot has a new place, or a device that was given up is there again.

        What its worker has finishes where it is.
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
        if name in self.bench:
            return self._bench_done(name, ticket, report)
        slot = self._slots.get(name)
        if slot is None or not slot.batch or ticket != slot.ticket:
            return []
        batch = self._slots.take(name)
        commands = self._record_answers(batch, report)
        if slot.stage is Stage.DEVICE:
            commands += self._pass_on(name, batch, report)
        casualty = report.casualty
        if casualty is not None:
            commands += self._dispatch.recall(name)
        broken = batch.get(casualty.index) if casualty is not None else None
        if broken is not None:
            batch = self._requeue_after(broken.index, batch)
        if batch:
            silent = "its worker gave no result for it"
            commands += self._break_all(name, batch, Cause.SILENT, silent)
        if casualty is not None and broken is not None:
            commands += self._strike(name, broken, casualty)
        slot.fresh = False
        if self._slots.advance(name):
            return commands if self.draining else [*commands, *self._dispatch.follow(name)]
        if casualty is not None or slot.moves_to is not None:
            return [*commands, *self._replace(name)]
        return [*commands, *self._feed(name)]

    def _record_answers(self, batch: dict[int, Task], report: BatchReport) -> list[Command]:
        """Take what is finished out of a batch; learn from what it has taken."""
        answers = {result.index: result for result in report.results if result.index in batch}
        for index, result in answers.items():
            self.model.learn(batch.pop(index), result)
        return [Record(tuple(answers.values()))] if answers else []

    def _pass_on(self, name: str, batch: dict[int, Task], report: BatchReport) -> list[Command]:
        """Take what the device has measured out of a batch; it waits for its bench now."""
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
        parcel = Parcel(slot.ticket, machine, tasks, nbytes, report.handover_s, bench_s)
        self.bench.arrive(parcel)
        return self._feed_benches()

    def _bench_done(self, name: str, ticket: int, report: BatchReport) -> list[Command]:
        parcel = self.bench.done(name, ticket)
        if parcel is None:
            return []
        batch = {task.index: task for task in parcel.tasks}
        commands = self._record_answers(batch, report)
        casualty = report.casualty
        if casualty is None and parcel.ticket and not batch:
            self.model.learn_handover(parcel.tasks, parcel.made_s, report)
        if casualty is not None and casualty.cause is Cause.OVER_BUDGET:
            slow = batch.pop(casualty.index, None)
            if slow is not None:
                commands.append(Record((self._dispatch.blame.over_budget(slow, casualty),)))
        # The bench says nothing of the device, so nobody is blamed for what breaks it.
        self._dispatch.alone.extend(batch.values())
        if parcel.ticket:
            commands.append(Forget(parcel.ticket))
        if casualty is not None:
            commands += self._lose_bench(name)
        return [*commands, *self._feed_benches()]

    def _lose_bench(self, name: str) -> list[Command]:
        """Have a new bench worker; what the old one had is checked in one piece."""
        commands = self._check_lost(self.bench.lose(name))
        return commands if self.draining else [*commands, StartWorker(name)]

    def _check_lost(self, batches: Mapping[int, Parcel]) -> list[Command]:
        """Check what a bench worker had; a batch may still have waited for files."""
        return [*(Forget(ticket) for ticket in batches), *self._check_again(batches.values())]

    def _check_again(self, parcels: Iterable[Parcel]) -> list[Command]:
        commands: list[Command] = []
        for parcel in parcels:
            self._dispatch.alone.extend(parcel.tasks)
            commands += [Forget(parcel.ticket)] if parcel.ticket else []
        return commands

    def _feed_benches(self) -> list[Command]:
        """Give the bench workers what waits for them."""
        if self.draining:
            return []
        # Where none is left that could ever come for it, devices check what waits.
        commands = [] if self.bench.has_living else self._check_again(self.bench.lose_waiting())
        while found := self.bench.next_assignment():
            name, parcel = found
            batch = self._dispatch.order(name, parcel.tasks, Stage.BENCH, parcel.ticket)
            self.bench.assign(name, batch.ticket, parcel)
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
        """Requeue what comes after the record that broke the worker: it was not run.

        Returns what comes before: it was run, and its results are missing.
        """
        order = list(batch)
        position = order.index(broken)
        self._dispatch.queue.put_back(batch[index] for index in order[position + 1 :])
        return {index: batch[index] for index in order[:position]}

    def worker_lost(
        self, name: str, ticket: int, reason: str, cause: Cause = Cause.LOST
    ) -> list[Command]:
        """The whole worker is gone (`ticket` 0: while it was idle) and needs a successor.

        Nobody knows which record it was at, so those of its batch run again one by one.
        """
        if name in self.bench:
            return [*self._lose_bench(name), *self._feed_benches()]
        slot = self._slots.get(name)
        awaited = {SlotState.BUSY: slot.ticket, SlotState.IDLE: 0} if slot is not None else {}
        if slot is None or ticket != awaited.get(slot.state):
            return []
        self.bench.withdraw(slot.ticket)
        commands = self._dispatch.recall(name)
        commands += self._break_all(name, self._slots.take(name), cause, reason)
        return [*commands, *self._replace(name)]

    def _break_all(
        self, name: str, batch: Mapping[int, Task], cause: Cause, reason: str
    ) -> list[Command]:
        """Deal with records that got no answer, where nobody says which one was running."""
        if self.draining:
            self._dispatch.queue.put_back(batch.values())
            return []
        if len(batch) > 1:
            self._dispatch.alone.extend(batch.values())
            return []
        return [
            command
            for index, task in batch.items()
            for command in self._strike(name, task, Casualty(index, cause, reason))
        ]

    def _strike(self, name: str, task: Task, casualty: Casualty) -> list[Command]:
        """Count a strike against a record; convict it if that was on a fresh worker of its own."""
        slot = self._slots[name]
        was_fresh, slot.fresh = slot.fresh, False
        verdict = self._dispatch.blame.strike(task, casualty, slot.place, fresh=was_fresh)
        return [] if verdict is None else [Record((verdict,))]

    def _replace(self, name: str) -> list[Command]:
        """Start a successor where there is something left for it; it takes on the next suspect."""
        slot = self._slots[name]
        if self.draining or self.finished:
            self._slots.enter(name, SlotState.STARTING)
            slot.fresh = False
            return []
        start = self._restart(name)
        self._dispatch.choose_suspect(name)
        return [start]

    def _restart(self, name: str) -> StartWorker:
        slot = self._slots[name]
        self._slots.enter(name, SlotState.STARTING)
        slot.fresh = False
        if slot.moves_to is not None:
            slot.place, slot.moves_to = slot.moves_to, None
        return StartWorker(name)

    def wake(self) -> list[Command]:
        """Feed the workers that are idle while records wait (after another worker's death), then give
        those that have one batch a second one. Called after all news of a step."""
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
        self._dispatch.choose_suspect(name)
        if slot.suspect is not None and not slot.fresh:
            return [self._restart(name)]
        return self._dispatch.give(name)
