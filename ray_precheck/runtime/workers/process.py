"""A check process as the worker that started it sees it.

Comes in: batches. Goes out: reports, with a `WorkerFailure` where a record broke the process: how it ended
(signal or exit code, and the last line that it wrote to stderr), or that it gave no answer in time.
Called by the worker actor; needs no Ray.
"""

import contextlib
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Pipe
from pathlib import Path

from ray_precheck.errors import DeviceError
from ray_precheck.processes import (
    descendants,
    is_stopped,
    launch,
    module_command,
)
from ray_precheck.runtime.job import Opener
from ray_precheck.runtime.places.devices import slot_variables
from ray_precheck.runtime.workers.fork_server import (
    ForkedProcess,
    NotForked,
    ServerAddress,
    process_environment,
)
from ray_precheck.runtime.workers.messages import (
    Answer,
    Sealed,
    Start,
    Started,
    Wakeup,
    Work,
    receive,
    receive_shared,
    send,
)
from ray_precheck.schema.task import (
    BatchReport,
    Cause,
    DeviceSlot,
    Done,
    MeasuredTask,
    Phase,
    WorkerFailure,
)

START_TIMEOUT_S = 300.0
# A fork has imported everything, and has only its device to open. One that takes longer waits for a thread
# that it does not have.
FORKED_TIMEOUT_S = 60.0
# A process that was stopped (SIGSTOP) or not heard from for so long is given up as one that died.
SILENT_S = 60.0
# How long to wait for the end of a killed process: the kernel cannot kill a process that hangs in a
# call of a device driver.
_END_TIMEOUT_S = 10.0
_STOPPED = f"stopped for {SILENT_S:g} s, by a signal (SIGSTOP) or a debugger"
_POLL_S = 0.1
# How often to read how long its threads have waited for a processor, which takes about 2 ms.
_LOOK_S = 0.5
# Between two looks this process may have been stopped itself: no more than this is held against a record.
_LONGEST_LOOK_S = 5.0
_TAIL_BYTES = 4096
_LONGEST_LINE = 200


