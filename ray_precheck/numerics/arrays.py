"""How arrays are read and compared: in pieces, with NaN and infinities that agree, by sums of squares.

Comes in: NumPy arrays of any size. Goes out: slices, flags, norms. Called by every pass over arrays.
"""

import math
from collections.abc import Iterator

import numpy as np

from ray_precheck.schema.dtypes import Array

# A float64 copy of a piece has 2 MiB. Sums of floats depend on the size of the pieces, so results do.
CHUNK_ELEMENTS = 1 << 18
# Pieces that several passes read stay in the core's cache: fewer elements cost more calls than the cache
# gains (16,384: half the speed with 1 MB of cache), more leave it.
CACHED_ELEMENTS = 1 << 16


def pieces(count: int, size: int | None = None) -> Iterator[slice]:
    """Yield the slices of `count` elements one after the other, of `size` or `CHUNK_ELEMENTS` each."""
    step = CHUNK_ELEMENTS if size is None else size
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def same_values(one: Array, other: Array) -> Array:
    """Return flags, bool, of the elements that are equal on both sides, or NaN on both.

    Arrays of any dtype whose shapes broadcast. Infinities are the same with the same sign, 0 and -0 are, and
    a complex number with a NaN in either part counts as NaN.
    """
    return np.asarray((one == other) | ((one != one) & (other != other)))


def l2_norm(values: Array, largest: float | None = None) -> float:
    """Return the root of the sum of squares of finite values; 0 of none.

    Values are divided by the largest of them first, because squares of float64 numbers beyond 1e154 are
    infinite, and those below 1e-162 are 0. `largest` is the largest magnitude, where the caller knows it.
    """
    if largest is None:
        largest = float(np.max(np.abs(values), initial=0.0))
    return largest * math.sqrt(float(np.sum(np.square(values / largest)))) if largest else 0.0


def root_mean_square(values: Array) -> float:
    """Return the root of the mean of |value|^2 of finite values, which may be complex; 0 of none."""
    largest = float(np.max(np.abs(values), initial=0.0))
    return (
        largest * float(np.sqrt(np.mean(np.square(np.abs(values) / largest)))) if largest else 0.0
    )


def add_squares(scale: float, squares: float, values: Array) -> tuple[float, float]:
    """Add the squares of `values`, none of them negative, to the sum scale**2 * squares, piece by piece.

    (0, 0) is the sum of nothing. An infinite value makes scale infinite.
    """
    largest = float(np.max(values, initial=0.0))
    if largest > scale:
        squares *= (scale / largest) ** 2
        scale = largest
    if scale == 0.0 or math.isinf(scale):
        return scale, max(squares, 1.0) if scale else 0.0
    return scale, squares + float(np.sum(np.square(values / scale)))
