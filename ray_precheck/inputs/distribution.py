"""The distribution of a tensor from its recorded statistics, and numbers drawn of it.

Comes in: a `TensorSpec` with Min, Max, Mean and Norm. Goes out: the range to keep to, `ValueRange`; a `Body`
that draws numbers with these moments, or None where the dump does not tell them; arrays of floats, complex
numbers, whole numbers or booleans in the carrier of their dtype. Called by `inputs.generate`. How large the
chunks are in which numbers are drawn changes none of them.

The elements are a mixture. If there are at least two, Min and Max occur once each, at random places.
All others, the body, have the mean and the second moment that remain:

    mean   = (n Mean - Min - Max) / (n - 2)
    second = (Norm**2 - Min**2 - Max**2) / (n - 2)

The shape of the body is chosen by how far the extremes are away, in standard deviations:

- uniform, normal, or a power of the normal (sign(z) |z|**p, p = 2 and 3), whichever has, for so many
  elements, extremes nearest to the recorded ones;
- where a bound is nearer than 1.5 standard deviations and is not 0, |z|**p beginning there;
- draws beyond a bound are moved to the bound. So outputs of relu, and sparse tensors, have zeros.

Where Norm is missing (or is infinite, or contradicts the extremes, as in dumps whose norms were
rounded or have overflowed) the variance is a third of the largest that the mean allows, which for a
mean in the middle is uniform. Where Mean is missing, or cannot be, there is no body.

A shape is a table of quantiles. A number is drawn by one uniform number: it chooses a cell of the table and
the place between the cell's two edges. Only +, -, *, / and sqrt are used at run time, which IEEE 754 rounds
in one way, so the tables have the same bits on every host; exp and log have not.
"""

import functools
import math
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ray_precheck.numerics.arrays import (
    machine_epsilon,
    pieces,
    round_into,
    round_to_dtype,
    smallest_subnormal,
)
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import Bound, TensorSpec

