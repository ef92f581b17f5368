"""What the session of a capture asks of a framework.

Comes in: nothing. Goes out: the protocols, and what the steps of all frameworks have in common. Each
framework has a module that implements them (`pytorch.probe`, `mindspore.probe`); the session knows neither.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from ray_precheck.capture.recording.recorder import StepRecorder
from ray_precheck.capture.recording.scope import Scope
from ray_precheck.capture.settings import CaptureSettings


class StepProbe(Protocol):
    """The hooks of one captured step, which are there from its making on."""

    scope: Scope

    @property
    def records(self) -> int:
        """How many records were written so far."""

    @property
    def dark(self) -> dict[str, object] | None:
        """What had no record, as the dump's header says it; None where nothing is known."""

    def pause(self) -> None:
        """Take the hooks away; what is underway (gradients of recorded calls) is still recorded."""

    def resume(self) -> None:
        """Put the hooks on again after `pause`; numbers of calls go on."""

    def finish(self, cut_short: str = "") -> None:
        """Take the hooks away, and write the files of the step into its folder; `cut_short` is why it did not
        come to its end."""

    def abandon(self) -> None:
        """Write nothing any more, and close the files as they are; hooks that stay do nothing.

        It is called in a process that was forked within the step, whose files are its parent's, and for
        a step whose files are not wanted, there after `pause`.
        """


class HookedStep(ABC):
    """The hooks of one captured step, until `finish`; `hooks` are those that are on."""

    def __init__(self, recorder: StepRecorder, hooks: ExitStack) -> None:
        self.scope = recorder.scope
        self._recorder = recorder
        self._hooks = hooks
        self._is_open = True
        self._is_paused = True

    @abstractmethod
    def put_on(self) -> None:
        """Put the hooks on."""

    @property
    def records(self) -> int:
        """How many records were written so far."""
        return self._recorder.records

    @property
    def dark(self) -> dict[str, object] | None:
        """What had no record, as the dump's header says it; None where nothing is known."""
        return self._recorder.dark_header()

    def pause(self) -> None:
        """Take the hooks away; gradients of calls that were recorded are still recorded."""
        self._is_paused = True
        self._hooks.close()

    def resume(self) -> None:
        """Put the hooks on again."""
        if self._is_paused:
            self._is_paused = False
            self.put_on()

    def note(self, name: str, value: Callable[[], object]) -> None:
        """Add a field to the header of the dump, unless it has it already or the value is None."""
        recorder = self._recorder
        if self._is_open and not recorder.stopped and name not in recorder.noted:
            found = recorder.guarded(name, value)
            if found is not None:
                recorder.noted[name] = found

    def finish(self, cut_short: str = "") -> None:
        """Take the hooks away, and write the files of the step."""
        self._is_open = False
        self.pause()
        self._recorder.finish(cut_short)

    def abandon(self) -> None:
        """Write nothing any more, and close the log as it is."""
        self._is_open = False
        self._recorder.abandon()


class StepMeasures(Protocol):
    """What is measured of each step of a watched training; `failure` is why nothing is any more, else ""."""

    failure: str

    def end_step(self) -> list[dict[str, float | int | None]]:
        """End a step, and return the numbers of the steps that have arrived, the oldest one first, by the
        headings of their columns; a step's own may come with the next one."""

    def close(self) -> list[dict[str, float | int | None]]:
        """Measure nothing any more, and return the numbers that were on their way."""

    def leave(self) -> None:
        """Measure nothing in this process, which was forked."""


class Probe(Protocol):
    """A framework, as a capture sees it."""

    framework: str

    @property
    def why_unseen(self) -> str:
        """Why a model was not seen, as half a sentence; "" where nothing is known of it."""

    def rank(self) -> int | None:
        """Return this process's rank, None where it has none (yet)."""

    def ranks(self) -> int:
        """Return how many ranks there are, 1 where none is known."""

    def measure(self, models: Any) -> StepMeasures | None:
        """Begin to measure each step; None where this framework cannot."""

    def is_loader(self) -> bool:
        """Return whether this process loads data for another one, and trains nothing itself."""

    def watch_steps(self, on_step: Callable[[], None], on_forward: Callable[[], None]) -> None:
        """Tell when a step of the first optimizer has ended, and when the model is about to be called:
        the first one with parameters, from outside."""

    def unwatch_steps(self) -> None:
        """Take away what `watch_steps` put there."""

    def begin(
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> StepProbe:
        """Begin to capture a step into a folder; `on_failure` ends the capture with a sentence."""
