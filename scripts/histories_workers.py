"""The workers and the nodes of a simulated driver, and what befalls them.

Comes in: the scheduler's commands. Goes out: its events. Every command is checked against the
`Rules`. Does what `runtime/driver.py` and the workers do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from histories_answers import TAINTS, Cast, Choices, Say, broken
from histories_rules import TIMEOUT_S, Broken, Flight, Rules, require

from ray_precheck.runtime.commands import Command, GiveUpDevice, Record, SendBatch, StartWorker
from ray_precheck.runtime.devices import Node, move_slots, place_slots
from ray_precheck.runtime.scheduler import Scheduler
from ray_precheck.schema.casualty import BatchReport, Cause
from ray_precheck.schema.result import TaskResult
from ray_precheck.schema.task import DeviceSlot, Task

_MOST_NODES = 4
# The place that breaks every process, where a history has such a one.
_BAD_PLACE = "n1"


class Layout:
    """How many slots and nodes there are. Logical slots move between nodes, devices do not."""

    def __init__(self, choices: Choices) -> None:
        self.slots = 1 + choices.below(5)
        self.nodes = 1 + choices.below(3)
        self.is_logical = not choices.chance(5)
        self.has_bad_place = choices.chance(8)


@dataclass(slots=True)
class _Process:
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
        self._cast = cast
        self._choices = choices
        self._has_bad_place = layout.has_bad_place
        self._record = record
        self._say = say
        self._rules = Rules({task.index for task in plan}, cast.with_backward)
        self._nodes = [_node(i) for i in range(layout.nodes)]
        self._nodes_made = layout.nodes
        self._alive = self._nodes_seen = [node.node_id for node in self._nodes]
        self.flights: dict[str, Flight] = {}
        self._processes: dict[str, _Process | None] = {}
        self._homes: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._failing_starts: dict[str, int] = {}
        self._ghosts: list[tuple[str, int, BatchReport]] = []
        self._doubles_next = False
        slots = _slots(layout, self._nodes)
        self._slots = {slot.label: slot for slot in slots}
        places = {slot.label: slot.place for slot in slots}
        self.scheduler = Scheduler(plan, places, TIMEOUT_S, cast.with_backward)
        self.carry_out(self.scheduler.start())
        self._slots = {label: self._slots[label] for label in self.flights}

    def check_end(self) -> None:
        """Every record is settled, and late answers are none."""
        self._hear_ghosts()
        require(not self._rules.in_flight, "finished with records in flight")
        require(not self._rules.pending, f"never settled: {sorted(self._rules.pending)}")

    def carry_out(self, commands: Sequence[Command]) -> None:
        """Act on commands as the driver does; none may ask for the impossible."""
        for command in commands:
            if isinstance(command, Record):
                self._record(command.results)
            elif isinstance(command, SendBatch):
                self._send(command)
            elif isinstance(command, StartWorker):
                self._start(command.slot)
            elif isinstance(command, GiveUpDevice):
                self._say("{} is given up", command.slot)
                self._given_up.add(command.slot)
                self._dismiss(command.slot)

    def _start(self, label: str) -> None:
        slot = self._slots[label]
        require(not self._rules.draining, "a worker is started while draining")
        if self._homes.get(label) != slot.node_id:
            self._dismiss(label)
        require(label not in self.flights, f"{label} is started while it is busy")
        self._rules.started(len(self._slots))
        self._homes[label], self._places[label] = slot.node_id, slot.place
        self._processes[label] = None
        self._given_up.discard(label)
        self.flights[label] = Flight(label, slot.place)

    def _dismiss(self, label: str) -> None:
        self.flights.pop(label, None)
        self._processes[label] = None

    def _send(self, batch: SendBatch) -> None:
        label = batch.slot
        process = self._processes[label]
        require(label not in self.flights, f"{label} gets a batch and is busy")
        if process is None:
            raise Broken(f"{label} gets a batch and has no process")
        place = self._places[label]
        flight = Flight(label, place, not process.used, batch)
        elsewhere = any(
            other != place and each not in self._given_up for each, other in self._places.items()
        )
        fresh = "fresh" if flight.fresh else "used"
        self._say("{} ({}) is sent {}", label, fresh, batch.tasks)
        self._rules.sent(flight, elsewhere)
        self.flights[label] = flight

    def news(self) -> list[Callable[[], None]]:
        """Return what may happen beside answers of workers."""
        found: list[Callable[[], None]] = []
        if self._nodes_seen != self._alive:
            found.append(self._see_nodes)
        if self._ghosts:
            found.append(self._hear_ghosts)
        return found

    def deliver(self, label: str) -> None:
        """Let a start or a batch come to its end."""
        flight = self.flights.pop(label)
        if flight.batch is None:
            self.carry_out(self._started(label))
            return
        process = self._processes[label]
        assert process is not None
        if self._homes[label] not in self._alive or process.actor_lost:
            flight.lost = flight.lost or "its node died"
        report = self._work(flight, process)
        if flight.lost or report is None:
            if report is not None:
                self._ghosts.append((label, flight.batch.ticket, report))
            self._lose(flight, flight.lost or "its worker died")
        else:
            self._answer(flight, report)

    def _started(self, label: str) -> list[Command]:
        failing = self._failing_starts.get(label, 0)
        if failing or self._homes[label] not in self._alive:
            self._failing_starts[label] = max(0, failing - 1)
            self._rules.reasons_to_start += 1
            self._say("{} does not start", label)
            return self.scheduler.start_failed(label, "no driver")
        self._processes[label] = _Process()
        self._say("{} is ready", label)
        commands = self.scheduler.worker_ready(label)
        if self._doubles_next:
            self._doubles_next = False
            require(not self.scheduler.worker_ready(label), "a worker is ready twice")
            require(not self.scheduler.start_failed(label, "late"), "a start fails that did not")
        return commands

    def _work(self, flight: Flight, process: _Process, most: int = 99) -> BatchReport | None:
        """Run a batch as a process does; None where its worker dies with it."""
        results: list[TaskResult] = []
        is_bad = self._has_bad_place and self._places[flight.slot] == _BAD_PLACE
        for position, task in enumerate(flight.tasks[:most]):
            process.used = True
            if process.killed or flight.killed_at == position:
                return broken(results, task, Cause.KILLED)
            if process.tainted or is_bad:
                return broken(results, task, Cause.CRASHED)
            how = self._cast.run(task.index)
            if how is Cause.LOST:
                return None
            if isinstance(how, Cause) and how is not Cause.SILENT:
                return broken(results, task, how)
            if how is not Cause.SILENT:
                results.append(self._cast.answer(task.index))
            process.tainted = how is TAINTS
        return BatchReport(tuple(results))

    def _answer(self, flight: Flight, report: BatchReport) -> None:
        batch, label, casualty = flight.batch, flight.slot, report.casualty
        assert batch is not None
        self._say("{} answers {}", label, report.results)
        if casualty is not None:
            self._say("{} broke it: {}", casualty.index, casualty.cause.name)
        commands = self.scheduler.batch_done(label, batch.ticket, report)
        if self._doubles_next:
            self._doubles_next = False
            self._ghosts.append((label, batch.ticket, report))
            again = self.scheduler.batch_done(label, batch.ticket, report)
            require(not again, "an answer counts twice")
        if casualty is not None:
            self._processes[label] = None
        self._rules.ended(flight, report, "", commands)
        self.carry_out(commands)

    def _lose(self, flight: Flight, reason: str, *, restarts: bool = True) -> None:
        """The whole worker is gone; `restarts`: the scheduler's successor is started."""
        batch, label = flight.batch, flight.slot
        assert batch is not None
        self._say("{} is lost: {}", label, reason)
        self._dismiss(label)
        self._homes.pop(label)
        commands = self.scheduler.worker_lost(label, batch.ticket, reason, flight.cause)
        self._rules.ended(flight, None, reason, commands)
        self.carry_out([c for c in commands if restarts or not isinstance(c, StartWorker)])

    def _hear_ghosts(self) -> None:
        """Let answers come that were given up waiting for, or that were heard already."""
        for label, ticket, report in self._ghosts:
            commands = self.scheduler.batch_done(label, ticket, report)
            commands += self.scheduler.worker_lost(label, ticket, "late")
            require(not commands, "an answer counts that came too late")
        self._ghosts.clear()

    def _see_nodes(self) -> None:
        """Look for nodes that have left or joined, as the driver does."""
        self._nodes_seen = alive = self._alive
        for slot in move_slots(list(self._slots.values()), self._nodes):
            label = slot.label
            self._say("{} moves to {}", label, slot.node_id)
            is_gone = self._slots[label].node_id not in alive
            self._slots[label] = slot
            if is_gone:
                flight = self.flights.get(label)
                if flight is not None and flight.batch is not None:
                    self._lose(flight, "its node died", restarts=False)
                self._dismiss(label)
            self._rules.reasons_to_start += 2
            self.carry_out(self.scheduler.revive(label, slot.place))

    def drain(self) -> None:
        """Stop on request: batches finish, or are ended, or never answer."""
        self._say("the run is asked to stop")
        self.scheduler.drain()
        self._rules.draining = True
        busy = sorted(flight.slot for flight in self._busy())
        require(sorted(self.scheduler.busy_slots) == busy, "other slots are busy than have a batch")
        for label in list(self.flights):
            how = self._choices.below(3)
            if self.flights[label].batch is None or how == 0:
                self.deliver(label)
            elif how == 1:
                self._halt(label)
        for label, slot in self._slots.items():
            require(not self.scheduler.revive(label, slot.place), "revived while draining")
        require(not self.scheduler.wake(), "a command while draining")
        left = sum(len(flight.tasks) for flight in self.flights.values())
        require(self.scheduler.in_flight == left, "the scheduler has lost count")
        require(self.scheduler.finished == (left == 0), "finished, or not, while draining")

    def _halt(self, label: str) -> None:
        """End a batch: its worker hands over what is finished, unless it is gone."""
        flight, process = self.flights[label], self._processes[label]
        if process is None or process.actor_lost or flight.lost:
            return
        report = self._work(flight, process, self._choices.below(len(flight.tasks) + 1))
        if report is not None:
            del self.flights[label]
            self._answer(flight, report)

    # What befalls it.

    def _busy(self) -> list[Flight]:
        return [flight for flight in self.flights.values() if flight.batch is not None]

    def _any_busy(self) -> Flight | None:
        flights = self._busy()
        return flights[self._choices.below(len(flights))] if flights else None

    def _any_idle(self) -> tuple[str, _Process] | None:
        idle = [
            (label, process)
            for label, process in self._processes.items()
            if process is not None and label not in self.flights
        ]
        return idle[self._choices.below(len(idle))] if idle else None

    def _kill_process(self) -> None:
        flight = self._any_busy()
        if flight is not None:
            flight.killed_at = self._choices.below(len(flight.tasks))
            self._say("the process of {} is killed", flight.slot)

    def _kill_idle_process(self) -> None:
        idle = self._any_idle()
        if idle is not None:
            idle[1].killed = True

    def _kill_worker(self) -> None:
        flight = self._any_busy()
        if flight is not None:
            flight.lost = "its worker was killed"

    def _kill_worker_for_memory(self) -> None:
        flight = self._any_busy()
        if flight is not None:
            flight.lost, flight.cause = "ran out of memory", Cause.OUT_OF_MEMORY

    def _kill_idle_worker(self) -> None:
        """Kill a worker that is idle; the driver knows at once, or when it sends the next batch."""
        idle = self._any_idle()
        if idle is None:
            return
        label, process = idle
        if self._choices.chance(2):
            process.actor_lost = True
            return
        self._say("{} is lost while it is idle", label)
        self._dismiss(label)
        self._rules.reasons_to_start += 1
        commands = self.scheduler.worker_lost(label, 0, "its worker was killed")
        require(not any(isinstance(c, Record) for c in commands), "blamed for an idle worker")
        self.carry_out(commands)

    def _double(self) -> None:
        self._doubles_next = True

    def _fail_starts(self) -> None:
        labels = list(self._slots)
        label = labels[self._choices.below(len(labels))]
        self._failing_starts[label] = 1 + self._choices.below(4)

    def _end_node(self) -> None:
        if len(self._nodes) > 1:  # The first one is the driver's.
            node = self._nodes.pop(1 + self._choices.below(len(self._nodes) - 1))
            self._alive = [each.node_id for each in self._nodes]
            self._say("node {} dies", node.node_id)

    def _add_node(self) -> None:
        if len(self._nodes) < _MOST_NODES:
            node = _node(self._nodes_made)
            self._nodes_made += 1
            self._nodes.append(node)
            self._alive = [*self._alive, node.node_id]
            self._say("node {} joins", node.node_id)

    def _revive(self) -> None:
        """A device that was given up, or that is idle, is there anew."""
        idle = self._any_idle()
        labels = [*sorted(self._given_up), *([idle[0]] if idle else [])]
        if labels:
            label = labels[0]
            self._say("{} is revived", label)
            self._rules.reasons_to_start += 2
            self.carry_out(self.scheduler.revive(label, self._slots[label].place))


TROUBLES: tuple[Callable[[Crew], None], ...] = (
    Crew._kill_process,
    Crew._kill_worker,
    Crew._double,
    Crew._kill_idle_process,
    Crew._kill_idle_worker,
    Crew._kill_worker_for_memory,
    Crew._fail_starts,
    Crew._end_node,
    Crew._add_node,
    Crew._revive,
)


def _node(number: int) -> Node:
    return Node(f"n{number}", f"10.0.0.{number}", {})


def _slots(layout: Layout, nodes: Sequence[Node]) -> list[DeviceSlot]:
    ids = range(layout.slots)
    if layout.is_logical:
        return place_slots("cpu", ids, nodes)
    return [DeviceSlot("npu", i, "n0", "10.0.0.0", str(i)) for i in ids]