# Where the dump has no Max and Min (summary mode md5, meta and fp8 tensors).
UNKNOWN_FLOAT = (-1.0, 1.0)
UNKNOWN_INTEGER = (0, 1)
# The share of infinite elements where Max or Min is infinite; at least one element is.
INFINITE_SHARE = 0.1
CELLS = 1024
# The end of the last cell: the cell then has the second moment of the normal's tail beyond 1/1024.
_LAST_NORMAL = 3.7
# Powers of a normal number: 0 stands for uniform, 1 is normal, above it the tails grow.
TWO_SIDED = (0, 1, 2, 3)
ONE_SIDED = (1, 2, 3, 4, 6, 8)
_MOST_STEPS = 40
_MEAN_TOLERANCE = 1e-4  # of a standard deviation
_VARIANCE_TOLERANCE = 1e-3  # of the variance
# The steps of the fit may not leave the scale at which clipping still bends the shape.
_LARGEST_SCALE = 1e4
# A bound that is nearer to the mean, in standard deviations, makes the distribution one-sided.
_NEAR_BOUND = 1.5
_LARGEST_SHARE = 1.0 / 3.0
# How well a recorded mean or norm is known, relative: half types are often reduced in their own
# dtype, float32 sums of many elements lose a few more bits than one rounding.
_WIDE_PRECISION = 2.0**-18
# The spacing of float32's subnormal numbers: a mean is not known better, however small it is.
_WIDE_SPACING = smallest_subnormal("float32")
# Beyond these whole numbers floats are too coarse to draw them from.
_LARGEST_EXACT = 2**52
# Standard deviations of uniform, z, z**2 and z**3 with the sign of z, for z normal.
_DEVIATIONS = (1.0, 1.0, math.sqrt(3.0), math.sqrt(15.0))
# The tensors that a network makes are inputs of the calls that follow at once: a third of all fits have been
# made within 64 others. A table has 8 KiB.
_KEPT_FITS = 64
# The tensors of a network have few sizes.
_KEPT_EXTREMES = 1 << 10
# A fit by the bits of its numbers, because 0.0 and -0.0 are one key and not one distribution.
_FIT = struct.Struct("=ddddq")
# Each number passes the processor's cache four times: 256 KiB of float64 stay in it.
_CHUNK_ELEMENTS = 1 << 15


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Values to draw: uniform over [low, high], and infinities where the dump saw them.

    For booleans 0 and 1 stand for False and True. `note` names the statistics that the dump lacks.
    """

    low: float | int
    high: float | int
    minus_infinity: bool = False
    plus_infinity: bool = False
    note: str = ""


def value_range(spec: TensorSpec) -> ValueRange:
    """Return the range to draw a tensor from.

    Floats: [Min, Max] as recorded. An infinite Min or Max stands for infinite elements beside
    finite ones; the finite ones reach to the recorded finite extreme, else one unit from the other
    bound, or over [-1, 1]. NaN says nothing about the range: the finite extremes count, and without
    them it is unknown. Integers: the closed range, cut to what the
    dtype holds. Booleans: False to True, unless both extremes are the same.
    """
    kind = DTYPES[spec.dtype].kind
    if kind == "bool":
        return _bool_range(spec)
    if kind in ("int", "uint"):
        return _integer_range(spec)
    return _float_range(spec)


def _bool_range(spec: TensorSpec) -> ValueRange:
    if spec.low is None or spec.high is None:
        return ValueRange(0, 1)
    low, high = sorted((bool(spec.low), bool(spec.high)))
    return ValueRange(int(low), int(high))


def _integer_range(spec: TensorSpec) -> ValueRange:
    info = DTYPES[spec.dtype]
    smallest = -(2 ** (info.bits - 1)) if info.kind == "int" else 0
    largest = 2 ** (info.bits - (info.kind == "int")) - 1
    bounds = [spec.low, spec.high]
    if any(bound is None or bound != bound for bound in bounds):
        return ValueRange(*UNKNOWN_INTEGER, note=_unknown_note(spec, UNKNOWN_INTEGER))
    low, high = (_whole(bound, smallest, largest) for bound in bounds if bound is not None)
    return ValueRange(low, high)


def _whole(bound: float | int, smallest: int, largest: int) -> int:
    if isinstance(bound, float) and math.isinf(bound):
        return largest if bound > 0 else smallest
    return max(smallest, min(largest, round(bound)))


def _float_range(spec: TensorSpec) -> ValueRange:
    low, high = _as_float(spec.low), _as_float(spec.high)
    finite = _finite_extremes(spec)
    if finite is not None and (low is None or high is None or low != low or high != high):
        range_text = f"[{finite[0]:.6g}, {finite[1]:.6g}]"
        note = f"recorded range is NaN, drawn from that of its finite elements, {range_text}"
        return ValueRange(*finite, note=note)
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ValueRange(*UNKNOWN_FLOAT, note=_unknown_note(spec, UNKNOWN_FLOAT))
    # A bound beyond the largest finite number of the dtype is an infinity in that dtype.
    limit = DTYPES[spec.dtype].largest
    minus, plus = low < -limit, high > limit
    if high < -limit or low > limit:
        infinity = -math.inf if minus else math.inf
        return ValueRange(infinity, infinity)
    if finite is not None and (minus or plus):
        return ValueRange(*finite, minus_infinity=minus, plus_infinity=plus)
    if minus and plus:
        return ValueRange(*UNKNOWN_FLOAT, minus_infinity=True, plus_infinity=True)
    if minus:
        return ValueRange(max(float(high) - 1.0, -limit), float(high), minus_infinity=True)
    if plus:
        return ValueRange(float(low), min(float(low) + 1.0, limit), plus_infinity=True)
    return ValueRange(float(low), float(high))


def _finite_extremes(spec: TensorSpec) -> tuple[float, float] | None:
    """Return the extremes of the finite elements, where the dump has them and they can be."""
    limit = DTYPES[spec.dtype].largest
    low, high = (
        finite if finite is not None else _as_float(bound)
        for finite, bound in ((spec.finite_low, spec.low), (spec.finite_high, spec.high))
    )
    if low is None or high is None or (spec.finite_low is None and spec.finite_high is None):
        return None
    return (low, high) if -limit <= low <= high <= limit else None


def _as_float(bound: Bound) -> float | None:
    """Return a bound as a float; a whole number beyond all floats is an infinity."""
    try:
        return None if bound is None else float(bound)
    except OverflowError:
        return math.inf if bound is not None and bound > 0 else -math.inf


def _unknown_note(spec: TensorSpec, fallback: tuple[float, float] | tuple[int, int]) -> str:
    if spec.size == 0:
        return ""
    recorded = "NaN" if spec.low is not None and spec.high is not None else "missing"
    return f"recorded range is {recorded}, drawn from [{fallback[0]}, {fallback[1]}]"


@dataclass(frozen=True, slots=True)
class Shape:
    """The `(CELLS + 1,)` rising edges of a table with mean 0 and variance 1.

    `points` are the same numbers. Of these, of their squares, and of the products of each with the next one,
    the other fields have the sums up to each place, from 0 on: a fit takes sums over a range from them.
    """

    edges: Array
    points: list[float]
    sums: list[float]
    squares: list[float]
    products: list[float]


@functools.cache
def two_sided(power: int) -> Shape:
    """Return the shape sign(z) |z|**power, z normal. Power 0 is the uniform distribution."""
    if power == 0:
        return _standard(np.linspace(-1.0, 1.0, CELLS + 1))
    z = _normal_edges(CELLS)
    return _standard(z * _whole_power(np.abs(z), power - 1))


@functools.cache
def one_sided(power: int) -> Shape:
    """Return the shape |z|**power, z normal."""
    return _standard(_whole_power(_normal_edges(2 * CELLS)[CELLS:], power))


@functools.cache
def _normal_edges(cells: int) -> Array:
    """Return the quantiles of the normal distribution, rounded so that the last bits, in which
    mathematical libraries differ, are gone."""
    normal = NormalDist()
    inner = [round(normal.inv_cdf(i / cells), 9) for i in range(1, cells)]
    return np.array([-_LAST_NORMAL, *inner, _LAST_NORMAL])


def _whole_power(values: Array, power: int) -> Array:
    """Return a power by multiplication; `**` goes through the C library's pow."""
    result = np.ones_like(values)
    for _ in range(power):
        result = result * values
    return result


