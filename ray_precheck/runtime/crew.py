"""The actors of a run and what each has in flight.

Comes in: the slots to start workers on, and batches. Goes out: flights that have landed. Called by the
driver. Tensors never come here: the outputs of devices and captured files stay with the workers or in
Ray's object store; the crew holds references alone.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ray_precheck.runtime.actors import ActorError, ActorPulses, Actors, CallFailed
from ray_precheck.runtime.job import Job
from ray_precheck.runtime.places.devices import DEFAULT_SPARES
from ray_precheck.runtime.scheduling.commands import SendBatch
from ray_precheck.runtime.scheduling.cost_model import bench_threads
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.runtime.tensors.parcels import Parcels
from ray_precheck.runtime.tensors.shipper import Shipper
from ray_precheck.runtime.workers.process import START_TIMEOUT_S
from ray_precheck.runtime.workers.worker import Order, Worker
from ray_precheck.schema.task import BENCH, DeviceSlot

# Workers keep the time limits of their records themselves; one that is this late and still answers
# (`ActorPulses`) has a fault of ours.
ANSWER_SLACK_S = 60.0
# A look at the deadlines takes time in proportion to the calls in flight.
_LATE_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How workers are started, and their limits.

    `spares` is how many processes a worker keeps ready, None for the number that its kind of device
    allows; `bench_budget_s` is how long a bench may take.
    """

    spares: int | None = None
    bench_budget_s: float = 600.0
    debug: bool = False


@dataclass(slots=True)
class Flight:
    """A call of the actor on a slot that has not been answered, and how long it may take.

    `ticket` is that of the batch, 0 for the start of a worker; `parcel` is the ticket of the parcel
    that the batch was sent with. `deadline` is the time on the monotonic clock by which the answer
    must be there; it is set once the actor has answered all calls before.
    """

    slot: str
    allowed_s: float
    ticket: int = 0
    stage: Stage = Stage.CHECK
    parcel: int = 0
    deadline: float = math.inf


