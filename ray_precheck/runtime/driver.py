"""The loop: Ray's news to the scheduler, the scheduler's commands to Ray, results to the recorder.

Comes in: a plan and where to run it. Goes out: rows on the disk. Called by the session.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import Dump
from ray_precheck.errors import StoppedError
from ray_precheck.plan.planner import Plan
from ray_precheck.runtime.cluster import living_nodes, require_own_node
from ray_precheck.runtime.devices import DEFAULT_SPARES, move_slots
from ray_precheck.runtime.process import START_TIMEOUT_S
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.recorder import Recorder
from ray_precheck.runtime.scheduler import (
    Command,
    GiveUpDevice,
    Record,
    Scheduler,
    SendBatch,
    StartWorker,
)
from ray_precheck.runtime.worker import WorkerActor
from ray_precheck.schema.task import DeviceSlot
from ray_precheck.store.resume import RunFiles

POLL_S = 0.2
GRACE_S = 5.0
# How long a worker may take to hand over what is finished once it is told to stop.
_HALT_S = 2.0
# Workers keep the time limits of their records themselves; one that is this late is gone.
_ANSWER_SLACK_S = 60.0
_NODES_INTERVAL_S = 2.0


@dataclass(slots=True)
class _Flight:
    """A call of an actor that has not come back: of which slot, and until when it may take.

    `ticket` is the batch's, 0 for the start of a worker.
    """

    slot: str
    deadline: float
    ticket: int = 0


@dataclass(slots=True)
class _Crew:
    """The actors of a run, by slot, the node that each is on, and what is in flight."""

    workers: dict[str, Any] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    flights: dict[Any, _Flight] = field(default_factory=dict)


class Driver:
    """Drives one run. `stop_requested` is asked between events; it ends the run in good order.

    `spares` is how many processes a worker keeps ready, None for what its kind of device allows.
    """

    def __init__(
        self,
        dump: Dump,
        settings: CheckSettings,
        slots: Sequence[DeviceSlot],
        files: RunFiles,
        stop_requested: Callable[[], bool],
        *,
        spares: int | None = None,
        debug: bool = False,
    ) -> None:
        self._dump = dump
        self._settings = settings
        self._slots = {slot.label: slot for slot in slots}
        self._files = files
        self._stop_requested = stop_requested
        self._spares = spares
        self._debug = debug
        self._crew = _Crew()
        self._given_up: dict[str, str] = {}
        self._nodes = {slot.node_id for slot in slots}
        self._nodes_seen_at = time.monotonic()

    def launch(self) -> None:
        """Start a worker on every slot; they load their frameworks while the plan is made."""
        for label in self._slots:
            self._start_worker(label)

    def run(self, plan: Plan, timeout_s: float, progress: Progress) -> bool:
        """Run the plan; returns True at its end, False where it was stopped on request.

        Raises:
            StoppedError: the disk, the writer or every device is gone; what is written stays.
        """
        with_backward = frozenset(
            task.index for task in plan.tasks if self._dump.calls[task.index].backward is not None
        )
        places = {label: slot.place for label, slot in self._slots.items()}
        scheduler = Scheduler(plan.tasks, places, timeout_s, with_backward)
        recorder = Recorder(self._files, progress)
        recorder.record(list(plan.skipped))
        # Workers were launched already; the scheduler drops the slots that it does not need.
        wanted = {command.slot for command in scheduler.start() if isinstance(command, StartWorker)}
        for label in set(self._slots) - wanted:
            self._dismiss(label)
            del self._slots[label]
        try:
            while not scheduler.finished:
                if self._stop_requested():
                    self._wind_down(scheduler, recorder, progress)
                    return False
                self._step(scheduler, recorder, progress, POLL_S)
            recorder.complete([call.name for call in self._dump.calls])
        finally:
            for label in list(self._crew.workers):
                self._dismiss(label)
        return True

    def _step(
        self, scheduler: Scheduler, recorder: Recorder, progress: Progress, wait_s: float
    ) -> None:
        """Wait for the next news and act on it."""
        refs = [*self._crew.flights, *recorder.pending]
        ready: list[Any] = []
        if refs:
            ready, _ = ray.wait(refs, num_returns=1, timeout=wait_s)
        else:
            time.sleep(wait_s)
        commands: list[Command] = []
        for ref in ready:
            if ref in self._crew.flights:
                commands.extend(self._on_flight(ref, scheduler))
            else:
                recorder.acknowledge(ref)
        commands.extend(self._expired(scheduler))
        commands.extend(self._on_nodes(scheduler, progress))
        self._carry_out(commands, recorder, progress)
        self._carry_out(scheduler.wake(), recorder, progress)
        progress.tick()
        if not scheduler.has_devices:
            recorder.flush()
            reasons = "; ".join(f"{slot}: {reason}" for slot, reason in self._given_up.items())
            raise StoppedError(f"no device is left: {reasons}")

    def _on_flight(self, ref: Any, scheduler: Scheduler) -> list[Command]:
        flight = self._crew.flights.pop(ref)
        try:
            report = ray.get(ref)
        except RayTaskError as error:
            if flight.ticket == 0:  # It says why it cannot start, and can be asked again.
                return scheduler.start_failed(flight.slot, _start_reason(error))
            return self._lose(flight, scheduler, f"its worker failed: {_first_line(error)}")
        except RayError as error:
            self._nodes_seen_at = 0.0  # It may be the node that is gone.
            if flight.ticket == 0:
                self._dismiss(flight.slot)
                return scheduler.start_failed(flight.slot, _start_reason(error))
            if isinstance(error, OutOfMemoryError):
                # Ray may have stopped it for the memory of a neighbour.
                reason = "ran out of memory: Ray stopped its worker to keep the machine alive"
                return self._lose(flight, scheduler, reason)
            reason = f"its worker was lost with it every time ({type(error).__name__})"
            return self._lose(flight, scheduler, reason)
        if flight.ticket == 0:
            return scheduler.worker_ready(flight.slot)
        return scheduler.batch_done(flight.slot, flight.ticket, report)

    def _lose(self, flight: _Flight, scheduler: Scheduler, reason: str) -> list[Command]:
        self._dismiss(flight.slot)
        return scheduler.worker_lost(flight.slot, flight.ticket, reason)

    def _expired(self, scheduler: Scheduler) -> list[Command]:
        """Give up waiting for workers whose machine does not answer any more."""
        now = time.monotonic()
        late = [ref for ref, flight in self._crew.flights.items() if flight.deadline < now]
        commands: list[Command] = []
        for ref in late:
            flight = self._crew.flights.pop(ref)
            if flight.ticket == 0:
                self._dismiss(flight.slot)
                reason = f"it did not start in {START_TIMEOUT_S:g} s"
                commands.extend(scheduler.start_failed(flight.slot, reason))
            else:
                reason = "its worker was lost with it every time (no answer)"
                commands.extend(self._lose(flight, scheduler, reason))
        return commands

    def _on_nodes(self, scheduler: Scheduler, progress: Progress) -> list[Command]:
        """Look now and then for nodes that have left or joined; move the slots of the CPU."""
        if time.monotonic() - self._nodes_seen_at < _NODES_INTERVAL_S:
            return []
        self._nodes_seen_at = time.monotonic()
        nodes = living_nodes()
        require_own_node(nodes)
        alive = {node.node_id for node in nodes}
        if alive == self._nodes:
            return []
        self._nodes = alive
        commands: list[Command] = []
        for slot in move_slots(list(self._slots.values()), nodes):
            before = self._slots[slot.label]
            gone = before.node_id not in alive
            why = f"node {before.address} is gone" if gone else "a node has joined"
            progress.say(f"{why}: {slot.label} moves to {slot.address}")
            self._slots[slot.label] = slot
            self._given_up.pop(slot.label, None)
            if gone:
                commands.extend(self._abandon(slot.label, scheduler))
            commands.extend(scheduler.revive(slot.label, slot.place))
        return commands

    def _abandon(self, label: str, scheduler: Scheduler) -> list[Command]:
        """Wait no longer for a worker whose node is dead; what it still says is ignored."""
        flights = [f for f in self._crew.flights.values() if f.slot == label and f.ticket]
        self._dismiss(label)
        reason = "its worker was lost with it every time (its node died)"
        return [
            command
            for flight in flights
            for command in scheduler.worker_lost(label, flight.ticket, reason)
            if not isinstance(command, StartWorker)  # `revive` starts it at its new place
        ]

    def _carry_out(
        self, commands: Sequence[Command], recorder: Recorder, progress: Progress
    ) -> None:
        for command in commands:
            match command:
                case StartWorker(slot):
                    self._start_worker(slot)
                case SendBatch(slot, ticket, tasks, limits_s):
                    payloads = [self._dump.payload(task) for task in tasks]
                    ref = self._crew.workers[slot].run.remote(payloads, limits_s)
                    deadline = time.monotonic() + sum(limits_s) + _ANSWER_SLACK_S
                    self._crew.flights[ref] = _Flight(slot, deadline, ticket)
                case Record(results):
                    recorder.record(results)
                case GiveUpDevice(slot, reason):
                    self._given_up[slot] = reason
                    self._dismiss(slot)
                    progress.say(f"device {slot} is given up: {reason}")

    def _start_worker(self, label: str) -> None:
        """Have a fresh worker on a slot: from the actor that is there, or from a new one."""
        slot = self._slots[label]
        if self._crew.homes.get(label) != slot.node_id:
            self._dismiss(label)
        if any(f.slot == label and not f.ticket for f in self._crew.flights.values()):
            return  # It starts already: lost and moved at the same time.
        if label not in self._crew.workers:
            affinity = NodeAffinitySchedulingStrategy(slot.node_id, soft=False)
            spares = DEFAULT_SPARES[slot.kind] if self._spares is None else self._spares
            self._crew.workers[label] = WorkerActor.options(scheduling_strategy=affinity).remote(
                slot, self._settings, spares, debug=self._debug
            )
            self._crew.homes[label] = slot.node_id
        deadline = time.monotonic() + START_TIMEOUT_S + _ANSWER_SLACK_S
        self._crew.flights[self._crew.workers[label].open.remote()] = _Flight(label, deadline)

    def _dismiss(self, label: str) -> None:
        """Kill a worker, with its processes, and forget what it has in flight."""
        worker = self._crew.workers.pop(label, None)
        self._crew.homes.pop(label, None)
        if worker is not None:
            ray.kill(worker)
        for ref in [ref for ref, f in self._crew.flights.items() if f.slot == label]:
            del self._crew.flights[ref]

    def _wind_down(self, scheduler: Scheduler, recorder: Recorder, progress: Progress) -> None:
        """Give batches in flight a few seconds, then have them ended; write what is finished."""
        scheduler.drain()
        self._step_until_empty(GRACE_S, scheduler, recorder, progress)
        for label in scheduler.busy_slots:
            self._crew.workers[label].halt.remote()
        self._step_until_empty(_HALT_S, scheduler, recorder, progress)
        recorder.flush()

    def _step_until_empty(
        self, seconds: float, scheduler: Scheduler, recorder: Recorder, progress: Progress
    ) -> None:
        until = time.monotonic() + seconds
        while scheduler.in_flight and time.monotonic() < until:
            wait_s = max(0.0, min(POLL_S, until - time.monotonic()))
            self._step(scheduler, recorder, progress, wait_s)


def _start_reason(error: RayError) -> str:
    """Return why a worker did not start, as one line."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        return _first_line(error.cause)
    return f"its worker died while it started ({type(error).__name__})"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0]