def _standard(wide: Array) -> Shape:
    mean, second = moments(wide)
    edges = np.asarray((wide - mean) / np.sqrt(second - mean * mean))
    summed = (edges, edges * edges, edges[:-1] * edges[1:])
    return Shape(edges, edges.tolist(), *([0.0, *np.cumsum(each).tolist()] for each in summed))


def moments(edges: Array) -> tuple[float, float]:
    """Return mean and second moment of draws from a table, which are uniform within each cell."""
    sums = float(edges.sum()), float((edges * edges).sum()), float((edges[:-1] * edges[1:]).sum())
    return _cell_moments(*sums, float(edges[0]), float(edges[-1]), len(edges) - 1)


def _cell_moments(
    total: float, squares: float, products: float, first: float, last: float, cells: int
) -> tuple[float, float]:
    """Return mean and second moment from the sums of edges, of their squares, and of their products with the
    next ones."""
    # Of a cell (a + b) / 2 and (a a + a b + b b) / 3; each inner edge is in two cells.
    mean = (2.0 * total - first - last) / (2 * cells)
    return mean, (2.0 * squares - first * first - last * last + products) / (3 * cells)


def fit_clipped(shape: Shape, mean: float, variance: float) -> Array | None:
    """Return the edges clip(shift + scale * shape, 0, 1) that have this mean and variance.

    Where nothing is clipped, shift and scale are mean and standard deviation; otherwise Newton's method looks
    for them. None if it does not converge.
    """
    deviation = math.sqrt(variance)
    shift, scale = mean, deviation
    low, high = (_in_float32(scale) * shape.points[at] + _in_float32(shift) for at in (0, -1))
    if low > 0.0 and high < 1.0:
        return _clipped(shape, shift, scale)
    for _ in range(_MOST_STEPS):
        sums = _clipped_sums(shape, _in_float32(shift), _in_float32(scale))
        off_mean = mean - sums.mean
        off_second = variance + mean * mean - sums.second
        off_variance = variance - (sums.second - sums.mean * sums.mean)
        if (
            abs(off_mean) <= _MEAN_TOLERANCE * deviation
            and abs(off_variance) <= _VARIANCE_TOLERANCE * variance
        ):
            return _clipped(shape, shift, scale)
        step = _step(sums, off_mean, off_second)
        if step is None:
            return None
        by_shift, by_scale = step
        # Half a scale at most in one step, so that it does not jump to where all is clipped.
        limit = 0.5 * scale
        shift += min(max(by_shift, -limit), limit)
        scale += min(max(by_scale, -limit), limit)
        if not scale < _LARGEST_SCALE:
            return None
    return None


