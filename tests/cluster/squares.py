"""A second kind of job: squares of whole numbers, some of which crash their process or hang.

Imported by the driver, by the workers and by their check processes, as a job of the package is.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Cause, DeviceSlot, Done, Phase, Task
from ray_precheck.store.tables import Tables, encode_row

TABLES = Tables(
    "squares",
    ("Number", "Test Success", "Square", "Message"),
    ("Number", "Digits"),
    detail_parts=1,
    verdicts=1,
    needs_details=False,
)


@dataclass(frozen=True)
class Payload:
    index: int
    name: str


def done(task: Task | Payload, verdict: Verdict, square: object = "", message: str = "") -> Done:
    row = encode_row([task.name, verdict.value, str(square), message])
    details = encode_row([f"{task.name}.square", str(len(str(square)))]) if square != "" else b""
    return Done(task.index, task.name, verdict, row, details, time.time(), device_s=1e-4)


class Squares:
    """The squares of the numbers below `count`."""

    tables = TABLES
    has_bench = bench_suffices = False
    memory_limit_bytes = 0
    input_files = None

    def __init__(self, count: int, opener: "Opener") -> None:
        self.names = [f"n{number}" for number in range(count)]
        self.tasks = [Task(index, name, 1e-3) for index, name in enumerate(self.names)]
        self._opener = opener

    def payload(self, task: Task) -> Payload:
        return Payload(task.index, task.name)

    def opener(self, *, is_home: bool) -> "Opener":
        return self._opener

    def failed(self, task: Task, outcome: Outcome, reason: str) -> Done:
        return done(task, Verdict.ERROR, message=reason)

    def unchecked(self, task: Task, reason: str) -> Done:
        return done(task, Verdict.SKIP, message=reason)


@dataclass(frozen=True)
class Opener:
    crashing: frozenset[int] = frozenset()
    hanging: frozenset[int] = frozenset()
    pause_s: float = 0.0
    # A folder in which a machine says that it is at work; numbers pause only until it has a file `go`.
    marks: str = ""
    memory_limit_bytes: int = 0

    def open(self, slot: DeviceSlot, tell: Callable[[Phase], None]) -> "Runner":
        return Runner(self)


@dataclass(frozen=True)
class Runner:
    opener: Opener
    caveat: str = ""

    def run(self, payload: Payload, stage: Stage, **others: Any) -> Done:
        if payload.index in self.opener.crashing:
            os.kill(os.getpid(), signal.SIGSEGV)
        while payload.index in self.opener.hanging:
            time.sleep(1)
        if self.opener.marks:
            (Path(self.opener.marks) / f"machine{os.stat('/proc/self/ns/net').st_ino}").touch()
        if not (Path(self.opener.marks) / "go").exists():
            time.sleep(self.opener.pause_s)
        return done(payload, Verdict.PASS, payload.index**2)

    def damage(self) -> tuple[Cause, str] | None:
        return None
