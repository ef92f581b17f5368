"""A lookout that follows a driver and tells the rules of its events and commands.

Comes in: the events and commands that `histories.watched` tells of. Goes out: nothing, or `Broken`.
`histories.world` makes a `Lookout` for each driver of a history.
"""

from collections.abc import Iterable, Sequence

from ray_precheck.runtime.driver import Machines
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
from ray_precheck.runtime.scheduling.queue import bench_threads
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.schema.task import BENCH, BatchReport, Cause, DeviceSlot, Done, Task
from scripts.histories.actors import Machine
from scripts.histories.rules import PendingCall, Rules, require
from scripts.histories.stages import Transfers

# A worker has one batch in work, and one whose arguments are fetched meanwhile.
_MOST_EACH = 2
# Appends that the writer may have; pieces that finish meanwhile wait for the next append.
_MOST_APPENDS = 4
# A transfer that is expected to take less may wait behind another one from its machine.
_SHORT_S = 0.2


class Lookout:
    """One life of a driver, as the rules see it.

    `calls` are the batches that were sent and neither answered nor forgotten, by their ticket.
    `doubles_next`: the next answer is heard a second time.
    """

    def __init__(self, machine: Machine, plan: Sequence[Task]) -> None:
        cast = machine.cast
        self.machine = machine
        self.rules = Rules({task.index for task in plan}, cast.with_backward)
        self.transfers = Transfers(machine.layout.most_bytes)
        self.calls: dict[int, PendingCall] = {}
        self.forgotten: set[int] = set()
        self.places: dict[str, str] = {}
        self.given_up: set[str] = set()
        self.doubles_next = False
        self.prepared: dict[int, frozenset[int]] = {}
        self.ready_benches: set[str] = set()
        self._lent: dict[str, int] = {}
        self._due: list[Done] = []
        self.driver_machines: Machines | None = None
        machine.on_open = self._opened
        machine.on_append = self._handed
        machine.is_forgotten = self.forgotten.__contains__

    # The calls of the driver's actors.

    def _opened(self, slot: DeviceSlot) -> None:
        require(not self.rules.draining, "a worker is started while draining")
        layout = self.machine.layout
        self.rules.started(layout.slots * layout.nodes + layout.benches)
        if slot.kind == BENCH:
            self.ready_benches.discard(slot.label)
        else:
            self.places[slot.label] = slot.place
            self.given_up.discard(slot.label)

    def _handed(self, finished: Sequence[Done]) -> None:
        """Check that the pieces that the writer gets are due, each of them once."""
        self.machine.files.handed(finished)
        for done in finished:
            for position, each in enumerate(self._due):
                if each is done:
                    del self._due[position]
                    break
            else:
                # Pieces that a dead writer did not acknowledge are handed over again.
                require(self.rules.is_settled(done.index), "something is written that is not due")

    def settled(self, finished: Sequence[Done]) -> None:
        """Expect pieces that need no run to be handed over."""
        self._due.extend(finished)

    def step_ended(self, appends: int) -> None:
        """Check that no piece is late, and that no bench worker is idle while a transfer waits.

        `appends` is how many appends the writer has not answered; behind several of them a piece may
        wait.
        """
        names = [done.index for done in self._due]
        late = names and appends < _MOST_APPENDS
        require(not late, f"finished and not handed to the writer: {names}")
        if not self.rules.draining and self.transfers.is_waiting():
            idle = [n for n in {self._node(label) for label in self._benches()} if self._free(n)]
            require(not idle, f"what a device has made waits, and a bench worker on {idle} too")

    def ended(self) -> None:
        """Check at the end that every record is settled and nothing is left."""
        require(not self._due, "finished, and not all is handed to the writer")
        require(not self.calls, "finished, and a worker is not")
        require(not self.prepared, "files are prepared that nobody needs")
        require(not self.transfers.made, "what devices have made lies about")
        require(not self.rules.in_flight, "finished with records in flight")
        require(not self.rules.pending, f"never settled: {sorted(self.rules.pending)}")

    # The commands that the driver carries out.

    def carries_out(self, commands: Sequence[Command], scheduler: Scheduler) -> None:
        """Check commands before they are carried out."""
        for command in commands:
            match command:
                case SendBatch():
                    self._sent(command, scheduler)
                case Prepare(_, ticket, tasks):
                    require(not self.rules.draining, "files are prepared while draining")
                    require(ticket not in self.prepared, "a ticket is prepared twice")
                    indices = frozenset(task.index for task in tasks)
                    require(self._reserved().isdisjoint(indices), "a record is prepared twice")
                    self.prepared[ticket] = indices
                case Forget(ticket):
                    self._forget(ticket)
                case GiveUpDevice(slot, _):
                    self.machine.say("{} is given up", slot)
                    self.given_up.add(slot)
                    self.ready_benches.discard(slot)
                case Record(results):
                    self._due.extend(results)
                case StartWorker(_):
                    pass

    def _forget(self, ticket: int) -> None:
        self.prepared.pop(ticket, None)
        call = self.calls.pop(ticket, None)
        if (
            call is not None
        ):  # The batch waits for its files, or behind the batch that broke its worker.
            self.forgotten.add(ticket)
            self.rules.in_flight.difference_update(task.index for task in call.tasks)
            if call.batch is not None:
                self.transfers.working.discard(call.batch.transfer)
        self.rules.check_whole(self.transfers.forget(ticket))

    def _reserved(self, sending: int = 0) -> set[int]:
        """Return the records whose files are on their way for a batch that was not sent yet."""
        kept = [
            indices
            for ticket, indices in self.prepared.items()
            if ticket not in self.calls and ticket != sending
        ]
        return set().union(*kept)

    def _of(self, label: str) -> list[PendingCall]:
        return [call for call in self.calls.values() if call.slot == label]

    def _sent(self, batch: SendBatch, scheduler: Scheduler) -> None:
        label, has = batch.slot, self._of(batch.slot)
        self.machine.say("{} is sent {} ({})", label, batch.tasks, batch.stage.value)
        worker = self.machine.worker_of(label)
        require(worker is not None, f"{label} gets a batch and has no worker")
        require(len(has) < _MOST_EACH, f"{label} gets more than {_MOST_EACH} batches")
        kept = self.transfers.waiting() | self._reserved(batch.ticket)
        if label in self._benches():
            self._sent_to_bench(batch, scheduler, has)
            kept -= {task.index for task in batch.tasks} if batch.stage is Stage.BENCH else set()
            call = PendingCall(label, self._node(label), batch=batch)
            self.rules.sent_to_bench(batch, kept)
        else:
            assert worker is not None
            process = worker.body.process
            require(process is not None, f"{label} gets a batch and has no process")
            place = self.places[label]
            is_fresh = not has and process is not None and not process.used
            call = PendingCall(label, place, is_fresh, batch)
            elsewhere = any(
                other != place and each not in self.given_up and each in self._devices()
                for each, other in self.places.items()
            )
            self.rules.sent(call, elsewhere, kept)
        if batch.stage is Stage.DEVICE:
            self.transfers.promise(batch)
        self.calls[batch.ticket] = call

    def _sent_to_bench(
        self, batch: SendBatch, scheduler: Scheduler, has: Sequence[PendingCall]
    ) -> None:
        label, layout = batch.slot, self.machine.layout
        require(label in self.ready_benches, f"{label} gets a batch and is not ready")
        threads = max(bench_threads(task.cost_s) for task in batch.tasks)
        if batch.stage is Stage.BENCH:
            is_ample = self.transfers.count_waiting() >= len(self.ready_benches)
            made = self.transfers.take(batch)
            bench_s = sum(map(scheduler.model.bench_s, batch.tasks))
            may_wait = is_ample or made.node != self._node(label) or bench_s < _SHORT_S
            require(not has or may_wait, f"{label} gets a second long batch from its machine")
            require(not has or threads == 1, f"{label} gets a huge batch and is busy")
        else:
            require(layout.bench_suffices, "a bench gets whole records, and has no device")
            require(batch.stage is Stage.CHECK, "a bench is to be a device")
            needs_files = self.machine.needs_files(self._node(label))
            require(not has or needs_files, f"{label} gets a second batch without need")
        if not has:
            # It may compute with the cores of idle bench workers on its machine.
            free = self._free(self._node(label))
            require(free >= 1, f"{label} gets a batch, and its core is lent")
            self._lent[label] = min(threads - 1, free - 1)

    def _benches(self) -> dict[str, DeviceSlot]:
        return {} if self.driver_machines is None else self.driver_machines.benches

    def _devices(self) -> dict[str, DeviceSlot]:
        return {} if self.driver_machines is None else self.driver_machines.slots

    def _node(self, label: str) -> str:
        return self._benches()[label].node_id

    def _free(self, node: str) -> int:
        """Return how many bench workers on a node are idle and have not lent their core."""
        benches = self._benches()
        busy = {call.slot for call in self.calls.values()} & benches.keys()
        here = {n for n in self.ready_benches & benches.keys() if benches[n].node_id == node}
        return len(here - busy) - sum(n for label, n in self._lent.items() if label in busy & here)

    # The events that the driver tells its scheduler of.

    def answered(
        self, scheduler: Scheduler, name: str, ticket: int, report: BatchReport
    ) -> list[Command]:
        """Check the answer to a batch, and what the scheduler does with it.

        The scheduler is `watched`, so it is told of the answer as a plain `Scheduler`.
        """
        call = self.calls.pop(ticket, None)
        if call is None or call.batch is None:
            commands = Scheduler.batch_done(scheduler, name, ticket, report)
            require(not commands, "an answer counts that came too late")
            return commands
        self.machine.say("{} answers {}", name, [done.index for done in report.results])
        self.prepared.pop(ticket, None)
        if report.failure is not None:
            why = report.failure.cause.name
            self.machine.say("{} broke it: {}", report.failure.index, why)
        is_bench = name in scheduler.bench
        if is_bench:
            self._landed(call)
            had = [call, *self._of(name)] if report.failure is not None else [call]
            if report.failure is not None:
                self.ready_benches.discard(name)
                self.rules.reasons_to_start += 1
                for other in had[1:]:
                    self.transfers.working.discard(other.batch.transfer)  # type: ignore[union-attr]
        elif call.batch.stage is Stage.DEVICE:
            worker = self.machine.worker_of(name)
            self.transfers.arrive(call.batch, worker.node_id if worker else "", report.measured)
        commands = Scheduler.batch_done(scheduler, name, ticket, report)
        if self.doubles_next or is_bench:
            self.doubles_next = False
            again = Scheduler.batch_done(scheduler, name, ticket, report)
            require(not again, "an answer counts twice")
        if not is_bench:
            late = Scheduler.worker_lost(scheduler, name, ticket, "late")
            require(not late, "a loss counts that came too late")
        if is_bench:
            tasks = [task for each in had for task in each.tasks]
            self.rules.bench_ended(tasks, report, commands)
        else:
            self.rules.ended(call, report, "", commands)
        return commands

    def _landed(self, call: PendingCall) -> None:
        """Note that a bench worker has finished or lost a batch."""
        if all(_threads(each) == 1 for each in self._of(call.slot)):
            self._lent.pop(call.slot, None)
        if call.batch is not None:
            self.transfers.working.discard(call.batch.transfer)

    def _take(self, label: str) -> list[PendingCall]:
        """Take the batches of a slot, as none of them will be answered."""
        taken = self._of(label)
        for call in taken:
            assert call.batch is not None
            del self.calls[call.batch.ticket]
            self.forgotten.add(call.batch.ticket)
            self.prepared.pop(call.batch.ticket, None)
            self.rules.in_flight.difference_update(task.index for task in call.tasks)
        return taken

    def lost(self, label: str, reason: str, cause: Cause, commands: Sequence[Command]) -> None:
        """Check the commands after the loss of a worker, with its batches."""
        self.machine.say("{} is lost: {}", label, reason)
        taken = self._take(label)
        self.rules.reasons_to_start += 1
        if label in self._benches() or label in self.ready_benches:
            self._benches_lost(label, taken, commands)
        elif taken:
            first = taken[0]
            first.cause = cause
            assert first.batch is not None
            self.transfers.forget(first.batch.ticket)
            self.rules.ended(first, None, reason, commands)
            for behind in taken[1:]:
                assert behind.batch is not None
                self.transfers.forget(behind.batch.ticket)

    def _benches_lost(
        self, label: str, taken: Sequence[PendingCall], commands: Sequence[Command]
    ) -> None:
        self.ready_benches.discard(label)
        for call in taken:
            self._landed(call)
        self.rules.bench_ended([t for each in taken for t in each.tasks], None, commands)

    def place_lost(self, place: str, labels: Iterable[str], commands: Sequence[Command]) -> None:
        """Check the commands after the loss of a machine, with its bench workers."""
        taken = [call for label in labels for call in self._take(label)]
        for call in taken:
            self.ready_benches.discard(call.slot)
            self._landed(call)
        for label in labels:
            self.ready_benches.discard(label)
        self.rules.reasons_to_start += 2
        self.rules.bench_ended([t for each in taken for t in each.tasks], None, commands)


def _threads(call: PendingCall) -> int:
    return max(bench_threads(task.cost_s) for task in call.tasks)
