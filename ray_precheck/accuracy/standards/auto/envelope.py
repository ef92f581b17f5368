"""The size of the errors of a result, as `auto` compares them.

Comes in: arrays of one shape. Goes out: a `Distance`. Called by `auto`, for the tested output and
for each honest implementation alike. Errors are against the float64 bench, unrounded, over the elements that
are finite on both sides; the arrays are read in chunks.
"""

import math
from dataclasses import dataclass

import numpy as np

from ray_precheck.accuracy.metrics import Chunk, chunks, rounded_bench
from ray_precheck.numerics.arrays import l2_norm
from ray_precheck.numerics.rounding import smallest_subnormal
from ray_precheck.schema.dtypes import Array

# Subnormal numbers have few bits, and honest ones few of those right: magnitudes count as at least
# so many of their units.
_SUBNORMAL_UNITS = 64


@dataclass(frozen=True, slots=True)
class Distance:
    """The error of a result, or the limits of that error.

    `rmse` is the root mean square; `largest` the largest error, at the flat position `at` (-1:
    nowhere); `relative` the largest share of an element's own magnitude, at `relative_at`. `count`
    elements are compared, of which `strange` are NaN or infinite in another way than the bench.
    """

    rmse: float = 0.0
    largest: float = 0.0
    relative: float = 0.0
    count: int = 0
    strange: int = 0
    at: int = -1
    relative_at: int = -1

    def admits(self, other: "Distance") -> bool:
        """Return whether another distance is within this one; a distance with a NaN is not."""
        return (
            not other.strange
            and other.rmse <= self.rmse
            and other.largest <= self.largest
            and other.relative <= self.relative
        )


def distance(
    out: Array, bench: Array, dtype: str, excused: Array | None = None, least: float = 0.0
) -> Distance:
    """Measure |out - bench|.

    `excused`, `(N,)` bool, are elements that do not count; errors up to `least` do not count for
    the relative one.
    """
    floor = _SUBNORMAL_UNITS * smallest_subnormal(dtype)
    norm, largest, relative, at, relative_at, count, strange = 0.0, 0.0, 0.0, -1, -1, 0, 0
    for chunk in chunks(out, bench, dtype):
        error, counted = chunk.abs_err, None
        if excused is not None:
            counted = ~excused[chunk.start : chunk.start + len(error)]
            error = np.where(counted, error, 0.0)
        count += len(error) if counted is None else int(np.count_nonzero(counted))
        if not chunk.finite.all():
            odd = is_strange(chunk, dtype)
            strange += int(np.count_nonzero(odd if counted is None else counted & odd))
        worst = int(np.argmax(error))
        if error[worst] > 0.0:
            norm = math.hypot(norm, l2_norm(error, float(error[worst])))
        if error[worst] > largest:
            largest, at = float(error[worst]), chunk.start + worst
        measured = np.where(error > least, error, 0.0) if least else error
        shares = measured / (chunk.magnitude + floor)
        worst = int(np.argmax(shares))
        if shares[worst] > relative:
            relative, relative_at = float(shares[worst]), chunk.start + worst
    rmse = norm / math.sqrt(max(count, 1))
    return Distance(rmse, largest, relative, count, strange, at, relative_at)


def is_strange(chunk: Chunk, dtype: str) -> Array:
    """Return flags of the elements that are NaN or infinite in another way than the bench.

    The bench counts as it is after rounding, so that both may overflow.
    """
    both_nan = np.isnan(chunk.device) & np.isnan(chunk.bench)
    differs = chunk.device != rounded_bench(chunk.bench, dtype)
    return np.asarray(~chunk.finite & ~both_nan & differs)


def worse(one: Distance, other: Distance) -> Distance:
    """Return the larger of each number of two distances."""
    return Distance(
        max(one.rmse, other.rmse),
        max(one.largest, other.largest),
        max(one.relative, other.relative),
        max(one.count, other.count),
    )
