"""Records as msprobe writes them, made from Python values; and how to read what a check says."""

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ray_precheck.accuracy.random.pooled import judge_pooled, read_drawn
from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import open_dump
from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.schema.result import OutputCheck, TaskResult, Verdict, verdict_in
from ray_precheck.schema.task import Done, Task, TaskPayload
from ray_precheck.schema.values import HostTensor, TensorSpec
from ray_precheck.store.tables import decode_row

DATA = Path(__file__).parents[1] / "data"
NEEDS_MINDSPORE = pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is None, reason="MindSpore is not installed"
)
Json = Any


class Element(dict[str, Any]):
    """One element of a record, as JSON."""


def tensor(
    *shape: int, dtype: str = "float32", low: float = -1.0, high: float = 1.0, grad: bool = False
) -> Element:
    """A tensor of torch; `grad` says that it requires a gradient."""
    found = Element(type="torch.Tensor", dtype=f"torch.{dtype}", shape=list(shape))
    return Element(**found, Max=high, Min=low, Mean=0.0, Norm=1.0, requires_grad=grad)


def leaf(*shape: int, **options: Any) -> Element:
    """A tensor of torch that requires a gradient."""
    return tensor(*shape, grad=True, **options)


def whole(*shape: int, high: int = 3) -> Element:
    """A tensor of torch that holds whole numbers from 0."""
    return tensor(*shape, dtype="int64", low=0, high=high)


def mask(*shape: int) -> Element:
    """A tensor of torch that holds booleans."""
    return tensor(*shape, dtype="bool", low=False, high=True)


def null(*shape: int, dtype: str) -> Element:
    """A tensor without statistics, as msprobe writes fp8 and quantized ones."""
    return Element(tensor(*shape, dtype=dtype), Max=None, Min=None, Mean=None, Norm=None)


def ms_tensor(*shape: int, dtype: str = "Float32", low: float = -1.0, high: float = 1.0) -> Element:
    """A tensor of MindSpore."""
    found = Element(type="mindspore.Tensor", dtype=dtype, shape=list(shape))
    return Element(**found, Max=high, Min=low, Mean=0.0, Norm=1.0)


def symbol(kind: str, value: str) -> Element:
    """A constant of a framework: `torch.dtype`, `torch.device`, `mindspore.dtype`."""
    return Element(type=kind, value=value)


def torch_dtype(name: str) -> Element:
    """A dtype of torch."""
    return symbol("torch.dtype", f"torch.{name}")


MEMORY_FORMAT = Element(type="torch.memory_format", format="torch.channels_last")


def size(*extents: int) -> Element:
    """A torch.Size."""
    return Element(type="torch.Size", value=list(extents))


def element(value: Any) -> Json:
    """Return a Python value as the dump has it; tuples become lists, as in a dump."""
    if value is None or isinstance(value, Element):
        return value
    if isinstance(value, list | tuple):
        return [element(item) for item in value]
    if isinstance(value, slice):
        return {"type": "slice", "value": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"type": "ellipsis", "value": "..."}
    shown = str(value) if isinstance(value, complex) else value
    return {"type": type(value).__name__, "value": shown}


def call(
    name: str,
    *args: Any,
    grads: list[Any] | None = None,
    output: Element | None = None,
    **kwargs: Any,
) -> TaskPayload:
    """Return the payload of one call; `grads` are the incoming gradients of its backward record."""
    forward = {
        "input_args": [element(value) for value in args],
        "input_kwargs": {key: element(value) for key, value in kwargs.items()},
        "output": [] if output is None else [output],
    }
    behind = None if grads is None else json.dumps({"input": grads, "output": []}).encode()
    return TaskPayload(0, f"{name}.0", json.dumps(forward).encode(), behind)


def judged_together(checker: Checker, payload: TaskPayload, calls: int) -> tuple[Verdict, str]:
    """Check so many calls that differ in their number alone; return the verdict on all of them together."""
    drew = []
    for number in range(calls):
        name = f"{payload.name.rsplit('.', 1)[0]}.{number}"
        result = checker.check(replace(payload, name=name))
        assert result.forward is Verdict.PASS, result.message
        drawn = read_drawn(result.checks[0].drawn)
        assert drawn is not None
        drew.append((name, drawn))
    return judge_pooled(drew)


