"""The size of a difference, and whether a fault moves more than honest errors do.

Comes in: two tensors. Goes out: a `Size`. Called by all that measures the truth. Nothing here is the
package's: the truth of the yardstick must not depend on what is measured by it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