class CheckProcess:
    """A check process, which runs records one after the other; `close` ends it."""

    def __init__(
        self,
        slot: DeviceSlot,
        opener: Opener,
        server: ServerAddress | None = None,
        *,
        debug: bool = False,
    ) -> None:
        """Start a process: a fork of the server's, where there is one, else one of its own."""
        self._debug = debug
        self._handovers_s: deque[float] = deque()
        self._stopped_s, self._looked_at = 0.0, -math.inf
        self._sending = threading.Lock()
        self._board, board_fd = _shared_byte()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._pipe, child_end = Pipe()
        self._wakeup = Wakeup()
        with child_end, self._wakeup.far_end() as wakeup_fd:
            handles = (child_end.fileno(), wakeup_fd, board_fd)
            self._popen: ForkedProcess | subprocess.Popen[bytes]
            try:
                if server is not None:
                    output = self._stderr.fileno()
                    self._popen = ForkedProcess(server, (*handles, output), slot_variables(slot))
                else:
                    self._popen = launch(partial(self._start, slot, handles))
            finally:
                os.close(board_fd)
        self._send(Start(slot, opener))

    def _start(self, slot: DeviceSlot, handles: tuple[int, int, int]) -> "subprocess.Popen[bytes]":
        pipe, *others = map(str, handles)
        arguments = module_command("ray_precheck.runtime.workers.check_process")
        return subprocess.Popen(
            [*arguments, pipe, str(os.getpid()), *others],
            env={**process_environment(self._debug), **slot_variables(slot)},
            pass_fds=handles,
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
        )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._popen.pid

    @property
    def is_forked(self) -> bool:
        """Whether it is the fork of a server."""
        return isinstance(self._popen, ForkedProcess)

    @property
    def is_closed(self) -> bool:
        """Whether the process has been ended, by `close` or because it broke."""
        return self._pipe.closed

    def wait_ready(self) -> str:
        """Wait until the process has loaded its frameworks and opened its device.

        Returns a sentence about a limit of the device's precision, "" for none.

        Raises:
            DeviceError: the process did not start within `START_TIMEOUT_S`, died, or failed; the text
                says which.
            NotForked: its fork server does not fork, or has died.
        """
        try:
            if isinstance(self._popen, ForkedProcess):
                self._await(self._popen.await_fork, START_TIMEOUT_S)
                self._await(self._pipe.poll, FORKED_TIMEOUT_S)
            self._await(self._pipe.poll, START_TIMEOUT_S)
            started: Started = receive(self._pipe)
        except NotForked:
            raise
        except (EOFError, OSError):
            how = self._death()[1]
            raise DeviceError(f"its process died while it started ({how})") from None
        if started.failure:
            raise DeviceError(started.failure)
        return started.caveat

    def _await(self, is_there: Callable[[float], bool], limit_s: float) -> None:
        begun = time.monotonic()
        while not is_there(_LOOK_S):
            if self._look() >= SILENT_S:
                raise DeviceError(f"its process was {_STOPPED} while it started")
            if time.monotonic() - begun > limit_s:
                raise DeviceError(f"it did not start in {limit_s:g} s")

    def submit(self, batch: Sequence[Work]) -> None:
        """Send a batch to the process, which begins it after the batches that it has."""
        # The time of this thread, without waiting: a large message waits for a busy process.
        begin = time.thread_time()
        self._send(list(batch))
        self._handovers_s.append(time.thread_time() - begin)

    def collect(
        self,
        batch: Sequence[Work],
        limits_s: Sequence[float],
        halted: Callable[[], bool] = lambda: False,
        *,
        budget_s: float = math.inf,
    ) -> tuple[BatchReport, dict[int, Sealed]]:
        """Wait for the oldest submitted batch; return its report, and what the device measured by the
        index of the record.

        `limits_s` are the seconds that each record may take without its bench, `budget_s` the
        seconds that each bench may take. When `halted` returns True, the process is killed and the
        report has the records that were finished.
        """
        sealed: dict[int, Sealed] = {}
        tally = _Tally(handover_s=self._handovers_s.popleft())
        for work, limit_s in zip(batch, limits_s, strict=True):
            answer = self._await_answer(work.index, limit_s, budget_s, halted)
            if answer is None:
                return tally.report(), sealed
            if isinstance(answer, WorkerFailure):
                return tally.report(replace(answer, seen_s=time.time())), sealed
            tally.add(answer)
            if answer.half is not None:
                sealed[answer.index] = answer.half
        self._forget_output()
        return tally.report(), sealed

    def _await_answer(
        self, index: int, limit_s: float, budget_s: float, halted: Callable[[], bool]
    ) -> Answer | WorkerFailure | None:
        spent_s = dict.fromkeys((False, True), 0.0)
        queued: dict[str, int] = {}
        seen_at = time.monotonic()
        try:
            while not self._has_answer(min(_POLL_S, limit_s)):
                if halted():
                    self.close()
                    return None
                is_bench = self._board[0] == Phase.BENCH
                now, before = time.monotonic(), queued
                since_s = min(now - seen_at, _LONGEST_LOOK_S)
                left_s = min(limit_s - spent_s[False], budget_s - spent_s[True])
                if before and since_s < min(_LOOK_S, left_s):
                    continue
                queued = self._queued_ns()
                if stopped_s := self._look():
                    seen_at = now
                    if stopped_s < SILENT_S:
                        continue
                    self.close()
                    return WorkerFailure(index, Cause.KILLED, f"its process was {_STOPPED}")
                # On a busy machine a record is slow without hanging: the time that its threads waited
                # for a processor does not count.
                spent_s[is_bench] += max(0.0, since_s - _starved_s(before, queued))
                seen_at = now
                if spent_s[True] >= budget_s:
                    self.close()
                    reason = f"its bench took longer than {_seconds(budget_s)} s (--bench-budget)"
                    return WorkerFailure(index, Cause.OVER_BUDGET, reason)
                if spent_s[False] >= limit_s:
                    self.close()
                    reason = f"no answer in {_seconds(limit_s)} s (--timeout)"
                    return WorkerFailure(index, Cause.TIMED_OUT, reason)
            answer: Answer
            answer, shared = receive_shared(self._pipe)
            if shared is not None and answer.half is not None:
                answer = replace(answer, half=Sealed(answer.half.data, shared=shared))
        except (EOFError, OSError):
            cause, how = self._death()
            return WorkerFailure(index, cause, f"killed its worker ({how})")
        if answer.cause is None:
            return answer
        self.close()
        return WorkerFailure(index, answer.cause, answer.reason, answer.done)

    def _look(self) -> float:
        """Return for how many seconds the process has been stopped; 0 where it runs."""
        now, before = time.monotonic(), self._looked_at
        self._looked_at = now
        goes_on = is_stopped(self._popen.pid) and now - before < _LONGEST_LOOK_S
        self._stopped_s = self._stopped_s + now - before if goes_on else 0.0
        return self._stopped_s

    def _has_answer(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds; return whether an answer, or the end of the process, can be read.

        The process sends one wakeup for several short answers: waking this process for each
        of them would take processor time from the check process on the same core.
        """
        if not self._pipe.poll(0):
            self._wakeup.wait(wait_s)
        return self._pipe.poll(0)

    def _queued_ns(self) -> dict[str, int]:
        """Return by thread id the nanoseconds for which a thread was ready and waited for a processor.

        The threads of the processes that the check process has started are among them, because one
        of those processes may have the device. Source: the second number of /proc/PID/task/TID/schedstat
        (Linux, Documentation/scheduler/sched-stats); {} on other systems.
        """
        queued = {}
        for pid in (self._popen.pid, *descendants(self._popen.pid)):
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    queued[path.parent.name] = int(path.read_text().split()[1])
        return queued

    def _send(self, message: object) -> None:
        # OSError: the process is dead; the next read from the pipe tells how it ended.
        with self._sending, contextlib.suppress(OSError):
            send(self._pipe, message)

    def _death(self) -> tuple[Cause, str]:
        """Return how the process ended: as a `Cause`, and in words."""
        try:
            # It has closed its pipe and is about to end: our SIGKILL would hide how.
            code = self._popen.wait(_END_TIMEOUT_S)
            how = _signal_name(-code) if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, how = 0, "it closed its pipe and did not end"
        cause = Cause.KILLED if code == -signal.SIGKILL else Cause.CRASHED
        line = self._last_line()
        self.close()
        return cause, f"{how}: {line}" if line else how

    def _last_line(self) -> str:
        """Return the last line that the process wrote to stderr or stdout, "" where there is none."""
        size = os.fstat(self._stderr.fileno()).st_size
        tail = os.pread(self._stderr.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        text = tail.decode("utf-8", errors="replace")
        lines = ["".join(c if c.isprintable() else " " for c in line) for line in text.splitlines()]
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last if len(last) <= _LONGEST_LINE else f"{last[: _LONGEST_LINE - 3]}..."

    def _forget_output(self) -> None:
        """Truncate the file of the process's output, which hours of warnings would let grow."""
        handle = self._stderr.fileno()
        size = os.fstat(handle).st_size
        if size and self._debug:
            sys.stderr.write(os.pread(handle, size, 0).decode("utf-8", errors="replace"))
        if size:
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)  # The process shares this position.

    def close(self) -> None:
        """Kill the process; safe to call twice, and while another thread submits a batch."""
        self._popen.kill()
        # A thread that is sending stops once the process is gone: the descriptor that it uses must not
        # be closed before that.
        is_free = self._sending.acquire(timeout=_END_TIMEOUT_S)
        self._pipe.close()
        self._wakeup.close()
        if is_free:
            self._sending.release()
        # A process that hangs in a call of a device driver cannot be killed, and is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_END_TIMEOUT_S)
        self._stderr.close()


