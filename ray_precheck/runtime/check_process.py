"""The process that runs APIs: checks what comes through its pipe, one record after the other.

Comes in: `Start`, then batches of `TaskPayload`s. Goes out: `Started`, then an `Answer` for each.
Started by `runtime.process`, which watches it; whatever an API does to this process ends here. It
knows nothing of Ray.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.runtime.devices import pin_to_core
from ray_precheck.runtime.messages import Answer, Start, Started
from ray_precheck.schema.task import TaskPayload

if TYPE_CHECKING:
    from ray_precheck.check.checker import Checker

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the pipe whose file descriptor is the first argument, until it is closed."""
    parent = int(sys.argv[2])
    _end_with_parent(parent)
    pipe = Connection(int(sys.argv[1]))
    # Ctrl-C on a terminal is for the driver, which lets running batches finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start: Start = pipe.recv()
    try:
        checker = _open(start)
    except Exception as error:
        first_line = str(error).strip().split("\n", maxsplit=1)[0]
        pipe.send(Started(f"{type(error).__name__}: {first_line}"))
        return
    pipe.send(Started())
    with contextlib.suppress(EOFError):
        while _serve(checker, pipe.recv(), start.slot.label, pipe):
            pass


def _serve(
    checker: "Checker", payloads: Sequence[TaskPayload], slot: str, pipe: Connection
) -> bool:
    """Check a batch; returns whether the process is as good as before."""
    for payload in payloads:
        result = replace(checker.check(payload), slot=slot)
        cause = checker.damage()
        pipe.send(Answer(result, cause))
        if cause is not None:
            return False
    return True


def _open(start: Start) -> "Checker":
    """Load the frameworks and prove the device."""
    pin_to_core(start.slot)
    # Imported here: the frameworks behind it must not be loaded before the process is pinned.
    from ray_precheck.check.checker import Checker

    checker = Checker(start.settings, start.slot.kind)
    checker.prove()
    if start.slot.kind == "cpu" and start.settings.memory_limit_bytes:
        _limit_memory(start.settings.memory_limit_bytes)
    return checker


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, also where it hangs or is in C."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
    # Where the machine runs out of memory, the kernel shall end this process and nothing else.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_memory(limit_bytes: int) -> None:
    """Let allocations fail beyond what is loaded now and `limit_bytes`.

    RLIMIT_DATA counts private writable memory (setrlimit(2), Linux 4.7 and later). Only on the CPU:
    drivers of accelerators reserve far more than they use.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        loaded_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, ((loaded_kib << 10) + limit_bytes, hard))


if __name__ == "__main__":
    main()
