"""The statistics of a tensor in a dump, and its health: their names, how they are computed and compared.

Comes in: values on the host, or the statistics of the parts of a tensor. Goes out: a `TensorSummary`, and the
table from which writers, readers and comparisons take names. `capture.pytorch.tensors` computes the same with
torch, on the CPU and on a device (`values`). The health, of captures with sketches, is how many values are
NaN, infinite, zero or subnormal, and how near they are to overflow.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.numerics.arrays import CACHED_ELEMENTS, pieces, smallest_normal
from ray_precheck.numerics.one_pass import sums_of_array
from ray_precheck.schema.dtypes import DTYPES, Array

MAX, MIN, MEAN, NORM = "Max", "Min", "Mean", "Norm"
# The formats whose values a capture sees; fp8 is not among them.
_FORMATS = ("float16", "bfloat16", "float32", "float64")
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
# Twice the bits of 2^-126.
_LEAST_NORMAL = 1 << 24


def _mean_of_parts(means: Sequence[float], sizes: Sequence[int]) -> float:
    sums = [mean * size for mean, size in zip(means, sizes, strict=True)]
    return math.fsum(sums) / sum(sizes)


class Statistic(NamedTuple):
    """A statistic: its field in dump.json, and its name in msprobe's columns of compare_result.

    `joined` makes that of a whole tensor of those of its parts, and of the sizes of these. `distance` says by
    how much a change of the statistic is multiplied to be at most the L2 norm of the change of a tensor of so
    many elements. `is_end`: it is one of the elements, which honest kernels may round otherwise.
    """

    field: str
    heading: str
    joined: Callable[[Sequence[float], Sequence[int]], float]
    distance: Callable[[int], float]
    is_end: bool = False


STATISTICS = (
    Statistic(MAX, "max", lambda ends, _: max(ends), lambda _: 1.0, is_end=True),
    Statistic(MIN, "min", lambda ends, _: min(ends), lambda _: 1.0, is_end=True),
    Statistic(MEAN, "mean", _mean_of_parts, math.sqrt),
    Statistic(NORM, "l2norm", lambda norms, _: math.hypot(*norms), lambda _: 1.0),
)
FIELDS = tuple(each.field for each in STATISTICS)


class TensorSummary(NamedTuple):
    """The statistics of a tensor, in the order of the table; None where the dtype has none."""

    max: float | int | bool | None = None
    min: float | int | bool | None = None
    mean: float | int | bool | None = None
    norm: float | int | bool | None = None

    @classmethod
    def of_single(cls, value: Any) -> "TensorSummary":
        """Return the statistics of a tensor without dimensions: msprobe has its value for each."""
        return cls(*[value] * len(cls._fields))

    def fields(self) -> dict[str, Any]:
        """Return them by their names in a dump; written out, which takes half the time of a loop."""
        top, bottom, mean, norm = self
        return {MAX: top, MIN: bottom, MEAN: mean, NORM: norm}


def summary_of(values: Array | None) -> TensorSummary | None:
    """Return the statistics of values on the host, with sums in float64; None where there are no values.

    As msprobe 26.2 has them for MindSpore (`mindspore_processor.get_stat_info`): bool tensors have any and
    all, 0-d tensors their value four times, complex ones the statistics of the absolute values; integers and
    float64 have all four. There MindSpore computes them, whose CPU lacks the norm.
    """
    if values is None or not values.size:
        return None
    if values.dtype == np.bool_:
        return TensorSummary(bool(values.any()), bool(values.all()))
    total = squares = 0.0
    # The script may have made errors of warnings.
    with np.errstate(all="ignore"):
        if values.dtype.kind == "c":
            values = np.abs(values)
        if not values.ndim:
            return TensorSummary.of_single(values.item())
        flat = np.ascontiguousarray(values).reshape(-1)
        found = sums_of_array(flat)
        if found is not None:
            top, bottom, total, squares = found
            return TensorSummary(top, bottom, total / flat.size, math.sqrt(squares))
        for place in pieces(flat.size, CACHED_ELEMENTS):
            piece = flat[place].astype(np.float64)
            total += float(np.add.reduce(piece))
            squares += float(np.dot(piece, piece))
    mean, norm = total / flat.size, math.sqrt(squares)
    return TensorSummary(float(flat.max()), float(flat.min()), mean, norm)


_SMALLEST_FLOAT, _ONE = np.float32(smallest_normal("float32")), np.uint32(1)


@dataclass(frozen=True, slots=True)
class Health:
    """What is unusual about the values of a tensor.

    `headroom` is log2(the dtype's largest finite value / the tensor's largest finite absolute value): by
    how many powers of two the values may grow until they overflow. It is None for integers, truth values,
    empty tensors and those without a finite value other than zero.
    """

    nan: int = 0
    positive_infinity: int = 0
    negative_infinity: int = 0
    zero: int = 0
    subnormal: int = 0
    headroom: float | None = None


def health_of(
    values: Array, dtype: str, highest: float | None = None, lowest: float | None = None
) -> Health:
    """Return the health of values of any shape; the real and imaginary parts of complex ones count.

    `dtype` is the tensor's own ("bfloat16"): values of half types may have been widened to float32.
    `highest` and `lowest` are the largest and smallest of the values, which are computed where they are
    left out; where both are finite, NaN and infinity need not be looked for.

    Raises:
        KeyError: a dtype of floats that is not known.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype.kind == "c":
        flat, highest, lowest = flat.view(flat.real.dtype), None, None
    if not flat.size:
        return Health()
    if flat.dtype.kind in "iub":
        return Health(zero=int(flat.size - np.count_nonzero(flat)))
    if highest is None or lowest is None:
        highest, lowest = float(flat.max()), float(flat.min())
    nan = positive = negative = 0
    largest = max(abs(highest), abs(lowest))
    if not (math.isfinite(highest) and math.isfinite(lowest)):
        nan, positive, negative, largest = _non_finite(flat)
    real = _PARTS.get(dtype, dtype)
    small = _count_below(flat, smallest_normal(real))
    zero = int(flat.size - np.count_nonzero(flat)) if small else 0
    return Health(
        nan, positive, negative, zero, small - zero, headroom(largest, DTYPES[real].largest)
    )