def _clipped(shape: Shape, shift: float, scale: float) -> Array:
    edges = _in_float32(scale) * shape.edges
    edges += _in_float32(shift)
    np.maximum(edges, 0.0, out=edges)
    return np.minimum(edges, 1.0, out=edges)


def _in_float32(value: float) -> float:
    """Round, so that the last bits of the fit do not reach the drawn numbers."""
    return float(np.float32(value))


class _ClippedSums(NamedTuple):
    """Mean and second moment of clipped edges; of those that are not clipped, `free` is how many there are,
    and the others are the sums of the shape, of the edges, and of their product."""

    mean: float
    second: float
    free: int
    shape: float
    edges: float
    both: float


def _clipped_sums(shape: Shape, shift: float, scale: float) -> _ClippedSums:
    """Return the sums of the edges clip(shift + scale * shape, 0, 1), which rise, without making them."""
    points = shape.points
    first = bisect_right(points, -shift / scale)
    end = bisect_left(points, (1.0 - shift) / scale, first)
    count, ones = end - first, len(points) - end
    of_shape = shape.sums[end] - shape.sums[first]
    of_edges = count * shift + scale * of_shape
    of_both = shift * of_shape + scale * (shape.squares[end] - shape.squares[first])
    squares = shift * of_edges + scale * of_both
    # The products of each edge with the next one, of which none is 0: (shift + scale a) (shift + scale b).
    products = float(max(ones - 1, 0))
    if count:
        start, last = points[first], points[end - 1]
        between = shape.products[end - 1] - shape.products[first]
        products += (count - 1) * shift * shift + scale * scale * between
        products += shift * scale * (2.0 * of_shape - start - last)
        products += shift + scale * last if ones else 0.0
    low, high = (min(max(shift + scale * points[at], 0.0), 1.0) for at in (0, -1))
    mean, second = _cell_moments(
        of_edges + ones, squares + ones, products, low, high, len(points) - 1
    )
    return _ClippedSums(mean, second, count, of_shape, of_edges, of_both)


def _step(sums: _ClippedSums, off_mean: float, off_second: float) -> tuple[float, float] | None:
    """Return Newton's step of shift and scale, None where the moments do not depend on both.

    The derivatives are those of sums over the edges that are not clipped, which are nearly the same.
    """
    a, b = sums.free / CELLS, sums.shape / CELLS
    c, d = 2.0 * sums.edges / CELLS, 2.0 * sums.both / CELLS
    determinant = a * d - b * c
    if not abs(determinant) > 1e-12 * (abs(a * d) + abs(b * c)):
        return None
    return (d * off_mean - b * off_second) / determinant, (
        a * off_second - c * off_mean
    ) / determinant


def fit_inside(shape: Shape, mean: float, variance: float) -> tuple[Array, float]:
    """Return the edges of a shape that reaches the nearer end, and the share of draws that are to be
    at the ends 0 and 1 instead, so that both together have this mean and variance.

    The ends alone have mean m and variance m (1 - m), the largest that there is; the mixture with
    share w has the variance (1 - w) v + w m (1 - m). It is what any mean and variance can have.
    """
    reach = min(mean / -shape.points[0], (1.0 - mean) / shape.points[-1])
    piece, widest = reach * reach, mean * (1.0 - mean)
    if variance <= piece or not widest > piece:
        return _clipped(shape, mean, math.sqrt(max(variance, 0.0))), 0.0
    return _clipped(shape, mean, reach), min((variance - piece) / (widest - piece), 1.0)


