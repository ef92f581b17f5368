"""A watched training in one process: a row a step, and the steps that rules have captured.

Comes in: what the probe has measured, at the end of each step. Goes out: rows in `watch_{rank}.csv`, and
which steps are captured. Made by `session.Session` for `capture --watch`.

A rule fires with the step in which it becomes true; the next step is captured, by all ranks that know of it
in time. They tell each other without a collective, which could wait for ever, by lines that each appends to a
file of the folder (`watch_triggers.txt`: the step to capture, the rank, the rule), which each looks at when a
step ends. A rank that had ended the step before the line was written misses it. But where ranks wait for each
other within a step, as in data parallel training, all have begun the step before any ends it, so all see at
its end which ranks have captured it; where one is missing all capture the step behind it, too.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ray_precheck.capture.probe import StepMeasures
from ray_precheck.capture.rules import (
    COLUMNS,
    OF_MODULES,
    History,
    parse_trigger,
    windows_of,
)
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.watching.table import (
    CAPTURED,
    RANK,
    STEP,
    TIME,
    TRIGGER,
    Cell,
    EventFile,
    WatchTable,
    has_tensorboard,
)
from ray_precheck.foreign import open_file

TRIGGERS = "watch_triggers.txt"
_SECONDS = COLUMNS["step_seconds"]
# What rules do not see of a step whose update a gradient scaler skips: such steps are a part of an honest
# training, in which the scaler tries how far it can go.
_OF_UPDATES = tuple(COLUMNS[name] for name in ("grad_norm", "nan", "inf"))


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is known of a step before its measures have arrived."""

    step: int
    ended: float
    seconds: float | None
    is_captured: bool


