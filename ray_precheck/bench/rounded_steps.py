"""Steps of the composed implementation that torch's own decompositions take otherwise than its kernels do.

Comes in: the float64 arguments of an operator of torch's dispatcher. Goes out: `KERNELS_STEPS`, the operator
in the steps of torch's kernel, each of which the caller rounds; and `ERRORS`, the deviation of the error of
a kernel that errs by more than one rounding. Called by `bench.rounded`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from ray_precheck.bench.rounded_sums import FLOAT32_UNIT

_ATEN = torch.ops.aten


def _of_polynomial(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of a kernel that evaluates a polynomial in the half type itself (torch 2.13's
    kernels for vectors on the CPU are up to 3 units off)."""
    return result.abs() * (unit if unit > FLOAT32_UNIT else 0.0)


def _of_series(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of a polygamma function, the sum of n! / (x + k)^(n + 1) over k, whose terms on
    both sides of the nearest pole cancel."""
    order, x = args
    pole = (x - x.round().clamp(max=0.0)).abs()
    term: torch.Tensor = math.factorial(order) * pole ** -(order + 1)
    return term * min(unit, FLOAT32_UNIT)


def _of_factors(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of a reduction at indices by products, each rounded; 0 of other reductions."""
    if args[4] != "prod":
        return torch.zeros_like(result)
    own, dim, index = args[:3]
    extent = own.shape[dim] if own.dim() else 1
    count = (
        1.0 + index.shape[dim if index.dim() > 1 else -1] / max(extent, 1) if index.dim() else 2.0
    )
    return result.abs() * unit * math.sqrt(count / 3)


def _of_corners(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of an interpolation that rounds to a half type after each dimension."""
    sizes: torch.Tensor = _ATEN.upsample_trilinear3d.default(args[0].abs(), *args[1:])
    return sizes * (unit if unit > FLOAT32_UNIT else 0.0)


# Steps whose kernels err by more than one rounding, with the deviation of their errors.
ERRORS: dict[Any, Callable[[tuple[Any, ...], torch.Tensor, float], torch.Tensor]] = {
    _ATEN.special_i0e.default: _of_polynomial,
    _ATEN.polygamma.default: _of_series,
    _ATEN.upsample_trilinear3d.default: _of_corners,
    _ATEN.index_reduce.default: _of_factors,
    _ATEN.scatter_reduce.two: _of_factors,
}


def _counts(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Count as torch's histc does, which computes the place of a bin in the dtype of the tensor
    (aten/src/ATen/native/cpu/HistogramKernel.cpp)."""
    low, high = (x.min(), x.max()) if min == max else (x.new_tensor(min), x.new_tensor(max))
    inside = x[(x >= low) & (x <= high)]
    place = ((inside - low) * bins / (high - low)).long().clamp(max=bins - 1)
    return torch.bincount(place, minlength=bins).to(x.dtype)


def _floor_divided(dividend: Any, divisor: Any) -> torch.Tensor:
    """Divide and round down in the steps of torch's kernels (c10/util/BFloat16-math.h, generic_math.h)."""
    rest = torch.fmod(dividend, divisor)
    quotient = (dividend - rest) / divisor
    quotient = torch.where((rest != 0) & ((divisor < 0) != (rest < 0)), quotient - 1.0, quotient)
    floor = quotient.floor()
    return torch.where(quotient - floor > 0.5, floor + 1.0, floor)


def _soft_margin_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """Return the gradient in the order of torch's kernel, in which z may overflow
    (aten/src/ATen/native/Loss.cpp)."""
    z = (-target * x).exp()
    share = 1.0 / x.numel() if reduction == 1 else 1.0
    return target * z * -share / (1.0 + z) * grad


KERNELS_STEPS: dict[Any, Callable[..., torch.Tensor]] = {
    _ATEN.floor_divide.default: _floor_divided,
    _ATEN.soft_margin_loss_backward.default: _soft_margin_backward,
    _ATEN.histc.default: _counts,
}
