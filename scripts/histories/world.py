"""One history for `histories.search`: drivers that come and go, and their troubles.

Comes in: choices. Goes out: nothing, or `Broken`. The driver, the crew, the recorder, the shipper, the
worker, the writer, the journal and the resume are the package's own; machines, check processes and the
disk are simulated. Beside records that break workers there are troubles of workers and nodes, at moments that
the history chooses.
"""

from collections.abc import Callable
from pathlib import Path

from ray_precheck.errors import StoppedError
from ray_precheck.runtime.actors import ActorLost
from ray_precheck.runtime.driver import DriveOptions
from ray_precheck.runtime.places.devices import Node
from ray_precheck.runtime.places.placement import place_slots
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.scheduling.slots import MAX_RUNS, START_ATTEMPTS
from ray_precheck.runtime.shipper import Shipper
from ray_precheck.schema.task import BENCH
from scripts.histories.actors import Actor, Machine
from scripts.histories.answers import MOST_NODES, Cast, Choices, Layout
from scripts.histories.disk import Died, Disk
from scripts.histories.files import Files, Restart
from scripts.histories.job import GrowingSimulatedJob, SimulatedJob, Steps
from scripts.histories.rules import TIMEOUT_S, require
from scripts.histories.watch import Lookout
from scripts.histories.watched import WatchedDriver, WatchedScheduler


def _any(machine: Machine, actors: list[Actor]) -> Actor | None:
    return actors[machine.choices.below(len(actors))] if actors else None


def _devices(machine: Machine, *, busy: bool) -> list[Actor]:
    found = [a for a in machine.workers() if a.slot is not None and a.slot.kind != BENCH]
    return [actor for actor in found if actor.is_busy is busy]


def _benches(machine: Machine) -> list[Actor]:
    return [a for a in machine.workers() if a.slot is not None and a.slot.kind == BENCH]


def _kill_process(machine: Machine, watch: Lookout) -> None:
    """Kill the process of a worker at a record of the batch that it has, or of the next one."""
    busy = machine.choices.chance(2)
    actor = _any(machine, _devices(machine, busy=not busy))
    if actor is not None and actor.body.process is not None:
        actor.body.process.killed_at = machine.choices.below(4)
        machine.say("the process of {} is killed", actor.body._slot.label)


def _kill_worker(machine: Machine, watch: Lookout) -> None:
    actor = _any(machine, machine.workers())
    if actor is not None:
        machine.say("the worker of {} is killed", actor.body._slot.label)
        machine.lose(actor, ActorLost("ActorDiedError"))


def _kill_worker_for_memory(machine: Machine, watch: Lookout) -> None:
    actor = _any(machine, _devices(machine, busy=True))
    if actor is not None:
        machine.say("the worker of {} is killed for its memory", actor.body._slot.label)
        machine.lose(actor, ActorLost("OutOfMemoryError", for_memory=True))


def _stop_worker(machine: Machine, watch: Lookout) -> None:
    """Stop a worker or the writer: it neither answers nor dies."""
    actor = _any(machine, [a for a in machine.actors if a.lost_as is None])
    if actor is not None:
        actor.is_stopped = True
        machine.say("{} is stopped", "the writer" if actor.slot is None else actor.slot.label)


def _double(machine: Machine, watch: Lookout) -> None:
    watch.doubles_next = True


def _fail_starts(machine: Machine, watch: Lookout) -> None:
    actor = _any(machine, machine.workers())
    if actor is not None:
        machine.failing_starts[actor.body._slot.label] = 1 + machine.choices.below(4)


def _end_benches(machine: Machine, watch: Lookout) -> None:
    """End every bench worker for good: none can be started again."""
    for actor in _benches(machine):
        machine.failing_starts[actor.body._slot.label] = START_ATTEMPTS
        machine.lose(actor, ActorLost("ActorDiedError"))


def _end_node(machine: Machine, watch: Lookout) -> None:
    others = machine.living[1:]  # The first node is the driver's.
    if others:
        _end(machine, others[machine.choices.below(len(others))])


def _end(machine: Machine, node: Node) -> None:
    machine.living.remove(node)
    for actor in machine.actors:
        if actor.node_id == node.node_id:
            actor.is_silent = machine.choices.chance(2)
    machine.say("node {} dies", node.node_id)


def end_what_waits(machine: Machine, watch: Lookout) -> bool:
    """End a node on which a transfer waits for a bench, in histories that have this trouble."""
    if not machine.layout.ends_what_waits or watch.rules.draining:
        return False
    full = [node for node in machine.living[1:] if node.node_id in watch.transfers.nodes()]
    if not full:
        return False
    machine.layout.ends_what_waits = False
    _end(machine, full[0])
    return True


def _add_node(machine: Machine, watch: Lookout) -> None:
    if len(machine.living) < MOST_NODES:
        node = machine.layout.make_node(machine.nodes_made)
        machine.nodes_made += 1
        machine.living.append(node)
        machine.say("node {} joins", node.node_id)


