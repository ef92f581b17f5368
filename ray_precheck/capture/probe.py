"""What the session of a capture asks of a framework.

Comes in: nothing. Goes out: the protocols. Each framework has a module that implements them
(`pytorch.probe`, `mindspore.probe`); the session knows neither.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ray_precheck.capture.scope import Scope
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


class Probe(Protocol):
    """A framework, as a capture sees it."""

    framework: str

    @property
    def why_unseen(self) -> str:
        """Why a model was not seen, as half a sentence; "" where nothing is known of it."""

    def rank(self) -> int | None:
        """Return this process's rank, None where it has none (yet)."""

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
