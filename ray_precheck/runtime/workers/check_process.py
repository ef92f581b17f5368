"""The process that runs records, one after the other, as they come through its pipe.

Comes in: `Start`, then lists of `Work`. Goes out: `Started`, then an `Answer` for each record.
`runtime.workers.process` starts it and watches it, so an API that crashes ends this process alone. It
knows nothing of Ray. A backend may run its framework in a child of this process (MSAdapter): when
that child dies, this process ends with the same signal or exit code, which its watcher reports.
"""

import contextlib
import gc
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from operator import setitem
from pathlib import Path
from typing import Any, NoReturn

from ray_precheck.errors import DeviceDied, DeviceError
from ray_precheck.foreign import caught, first_line
from ray_precheck.processes import descendants, end_with_parent
from ray_precheck.runtime.job import Runner
from ray_precheck.runtime.places.devices import pin_to_core
from ray_precheck.runtime.workers.messages import (
    Answer,
    Start,
    Started,
    WakeupSender,
    Work,
    receive,
    seal,
    send,
)
from ray_precheck.schema.task import BENCH, Done


def main() -> None:
    """Serve a pipe until it is closed. The arguments of the command line: the descriptor of the pipe, the
    parent's process id, the descriptors of the wakeup and of the board."""
    pipe, parent, wakeup, board = map(int, sys.argv[1:])
    serve(pipe, parent, wakeup, board)


def serve(pipe_fd: int, parent: int, wakeup_fd: int, board_fd: int) -> None:
    """Run records until the pipe is closed; the process ends with its `parent` at the latest."""
    end_with_parent(parent)
    _be_the_first_to_go()
    pipe = Connection(pipe_fd)
    # Signals to all processes of a terminal or a job are for the driver, which lets running batches finish.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _check(receive(pipe), pipe, WakeupSender(wakeup_fd), mmap.mmap(board_fd, 1))
    except DeviceDied as death:
        _die_like(death.exit_code)


def _check(start: Start, pipe: Connection, sender: WakeupSender, board: mmap.mmap) -> None:
    """Open the device, and run batches until the pipe is closed.

    Raises:
        DeviceDied: the child process that has the device has ended.
    """
    with _all_kept():
        runner, error = caught(partial(_open, start, board))
    if runner is None:
        # A framework may raise anything at its import; the first line is the reason.
        assert error is not None
        title = "" if isinstance(error, DeviceError) else f"{type(error).__name__}: "
        send(pipe, Started(title + first_line(error)))
        return
    send(pipe, Started(caveat=runner.caveat))
    with contextlib.suppress(EOFError):
        while _serve(runner, receive(pipe), pipe, sender):
            pass


def _die_like(exit_code: int) -> NoReturn:
    """End this process as another process has ended: by a signal (negative), or with an exit code."""
    if exit_code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler that could be in the way.
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code or 1)


def _serve(runner: Runner, batch: Sequence[Work], pipe: Connection, sender: WakeupSender) -> bool:
    """Run a batch; return False where a record has damaged this process, which then ends."""
    for position, work in enumerate(batch, 1):
        began_s, begin = time.time(), time.perf_counter()
        if work.threads == 1:
            found = _do(runner, work)
        else:
            with _all_cores():
                found = _do(runner, work)
        elapsed_s = time.perf_counter() - begin
        damage = runner.damage()
        cause, reason = damage or (None, "")
        # From here to the next record the device is idle, so the worker does all other work.
        done = found if isinstance(found, Done) else None
        # Sealing counts as handing over, so it comes after `elapsed_s` is taken.
        half = None if found is None or done is not None else seal(found)
        send(pipe, Answer(work.index, done, half, cause, reason, began_s, elapsed_s))
        is_last = position == len(batch) or cause is not None
        sender.sent(is_last=is_last, is_large=half is not None)
        if cause is not None:
            return False
    return True


def _do(runner: Runner, work: Work) -> Any:
    """Run a record through its stage; return None where it needs a device and there is none, and where what
    a device measured is out of reach."""
    try:
        half = None if work.half is None else work.half.open()
    except OSError:
        return None
    return runner.run(
        work.payload,
        work.stage,
        files=work.files,
        half=half,
        threads=work.threads,
        is_near=work.is_near,
    )


@contextmanager
def _all_kept() -> Iterator[None]:
    """Keep Python's garbage collector from looking at the objects made in this block, now and later.

    Frameworks make hundreds of thousands of objects that stay; looking at them again and again took
    a fifth of the time of their imports.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _all_cores() -> Iterator[None]:
    """Let a record that computes with several threads run on all cores, not on this slot's alone."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the kernel leaves out cores of others
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _open(start: Start, board: mmap.mmap) -> Runner:
    """Load what the job needs and open the device, on the core of this slot; `board` takes the phase."""
    pin_to_core(start.slot)
    opener = start.opener
    runner = opener.open(start.slot, partial(setitem, board, 0))
    if start.slot.kind in ("cpu", BENCH) and opener.memory_limit_bytes:
        for pid in (os.getpid(), *descendants(os.getpid())):
            _limit_memory(pid, opener.memory_limit_bytes)
    return runner


def _be_the_first_to_go() -> None:
    """Have the kernel choose this process when the machine runs out of memory."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_memory(pid: int, limit_bytes: int) -> None:
    """Let allocations of a process fail when it has `limit_bytes` more than now.

    RLIMIT_DATA counts private writable memory (setrlimit(2), Linux 4.7 and later). Only on the CPU:
    drivers of accelerators reserve far more than they use.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        loaded_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
        hard = resource.prlimit(pid, resource.RLIMIT_DATA)[1]
        limits = ((loaded_kib << 10) + limit_bytes, hard)
        resource.prlimit(pid, resource.RLIMIT_DATA, limits)


if __name__ == "__main__":
    main()
