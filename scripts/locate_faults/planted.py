"""The faults: what a kernel writes instead of the right values; and how much a difference moves.

Comes in: a tensor of a call's result, or a gradient. Goes out: another one of its shape and dtype; of two
tensors a `Size`. A fault is planted by `runs` in the very call, before the capture sees the result, so that
the wrong values flow on. The graph of autograd stays as it is: what the kernel has kept of its result for
the backward pass is the wrong one, too. Nothing here is the package's: the truth of the yardstick must not
depend on what is measured by it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

# Issue 18: a fault counts where it moves the output by more than 4 times the worst honest error.
COUNTS_FROM = 4.0


@dataclass(frozen=True)
class Size:
    """The root mean square and the largest element of a difference; infinite where one is not finite."""

    rmse: float = 0.0
    largest: float = 0.0

    def moves_more_than(self, honest: "Size") -> bool:
        """Return whether this is more than `COUNTS_FROM` times an honest error, in either number."""
        return self.rmse > COUNTS_FROM * honest.rmse or self.largest > COUNTS_FROM * honest.largest


def size_of(one: Tensor, other: Tensor) -> Size:
    """Return the size of a difference; elements that are equal, or NaN on both sides, have none."""
    one, other = one.detach().double().reshape(-1), other.detach().double().reshape(-1)
    if not len(one):
        return Size()
    same = (one == other) | (one.isnan() & other.isnan())
    difference = torch.where(same, 0.0, one - other).abs()
    if not difference.isfinite().all():
        return Size(math.inf, math.inf)
    return Size(float(difference.square().mean().sqrt()), float(difference.max()))


def worst_size(sizes: Iterable[Size]) -> Size:
    """Return the larger of each number."""
    found = Size()
    for size in sizes:
        found = Size(max(found.rmse, size.rmse), max(found.largest, size.largest))
    return found


Change = Callable[[Tensor], Tensor]
# What is smaller than this share of the largest magnitude is small.
_SMALL = 1 / 16


def scaled(values: Tensor, by: float) -> Tensor:
    return (values.double() * by).to(values.dtype)


def rounded_to_bf16(values: Tensor) -> Tensor:
    """Round to bfloat16; what is bfloat16 already, to half of its bits."""
    if values.dtype != torch.bfloat16:
        return values.bfloat16().to(values.dtype)
    # float8_e5m2 has the exponents of float16, and two bits.
    return values.float().to(torch.float8_e5m2).to(values.dtype)


def last_zeroed(values: Tensor) -> Tensor:
    """Zero the last sixteenth of the elements, in their order in memory."""
    flat = values.reshape(-1).clone()
    flat[len(flat) - max(1, len(flat) // 16) :] = 0
    return flat.reshape(values.shape)


def one_wrong(values: Tensor) -> Tensor:
    """Add the largest magnitude to one element."""
    flat = values.reshape(-1).clone()
    flat[len(flat) // 3] += values.abs().max()
    return flat.reshape(values.shape)


def rows_shifted(values: Tensor) -> Tensor:
    """Shift by one along the last dimension but one."""
    return values.roll(1, dims=max(0, values.dim() - 2))


def one_nan(values: Tensor) -> Tensor:
    flat = values.reshape(-1).clone()
    flat[len(flat) // 2] = float("nan")
    return flat.reshape(values.shape)


def small_flipped(values: Tensor) -> Tensor:
    """Turn the signs of small values."""
    return torch.where(values.abs() < _SMALL * values.abs().max(), -values, values)


FAULTS: dict[str, Change] = {
    "scale 1 + 1e-4": partial(scaled, by=1 + 1e-4),
    "scale 1 + 1e-3": partial(scaled, by=1 + 1e-3),
    "scale 1 + 1e-2": partial(scaled, by=1 + 1e-2),
    "scale 1.1": partial(scaled, by=1.1),
    "bf16 rounding": rounded_to_bf16,
    "last 1/16 zeroed": last_zeroed,
    "one element": one_wrong,
    "rows shifted": rows_shifted,
    "NaN": one_nan,
    "signs of small values": small_flipped,
}
