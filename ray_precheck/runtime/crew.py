"""The actors of a run and what each has in flight.

Comes in: the slots to start workers on, and batches. Goes out: pending calls that have landed. Called by the
driver. Tensors never come here: the outputs of devices and captured files stay with the workers or in
Ray's object store; the crew holds references alone.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ray_precheck.foreign import first_line
from ray_precheck.runtime.actors import ActorError, ActorPulses, Actors, CallFailed
from ray_precheck.runtime.job import Job
from ray_precheck.runtime.scheduling.commands import SendBatch, Stage
from ray_precheck.runtime.scheduling.queue import bench_threads
from ray_precheck.runtime.shipper import Shipper
from ray_precheck.runtime.workers.fork_server import Load, NodeServer, ServerAddress
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

    `bench_budget_s` is how long a bench may take. `server` forks check processes on the driver's machine;
    where there is none, and on other machines, workers start one that has run `load` (None: none).
    """

    bench_budget_s: float = 600.0
    debug: bool = False
    server: ServerAddress | None = None
    load: Load | None = None


@dataclass(slots=True)
class PendingCall:
    """A call of the actor on a slot that has not been answered, and how long it may take.

    `ticket` is that of the batch, 0 for the start of a worker; `transfer` is the ticket of the batch
    in which a device measured its records. `deadline` is the time on the monotonic clock by which the answer
    must be there; it is set once the actor has answered all calls before.
    """

    slot: str
    allowed_s: float
    ticket: int = 0
    stage: Stage = Stage.CHECK
    transfer: int = 0
    deadline: float = math.inf


