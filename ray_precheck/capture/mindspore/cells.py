"""The records of Cells.

Comes in: the calls of Cells in a captured step, and their names. Goes out: a record of each call with its
arguments, parameters and output, one of its backward pass, and one of the gradients of its parameters.
Called by the detour of `Cell.__call__` for each captured step; at level L1 it only looks for graph mode.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
from mindspore import nn

from ray_precheck.capture.mindspore.recorder import MindSporeRecorder

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


class CellNames:
    """The names of Cells: those of the models that are given, else of those that are called first."""

    def __init__(self, models: Any) -> None:
        self._names: dict[int, str] = {}
        self._roots: list[Any] = []
        several = isinstance(models, list | tuple)
        for index, model in enumerate(models if several else [models]):
            if model is not None:
                self.add(model, f"{index}." if several else "")

    def add(self, model: nn.Cell, prefix: str = "") -> None:
        """Name the Cells of a model; the model itself has no record, as with msprobe."""
        self._roots.append(model)  # so that no other object gets its identity
        self._names.setdefault(id(model), "")
        for name, cell in model.cells_and_names():
            if cell is not model:
                self._names.setdefault(id(cell), f"Cell.{prefix}{name}.{type(cell).__name__}")

    def shown(self, cells: list[Any]) -> str:
        """Return the place in its model of the first of nested cells, of which the last is the
        model; "" for that itself."""
        # Whatever has a `__call__` of its own may be around them.
        cells = [each for each in cells if isinstance(each, nn.Cell)]
        if not cells:
            return ""
        self.of(cells[-1])
        return self._names.get(id(cells[0]), type(cells[0]).__name__).removeprefix("Cell.")

    def of(self, cell: nn.Cell) -> str:
        """Return the name of a Cell, "" for a model itself; an unknown one is a model of its own."""
        name = self._names.get(id(cell))
        if name is None:
            self.add(cell, f"{type(cell).__name__}." if self._roots else "")
            return ""
        return name


class CellCalls:
    """Records the calls of Cells."""

    def __init__(self, names: CellNames, recorder: MindSporeRecorder) -> None:
        self._names = names
        self._recorder = recorder
        self._watched: dict[int, Any] = {}
        self._gradients: dict[str, dict[str, str]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take the hooks of parameters away at the end of a captured step, and write their gradients."""
        try:
            yield
        finally:
            for handle in self._watched.values():
                handle.remove()
            self._watched.clear()
            self._write_gradients()

    def call(
        self,
        cell: nn.Cell,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Callable[..., Any],
    ) -> Any:
        """Make a call of a Cell, and know to which dtype it casts what its operators get."""
        recorder = self._recorder
        if in_graph_mode():
            recorder.fail(GRAPH_MODE)
        mixed = _DTYPES_OF_CELLS.get(
            str(getattr(cell, "mixed_precision_type", "")).rpartition(".")[2]
        )
        if mixed is None:
            return self._recorded(cell, args, kwargs, original)
        recorder.mixed.append(mixed)
        try:
            return self._recorded(cell, args, kwargs, original)
        finally:
            recorder.mixed.pop()

    def _recorded(
        self,
        cell: nn.Cell,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Callable[..., Any],
    ) -> Any:
        """Make a call of a Cell, with a record if it has a name."""
        recorder = self._recorder
        name = "" if recorder.stopped or not recorder.settings.modules else self._names.of(cell)
        if not name:
            return original(cell, *args, **kwargs)
        number = recorder.number(name)
        key = f"{name}.forward.{number}"
        if not recorder.scope.enter(key):
            with recorder.inside(key):
                return original(cell, *args, **kwargs)
        parent = recorder.parent
        frame = sys._getframe(1)
        recorder.settle()
        before = recorder.guarded(key, lambda: recorder.before(key, args, kwargs, frame)) or ""
        edges = recorder.guarded(key, lambda: recorder.edges(args, kwargs)) or []
        try:
            with recorder.inside(key):
                result = original(cell, *args, **kwargs)
                recorder.settle()
        finally:
            recorder.scope.leave(key)

        def record() -> None:
            own = own_parameters(cell)
            fields = before + recorder.after(key, result) + recorder.parameters(key, own)
            recorder.write(key, fields, recorder.stack_of(frame), parent)
            self._watch_parameters(name, own)
            recorder.watch(f"{name}.backward.{number}", edges, result, None)

        if not recorder.stopped:
            recorder.guarded(key, record)
        return result

    def _watch_parameters(self, name: str, own: dict[str, ms.Parameter]) -> None:
        """Take note of the gradient of each parameter when it has come."""
        if not self._recorder.settings.wants("backward"):
            return
        for parameter_name, parameter in own.items():
            if parameter.requires_grad and id(parameter) not in self._watched:
                self._watched[id(parameter)] = parameter.register_hook(
                    self._noting(name, parameter_name)
                )

    def _noting(self, name: str, parameter_name: str) -> Callable[[ms.Tensor], ms.Tensor]:
        count = 0

        def note(gradient: ms.Tensor) -> ms.Tensor:
            nonlocal count
            recorder = self._recorder
            if not recorder.stopped:
                key = f"{name}.parameters_grad.{count}"
                count += 1
                text = recorder.guarded(
                    key, lambda: recorder.gradient_of_parameter(key, parameter_name, gradient)
                )
                self._gradients.setdefault(key, {})[parameter_name] = text or ""
            return gradient

        return note

    def _write_gradients(self) -> None:
        """Write the gradients of the parameters, those of a Cell together."""
        if not self._recorder.stopped:
            for key, fields in self._gradients.items():
                self._recorder.write(key, ", ".join(filter(None, fields.values())), None, None)
        self._gradients.clear()


def own_parameters(cell: nn.Cell) -> dict[str, ms.Parameter]:
    """Return the parameters of a Cell without those of the Cells in it, by the last part of their names."""
    parameters = cell.parameters_dict(recurse=False)
    return {name.rpartition(".")[2]: parameter for name, parameter in parameters.items()}
