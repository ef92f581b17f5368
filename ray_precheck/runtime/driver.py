"""The loop: news of the actors to the scheduler, its commands to the actors, results to the recorder.

Comes in: a job, its tasks and where to run them. Goes out: rows on the disk. Called by
`runtime.driving`; the simulated histories and the simulation of large clusters run the same loop.

Also here: which slots a run has on which machines, while nodes leave and join.

Which processor cores are free for benches; pure. A worker of a device takes one core of its machine; the
others are spare, also those of machines without a device.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

from ray_precheck.errors import StoppedError
from ray_precheck.runtime.actors import ActorError, ActorLost, Actors, CallFailed
from ray_precheck.runtime.crew import Crew, PendingCall, WorkerOptions, start_reason
from ray_precheck.runtime.job import GrowingJob, Job
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
from ray_precheck.runtime.scheduling.queue import CostModel
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.scheduling.slots import CRASHES_NEEDED
from ray_precheck.runtime.shipper import Shipper
from ray_precheck.runtime.workers.process import SILENT_S, START_TIMEOUT_S
from ray_precheck.schema.task import BENCH, BatchReport, Cause, DeviceSlot, Done, Task
from ray_precheck.store.tables import RunFiles
from ray_precheck.store.timeline import CRASH, Span, Track


def number_cores(slots: Sequence[DeviceSlot]) -> list[DeviceSlot]:
    """Return the slots with a core each: on every machine they take the first ones in turn."""
    cores: defaultdict[str, Iterator[int]] = defaultdict(count)
    return [replace(slot, core=next(cores[slot.node_id])) for slot in slots]


def place_benches(
    slots: Sequence[DeviceSlot],
    nodes: Sequence[Node],
    most: int,
    *,
    benches: Sequence[DeviceSlot] = (),
    crowded: bool = False,
) -> list[DeviceSlot]:
    """Return new slots for benches, spread over the spare cores of all nodes, which are at most `most` with
    the `benches` that there are.

    The driver's node comes last: it has the driver to run. `crowded`: exactly so many are wanted,
    also where there are fewer cores.
    """
    used = Counter(slot.node_id for slot in [*slots, *benches])
    spare = {node.node_id: node.cores - used[node.node_id] for node in nodes}
    number = max((slot.device_id for slot in benches), default=-1) + 1
    order = [*nodes[1:], *nodes[:1]]
    placed: list[DeviceSlot] = []
    while order and len(benches) + len(placed) < most:
        node = max(order, key=lambda each: spare[each.node_id])
        if spare[node.node_id] <= 0 and not crowded:
            break
        # Cores are counted from 0 on each machine, those of device workers first.
        core = max(0, node.cores - spare[node.node_id]) % max(1, node.cores)
        slot = DeviceSlot(BENCH, number + len(placed), node.node_id, node.address, "", "", core)
        placed.append(slot)
        spare[node.node_id] -= 1
    return placed


_NODES_INTERVAL_S = 2.0
# What the row of a record says whose worker was lost with it as often as it may be.
LOST = f"the worker process died on each of {CRASHES_NEEDED[Cause.LOST]} attempts"

CarryOut = Callable[[Sequence[Command]], None]


class Machines:
    """The device slots and the bench workers of a run by label, and where they are.

    `of_slots` says where slots are whose place is not their machine. `given_up` has the reason why a
    device is not used any more.
    """

    def __init__(
        self, actors: Actors, crew: Crew, request: DeviceRequest, slots: Sequence[DeviceSlot]
    ) -> None:
        self._actors = actors
        self._crew = crew
        self._request = request
        self._most_benches = 0
        self.nodes = actors.nodes()
        self._seen_at = actors.clock()
        self.slots: dict[str, DeviceSlot] = {}
        self.benches: dict[str, DeviceSlot] = {}
        self.of_slots: dict[str, str] = {}
        self.given_up: dict[str, str] = {}
        for slot in number_cores(slots):
            self._know(slot)

    def usable(self) -> list[Node]:
        """Return the nodes that the run may use."""
        return usable_nodes(self._request, self.nodes)

    def place_benches(self, most: int, *, crowded: bool) -> None:
        """Choose the bench workers, at most so many; `crowded`: also where a device has the core."""
        self._most_benches = most
        slots = list(self.slots.values())
        for slot in place_benches(slots, self.usable(), most, crowded=crowded):
            self.benches[slot.label] = self._crew.slots[slot.label] = slot

    def keep_only(self, wanted: set[str]) -> None:
        """Drop the device slots for which there is nothing to do."""
        for label in set(self.slots) - wanted:
            self._crew.dismiss(label)
            del self.slots[label]

    def ahead(self) -> frozenset[str]:
        """Return the slots to which files have to be sent before their batches."""
        return frozenset(filter(self._crew.needs_files, [*self.slots, *self.benches]))

    def look_soon(self) -> None:
        """Look at the nodes in the next step: one of them may be gone."""
        self._seen_at = -_NODES_INTERVAL_S

    def follow(self, scheduler: Scheduler, progress: Progress, carry_out: CarryOut) -> None:
        """Look now and then for nodes that have left or joined, and follow them.

        Raises:
            StoppedError: the driver's own node is gone.
        """
        now = self._actors.clock()
        if now - self._seen_at < _NODES_INTERVAL_S:
            return
        self._seen_at = now
        before, self.nodes = self.nodes, self._actors.nodes()
        if {node.node_id for node in self.nodes} == {node.node_id for node in before}:
            return
        self._follow_cores(scheduler, before, carry_out)
        changes = follow_nodes(self._request, list(self.slots.values()), self.nodes)
        left = {node.node_id for node in before}
        for slot in (slot for slot in changes.lost if slot.node_id in left):
            carry_out(self._abandon(slot.label, scheduler))
            progress.say(f"node {slot.address} is gone, and {slot.label} with it")
        for slot in changes.moved:
            self._move(slot, scheduler, progress, carry_out)
        for slot in changes.added:
            progress.say(f"a node has joined: {slot.label} on {slot.address}")
            self._know(slot)
            scheduler.send_files_to(self.ahead())
            carry_out(scheduler.add_slot(slot.label, slot.place))
        scheduler.send_files_to(self.ahead())

    def _move(
        self, slot: DeviceSlot, scheduler: Scheduler, progress: Progress, carry_out: CarryOut
    ) -> None:
        before = self.slots[slot.label]
        gone = before.node_id not in {node.node_id for node in self.nodes}
        why = f"node {before.address} is gone" if gone else "a node has joined"
        progress.say(f"{why}: {slot.label} moves to {slot.address}")
        self._know(slot)
        scheduler.send_files_to(self.ahead())
        if gone:
            carry_out(self._abandon(slot.label, scheduler))
        self.given_up.pop(slot.label, None)
        carry_out(scheduler.revive(slot.label, slot.place))

    def _know(self, slot: DeviceSlot) -> None:
        self.slots[slot.label] = self._crew.slots[slot.label] = slot
        if slot.place != slot.node_id:
            self.of_slots[slot.label] = slot.node_id

    def _abandon(self, label: str, scheduler: Scheduler) -> list[Command]:
        """Wait no longer for a worker whose node is dead; what it still says is ignored."""
        self._crew.dismiss(label)
        self.given_up[label] = "its node is gone"
        return scheduler.slot_lost(label, f"{LOST} (its node died)")

    def _follow_cores(
        self, scheduler: Scheduler, before: Sequence[Node], carry_out: CarryOut
    ) -> None:
        """Have bench workers on the nodes that are there now."""
        alive = {node.node_id for node in self.nodes}
        for node in before:
            if node.node_id in alive:
                continue
            labels = [n for n, slot in self.benches.items() if slot.node_id == node.node_id]
            for label in labels:
                self._crew.dismiss(label)
                del self.benches[label]
            carry_out(scheduler.place_lost(node.node_id, labels))
        slots, benches = list(self.slots.values()), list(self.benches.values())
        for slot in place_benches(slots, self.usable(), self._most_benches, benches=benches):
            self.benches[slot.label] = self._crew.slots[slot.label] = slot
            scheduler.send_files_to(self.ahead())
            carry_out(scheduler.add_bench(slot.label, slot.place))


POLL_S = 0.2
GRACE_S = 5.0
# How long a worker may take to hand over its finished results once it is told to stop.
_HALT_S = 2.0
_SETTLED_A_MESSAGE = 4096
# How many answers are taken in one step, so that the writer does not get everything at once when many
# have come; the others are taken in the next step.
_ANSWERS_A_STEP = 64
# The time between two waits for each call in flight: a wait over 1,024 calls takes 1.4 ms
# (cluster/README, "Scale"), so waits take 5 % of the driver's time.
_GATHER_S_A_CALL = 25e-6
# Transfers that wait for benches may take this share of the smallest object store; Ray spills above 80 %.
# They may also take only this share of a record's memory: when a bench judges a transfer, its tensors are
# in memory a second time, with their float64 copies.
_STORE_SHARE = 0.4
_MEMORY_SHARE = 0.1
# The share of the driver's object store that files on their way to other machines may take.
_SHIPPED_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """How a run is driven.

    `timeout_s` is the time limit of a cheap record. `bench_workers`: None for as many as there are
    cores to spare and benches to run. `on_caveat` is called with the caveat of each device that is
    opened, "" for none. `workers` are the options of every worker.
    """

    timeout_s: float = 300.0
    bench_workers: int | None = None
    workers: WorkerOptions = field(default_factory=WorkerOptions)
    on_caveat: Callable[[str], None] = lambda caveat: None


@dataclass(slots=True)
class _Run:
    """The parts of a run; a step hands `finished` and `tracks` to the recorder at its end."""

    scheduler: Scheduler
    recorder: Recorder
    progress: Progress
    finished: list[Done] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=list)


class Driver:
    """Drives one run on the slots of a request.

    `stop_requested` is called between steps; when it returns True the run ends in good order.
    """

    def __init__(
        self,
        job: Job,
        actors: Actors,
        request: DeviceRequest,
        slots: Sequence[DeviceSlot],
        files: RunFiles,
        stop_requested: Callable[[], bool],
        options: DriveOptions,
        *,
        shipper: Shipper | None = None,
    ) -> None:
        self._job = job
        self._growing = job if isinstance(job, GrowingJob) else None
        self._actors = actors
        self._files = files
        self._stop_requested = stop_requested
        self._options = options
        self._heard_at = actors.clock()
        home = actors.nodes()[0]
        if shipper is None and job.input_files is not None:
            most_bytes = int(_SHIPPED_SHARE * home.store_bytes)
            shipper = Shipper(job.input_files, most_bytes, put=actors.put)
        self._crew = Crew(actors, job, options.workers, home.node_id, shipper)
        self._machines = Machines(actors, self._crew, request, slots)

    def launch(self) -> None:
        """Start a worker on every slot; workers load their packages while the plan is made."""
        for label in self._machines.slots:
            self._crew.start(label)

    def run(self, tasks: Sequence[Task], settled: Iterable[Done], progress: Progress) -> bool:
        """Run the tasks, given in the order to run them.

        `settled` are pieces that need no run; they are written first. Returns True at the end, False
        if the run was stopped on request.

        Raises:
            StoppedError: the disk, the writer or every device is gone; the written rows stay.
        """
        recorder = Recorder(self._actors, self._files, self._job.tables, progress)
        run = _Run(self._scheduler(tasks), recorder, progress)
        left = iter(settled)
        while some := tuple(islice(left, _SETTLED_A_MESSAGE)):
            recorder.record(some)
        try:
            # Workers were launched already; those of slots that the scheduler does not need are ended.
            commands = run.scheduler.start()
            wanted = {command.slot for command in commands if isinstance(command, StartWorker)}
            self._machines.keep_only(wanted)
            for label in self._machines.benches:
                self._crew.start(label)
            while not run.scheduler.finished or self._is_open:
                if self._stop_requested():
                    self._wind_down(run)
                    return False
                self._step(run, POLL_S)
            recorder.complete(self._job.names)
        finally:
            self.close()
            # If a step has ended early, the pieces that were finished until then are written here.
            if run.finished or recorder.has_gathered:
                with suppress(StoppedError, ActorError):
                    recorder.record(run.finished, run.tracks)
                    recorder.flush()
            recorder.close()
        return True

    @property
    def _is_open(self) -> bool:
        return self._growing is not None and self._growing.is_open

    def close(self) -> None:
        """End every worker; safe to call twice."""
        self._crew.dismiss_all()

    def _scheduler(self, tasks: Sequence[Task]) -> Scheduler:
        """Choose the bench workers, and return the scheduler of the tasks."""
        job, machines = self._job, self._machines
        model = CostModel()
        wanted = most = self._options.bench_workers if job.has_bench else 0
        if most is None:
            most = int(model.worthwhile_benches(tasks, has_device=not job.bench_suffices))
            if job.bench_suffices:
                most = min(most, len(tasks) - len(machines.slots))
        machines.place_benches(most, crowded=wanted is not None)
        stores = [_STORE_SHARE * n.store_bytes for n in machines.usable() if n.store_bytes]
        if job.memory_limit_bytes:
            stores.append(_MEMORY_SHARE * job.memory_limit_bytes)
        bench = BenchStage(
            {label: slot.place for label, slot in machines.benches.items()},
            int(min(stores, default=0)),
        )
        return Scheduler(
            tasks,
            {label: slot.place for label, slot in machines.slots.items()},
            self._options.timeout_s,
            job,
            bench=bench,
            bench_suffices=job.bench_suffices,
            ahead=machines.ahead(),
            machines=machines.of_slots,
            model=model,
            grows=self._is_open,
        )

    def _step(self, run: _Run, wait_s: float) -> None:
        """Wait for the next news and act on them.

        Several answers, and the loss of a node, may come in one step. The commands of each event are
        carried out before the next event, so that no event is about a worker that is dismissed only
        after it.
        """

        def carry_out(commands: Sequence[Command]) -> None:
            self._carry_out(commands, run)

        for answer in islice(self._news(run.recorder, wait_s), _ANSWERS_A_STEP):
            if answer in self._crew.calls:
                carry_out(self._on_answer(answer, run))
            elif not self._crew.pulses.take(answer):
                run.recorder.acknowledge(answer)
        self._give_up_late(run)
        self._machines.follow(run.scheduler, run.progress, carry_out)
        carry_out(run.scheduler.wake())
        self._crew.send_held()
        # Results are handed over last, and at once: workers wait for batches, and disks are slow.
        finished, tracks = run.finished, run.tracks
        run.finished, run.tracks = [], []
        if self._growing is not None and not run.scheduler.draining:
            run.scheduler.add(self._growing.grow(finished, run.scheduler.room))
            run.scheduler.grows = self._growing.is_open
            carry_out(run.scheduler.wake())
        run.recorder.record(finished, tracks)
        run.progress.tick()
        if not run.scheduler.has_devices:
            run.recorder.flush()
            given_up = self._machines.given_up.items()
            reasons = "; ".join(f"{slot}: {reason}" for slot, reason in given_up)
            raise StoppedError(f"no device is left: {reasons}")

    def _news(self, recorder: Recorder, wait_s: float) -> list[Any]:
        """Wait for something to come back; return everything that has.

        A wait takes the longer the more calls are in flight, so with many of them answers are
        gathered for some milliseconds; workers have their next batch already.
        """
        # The writer first: its few answers must not wait behind those of hundreds of workers.
        pending = [*recorder.pending, *self._crew.pulses.pending, *self._crew.calls]
        since_s = self._actors.clock() - self._heard_at
        gather_s = max(0.0, _GATHER_S_A_CALL * len(pending) - since_s)
        news = self._actors.wait(pending, wait_s, gather_s)
        self._heard_at = self._actors.clock()
        return news

    def _on_answer(self, answer: Any, run: _Run) -> list[Command]:
        call, scheduler = self._crew.land(answer), run.scheduler
        try:
            report = self._actors.result(answer)
        except CallFailed as error:
            if call.ticket == 0:  # The actor says why its worker cannot start, and lives on.
                return scheduler.start_failed(call.slot, start_reason(error))
            return self._lose(call, scheduler, f"its worker failed: {error.reason}")
        except ActorLost as error:
            self._machines.look_soon()
            if call.ticket == 0:
                self._crew.dismiss(call.slot)
                return scheduler.start_failed(call.slot, start_reason(error))
            if error.for_memory:
                # Ray may have stopped the worker for the memory that another process took.
                reason = "ran out of memory: Ray stopped its worker to keep the machine alive"
                return self._lose(call, scheduler, reason)
            return self._lose(call, scheduler, f"{LOST} ({error.reason})")
        if call.ticket == 0:
            self._options.on_caveat(report)
            return scheduler.worker_ready(call.slot)
        if report.measured:
            self._crew.collect(call)
        if report.needs_device:
            self._crew.refuse(call)
        run.tracks.extend(self._tracks(call, report))
        return scheduler.batch_done(call.slot, call.ticket, report)

    def _tracks(self, call: PendingCall, report: BatchReport) -> Iterable[Track]:
        """Yield the tracks of a worker's batch, for the timeline."""
        slot = self._crew.slots[call.slot]
        where = slot.address, f"{slot.kind}:{slot.device_id}", call.stage.value
        if report.results:
            yield Track(*where, report.results)
        if report.measured:
            names = self._job.names
            spans = [
                Span(*where[:2], names[each.index], where[2], each.began_s, each.elapsed_s)
                for each in report.measured
            ]
            yield Track(*where, spans)
        failure = report.failure
        if failure is not None and failure.seen_s:
            name = self._job.names[failure.index]
            yield Track(*where[:2], CRASH, [Span(*where[:2], name, CRASH, failure.seen_s, 0.0)])

    def _lose(self, call: PendingCall, scheduler: Scheduler, reason: str) -> list[Command]:
        self._crew.forget(call.ticket)
        self._crew.dismiss(call.slot)
        return scheduler.worker_lost(call.slot, call.ticket, reason)

    def _give_up_late(self, run: _Run) -> None:
        """Give up waiting for workers that are not heard from any more."""
        for answer in self._crew.late():
            if answer not in self._crew.calls:
                continue  # Its worker was dismissed because of another late pending call.
            call = self._crew.land(answer)
            if call.ticket == 0:
                self._crew.dismiss(call.slot)
                reason = f"its worker was not heard from for {SILENT_S:g} s, or did not start in"
                reason += f" {START_TIMEOUT_S:g} s"
                self._carry_out(run.scheduler.start_failed(call.slot, reason), run)
            else:
                lost = self._lose(call, run.scheduler, f"{LOST} (no answer)")
                self._carry_out(lost, run)

    def _carry_out(self, commands: Sequence[Command], run: _Run) -> None:
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
                    run.finished.extend(found)
                case GiveUpDevice(slot, reason):
                    if slot in self._machines.slots:
                        self._machines.given_up[slot] = reason
                    self._crew.dismiss(slot)
                    run.progress.say(f"device {slot} is given up: {reason}")

    def _wind_down(self, run: _Run) -> None:
        """Give batches in flight a few seconds, then end them; write all finished pieces."""
        run.scheduler.drain()
        if run.scheduler.in_flight:
            run.progress.say(f"stopping: calls that run have {GRACE_S:g} s to come to their ends")
        self._step_until_empty(GRACE_S, run)
        self._crew.halt(run.scheduler.busy_slots)
        self._step_until_empty(_HALT_S, run)
        run.recorder.flush()

    def _step_until_empty(self, seconds: float, run: _Run) -> None:
        until = self._actors.clock() + seconds
        while run.scheduler.in_flight and self._actors.clock() < until:
            self._step(run, max(0.0, min(POLL_S, until - self._actors.clock())))