class Watch:
    """The rows of one process, and what its rules ask for.

    `rank` is None in a process without one, and `ranks` the count of those that capture. `rows` and `fired`
    count rows and triggered captures.

    Raises:
        UsageError: the folder has a table of another program.
        OSError: the folder cannot be written.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        measures: StepMeasures,
        rank: int | None,
        ranks: int,
        tell: Callable[[str], None],
    ) -> None:
        self.rows = self.fired = 0
        self._settings = settings
        self._measures = measures
        self._tell = tell
        self._rank = rank
        self._triggers = [parse_trigger(text) for text in settings.triggers]
        self._history = History(windows_of(self._triggers))
        self._true: set[str] = set()
        self._begun: deque[_Begun] = deque()
        self._since: float | None = None
        self._table = _table_of(settings.path, rank)
        self.path = self._table.path
        folder = self.path.stem if rank is None else f"rank{rank}"
        self._events = (
            EventFile(settings.path / "tensorboard" / folder) if has_tensorboard() else None
        )
        self._others = Triggered(
            settings.path / TRIGGERS if self._triggers and ranks > 1 else None, rank or 0, ranks
        )

    def begin_step(self) -> None:
        """Let the time of a step begin, unless it has."""
        if self._since is None:
            self._since = time.perf_counter()

    def end_clock(self) -> float | None:
        """Return the seconds since the step has begun; called before the capture works at its end."""
        since, self._since = self._since, None
        return None if since is None else time.perf_counter() - since

    def end_step(self, step: int, seconds: float | None, *, is_captured: bool) -> None:
        """Write the rows of the steps whose measures have arrived, and ask the rules.

        Raises:
            OSError: a row cannot be written.
        """
        self._begun.append(_Begun(step, time.time(), seconds, is_captured))
        fired: list[str] = []
        for numbers in self._measures.end_step():
            fired += self._write(numbers)
        wants = bool(fired) and self.fired < self._settings.trigger_most
        if self._others.end_step(step, "; ".join(fired) if wants else ""):
            self.fired += 1
            by = f": {'; '.join(fired)}" if fired else ", by another rank's rule"
            self._tell(f"step {step + 1} is captured{by}")
        self.begin_step()

    def wants(self, step: int) -> bool:
        """Return whether a rule has asked for a step."""
        return step in self._others.wanted

    @property
    def failure(self) -> str:
        """Why nothing is measured any more, "" where all is well."""
        return self._measures.failure

    def leave(self) -> None:
        """Write nothing in this process, which was forked."""
        self._table.close()
        if self._events is not None:
            self._events.close()

    def close(self) -> None:
        """Write the rows that were still on their way, and let the files go.

        Raises:
            OSError: a row cannot be written.
        """
        try:
            for numbers in self._measures.close():
                self._write(numbers)
        finally:
            self.leave()

    def _write(self, numbers: Mapping[str, float | int | None]) -> list[str]:
        """Write one row, and return the rules that became true with it."""
        begun = self._begun.popleft()
        seen = {**numbers, STEP: begun.step, _SECONDS: begun.seconds}
        if numbers.get(COLUMNS["skipped"]):
            seen = {
                column: None if column.startswith(_OF_UPDATES) else value
                for column, value in seen.items()
            }
        true = [each.text for each in self._triggers if each.fires(seen, self._history)]
        fired = [text for text in true if text not in self._true]
        self._true = {*true}
        # A captured step takes longer, and a rule on seconds is not to start captures of captures.
        self._history.add({**seen, _SECONDS: None} if begun.is_captured else seen)
        if not self.rows:
            self._require_columns(numbers)
        when = datetime.fromtimestamp(begun.ended, timezone.utc).isoformat(timespec="milliseconds")
        row: dict[str, Cell] = {
            STEP: begun.step,
            RANK: self._rank,
            TIME: when.replace("+00:00", "Z"),
            **numbers,
            _SECONDS: begun.seconds,
            CAPTURED: int(begun.is_captured),
            TRIGGER: "; ".join(fired),
        }
        self._table.write(row)
        if self._events is not None:
            self._events.write(begun.step, row)
        self.rows += 1
        return fired

    def _require_columns(self, numbers: Mapping[str, object]) -> None:
        """Say which columns of modules the rules name and the rows do not have: such rules never fire."""
        fixed = {*COLUMNS.values()}
        named = {column for each in self._triggers for column in each.columns} - fixed
        missing = sorted(named - {*numbers})
        if missing:
            heading = COLUMNS[OF_MODULES[0]] + " "
            there = [each.removeprefix(heading) for each in numbers if each.startswith(heading)]
            self._tell(
                f"a rule names {missing[0]}, and there is no such column in step 0; the modules are"
                f" {', '.join(there) or 'not told apart'}"
            )


def _table_of(folder: Path, rank: int | None) -> WatchTable:
    """Open the table of this process; of processes without a rank the first has `watch_0.csv`."""
    try:
        return WatchTable(folder / f"watch_{rank or 0}.csv")
    except BlockingIOError:
        if rank is not None:
            raise
    return WatchTable(folder / f"watch_proc{os.getpid()}.csv")


class Triggered:
    """The steps that rules have captured, as the ranks of a run tell each other.

    `path` is the file of all ranks, None in a run of one. What stands in it already is of an earlier run.
    """

    def __init__(self, path: Path | None, rank: int, ranks: int) -> None:
        self.wanted: set[int] = set()
        self._path = path
        self._rank, self._ranks = rank, ranks
        self._steps: dict[int, set[int]] = {}
        self._read = 0
        if path is not None:
            with suppress(FileNotFoundError):
                self._read = path.stat().st_size

    def end_step(self, step: int, rule: str) -> bool:
        """Decide, at the end of a step, whether the next one is captured; `rule` is the one that has fired
        here, "" where none has. Return whether a capture begins here that had not begun before.

        Raises:
            OSError: the file cannot be read or written.
        """
        self._look()
        following = step + 1
        before, here = self._steps.get(step, set()), self._steps.get(following, set())
        begins = bool(here) or (bool(rule) and not before and step not in self.wanted)
        if begins:
            self.wanted.add(following)
            if self._rank not in here:
                self._add(following, rule or "of another rank")
        elif before and len(before) < self._ranks:
            self.wanted.add(following)
            return step not in self.wanted
        return begins

    def _look(self) -> None:
        """Read the lines that ranks have added."""
        if self._path is None:
            return
        try:
            if self._path.stat().st_size <= self._read:
                return
            with open_file(self._path) as file:
                file.seek(self._read)
                found = file.read()
        except FileNotFoundError:
            return
        whole = found[: found.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            numbers = line.split()[:2]
            if len(numbers) == 2 and all(each.isdigit() for each in numbers):
                self._steps.setdefault(int(numbers[0]), set()).add(int(numbers[1]))

    def _add(self, step: int, rule: str) -> None:
        self._steps.setdefault(step, set()).add(self._rank)
        if self._path is None:
            return
        line = f"{step} {self._rank} {' '.join(rule.split())}\n".encode()
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.write(file, line)
        finally:
            os.close(file)