@dataclass(frozen=True, slots=True)
class Body:
    """A table of quantiles, in the unit of the tensor, and how often the ends are drawn instead.

    A share `end_share` of the numbers is to be `low` or `high`, `high` with probability `high_share`.
    """

    edges: Array
    low: float
    high: float
    end_share: float = 0.0
    high_share: float = 0.0

    def draw(self, generator: np.random.Generator, count: int) -> Array:
        """Return `(count,)` float64 numbers, each between `low` and `high`."""
        at = generator.random(count)
        at *= len(self.edges) - 1
        # The positions for `take`; every cell exists, so that it need not check bounds.
        cell = at.astype(np.intp)
        at -= cell
        edges = self.edges
        at *= (edges[1:] - edges[:-1]).take(cell, mode="clip")
        at += edges.take(cell, mode="clip")
        np.maximum(at, self.low, out=at)
        return np.minimum(at, self.high, out=at)


def recorded_body(spec: TensorSpec, span: ValueRange) -> Body | None:
    """Return the distribution from which a tensor's elements, but its two extremes, are drawn.

    None where the dump does not tell the mean or contradicts itself, where all elements are one
    value, and where some are infinite: the range alone counts then.
    """
    low, high = float(span.low), float(span.high)
    if spec.size < 2 or not low < high or span.minus_infinity or span.plus_infinity:
        return None
    whole = DTYPES[spec.dtype].kind in ("int", "uint")
    if whole and max(abs(low), abs(high)) > _LARGEST_EXACT:
        return None
    # Whole numbers are rounded from the range with half a number more at both ends, so that
    # uniform stays uniform.
    margin = 0.5 if whole else 0.0
    wanted = _moments(spec, low, high, margin)
    if wanted is None:
        return None
    return _fitted(_FIT.pack(*wanted, low - margin, high + margin, spec.size))


def true_share(spec: TensorSpec, span: ValueRange) -> float | None:
    """Return the share of the larger of two neighbouring whole numbers, or of True; None where the
    dump does not tell."""
    mean = _number(spec.mean)
    if mean is None or span.high - span.low != 1:
        return None
    share = mean - span.low
    # Both values occur: half an element is less than the one there must be.
    return share if 0.5 <= share * spec.size <= spec.size - 0.5 else None


def _number(recorded: float | int | bool | None) -> float | None:
    """Return a recorded number where it is finite and a float can hold it."""
    try:
        found = math.nan if recorded is None else float(recorded)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _moments(
    spec: TensorSpec, low: float, high: float, margin: float
) -> tuple[float, float] | None:
    """Return mean and variance of the body on a scale where `low` is 0 and `high` is 1; None where the mean
    is unknown or impossible."""
    mean = _number(spec.mean)
    width = high - low + 2 * margin
    if mean is None or not math.isfinite(width):
        return None
    info = DTYPES[spec.dtype]
    precision, spacing = _WIDE_PRECISION, _WIDE_SPACING
    if info.kind == "float":
        precision = max(precision, machine_epsilon(spec.dtype))
        spacing = max(spacing, smallest_subnormal(spec.dtype))
    n, rest = spec.size, max(spec.size - 2, 1)
    first, last = margin / width, (high - low + margin) / width  # where Min and Max are
    of_all = (mean - low + margin) / width
    slack = (precision * max(abs(low), abs(high)) + spacing) / width * n / rest
    centre = (n * of_all - first - last) / rest if n > 2 else 0.5
    if not -slack <= centre <= 1.0 + slack:
        return None
    centre = min(max(centre, 0.0), 1.0)
    widest = centre * (1.0 - centre)
    broad = widest * _LARGEST_SHARE
    norm = _number(spec.norm)
    if norm is None or n < 3:
        return centre, broad
    mean_square = (norm / width) * (norm / width) / n
    spread = mean_square - (mean / width) * (mean / width) + (margin / width) * (margin / width) / 3
    about = n * spread - (first - of_all) ** 2 - (last - of_all) ** 2
    variance = about / rest - (of_all - centre) ** 2
    return centre, _possible(variance, widest, 2 * precision * mean_square * n / rest)


def _possible(variance: float, widest: float, slack: float) -> float:
    """Return the recorded variance, or a substitute if it is lost to rounding or impossible."""
    broad = widest * _LARGEST_SHARE
    if not -slack <= variance <= widest * (1 + 1e-3) + slack:
        return broad
    # Smaller than the error of the two numbers that it is the difference of: it may be anything
    # up to that, and a constant body would test nothing.
    return min(max(variance, min(slack, broad)), widest)


