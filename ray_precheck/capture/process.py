"""A capture in one process of a script that `ray-precheck capture` runs.

Comes in: the settings that the command put into the environment, when a framework was imported. Goes out: a
session, and its account in the command's folder of notes. Called by `start.sitecustomize`, in training
ranks, in launchers, and in helpers that only import a framework: nothing is written before a model is
called, and never in a worker of a DataLoader.
"""

import atexit
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_precheck.capture.account import Account
from ray_precheck.capture.capturing import begin_running, find_probe, stop_with_child
from ray_precheck.capture.session import Session, say
from ray_precheck.capture.settings import settings_from_json
from ray_precheck.capture.verifying.process import begin_tracing
from ray_precheck.foreign import caught

_SESSIONS: dict[str, Session] = {}


def begin(framework: str, found: dict[str, Any]) -> None:
    """Wait for the first call of a model; `found` has the settings, the folder of notes, and the time when
    the command began. A fault is one sentence, and the script goes on."""
    if framework in _SESSIONS:
        return
    start = _begin if "verify" not in found else begin_tracing
    _, error = caught(lambda: start(framework, found))
    if error is not None:
        say(f"{framework} cannot be captured, {type(error).__name__}: {error}; the script goes on")


def _begin(framework: str, found: dict[str, Any]) -> None:
    notes = Path(found["notes"])

    def note(account: Account) -> None:
        with suppress(OSError):  # the script runs on another machine than the command
            account.save(notes)

    session = Session(
        settings_from_json(found["settings"]),
        find_probe(framework),
        began=found["began"],
        on_change=note,
        on_begin=lambda: _lead(framework),
    )
    _SESSIONS[framework] = session
    session.start(at_first_forward=True)
    note(session.account)
    atexit.register(session.stop_at_exit)


def _lead(framework: str) -> None:
    """Let the framework whose model was called first be captured, and no other one."""
    session = _SESSIONS[framework]
    for name, other in _SESSIONS.items():
        if name != framework:
            other.stop()
    begin_running(session)
    stop_with_child(session)


def started(notes: Path) -> set[int]:
    """Return the processes that had the hook, by the notes that they left."""
    return {int(name.partition(".")[0]) for name in os.listdir(notes) if name.endswith(".started")}
