"""Runs a call on one side, forward and backward; exceptions are returned as values.

Comes in: a side (a backend or the bench) and a call. Goes out: an `Attempt`, gradients, or the error; its
text as one line, and whether memory ran out. Called by every module that runs a side, and by `check.guard`
for all other exceptions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import caught
from ray_precheck.frameworks.base import CallPlan, Execution
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

T = TypeVar("T")


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