def headroom(largest: float, limit: float) -> float | None:
    """Return log2(limit / largest); None where the largest absolute value is 0."""
    return math.log2(limit) - math.log2(largest) if largest else None


def largest_finite(dtype: str) -> float | None:
    """Return the largest finite value of a dtype of floats or complex numbers; None for others, and fp8."""
    real = _PARTS.get(dtype, dtype)
    return DTYPES[real].largest if real in _FORMATS else None


def _non_finite(flat: Array) -> tuple[int, int, int, float]:
    """Return how many are NaN, +inf and -inf, and the largest absolute value of the others."""
    nan = positive = negative = 0
    largest = 0.0
    for place in pieces(flat.size, CACHED_ELEMENTS):
        piece = flat[place]
        finite = np.isfinite(piece)
        if not finite.all():
            nan += int(np.count_nonzero(np.isnan(piece)))
            positive += int(np.count_nonzero(piece == np.inf))
            negative += int(np.count_nonzero(piece == -np.inf))
        largest = max(largest, float(np.max(np.abs(piece), initial=0.0, where=finite)))
    return nan, positive, negative, largest


def _count_below(flat: Array, normal: float) -> int:
    """Return how many absolute values are below the smallest normal one: zeros and subnormal numbers."""
    own = flat.dtype == np.float32 and normal == _SMALLEST_FLOAT
    count = 0
    for place in pieces(flat.size, CACHED_ELEMENTS):
        piece = flat[place]
        if not own:
            count += int(np.count_nonzero(np.abs(piece) < normal))
        elif _doubled_bits(piece).min() < _LEAST_NORMAL:
            count += int(np.count_nonzero(np.abs(piece) < _SMALLEST_FLOAT))
    return count


def _doubled_bits(piece: Array) -> Array:
    """Return the bits of float32 values without their signs, shifted to the left by one.

    They are in the order of the absolute values. Most tensors have no value below the smallest normal one,
    which is seen so in half the time of a count.
    """
    bits = _scratch.bits[: piece.size]
    np.left_shift(piece.view(np.uint32), _ONE, out=bits)
    return bits


class _Scratch(threading.local):
    """Memory for bits; autograd computes gradients in threads of its own."""

    def __init__(self) -> None:
        self.bits = np.empty(CACHED_ELEMENTS, np.uint32)


_scratch = _Scratch()
