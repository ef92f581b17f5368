"""The two sides of a call, the device under test and the bench, and what became of each.

Called by `check.job`. Here is the one place where whatever an API raises is caught.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Execution
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

T = TypeVar("T")
_LONGEST_REASON = 300
# How torch's allocators (CPU, CUDA, NPU) and MindSpore's say that there is no memory left.
_NO_MEMORY = ("can't allocate memory", "out of memory", "Allocate memory failed", "bad_alloc")


class OutOfMemory(Exception):
    """An allocation failed on either side: it says something of the machine, not of the API."""


class Side(Protocol):
    """What a backend and the bench have in common."""

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return the function of an API; raise `NotCheckable` where there is none."""

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Execution:
        """Run the API."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one side's forward pass.

    `execution` is None where it raised `error`. `gradient_error` is what it raised when it was run
    for gradients, where it works without them.
    """

    execution: Execution | None
    error: Exception | None = None
    gradient_error: Exception | None = None


def attempt_forward(side: Side, name: ApiName, call: HostCall, plan: CallPlan) -> Attempt:
    """Run a side forward; where that fails with gradients, forward alone.

    Raises:
        NotCheckable: the side does not have the API.
    """
    function = side.resolve(name)
    execution, error = attempt(lambda: side.forward(function, call, plan))
    if error is None or not plan.differentiable:
        return Attempt(execution, error)
    without = replace(plan, differentiable=())
    execution, plain_error = attempt(lambda: side.forward(function, call, without))
    return Attempt(execution, plain_error, gradient_error=error)


def attempt_gradients(
    tried: Attempt, cotangents: list[HostTensor | None]
) -> tuple[list[HostTensor | None] | None, Exception | None]:
    """Return the gradients of a side, or what it raised."""
    execution = tried.execution
    if execution is None or tried.gradient_error is not None:
        return None, tried.gradient_error or tried.error
    return attempt(lambda: execution.gradients(cotangents))


def attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return what an action returns, or what it raises; `NotCheckable` goes through.

    Raises:
        OutOfMemory: an allocation failed.
    """
    try:
        return action(), None
    except NotCheckable:
        raise
    except Exception as error:
        # Broad, because it is the API that raises: any class, also those of its framework.
        if is_out_of_memory(error):
            raise OutOfMemory(describe(error)) from error
        return None, error


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
    text = " ".join(str(error).split("\n---", 1)[0].split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."
