"""The health of a tensor: how many values are NaN, infinite, zero or subnormal, and how near to overflow.

Comes in: the values of a tensor, its dtype, and its largest and smallest value where they are known. Goes
out: a `Health`. Called for each tensor of a capture with sketches.
"""

import math
import threading
from dataclasses import dataclass

import numpy as np

from ray_precheck.numerics.arrays import CACHED_ELEMENTS, pieces
from ray_precheck.numerics.rounding import smallest_normal
from ray_precheck.numerics.sketch import Array
from ray_precheck.schema.dtypes import DTYPES

# The formats whose values a capture sees; fp8 is not among them.
_FORMATS = ("float16", "bfloat16", "float32", "float64")
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_SMALLEST_FLOAT, _ONE = np.float32(smallest_normal("float32")), np.uint32(1)
# Twice the bits of 2^-126.
_LEAST_NORMAL = 1 << 24


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
