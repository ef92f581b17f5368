"""The bench workers of a simulated driver, and what befalls them.

Comes in: commands for their slots. Goes out: events for the scheduler. Every batch is checked
against the rules. Does what `runtime/driver.py` and the workers do for slots without a device.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ray_precheck.runtime.places.bench_slots import follow_cores, place_benches
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.scheduling.blame import START_ATTEMPTS
from ray_precheck.runtime.scheduling.commands import SendBatch
from ray_precheck.runtime.scheduling.cost_model import bench_threads
from ray_precheck.runtime.workers.messages import Stage
from ray_precheck.schema.casualty import BatchReport, Cause
from ray_precheck.schema.result import TaskResult
from ray_precheck.schema.task import DeviceSlot
from scripts.histories.answers import NEEDS_DEVICE, broken
from scripts.histories.rules import require

if TYPE_CHECKING:
    from scripts.histories.workers import Crew

# One in work, and one that is fetched meanwhile.
_MOST_EACH = 2
# What is expected to take less may wait behind another one of its machine.
_SHORT_S = 0.2


@dataclass(slots=True)
class _Flight:
    """A batch that a bench worker has; `lost` says that no answer comes, `stale` that its process
    broke at the batch before, `held` that it waited for its files then, `node` where its parcel was
    made.
    """

    slot: str
    batch: SendBatch
    node: str = ""
    lost: bool = False
    stale: bool = False
    held: bool = False

    @property
    def threads(self) -> int:
        """How many cores it computes with."""
        return max(bench_threads(task.cost_s) for task in self.batch.tasks)


class Benches:
    """The bench workers of a crew by their labels, and what they have in flight by its ticket."""

    def __init__(
        self, crew: "Crew", most: int, slots: Sequence[DeviceSlot], nodes: Sequence[Node]
    ) -> None:
        self._crew = crew
        self._most = most
        self.slots = {slot.label: slot for slot in place_benches(slots, nodes, most)}
        self.flights: dict[int, _Flight] = {}
        self.starting: dict[str, None] = {}
        self.ready: set[str] = set()
        self._failing_starts: Counter[str] = Counter()
        self._lent: dict[str, int] = {}

    def start(self, label: str) -> None:
        """Have a fresh worker on a slot."""
        require(label not in self.starting, f"{label} is started while it starts")
        self.ready.discard(label)
        self.starting[label] = None

    def dismiss(self, label: str) -> None:
        """Kill a worker and forget what it has in flight."""
        self.starting.pop(label, None)
        self.ready.discard(label)
        for flight in self._of(label):
            self._land(flight.batch.ticket)

    def send(self, batch: SendBatch) -> None:
        """Send a batch to one that may have it."""
        crew, label = self._crew, batch.slot
        has = self._of(label)
        require(label in self.ready, f"{label} gets a batch and is not ready")
        require(len(has) < _MOST_EACH, f"{label} gets more than {_MOST_EACH} batches")
        flight = _Flight(label, batch)
        node = self.slots[label].node_id
        needs_files = crew.layout.needs_files(self.slots[label])
        if batch.stage is Stage.BENCH:
            is_ample = crew.parcels.count_waiting() >= len(self.ready)
            flight.node = crew.parcels.take(batch).node
            require(flight.node in crew.nodes_seen, "a bench is sent what is gone with its node")
            flight.lost = flight.node not in crew.alive
            bench_s = sum(map(crew.scheduler.model.bench_s, batch.tasks))
            may_wait = is_ample or flight.node != node or bench_s < _SHORT_S
            require(not has or may_wait, f"{label} gets a second long batch from its machine")
            require(not has or flight.threads == 1, f"{label} gets a huge batch and is busy")
        else:
            require(crew.layout.bench_suffices, "a bench gets whole records, and has no device")
            require(batch.stage is Stage.CHECK, "a bench is to be a device")
            require(not has or needs_files, f"{label} gets a second batch without need")
        if not has:
            self._lend(label, flight.threads - 1)
        crew.say("{} is sent {} ({})", label, batch.tasks, batch.stage.value)
        crew.rules.sent_to_bench(batch, crew.elsewhere(batch))
        crew.shipments.send(batch, needs_files)
        self.flights[batch.ticket] = flight

    def _lend(self, label: str, count: int) -> None:
        """A worker computes with the cores of others that have nothing to do on its machine."""
        free = self._free(self.slots[label].node_id)
        require(free >= 1, f"{label} gets a batch, and its core is lent")
        self._lent[label] = min(count, free - 1)

    def _free(self, node: str) -> int:
        """Return how many workers on a node have nothing to do, and their cores for themselves."""
        busy = self.busy()
        here = {label for label in self.ready if self.slots[label].node_id == node}
        return len(here - busy) - sum(
            count for label, count in self._lent.items() if label in busy & here
        )

    def check_busy(self) -> None:
        """Nobody has nothing to do while something waits."""
        if not self._crew.rules.draining and self._crew.parcels.is_waiting():
            idle = [n for n in {s.node_id for s in self.slots.values()} if self._free(n) > 0]
            require(not idle, f"what a device has made waits, and a bench worker on {idle} too")

    def due(self) -> Iterator[Callable[[], None]]:
        """Yield what may come to its end: of each worker its oldest batch, before its start."""
        seen: set[str] = set()
        for ticket, flight in self.flights.items():
            if flight.slot not in seen and self._crew.shipments.has_arrived(ticket):
                yield partial(self._deliver, ticket)
            seen.add(flight.slot)
        for label in self.starting:
            if label not in seen:
                yield partial(self._deliver_start, label)

    def deliver_starts(self) -> None:
        """Let what starts come to its end."""
        for label in list(self.starting):
            self._deliver_start(label)

    def _deliver_start(self, label: str) -> None:
        del self.starting[label]
        crew = self._crew
        is_dead = self.slots[label].node_id not in crew.alive
        if is_dead or self._failing_starts[label] > 0:
            self._failing_starts[label] -= not is_dead
            crew.rules.reasons_to_start += 1
            crew.say("{} does not start", label)
            crew.carry_out(crew.scheduler.start_failed(label, "no torch"))
            return
        self.ready.add(label)
        crew.say("{} is ready", label)
        crew.carry_out(crew.scheduler.worker_ready(label))

    def _deliver(self, ticket: int) -> None:
        flight = self.flights[ticket]
        crew, label = self._crew, flight.slot
        if flight.node and flight.node not in crew.alive:
            flight.lost = flight.lost or crew.choices.chance(2)
        is_gone = flight.lost or flight.stale or self.slots[label].node_id not in crew.alive
        report = None if is_gone else self._work(flight)
        if report is None:
            self._lose(label, ticket)
            return
        self._land(ticket)
        self._answer(flight, report)

    def _work(self, flight: _Flight, most: int = 99) -> BatchReport | None:
        """Run a batch as a process does; None where its worker dies with it."""
        cast = self._crew.cast
        results: list[TaskResult] = []
        needs_device: list[int] = []
        for task in flight.batch.tasks[:most]:
            how = cast.run_bench(task.index)
            if how is Cause.LOST:
                return None
            if how == NEEDS_DEVICE:
                needs_device.append(task.index)
            elif isinstance(how, Cause) and how is not Cause.SILENT:
                return broken(results, task, how)
            elif how is None:
                results.append(cast.answer(task.index))
        return BatchReport(tuple(results), needs_device=tuple(needs_device))

    def _answer(self, flight: _Flight, report: BatchReport) -> None:
        crew, label, ticket = self._crew, flight.slot, flight.batch.ticket
        crew.say("{} answers {}", label, report.results)
        if report.casualty is not None:
            crew.say("{} broke it: {}", report.casualty.index, report.casualty.cause.name)
            self.ready.discard(label)
            crew.rules.reasons_to_start += 1
            for other in self._of(label):
                other.stale = True
                other.held = not crew.shipments.has_arrived(other.batch.ticket)
                crew.parcels.working.discard(other.batch.parcel)
        had = [flight, *self._of(label)] if report.casualty is not None else [flight]
        tasks = [task for each in had for task in each.batch.tasks]
        commands = crew.scheduler.batch_done(label, ticket, report)
        again = crew.scheduler.batch_done(label, ticket, report)
        require(not again, "an answer of a bench counts twice")
        crew.rules.bench_ended(tasks, report, commands)
        crew.carry_out(commands)
        held = any(each.held for each in self._of(label))
        require(not held, "what waits for its files is sent, though it is done elsewhere")

    def _lose(self, label: str, ticket: int) -> None:
        """The whole worker is gone, with all that it had."""
        crew = self._crew
        crew.say("{} is lost", label)
        had = [each.batch for each in self._of(label) if not each.stale]
        self.dismiss(label)
        crew.rules.reasons_to_start += 1
        commands = crew.scheduler.worker_lost(label, ticket, "its worker died")
        crew.rules.bench_ended([task for batch in had for task in batch.tasks], None, commands)
        crew.carry_out(commands)

    def _land(self, ticket: int) -> None:
        flight = self.flights.pop(ticket)
        if all(each.threads == 1 for each in self._of(flight.slot)):
            self._lent.pop(flight.slot, None)
        self._crew.shipments.forget(ticket)
        self._crew.parcels.working.discard(flight.batch.parcel)

    def forget(self, ticket: int) -> None:
        """Do not send a batch that waits for its files."""
        flight = self.flights.get(ticket)
        if flight is not None and flight.held:
            del self.flights[ticket]

    def see_nodes(self, before: Sequence[str], nodes: Sequence[Node]) -> None:
        """Have workers on the nodes that are there now, as the driver does."""
        crew = self._crew
        alive = {node.node_id for node in nodes}
        for node_id in before:
            if node_id in alive:
                continue
            labels = [n for n, slot in self.slots.items() if slot.node_id == node_id]
            had = [each.batch for n in labels for each in self._of(n) if not each.stale]
            for label in labels:
                self.dismiss(label)
                del self.slots[label]
            commands = crew.scheduler.place_lost(node_id, labels)
            crew.rules.bench_ended([task for batch in had for task in batch.tasks], None, commands)
            crew.carry_out(commands)
            crew.parcels.check_gone(node_id)
        slots, benches = crew.device_slots, list(self.slots.values())
        for slot in follow_cores(slots, benches, nodes, self._most):
            crew.rules.reasons_to_start += 1
            self.slots[slot.label] = slot
            crew.carry_out(crew.scheduler.add_bench(slot.label, slot.place))

    def drain(self) -> None:
        """Stop on request: batches finish, or are ended, or never answer."""
        for ticket in list(self.flights):
            how = self._crew.choices.below(3)
            if ticket not in self.flights or not self._crew.shipments.has_arrived(ticket):
                continue
            if how == 0 and self._of(self.flights[ticket].slot)[0] is self.flights[ticket]:
                self._deliver(ticket)

    def _of(self, label: str) -> list[_Flight]:
        return [flight for flight in self.flights.values() if flight.slot == label]

    def end(self) -> None:
        """End all workers."""
        require(not self.busy(), "finished, and a bench worker is not")
        for label in list(self.slots):
            self.dismiss(label)

    def busy(self) -> set[str]:
        """Return the workers that have something to do."""
        return {each.slot for each in self.flights.values() if not each.stale}

    def in_flight(self) -> int:
        """Return the number of records that workers have."""
        return sum(len(each.batch.tasks) for each in self.flights.values() if not each.stale)

    # What befalls them.

    def kill(self) -> None:
        """End a worker: it has no answer for what it does, or for what it gets next."""
        flights = list(self.flights.values())
        if flights:
            flights[self._crew.choices.below(len(flights))].lost = True

    def end_all(self) -> None:
        """End every worker for good: none can be started again."""
        for flight in self.flights.values():
            flight.lost = True
        for label in self.slots:
            self._failing_starts[label] = START_ATTEMPTS

    def fail_starts(self) -> None:
        """Have the next starts of a worker fail."""
        labels = list(self.slots)
        if labels:
            label = labels[self._crew.choices.below(len(labels))]
            self._failing_starts[label] = 1 + self._crew.choices.below(4)
