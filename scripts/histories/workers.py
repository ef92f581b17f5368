"""The workers and the nodes of a simulated driver, and what befalls them.

Comes in: the scheduler's commands. Goes out: its events. Every command is checked against the
`Rules`. Does what `runtime/driver.py` and the workers do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ray_precheck.runtime.places.devices import move_slots
from ray_precheck.runtime.scheduling.bench_stage import BenchStage
from ray_precheck.runtime.scheduling.commands import (
    Command,
    Forget,
    GiveUpDevice,
    Prepare,
    Record,
    SendBatch,
    StartWorker,
)
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.workers.messages import Stage
from ray_precheck.schema.casualty import BatchReport, Cause, MeasuredTask
from ray_precheck.schema.result import TaskResult
from ray_precheck.schema.task import DeviceSlot, Task
from scripts.histories.answers import TAINTS, Cast, Choices, Say, broken
from scripts.histories.benches import Benches
from scripts.histories.layout import BAD_PLACE, Layout, make_node
from scripts.histories.rules import TIMEOUT_S, Broken, Flight, Rules, require
from scripts.histories.stages import Parcels, Shipments


@dataclass(slots=True)
class Process:
    """A process that checks records; `actor_lost`: the whole worker is gone and nobody knows yet."""

    used: bool = False
    tainted: bool = False
    killed: bool = False
    actor_lost: bool = False


class Crew:
    """What one driver has: a scheduler, workers by slot, and what is in flight.

    `record` is handed the results that are to be written.
    """

    def __init__(
        self,
        cast: Cast,
        choices: Choices,
        layout: Layout,
        plan: Sequence[Task],
        record: Callable[[tuple[TaskResult, ...]], None],
        say: Say,
    ) -> None:
        self.cast = cast
        self.choices = choices
        self.layout = layout
        self._record = record
        self.say = say
        self.rules = Rules({task.index for task in plan}, cast.with_backward)
        self.parcels = Parcels(layout.most_bytes)
        self.shipments = Shipments(layout.room_bytes)
        self.nodes = [make_node(i) for i in range(layout.nodes)]
        self.nodes_made = layout.nodes
        self.alive = self.nodes_seen = [node.node_id for node in self.nodes]
        self.flights: dict[str, Flight] = {}
        self._behind: dict[str, Flight] = {}
        self.processes: dict[str, Process | None] = {}
        self._homes: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self.given_up: set[str] = set()
        self._halted: set[str] = set()
        self.failing_starts: dict[str, int] = {}
        self._ghosts: list[tuple[str, int, BatchReport]] = []
        self.doubles_next = False
        self.ends_what_waits = layout.ends_what_waits
        slots = layout.device_slots(self.nodes)
        self.slots = {slot.label: slot for slot in slots}
        self.benches = Benches(self, layout.benches, slots, self.nodes)
        bench = {label: slot.place for label, slot in self.benches.slots.items()}
        self.scheduler = Scheduler(
            plan,
            {slot.label: slot.place for slot in slots},
            TIMEOUT_S,
            cast.with_backward,
            bench=BenchStage(bench, layout.most_bytes),
            bench_suffices=layout.bench_suffices,
            ahead=self._ahead(),
            machines={slot.label: slot.node_id for slot in slots if slot.place != slot.node_id},
        )
        self.carry_out(self.scheduler.start())
        self.slots = {label: self.slots[label] for label in self.flights}
        if layout.benches_are_first:
            self.benches.deliver_starts()

    @property
    def device_slots(self) -> list[DeviceSlot]:
        """The slots of the devices, where they are now."""
        return list(self.slots.values())

    def _ahead(self) -> frozenset[str]:
        slots = [*self.slots.values(), *self.benches.slots.values()]
        return frozenset(slot.label for slot in slots if self.layout.needs_files(slot))

    def elsewhere(self, batch: SendBatch) -> set[int]:
        """Return the records that wait, other than for a batch that is sent now."""
        return self.parcels.waiting() | self.shipments.reserved(batch.ticket)

    def check_end(self) -> None:
        """Every record is settled, nothing is left over, and late answers are none."""
        self._hear_ghosts()
        self.benches.end()
        require(self.shipments.is_empty, "files are prepared that nobody needs")
        require(not self.parcels.made, "what devices have made lies about")
        require(not self.rules.in_flight, "finished with records in flight")
        require(not self.rules.pending, f"never settled: {sorted(self.rules.pending)}")

    def carry_out(self, commands: Sequence[Command]) -> None:
        """Act on commands as the driver does; none may ask for the impossible."""
        for command in commands:
            if isinstance(command, Record):
                self._record(command.results)
            elif isinstance(command, SendBatch):
                at_bench = command.slot in self.benches.slots
                (self.benches.send if at_bench else self._send)(command)
            elif isinstance(command, StartWorker):
                self._start(command.slot)
            elif isinstance(command, Prepare):
                require(not self.rules.draining, "files are prepared while draining")
                self.shipments.prepare(command)
            elif isinstance(command, Forget):
                self.benches.forget(command.ticket)
                self._forget(command.ticket)
                self.shipments.forget(command.ticket)
                self.rules.check_whole(self.parcels.forget(command.ticket))
            elif isinstance(command, GiveUpDevice):
                self.say("{} is given up", command.slot)
                if command.slot in self.benches.slots:
                    self.benches.dismiss(command.slot)
                    continue
                self.given_up.add(command.slot)
                self.dismiss(command.slot)

    def _start(self, label: str) -> None:
        require(not self.rules.draining, "a worker is started while draining")
        self.rules.started(len(self.slots) + self.layout.benches)
        if label in self.benches.slots:
            self.benches.start(label)
            return
        slot = self.slots[label]
        if self._homes.get(label) != slot.node_id:
            self.dismiss(label)
        require(label not in self.flights, f"{label} is started while it is busy")
        self._homes[label], self._places[label] = slot.node_id, slot.place
        self.processes[label] = None
        self.given_up.discard(label)
        self.flights[label] = Flight(label, slot.place)

    def dismiss(self, label: str) -> None:
        """Kill a worker and forget what it has in flight."""
        for flight in (self.flights.pop(label, None), self._behind.pop(label, None)):
            if flight is not None and flight.batch is not None:
                self._land(flight.batch)
                self.rules.in_flight.difference_update(task.index for task in flight.tasks)
        self.processes[label] = None

    def _forget(self, ticket: int) -> None:
        """A worker does not begin what is behind the batch that broke it."""
        waiting = [*self._behind.items(), *self.flights.items()]
        for label, flight in waiting:
            if flight.batch is not None and flight.batch.ticket == ticket:
                begun = label not in self._behind and self.processes[label] is not None
                require(not begun, f"{label} does what was forgotten")
                del (self._behind if label in self._behind else self.flights)[label]
                self.rules.in_flight.difference_update(task.index for task in flight.tasks)

    def _send(self, batch: SendBatch) -> None:
        label = batch.slot
        process = self.processes[label]
        at_work = self.flights.get(label)
        require(label not in self._behind, f"{label} gets a third batch")
        if process is None or (at_work is not None and at_work.batch is None):
            raise Broken(f"{label} gets a batch and has no process")
        place = self._places[label]
        flight = Flight(label, place, not process.used and at_work is None, batch)
        elsewhere = any(
            other != place and each not in self.given_up for each, other in self._places.items()
        )
        fresh = "fresh" if flight.fresh else "used"
        self.say("{} ({}) is sent {}", label, fresh, batch.tasks)
        self.rules.sent(flight, elsewhere, self.elsewhere(batch))
        if batch.stage is Stage.DEVICE:
            self.parcels.promise(batch)
        self.shipments.send(batch, self.layout.needs_files(self.slots[label]))
        (self.flights if at_work is None else self._behind)[label] = flight

    def _land(self, batch: SendBatch) -> None:
        """What was prepared for a batch is used; what its device made is not there."""
        self.shipments.forget(batch.ticket)
        self.parcels.forget(batch.ticket)

    def due(self) -> list[Callable[[], None]]:
        """Return the starts and batches that may come to their end."""
        found: list[Callable[[], None]] = [
            partial(self.deliver, label)
            for label, flight in self.flights.items()
            if flight.batch is None or self.shipments.has_arrived(flight.batch.ticket)
        ]
        if found and self.layout.benches_are_slow:
            return found
        return [*found, *self.benches.due()]

    def news(self) -> list[Callable[[], None]]:
        """Return what may happen beside answers of workers."""
        found: list[Callable[[], None]] = []
        if self.nodes_seen != self.alive:
            found.append(self.see_nodes)
        if self._ghosts:
            found.append(self._hear_ghosts)
        return found

    def deliver(self, label: str) -> None:
        """Let a start or a batch come to its end."""
        flight = self.flights[label]
        if flight.batch is None:
            del self.flights[label]
            self.carry_out(self._started(label))
            return
        process = self.processes[label]
        assert process is not None
        if self._homes[label] not in self.alive or process.actor_lost:
            flight.lost = flight.lost or "its node died"
        report = self._work(flight, process)
        if flight.lost or report is None:
            if report is not None:
                self._ghosts.append((label, flight.batch.ticket, report))
            self._lose(flight, flight.lost or "its worker died")
        else:
            self._answer(flight, report)

    def _started(self, label: str) -> list[Command]:
        failing = self.failing_starts.get(label, 0)
        if failing or self._homes[label] not in self.alive:
            self.failing_starts[label] = max(0, failing - 1)
            self.rules.reasons_to_start += 1
            self.say("{} does not start", label)
            return self.scheduler.start_failed(label, "no driver")
        self.processes[label] = Process()
        self.say("{} is ready", label)
        commands = self.scheduler.worker_ready(label)
        if self.doubles_next:
            self.doubles_next = False
            require(not self.scheduler.worker_ready(label), "a worker is ready twice")
            require(not self.scheduler.start_failed(label, "late"), "a start fails that did not")
        return commands

    def _work(self, flight: Flight, process: Process, most: int = 99) -> BatchReport | None:
        """Run a batch as a process does; None where its worker dies with it."""
        assert flight.batch is not None
        results: list[TaskResult] = []
        measured: list[MeasuredTask] = []
        is_half = flight.batch.stage is Stage.DEVICE
        most = 0 if flight.slot in self._halted else most
        is_bad = self.layout.has_bad_place and self._places[flight.slot] == BAD_PLACE
        for position, task in enumerate(flight.tasks[:most]):
            process.used = True
            how: Cause | str | None = Cause.CRASHED
            if process.killed or flight.killed_at == position:
                how = Cause.KILLED
            elif not (process.tainted or is_bad):
                how = self.cast.run(task.index)
            if how is Cause.LOST:
                return None
            if how is Cause.OVER_BUDGET and is_half:
                how = None
            if isinstance(how, Cause) and how is not Cause.SILENT:
                return replace(broken(results, task, how), measured=tuple(measured))
            if how is not Cause.SILENT and is_half and self.cast.measures(task.index):
                measured.append(MeasuredTask(task.index, task.nbytes // (1 + task.index % 3)))
            elif how is not Cause.SILENT:
                results.append(self.cast.answer(task.index))
            process.tainted = how is TAINTS
        return BatchReport(tuple(results), measured=tuple(measured))

    def _answer(self, flight: Flight, report: BatchReport) -> None:
        batch, label, casualty = flight.batch, flight.slot, report.casualty
        assert batch is not None
        self.say("{} answers {}", label, report.results)
        del self.flights[label]
        if label in self._behind:
            self.flights[label] = self._behind.pop(label)
        if casualty is not None:
            self.say("{} broke it: {}", casualty.index, casualty.cause.name)
        self.shipments.forget(batch.ticket)
        if batch.stage is Stage.DEVICE:
            self.say("{} has made {}", label, [each.index for each in report.measured])
            self.parcels.arrive(batch, self._homes[label], report.measured)
        commands = self.scheduler.batch_done(label, batch.ticket, report)
        if self.doubles_next:
            self.doubles_next = False
            self._ghosts.append((label, batch.ticket, report))
            again = self.scheduler.batch_done(label, batch.ticket, report)
            require(not again, "an answer counts twice")
        if casualty is not None:
            self.processes[label] = None
        self.rules.ended(flight, report, "", commands)
        self.carry_out(commands)
        lost = self.processes[label] is None and label in self.flights
        require(not (lost and self.flights[label].batch), f"{label} is to do what it will not")

    def _lose(self, flight: Flight, reason: str) -> None:
        """The whole worker is gone."""
        batch, label = flight.batch, flight.slot
        assert batch is not None
        self.say("{} is lost: {}", label, reason)
        self.dismiss(label)
        self._homes.pop(label)
        commands = self.scheduler.worker_lost(label, batch.ticket, reason, flight.cause)
        self.rules.ended(flight, None, reason, commands)
        self.carry_out(commands)

    def _hear_ghosts(self) -> None:
        """Let answers come that were given up waiting for, or that were heard already."""
        for label, ticket, report in self._ghosts:
            commands = self.scheduler.batch_done(label, ticket, report)
            commands += self.scheduler.worker_lost(label, ticket, "late")
            require(not commands, "an answer counts that came too late")
        self._ghosts.clear()

    def see_nodes(self) -> None:
        """Look for nodes that have left or joined, as the driver does."""
        before, self.nodes_seen = self.nodes_seen, self.alive
        alive = self.alive
        self.benches.see_nodes(before, self.nodes)
        for slot in move_slots(list(self.slots.values()), self.nodes):
            label = slot.label
            self.say("{} moves to {}", label, slot.node_id)
            is_gone = self.slots[label].node_id not in alive
            self.slots[label] = slot
            if is_gone:
                self._abandon(label)
            self.rules.reasons_to_start += 2
            self.carry_out(self.scheduler.revive(label, slot.place))
        for label, slot in self.slots.items():
            if slot.node_id in before and slot.node_id not in alive:
                self._abandon(label)
        self.scheduler.ahead = self._ahead()

    def _abandon(self, label: str) -> None:
        """Wait no longer for a worker whose node is dead, as the driver does."""
        self.say("{} is abandoned", label)
        flight = self.flights.get(label)
        self.dismiss(label)
        self._homes.pop(label, None)
        self.given_up.add(label)
        self.rules.reasons_to_start += 1  # the suspect that it was started for goes elsewhere
        commands = self.scheduler.slot_lost(label, "its node died")
        require(not any(isinstance(c, StartWorker) for c in commands), "a start on a dead node")
        if flight is not None and flight.batch is not None:
            flight.cause = Cause.LOST  # whatever else was the matter with it
            self.rules.ended(flight, None, "its node died", commands)
        self.carry_out(commands)

    def drain(self) -> None:
        """Stop on request: batches finish, or are ended, or never answer."""
        self.say("the run is asked to stop")
        self.scheduler.drain()
        self.rules.draining = True
        busy = sorted([*(flight.slot for flight in self.busy()), *self.benches.busy()])
        require(sorted(self.scheduler.busy_slots) == busy, "other slots are busy than have a batch")
        for label in [*self.flights, *self._behind]:
            how = self.choices.below(3)
            if label not in self.flights:
                continue
            batch = self.flights[label].batch
            if batch is not None and not self.shipments.has_arrived(batch.ticket):
                continue
            if batch is None or how == 0:
                self.deliver(label)
            elif how == 1:
                self._halt(label)
        self.benches.drain()
        for label, slot in self.slots.items():
            require(not self.scheduler.revive(label, slot.place), "revived while draining")
        require(not self.scheduler.wake(), "a command while draining")
        left = sum(len(f.tasks) for f in [*self.flights.values(), *self._behind.values()])
        left += self.benches.in_flight()
        require(self.scheduler.in_flight == left, "the scheduler has lost count")
        require(self.scheduler.finished == (left == 0), "finished, or not, while draining")

    def _halt(self, label: str) -> None:
        """End a batch: its worker hands over what is finished, unless it is gone."""
        flight, process = self.flights[label], self.processes[label]
        if process is None or process.actor_lost or flight.lost:
            return
        report = self._work(flight, process, self.choices.below(len(flight.tasks) + 1))
        self._halted.add(label)
        if report is not None:
            self._answer(flight, report)

    def busy(self) -> list[Flight]:
        """Return the batches that devices have."""
        return [flight for flight in self.flights.values() if flight.batch is not None]
