"""A check process from the side of the one who started it.

Comes in: batches. Goes out: answers, or a `Casualty` that names the record and says how the process
broke: the signal or exit code, with the last line that it wrote to stderr, or that it gave no answer
in time. Called by the worker actor; needs no Ray.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import DeviceError
from ray_precheck.runtime.messages import Answer, Start, Started
from ray_precheck.schema.casualty import BatchReport, Casualty, Cause
from ray_precheck.schema.result import TaskResult
from ray_precheck.schema.task import DeviceSlot, TaskPayload

START_TIMEOUT_S = 300.0
# How long a killed process may take to be gone: one that hangs in a driver's call cannot be killed.
_END_TIMEOUT_S = 10.0
_POLL_S = 0.1
_TAIL_BYTES = 4096
_LONGEST_LINE = 200

# The kernel ends a process with its parent when the *thread* that started it ends, so one thread
# that lives as long as this process starts them all.
_LAUNCHER = ThreadPoolExecutor(1, thread_name_prefix="launcher")


class CheckProcess:
    """One process that checks APIs; use `close` to end it."""

    def __init__(self, slot: DeviceSlot, settings: CheckSettings, *, debug: bool = False) -> None:
        self._debug = debug
        self._is_fresh = True
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._pipe, child_end = Pipe()
        with child_end:
            self._popen = _LAUNCHER.submit(self._launch, child_end).result()
        self._send(Start(slot, settings))

    def _launch(self, child_end: Connection) -> "subprocess.Popen[bytes]":
        handle = child_end.fileno()
        # -P: what lies in the working directory is no module.
        arguments = [sys.executable, "-P", "-m", "ray_precheck.runtime.check_process"]
        return subprocess.Popen(
            [*arguments, str(handle), str(os.getpid())],
            env=_environment(),
            pass_fds=(handle,),
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def is_fresh(self) -> bool:
        """Whether it has not been given any record."""
        return self._is_fresh

    def wait_ready(self) -> None:
        """Wait until it has loaded its frameworks.

        Raises:
            DeviceError: it could not, with the reason.
        """
        try:
            if not self._pipe.poll(START_TIMEOUT_S):
                raise DeviceError(f"it did not start in {START_TIMEOUT_S:g} s")
            started: Started = self._pipe.recv()
        except (EOFError, OSError):
            how = self._death()[1]
            raise DeviceError(f"its process died while it started ({how})") from None
        if started.failure:
            raise DeviceError(started.failure)

    def check(
        self,
        payloads: Sequence[TaskPayload],
        limits_s: Sequence[float],
        halted: Callable[[], bool],
    ) -> BatchReport:
        """Have a batch checked; `limits_s` are the seconds that each record may take.

        Ends early where `halted` says so: the process is killed, what is finished is returned.
        """
        self._is_fresh = False
        results: list[TaskResult] = []
        self._send(list(payloads))
        for payload, limit_s in zip(payloads, limits_s, strict=True):
            outcome = self._await_answer(payload, limit_s, halted)
            if isinstance(outcome, Casualty):
                return BatchReport(tuple(results), outcome)
            if outcome is None:
                return BatchReport(tuple(results))
            results.append(outcome)
        self._forget_output()
        return BatchReport(tuple(results))

    def _await_answer(
        self, payload: TaskPayload, limit_s: float, halted: Callable[[], bool]
    ) -> TaskResult | Casualty | None:
        until = time.monotonic() + limit_s
        queued: dict[str, int] = {}
        try:
            while not self._pipe.poll(min(_POLL_S, max(0.0, until - time.monotonic()))):
                queued = queued or self._queued_ns()
                if halted():
                    self.close()
                    return None
                if time.monotonic() >= until + self._starved_s(queued):
                    self.close()
                    reason = f"no answer in {_seconds(limit_s)} s (--timeout)"
                    return Casualty(payload.index, Cause.TIMED_OUT, reason)
            answer: Answer = self._pipe.recv()
        except (EOFError, OSError):
            cause, how = self._death()
            return Casualty(payload.index, cause, f"killed its worker ({how})")
        if answer.cause is None:
            return answer.result
        self.close()
        return Casualty(payload.index, answer.cause, answer.result.message, answer.result)

    def _queued_ns(self) -> dict[str, int]:
        """Return for each thread the nanoseconds that it was ready and waited for a processor.

        The second number of schedstat (Linux, Documentation/scheduler/sched-stats); {} elsewhere.
        """
        queued = {}
        for path in Path(f"/proc/{self._popen.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                queued[path.parent.name] = int(path.read_text().split()[1])
        return queued

    def _starved_s(self, before: dict[str, int]) -> float:
        """Return the seconds that a record lost to other processes: a busy machine is no hang.

        The longest of its threads, since what they wait side by side counts once.
        """
        now = self._queued_ns()
        return max((ns - before.get(thread, 0) for thread, ns in now.items()), default=0) / 1e9

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # Dead: the next look at the pipe says how it ended.
            self._pipe.send(message)

    def _death(self) -> tuple[Cause, str]:
        """Return how the process ended, for the machine and for people."""
        try:
            # It has closed its pipe: what ends it is on its way, and must not be our SIGKILL.
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
        """Drop what was written so far: hours of warnings must not fill the disk."""
        handle = self._stderr.fileno()
        size = os.fstat(handle).st_size
        if size and self._debug:
            sys.stderr.write(os.pread(handle, size, 0).decode("utf-8", errors="replace"))
        if size:
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)  # The process shares this position.

    def close(self) -> None:
        """End the process at once; safe to call twice."""
        self._pipe.close()
        self._popen.kill()
        # One that hangs in a call of its driver cannot be killed; it is left behind then.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_END_TIMEOUT_S)
        self._stderr.close()


def _environment() -> dict[str, str]:
    """Return this environment, in which the package is found from wherever this one came."""
    home = str(Path(__file__).resolve().parent.parent.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")
