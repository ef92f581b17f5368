"""How arrays of numbers are read, compared and rounded to a number format.

Comes in: NumPy arrays of any size, and the name of a format of `schema.dtypes`. Goes out: slices, norms,
flags of equal values (NaN and infinities that agree are); rounded values in the format's carrier, and the
spacing of its numbers in float64. Called by every pass over arrays, and where numbers are made, benched and
judged.
"""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np

from ray_precheck.schema.dtypes import (
    CARRIERS,
    DTYPES,
    Array,
    DType,
    canonical_dtype,
    is_differentiable,
)

# Pieces that several passes read stay in the core's cache (a float64 copy has 512 KiB): fewer elements cost
# more calls than the cache gains (16,384: half the speed with 1 MB of cache), more leave it. Sums of floats
# depend on the size of the pieces, so results do.
CHUNK_ELEMENTS = CACHED_ELEMENTS = 1 << 16


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
    sizes = np.abs(values)
    largest = float(np.max(sizes, initial=0.0))
    return largest * float(np.sqrt(np.mean(np.square(sizes / largest)))) if largest else 0.0


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


def machine_epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next larger number, 2**-mantissa_bits: `finfo.eps`.

    It is the largest relative spacing of normal numbers, and twice `unit_roundoff` (Higham, Accuracy and
    Stability of Numerical Algorithms, 2nd ed., section 2.1). Of whole numbers it is 1.
    """
    return float(2.0 ** -DTYPES[dtype].mantissa_bits)


def unit_roundoff(dtype: str) -> float:
    """Return the largest relative error of one rounding to nearest, 2**-(mantissa_bits + 1).

    It is half of `machine_epsilon`, because a value is at most half a spacing off (Higham, theorem 2.2;
    with subnormal numbers the bound is half of `smallest_subnormal`, absolute).
    """
    return machine_epsilon(dtype) / 2


@cache
def epsilon_of(spelt: str) -> float:
    """Return the machine epsilon of a dtype as a dump spells it; 0 for whole numbers and unknown dtypes."""
    dtype = canonical_dtype(spelt)
    return machine_epsilon(dtype) if dtype is not None and is_differentiable(dtype) else 0.0


def smallest_normal(dtype: str) -> float:
    """Return the smallest number with all bits of its fraction, 2**min_exponent; 1 of whole numbers."""
    return float(2.0 ** DTYPES[dtype].min_exponent)


def smallest_subnormal(dtype: str) -> float:
    """Return the smallest positive number, the spacing of all below `smallest_normal`; 1 of whole numbers."""
    return float(2.0 ** (DTYPES[dtype].min_exponent - DTYPES[dtype].mantissa_bits))


def round_to_dtype(values: Array, dtype: str) -> Array:
    """Round float64 `values` once, to nearest and ties to even, to `dtype`'s carrier.

    Values beyond the largest finite number become infinite, as IEEE 754 asks (NaN in e4m3fn). A cast through
    float32 would round twice, so formats that NumPy lacks are rounded in float64 arithmetic, in
    chunks. Complex values round their two parts; integers and booleans are cast.
    """
    info, carrier = DTYPES[dtype], CARRIERS[dtype]
    if info.carrier == dtype and values.dtype == carrier:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        if info.kind != "float" or info.carrier == dtype:
            return values.astype(carrier, copy=False)
        rounded = np.empty(values.shape, info.carrier)
        source, target = values.reshape(-1), rounded.reshape(-1)
        for chunk in pieces(len(source)):
            target[chunk] = _rounded(source[chunk].astype(np.float64, copy=False), info)
    return rounded


def round_into(target: Array, values: Array, dtype: str) -> None:
    """Write float64 `values` into an array in `dtype`'s carrier, rounded as `round_to_dtype` does, without a
    copy where NumPy has the format."""
    if DTYPES[dtype].carrier != dtype:
        values = round_to_dtype(values, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(target, values, casting="unsafe")


@cache
def overflow_from(dtype: str) -> float:
    """Return the smallest float64 magnitude that `round_to_dtype` does not keep finite.

    It is half a unit beyond the largest number of a float dtype, or the next number where the tie
    rounds to the largest one (e4m3fn, whose largest number is even). Of float64 it is infinity.
    """
    info = DTYPES[dtype]
    tie = info.largest + float(spacing(np.asarray(info.largest), dtype)) / 2
    rounds_down = np.isfinite(round_to_dtype(np.asarray(tie), dtype))
    return math.nextafter(tie, math.inf) if rounds_down else tie


def saturated_like(values: Array, tested: Array, dtype: str) -> Array:
    """Return float64 `values` with those beyond a format without infinities at its largest number,
    where `tested`, of the same shape, has that.

    OFP8 1.0, section 5.2, allows two conversions: to NaN (ml_dtypes, torch before 2.13) and to the
    largest number with the same sign (torch 2.13), of infinities, too. Others stay as they are.
    """
    info = DTYPES[dtype]
    if info.kind != "float" or info.overflow == math.inf:
        return values
    largest = np.copysign(info.largest, values)
    return np.where((np.abs(values) > info.largest) & (tested == largest), largest, values)


def _rounded(wide: Array, info: DType) -> Array:
    """Round normal numbers as the integers that their bits are, which takes a third of the time."""
    cut = DTYPES["float64"].mantissa_bits - info.mantissa_bits
    bits = np.ascontiguousarray(wide).view(np.uint64)
    is_odd = (bits >> np.uint64(cut)) & np.uint64(1)
    bits = bits + is_odd + np.uint64((1 << (cut - 1)) - 1)
    rounded = (bits & ~np.uint64((1 << cut) - 1)).view(np.float64)
    magnitude = np.abs(wide)
    # A subnormal number has fewer bits. A carry beyond a NaN or an infinity makes another number of it.
    below = magnitude < smallest_normal(info.name)
    if below.any():
        step = smallest_subnormal(info.name)
        rounded = np.where(below, np.rint(wide / step) * step, rounded)
    if not (magnitude <= info.largest).all():
        rounded = np.where(np.isfinite(wide), rounded, wide)
        beyond = np.abs(rounded) > info.largest
        rounded = np.where(beyond, np.copysign(info.overflow, wide), rounded)
    return rounded


def spacing(values: Array, dtype: str) -> Array:
    """Return the spacing of `dtype`'s numbers at each of `values` (one unit in the last place).

    For x of a binade [2**e, 2**(e+1)) it is 2**(e - mantissa_bits), never below the spacing of the
    subnormals, 2**(min_exponent - mantissa_bits). Float64 in, float64 out; 0 and non-finite values
    have the spacing of the subnormals.
    """
    info = DTYPES[dtype]
    wide = np.ascontiguousarray(values, np.float64).reshape(np.shape(values))
    # Without sign and fraction the bits of a number are those of the power of 2 below it, or of infinity.
    below = (wide.view(np.uint64) & np.uint64(0x7FF << 52)).view(np.float64)
    below = np.maximum(np.where(below < np.inf, below, 0.0), smallest_normal(dtype))
    return np.asarray(np.ldexp(below, -info.mantissa_bits))