@dataclass(slots=True)
class Crew:
    """The actors by slot, the node that each is on, and what is in flight.

    An actor does one batch after the other, so `calls` has only the first call of each slot; the
    next call follows when the first has landed. `home` is the node of the driver, which has the files
    of the job; `shipper` sends them to workers on other nodes, None if every node sees them.
    """

    actors: Actors
    job: Job
    options: WorkerOptions
    home: str
    shipper: Shipper | None = None
    slots: dict[str, DeviceSlot] = field(default_factory=dict)
    calls: dict[Any, PendingCall] = field(default_factory=dict)
    _behind: dict[str, deque[tuple[Any, PendingCall]]] = field(default_factory=dict)
    _batches: dict[int, tuple[Any, PendingCall]] = field(default_factory=dict)
    _workers: dict[str, Any] = field(default_factory=dict)
    _homes: dict[str, str] = field(default_factory=dict)
    _turns: dict[str, int] = field(default_factory=dict)
    _starting: set[str] = field(default_factory=set)
    _held: dict[int, SendBatch] = field(default_factory=dict)
    _bench_homes: dict[str, str] = field(default_factory=dict)
    _looked_at: float = -math.inf
    # The workers that keep what their device measured of a batch, and the workers whose memory a bench
    # worker could not open: what they keep is copied.
    _keepers: dict[int, str] = field(default_factory=dict)
    _closed: set[Any] = field(default_factory=set)
    pulses: ActorPulses = field(init=False)

    def __post_init__(self) -> None:
        self.pulses = ActorPulses(self.actors)

    def start(self, label: str) -> None:
        """Start a fresh worker on a slot: in the slot's actor if there is one, else in a new actor."""
        slot = self.slots[label]
        if self._homes.get(label) != slot.node_id:
            self.dismiss(label)
        if label in self._starting:
            return  # The worker starts already: its slot was lost and moved at the same time.
        if label not in self._workers:
            is_home = slot.node_id == self.home
            opener = self.job.opener(is_home=is_home)
            server = self._server_of(slot.node_id, is_home=is_home)
            self._workers[label] = self.actors.start(
                Worker, slot.node_id, slot, opener, server, debug=self.options.debug
            )
            self._homes[label] = slot.node_id
            self._turns[label] = 0
            if slot.kind == BENCH:
                self._bench_homes[label] = slot.node_id
        start = self.actors.call(self._workers[label], "open", self._turns[label])
        self._take_off(start, PendingCall(label, START_TIMEOUT_S + ANSWER_SLACK_S))
        self._starting.add(label)

    def _server_of(self, node_id: str, *, is_home: bool) -> ServerAddress | NodeServer | None:
        """Return what forks the check processes of a worker on a node."""
        if is_home and self.options.server is not None:
            return self.options.server
        load = self.options.load
        return None if load is None else NodeServer(node_id, load)

    def _take_off(self, ref: Any, call: PendingCall) -> None:
        """Wait for a call, at once or as soon as its actor has answered the calls before it."""
        behind = self._behind.get(call.slot)
        if behind is not None:
            behind.append((ref, call))
            return
        self._behind[call.slot] = deque()
        self._watch(ref, call)

    def _watch(self, ref: Any, call: PendingCall) -> None:
        call.deadline = self.actors.clock() + call.allowed_s
        self.calls[ref] = call
        if call.slot in self._workers:  # It may have been dismissed just now.
            self.pulses.owes(self._workers[call.slot])

    def _remove(self, ref: Any) -> PendingCall:
        """Wait for a call no longer, and for the next call of its actor instead."""
        call = self.calls.pop(ref)
        behind = self._behind[call.slot]
        if behind:
            self._watch(*behind.popleft())
        else:
            del self._behind[call.slot]
        return call

    def send(self, batch: SendBatch) -> None:
        """Send a batch, or hold it until the files that were prepared for it have arrived."""
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
            batch.stage is Stage.DEVICE and self._keeps_near(batch.slot),
        )
        # Answers are arguments of their own, so that Ray brings their values to the worker's node.
        transfer = self._transfer(batch)
        answer = self.actors.call(self._workers[batch.slot], "run", order, transfer, files)
        benches_s = self.options.bench_budget_s * len(batch.tasks)
        allowed_s = sum(batch.limits_s) + benches_s + ANSWER_SLACK_S
        call = PendingCall(batch.slot, allowed_s, batch.ticket, batch.stage, batch.transfer)
        self._batches[batch.ticket] = answer, call
        self._take_off(answer, call)

    def _keeps_near(self, label: str) -> bool:
        """Return whether the outputs of a device stay on its machine, as all benches are there."""
        homes = set(self._bench_homes.values())
        return homes == {self._homes[label]} and self._workers[label] not in self._closed

    def _transfer(self, batch: SendBatch) -> Any:
        """Return what a bench worker gets of the device's worker for a batch: the answer that has where the
        tensors are, or, for another machine, the tensors; {} where that worker is gone."""
        if not batch.transfer:
            return None
        keeper = self._keepers.get(batch.transfer, "")
        if keeper not in self._workers:
            return {}
        worker = self._workers[keeper]
        is_near = self._homes[keeper] == self._homes[batch.slot] and worker not in self._closed
        return self.actors.call(worker, "hand_over", batch.transfer, is_near)

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

    def land(self, ref: Any) -> PendingCall:
        """Take a pending call that has come back."""
        call = self._remove(ref)
        self.pulses.heard(self._workers[call.slot])
        self._batches.pop(call.ticket, None)
        if call.ticket == 0:
            self._starting.discard(call.slot)
        elif self.shipper is not None:
            self.shipper.forget(call.ticket)
        return call

    def collect(self, call: PendingCall) -> None:
        """Note that a device's worker keeps what it measured of a batch, until it is forgotten."""
        self._keepers[call.ticket] = call.slot

    def refuse(self, call: PendingCall) -> None:
        """Note that the bench worker of a pending call could not open the memory of the device's worker."""
        keeper = self._workers.get(self._keepers.get(call.transfer, ""))
        if keeper is not None:
            self._closed.add(keeper)

    def forget(self, ticket: int) -> None:
        """Drop what a device measured and the files of a ticket, and wait for its batch no longer."""
        keeper = self._workers.get(self._keepers.pop(ticket, ""))
        if keeper is not None:
            self.actors.call(keeper, "release", ticket)
        self._held.pop(ticket, None)
        ref, call = self._batches.pop(ticket, (None, None))
        if ref in self.calls:
            self._remove(ref)
        elif call is not None:
            self._behind[call.slot].remove((ref, call))
        if self.shipper is not None:
            self.shipper.forget(ticket)

    def late(self) -> list[Any]:
        """Return the pending calls whose time is over, or whose worker is not heard from any more.

        It looks once a second, and returns none in between.
        """
        now = self.actors.clock()
        if now - self._looked_at < _LATE_INTERVAL_S:
            return []
        self._looked_at = now
        return [
            ref
            for ref, call in self.calls.items()
            if call.deadline < now or self.pulses.is_lost(self._workers[call.slot])
        ]

    def tickets_of(self, label: str) -> list[int]:
        """Return the tickets of the batches that a slot has, or that are held for it."""
        sent = [ticket for ticket, (_, call) in self._batches.items() if call.slot == label]
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
        # A later worker of the slot has not measured these.
        self._keepers = {t: keeper for t, keeper in self._keepers.items() if keeper != label}
        for ticket in self.tickets_of(label):
            self.forget(ticket)
        for ref in [ref for ref, f in self.calls.items() if f.slot == label]:
            del self.calls[ref]  # the start of the worker
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
