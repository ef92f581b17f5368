"""The loop: Ray's news to the scheduler, the scheduler's commands to Ray, results to the writer.

Comes in: a plan and where to run it. Goes out: rows on the disk. Called by the session.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import Dump
from ray_precheck.errors import PrecheckError, StoppedError
from ray_precheck.plan.planner import Plan
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.scheduler import (
    Command,
    GiveUpDevice,
    Report,
    Scheduler,
    SendBatch,
    StartWorker,
)
from ray_precheck.runtime.worker import WorkerActor
from ray_precheck.runtime.writer import WriterActor
from ray_precheck.schema.result import Outcome, TaskResult
from ray_precheck.schema.task import DeviceSlot
from ray_precheck.store.resume import RunFiles

POLL_S = 0.2
START_TIMEOUT_S = 300.0
GRACE_S = 5.0
_MAX_UNACKNOWLEDGED = 8


@dataclass(slots=True)
class _Flight:
    """A call of an actor that has not come back: of which slot, and until when it may take."""

    slot: str
    deadline: float
    starting: bool


@dataclass(slots=True)
class _Crew:
    """The actors of a run, by slot, and what is in flight."""

    workers: dict[str, Any] = field(default_factory=dict)
    flights: dict[Any, _Flight] = field(default_factory=dict)
    unacknowledged: dict[Any, Sequence[TaskResult]] = field(default_factory=dict)


class Driver:
    """Drives one run. `stop_requested` is asked between events; it ends the run in good order."""

    def __init__(
        self,
        dump: Dump,
        settings: CheckSettings,
        slots: Sequence[DeviceSlot],
        files: RunFiles,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._dump = dump
        self._settings = settings
        self._slots = {slot.label: slot for slot in slots}
        self._stop_requested = stop_requested
        self._crew = _Crew()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._writer = WriterActor.options(scheduling_strategy=here).remote(
            files.result, files.details
        )
        self._given_up: list[str] = []

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
        scheduler = Scheduler(plan.tasks, self._slots, timeout_s, with_backward)
        self._record(list(plan.skipped), progress)
        # Workers were launched already; the scheduler drops the slots that it does not need.
        wanted = {command.slot for command in scheduler.start() if isinstance(command, StartWorker)}
        for slot in set(self._slots) - wanted:
            self._dismiss(slot)
        try:
            while not scheduler.finished:
                if self._stop_requested():
                    self._wind_down(scheduler, progress)
                    return False
                self._step(scheduler, progress, POLL_S)
            self._await_writer(progress)
            self._ask_writer(self._writer.complete.remote([call.name for call in self._dump.calls]))
        finally:
            self._kill_workers()
        return True

    def _step(self, scheduler: Scheduler, progress: Progress, wait_s: float) -> None:
        """Wait for the next news and act on it."""
        refs = [*self._crew.flights, *self._crew.unacknowledged]
        ready: list[Any] = []
        if refs:
            ready, _ = ray.wait(refs, num_returns=1, timeout=wait_s)
        else:
            time.sleep(wait_s)
        for ref in ready:
            if ref in self._crew.unacknowledged:
                self._acknowledge(ref, progress)
            else:
                self._carry_out(self._on_flight(ref, scheduler, progress), scheduler, progress)
        self._carry_out(self._expired(scheduler), scheduler, progress)
        self._carry_out(scheduler.wake(), scheduler, progress)
        progress.tick()
        if not scheduler.has_devices:
            self._await_writer(progress)
            reasons = "; ".join(self._given_up)
            raise StoppedError(f"no device is left: {reasons}")

    def _on_flight(self, ref: Any, scheduler: Scheduler, progress: Progress) -> list[Command]:
        flight = self._crew.flights.pop(ref)
        try:
            results = ray.get(ref)
        except RayError as error:
            self._dismiss(flight.slot)
            if flight.starting:
                return scheduler.start_failed(flight.slot, _start_reason(error))
            return scheduler.worker_lost(flight.slot, _loss_reason(error), Outcome.CRASHED)
        if flight.starting:
            return scheduler.worker_ready(flight.slot)
        self._record(results, progress)
        return scheduler.batch_done(flight.slot, results)

    def _expired(self, scheduler: Scheduler) -> list[Command]:
        """Kill the workers whose time is over."""
        now = time.monotonic()
        late = {ref: f for ref, f in self._crew.flights.items() if f.deadline < now}
        commands: list[Command] = []
        for ref, flight in late.items():
            del self._crew.flights[ref]
            self._dismiss(flight.slot)
            if flight.starting:
                reason = f"it did not start in {START_TIMEOUT_S:g} s"
                commands.extend(scheduler.start_failed(flight.slot, reason))
                continue
            reason = f"no answer in {scheduler.timeout_s:g} s (--timeout)"
            commands.extend(scheduler.worker_lost(flight.slot, reason, Outcome.TIMED_OUT))
        return commands

    def _carry_out(
        self, commands: Sequence[Command], scheduler: Scheduler, progress: Progress
    ) -> None:
        for command in commands:
            match command:
                case StartWorker(slot):
                    self._start_worker(slot)
                case SendBatch(slot, tasks, deadline_s):
                    payloads = [self._dump.payload(task) for task in tasks]
                    ref = self._crew.workers[slot].run.remote(payloads)
                    self._crew.flights[ref] = _Flight(slot, time.monotonic() + deadline_s, False)
                case Report(result):
                    self._record([result], progress)
                case GiveUpDevice(slot, reason):
                    self._given_up.append(f"{slot}: {reason}")
                    progress.say(f"device {slot} is given up: {reason}")

    def _start_worker(self, label: str) -> None:
        slot = self._slots[label]
        affinity = NodeAffinitySchedulingStrategy(slot.node_id, soft=False)
        worker = WorkerActor.options(scheduling_strategy=affinity).remote(slot, self._settings)
        self._crew.workers[label] = worker
        deadline = time.monotonic() + START_TIMEOUT_S
        self._crew.flights[worker.open.remote()] = _Flight(label, deadline, True)

    def _dismiss(self, slot: str) -> None:
        """Kill a worker and forget what it has in flight."""
        worker = self._crew.workers.pop(slot, None)
        if worker is not None:
            ray.kill(worker)
        for ref in [ref for ref, f in self._crew.flights.items() if f.slot == slot]:
            del self._crew.flights[ref]

    def _kill_workers(self) -> None:
        for slot in list(self._crew.workers):
            self._dismiss(slot)

    def _record(self, results: Sequence[TaskResult], progress: Progress) -> None:
        """Hand results to the writer; wait for it where it falls behind."""
        if results:
            self._crew.unacknowledged[self._writer.append.remote(results)] = results
        while len(self._crew.unacknowledged) > _MAX_UNACKNOWLEDGED:
            self._acknowledge(next(iter(self._crew.unacknowledged)), progress)

    def _acknowledge(self, ref: Any, progress: Progress) -> None:
        results = self._crew.unacknowledged.pop(ref)
        self._ask_writer(ref)
        progress.add(results)

    def _await_writer(self, progress: Progress) -> None:
        for ref in list(self._crew.unacknowledged):
            self._acknowledge(ref, progress)

    def _ask_writer(self, ref: Any) -> None:
        """Wait for an answer of the writer; its death or a full disk ends the run, resumable."""
        try:
            ray.get(ref)
        except RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, PrecheckError) else StoppedError(str(cause)) from None
        except RayActorError:
            raise StoppedError("the process that writes the results died") from None

    def _wind_down(self, scheduler: Scheduler, progress: Progress) -> None:
        """Give batches in flight a few seconds, then write what has come back."""
        scheduler.drain()
        until = time.monotonic() + GRACE_S
        while scheduler.in_flight and time.monotonic() < until:
            self._step(scheduler, progress, max(0.0, min(POLL_S, until - time.monotonic())))
        self._await_writer(progress)


def _start_reason(error: RayError) -> str:
    """Return why a worker did not start, as one line."""
    if isinstance(error, RayTaskError) and error.cause is not None:
        return f"{type(error.cause).__name__}: {_first_line(error.cause)}"
    return f"its worker died while it started ({type(error).__name__})"


def _loss_reason(error: RayError) -> str:
    """Return what became of a worker, as one line."""
    if isinstance(error, RayActorError):
        return "killed its worker"
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0]
