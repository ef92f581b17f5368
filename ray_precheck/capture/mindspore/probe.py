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

from ray_precheck.capture.mindspore.calls import Calls, CallSink
from ray_precheck.capture.mindspore.cells import (
    COMPILED,
    GRAPH_MODE,
    CellCalls,
    CellNames,
    in_graph_mode,
)
from ray_precheck.capture.mindspore.detour import CellDetour, StepWatch
from ray_precheck.capture.mindspore.names import FunctionPlace, OperatorName, recorded_functions
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder
from ray_precheck.capture.mindspore.scalers import ScaledUpdates
from ray_precheck.capture.probe import HookedStep, StepProbe
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.recording.stacks import Stacks
from ray_precheck.capture.session import say
from ray_precheck.capture.settings import BORDER, CaptureSettings
from ray_precheck.errors import UsageError

# Frames of these files are no part of the program that is looked at.
_OWN = (str(Path(__file__).parents[1]),)
# MindSpore's file that computes a Cell again (`Cell.recompute`), and its functions that do so.
_RECOMPUTATION = os.path.join("mindspore", "common", "recompute.py")
_COMPUTES_AGAIN = ("bprop", "recompute")
NO_NAMESPACES = (
    "custom_op_namespaces has no meaning here: operators of MindSpore have no namespaces; register_custom_api"
    " records the functions that call your own"
)
NO_NODE_GRADIENTS = (
    "gradients is node, and those of MindSpore's calls are at the operator's border alone; leave the option"
    " out"
)


class MindSporeProbe:
    """MindSpore in this process."""

    framework = "mindspore"

    @property
    def why_unseen(self) -> str:
        """Why no call of a Cell was seen: it was within a function that is compiled."""
        name = self.scaled.compiled
        return name and f"its model ran in the function {name}, {COMPILED}"

    def __init__(self) -> None:
        self._detour = CellDetour()
        self._stacks = Stacks(_OWN, _RECOMPUTATION, _COMPUTES_AGAIN)
        self._places: list[FunctionPlace] = []
        self._cells: CellNames | None = None
        self._step: MindSporeStep | None = None
        self.scaled = ScaledUpdates(self._note)

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
        """Tell of the steps of the optimizer that steps first, and of calls of the Cell that is called first.

        A step whose update a loss scaler skips is one, too.
        """
        self.scaled.watch(on_step)
        self._detour.watch(self.step_watch(on_step, on_forward).call)

    def step_watch(self, on_step: Callable[[], None], on_forward: Callable[[], None]) -> StepWatch:
        """Return what sees the steps."""
        return StepWatch(on_step, on_forward, self.scaled)

    def unwatch_steps(self) -> None:
        """Take away what `watch_steps` put there."""
        self.scaled.remove()
        self._detour.watch(None)

    def _note(self, name: str, value: Callable[[], object]) -> None:
        if self._step is not None:
            self._step.note(name, value)

    def begin(
        self,
        settings: CaptureSettings,
        folder: Path,
        models: Any,
        on_failure: Callable[[str], None],
    ) -> StepProbe:
        """Begin to capture a step into a folder.

        Raises:
            UsageError: MindSpore runs in graph mode, or a setting is one of PyTorch alone.
        """
        if in_graph_mode():
            raise UsageError(GRAPH_MODE)
        if settings.gradients != BORDER:
            raise UsageError(NO_NODE_GRADIENTS)
        if not self._places:
            self._places = recorded_functions()
        if self._cells is None:
            self._cells = CellNames(models)
            if settings.custom_op_namespaces:
                say(NO_NAMESPACES)
        hooks = ExitStack()

        def failed(reason: str) -> None:
            hooks.close()
            on_failure(reason)

        recorder = MindSporeRecorder(settings, folder, self._stacks, failed)
        recorder.module_shown = self._cells.shown
        calls = Calls(self._places, recorder, self.sink_around(recorder))
        cells = CellCalls(self._cells, recorder)
        self._step = MindSporeStep(recorder, hooks, self._detour, cells, calls)
        return self._step

    def sink_around(self, recorder: MindSporeRecorder) -> CallSink | None:
        """Return what takes each call in the recorder's place, at every level; None for the recorder."""
        return None


class MindSporeStep(HookedStep):
    """The hooks of one captured step of MindSpore."""

    def __init__(
        self,
        recorder: MindSporeRecorder,
        hooks: ExitStack,
        detour: CellDetour,
        cells: CellCalls,
        calls: Calls,
    ) -> None:
        super().__init__(recorder, hooks)
        self._detour = detour
        self._cells = cells
        self._calls = calls
        self.resume()

    def put_on(self) -> None:
        """Put the hooks on."""
        self._hooks.enter_context(self._cells.watched())
        self._hooks.enter_context(self._detour.recorded(self._cells.call))
        self._hooks.enter_context(self._calls.watched())

    def custom_call(self, prefix: str, name: str, call: SeenCall) -> Any:
        """Record a call of a function of the script; what it calls itself has no record."""
        if self._is_paused:
            return call.run()
        return self._calls.custom(call._replace(name=OperatorName(prefix, name)))
