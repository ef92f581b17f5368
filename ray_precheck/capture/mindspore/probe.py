"""MindSpore, as the session of a capture sees it.

Comes in: when a step begins and ends. Goes out: the hooks of a captured step, the records of Cells among
them, and the ends of steps. Made by `capturing.find_probe`.
"""

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import mint, nn

from ray_precheck.capture.mindspore.calls import Calls, CallSink
from ray_precheck.capture.mindspore.names import FunctionPlace, operator_name, recorded_functions
from ray_precheck.capture.mindspore.recorder import MindSporeRecorder
from ray_precheck.capture.mindspore.steps import CellDetour, ScaledUpdates, StepWatch
from ray_precheck.capture.probe import HookedStep, StepProbe
from ray_precheck.capture.recording.modules import ModuleCalls, ModuleNames
from ray_precheck.capture.recording.recorder import SeenCall
from ray_precheck.capture.recording.stacks import Stacks
from ray_precheck.capture.session import say
from ray_precheck.capture.settings import BORDER, CaptureSettings
from ray_precheck.errors import UsageError

GRAPH_MODE = (
    "the script runs MindSpore in graph mode, in which the calls of operators cannot be seen; capture it with"
    " mindspore.set_context(mode=mindspore.PYNATIVE_MODE)"
)
COMPILED = (
    "which ms.jit compiles, and in which the calls of operators cannot be seen; capture it with MS_JIT=0 in"
    " the environment"
)
# What `Cell.to_float` sets, and the dtype in a dump.
_DTYPES_OF_CELLS = {"FP16": "Float16", "BF16": "BFloat16", "FP32": "Float32"}
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


def in_graph_mode() -> bool:
    """Return whether Cells are compiled as a whole."""
    return bool(ms.get_context("mode") == ms.GRAPH_MODE)


class CellNames(ModuleNames):
    """The names of Cells."""

    word = "Cell"
    kind = nn.Cell

    def named_within(self, model: nn.Cell) -> Iterable[tuple[str, nn.Cell]]:
        """Return the Cells of a model with their names in it."""
        found: Iterable[tuple[str, nn.Cell]] = model.cells_and_names()
        return found


class CellCalls(ModuleCalls):
    """Records the calls of Cells."""

    def __init__(self, names: CellNames, recorder: MindSporeRecorder) -> None:
        super().__init__(names, recorder)
        self._mixed = recorder.mixed

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take the hooks of parameters away at the end of a captured step, and write their gradients."""
        try:
            yield
        finally:
            self.finish()

    def call(
        self,
        cell: nn.Cell,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Callable[..., Any],
    ) -> Any:
        """Make a call of a Cell, and know to which dtype it casts what its operators get."""
        if in_graph_mode():
            self._recorder.fail(GRAPH_MODE)
        mixed = _DTYPES_OF_CELLS.get(
            str(getattr(cell, "mixed_precision_type", "")).rpartition(".")[2]
        )
        if mixed is None:
            return self.recorded(cell, args, kwargs, original)
        self._mixed.append(mixed)
        try:
            return self.recorded(cell, args, kwargs, original)
        finally:
            self._mixed.pop()

    def own_parameters(self, module: nn.Cell) -> dict[str, Any]:
        """Return the parameters of a Cell without those of the Cells in it, by the last part of their
        names."""
        parameters = module.parameters_dict(recurse=False)
        return {name.rpartition(".")[2]: parameter for name, parameter in parameters.items()}

    def identity(self, name: str, parameter_name: str, parameter: Any) -> Hashable:
        """Return the identity of the parameter."""
        return id(parameter)

    def watch_gradient(self, parameter: Any, note: Callable[[Any], None]) -> Any:
        """Let `note` have each gradient of a parameter."""

        def hook(gradient: ms.Tensor) -> ms.Tensor:
            note(gradient)
            return gradient

        return parameter.register_hook(hook)


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

    def ranks(self) -> int:
        """Return 1: nothing is watched that ranks tell each other of."""
        return 1

    def measure(self, models: Any) -> None:
        """Measure nothing: MindSpore computes gradients in functions, and hands them to the optimizer."""

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

    def custom_call(self, call: SeenCall) -> Any:
        """Record a call of a function of the script; what it calls itself has no record."""
        if self._is_paused:
            return call.run()
        name = operator_name(call.name.prefix, call.name.name)
        return self._calls.custom(call._replace(name=name))
