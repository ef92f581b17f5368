"""The detour that calls of Cells take while a capture runs.

Comes in: who wants to see them: the watch of steps, for the whole capture, and the records of a captured
step. Goes out: the calls themselves. Used by `probe`, because MindSpore has no hooks for all Cells.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from mindspore import nn
from mindspore.experimental.optim.optimizer import Optimizer as MintOptimizer

from ray_precheck.capture.mindspore.patches import Patches
from ray_precheck.capture.mindspore.scalers import ScaledUpdates

OPTIMIZERS = (nn.Optimizer, MintOptimizer)
Around: TypeAlias = Callable[[nn.Cell, tuple[Any, ...], Callable[[], Any]], Any]
Record: TypeAlias = Callable[[nn.Cell, tuple[Any, ...], dict[str, Any], Callable[..., Any]], Any]


class CellDetour:
    """`mindspore.nn.Cell.__call__`, replaced while somebody wants to see calls, and as it was otherwise."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._watch: Around | None = None
        self._record: Record | None = None

    def watch(self, around: Around | None) -> None:
        """Let calls be watched by a function that makes them; None ends it."""
        self._watch = around
        self._put_or_take_away()

    @contextmanager
    def recorded(self, record: Record) -> Iterator[None]:
        """Let calls be recorded for the time of a step."""
        self._record = record
        self._put_or_take_away()
        try:
            yield
        finally:
            if self._record is record:
                self._record = None
            self._put_or_take_away()

    def _put_or_take_away(self) -> None:
        self._patches.take_away()
        if self._watch is not None or self._record is not None:
            self._patches.put(nn.Cell, "__call__", self._around(nn.Cell.__call__))

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        detour = self

        @functools.wraps(original)
        def call(self: nn.Cell, *args: Any, **kwargs: Any) -> Any:
            def make() -> Any:
                # Read here, because the watch may have begun or ended a step.
                record = detour._record
                if record is None:
                    return original(self, *args, **kwargs)
                return record(self, args, kwargs, original)

            return make() if detour._watch is None else detour._watch(self, args, make)

        return call


def is_optimizer(cell: nn.Cell) -> bool:
    """Return whether a Cell is an optimizer, of `nn` or of `mint.optim`."""
    return isinstance(cell, OPTIMIZERS)


class _Depth(threading.local):
    """How many Cells run inside each other in this thread."""

    cells = 0


class StepWatch:
    """Tells of the end of a step and of the call of a model; of several, those that are called first.

    A generator and a discriminator take one step together, and a loss is a Cell beside the model.
    """

    def __init__(
        self, on_step: Callable[[], None], on_forward: Callable[[], None], scaled: ScaledUpdates
    ) -> None:
        self._on_step = on_step
        self._on_forward = on_forward
        self._scaled = scaled
        self._depth = _Depth()
        self._first: dict[str, nn.Cell] = {}

    def call(self, cell: nn.Cell, args: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Make a call of a Cell."""
        updates = is_optimizer(cell)
        if not updates and not self._depth.cells and self._is_first("model", cell):
            self._on_forward()
        self._depth.cells += 1
        try:
            result = self._scaled.train_step(cell, make)
        finally:
            self._depth.cells -= 1
        if updates and self._is_first("optimizer", cell):
            self._scaled.updated()
            self._on_step()
        return result

    def _is_first(self, kind: str, cell: nn.Cell) -> bool:
        return self._first.setdefault(kind, cell) is cell
