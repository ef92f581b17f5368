"""Toyframe under test: how it gets a call, and what it gives back."""

from collections.abc import Callable
from typing import Any

import numpy as np
import toyframe

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import (
    CallPlan,
    Leaf,
    flatten_outputs,
    map_leaves,
    require_answer,
)
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor, Symbol


class ToyBackend:
    """Toyframe on the CPU."""

    framework = "toyframe"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return toyframe's function for an API of the dump."""
        if name.api not in toyframe.OPERATORS:
            raise NotCheckable(f"{name.type_name} is no operator of toyframe")
        return toyframe.OPERATORS[name.api]

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> "ToyRun":
        """Run the API in the recorded dtypes."""
        return ToyRun(function, call, plan)

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether an error says that there is no kernel; toyframe has them all."""
        return False

    def prove(self) -> None:
        """Compute 1 + 1."""
        one = toyframe.Tensor(np.ones(8, np.float32))
        require_answer(toyframe.add(one, one).values, self._kind)


class ToyRun:
    """A call that has run forward."""

    def __init__(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> None:
        self._function = function
        self._args, self._kwargs = map_leaves((call.args, call.kwargs), _to_toyframe)
        self._plan = plan
        result = function(*self._args, **self._kwargs)
        leaves = flatten_outputs(result, lambda leaf: isinstance(leaf, toyframe.Tensor))
        self.outputs: list[Leaf] = [_to_host(leaf) for leaf in leaves]

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor | None]:
        """Return the gradients of the differentiable inputs."""
        derivative = toyframe.DERIVATIVES.get(self._function)
        if derivative is None or cotangents[0] is None:
            raise NotCheckable("toyframe has no derivative of it")
        passed_back = derivative(cotangents[0].data, *self._args, **self._kwargs)
        return [_host_tensor(passed_back[position]) for position in self._plan.differentiable]


def _to_toyframe(value: Any) -> Any:
    if isinstance(value, HostTensor):
        return toyframe.Tensor(value.data)
    return np.dtype(value.value) if isinstance(value, Symbol) else value


def _to_host(leaf: Any) -> Leaf:
    return _host_tensor(leaf.values) if isinstance(leaf, toyframe.Tensor) else leaf


def _host_tensor(values: Any) -> HostTensor:
    return HostTensor(str(values.dtype), values)
