"""The loop: Ray's news to the scheduler, the scheduler's commands to Ray, results to the recorder.

Comes in: a plan and where to run it. Goes out: rows on the disk. Called by the session.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import Dump
from ray_precheck.errors import StoppedError
from ray_precheck.plan.planner import Plan
from ray_precheck.runtime.crew import Crew, DriveOptions, Flight, first_line, start_reason
from ray_precheck.runtime.places.bench_slots import follow_cores, number_cores, place_benches
from ray_precheck.runtime.places.cluster import Roster, require_own_node
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.placement import DeviceRequest, follow_nodes, usable_nodes
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.recorder import Recorder
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
from ray_precheck.runtime.scheduling.cost_model import CostModel
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.tensors.shipper import Shipper
from ray_precheck.runtime.workers.process import START_TIMEOUT_S
from ray_precheck.schema.casualty import BatchReport
from ray_precheck.schema.result import TaskResult
from ray_precheck.schema.task import DeviceSlot
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.timeline import Span, Timeline

POLL_S = 0.2
GRACE_S = 5.0
# How long a worker may take to hand over what is finished once it is told to stop.
_HALT_S = 2.0
_NODES_INTERVAL_S = 2.0
_SKIPS_A_MESSAGE = 4096
# The share of the smallest object store that may wait for benches; Ray spills above 80 %. And of the
# memory of a record: what waits is in memory once more with its float64 copies when it is its turn.
_STORE_SHARE = 0.4
_MEMORY_SHARE = 0.1
# What captured files on their way to other machines may take of the driver's object store.
_SHIPPED_SHARE = 0.3


@dataclass(slots=True)
class _Run:
    """What a run acts on. The timeline is opened once the writer has the files of the run."""

    scheduler: Scheduler
    recorder: Recorder
    progress: Progress
    timeline: Timeline | None = None


class Driver:
    """Drives one run on the slots of a request. `nodes` are those of the cluster, the driver's first.

    `stop_requested` is asked between events; it ends the run in good order.
    """

    def __init__(
        self,
        dump: Dump,
        settings: CheckSettings,
        request: DeviceRequest,
        slots: Sequence[DeviceSlot],
        roster: Roster,
        files: RunFiles,
        stop_requested: Callable[[], bool],
        options: DriveOptions,
    ) -> None:
        self._dump = dump
        self._settings = settings
        self._request = request
        self._slots = {slot.label: slot for slot in number_cores(slots)}
        self._machines: dict[str, str] = {}
        self._benches: dict[str, DeviceSlot] = {}
        self._most_benches = 0
        self._roster = roster
        self._nodes = roster.nodes()
        self._nodes_seen_at = time.monotonic()
        self._files = files
        self._stop_requested = stop_requested
        self._options = options
        self._crew = Crew(dump, settings, options, self._nodes[0].node_id, self._shipper())
        for slot in self._slots.values():
            self._know(slot)
        self._given_up: dict[str, str] = {}

    def _shipper(self) -> Shipper | None:
        if self._settings.task != "tensor" or self._options.shared_fs:
            return None
        most_bytes = int(_SHIPPED_SHARE * self._nodes[0].store_bytes)
        return Shipper(
            self._dump,
            most_bytes,
            put=ray.put,
            with_results=self._settings.tests_dump,
            memory_limit_bytes=self._settings.memory_limit_bytes,
        )

    def launch(self) -> None:
        """Start a worker on every slot; they load their frameworks while the plan is made."""
        for label in self._slots:
            self._crew.start(label)

    def run(self, plan: Plan, progress: Progress) -> bool:
        """Run the plan; returns True at its end, False where it was stopped on request.

        Raises:
            StoppedError: the disk, the writer or every device is gone; what is written stays.
        """
        run = _Run(self._scheduler(plan), Recorder(self._files, progress), progress)
        for first in range(0, len(plan.skipped), _SKIPS_A_MESSAGE):
            run.recorder.record(plan.skipped[first : first + _SKIPS_A_MESSAGE])
        try:
            # Workers were launched already; the scheduler drops the slots that it does not need.
            commands = run.scheduler.start()
            wanted = {command.slot for command in commands if isinstance(command, StartWorker)}
            for label in set(self._slots) - wanted:
                self._crew.dismiss(label)
                del self._slots[label]
            for label in self._benches:
                self._crew.start(label)
            while not run.scheduler.finished:
                if self._stop_requested():
                    self._wind_down(run)
                    return False
                self._step(run, POLL_S)
            run.recorder.complete([call.name for call in self._dump.calls])
        finally:
            self.close()
            run.recorder.close()
            if run.timeline is not None:
                run.timeline.close()
        return True

    def close(self) -> None:
        """End every worker; safe to call twice."""
        self._crew.dismiss_all()

    def _scheduler(self, plan: Plan) -> Scheduler:
        """Return the scheduler of the plan; chooses the bench workers."""
        model = CostModel()
        alone = self._settings.tests_dump
        worth = int(model.worthwhile_benches(plan.tasks, has_device=not alone))
        if alone:
            worth = min(worth, len(plan.tasks) - len(self._slots))
        wanted = self._options.bench_workers
        self._most_benches = worth if wanted is None else wanted
        nodes = usable_nodes(self._request, self._nodes)
        self._benches = {
            slot.label: slot
            for slot in place_benches(
                list(self._slots.values()), nodes, self._most_benches, crowded=wanted is not None
            )
        }
        self._crew.slots.update(self._benches)
        stores = [_STORE_SHARE * node.store_bytes for node in nodes if node.store_bytes]
        if self._settings.memory_limit_bytes:
            stores.append(_MEMORY_SHARE * self._settings.memory_limit_bytes)
        bench = BenchStage(
            {label: slot.place for label, slot in self._benches.items()},
            int(min(stores, default=0)),
        )
        with_backward = frozenset(
            task.index for task in plan.tasks if self._dump.calls[task.index].backward is not None
        )
        return Scheduler(
            plan.tasks,
            {label: slot.place for label, slot in self._slots.items()},
            self._options.timeout_s,
            with_backward,
            bench=bench,
            bench_suffices=alone,
            ahead=frozenset(filter(self._crew.needs_files, self._crew.slots)),
            machines=self._machines,
            model=model,
        )

    def _step(self, run: _Run, wait_s: float) -> None:
        """Wait for the next news and act on them."""
        commands: list[Command] = []
        spans: list[Span] = []
        for ref in self._news(run.recorder, wait_s):
            if ref in self._crew.flights:
                commands.extend(self._on_flight(ref, run.scheduler, spans))
            else:
                run.recorder.acknowledge(ref)
        commands.extend(self._expired(run.scheduler))
        commands.extend(self._on_nodes(run))
        self._carry_out([*commands, *run.scheduler.wake()], run)
        self._crew.send_held()
        self._note(spans, run)
        run.progress.tick()
        if not run.scheduler.has_devices:
            run.recorder.flush()
            reasons = "; ".join(f"{slot}: {reason}" for slot, reason in self._given_up.items())
            raise StoppedError(f"no device is left: {reasons}")

    def _note(self, spans: Sequence[Span], run: _Run) -> None:
        """Add to the timeline."""
        if spans and run.timeline is None:
            # The writer has locked the files by then: nobody else has this timeline.
            run.recorder.flush()
            run.timeline = Timeline.open(self._files.timeline)
        if spans and run.timeline is not None:
            run.timeline.add(spans)

    def _news(self, recorder: Recorder, wait_s: float) -> list[Any]:
        """Wait for something to come back; return everything that has."""
        refs = [*self._crew.flights, *recorder.pending]
        if not refs:
            time.sleep(wait_s)
            return []
        ready: list[Any]
        ready, others = ray.wait(refs, num_returns=1, timeout=wait_s)
        if ready and others:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        return ready

    def _on_flight(self, ref: Any, scheduler: Scheduler, spans: list[Span]) -> list[Command]:
        flight = self._crew.land(ref)
        try:
            report = ray.get(ref)
        except RayTaskError as error:
            if flight.ticket == 0:  # It says why it cannot start, and can be asked again.
                return scheduler.start_failed(flight.slot, start_reason(error))
            return self._lose(flight, scheduler, f"its worker failed: {first_line(error)}")
        except RayError as error:
            self._nodes_seen_at = 0.0  # It may be the node that is gone.
            if flight.ticket == 0:
                self._crew.dismiss(flight.slot)
                return scheduler.start_failed(flight.slot, start_reason(error))
            if isinstance(error, OutOfMemoryError):
                # Ray may have stopped it for the memory of a neighbour.
                reason = "ran out of memory: Ray stopped its worker to keep the machine alive"
                return self._lose(flight, scheduler, reason)
            reason = f"its worker was lost with it every time ({type(error).__name__})"
            return self._lose(flight, scheduler, reason)
        if flight.ticket == 0:
            self._options.on_caveat(report)
            return scheduler.worker_ready(flight.slot)
        if report.measured:
            self._crew.collect(flight)
        if report.refused:
            self._crew.refuse(flight)
        spans.extend(self._spans(flight, report))
        return scheduler.batch_done(flight.slot, flight.ticket, report)

    def _spans(self, flight: Flight, report: BatchReport) -> Iterable[Span]:
        """Yield what a worker did and when, for the timeline."""
        slot = self._crew.slots[flight.slot]
        row = f"{slot.kind}:{slot.device_id}"
        stage = flight.stage.value
        for result in report.results:
            elapsed_s = result.inputs_s + result.device_s + result.bench_s
            yield Span(slot.address, row, result.name, stage, result.began_s, elapsed_s)
        for each in report.measured:
            name = self._dump.calls[each.index].name
            yield Span(slot.address, row, name, stage, each.began_s, each.elapsed_s)

    def _lose(self, flight: Flight, scheduler: Scheduler, reason: str) -> list[Command]:
        self._crew.forget(flight.ticket)
        self._crew.dismiss(flight.slot)
        return scheduler.worker_lost(flight.slot, flight.ticket, reason)

    def _expired(self, scheduler: Scheduler) -> list[Command]:
        """Give up waiting for workers whose machine does not answer any more."""
        commands: list[Command] = []
        for ref in self._crew.late():
            if ref not in self._crew.flights:
                continue  # gone with another one of its worker
            flight = self._crew.land(ref)
            if flight.ticket == 0:
                self._crew.dismiss(flight.slot)
                reason = f"it did not start in {START_TIMEOUT_S:g} s"
                commands.extend(scheduler.start_failed(flight.slot, reason))
            else:
                reason = "its worker was lost with it every time (no answer)"
                commands.extend(self._lose(flight, scheduler, reason))
        return commands

    def _on_nodes(self, run: _Run) -> list[Command]:
        """Look now and then for nodes that have left or joined."""
        if time.monotonic() - self._nodes_seen_at < _NODES_INTERVAL_S:
            return []
        self._nodes_seen_at = time.monotonic()
        nodes = self._roster.nodes()
        require_own_node(nodes)
        before, self._nodes = self._nodes, nodes
        if {node.node_id for node in nodes} == {node.node_id for node in before}:
            return []
        scheduler, progress = run.scheduler, run.progress
        commands = self._follow_cores(scheduler, before)
        changes = follow_nodes(self._request, list(self._slots.values()), nodes)
        left = {node.node_id for node in before}
        for slot in (slot for slot in changes.lost if slot.node_id in left):
            commands.extend(self._abandon(slot.label, scheduler))
            progress.say(f"node {slot.address} is gone, and {slot.label} with it")
        for slot in changes.moved:
            commands.extend(self._move(slot, scheduler, progress))
        for slot in changes.added:
            progress.say(f"a node has joined: {slot.label} on {slot.address}")
            self._know(slot)
            commands.extend(scheduler.add_slot(slot.label, slot.place))
        scheduler.ahead = frozenset(filter(self._crew.needs_files, self._crew.slots))
        return commands

    def _move(self, slot: DeviceSlot, scheduler: Scheduler, progress: Progress) -> list[Command]:
        before = self._slots[slot.label]
        gone = before.node_id not in {node.node_id for node in self._nodes}
        why = f"node {before.address} is gone" if gone else "a node has joined"
        progress.say(f"{why}: {slot.label} moves to {slot.address}")
        self._know(slot)
        commands = self._abandon(slot.label, scheduler) if gone else []
        self._given_up.pop(slot.label, None)
        return [*commands, *scheduler.revive(slot.label, slot.place)]

    def _know(self, slot: DeviceSlot) -> None:
        self._slots[slot.label] = self._crew.slots[slot.label] = slot
        if slot.place != slot.node_id:
            self._machines[slot.label] = slot.node_id

    def _abandon(self, label: str, scheduler: Scheduler) -> list[Command]:
        """Wait no longer for a worker whose node is dead; what it still says is ignored."""
        self._crew.dismiss(label)
        self._given_up[label] = "its node is gone"
        reason = "its worker was lost with it every time (its node died)"
        return scheduler.slot_lost(label, reason)

    def _follow_cores(self, scheduler: Scheduler, before: Sequence[Node]) -> list[Command]:
        """Have bench workers on the nodes that are there now."""
        alive = {node.node_id for node in self._nodes}
        commands: list[Command] = []
        for node in before:
            if node.node_id in alive:
                continue
            labels = [n for n, slot in self._benches.items() if slot.node_id == node.node_id]
            for label in labels:
                self._crew.dismiss(label)
                del self._benches[label]
            commands.extend(scheduler.place_lost(node.node_id, labels))
        nodes = usable_nodes(self._request, self._nodes)
        slots, benches = list(self._slots.values()), list(self._benches.values())
        for slot in follow_cores(slots, benches, nodes, self._most_benches):
            self._benches[slot.label] = self._crew.slots[slot.label] = slot
            commands.extend(scheduler.add_bench(slot.label, slot.place))
        return commands

    def _carry_out(self, commands: Sequence[Command], run: _Run) -> None:
        results: list[TaskResult] = []
        for command in commands:
            match command:
                case StartWorker(slot):
                    self._crew.start(slot)
                case SendBatch():
                    self._crew.send(command)
                case Prepare(_, ticket, tasks):
                    if self._crew.shipper is not None:
                        self._crew.shipper.prepare(ticket, tasks)
                case Forget(ticket):
                    self._crew.forget(ticket)
                case Record(found):
                    results.extend(found)
                case GiveUpDevice(slot, reason):
                    if slot in self._slots:
                        self._given_up[slot] = reason
                    self._crew.dismiss(slot)
                    run.progress.say(f"device {slot} is given up: {reason}")
        # Last, and in one piece: workers wait for their batches, and a write is as slow as the disk.
        run.recorder.record(results)

    def _wind_down(self, run: _Run) -> None:
        """Give batches in flight a few seconds, then have them ended; write what is finished."""
        run.scheduler.drain()
        self._step_until_empty(GRACE_S, run)
        self._crew.halt(run.scheduler.busy_slots)
        self._step_until_empty(_HALT_S, run)
        run.recorder.flush()

    def _step_until_empty(self, seconds: float, run: _Run) -> None:
        until = time.monotonic() + seconds
        while run.scheduler.in_flight and time.monotonic() < until:
            self._step(run, max(0.0, min(POLL_S, until - time.monotonic())))
