"""How the steps of a training are seen: calls of Cells, of optimizers and of loss scalers.

Comes in: who wants to see the calls of Cells: the watch of steps, for the whole capture, and the records of
a captured step. Goes out: the calls themselves, the ends of steps, and the scale of each. Used by `probe`.
`Cell.__call__` takes a detour, because MindSpore has no hooks for all Cells.

No optimizer tells of an update that is skipped because a gradient is infinite or NaN. With `mindspore.amp` a
script scales the loss by `LossScaler.scale`, steps the optimizer if all gradients are finite, and gives that
to `adjust`, before or after the update. `nn.TrainOneStepWithLossScaleCell` does all of it itself, also for
`mindspore.Model`.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import mindspore as ms
import numpy as np
from mindspore import amp, nn
from mindspore.experimental.optim.optimizer import Optimizer as MintOptimizer

from ray_precheck.capture.mindspore.names import classes_below
from ray_precheck.capture.mindspore.patches import Patches, keep_out_of_compilers, tracing
from ray_precheck.capture.recording.recorder import CallName
from ray_precheck.foreign import caught

# Adds a field to the header of the step, whose value is asked for if it is wanted.
Note = Callable[[str, Callable[[], object]], None]
OPTIMIZERS = (nn.Optimizer, MintOptimizer)
Around: TypeAlias = Callable[[nn.Cell, tuple[Any, ...], Callable[[], Any]], Any]
Record: TypeAlias = Callable[[nn.Cell, tuple[Any, ...], dict[str, Any], Callable[..., Any]], Any]


class ScaledUpdates:
    """Watches the scaler that is met first, from `watch` until `remove`; `on_skipped` ends a step."""

    def __init__(self, note: Note) -> None:
        # The first function that was met that ms.jit compiles, "" where there was none.
        self.compiled = ""
        self._note = note
        self._on_skipped: Callable[[], None] = lambda: None
        self._tracing = tracing()
        self._patches = Patches()
        self._first: Any = None
        self._is_pending = False
        self._inside = False

    def watch(self, on_skipped: Callable[[], None]) -> None:
        """Watch the classes of scalers that there are by now."""
        self.remove()
        self._on_skipped = on_skipped
        for kind in (amp.LossScaler, *classes_below(amp.LossScaler)):
            for name, told in (("scale", self._scale), ("adjust", self._adjust)):
                if name in vars(kind):
                    self._patches.put(kind, name, self._replaced(vars(kind)[name], told))
        keep_out_of_compilers(self._patches, self._region)

    def _region(self, function: Any, *_: Any) -> None:
        self.compiled = self.compiled or CallName.of_region(function).name

    def remove(self) -> None:
        """Watch no class any more."""
        self._patches.take_away()

    def _replaced(
        self, original: Callable[..., Any], told: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a method that is told of; one that a class hands on to its base class is told of once."""

        @functools.wraps(original)
        def method(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                return original(scaler, *args, **kwargs)

            if self._inside or self._tracing():
                return run()
            self._inside = True
            try:
                return told(scaler, run, *args, **kwargs)
            finally:
                self._inside = False

        return method

    def _scale(self, scaler: Any, run: Callable[[], Any], *_: Any, **__: Any) -> Any:
        self._scaled(scaler, "scale_value")
        return run()

    def _adjust(
        self, scaler: Any, run: Callable[[], Any], grads_finite: Any = True, **_: Any
    ) -> Any:
        is_finite = _is_true(grads_finite)
        result = run()
        self._adjusted(scaler, is_finite)
        return result

    def train_step(self, cell: nn.Cell, make: Callable[[], Any]) -> Any:
        """Make the call of a Cell, which may be a training step with a scale of its own."""
        if not isinstance(cell, nn.TrainOneStepWithLossScaleCell):
            return make()
        self._scaled(cell, "scale_sense")
        result = make()
        overflow = result[1] if isinstance(result, tuple) and len(result) > 1 else False
        self._adjusted(cell, not _is_true(overflow))
        return result

    def updated(self) -> None:
        """Take note that the optimizer that ends steps has made one."""
        self._is_pending = False

    def _scaled(self, scaler: Any, name: str) -> None:
        """Take note of the scale with which the gradients of the step are computed."""
        if self._first is None:
            self._first = scaler
        if self._first is scaler:
            self._is_pending = True
            self._note("loss_scale", lambda: _number(getattr(scaler, name, None)))

    def _adjusted(self, scaler: Any, is_finite: bool) -> None:
        """End a step whose gradients were not finite, and whose update has not been made."""
        if self._first is scaler and self._is_pending and not is_finite:
            self._is_pending = False
            self._note("update_skipped", lambda: True)
            self._on_skipped()


def _number(scale: Any) -> float | None:
    """Return a scale, which is a tensor of one element or a number; None where a scaler has none."""
    if isinstance(scale, ms.Tensor):
        return float(np.asarray(scale.asnumpy()).reshape(-1)[0])
    return float(scale) if isinstance(scale, int | float) else None


def _is_true(value: Any) -> bool:
    """Return whether all of a tensor or a plain value is true; also where it cannot be read."""
    if not isinstance(value, ms.Tensor):
        return bool(value)
    found, error = caught(lambda: bool(np.all(value.asnumpy())))
    return error is not None or bool(found)


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