def statistics_checker(framework: str, **options: Any) -> Checker:
    """Return a checker for generated tensors on the CPU; tensors without strides are contiguous."""
    terms = {"knows_layouts": True, **options}
    return Checker(CheckSettings(framework, "statistics", Path(), **terms), "cpu")


def capture_settings(capture: str, **options: Any) -> CheckSettings:
    """Return the settings for a shipped capture; its outputs are tested where it holds tensors."""
    with open_dump(DATA / capture / "dump.json") as dump:
        defaults = {"data_folder": dump.data_folder, "tests_dump": dump.task == "tensor"}
        return CheckSettings(dump.framework, dump.task, **{**defaults, **options})


def payloads_of(capture: str) -> list[TaskPayload]:
    """Return every call of a shipped capture, in its order."""
    with open_dump(DATA / capture / "dump.json") as dump:
        return [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]


def payload_of(capture: str, name: str) -> TaskPayload:
    """Return one call of a shipped capture."""
    return next(payload for payload in payloads_of(capture) if payload.name == name)


def rows(result: TaskResult, direction: str) -> list[OutputCheck]:
    """Return the detail rows of one direction."""
    return [check for check in result.checks if f".{direction}.output." in check.name]


def shapes(result: TaskResult, direction: str = "forward") -> list[str]:
    """Return the Shape cells of one direction."""
    return [check.shape for check in rows(result, direction)]


def dtypes(result: TaskResult, direction: str = "forward") -> list[tuple[str, str]]:
    """Return the bench's and the tested dtype cells of one direction."""
    return [(check.bench_dtype, check.tested_dtype) for check in rows(result, direction)]


def assert_passes(result: TaskResult, payload: TaskPayload) -> None:
    """Both directions that are recorded pass; a missing range may be all that the message says."""
    notes = [note for note in result.message.split("; ") if "recorded range is missing" not in note]
    expected = Verdict.PASS if payload.backward else Verdict.NONE
    assert (result.forward, result.backward, notes) == (Verdict.PASS, expected, notes and [""])


def failing(results: list[TaskResult]) -> Iterator[OutputCheck]:
    """Yield the detail rows in error."""
    for result in results:
        yield from (check for check in result.checks if check.verdict is Verdict.ERROR)


def timeless(result: TaskResult) -> tuple[Any, ...]:
    """Return everything of a result but how long it took."""
    head = (result.name, result.outcome, result.forward, result.backward, result.message)
    return (*head, *result.checks)


class RememberedTensors(GeneratedTensors):
    """A source that keeps each tensor that it made, beside a copy of its first values."""

    def __init__(self, name: str) -> None:
        super().__init__(0, name)
        self.made: dict[str, tuple[HostTensor, np.ndarray[Any, Any]]] = {}

    def tensor(self, spec: TensorSpec, path: str) -> HostTensor:
        made = super().tensor(spec, path)
        self.made[path] = (made, made.data.copy())
        return made

    def changed(self) -> list[str]:
        """Return the paths of the tensors that were written to."""
        return [path for path, (made, kept) in self.made.items() if (made.data != kept).any()]


def replace_kernel(
    monkeypatch: pytest.MonkeyPatch, side: Any, change: Callable[[Callable[..., Any]], Any]
) -> None:
    """Let one side, a device or a bench, run `change(function)` in the place of each function."""
    resolve = side.resolve
    monkeypatch.setattr(side, "resolve", lambda name: change(resolve(name)))


def raising(error: Exception) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a change of a kernel after which it only raises."""

    def change(_: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*_: Any, **__: Any) -> Any:
            # A new one each time: its traceback would keep what the kernel was given.
            raise type(error)(*error.args)

        return kernel

    return change


def altered(edit: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a change of a kernel after which its result is edited."""

    def change(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: edit(function(*args, **kwargs))

    return change


class Row(NamedTuple):
    """What a result row says of a call."""

    forward: Verdict
    backward: Verdict
    message: str


def row_of(done: Done) -> Row:
    """Read the result row of a call that is finished, as a check process has encoded it."""
    _, forward, backward, message = decode_row(done.row.removesuffix(b"\r\n"))
    return Row(verdict_in(forward), verdict_in(backward), message)
