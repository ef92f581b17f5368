"""Runs a call on one side, forward and backward; exceptions are returned as values.

Comes in: a side (a backend or the bench) and a call. Goes out: an `Attempt`, gradients, or the error.
Called by every module that runs a side.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from ray_precheck.check.sides.raised import OutOfMemory, describe, is_out_of_memory
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
