"""The Cells of MindSpore.

Comes in: the calls of Cells in a captured step, and their names. Goes out: what `capture.recording.modules`
asks of a framework. Called by the detour of `Cell.__call__` for each captured step; at level L1 it only looks
for graph mode.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
from mindspore import nn

from ray_precheck.capture.mindspore.recorder import MindSporeRecorder
from ray_precheck.capture.recording.modules import ModuleCalls, ModuleNames

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