TROUBLES: tuple[Callable[[Machine, Lookout], None], ...] = (
    _kill_process,
    _kill_worker,
    _double,
    _kill_process,
    _kill_worker,
    _kill_worker_for_memory,
    _fail_starts,
    _end_node,
    _add_node,
    _end_node,
    _add_node,
    _end_benches,
    _stop_worker,
)


class History:
    """One run from its first start to its end, however many drivers that takes.

    `trace` gets the events in words.
    """

    def __init__(
        self, choices: Choices, folder: Path, disk: Disk, trace: list[str] | None = None
    ) -> None:
        self._choices = choices
        self._trace = trace
        disk.begin()
        self._cast = Cast(choices)
        self._troubles = choices.below(12)
        self._often = 2 + choices.below(24)
        self._layout = Layout(choices)
        names = self._cast.names
        self._files = Files(folder, disk, choices, names, self.has_trouble, self._say)
        # At worst a record is sent alone as often as it may run, and as often with others that break
        # the worker first; each has a start of its own.
        slots = self._layout.slots * self._layout.nodes + self._layout.benches
        lives, count = self._troubles + 2, len(self._cast.tasks)
        self._most_events = lives * (count * (4 * MAX_RUNS + 8) + 24 * slots + 80)
        self._events = 0
        self._stops = False
        self.watch: Lookout | None = None

    def run(self, *, every_prefix: bool = False) -> None:
        """Run the history to its end and check the files that it leaves.

        Also checked are the files that it would leave if its last writer were killed at a random byte,
        or at every byte.
        """
        done: set[str] = set()
        while True:
            self._say("a driver starts, {} of {} are done", len(done), len(self._cast.tasks))
            self._files.begin_life()
            is_restart = False
            try:
                if self._live(done, every_prefix=every_prefix):
                    break
            except (Died, StoppedError) as end:
                self._say("{}", end)
            except Restart as end:
                self._say("{}", end)
                is_restart = end.loses_power
            self._files.after_death(loses_power=is_restart)
            done = self._files.resume()
        self._files.check_end()

    def _say(self, text: str, *parts: object) -> None:
        if self._trace is not None:
            words = ([o.index for o in part] if isinstance(part, tuple) else part for part in parts)
            self._trace.append(text.format(*words))

    def has_trouble(self, one_in: int) -> bool:
        """Return whether trouble comes now, with a chance of 1 / `one_in` while troubles are left."""
        if self._troubles and self._choices.chance(one_in):
            self._troubles -= 1
            return True
        return False

    def _live(self, done: set[str], *, every_prefix: bool) -> bool:
        """Run one driver to its end or until it is stopped.

        It records the skipped calls and runs the others, the costly ones first.
        """
        cast, layout = self._cast, self._layout
        left = [task for task in cast.tasks if task.name not in done]
        settled = [cast.answer(t.index) for t in left if t.index in cast.skipped]
        plan = [task for task in left if task.index not in cast.skipped]
        plan.sort(key=lambda task: -task.cost_s)
        steps = Steps()
        machine = Machine(cast, self._choices, layout, self._files, steps, self._say, self._befall)
        machine.every_prefix = every_prefix
        self.watch = watch = Lookout(machine, plan)
        watch.settled(settled)
        WatchedScheduler.watch = watch
        if layout.grows:
            job: SimulatedJob = GrowingSimulatedJob(cast, plan, ships=layout.ships)
        else:
            job = SimulatedJob(cast, bench_suffices=layout.bench_suffices, ships=layout.ships)
        shipper = None
        if job.input_files is not None:
            shipper = Shipper(job.input_files, layout.room_bytes, put=machine.put, executor=steps)
        self._stops = False
        driver = WatchedDriver(
            watch,
            job,
            machine,
            layout.request,
            place_slots(layout.request, machine.living),
            self._files.run,
            lambda: self._stops,
            DriveOptions(TIMEOUT_S, layout.benches),
            shipper=shipper,
        )
        driver.launch()
        progress = Progress(len(cast.tasks), len(done), show=False)
        try:
            has_ended = driver.run([] if layout.grows else plan, settled, progress)
        finally:
            machine.close()
        if has_ended:
            watch.ended()
        return has_ended

    def _befall(self, machine: Machine) -> bool:
        """Let trouble come before the next event; return whether any came."""
        self._events += 1
        require(self._events <= self._most_events, f"no end after {self._events} events")
        watch = self.watch
        assert watch is not None
        if self.has_trouble(self._often):
            trouble = self._choices.below(len(TROUBLES) + 5)
            if trouble < len(TROUBLES):
                TROUBLES[trouble](machine, watch)
            elif trouble < len(TROUBLES) + 2:
                self._files.hurt_next_write()
            elif trouble == len(TROUBLES) + 2:
                machine.end_driver(Restart())
            elif trouble == len(TROUBLES) + 3:
                machine.end_driver(Restart(loses_power=True))
            else:
                self._stops = True
            return True
        return end_what_waits(machine, watch)
