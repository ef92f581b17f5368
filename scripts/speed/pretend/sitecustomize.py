"""A pretend device: put this folder first in PYTHONPATH, and checks sleep instead of computing.

Python imports a module of this name at its start. In the processes that check APIs it takes the
place of `ray_precheck.check.checker`: no framework is loaded, a check sleeps as many seconds as the
call's keyword argument `sleep_s` says, and passes. Driver, scheduler, actors, pipes, writer and
every other process are the real ones.

With PRETEND_BARRIER=FOLDER:N a process is ready only once N of them are: their starts, which share
the cores of one machine here, are then no part of what is measured. A successor does not wait.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

# A check process, or the server that forks them.
CHECKS = "ray_precheck.runtime.workers."
CHECKER = "ray_precheck.check.checker"
BARRIER = "PRETEND_BARRIER"
LONGEST_START_S = 240.0


class DeviceNeeded(Exception):
    """Never raised: a pretend device does all."""


class Checker:
    """Stands for the package's class of this name, as far as check processes call it."""

    caveat = ""  # nothing limits its precision

    def __init__(self, settings: object, kind: str, clock: object = None) -> None:
        barrier = os.environ.get(BARRIER)
        if barrier:
            folder, _, count = barrier.rpartition(":")
            _meet(Path(folder), int(count))

    def prove(self) -> None:
        """The device is there."""

    def damage(self) -> None:
        """Nothing ever breaks it."""

    def check(self, payload: Any, **_: object) -> Any:
        """Return what most checks do, a pass with two outputs, when the time of the call is over."""
        from ray_precheck.schema.result import Metrics, Outcome, OutputCheck, TaskResult, Verdict

        begin = time.perf_counter()
        seconds = json.loads(payload.forward)["input_kwargs"]["sleep_s"]["value"]
        metrics = Metrics(0.99999994, 1.2e-7, 3.4e-6, (1, 2), 0.5, 2.0)
        checks = tuple(
            OutputCheck(
                f"{payload.name}.{output}", "Float64", "Float32", "(2, 16)", metrics, Verdict.PASS
            )
            for output in ("forward.output.0", "forward.output.1")
        )
        # What is above belongs to the time that the check is to take, as it does in a real one.
        time.sleep(max(0.0, begin + seconds - time.perf_counter()))
        return TaskResult(
            payload.index, payload.name, Outcome.COMPLETED, Verdict.PASS, Verdict.NONE, "", checks,
            device_s=time.perf_counter() - begin,
        )  # fmt: skip


def _meet(folder: Path, count: int) -> None:
    """Wait for the others."""
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + LONGEST_START_S
    while len(list(folder.iterdir())) < count and time.monotonic() < until:
        time.sleep(0.02)


def _pretend() -> None:
    module = ModuleType(CHECKER)
    module.__dict__.update(Checker=Checker, DeviceNeeded=DeviceNeeded)
    sys.modules[CHECKER] = module


if any(each.startswith(CHECKS) for each in sys.orig_argv):
    _pretend()
