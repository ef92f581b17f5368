"""Whether the errors of a result have the shape of rounding: no bias, no factor, no dither.

Comes in: a `Comparison` whose elements are all within their limits. Goes out: a `Finding`, or None. Called by
`auto` for half types, where a unit in the last place is coarse: sums over many elements tell what no element
can. An honest kernel computes with more digits and rounds once, so that it returns the bench, rounded once,
but where the bench is next to a tie. What differs is counted in units in the last place: each value e of the
deviation from the rounded bench is a whole number. Where honest implementations round in several steps, the
implementations say how far their sums are off.

Only the rounding of the result is seen. What a device cuts off inside of a float32 accumulator, as tensor
cores do, is far less than a unit of a half type.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ray_precheck.accuracy.metrics import rounded_bench
from ray_precheck.accuracy.standards.base import (
    Comparison,
    Finding,
    moved_benches,
    narrowed_implementations,
)
from ray_precheck.accuracy.thresholds import COMPUTED_IN
from ray_precheck.numerics.rounding import machine_epsilon, spacing
from ray_precheck.operators.accuracy import ALLOWANCE, ROUNDED_ONCE
from ray_precheck.schema.dtypes import DTYPES, Array

# A shift of d units of the mean is held to be found from (1.5 / d)^2 elements on.
_SURE = 1.5
# A normal variable is beyond so many standard deviations, to either side, with a chance of 1e-9; a captured
# step has some 1e4 outputs with ten tests each.
_DEVIATIONS = 6.11
# What is common to few places along an axis (the channels of a batch_norm) shifts them by chance, too, but
# too few of them are there for that quantile: a shift must be larger than so many standard errors.
_FEW, _DEVIATIONS_OF_FEW = 16, 4.0
# Of fewer elements that are off, a test cannot have that chance.
_LEAST = 31
# Kernels of half types compute in float32 by approximations (MindSpore's tanh is 2^-14 off), which are off
# everywhere in one direction: so much of each value is no shift.
_APPROXIMATION = 2.0**-14
# What an operator rounds again, besides its result, may shift it by so many units.
_STEP = 0.75
# Stochastic rounding takes the farther of two neighbours with the chance that is the distance to the nearer
# one, in units. Values less than 1/4 from a neighbour are rounded to the other one by no error of a kernel
# that computes with more digits, so often, while next to none is more than a unit off.
_NEAR, _LEAST_DITHER, _MOST_DITHER, _MOST_BEYOND = 0.25, 2 / 3, 3 / 2, 0.02
# Another honest implementation may be so many times as far off as one that rounds after each step.
_OTHERS = 1.25
# The gradient of a mean or a variance is that of a sum by 1 / n or 2 / n, which kernels round to the dtype,
# as they round its product with the incoming one.
_MEANS = re.compile("loss|entropy|kl_div|var|std")
# Elements that are farther off than a quarter of themselves are what is left where terms cancel: their own
# units say nothing of them. The limits of elements hold for them.
_NEAR_SHARE = 0.25
# Larger outputs are read at so many evenly spaced places.
_MOST_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class _Sample:
    """The elements that are looked at, each `(N,)`: their flat places, the bench, that rounded once, and the
    unit in the last place.

    Equal benches count once: equal products are rounded alike. What the dtype can hold exactly, or only as a
    subnormal number, is left out.
    """

    places: Array
    bench: Array
    once: Array
    unit: Array

    def deviations(self, values: Array) -> Array:
        """Return by how many units a result of the whole shape is off, NaN and infinities by none."""
        with np.errstate(invalid="ignore", over="ignore"):
            off = (values.reshape(-1)[self.places].astype(np.float64) - self.once) / self.unit
        return np.asarray(np.where(np.isfinite(off), off, 0.0))

    @property
    def relative(self) -> Array:
        """The magnitudes in units, `(N,)`."""
        return np.asarray(np.abs(self.bench) / self.unit)

    def of(self, chosen: Array) -> "_Sample":
        """Return the sample of some of the elements."""
        return _Sample(*(each[chosen] for each in (self.places, self.bench, self.once, self.unit)))


@dataclass(frozen=True)
class _Test:
    """A test of deviations: how much of a shape, `(N,)`, is in them, by least squares.

    An error of one unit in all elements is 1; `name` says what a shift is.
    """

    name: str
    shape: Array

    def amount(self, deviations: Array) -> float:
        """Return how much of the shape is in the deviations."""
        return float(np.sum(self.shape * deviations) / np.sum(np.square(self.shape)))

    def sure(self) -> float:
        """Return the amount that is no chance where each element is rounded by itself."""
        return _SURE / math.sqrt(float(np.sum(np.square(self.shape))))

    def scattered(self, deviations: Array, groups: Array) -> float:
        """Return the amount that errors alone have by chance, if those of a group depend on each other.

        `groups`, `(N,)`, are the numbers of the elements' groups.

        The quantile is Student's, by the approximation of Wallace, Bounds on normal approximations to
        Student's and the chi-square distributions (1959); where there are few groups, a lower one.
        """
        error, free = self._error(deviations, groups)
        if free < 1:
            return 0.0
        if free + 1 < _FEW:
            return _DEVIATIONS_OF_FEW * error
        by_wallace = (_DEVIATIONS * (8 * free + 3) / (8 * free + 1)) ** 2 / free
        return error * math.sqrt(free * math.expm1(min(by_wallace, 700.0)))

    def shared(self, deviations: Array, groups: Array) -> float:
        """Return the amount that another implementation may have whose errors are shared by the elements of a
        group as much as in these."""
        error, free = self._error(deviations, groups)
        return _DEVIATIONS_OF_FEW * error if free + 1 < _FEW else 0.0

    def _error(self, deviations: Array, groups: Array) -> tuple[float, int]:
        """Return the standard error of the amount, and its degrees of freedom."""
        rest = deviations - self.amount(deviations) * self.shape
        sums = np.bincount(groups, self.shape * rest)
        counts = np.bincount(groups, np.square(self.shape))
        free = int(np.count_nonzero(counts)) - 1
        if free < 1:
            return 0.0, 0
        squares = float(np.sum(np.square(sums))) * (free + 1) / free
        return math.sqrt(squares) / float(counts.sum()), free


def biased(comparison: Comparison) -> Finding | None:
    """Return what shows that the errors of a result are not those of rounding, None for nothing.

    A false alarm has a chance of 1e-8 for errors that depend on each other in rows, or along an axis, at
    most.
    """
    sample = _sample(comparison)
    if sample is None:
        return None
    near = np.abs(sample.deviations(comparison.device_out)) <= _NEAR_SHARE * sample.relative
    sample = sample.of(near)
    off = sample.deviations(comparison.device_out)
    if np.count_nonzero(off) < _LEAST:
        return None
    found = _dithered(comparison, sample, off)
    if found is not None:
        return found
    for test in _tests(sample):
        found = _seen(comparison, sample, test, off)
        if found is not None:
            return found
    return None


def _sample(comparison: Comparison) -> _Sample | None:
    """Return the elements that tell; None where the dtype is too fine, or too few are off."""
    dtype = comparison.dtype
    info = DTYPES[dtype]
    is_half = info.kind == "float" and info.bits == 16
    once_alone = dtype == "float32" and ROUNDED_ONCE.of(comparison.type_name, comparison.framework)
    if not (is_half or once_alone) or comparison.device_out.size < _LEAST:
        return None
    step = -(-comparison.device_out.size // _MOST_ELEMENTS)
    places = np.arange(0, comparison.device_out.size, step)
    bench = comparison.bench_out.reshape(-1)[places].astype(np.float64)
    once = rounded_bench(bench, dtype).astype(np.float64)
    if np.count_nonzero(comparison.device_out.reshape(-1)[places] != once) < _LEAST:
        return None
    normal = (np.abs(once) >= 2.0**info.min_exponent) & np.isfinite(once) & (once != bench)
    sample = _Sample(places, bench, once, spacing(once, dtype)).of(normal)
    _, first = np.unique(sample.bench, return_index=True)
    return sample.of(np.sort(first)) if len(first) >= _LEAST else None


def _tests(sample: _Sample) -> Iterator[_Test]:
    signs = np.sign(sample.bench)
    yield _Test("all", np.ones(len(signs)))
    yield _Test("away from 0", signs)
    # A factor moves values by more units at the end of a binade than at its beginning.
    relative = sample.bench / sample.unit
    yield _Test("by a factor", relative / math.sqrt(float(np.mean(np.square(relative)))))
    exponents = np.frexp(sample.bench)[1]
    for exponent in np.unique(exponents):
        for sign in (1.0, -1.0):
            inside = (exponents == exponent) & (signs == sign)
            if np.count_nonzero(inside) >= _LEAST:
                bounds = sorted((sign * 2.0 ** (exponent - 1), sign * 2.0**exponent))
                yield _Test(f"those from {bounds[0]:g} to {bounds[1]:g}", inside * 1.0)


def _seen(comparison: Comparison, sample: _Sample, test: _Test, off: Array) -> Finding | None:
    """Return the finding of a test; implementations are computed once it is beyond what chance does."""
    amount = test.amount(off)
    limit = max(
        test.sure(), test.scattered(off, np.arange(len(off))), _slack(comparison, sample, test)
    )
    if abs(amount) <= limit:
        return None
    groupings = list(_dependent(comparison.device_out.shape, sample.places))
    limit = max([limit, *(test.scattered(off, groups) for groups in groupings)])
    if abs(amount) <= limit:
        return None
    explained = _explained(comparison, sample, test, off, groupings)
    if abs(amount) <= limit + explained:
        return None
    name = {
        "all": "mean of all deviations from the rounded bench, in units in the last place,",
        "away from 0": "mean of all deviations away from 0, in units in the last place,",
        "by a factor": "mean of all deviations that grow with the value, in units in the last place,",
    }.get(test.name, f"mean deviation of {test.name}, in units in the last place,")
    basis = f"of {len(off)} different values; honest implementations are {explained:.2g} off"
    return Finding(name, abs(amount), limit + explained, "at most", basis)


def _dependent(shape: tuple[int, ...], places: Array) -> Iterator[Array]:
    """Yield numbers of groups, `(N,)`: the rows, and the places along each axis."""
    if len(shape) < 2:
        return
    yield places // shape[-1]
    yield from np.unravel_index(places, shape)


def _slack(comparison: Comparison, sample: _Sample, test: _Test) -> float:
    """Return the amount that is no shift, whatever the implementations are."""
    if comparison.dtype in COMPUTED_IN:
        return 0.0
    relative = sample.relative
    shares = _APPROXIMATION * relative
    if _steps(comparison):
        shares = shares + _STEP
    if comparison.direction == "backward" and _MEANS.search(comparison.type_name):
        shares = shares + machine_epsilon(comparison.dtype) * relative
    weights = np.abs(test.shape)
    return float(np.sum(weights * shares) / np.sum(np.square(test.shape)))


def _steps(comparison: Comparison) -> bool:
    """Return whether an operator rounds more than its result, in ways that no implementation knows."""
    known = ALLOWANCE.of(comparison.type_name, comparison.framework)
    return known is not None and (known.half_units > 0 or known.input_units > 0)


def _explained(
    comparison: Comparison, sample: _Sample, test: _Test, off: Array, groupings: list[Array]
) -> float:
    """Return the largest amount in honest implementations, or what those of a group share in them may be in
    others: each rounds the mean of a channel otherwise. A result whose errors are smaller than those of an
    implementation was computed with fewer roundings, and shares as much less of its luck."""
    implementations = comparison.implementations()
    largest = 0.0
    for several in (implementations, narrowed_implementations(implementations)):
        for implementation in several:
            its = sample.deviations(implementation)
            found = max(
                [
                    _OTHERS * abs(test.amount(its)),
                    *(test.shared(its, groups) for groups in groupings),
                ]
            )
            if found:
                largest = max(largest, found * min(1.0, _size(off) / _size(its)))
    with np.errstate(invalid="ignore", over="ignore"):
        for moved in moved_benches(implementations):
            its = (moved.reshape(-1)[sample.places] - sample.bench) / sample.unit
            largest = max(largest, abs(test.amount(np.where(np.isfinite(its), its, 0.0))))
    return largest


def _size(deviations: Array) -> float:
    return math.sqrt(float(np.mean(np.square(deviations))))


def _dithered(comparison: Comparison, sample: _Sample, off: Array) -> Finding | None:
    """Return the finding that results are rounded by chance, if no implementation's are.

    What is rounded in two steps looks alike, so that an operator which may do so is left out.
    """
    if _steps(comparison):
        return None
    found = _dither(sample, off)
    if not _LEAST_DITHER <= found <= _MOST_DITHER:
        return None
    implementations = comparison.implementations()
    for implementation in (
        each
        for several in (implementations, narrowed_implementations(implementations))
        for each in several
    ):
        if _dither(sample, sample.deviations(implementation)) > found / 2:
            return None
    name = "share of elements that are rounded to the farther neighbour, over that of stochastic rounding,"
    return Finding(name, found, _LEAST_DITHER, "below", "rounding to the nearest has none")


def _dither(sample: _Sample, off: Array) -> float:
    """Return how many elements that are near a neighbour are rounded to the other one, over how many
    stochastic rounding takes there; infinity where elements are farther off, or few are expected."""
    near = np.abs(sample.bench - sample.once) / sample.unit
    far = np.abs(off + (sample.once - sample.bench) / sample.unit)
    beyond = np.count_nonzero(far > 1.0)
    chosen = near < _NEAR
    expected = float(np.sum(near, where=chosen))
    found = np.count_nonzero(chosen & (far > 0.5) & (far <= 1.0))
    if expected < _LEAST or beyond > _MOST_BEYOND * found:
        return math.inf
    return found / expected
