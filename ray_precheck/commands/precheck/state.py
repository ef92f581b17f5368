"""Whether a run has ended, is still running, or has stopped, going by its files.

Comes in: a `Summary`. Goes out: a `RunState`. Called by the command line and by the files for CI.
"""

from dataclasses import dataclass
from enum import Enum

from ray_precheck.commands.precheck.summary import Summary
from ray_precheck.store.claim import running


class RunPhase(Enum):
    """How far a run is; the value is the word in a --json file."""

    FINISHED = "finished"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is: `done` of `planned` calls have a row, 0 planned if their number is unknown.
    `reason` is why it stopped, if that is known, or the process that runs it."""

    progress: RunPhase
    done: int = 0
    planned: int = 0
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The state in words."""
        of = f" of {self.planned}" if self.planned else ""
        reason = f": {self.reason}" if self.reason else ""
        return {
            RunPhase.FINISHED: "finished",
            RunPhase.RUNNING: f"still running in {self.reason}, {self.done}{of} calls done",
            RunPhase.STOPPED: f"stopped before the end, {self.done}{of} calls done{reason}",
        }[self.progress]


def state_of(summary: Summary) -> RunState:
    """Return how far the run of these files is.

    Files without settings (msprobe's own) have no mark of their end, and count as finished.
    """
    planned = summary.environment.calls
    if summary.settings is None or summary.settings.completed is not None:
        return RunState(RunPhase.FINISHED, summary.total, planned)
    holder = running(summary.files.lock)
    progress = RunPhase.RUNNING if holder else RunPhase.STOPPED
    return RunState(progress, summary.total, planned, holder)


def state_of_end(summary: Summary, *, completed: bool, reason: str = "") -> RunState:
    """Return the state of a run that this process has just ended."""
    progress = RunPhase.FINISHED if completed else RunPhase.STOPPED
    return RunState(progress, summary.total, summary.environment.calls, reason)
