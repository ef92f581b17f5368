"""Processes in which calls run with settings that a framework reads when it starts.

Comes in: variables of the environment, and a call with the switches to turn there. Goes out: `Measured`.
Called by `commands.naive.contrast`; `commands.naive.plain_process` is the other end. A process is started
when it is first asked for, and stays for later calls.
"""

import contextlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from ray_precheck.check.attempt import Measured
from ray_precheck.check.settings import CheckSettings
from ray_precheck.errors import NotCheckable
from ray_precheck.processes import module_command, python_path
from ray_precheck.schema.task import TaskPayload

if TYPE_CHECKING:
    from ray_precheck.dump.tensors import TensorFiles

_MODULE = "ray_precheck.commands.naive.plain_process"
_END_TIMEOUT_S = 10.0
# Each holds a framework of its own, which takes a quarter of a GiB and two seconds to load.
_MOST_PROCESSES = 3


@dataclass(frozen=True, slots=True)
class PlainStart:
    """What a process must know before its first call. `kind` is the kind of its device."""

    settings: CheckSettings
    kind: str


@dataclass(frozen=True, slots=True)
class PlainRun:
    """A call to run once with these switches at their plain side; see `CallRuns` for the other fields."""

    payload: TaskPayload
    plain: tuple[str, ...]
    safer: str = ""
    files: "TensorFiles | None" = None


class PlainProcesses:
    """The processes of a check process, by their variables."""

    def __init__(self, settings: CheckSettings, kind: str) -> None:
        self._start = PlainStart(settings, kind)
        self._open: dict[frozenset[tuple[str, str]], _Process] = {}

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Start the process that has these variables, if any, and do not wait for it."""
        if environment:
            self._open[frozenset(environment.items())] = _Process(environment, self._start)

    def run(self, environment: Mapping[str, str], wanted: PlainRun) -> Measured:
        """Run a call in the process that has these variables.

        Raises:
            NotCheckable: it cannot be run there, or it ended the process.
        """
        key = frozenset(environment.items())
        process = self._open.pop(key, None) or _Process(environment, self._start)
        while len(self._open) >= _MOST_PROCESSES:
            self._open.pop(next(iter(self._open))).close()
        try:
            found = process.ask(wanted)
        except (EOFError, OSError):
            raise NotCheckable(
                f"the process with {_shown(environment)} ended (exit code {process.close()})"
            ) from None
        self._open[key] = process  # The one that was used last is the last to go.
        if not isinstance(found, Measured):
            raise NotCheckable(f"with {_shown(environment)}: {found}")
        return found

    def close(self) -> None:
        """End all processes."""
        while self._open:
            self._open.popitem()[1].close()


def _shown(environment: Mapping[str, str]) -> str:
    return " and ".join(f"{key}={value}" for key, value in environment.items())


class _Process:
    """A process that runs calls, and the pipe to it."""

    def __init__(self, environment: Mapping[str, str], start: PlainStart) -> None:
        self._pipe: Connection[Any, Any]
        self._pipe, child_end = Pipe()
        with child_end:
            self._popen = subprocess.Popen(
                [*module_command(_MODULE), str(child_end.fileno()), str(os.getpid())],
                env={**os.environ, **environment, "PYTHONPATH": python_path()},
                pass_fds=(child_end.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        with contextlib.suppress(OSError):  # Its end is seen at the first call.
            self._pipe.send(start)

    def ask(self, wanted: PlainRun) -> Any:
        """Return the results of a call, or a sentence that says why there are none.

        Raises:
            EOFError, OSError: the process has ended.
        """
        self._pipe.send(wanted)
        return self._pipe.recv()

    def close(self) -> int:
        """End the process and return its exit code; safe to call twice."""
        self._pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(_END_TIMEOUT_S)
        self._popen.kill()
        return self._popen.wait()

    def __del__(self) -> None:
        if hasattr(self, "_popen"):
            self._pipe.close()
            self._popen.kill()
            self._popen.wait()
