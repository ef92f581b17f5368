"""A process of the interpreter in which a target's framework lives, asked one request after the other.

Comes in: a target's `inside.py`, its settings, and requests. Goes out: `Reply`s. Called by targets, in a
check process for trials and in the command's own process for what comes before and after them. It stays warm:
what it has imported serves all trials; one that crashed or hung is started again with the next request.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.errors import UsageError
from ray_precheck.processes import launch

_SERVE = Path(__file__).with_name("inside") / "serve.py"
_LONGEST_LOG = 1 << 22
# An import of a framework on a slow disk, beside other processes that import it.
START_S = 180.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a request: an `answer`; or the `error` that was raised ("ValueError: the first line"); or
    how the process ended: `end` is "exit 1", "SIGSEGV" or "timeout". `log` is what it wrote meanwhile."""

    answer: dict[str, Any] | None = None
    end: str = ""
    error: str = ""
    log: str = ""

    @property
    def reason(self) -> str:
        """Why there is no answer, in a few words; "" where there is one."""
        return self.error or self.end


class TrialProcess:
    """The process. `python` is its interpreter, `scratch` a folder for its log, `env` is set beside this
    process's environment."""

    def __init__(
        self,
        python: str,
        inside: Path,
        settings: Mapping[str, Any],
        scratch: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [python, str(_SERVE), str(inside)]
        self._settings = dict(settings)
        self._log = scratch / f"log.{os.getpid()}.{id(self):x}"
        self._env = {**os.environ, **(env or {})}
        # The package under test is that of the interpreter: nothing of ours stands in its way.
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._answers = -1
        self._pending = b""

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        """Return what came of a request within so many seconds; the process is started if there is none.

        Raises:
            UsageError: the interpreter cannot be started.
        """
        if self._process is None:
            reply = self._open()
            if reply.answer is None:
                self.close()
                return reply
        return self._exchange(request, timeout_s)

    def _open(self) -> Reply:
        to_child, self._requests = os.pipe()
        self._answers, from_child = os.pipe()
        self._pending = b""
        with self._log.open("wb") as log:
            words = [*self._command, str(to_child), str(from_child), str(os.getpid())]

            def start() -> "subprocess.Popen[bytes]":
                return subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(to_child, from_child),
                    env=self._env,
                    start_new_session=True,
                )

            try:
                self._process = launch(start)
            except OSError as error:
                raise UsageError(
                    f"--python {words[0]}: cannot start it: {error.strerror}; name the interpreter that"
                    " has the framework"
                ) from None
            finally:
                os.close(to_child)
                os.close(from_child)
        return self._exchange(self._settings, START_S)

    def _exchange(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        begin = self._log.stat().st_size
        line = json.dumps(request).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            written = 0
            while written < len(line):
                written += os.write(self._requests, line[written:])
        found, is_late = self._line(time.monotonic() + timeout_s)
        log = self._written_since(begin)
        if found is None:
            end = "timeout" if is_late else self._end()
            self.close()
            return Reply(end=end, log=log)
        reply = json.loads(found)
        return Reply(reply.get("answer"), error=reply.get("error", ""), log=log)

    def _line(self, until: float) -> tuple[bytes | None, bool]:
        """Return the next line; None where there is none, and whether that is for the time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return None, True
                # A fork of the process may hold its end of the pipe open when it has ended.
                has_ended = self._process is not None and self._process.poll() is not None
                if selector.select(0.0 if has_ended else min(left_s, _POLL_S)):
                    more = os.read(self._answers, 1 << 16)
                    if not more:
                        return None, False
                    self._pending += more
                elif has_ended:
                    return None, False
        line, _, self._pending = self._pending.partition(b"\n")
        return line, False

    def _end(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return signal_name(code) if code < 0 else f"exit {code}"

    def _written_since(self, begin: int) -> str:
        with self._log.open("rb") as log:
            log.seek(max(begin, log.seek(0, os.SEEK_END) - _LONGEST_LOG))
            return log.read().decode("utf-8", errors="replace")

    def close(self) -> None:
        """End the process, with those that it started; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        for each in (self._requests, self._answers):
            os.close(each)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def signal_name(code: int) -> str:
    """Return the name of the signal that ended a process, of its negative exit code."""
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def interpreter(asked: str) -> str:
    """Return the interpreter of a target: the one asked for, else this one.

    Raises:
        UsageError: there is no such file.
    """
    if asked and not (Path(asked).is_file() and os.access(asked, os.X_OK)):
        raise UsageError(
            f"--python {asked}: there is no such program; name the interpreter that has the framework"
        )
    return asked or sys.executable
