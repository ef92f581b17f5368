"""One traced step, with its capture or without; what it came to is taken by its framework.

Comes in: when the step begins and ends, and what is seen of it. Goes out: its `StepTrace`. The tracing of
each framework derives its own steps from this one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ray_precheck.capture.probe import Probe, StepProbe
from ray_precheck.capture.scope import Scope
from ray_precheck.capture.settings import CaptureSettings
from ray_precheck.capture.verifying.trace import StepTrace, TracedRun

# Chooses no call: a watched run has the hooks of the capture, and none of its records.
_NO_CALL = ("name-regex((?!))",)


class TracedStepProbe(ABC):
    """The step as the session sees it; `ended` takes its trace, `digest` is that of a framework's values."""

    dark: dict[str, object] | None = None

    def __init__(
        self,
        captured: StepProbe | None,
        ended: Callable[[StepTrace], None],
        digest: Callable[[Any], str],
    ) -> None:
        self.scope = Scope((), ()) if captured is None else captured.scope
        self._captured = captured
        self._ended = ended
        self._digest = digest
        self._trace = StepTrace()

    @property
    def records(self) -> int:
        """How many records were written so far."""
        return 0 if self._captured is None else self._captured.records

    def pause(self) -> None:
        """Take the hooks of the capture away."""
        if self._captured is not None:
            self._captured.pause()

    def resume(self) -> None:
        """Put the hooks of the capture on again."""
        if self._captured is not None:
            self._captured.resume()

    def finish(self, cut_short: str = "") -> None:
        """End the capture of the step; then take what the step came to."""
        if self._captured is not None:
            self._captured.finish(cut_short)
        self.collect(self._trace)
        self._trace.records = self.records
        self._ended(self._trace)

    def abandon(self) -> None:
        """Take nothing, in a process that was forked, and for a step in which nothing happened."""
        if self._captured is not None:
            self._captured.abandon()

    def took(self, value: Any, error: Exception | None = None) -> None:
        """Take what a function gave that runs the step, or what it raised."""
        if error is not None:
            self._trace.raised = f"{type(error).__name__}: {error}"
        if value is not None:
            self._trace.returned["what the step returned"] = self._digest(value)

    @abstractmethod
    def collect(self, trace: StepTrace) -> None:
        """Take the digests of what is there when the step has ended."""


class TracingOfFramework(Probe, Protocol):
    """A framework, with a trace of the last step."""

    trace: StepTrace | None

    def ranks_here(self) -> int:
        """Return how many ranks run on this machine and wait for each other."""

    def begin(
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> TracedStepProbe:
        """Begin a step, and its capture where the run has one."""


def settings_of_run(run: TracedRun, settings: CaptureSettings) -> CaptureSettings:
    """Return the settings of a run with hooks, which has records or none."""
    return settings if run.has_records else replace(settings, chosen=_NO_CALL, scope=())
