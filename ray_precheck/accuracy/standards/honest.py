"""The limits that honest results give, and whether a result keeps to them.

Comes in: a `Comparison`. Goes out: distances and limits. Called by `auto`, for the tested output
and for the CPU's own kernel alike, and by `benchmark`, for that kernel alone. Nothing here runs the
kernel: the error that rounding explains is estimated without it. Errors are against the float64 bench,
unrounded, over the elements that are finite on both sides; the arrays are read in chunks.

Elements whose error says nothing are excused: ties, kinks, steps, steep places, and overflow at its edge. At
a tie `max` may give the gradient to either side, and `floor` of a quotient may be one less: honest results
differ there by more than rounding. The bench shows such places when its inputs are moved.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.accuracy.metrics import Chunk, chunks, rounded_bench
from ray_precheck.accuracy.standards.base import Comparison, moved_benches, moved_farther, ulp
from ray_precheck.accuracy.thresholds import (
    COARSE_LARGEST,
    COARSE_RMSE,
    COMPUTED_IN,
    Allowed,
    allowed,
)
from ray_precheck.numerics.arrays import l2_norm, same_values, smallest_subnormal
from ray_precheck.schema.dtypes import Array

# Subnormal numbers have few bits, and honest ones few of those right: magnitudes count as at least
# so many of their units.
_SUBNORMAL_UNITS = 64
# How many benches of moved inputs there are: half a unit ahead and back, and next to nothing.
_MOVES = 4
# A step is to one side where the other side moves by less than this share of it.
_ONE_SIDED = 0.1
# Where moves of 2**-6 of the others change the bench by at most this share, its change goes with the
# move: it is steep there, and does not jump.
_GOES_ALONG = 0.1
_STEEPER_THAN_MOST = 16.0
# Jumps are at single elements. Where the inputs move more of them, the function is steep, and its
# error is no accident of rounding.
MOST_JUMPS = 0.05
_REAL = {"complex64": "float32", "complex128": "float64"}
# The words of the column `HonestBy` for the implementations whose errors are known.
BY_ROUNDING, BY_NORMS, BY_STEPS = "rounding once", "operand norms", "rounded steps"
BY_OPERANDS, BY_MOVES, BY_KERNEL = "rounded operands", "moved inputs", "CPU kernel"


@dataclass(frozen=True, slots=True)
class Distance:
    """The error of a result, or the limits of that error.

    `rmse` is the root mean square; `largest` the largest error, at the flat position `at` (-1:
    nowhere); `relative` the largest share of an element's own magnitude, at `relative_at`. `count`
    elements are compared, of which `strange` are NaN or infinite in another way than the bench. `by` are the
    words for the honest implementation that has this RMSE, "" for an error of something else.
    """

    rmse: float = 0.0
    largest: float = 0.0
    relative: float = 0.0
    count: int = 0
    strange: int = 0
    at: int = -1
    relative_at: int = -1
    by: str = ""

    def admits(self, other: "Distance") -> bool:
        """Return whether another distance is within this one; a distance with a NaN is not."""
        return (
            not other.strange
            and other.rmse <= self.rmse
            and other.largest <= self.largest
            and other.relative <= self.relative
        )


@dataclass(frozen=True, slots=True)
class Measure:
    """How many times the error of the worst honest result an error may be.

    `rmse`, `max_abs_err` and `max_rel_err` are these factors; None stands for those of the dtype.
    """

    rmse: float | None = None
    max_abs_err: float | None = None
    max_rel_err: float | None = None

    def passes(
        self, comparison: Comparison, own: Distance, honest: Distance, limits: Distance
    ) -> bool:
        """Return whether the device is within the limits; `own` was measured for nearer implementations."""
        if own.rmse > limits.rmse or own.largest > limits.largest:
            return False
        return limits.admits(own) or limits.admits(self.own_distance(comparison, honest))

    def own_distance(
        self, comparison: Comparison, honest: Distance, excused: Array | None = None
    ) -> Distance:
        """Measure the device; to be far from an element's own magnitude, an error must also be
        larger than all of the honest ones, as those of sums are where much cancels."""
        scale = _scale(comparison).largest if _allowed(comparison).adds else 0.0
        least = self.least(comparison, honest.largest, scale)
        return distance(
            comparison.device_out, comparison.bench_out, comparison.dtype, excused, least
        )

    def least(self, comparison: Comparison, honest: float, scale: float) -> float:
        """Return the largest error that is never far from an element's own magnitude: of honest results whose
        largest error is `honest`, and whose largest magnitude is `scale`."""
        rule = _allowed(comparison)
        return max(honest, (rule.share * scale if rule.adds else 0.0) + rule.flushed)

    def limits(
        self, comparison: Comparison, honest: Distance, scale: Distance | None = None
    ) -> Distance:
        """Return the limits of the errors; 0 if honest results are exact. `scale` are the root mean square
        and the largest magnitude of the bench, where `comparison` does not hold all of it."""
        rule = _allowed(comparison)
        wider = 1.0 + rule.scatter / math.sqrt(honest.count)
        rmse = wider * (self.rmse or rule.rmse) * honest.rmse
        largest = wider * (self.max_abs_err or rule.largest) * honest.largest
        if honest.largest:
            # By luck all implementations may be nearer than one rounding; no implementation can be held to
            # that.
            dtype = _REAL.get(comparison.dtype, comparison.dtype)
            least = rule.units * ulp(comparison.metrics.bench_largest, dtype)
            rmse, largest = max(rmse, least / math.sqrt(honest.count)), max(largest, least)
        scale = scale or _scale(comparison)
        return Distance(
            rmse + rule.share * scale.rmse + rule.flushed,
            largest + rule.share * scale.largest + rule.flushed,
            max(rule.least_relative, (self.max_rel_err or rule.relative) * honest.relative),
        )

    def excused_distance(
        self, comparison: Comparison, honest: Distance, kernels: Sequence[Array] = ()
    ) -> Distance:
        """Measure the device without the elements whose error says nothing; `kernels` are honest
        results besides."""
        rule = _allowed(comparison)
        # The bench's inputs are moved by half a unit.
        steep = 2.0 * rule.input_units * rule.largest if comparison.dtype in COMPUTED_IN else 0.0
        limits = self.limits(comparison, honest)
        excused = excused_elements(comparison, limits, steep, kernels)
        return self.own_distance(comparison, honest, excused)

    def refutation(self, comparison: Comparison, kernel: Array, honest: Distance) -> str:
        """Return the sentence why the CPU's own kernel is no measure, "" if it is one.

        It is judged as a device is, by `honest`, the error that rounding explains without running
        it.
        """
        left_out = "so it does not count"
        if kernel.dtype.kind not in "fc" or kernel.shape != comparison.device_out.shape:
            return f"the CPU's own kernel gives another kind of result, {left_out}"
        as_device = replace(comparison, device_out=kernel)
        own = self.own_distance(as_device, honest)
        limits = self.limits(comparison, honest)
        if self.passes(as_device, own, honest, limits):
            return ""
        own = self.excused_distance(as_device, honest)
        if limits.admits(own):
            return ""
        if own.strange:
            return f"the CPU's own kernel is off: NaN or infinities where none belong, {left_out}"
        return (
            f"the CPU's own kernel is off: its RMSE is {own.rmse:.4g} and its largest error"
            f" {own.largest:.4g}, where rounding explains {limits.rmse:.4g} and"
            f" {limits.largest:.4g}, {left_out}"
        )


def rounded_once(comparison: Comparison) -> Distance:
    """Return the error of the bench rounded once, which is that of a kernel that computes
    exactly."""
    found = distance(comparison.bench_once, comparison.bench_out, comparison.dtype)
    return replace(found, by=BY_ROUNDING)


def explained(comparison: Comparison) -> Distance:
    """Return the worst error that rounding explains, by all estimates."""
    honest = rounded_once(comparison)
    for estimate in estimates(comparison):
        honest = worse(honest, estimate)
    return honest


def estimates(comparison: Comparison) -> Iterator[Distance]:
    """Yield the errors of honest implementations, as far as they can be estimated without their
    kernels; an implementation is computed when its error is asked for."""
    bench, dtype = comparison.bench_out, comparison.dtype
    by = BY_OPERANDS if comparison.is_coarse else BY_STEPS
    for implementation in comparison.implementations():
        yield replace(distance(implementation, bench, dtype), by=by)
    if dtype in COMPUTED_IN:
        steep = steep_result(comparison, 2.0 * _allowed(comparison).input_units)
        yield replace(distance(steep, bench, dtype), by=BY_MOVES)


def _scale(comparison: Comparison) -> Distance:
    """Return the root mean square and the largest magnitude of the bench, where they count."""
    if not allowed(comparison.type_name, comparison.dtype, comparison.framework).share:
        return Distance()
    bench = comparison.bench_once
    finite = np.where(np.isfinite(bench), bench, 0)
    return distance(np.zeros_like(finite), finite, comparison.dtype)


def _allowed(comparison: Comparison) -> Allowed:
    rule = allowed(comparison.type_name, comparison.dtype, comparison.framework)
    if comparison.is_coarse:
        return replace(rule, rmse=COARSE_RMSE, largest=COARSE_LARGEST)
    return rule


def distance(
    out: Array, bench: Array, dtype: str, excused: Array | None = None, least: float = 0.0
) -> Distance:
    """Measure |out - bench|.

    `excused`, `(N,)` bool, are elements that do not count; errors up to `least` do not count for
    the relative one.
    """
    sums = DistanceSums(dtype)
    for chunk in chunks(out, bench, dtype):
        counted = None
        if excused is not None:
            counted = ~excused[chunk.start : chunk.start + len(chunk.abs_err)]
        sums.add(chunk, least, counted)
    return sums.distance()


@dataclass(slots=True)
class DistanceSums:
    """Running values over the chunks of a result of `dtype`, from which its `Distance` is made; `norm` is the
    root of the sum of the squares of its errors."""

    dtype: str
    norm: float = 0.0
    largest: float = 0.0
    relative: float = 0.0
    at: int = -1
    relative_at: int = -1
    count: int = 0
    strange: int = 0

    def add(self, chunk: Chunk, least: float = 0.0, counted: Array | None = None) -> float:
        """Add a chunk, or the elements of it that are `counted`; return its largest error.

        Errors up to `least` do not count for the relative one.
        """
        error = chunk.abs_err if counted is None else np.where(counted, chunk.abs_err, 0.0)
        self.count += len(error) if counted is None else int(np.count_nonzero(counted))
        if not chunk.finite.all():
            odd = is_strange(chunk, self.dtype)
            self.strange += int(np.count_nonzero(odd if counted is None else counted & odd))
        worst = int(np.argmax(error))
        largest = float(error[worst])
        if largest > 0.0:
            self.norm = math.hypot(self.norm, _norm(error, largest))
        if largest > self.largest:
            self.largest, self.at = largest, chunk.start + worst
        if not largest > least:
            return largest
        shares = chunk.magnitude + _SUBNORMAL_UNITS * smallest_subnormal(self.dtype)
        np.divide(error, shares, out=shares)
        if least:
            shares *= error > least
        worst = int(np.argmax(shares))
        if shares[worst] > self.relative:
            self.relative, self.relative_at = float(shares[worst]), chunk.start + worst
        return largest

    def distance(self) -> Distance:
        """Return the distance of all chunks."""
        rmse = self.norm / math.sqrt(max(self.count, 1))
        largest = self.largest, self.relative, self.count, self.strange
        return Distance(rmse, *largest, self.at, self.relative_at)


def _norm(errors: Array, largest: float) -> float:
    """Return the root of the sum of squares, scaled only where squares would over- or underflow."""
    if 1e-140 < largest < 1e140:
        return math.sqrt(float(np.dot(errors, errors)))
    return l2_norm(errors, largest)


def is_strange(chunk: Chunk, dtype: str) -> Array:
    """Return flags of the elements that are NaN or infinite in another way than the bench.

    The bench counts as it is after rounding, so that both may overflow.
    """
    both_nan = np.isnan(chunk.device) & np.isnan(chunk.bench)
    differs = chunk.device != rounded_bench(chunk.bench, dtype)
    return np.asarray(~chunk.finite & ~both_nan & differs)


def worse(one: Distance, other: Distance) -> Distance:
    """Return the larger of each number of two distances; of equal RMSEs it is `by` the first."""
    return Distance(
        max(one.rmse, other.rmse),
        max(one.largest, other.largest),
        max(one.relative, other.relative),
        max(one.count, other.count),
        by=other.by if other.rmse > one.rmse else one.by,
    )


def excused_elements(
    comparison: Comparison, limits: Distance, steep: float, kernels: Sequence[Array] = ()
) -> Array:
    """Return flags, bool `(N,)`, of the elements that do not count; `kernels` are further implementations.

    An element does not count if an implementation is NaN or infinite in the same way; if the bench jumps
    there by more than the largest error of `limits`, and the error is not beyond the jump; or if its error
    is at most `steep` times the change that half a unit in the last place of the inputs causes (0: no
    element is excused so).
    """
    implementations = comparison.implementations()
    out, bench, dtype = comparison.device_out, comparison.bench_out, comparison.dtype
    device = out.reshape(-1)
    same = np.zeros(out.size, bool)
    for implementation in (*implementations, *kernels):
        same |= same_values(device, implementation.reshape(-1))
    # Nothing is known of jumps where the benches are moved farther.
    known = moved_benches(implementations) if moved_farther(implementations) == 1.0 else ()
    moved = [each.reshape(-1) for each in known]
    jump = _jumps(moved, bench.reshape(-1), limits.largest)
    allowed = steep * steepness(comparison) if steep else np.zeros(out.size)
    excused = np.zeros(out.size, bool)
    for chunk in chunks(out, bench, dtype):
        piece = slice(chunk.start, chunk.start + len(chunk.abs_err))
        odd = is_strange(chunk, dtype)
        # At a tie the bench may be half way between both sides.
        at_jump = ~odd & (jump[piece] > 0.0) & (chunk.abs_err <= 2.0 * jump[piece])
        at_steep = ~odd & (chunk.abs_err > 0.0) & (chunk.abs_err <= allowed[piece])
        excused[piece] = (odd & same[piece]) | at_jump | at_steep
    return excused


def steepness(comparison: Comparison) -> Array:
    """Return how far half a unit in the last place of the inputs moves the bench, `(N,)` float64.

    It is 0 where the bench jumps: it must be moved both ways, and less by less. An implementation is
    stable that is exact for inputs which are so far off (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 1.5).
    """
    bench = comparison.bench_out.reshape(-1)
    moved = [each.reshape(-1) for each in moved_benches(comparison.implementations())]
    if len(moved) != _MOVES:
        return np.zeros(bench.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        ahead, back, least_ahead, least_back = (np.nan_to_num(np.abs(m - bench)) for m in moved)
    nearer = np.minimum(ahead, back)
    goes_along = np.maximum(least_ahead, least_back) <= _GOES_ALONG * nearer
    return np.where(goes_along, nearer, 0.0) / moved_farther(comparison.implementations())


def steep_result(comparison: Comparison, halves: float = 1.0) -> Array:
    """Return the bench with the error that inputs make which are so many halves of a unit in the
    last place off.

    It is of the shape of the tested output, float64 or complex128. An element that is far steeper
    than most has no more error than so many times theirs: it is excused by itself, and makes nothing
    of the others.
    """
    steep = steepness(comparison)
    if len(steep):
        steep = np.minimum(steep, _STEEPER_THAN_MOST * np.median(steep))
    return np.asarray(comparison.bench_out + halves * steep.reshape(comparison.bench_out.shape))


def _jumps(moved: Sequence[Array], bench: Array, limit: float) -> Array:
    """Return how far the bench jumps at each element, `(N,)`; 0 where it is steep at most.

    A jump is larger than the limit, and there either for a move of next to nothing or to one side
    alone. None counts where there are many.
    """
    jump = np.zeros(bench.shape)
    if len(moved) != _MOVES:
        return jump
    with np.errstate(invalid="ignore", over="ignore"):
        ahead, back, least_ahead, least_back = (np.nan_to_num(np.abs(m - bench)) for m in moved)
    nearer, farther = np.minimum(ahead, back), np.maximum(ahead, back)
    least = np.maximum(least_ahead, least_back)
    found = (least > limit) | ((farther > limit) & (nearer < _ONE_SIDED * farther))
    if np.count_nonzero(found) > MOST_JUMPS * len(found):
        return jump
    return np.where(found, np.maximum(farther, least), 0.0)
