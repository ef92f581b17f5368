"""The records of one captured step.

Comes in: calls, Cells and gradients, while they happen. Goes out: their records, in the step's log. Made
by `probe` for each captured step.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import mindspore as ms

from ray_precheck import private_parts
from ray_precheck.capture.mindspore.elements import MindSporeElements
from ray_precheck.capture.mindspore.gradients import (
    ArrivingGradients,
    BorderGradients,
    Edge,
    NodeBorder,
    OutputNumbers,
    watch_nodes,
)
from ray_precheck.capture.mindspore.names import OperatorName, region_name
from ray_precheck.capture.mindspore.tensors import MindSporeTensors
from ray_precheck.capture.scope import Scope
from ray_precheck.capture.settings import FULL, STRUCTURE, CaptureSettings
from ray_precheck.capture.stacks import Stacks
from ray_precheck.capture.writing.log import TENSORS, StepLog
from ray_precheck.capture.writing.sketches import SketchFile
from ray_precheck.capture.writing.text import quoted
from ray_precheck.foreign import caught

_DEEPEST = 10
T = TypeVar("T")


class StepRecorder:
    """Writes the records of calls into the log of a step.

    Where the log cannot be written any more it tells `on_failure` why, and records nothing from then on.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        log: StepLog,
        stacks: Stacks,
        on_failure: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.stopped = False
        self.scope = Scope(settings.scope, settings.chosen, settings.risk_level)
        self.records = 0
        self._log = log
        self._stacks = stacks
        self._on_failure = on_failure
        self._sketches = SketchFile(log.folder) if settings.sketch else None
        self._texts = MindSporeTensors(settings, log.folder / TENSORS, self._sketches)
        self._elements = MindSporeElements(self._tensor)
        self._numbers = OutputNumbers()
        self._sees_nodes = private_parts.find(private_parts.MINDSPORE_NODE) is not None
        executor = private_parts.find(private_parts.MINDSPORE_EXECUTOR)
        # Whether a function runs whose gradients will be asked for.
        self._keeps_gradients: Callable[[], bool] = getattr(executor, "requires_grad", bool)
        self._wait: Callable[[], None] = getattr(executor, "sync", lambda: None)
        self._place = ""
        self._counts: dict[str, Iterator[int]] = defaultdict(itertools.count)
        self._borders: list[NodeBorder | ArrivingGradients] = []
        self._cells: list[str] = []

    def call(
        self,
        name: OperatorName,
        frame: FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        function: Callable[..., Any],
    ) -> Any:
        """Record a call of a function, make it, and return what it gives."""
        key = f"{name.key}.{self.number(name.key)}"
        forward = f"{key}.forward"
        if self.stopped or not self.scope.wants(forward):
            return function(*args, **kwargs)
        self.settle()
        before = self.guarded(forward, lambda: self.before(forward, args, kwargs)) or ""
        edges = self.guarded(forward, lambda: self.edges(args, kwargs)) or []
        result = function(*args, **kwargs)
        self.settle()

        def record() -> None:
            output = args[0] if name.returns_nothing else result
            if name.collective:
                _wait_for(result)
                output = (*args, *kwargs.values())
            stack = self._stacks.of(frame).number if self.settings.stacks else None
            self.write(forward, before + self.after(forward, output), stack, self.parent)
            self.watch(f"{key}.backward", edges, output, stack)

        if not self.stopped:
            self.guarded(forward, record)
        return result

    def compiled(
        self,
        function: Any,
        frame: FrameType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Record the call of a compiled function, whose own calls cannot be seen."""
        name = region_name(function)
        key = f"{name}.{self.number(name)}.forward"
        if self.stopped or not self.scope.wants(key):
            return

        def record() -> None:
            fields = self.before(key, args, kwargs) + self.after(key, result)
            comma = ", " if fields else ""
            stack = self._stacks.of(frame).number if self.settings.stacks else None
            self.write(key, f'{fields}{comma}"compiled": true', stack, self.parent)

        self.guarded(key, record)

    def guarded(self, key: str, action: Callable[[], T]) -> T | None:
        """Return what an action of the capture gives; a fault in it ends the capture, not the training."""
        result, error = caught(action)
        if isinstance(error, RuntimeError):
            # Values are read, and MindSpore says of an operator that ran before that it has failed.
            said = str(error).strip().partition("\n")[0]
            self.fail(f"{key} cannot be recorded, because MindSpore cannot read its values: {said}")
        elif error is not None:
            self.fail(
                f"{key} cannot be recorded, {type(error).__name__}: {error}; this is a fault of"
                " ray-precheck, please report it"
            )
        self._log.raise_born()
        return result

    def settle(self) -> None:
        """Wait for the operators that were called so far, and let the error of one reach the script.

        MindSpore raises it, once, where a value is read next: if the capture read it, the script would go
        on without its error.
        """
        if not self.stopped and self.settings.task != STRUCTURE:
            self._wait()

    def number(self, name: str) -> int:
        """Return the number of the next call of that name."""
        return next(self._counts[name])

    def edges(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Edge | None]:
        """Return where the gradients of the inputs go; [] where none are wanted."""
        if not self._sees_nodes or not self.settings.wants("backward"):
            return []
        return self._numbers.edges(tensors_within((args, kwargs)))

    def before(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the fields of what a call gets."""
        if self.settings.task == STRUCTURE or not self.settings.wants("forward", "input"):
            return ""
        self._place = key
        return (
            f'"input_args": {self._elements.arguments(args, "input")},'
            f' "input_kwargs": {self._elements.keywords(kwargs, "kwargs")}'
        )

    def after(self, key: str, output: Any) -> str:
        """Return the fields of what a call gave."""
        if self.settings.task == STRUCTURE or not self.settings.wants("forward", "output"):
            return ""
        self._place = key
        comma = ", " if self.settings.wants("forward", "input") else ""
        return f'{comma}"output": {self._elements.outputs(output)}'

    def watch(self, key: str, edges: list[Edge | None], output: Any, stack: int | None) -> None:
        """Record the gradients of a call when they have passed through it."""
        outputs = list(tensors_within(output))
        parent = self.parent and self.parent.replace(".forward.", ".backward.")

        def done(seen: BorderGradients) -> None:
            self.guarded(key, lambda: self._backward(key, seen, stack, parent))

        if self._sees_nodes:
            self._numbers.learn(outputs)
            border = watch_nodes(edges, outputs, self._numbers, done) if any(edges) else None
            self._borders += [border] if border is not None else []
        elif self.settings.wants("backward") and self._keeps_gradients():
            self._borders.append(ArrivingGradients(outputs, done))

    def _backward(
        self, key: str, seen: BorderGradients, stack: int | None, parent: str | None
    ) -> None:
        if self.stopped:
            return
        settings, elements, fields = self.settings, self._elements, []
        self._place = key
        if settings.task != STRUCTURE:
            if settings.wants("backward", "input"):
                fields.append(f'"input": {elements.arguments(tuple(seen.arrived), "input")}')
            if settings.wants("backward", "output"):
                fields.append(f'"output": {elements.arguments(tuple(seen.passed_on), "output")}')
        self.write(key, ", ".join(fields), stack, parent)

    def write(self, key: str, fields: str, stack: int | None, parent: str | None) -> None:
        """Write a record; where it cannot be written the capture ends."""
        try:
            self._log.record(key, fields, stack, parent)
            self.records += 1
            if self.settings.max_bytes is not None:
                self._require_room(self.settings.max_bytes)
        except OSError as error:
            self.fail(f"{self._log.folder} cannot be written: {error.strerror or error}")

    def _require_room(self, most: int) -> None:
        """End the capture where the step has as many bytes as it may have."""
        if self._log.size + self._texts.written_bytes >= most:
            self.fail(FULL)

    def fail(self, reason: str) -> None:
        """Record nothing any more."""
        if not self.stopped:
            self.stopped = True
            self._on_failure(reason)

    def parameters(self, key: str, values: dict[str, ms.Parameter]) -> str:
        """Return the field of a Cell's own parameters."""
        if self.settings.task == STRUCTURE:
            return ""
        self._place = key
        texts = [
            f"{quoted(name)}: {self._elements.one(each, f'parameters.{name}')}"
            for name, each in values.items()
        ]
        return f', "parameters": {{{", ".join(texts)}}}'

    def gradient_of_parameter(self, key: str, name: str, gradient: ms.Tensor) -> str:
        """Return the field of the gradient of a parameter."""
        self._place = key
        return f"{quoted(name)}: [{self._elements.one(gradient, name)}]"

    @contextmanager
    def inside(self, key: str) -> Iterator[None]:
        """Name a Cell as the parent of what is recorded within."""
        self._cells.append(key)
        try:
            yield
        finally:
            self._cells.pop()

    @property
    def parent(self) -> str | None:
        """The innermost Cell that runs."""
        return self._cells[-1] if self._cells else None

    def stack_of(self, frame: FrameType) -> int | None:
        """Return the number of the stack that ends with a frame."""
        return self._stacks.of(frame).number if self.settings.stacks else None

    def _tensor(self, tensor: ms.Tensor, place: str) -> str:
        try:
            is_saved = self.settings.wants_tensors(self._place)
            return self._texts.text(tensor, f"{self._place}.{place}", is_saved=is_saved)
        except OSError as error:
            self.fail(
                f"the tensor {self._place}.{place} cannot be written to {self._log.folder}:"
                f" {error.strerror or error}"
            )
            return "null"

    def finish(self) -> None:
        """Write what has not come to its end, and turn the log into the dump."""
        for border in self._borders:
            border.close()
        self._borders.clear()
        if self._sketches is not None:
            self._sketches.close() if self.stopped else self._sketches.finish()
        if self.stopped:
            self._log.close()
        else:
            self.stopped = True  # Cells that enclose the end of the step have no record
            self._log.finish(with_construct=self.settings.modules)

    def abandon(self) -> None:
        """Record nothing any more, and close the log as it is."""
        if not self.stopped:
            self.stopped = True
            self._log.close()


def _wait_for(handle: Any, depth: int = 0) -> None:
    """Wait until a collective that runs in the background has ended: its result is read."""
    if isinstance(handle, tuple | list) and depth < _DEEPEST:
        for each in handle:
            _wait_for(each, depth + 1)
    elif not isinstance(handle, ms.Tensor) and hasattr(handle, "wait"):
        handle.wait()


def tensors_within(value: Any, depth: int = 0) -> Iterator[ms.Tensor]:
    """Yield the tensors of a nested value in the order in which they are written."""
    if isinstance(value, ms.Tensor):
        yield value
    elif isinstance(value, tuple | list) and depth < _DEEPEST:
        for each in value:
            yield from tensors_within(each, depth + 1)
    elif isinstance(value, dict) and depth < _DEEPEST:
        for each in value.values():
            yield from tensors_within(each, depth + 1)
