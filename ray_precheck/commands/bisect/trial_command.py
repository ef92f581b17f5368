"""A command of a trial, or one that judges a trial, run to its end.

Comes in: words, an environment, a folder, and a limit of time. Goes out: a `CommandEnd`. Called by the target
`run` and by `commands.bisect.measure`, in a check process.

Nothing of a command stays behind, however it ends: see `inside.keep`, whose process runs it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.commands.bisect.trial_process import signal_name
from ray_precheck.processes import adopt_orphans, descendants, launch

_KEEP = Path(__file__).with_name("inside") / "keep.py"
# How long killed processes may take to end: one in a call of a driver may never.
_END_S = 10.0
_LAST_BYTES, _LONGEST_LINE = 4096, 200
TIMEOUT, KILLED = "timeout", "killed"


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended: its exit `code`, negative for a signal, None where there is none; then `problem`
    says why: "timeout", "killed" with what ran it, or why it was not started. `line` is the last line that
    it wrote, "" for none."""

    code: int | None
    problem: str = ""
    line: str = ""

    @property
    def exit(self) -> str:
        """How it ended, as a table shows it: "0", "SIGSEGV", "timeout"."""
        if self.code is None:
            return self.problem if self.problem == TIMEOUT else ""
        return signal_name(self.code) if self.code < 0 else str(self.code)

    @property
    def is_killed(self) -> bool:
        """Whether SIGKILL has ended it, or what ran it."""
        return self.code == -signal.SIGKILL or self.problem == KILLED

    @property
    def said(self) -> str:
        """How it ended, with the last line that it wrote."""
        how = self.problem if self.code is None else f"it ended with {self.exit}"
        return f"{how}: {self.line}" if self.line else how


def run_command(
    words: Sequence[str], env: Mapping[str, str], folder: Path, timeout_s: float, output: Path
) -> CommandEnd:
    """Run a command in `folder` to its end, or for so many seconds; what it writes goes into `output`."""
    readable, writable = os.pipe()
    before = set(descendants(os.getpid()))
    # Where the keeper is killed, its orphans come to this process.
    adopt_orphans()
    with output.open("wb") as file:
        keep = [sys.executable, "-I", "-S", str(_KEEP), str(os.getpid()), str(writable), *words]

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                keep,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                pass_fds=[writable],
                start_new_session=True,
            )

        try:
            keeper = launch(start)
        except OSError as error:
            os.close(readable)
            return CommandEnd(None, f"{folder}: {error.strerror}")
        finally:
            os.close(writable)
    with os.fdopen(readable) as status:
        is_late = _wait(keeper, env, timeout_s)
        _end_new(before)
        told = "" if is_late else status.readline().strip()
    line = _last_line(output)
    if told.startswith("errno "):
        number = int(told.removeprefix("errno "))
        return CommandEnd(None, f"{words[0]} cannot be started: {os.strerror(number)}")
    if told:
        return CommandEnd(int(told), line=line)
    return CommandEnd(None, TIMEOUT if is_late else KILLED, line)


def _wait(keeper: "subprocess.Popen[bytes]", env: Mapping[str, str], timeout_s: float) -> bool:
    """Wait until the keeper has ended; return whether it had to be told to."""
    assert keeper.stdin is not None
    with suppress(BrokenPipeError), keeper.stdin as stdin:
        stdin.write(b"".join(os.fsencode(f"{name}={value}\0") for name, value in env.items()))
    is_late = False
    for limit_s, end in ((timeout_s, keeper.terminate), (_END_S, keeper.kill)):
        try:
            keeper.wait(limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
            end()
    return is_late


def _end_new(before: set[int]) -> None:
    """Kill the descendants of this process that were not there before: those of a keeper that was killed."""
    until = time.monotonic() + _END_S
    while new := set(descendants(os.getpid())) - before:
        for pid in new:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:
            return
        time.sleep(0.01)


def _last_line(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_LINE] if lines else ""