@dataclass(slots=True)
class Crew:
    """The actors by slot, the node that each is on, and what is in flight.

    An actor does one batch after the other, so `flights` has only the first call of each slot; the
    next call follows when the first has landed. `home` is the node of the driver, which has the files
    of the job; `shipper` sends them to workers on other nodes, None if every node sees them.
    """

    actors: Actors
    job: Job
    options: WorkerOptions
    home: str
    shipper: Shipper | None = None
    slots: dict[str, DeviceSlot] = field(default_factory=dict)
    flights: dict[Any, Flight] = field(default_factory=dict)
    _behind: dict[str, deque[tuple[Any, Flight]]] = field(default_factory=dict)
    _batches: dict[int, tuple[Any, Flight]] = field(default_factory=dict)
    _workers: dict[str, Any] = field(default_factory=dict)
    _homes: dict[str, str] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _starting: set[str] = field(default_factory=set)
    _held: dict[int, SendBatch] = field(default_factory=dict)
    _bench_homes: dict[str, str] = field(default_factory=dict)
    _looked_at: float = -math.inf
    _parcels: Parcels = field(init=False)
    pulses: ActorPulses = field(init=False)

    def __post_init__(self) -> None:
        self.pulses = ActorPulses(self.actors)
        self._parcels = Parcels(self.actors)

    def start(self, label: str) -> None:
        """Start a fresh worker on a slot: in the slot's actor if there is one, else in a new actor."""
        slot = self.slots[label]
        if self._homes.get(label) != slot.node_id:
            self.dismiss(label)
        if label in self._starting:
            return  # The worker starts already: its slot was lost and moved at the same time.
        if label not in self._workers:
            spares = DEFAULT_SPARES.get(slot.kind, 0)
            if self.options.spares is not None and slot.kind != BENCH:
                spares = self.options.spares
            opener = self.job.opener(is_home=slot.node_id == self.home)
            self._workers[label] = self.actors.start(
                Worker, slot.node_id, slot, opener, spares, debug=self.options.debug
            )
            self._homes[label] = slot.node_id
            self._turns[label] = 0
            if slot.kind == BENCH:
                self._bench_homes[label] = slot.node_id
        start = self.actors.call(self._workers[label], "open", self._turns[label])
        self._take_off(start, Flight(label, START_TIMEOUT_S + ANSWER_SLACK_S))
        self._starting.add(label)

    def _take_off(self, ref: Any, flight: Flight) -> None:
        """Wait for a call, at once or as soon as its actor has answered the calls before it."""
        behind = self._behind.get(flight.slot)
        if behind is not None:
            behind.append((ref, flight))
            return
        self._behind[flight.slot] = deque()
        self._watch(ref, flight)

    def _watch(self, ref: Any, flight: Flight) -> None:
        flight.deadline = self.actors.clock() + flight.allowed_s
        self.flights[ref] = flight
        if flight.slot in self._workers:  # It may have been dismissed just now.
            self.pulses.owes(self._workers[flight.slot])

    def _remove(self, ref: Any) -> Flight:
        """Wait for a call no longer, and for the next call of its actor instead."""
        flight = self.flights.pop(ref)
        behind = self._behind[flight.slot]
        if behind:
            self._watch(*behind.popleft())
        else:
            del self._behind[flight.slot]
        return flight

    def send(self, batch: SendBatch) -> None:
        """Send a batch, or hold it until the files that were prepared for it have arrived."""
        home = self._homes[batch.slot]
        parcel = self._parcels.reference(batch.parcel, home)
        files = None
        # The slot may have moved since the files were prepared; its worker has not.
        if self.shipper is not None and self.shipper.has(batch.ticket):
            shipment = self.shipper.take(batch.ticket)
            if shipment is None:
                self._held[batch.ticket] = batch
                return
            files = shipment.ref
        self._held.pop(batch.ticket, None)
        self._turns[batch.slot] += 1
        order = Order(
            tuple([self.job.payload(task) for task in batch.tasks]),
            batch.limits_s,
            tuple([bench_threads(task.cost_s) for task in batch.tasks]),
            self._turns[batch.slot],
            batch.ticket,
            batch.stage,
            self.options.bench_budget_s,
            batch.stage is Stage.DEVICE and self._lends(batch.slot),
        )
        # Answers are arguments of their own, so that Ray brings their values to the worker's node.
        answer = self.actors.call(self._workers[batch.slot], "run", order, parcel, files)
        benches_s = self.options.bench_budget_s * len(batch.tasks)
        allowed_s = sum(batch.limits_s) + benches_s + ANSWER_SLACK_S
        flight = Flight(batch.slot, allowed_s, batch.ticket, batch.stage, batch.parcel)
        self._batches[batch.ticket] = answer, flight
        self._take_off(answer, flight)

    def _lends(self, label: str) -> bool:
        """Return whether the outputs of a device can stay on its machine, as all benches are there."""
        benches = self._bench_homes.values()
        return self._parcels.may_lend(self._workers[label], self._homes[label], benches)

    def needs_files(self, label: str) -> bool:
        """Return whether captured files have to be sent to a slot."""
        return self.shipper is not None and self.slots[label].node_id != self.home

    def send_held(self) -> None:
        """Send the batches whose files have arrived in the object store since."""
        if self.shipper is None:
            return
        for ticket in self.shipper.ready():
            if ticket in self._held:
                self.send(self._held[ticket])

    def land(self, ref: Any) -> Flight:
        """Take a flight that has come back."""
        flight = self._remove(ref)
        self.pulses.heard(self._workers[flight.slot])
        self._batches.pop(flight.ticket, None)
        if flight.ticket == 0:
            self._starting.discard(flight.slot)
        elif self.shipper is not None:
            self.shipper.forget(flight.ticket)
        return flight

    def collect(self, flight: Flight) -> None:
        """Have the parcel of a device kept, by its worker or in the store, until it is forgotten."""
        self._parcels.collect(
            flight.ticket,
            self._workers[flight.slot],
            self._homes[flight.slot],
            lends=self._lends(flight.slot),
        )

    def refuse(self, flight: Flight) -> None:
        """Note that the bench worker of a flight could not open the loan of its parcel."""
        self._parcels.refuse(flight.parcel)

    def forget(self, ticket: int) -> None:
        """Drop the parcel and the files of a ticket, and wait for its batch no longer."""
        self._parcels.forget(ticket)
        self._held.pop(ticket, None)
        ref, flight = self._batches.pop(ticket, (None, None))
        if ref in self.flights:
            self._remove(ref)
        elif flight is not None:
            self._behind[flight.slot].remove((ref, flight))
        if self.shipper is not None:
            self.shipper.forget(ticket)

    def late(self) -> list[Any]:
        """Return the flights whose time is over, or whose worker is not heard from any more.

        It looks once a second, and returns none in between.
        """
        now = self.actors.clock()
        if now - self._looked_at < _LATE_INTERVAL_S:
            return []
        self._looked_at = now
        return [
            ref
            for ref, flight in self.flights.items()
            if flight.deadline < now or self.pulses.is_lost(self._workers[flight.slot])
        ]

    def tickets_of(self, label: str) -> list[int]:
        """Return the tickets of the batches that a slot has, or that are held for it."""
        sent = [ticket for ticket, (_, flight) in self._batches.items() if flight.slot == label]
        return [*sent, *(t for t, batch in self._held.items() if batch.slot == label)]

    def halt(self, labels: Iterable[str]) -> None:
        """Have workers hand over their finished results, and end."""
        for label in labels:
            if label in self._workers:
                self.actors.call(self._workers[label], "halt")

    def dismiss(self, label: str) -> None:
        """Kill a worker, with its processes, and forget its calls in flight."""
        worker = self._workers.pop(label, None)
        self._homes.pop(label, None)
        self._bench_homes.pop(label, None)
        self._starting.discard(label)
        if worker is not None:
            self.actors.kill(worker)
            self.pulses.forget(worker)
        for ticket in self.tickets_of(label):
            self.forget(ticket)
        for ref in [ref for ref, f in self.flights.items() if f.slot == label]:
            del self.flights[ref]  # the start of the worker
        self._behind.pop(label, None)

    def dismiss_all(self) -> None:
        """Kill every worker."""
        for label in list(self._workers):
            self.dismiss(label)
        if self.shipper is not None:
            self.shipper.close()


def start_reason(error: ActorError) -> str:
    """Return why a worker did not start, as one line."""
    if isinstance(error, CallFailed):
        return error.reason if error.cause is None else first_line(error.cause)
    return f"its worker died while it started ({error.reason})"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return str(error).strip().split("\n", maxsplit=1)[0]
