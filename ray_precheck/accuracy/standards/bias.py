"""Whether the errors of a result have the shape of rounding: no bias, no factor, no dither.

Comes in: a `Comparison`. Goes out: a `Finding`, or none. Called by `auto` for results whose errors are within
their limits element by element.

That is looked at for half types, where a unit in the last place is coarse: sums over many
elements tell what no element can. An honest kernel computes with more digits and rounds once, so that it
returns the bench, rounded once, but where the bench is next to a tie. What differs is counted in units in the
last place: each value e of the deviation from the rounded bench is a whole number. Where honest
implementations round in several steps, the implementations say how far their sums are off. Only the rounding
of the result is seen. What a device cuts off inside of a float32 accumulator, as tensor cores do, is far less
than a unit of a half type.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ray_precheck.accuracy.standards.base import (
    Comparison,
    Finding,
    moved_benches,
    narrowed_implementations,
)
from ray_precheck.accuracy.thresholds import COMPUTED_IN
from ray_precheck.numerics.arrays import machine_epsilon, smallest_normal, spacing
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
# Sums within so much of what may be chance are passed over unseen, whatever the order of adding them.
_NO_CHANCE = 1.0 - 1e-9
# A table of flags that stays in the core's cache.
_HASH_BITS = 16
# Larger outputs are read at so many evenly spaced places.
MOST_ELEMENTS = 1 << 21


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
            off = values.reshape(-1)[self.places].astype(np.float64)
            off -= self.once
            off /= self.unit
        return off if np.isfinite(off).all() else np.where(np.isfinite(off), off, 0.0)

    @property
    def relative(self) -> Array:
        """The magnitudes in units, `(N,)`."""
        return np.asarray(np.abs(self.bench) / self.unit)

    def of(self, chosen: Array) -> "_Sample":
        """Return the sample of the elements that are flagged."""
        if chosen.all():
            return self
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

    def scattered(self, deviations: Array, groups: Array | None = None) -> float:
        """Return the amount that errors alone have by chance, if those of a group depend on each other.

        `groups`, `(N,)`, are the numbers of the elements' groups; None: each is one by itself.

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

    def _error(self, deviations: Array, groups: Array | None) -> tuple[float, int]:
        """Return the standard error of the amount, and its degrees of freedom."""
        rest = deviations - self.amount(deviations) * self.shape
        sums, counts = self.shape * rest, np.square(self.shape)
        if groups is not None:
            sums, counts = np.bincount(groups, sums), np.bincount(groups, counts)
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
    off = sample.deviations(comparison.device_out)
    near = np.abs(off) <= _NEAR_SHARE * sample.relative
    sample, off = sample.of(near), off[near]
    if np.count_nonzero(off) < _LEAST:
        return None
    found = _dithered(comparison, sample, off)
    if found is not None:
        return found
    for test in _tests(sample, off):
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
    step = -(-comparison.device_out.size // MOST_ELEMENTS)
    bench, once, device = (
        values.reshape(-1)[::step]
        for values in (comparison.bench_out, comparison.bench_once, comparison.device_out)
    )
    if np.count_nonzero(device != once) < _LEAST:
        return None
    normal = np.abs(once)
    normal = (normal >= smallest_normal(dtype)) & (normal < np.inf) & (once != bench)
    told = np.flatnonzero(normal)
    bench = bench[told].astype(np.float64, copy=False)
    first = _first_of_equals(bench)
    if not first.all():
        told, bench = told[first], bench[first]
    if len(told) < _LEAST:
        return None
    once = once[told].astype(np.float64)
    return _Sample(told * step, bench, once, spacing(once, dtype))


def _first_of_equals(values: Array) -> Array:
    """Return flags, `(N,)` bool, of the values that no earlier one is equal to."""
    first = np.ones(len(values), bool)
    ordered = np.sort(values)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return first
    # Sorting with places takes ten times as long, so that only values with the hash of a repeated one are.
    is_twice = np.zeros(1 << _HASH_BITS, bool)
    is_twice[_hashes(twice)] = True
    candidates = np.flatnonzero(is_twice[_hashes(values)])
    first[candidates] = False
    first[candidates[np.unique(values[candidates], return_index=True)[1]]] = True
    return first


def _hashes(values: Array) -> Array:
    """Return numbers below 2**_HASH_BITS, equal for equal float64 values (0 and -0 are not equal here)."""
    words = values.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # 2**64 / the golden ratio
    return np.asarray(words >> np.uint64(64 - _HASH_BITS))


def _tests(sample: _Sample, off: Array) -> Iterator[_Test]:
    """Yield the tests whose amount is larger than what may be no more than chance: next to none for honest
    results, most of whose elements are not off at all."""
    wrong = np.flatnonzero(off)
    bench, errors = sample.bench[wrong], off[wrong]
    most = _NO_CHANCE * _SURE * math.sqrt(len(off))
    if abs(float(np.sum(errors))) > most:
        yield _Test("all", np.ones(len(off)))
    if abs(float(np.sum(np.sign(bench) * errors))) > most:
        yield _Test("away from 0", np.sign(sample.bench))
    # A factor moves values by more units at the end of a binade than at its beginning.
    relative = sample.bench / sample.unit
    scale = math.sqrt(float(np.mean(np.square(relative))))
    if abs(float(np.sum(relative[wrong] * errors))) > most * scale:
        yield _Test("by a factor", relative / scale)
    # The bits of sign and exponent.
    binades = (sample.bench.view(np.uint64) >> np.uint64(52)).astype(np.intp)
    counts = np.bincount(binades)
    sums = np.bincount(binades[wrong], errors, len(counts))
    beyond = (counts >= _LEAST) & (np.abs(sums) > _NO_CHANCE * _SURE * np.sqrt(counts))
    # From the smallest magnitudes up, positive ones first.
    for binade in sorted(np.flatnonzero(beyond), key=lambda each: (each & 0x7FF, each)):
        sign, exponent = (-1.0 if binade >> 11 else 1.0), int(binade & 0x7FF) - 1022
        bounds = sorted((sign * 2.0 ** (exponent - 1), sign * 2.0**exponent))
        yield _Test(f"those from {bounds[0]:g} to {bounds[1]:g}", (binades == binade) * 1.0)


def _seen(comparison: Comparison, sample: _Sample, test: _Test, off: Array) -> Finding | None:
    """Return the finding of a test; implementations are computed once it is beyond what chance does."""
    amount = test.amount(off)
    limit = max(test.sure(), test.scattered(off), _slack(comparison, sample, test))
    if abs(amount) <= limit:
        return None
    groupings = list(_dependent(comparison.device_out.shape, sample.places))
    inside = test.shape != 0.0
    if any(_is_one(groups[inside]) and not _is_one(groups) for groups in groupings):
        # All elements of the binade are in one row or channel, whose mean or scale they share: what is common
        # to them may be one error.
        return None
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


def _is_one(groups: Array) -> bool:
    return bool((groups == groups[0]).all())


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
    for implementation in chain(implementations, narrowed_implementations(implementations)):
        its = sample.deviations(implementation)
        shared = (test.shared(its, groups) for groups in groupings)
        found = max([_OTHERS * abs(test.amount(its)), *shared])
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
    for implementation in chain(implementations, narrowed_implementations(implementations)):
        if _dither(sample, sample.deviations(implementation)) > found / 2:
            return None
    name = "share of elements that are rounded to the farther neighbour, over that of stochastic rounding,"
    return Finding(name, found, _LEAST_DITHER, "below", "rounding to the nearest has none")


def _dither(sample: _Sample, off: Array) -> float:
    """Return how many elements that are near a neighbour are rounded to the other one, over how many
    stochastic rounding takes there; infinity where elements are farther off, or few are expected."""
    # What is not off is rounded to the nearer one.
    wrong = np.flatnonzero(off)
    to_bench = (sample.once[wrong] - sample.bench[wrong]) / sample.unit[wrong]
    far = np.abs(off[wrong] + to_bench)
    found = np.count_nonzero((np.abs(to_bench) < _NEAR) & (far > 0.5) & (far <= 1.0))
    if np.count_nonzero(far > 1.0) > _MOST_BEYOND * found:
        return math.inf
    if not found:
        return 0.0
    near = np.abs(sample.bench - sample.once) / sample.unit
    expected = float(np.sum(near, where=near < _NEAR))
    return found / expected if expected >= _LEAST else math.inf
