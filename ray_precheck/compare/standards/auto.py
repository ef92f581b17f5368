"""`auto`: an error is what no honest implementation makes, by what the tool itself computes.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `compare.outputs`. Integers, booleans
and whatever honest implementations give exactly must be equal, as under `binary`; the error of
everything else may be so many times that of the worst honest implementation of this very call that
the CPU here can run: torch's own operator in the recorded dtypes, and a composed one that rounds
after each step. They are run one by one, and no further than until the output passes. What the CPU
cannot run is judged by the standard that is published for the API and the dtype.
"""

import math
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from ray_precheck.compare.comparison import Comparison
from ray_precheck.compare.errors import chunks, rounded_bench
from ray_precheck.compare.sentence import EXACT, Finding
from ray_precheck.compare.standards.auto_envelope import Distance, distance, worse
from ray_precheck.compare.standards.auto_excuse import excused_elements, moved_benches
from ray_precheck.compare.standards.auto_limits import Allowed, allowed
from ray_precheck.compare.standards.base import Judgement, conclude, mismatched, ulp
from ray_precheck.compare.standards.binary import Binary
from ray_precheck.compare.standards.published import Published
from ray_precheck.schema.dtypes import Array

_REAL = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True, slots=True)
class Auto:
    """Errors of the device, each at most so many times that of the worst honest peer.

    `rmse`, `max_abs_err` and `max_rel_err` are these factors; None stands for those of the dtype.
    """

    name: ClassVar[str] = "auto"
    columns: ClassVar[tuple[str, ...]] = ("HonestRMSE", "HonestMaxAbsErr", *Published.columns)

    rmse: float | None = None
    max_abs_err: float | None = None
    max_rel_err: float | None = None

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by equality where honest results are equal, else by the size of their errors."""
        if comparison.device_out.dtype.kind not in "fc":
            return _judge_whole(comparison)
        if not comparison.metrics.mismatch and comparison.metrics.max_abs_err == 0.0:
            return conclude(comparison, [], [])
        bench, dtype = comparison.bench_out, comparison.dtype
        # The bench, rounded once, is what a kernel gives that is exact inside.
        honest = distance(rounded_bench(bench, dtype), bench, dtype)
        own = self._own_distance(comparison, honest)
        limits = self._limits(comparison, honest)
        peers = comparison.peers()
        seen = 0
        if self._passes(comparison, own, honest, limits):
            return conclude(comparison, [], _cells(honest))
        for peer in peers:
            seen += 1
            honest = worse(honest, distance(peer, bench, dtype))
            limits = self._limits(comparison, honest)
            if self._passes(comparison, own, honest, limits):
                return conclude(comparison, [], _cells(honest))
        if not seen:
            return Published().judge(comparison)
        excused = excused_elements(comparison, peers, limits.largest)
        own = self._own_distance(comparison, honest, excused)
        found = mismatched(comparison) if own.strange else None
        if found is not None:
            return found
        return conclude(comparison, _findings(comparison, own, honest, limits), _cells(honest))

    def _passes(
        self, comparison: Comparison, own: Distance, honest: Distance, limits: Distance
    ) -> bool:
        """Return whether the device is within the limits; `own` was measured for nearer peers."""
        if own.rmse > limits.rmse or own.largest > limits.largest:
            return False
        return limits.admits(own) or limits.admits(self._own_distance(comparison, honest))

    def _own_distance(
        self, comparison: Comparison, honest: Distance, excused: Array | None = None
    ) -> Distance:
        """Measure the device; to be far from an element's own magnitude, an error must also be
        larger than all of the honest ones, as those of sums are where much cancels."""
        rule = self._allowed(comparison)
        added = rule.share * _scale(comparison).largest if rule.adds else 0.0
        least = max(honest.largest, added + rule.flushed)
        return distance(
            comparison.device_out, comparison.bench_out, comparison.dtype, excused, least
        )

    def _allowed(self, comparison: Comparison) -> Allowed:
        return allowed(comparison.type_name, comparison.dtype)

    def _limits(self, comparison: Comparison, honest: Distance) -> Distance:
        """Return what the errors may be; 0 where honest results are exact."""
        rule = self._allowed(comparison)
        wider = 1.0 + rule.scatter / math.sqrt(honest.count)
        rmse = wider * (self.rmse or rule.rmse) * honest.rmse
        largest = wider * (self.max_abs_err or rule.largest) * honest.largest
        if honest.largest:
            # By luck all peers may be nearer than a rounding; nobody can be asked for that.
            dtype = _REAL.get(comparison.dtype, comparison.dtype)
            least = rule.units * ulp(comparison.metrics.bench_largest, dtype)
            rmse, largest = max(rmse, least / math.sqrt(honest.count)), max(largest, least)
        scale = _scale(comparison)
        return Distance(
            rmse + rule.share * scale.rmse + rule.flushed,
            largest + rule.share * scale.largest + rule.flushed,
            max(rule.least_relative, (self.max_rel_err or rule.relative) * honest.relative),
        )


def _scale(comparison: Comparison) -> Distance:
    """Return the root mean square and the largest magnitude of the bench, where they count."""
    if not allowed(comparison.type_name, comparison.dtype).share:
        return Distance()
    bench = rounded_bench(comparison.bench_out, comparison.dtype)
    finite = np.where(np.isfinite(bench), bench, 0)
    return distance(np.zeros_like(finite), finite, comparison.dtype)


def _judge_whole(comparison: Comparison) -> Judgement:
    """Judge integers and booleans: equal to the bench, or to a peer where peers do not agree.

    Of equal values `argmax` and `sort` may take any; the moved inputs part them in both ways.
    """
    found = Binary().judge(comparison)
    if comparison.metrics.max_abs_err == 0.0 and not comparison.metrics.mismatch:
        return found
    differs = comparison.device_out != comparison.bench_out
    peers = comparison.peers()
    for peer in chain(peers, moved_benches(peers)):
        differs &= comparison.device_out != peer
        if not differs.any():
            return conclude(comparison, [], [])
    return found


def _findings(
    comparison: Comparison, own: Distance, honest: Distance, limits: Distance
) -> list[Finding]:
    """Return which errors are beyond their limits."""
    beyond = sum(
        int(np.count_nonzero(chunk.abs_err > limits.largest))
        for chunk in chunks(comparison.device_out, comparison.bench_out, comparison.dtype)
    )
    found = [
        Finding(metric, value, limit, "at most", _basis(theirs), beyond, own.count, own.at)
        for metric, value, theirs, limit in (
            ("largest error", own.largest, honest.largest, limits.largest),
            ("RMSE", own.rmse, honest.rmse, limits.rmse),
        )
        if not value <= limit
    ]
    if found or own.relative <= limits.relative:
        return found
    # Said only where the other two do not say it: beside a bench of 0 it is beyond all bounds.
    basis = _basis(honest.relative)
    return [
        Finding(
            "largest relative error", own.relative, limits.relative, basis=basis, at=own.relative_at
        )
    ]


def _basis(theirs: float) -> str:
    if not theirs:
        return EXACT
    return f"the worst honest implementation's is {theirs:.4g}"


def _cells(honest: Distance) -> list[tuple[str, float | str]]:
    return [("HonestRMSE", honest.rmse), ("HonestMaxAbsErr", honest.largest)]
