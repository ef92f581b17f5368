"""Runs a call on one side, forward and backward; exceptions are returned as values.

Comes in: a side (a backend or the bench) and a call. Goes out: an `Attempt`, gradients, or the error; its
text as one line, and whether memory ran out. Called by every module that runs a side, and by `check.checker`
for all other exceptions. `Measured` is what a device gave, in host arrays and text only: it goes from the
device's half of a check to the bench's half, which may be in another process or on another machine.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import caught
from ray_precheck.frameworks.base import CallPlan, Execution, Leaf
from ray_precheck.schema.dtypes import FULL_FLOAT32, Float32
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

T = TypeVar("T")
_LONGEST_REASON = 300
# MindSpore's name of a node in its graph, whose numbers count the calls that came before.
_NODE = re.compile(r" node: @\w+:CNode_\d+.*")
# Parts of what torch's allocators (CPU, CUDA, NPU), MindSpore's (CPU, Ascend) and CANN (its error EL0004)
# say when memory runs out. `scripts.npu_calls` seeks them in the releases of torch_npu and MindSpore.
_NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "Allocate memory failed",
    "Memory not enough",
    "memory isn't enough",
    "device memory failed",
    "workspace memory failed",
    "physical memory failed",
    "Failed to allocate memory",
)


class Side(Protocol):
    """The methods that a backend and the bench have in common."""

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return the function of an API.

        Raises:
            NotCheckable: this side does not have the API.
        """

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Execution:
        """Run the API."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one side's forward pass.

    `execution` is None where it raised `error`. `gradient_error` is the exception of a forward pass
    that fails with gradients and works without them.
    """

    execution: Execution | None
    error: Exception | None = None
    gradient_error: Exception | None = None


def attempt_forward(side: Side, name: ApiName, call: HostCall, plan: CallPlan) -> Attempt:
    """Run a side forward; if that fails with gradients, run it once more without them.

    Raises:
        NotCheckable: the side does not have the API.
    """
    function = side.resolve(name)
    execution, error = attempt(partial(side.forward, function, call, plan))
    if error is None or not plan.differentiable:
        return Attempt(execution, error)
    without = replace(plan, differentiable=())
    execution, plain_error = attempt(partial(side.forward, function, call, without))
    return Attempt(execution, plain_error, gradient_error=error)


def attempt_gradients(
    tried: Attempt, cotangents: list[HostTensor | None]
) -> tuple[list[HostTensor | None] | None, Exception | None]:
    """Return the gradients of a side and None, or None and the exception that it raised."""
    execution = tried.execution
    if execution is None or tried.gradient_error is not None:
        return None, tried.gradient_error or tried.error
    return attempt(partial(execution.gradients, cotangents))


def attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return what an action returns and None, or None and the exception that it raises.

    Raises:
        NotCheckable: the action raised it.
        OutOfMemory: an allocation failed.
    """
    value, error = caught(action, NotCheckable)
    if error is not None and is_out_of_memory(error):
        raise OutOfMemory(describe(error)) from error
    return value, error


class OutOfMemory(Exception):
    """An allocation failed on either side; the machine is too small, the API may be right."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception means that an allocation failed."""
    if isinstance(error, MemoryError | OutOfMemory):
        return True
    text = str(error).lower()
    return any(sign.lower() in text for sign in _NO_MEMORY)


def describe(error: Exception | None) -> str:
    """Return an exception as one line: its type and the first lines of its text."""
    if error is None:
        return "unknown error"
    text = _NODE.sub("", " ".join(_first_words(str(error)).split()))
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."


def _first_words(text: str) -> str:
    """Return a text up to its first rule of dashes, as MindSpore draws them, or the section behind.

    A missing kernel's text begins with a heading between two rules; then both are the first words.
    """
    heading, *sections = [
        part for part in re.split(r"(?:^|\n)-{3,}[^\n]*", text) if part.strip()
    ] or [""]
    if text.lstrip().startswith("---") and heading.strip().startswith("- ") and sections:
        return f"{heading.strip().removeprefix('- ')} {sections[0]}"
    return heading


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a device as one line. `lacks_kernel`: it means that the device has no kernel."""

    text: str
    lacks_kernel: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """Outputs and gradients of the device, or the errors that it raised instead.

    `outputs` is None where forward raised `error`. `gradients` are those of the differentiable inputs
    in order, with None for an input without a derivative. They are None where no gradient was asked
    for, where backward raised `gradient_error`, and where nothing can be differentiated; then
    `no_gradients` is the reason. `safer` is the text of the device's error with the first inputs, if
    these are the results of a second try with safer inputs; "" for a first try. `inputs` are the
    generated inputs and cotangents by argument path, if the bench gets them instead of drawing them
    again; `notes` are the sentences about them for the Message. `caveat` is a sentence about a limit
    of float32's precision on this device, "" for none, `float32` the formats of the operands of its
    products. `changed` are the tensors that the call may have
    changed, as they were after it. `is_transposed_too`: the device has run a second time with transposed
    inputs; `transposed` are the results of that run, if they differ. `again` are the first outputs of a
    small random call that drew again and again, each time with another seed; `repeats_itself`: a random
    call has then given the same.
    """

    outputs: list[Leaf] | None
    error: Failure | None = None
    gradients: list[HostTensor | None] | None = None
    gradient_error: Failure | None = None
    no_gradients: str = ""
    safer: str = ""
    inputs: Mapping[str, HostTensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    caveat: str = ""
    float32: Float32 = FULL_FLOAT32
    changed: tuple[HostTensor, ...] = ()
    is_transposed_too: bool = False
    transposed: "Measured | None" = None
    again: tuple[Leaf, ...] = ()
    repeats_itself: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        leaves = [*(self.outputs or ()), *(self.gradients or ()), *self.inputs.values()]
        leaves += [*self.changed, *self.again]
        own = sum(leaf.data.nbytes for leaf in leaves if isinstance(leaf, HostTensor))
        return own + (0 if self.transposed is None else self.transposed.nbytes)