@functools.lru_cache(_KEPT_FITS)
def _fitted(bits: bytes) -> Body:
    """Return the body of these moments; the mean is the share of the high end between the two."""
    high_share, variance, low, high, size = _FIT.unpack(bits)
    mirrored = high_share > 0.5  # the shapes that are not symmetric begin at the low bound
    mean = 1.0 - high_share if mirrored else high_share
    share = 0.0
    edges: Array | None = np.full(2, mean)
    if variance > 1e-14:
        nearest_is_zero = (high if mirrored else low) == 0.0
        shape = _shape(mean, variance, size, nearest_is_zero=nearest_is_zero)
        edges = fit_clipped(shape, mean, variance)
        if edges is None:
            edges, share = fit_inside(two_sided(0), mean, variance)
    assert edges is not None
    if mirrored:
        edges = 1.0 - edges
    return Body(low * (1.0 - edges) + high * edges, low, high, share, high_share)


def _shape(mean: float, variance: float, size: int, *, nearest_is_zero: bool) -> Shape:
    """Return the shape whose bounds, in standard deviations, are most like the recorded ones."""
    deviation = math.sqrt(variance)
    near, far = mean / deviation, (1.0 - mean) / deviation
    if near < _NEAR_BOUND and far > 2 * _NEAR_BOUND and not nearest_is_zero:
        fitting = [power for power in ONE_SIDED if -one_sided(power).points[0] <= near]
        if fitting:
            return one_sided(fitting[0])
    halved = near < _NEAR_BOUND
    return two_sided(
        min(TWO_SIDED, key=lambda power: abs(math.log(far / _extreme(power, size, halved))))
    )


@functools.lru_cache(_KEPT_EXTREMES)
def _extreme(power: int, size: int, halved: bool) -> float:
    """Return the expected extreme of so many numbers, in standard deviations from the mean; `halved`: of
    numbers whose lower half is put on 0."""
    largest = NormalDist().inv_cdf(1.0 - 0.5 / size) if size < 1e15 else 8.0
    extreme = math.sqrt(3.0) if power == 0 else largest**power / _DEVIATIONS[power]
    if not halved:
        return extreme
    mean, deviation = _upper_half(power)
    return max(extreme - mean, 0.1) / deviation


@functools.cache
def _upper_half(power: int) -> tuple[float, float]:
    """Return mean and standard deviation of a shape whose negative half is put on 0."""
    mean, second = moments(np.maximum(two_sided(power).edges, 0.0))
    return mean, math.sqrt(second - mean * mean)


def floats(
    generator: np.random.Generator,
    span: ValueRange,
    shape: tuple[int, ...],
    dtype: str,
    body: Body | None = None,
) -> Array:
    """Return numbers of a body, or uniform over the range, rounded once, with the extremes of the
    body or the infinities that the range asks for.

    The float64 numbers that are rounded exist only in chunks.
    """
    values = np.empty(shape, DTYPES[dtype].carrier)
    flat = values.reshape(-1)
    for chunk in _chunks(flat):
        drawn = body.draw(generator, len(chunk)) if body else _uniform(generator, span, len(chunk))
        round_into(chunk, drawn, dtype)
    if body is not None:
        _place_ends(generator, flat, span, dtype, body)
    for wanted, infinity in ((span.minus_infinity, -np.inf), (span.plus_infinity, np.inf)):
        if wanted and len(flat):
            flat[generator.integers(len(flat), size=_share(len(flat)))] = infinity
    return values


def _chunks(flat: Array) -> Iterator[Array]:
    return (flat[piece] for piece in pieces(len(flat), _CHUNK_ELEMENTS))


def _uniform(generator: np.random.Generator, span: ValueRange, count: int) -> Array:
    """Return float64 numbers, uniform over the range; a range of one value costs no draw."""
    if span.low == span.high:
        return np.full(count, span.low, dtype=np.float64)
    share = generator.random(count)
    # low + share * (high - low) would overflow where the range is wider than the largest float.
    return np.clip(span.low * (1.0 - share) + span.high * share, span.low, span.high)


