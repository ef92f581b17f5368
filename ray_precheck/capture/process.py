"""A capture in one process of a script that `ray-precheck capture` runs.

Comes in: the settings that the command put into the environment, when a framework was imported. Goes out: a
session, and its account in the command's folder of notes. Made by `capture.beginning`. Nothing is written
before a model is called, and never in a worker of a DataLoader.
"""

import atexit
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray_precheck.capture.account import Account
from ray_precheck.capture.capturing import begin_running, stop_with_child
from ray_precheck.capture.probe import Probe
from ray_precheck.capture.session import Session
from ray_precheck.capture.settings import settings_from_json

# The sessions of this process, by their frameworks.
RUNNING: "dict[str, Running]" = {}


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


def started(notes: Path) -> set[int]:
    """Return the processes that had the hook, by the notes that they left."""
    return {int(name.partition(".")[0]) for name in os.listdir(notes) if name.endswith(".started")}
