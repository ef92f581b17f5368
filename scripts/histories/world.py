"""One history for `histories.py`: drivers that come and go, and what befalls them.

Comes in: choices. Goes out: nothing, or `Broken`. The scheduler, the journal, the resume and the
moves of slots are the package's own; what `runtime/driver.py` does with them is done here again,
without Ray.
"""

from collections.abc import Callable
from pathlib import Path

from ray_precheck.errors import StoppedError
from ray_precheck.runtime.scheduling.blame import MAX_RUNS
from scripts.histories.answers import Cast, Choices
from scripts.histories.disk import Died, Disk
from scripts.histories.layout import Layout
from scripts.histories.rules import Broken, require
from scripts.histories.troubles import TROUBLES, end_what_waits
from scripts.histories.workers import Crew
from scripts.histories.writer import Files, Restart


class History:
    """One run from its first start to its end, however many drivers that takes.

    `trace` is told in words what happens.
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
        self._files = Files(folder, disk, choices, names, self._has_trouble, self._say)
        # At worst a record is sent alone as often as it may run, and as often with others that break
        # the worker first; each has a start of its own.
        slots = self._layout.slots + self._layout.benches
        lives, count = self._troubles + 2, len(self._cast.tasks)
        self._most_events = lives * (count * (2 * MAX_RUNS + 4) + 12 * slots + 40)
        self._events = 0

    def run(self, *, every_prefix: bool = False) -> None:
        """Run it to its end and check what it leaves, and would leave if it were killed at a random
        byte, or at every one, of what its last writer wrote.
        """
        done: set[str] = set()
        while True:
            self._say("a driver starts, {} of {} are done", len(done), len(self._cast.tasks))
            try:
                self._live(done)
                self._files.complete(every_prefix=every_prefix)
                break
            except (Died, Restart, StoppedError) as end:
                self._say("{}", end)
                self._files.after_death(loses_power=isinstance(end, Restart) and end.loses_power)
            done = self._files.resume()
        self._files.check_end()

    def _say(self, text: str, *parts: object) -> None:
        if self._trace is not None:
            words = ([o.index for o in part] if isinstance(part, tuple) else part for part in parts)
            self._trace.append(text.format(*words))

    def _has_trouble(self, one_in: int) -> bool:
        if self._troubles and self._choices.chance(one_in):
            self._troubles -= 1
            return True
        return False

    def _live(self, done: set[str]) -> None:
        """Be one driver: what is skipped is recorded, the rest is run, the costly first."""
        cast, files = self._cast, self._files
        files.begin_life()
        left = [task for task in cast.tasks if task.name not in done]
        others = tuple(cast.answer(t.index) for t in left if t.index in cast.skipped)
        plan = [task for task in left if task.index not in cast.skipped]
        if others:
            files.record(others)
        if not plan:
            return
        plan.sort(key=lambda task: -task.cost_s)
        crew = Crew(cast, self._choices, self._layout, plan, files.record, self._say)
        while not crew.scheduler.finished:
            self._step(crew)
            crew.carry_out(crew.scheduler.wake())
            crew.benches.check_busy()
            if not crew.scheduler.has_devices:
                files.flush()
                raise StoppedError("no device is left")
        crew.check_end()

    def _step(self, crew: Crew) -> None:
        """Let one thing happen: something from outside, or news that are due."""
        self._events += 1
        require(self._events <= self._most_events, f"no end after {self._events} events")
        if self._has_trouble(self._often):
            trouble = self._choices.below(len(TROUBLES) + len(_TROUBLES))
            if trouble < len(TROUBLES):
                TROUBLES[trouble](crew)
            else:
                _TROUBLES[trouble - len(TROUBLES)](self, crew)
            return
        if end_what_waits(crew):
            return
        waiting = crew.due()
        news: list[Callable[[], None]] = crew.news()
        if self._files.unwritten:
            news.append(self._files.write)
        if not waiting and not news:
            raise Broken("nothing is in flight, and yet the run is not finished")
        chosen = self._choices.below(len(waiting) + len(news))
        if chosen < len(waiting):
            waiting[chosen]()
        else:
            news[chosen - len(waiting)]()

    def _hurt_writer(self, crew: Crew) -> None:
        self._files.hurt_next_write()

    def _kill_driver(self, crew: Crew) -> None:
        raise Restart

    def _lose_power(self, crew: Crew) -> None:
        raise Restart(loses_power=True)

    def _stop(self, crew: Crew) -> None:
        """Stop on request, and go on later."""
        crew.drain()
        self._files.flush()
        raise Restart


_TROUBLES: tuple[Callable[[History, Crew], None], ...] = (
    History._hurt_writer,
    History._hurt_writer,
    History._kill_driver,
    History._lose_power,
    History._stop,
)