def _place_ends(
    generator: np.random.Generator, flat: Array, span: ValueRange, dtype: str, body: Body | None
) -> None:
    """Put the ends, rounded, where the body wants them, and Min and Max at two random places."""
    low, high = span.low, span.high
    info = DTYPES[dtype]
    if info.kind == "float" and info.carrier != dtype:  # else writing rounds them
        low, high = round_to_dtype(np.array([low, high], np.float64), dtype)
    if body is not None and body.end_share > 0.0:
        for chunk in _chunks(flat):
            chosen = generator.random(len(chunk))
            chunk[chosen < body.end_share] = low
            chunk[chosen < body.end_share * body.high_share] = high
    first, second = generator.integers(len(flat)), generator.integers(len(flat) - 1)
    flat[first] = low
    flat[second + (second >= first)] = high


def _share(count: int) -> int:
    """Return how many elements are made infinite, at least one."""
    return max(1, round(count * INFINITE_SHARE))


def complex_numbers(
    generator: np.random.Generator, span: ValueRange, spec: TensorSpec, body: Body | None
) -> Array:
    """Return complex numbers; statistics with a mean are those of magnitudes, as msprobe takes them
    for complex tensors, and get random directions."""
    data = np.empty(spec.shape, DTYPES[spec.dtype].carrier)
    if body is None or span.low < 0:
        data.real = floats(generator, span, spec.shape, "float64")
        data.imag = floats(generator, span, spec.shape, "float64")
        return data
    magnitude = floats(generator, span, spec.shape, "float64", body)
    # A point of the unit circle from two products, (1 - t**2, 2 t) / (1 + t**2) for one quarter, in
    # a random quarter. No sine, whose last bit differs between mathematical libraries.
    flat, sizes = data.reshape(-1), magnitude.reshape(-1)
    for chunk, size in zip(_chunks(flat), _chunks(sizes), strict=True):
        turn = 4.0 * generator.random(len(chunk))
        quarter = turn.astype(np.int8)
        t = 2.0 * (turn - quarter) - 1.0
        cosine, sine = (1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t)
        sign = np.where(quarter < 2, size, -size)
        chunk.real = sign * np.where(quarter % 2 == 0, cosine, sine)
        chunk.imag = sign * np.where(quarter % 2 == 0, sine, cosine)
    return data


def integers(generator: np.random.Generator, span: ValueRange, spec: TensorSpec) -> Array:
    """Return whole numbers of the closed range, or booleans."""
    carrier = DTYPES[spec.dtype].carrier
    low, high = int(span.low), int(span.high)
    if carrier == "bool":
        return generator.integers(low, high, spec.shape, endpoint=True).astype(bool)
    return np.asarray(
        generator.integers(low, high, spec.shape, dtype=np.dtype(carrier).type, endpoint=True)
    )


def whole_numbers(
    generator: np.random.Generator, span: ValueRange, spec: TensorSpec, body: Body
) -> Array:
    """Return whole numbers of a body, with its extremes."""

    def draw(count: int) -> Array:
        return np.clip(np.rint(body.draw(generator, count)), span.low, span.high)

    return _drawn_with_ends(generator, span, spec, draw, body)


def two_values(
    generator: np.random.Generator, span: ValueRange, spec: TensorSpec, share: float
) -> Array:
    """Return the two whole numbers of a range, or booleans, the larger with a recorded share."""

    def draw(count: int) -> Array:
        return np.where(generator.random(count) < share, span.high, span.low)

    return _drawn_with_ends(generator, span, spec, draw)


def _drawn_with_ends(
    generator: np.random.Generator,
    span: ValueRange,
    spec: TensorSpec,
    draw: Callable[[int], Array],
    body: Body | None = None,
) -> Array:
    """Return values that `draw` makes, as many as it is asked for, with the ends of their range."""
    values = np.empty(spec.shape, DTYPES[spec.dtype].carrier)
    flat = values.reshape(-1)
    for chunk in _chunks(flat):
        chunk[:] = draw(len(chunk))
    _place_ends(generator, flat, span, spec.dtype, body)
    return values