@dataclass(slots=True)
class _Tally:
    """The answers to the records of a batch so far."""

    results: list[Done] = field(default_factory=list)
    measured: list[MeasuredTask] = field(default_factory=list)
    needs_device: list[int] = field(default_factory=list)
    handover_s: float = 0.0

    def add(self, answer: Answer) -> None:
        if answer.done is not None:
            self.results.append(answer.done)
        elif answer.half is not None:
            nbytes = answer.half.nbytes
            task = MeasuredTask(answer.index, nbytes, answer.began_s, answer.elapsed_s)
            self.measured.append(task)
            self.handover_s += max(0.0, time.time() - answer.began_s - answer.elapsed_s)
        else:
            self.needs_device.append(answer.index)

    def report(self, failure: WorkerFailure | None = None) -> BatchReport:
        return BatchReport(
            tuple(self.results),
            failure,
            tuple(self.measured),
            tuple(self.needs_device),
            self.handover_s,
        )


def _starved_s(before: dict[str, int], now: dict[str, int]) -> float:
    """Return the seconds for which a process waited for a processor between two calls of `_queued_ns`.

    That is the longest wait of a thread, because the threads wait at the same time.
    """
    return (
        max((ns - before[thread] for thread, ns in now.items() if thread in before), default=0)
        / 1e9
    )


def _shared_byte() -> tuple[mmap.mmap, int]:
    """Return a byte of shared memory, and the descriptor by which a child process maps it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(1)
        handle = os.dup(file.fileno())
    return mmap.mmap(handle, 1), handle


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")
