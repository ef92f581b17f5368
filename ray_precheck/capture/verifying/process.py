"""A step that is verified, in one process of a script that `capture --verify` runs.

Comes in: the settings and the kind of the run, when a framework was imported. Goes out: the trace of the
first captured step, as a file in the command's folder of notes; then the process ends, because what
follows has nothing to say. Made by `capture.beginning`, in every process of the script.

    {PID}.trace      {"rank": 0, "trace": {..}}
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_precheck.capture.account import Account
from ray_precheck.capture.capturing import capturing_of
from ray_precheck.capture.process import Running
from ray_precheck.capture.verifying.trace import StepTrace, TracedRun, Traces
from ray_precheck.descriptors.descriptor import load_part

TRACE = "trace"
# How long a rank waits for the step of the others, which may still need it.
_WAIT_S = 60.0
_LOOK_AGAIN_S = 0.05


def tracing_probe(framework: str) -> type[Any]:
    """Return the class of a framework's `TracingProbe`; that of PyTorch where no other one is named."""
    found: type[Any] = load_part(capturing_of(framework or "pytorch").tracing_probe)
    return found


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
