"""The progress of a run on standard error: a tqdm line on a terminal, else a line every 10 seconds.

Comes in: acknowledged results. Called by the session and the driver.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from tqdm import tqdm

from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done

PLAIN_INTERVAL_S = 10.0
STAGE_INTERVAL_S = 3.0
_DEFAULT_SIZE: dict[str, Any] = {"ncols": 100, "nrows": 20}


class Progress:
    """Counts passes, errors and skips, and shows them with rate and time left."""

    def __init__(
        self,
        total: int,
        done: int,
        *,
        show: bool = True,
        stream: TextIO | None = None,
        counts: Mapping[Verdict, int] | None = None,
        unit: str = "api",
    ) -> None:
        """`done` pieces of `total` (0 where that is not known) have rows from an earlier run, with the
        verdicts of `counts`; `unit` is what a piece is."""
        self._unit = unit
        self._show = show
        self._stream = stream or sys.stderr
        self._done_before = done
        self._done = done
        self._total = total
        self._counts = Counter(counts)
        self._begin = self._shown = time.monotonic()
        self._bar: tqdm[NoReturn] | None = None
        if show and self._stream.isatty():
            # A terminal that does not tell its size (0 columns) would get an empty bar.
            size = {"dynamic_ncols": True} if _width(self._stream) > 0 else _DEFAULT_SIZE
            self._bar = tqdm(
                total=total or None, initial=done, unit=unit, file=self._stream, **size
            )

    def add(self, finished: Iterable[Done]) -> None:
        """Count results whose rows are on the disk, and show the new state."""
        verdicts = Counter(done.verdict for done in finished)
        self._counts += verdicts
        added = verdicts.total()
        self._done += added
        if self._bar is not None:
            with suppress(OSError):  # The run goes on although its terminal is gone.
                self._bar.set_postfix_str(self._tally(), refresh=False)
                self._bar.update(added)
        self.tick()

    def tick(self) -> None:
        """Print a line where there is no terminal and the last one is old enough."""
        now = time.monotonic()
        if self._bar is not None or now - self._shown < PLAIN_INTERVAL_S:
            return
        self._shown = now
        rate = (self._done - self._done_before) / (now - self._begin)
        left, total = "", ""
        if self._total:
            total = f"/{self._total}"
            left_s = (self._total - self._done) / rate if rate > 0 else None
            left = ", time left unknown" if left_s is None else f", {left_s:.0f} s left"
        self.say(f"{self._done}{total} done, {self._tally()}, {rate:.1f} {self._unit}/s{left}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        with suppress(OSError):
            if self._bar is not None:
                self._bar.write(line, file=self._stream)
            elif self._show:
                print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the last state of the bar on the screen."""
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()

    def _tally(self) -> str:
        counts = self._counts
        return f"{counts[Verdict.PASS]} pass, {counts[Verdict.ERROR]} error, {counts[Verdict.SKIP]} skip"


class StageProgress:
    """Shows how far a step before the run is, once it has taken some seconds; from any thread."""

    def __init__(self, doing: str, say: Callable[[str], None]) -> None:
        self._doing = doing
        self._say = say
        self._shown = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps are done, if the last line is old enough."""
        now = time.monotonic()
        if now - self._shown >= STAGE_INTERVAL_S:
            self._shown = now
            self._say(f"{self._doing}: {done / max(total, 1):.0%}")


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0
