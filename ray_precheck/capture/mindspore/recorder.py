"""The records of one captured step.

Comes in: calls, Cells and gradients, while they happen. Goes out: their records, in the step's log. Made
by `probe` for each captured step.
"""

from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import mindspore as ms

from ray_precheck import private_parts
from ray_precheck.capture.mindspore.elements import (
    MindSporeElements,
    MindSporeTensors,
    values_on_host,
)
from ray_precheck.capture.mindspore.gradients import (
    ArrivingGradients,
    BorderGradients,
    Edge,
    OutputNumbers,
    watch_nodes,
)
from ray_precheck.capture.recording.arguments import (
    PARAMETER,
    Given,
    GivenNames,
    found_in,
    without_names,
)
from ray_precheck.capture.recording.recorder import SeenCall, StepRecorder, T
from ray_precheck.capture.recording.stacks import Stacks
from ray_precheck.capture.settings import STRUCTURE, CaptureSettings
from ray_precheck.capture.writing.elements import index_field, mapping, quoted
from ray_precheck.capture.writing.log import TENSORS
from ray_precheck.foreign import caught_with
from ray_precheck.frameworks.hf32 import mindspore_hf32
from ray_precheck.schema.dtypes import header_field

_DEEPEST = 10


class MindSporeRecorder(StepRecorder):
    """Writes the records of a step of a MindSpore program."""

    framework_folder = str(Path(ms.__file__).parent)
    module_call = "__call__"
    framework = "mindspore"

    def __init__(
        self,
        settings: CaptureSettings,
        folder: Path,
        stacks: Stacks,
        on_failure: Callable[[str], None],
    ) -> None:
        super().__init__(settings, folder, stacks, on_failure)
        self.elements = MindSporeElements(self._tensor)
        self.given_names = GivenNames(
            self.module_call,
            lambda value: isinstance(value, ms.nn.Cell),
            lambda cell: cell.construct,
            lambda cell: ((PARAMETER, name, each) for name, each in cell.parameters_and_names()),
        )
        self._texts = MindSporeTensors(settings, folder / TENSORS, self.sketches)
        self._numbers = OutputNumbers()
        self._sees_nodes = private_parts.find(private_parts.MINDSPORE_NODE) is not None
        executor = private_parts.find(private_parts.MINDSPORE_EXECUTOR)
        # Whether a function runs whose gradients will be asked for.
        self._keeps_gradients: Callable[[], bool] = getattr(executor, "requires_grad", bool)
        self._wait: Callable[[], None] = getattr(executor, "sync", lambda: None)
        # The dtypes to which the Cells that run cast what their operators get (`Cell.to_float`).
        self.mixed: list[str] = []
        # What sees where tensors come from, where all calls are to have records.
        self.darkness: Any = None
        self._strategy: Callable[[], object] = private_parts.find(private_parts.MINDSPORE_AMP) or (
            lambda: None
        )

    def call(self, call: SeenCall) -> Any:
        """Make a call, record it, and return what it gives."""
        name, frame, args, kwargs, run = call
        key = f"{name.key}.{self.number(name.key)}"
        forward = f"{key}.forward"
        if self.stopped or not self.scope.wants(forward):
            return run()
        self.settle()
        before = self.guarded(forward, lambda: self.before(forward, args, kwargs, frame)) or ""
        edges = self.edges(forward, args, kwargs)
        silent = name.silent
        given = self.guarded(forward, lambda: _given(silent, args, kwargs)) if silent else None
        darkness = self.darkness
        if darkness is not None:
            self.guarded(forward, lambda: darkness.got(call))
        result = run()
        if darkness is not None:
            darkness.gave(result)
        self.settle()

        def record() -> None:
            output = args[0] if name.returns_nothing else result
            if name.collective:
                _wait_for(result)
                output = (*args, *kwargs.values())
            found = self._stacks.of(frame)
            stack = found.number if self.settings.stacks else None
            fields = before + self.after(forward, output) + self._autocast((args, kwargs), output)
            fields += index_field(name.key, args)
            if given and self.settings.wants("forward", "output"):
                fields += self._changes(given)
            if found.inner:
                # A region is computed again with the same inputs.
                region = name.key, without_names(before)
                fields += self.recomputed(region, forward, again=found.again)
            self.write(forward, fields, stack, self.parent)
            self.watch(f"{key}.backward", edges, output, stack)

        if not self.stopped:
            self.guarded(forward, record)
        return result

    def _changes(self, given: list[Given]) -> str:
        """Return the field of the tensors that a call has changed."""
        found = [
            (each.path, self._tensor(each.tensor, each.place_after))
            for each in given
            if _values(each.tensor) != each.known
        ]
        return f', "changed": {mapping(found)}'

    def _autocast(self, given: Any, output: Any) -> str:
        """Return the field that says to which dtype MindSpore cast what a call got, "" without a cast.

        It is that of the output: of `Cell.to_float`, and of what an operator is listed for by `amp`.
        """
        if not self.mixed and self._strategy() is None:
            return ""
        floats = (str(t.dtype) for t in tensors_within(output) if t.is_floating_point())
        dtype = next(floats, self.mixed[-1] if self.mixed else None)
        is_cast = any(
            t.is_floating_point() and str(t.dtype) != dtype for t in tensors_within(given)
        )
        return f', "autocast": {quoted(dtype)}' if dtype and is_cast else ""

    def compiled(self, call: SeenCall, result: Any) -> None:
        """Record the call of a compiled function, whose own calls cannot be seen."""
        name, frame, args, kwargs, _ = call
        key = f"{name.key}.{self.number(name.key)}.forward"
        if self.stopped or not self.scope.wants(key):
            return

        def record() -> None:
            fields = self.before(key, args, kwargs, frame) + self.after(key, result)
            self.write(key, f'{fields}, "compiled": true', self.stack_of(frame), self.parent)
            told = f"the function {name.name}, compiled by ms.jit"
            (self.darkness or self).note_dark(told, frame)
            if self.darkness is not None:
                self.darkness.gave(result)

        self.guarded(key, record)

    def guarded(self, key: str, action: Callable[..., T], *args: Any) -> T | None:
        """Return what an action of the capture gives; a fault in it ends the capture, not the training."""
        result, error = caught_with(action, *args)
        if isinstance(error, RuntimeError):
            # Values are read, and MindSpore says of an operator that ran before that it has failed.
            said = str(error).strip().partition("\n")[0]
            self.fail(f"{key} cannot be recorded, because MindSpore cannot read its values: {said}")
        elif error is not None:
            self.fault(key, error)
        self._log.raise_born()
        return result

    def settle(self) -> None:
        """Wait for the operators that were called so far, and let the error of one reach the script.

        MindSpore raises it, once, where a value is read next: if the capture read it, the script would go
        on without its error.
        """
        if not self.stopped and self.settings.task != STRUCTURE:
            self._wait()

    def edges(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Edge | None]:
        """Return where the gradients of the inputs go; [] where none are wanted."""
        if not self._sees_nodes or not self.settings.wants("backward"):
            return []
        found = tensors_within((args, kwargs))
        return self.guarded(key, lambda: self._numbers.edges(found)) or []

    def watch(self, key: str, edges: list[Edge | None], output: Any, stack: int | None) -> None:
        """Record the gradients of a call when they have passed through it."""
        outputs, parent = tensors_within(output), self.backward_parent

        def write(seen: BorderGradients) -> None:
            self.write(key, self.around(key, seen.arrived, seen.passed_on), stack, parent)

        def done(seen: BorderGradients) -> None:
            if not self.stopped:
                self.guarded(key, lambda: write(seen))

        if self._sees_nodes:
            self._numbers.learn(outputs)
            border = watch_nodes(edges, outputs, self._numbers, done) if any(edges) else None
            self._borders += [border] if border is not None else []
        elif self.settings.wants("backward") and self._keeps_gradients():
            self._borders.append(ArrivingGradients(outputs, done))

    @property
    def tensor_bytes(self) -> int:
        """How many bytes of tensors the step has in files."""
        return self._texts.written_bytes

    def _tensor(self, tensor: ms.Tensor, place: str) -> str:
        try:
            is_saved = self.settings.wants_tensors(self.place)
            look = self.look_at(place) if self._looks else None
            name = f"{self.place}.{place}"
            more = self.shared(tensor, place) + self.named(tensor)
            return self._texts.text(tensor, name, more, is_saved=is_saved, look=look)
        except OSError as error:
            self.fail(
                f"the tensor {self.place}.{place} cannot be written to {self.folder}:"
                f" {error.strerror or error}"
            )
            return "null"

    def memory_of(self, tensor: ms.Tensor) -> int:
        """Return the address of the memory that a tensor lies in, whole or in part; 0 if it has none."""
        storage = None if tensor.has_init else getattr(tensor, "untyped_storage", None)
        return 0 if storage is None else int(storage().data_ptr())

    def note_float32(self) -> None:
        """Say in the header for what HF32 was on; a process can set it once, so that the end tells."""
        if ms.get_context("device_target") == "Ascend":
            formats = mindspore_hf32(ms)
            if formats:
                self.noted["float32"] = header_field(formats, formats)


def _given(silent: Set[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Given]:
    """Return the tensors at places that a call may change; MindSpore's versions tell nothing of them."""
    places = [(f"input.{place}", value) for place, value in enumerate(args)]
    places += [(f"kwargs.{name}", value) for name, value in kwargs.items()]
    return [
        Given(value, 0, place, _values(value))
        for place, value in places
        if place in silent and isinstance(value, ms.Tensor)
    ]


def _values(tensor: ms.Tensor) -> bytes:
    values = values_on_host(tensor)
    return b"" if values is None else values.tobytes()


def _wait_for(handle: Any, depth: int = 0) -> None:
    """Wait until a collective that runs in the background has ended: its result is read."""
    if isinstance(handle, tuple | list) and depth < _DEEPEST:
        for each in handle:
            _wait_for(each, depth + 1)
    elif not isinstance(handle, ms.Tensor) and hasattr(handle, "wait"):
        handle.wait()


def tensors_within(value: Any) -> list[ms.Tensor]:
    """Return the tensors of a nested value in the order in which they are written."""
    return found_in(value, ms.Tensor)
