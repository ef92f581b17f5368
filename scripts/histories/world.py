"""One history for `histories.search`: drivers that come and go, and their troubles.

Comes in: choices. Goes out: nothing, or `Broken`. The driver, the crew, the recorder, the shipper, the
worker, the writer, the journal and the resume are the package's own; machines, check processes and the
disk are simulated.
"""

from pathlib import Path

from ray_precheck.errors import StoppedError
from ray_precheck.runtime.driver import DriveOptions
from ray_precheck.runtime.places.placement import place_slots
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.scheduling.blame import MAX_RUNS
from ray_precheck.runtime.tensors.shipper import Shipper
from scripts.histories.actors import Machine
from scripts.histories.answers import Cast, Choices
from scripts.histories.disk import Died, Disk
from scripts.histories.files import Files, Restart
from scripts.histories.job import SimulatedJob, Steps
from scripts.histories.layout import Layout
from scripts.histories.rules import TIMEOUT_S, Broken, require
from scripts.histories.troubles import TROUBLES, end_what_waits
from scripts.histories.watch import Lookout
from scripts.histories.watched import WatchedDriver, WatchedScheduler


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
        job = SimulatedJob(cast, bench_suffices=layout.bench_suffices, ships=layout.ships)
        shipper = None
        if job.cargo is not None:
            shipper = Shipper(job.cargo, layout.room_bytes, put=machine.put, executor=steps)
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
            has_ended = driver.run(plan, settled, progress)
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


__all__ = ["Broken", "History"]
