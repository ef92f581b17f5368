"""MindSpore, as the session of a capture sees it.

Comes in: when a step begins and ends. Goes out: the hooks of a captured step, and the ends of steps. Made
by `session.find_probe`.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import mint

from ray_precheck.capture.births import step_log
from ray_precheck.capture.mindspore.calls import Calls
from ray_precheck.capture.mindspore.cells import (
    GRAPH_MODE,
    CellCalls,
    CellNames,
    in_graph_mode,
)
from ray_precheck.capture.mindspore.detour import CellDetour, StepWatch
from ray_precheck.capture.mindspore.names import FunctionPlace, recorded_functions
from ray_precheck.capture.mindspore.recorder import StepRecorder
from ray_precheck.capture.settings import TENSOR, CaptureSettings
from ray_precheck.capture.stacks import Stacks
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.errors import UsageError

# Frames of these files are no part of the program that is looked at.
_OWN = (str(Path(__file__).parents[1]),)


class MindSporeProbe:
    """MindSpore in this process."""

    framework = "mindspore"

    def __init__(self) -> None:
        self._detour = CellDetour()
        self._stacks = Stacks(_OWN)
        self._places: list[FunctionPlace] = []
        self._cells: CellNames | None = None

    def rank(self) -> int | None:
        """Return the rank in MindSpore's communication; before it is initialised, that of the launcher."""
        if ms.communication.GlobalComm.INITED:
            return int(ms.communication.get_rank())
        if mint.distributed.is_initialized():
            return int(mint.distributed.get_rank())
        given = os.environ.get("RANK_ID", "")
        return int(given) if given.isdecimal() else None

    def is_loader(self) -> bool:
        """Return whether this process loads data; MindSpore's workers call no Cell."""
        return False

    def watch_steps(self, on_step: Callable[[], None], on_forward: Callable[[], None]) -> None:
        """Tell of the steps of the optimizer that steps first, and of calls of the Cell that is called first."""
        self._detour.watch(StepWatch(on_step, on_forward).call)

    def unwatch_steps(self) -> None:
        """Take away what `watch_steps` put there."""
        self._detour.watch(None)

    def begin(
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> "MindSporeStep":
        """Begin to capture a step into a folder.

        Raises:
            UsageError: MindSpore runs in graph mode.
        """
        if in_graph_mode():
            raise UsageError(GRAPH_MODE)
        if not self._places:
            self._places = recorded_functions()
        if self._cells is None:
            self._cells = CellNames(models)
        header: dict[str, object] = {
            "task": settings.task,
            "level": settings.level,
            "framework": self.framework,
            "dump_data_dir": str((folder / TENSORS).absolute())
            if settings.task == TENSOR
            else None,
        }
        hooks = ExitStack()

        def failed(reason: str) -> None:
            hooks.close()
            on_failure(reason)

        log = step_log(settings, folder, header, self._stacks.lines)
        recorder = StepRecorder(settings, log, self._stacks, failed)
        cells = CellCalls(self._cells, recorder)
        calls = Calls(self._places, recorder)

        def put_on() -> None:
            hooks.enter_context(cells.watched())
            hooks.enter_context(self._detour.recorded(cells.call))
            hooks.enter_context(calls.watched())

        return MindSporeStep(recorder, hooks, put_on)


class MindSporeStep:
    """The hooks of one captured step, until `finish`."""

    def __init__(
        self, recorder: StepRecorder, hooks: ExitStack, put_on: Callable[[], None]
    ) -> None:
        self.scope = recorder.scope
        self._recorder = recorder
        self._hooks = hooks
        self._put_on = put_on
        self._is_paused = True
        self.resume()

    @property
    def records(self) -> int:
        """How many records were written so far."""
        return self._recorder.records

    def pause(self) -> None:
        """Take the hooks away."""
        self._is_paused = True
        self._hooks.close()

    def resume(self) -> None:
        """Put the hooks on."""
        if self._is_paused:
            self._is_paused = False
            self._put_on()

    def finish(self) -> None:
        """Take the hooks away, and write the files of the step."""
        self.pause()
        self._recorder.finish()

    def abandon(self) -> None:
        """Write nothing any more, and close the log as it is."""
        self._recorder.abandon()
