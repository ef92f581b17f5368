"""A framework of a few operators over NumPy. Its exp is wrong in float32."""

from collections.abc import Callable
from typing import Any

import numpy as np


class Tensor:
    """An array that toyframe's operators take and return."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)


def add(left: Tensor, right: Tensor) -> Tensor:
    return Tensor(left.values + right.values)


def subtract_from(less: Tensor, more: Tensor) -> Tensor:
    """The second one less the first."""
    return Tensor(more.values - less.values)


def mul(left: Tensor, right: Tensor) -> Tensor:
    return Tensor(left.values * right.values)


def exp(tensor: Tensor) -> Tensor:
    """Wrong by a thousandth in float32."""
    wrong = 1.001 if tensor.values.dtype == np.float32 else 1.0
    return Tensor((np.exp(tensor.values) * wrong).astype(tensor.values.dtype))


def cast(tensor: Tensor, dtype: Any) -> Tensor:
    return Tensor(tensor.values.astype(dtype))


def softcap(tensor: Tensor, cap: float) -> Tensor:
    """Keep values between -cap and cap, smoothly."""
    return Tensor((np.tanh(tensor.values / cap) * cap).astype(tensor.values.dtype))


def crash(tensor: Tensor) -> Tensor:
    raise RuntimeError("toyframe has no memory of this operator")


def save(tensor: Tensor, path: str) -> None:
    np.save(path, tensor.values)


OPERATORS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (add, subtract_from, mul, exp, cast, softcap, crash, save)
}
# What is passed back to each argument of an operator, by the gradient of its output.
DERIVATIVES: dict[Callable[..., Any], Callable[..., tuple[Any, ...]]] = {
    mul: lambda grad, left, right: (grad * right.values, grad * left.values),
}
