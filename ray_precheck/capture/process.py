"""A capture, or a step that is verified, in one process of a script that `ray-precheck capture` runs.

Comes in: what the command put into the environment, when a framework was imported. Goes out: a session,
and its account in the command's folder of notes. Called by `start.sitecustomize`, in training ranks, in
launchers, and in helpers that only import a framework: nothing is written before a model is called, and never
in a worker of a DataLoader.

`capture --verify` gets the trace of the first captured step as a file; then the process ends, because what
follows has nothing to say.

    {PID}.trace      {"rank": 0, "trace": {..}}
"""

import atexit
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_precheck.capture.account import Account
from ray_precheck.capture.capturing import begin_running, capturing_of, find_probe, stop_with_child
from ray_precheck.capture.probe import Probe
from ray_precheck.capture.session import Session, say
from ray_precheck.capture.settings import settings_from_json
from ray_precheck.capture.verifying.verdict import StepTrace, TracedRun, Traces
from ray_precheck.descriptors.descriptor import load_part
from ray_precheck.foreign import caught

# The sessions of this process, by their frameworks.
RUNNING: "dict[str, Running]" = {}
TRACE = "trace"
# How long a rank waits for the step of the others, which may still need it.
_WAIT_S = 60.0
_LOOK_AGAIN_S = 0.05


def begin(framework: str, found: dict[str, Any]) -> None:
    """Wait for the first call of a model; `found` has what `launch.environment` put there: the settings, the
    folder of notes, and the time when the command began. A fault is one sentence, and the script goes on."""
    if framework in RUNNING:
        return
    _, error = caught(lambda: _begin(framework, found))
    if error is not None:
        say(f"{framework} cannot be captured, {type(error).__name__}: {error}; the script goes on")


def _begin(framework: str, found: dict[str, Any]) -> None:
    is_verified = "verify" in found
    running = Tracing(framework, found) if is_verified else Running(found, find_probe(framework))
    RUNNING[framework] = running
    running.begin()


class Running:
    """The session of one framework in this process."""

    def __init__(self, found: dict[str, Any], probe: Probe) -> None:
        self.notes = Path(found["notes"])
        self.session = Session(
            settings_from_json(found["settings"]),
            probe,
            began=found["began"],
            on_change=self.changed,
            on_begin=self._lead,
        )

    def begin(self) -> None:
        """Wait for the first call of a model."""
        self.session.start(at_first_forward=True)
        self.note(self.session.account)
        atexit.register(self.stop_at_exit)

    def stop_at_exit(self) -> None:
        """End the capture with the process."""
        self.session.stop_at_exit()

    def stop(self) -> None:
        """End a capture that another framework leads."""
        self.session.stop()

    def changed(self, account: Account) -> None:
        """Take note of what has changed."""
        self.note(account)

    def note(self, account: Account) -> None:
        """Leave an account for the command."""
        with suppress(OSError):  # the script runs on another machine than the command
            account.save(self.notes)

    def _lead(self) -> None:
        """Let the framework whose model was called first be captured, and no other one."""
        for other in RUNNING.values():
            if other is not self:
                other.stop()
        begin_running(self.session)
        stop_with_child(self.session)


class Tracing(Running):
    """The session of one process, and its end."""

    def __init__(self, framework: str, found: dict[str, Any]) -> None:
        self._probe = tracing_probe(framework)(TracedRun(found["verify"]))
        self._is_ending = False
        super().__init__(found, self._probe)

    def stop(self) -> None:
        """End a step that nothing has ended; the script ends by itself."""
        self._is_ending = True
        self.session.stop()

    stop_at_exit = stop

    def changed(self, account: Account) -> None:
        """Write the trace of the step when it has ended, and end the process."""
        self.note(account)
        if account.captured and self._probe.trace is not None:
            self._write(account.rank, self._probe.trace)
            self._wait_for_others()
        elif not account.failure or self.session.open_step is not None:
            return
        if not self._is_ending:
            _end_process()

    def _write(self, rank: int | None, trace: StepTrace) -> None:
        path = self.notes / f"{os.getpid()}.{TRACE}"
        part = path.with_suffix(".part")
        with suppress(OSError):
            text = json.dumps({"rank": rank, "trace": trace.to_json()})
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)

    def _wait_for_others(self) -> None:
        """Wait until all ranks of this machine have ended the step."""
        ranks, until = self._probe.ranks_here(), time.monotonic() + _WAIT_S
        while len(list(self.notes.glob(f"*.{TRACE}"))) < ranks and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)


def _end_process() -> None:
    """End this process as if its script had come to its end, with the workers that load its data."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for child in multiprocessing.active_children():
            child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(0)


def tracing_probe(framework: str) -> type[Any]:
    """Return the class of a framework's `TracingProbe`; that of PyTorch where no other one is named."""
    found: type[Any] = load_part(capturing_of(framework or "pytorch").tracing_probe)
    return found


def started(notes: Path) -> set[int]:
    """Return the processes that had the hook, by the notes that they left."""
    return {int(name.partition(".")[0]) for name in os.listdir(notes) if name.endswith(".started")}


def read_traces(notes: Path) -> Traces:
    """Return the traces in a folder of notes by the name of their process, "" where there is one."""
    found: list[tuple[int, int, StepTrace]] = []
    for path in notes.glob(f"*.{TRACE}"):
        note = json.loads(path.read_text(encoding="utf-8"))
        rank = -1 if note["rank"] is None else note["rank"]
        found.append((rank, int(path.stem), StepTrace.from_json(note["trace"])))
    found.sort(key=lambda each: each[:2])
    if len(found) == 1:
        return {"": found[0][2]}
    return {
        f"rank {rank}" if rank >= 0 else f"process {place}": trace
        for place, (rank, _, trace) in enumerate(found)
    }
