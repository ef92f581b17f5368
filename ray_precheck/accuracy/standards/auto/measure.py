"""The limits that honest results give, and whether a result keeps to them.

Comes in: a `Comparison`. Goes out: distances and limits. Called by `auto`, for the tested output
and for the CPU's own kernel alike, and by `benchmark`, for that kernel alone. Nothing here runs the
kernel: the error that rounding explains is estimated without it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.accuracy.metrics import rounded_bench
from ray_precheck.accuracy.standards.auto.envelope import Distance, distance, worse
from ray_precheck.accuracy.standards.auto.excuse import excused_elements, steep_result
from ray_precheck.accuracy.standards.base import Comparison, ulp
from ray_precheck.accuracy.thresholds import (
    COARSE_LARGEST,
    COARSE_RMSE,
    COMPUTED_IN,
    Allowed,
    allowed,
)
from ray_precheck.schema.dtypes import Array

_REAL = {"complex64": "float32", "complex128": "float64"}


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
        rule = _allowed(comparison)
        added = rule.share * _scale(comparison).largest if rule.adds else 0.0
        least = max(honest.largest, added + rule.flushed)
        return distance(
            comparison.device_out, comparison.bench_out, comparison.dtype, excused, least
        )

    def limits(self, comparison: Comparison, honest: Distance) -> Distance:
        """Return the limits of the errors; 0 if honest results are exact."""
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
        scale = _scale(comparison)
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
    bench, dtype = comparison.bench_out, comparison.dtype
    return distance(rounded_bench(bench, dtype), bench, dtype)


def explained(comparison: Comparison) -> Distance:
    """Return the worst error that rounding explains, by all estimates."""
    honest = rounded_once(comparison)
    for implementation in estimates(comparison):
        honest = worse(honest, distance(implementation, comparison.bench_out, comparison.dtype))
    return honest


def estimates(comparison: Comparison) -> Iterator[Array]:
    """Yield the results of honest implementations, as far as they can be estimated without their
    kernels: arrays of the tested output's shape, each made when it is asked for."""
    yield from comparison.implementations()
    if comparison.dtype in COMPUTED_IN:
        yield steep_result(comparison, 2.0 * _allowed(comparison).input_units)


def _scale(comparison: Comparison) -> Distance:
    """Return the root mean square and the largest magnitude of the bench, where they count."""
    if not allowed(comparison.type_name, comparison.dtype, comparison.framework).share:
        return Distance()
    bench = rounded_bench(comparison.bench_out, comparison.dtype)
    finite = np.where(np.isfinite(bench), bench, 0)
    return distance(np.zeros_like(finite), finite, comparison.dtype)


def _allowed(comparison: Comparison) -> Allowed:
    rule = allowed(comparison.type_name, comparison.dtype, comparison.framework)
    if comparison.is_coarse:
        return replace(rule, rmse=COARSE_RMSE, largest=COARSE_LARGEST)
    return rule
