"""`ulp`: errors in units in the last place of the tested dtype.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`. Source: msprobe,
precision_standard/ulp_compare.py and compare/algorithm.py, get_ulp_err; limits in `thresholds`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ray_precheck.accuracy.metrics import Chunk, Wrong, chunks, limit_of
from ray_precheck.accuracy.standards.base import Comparison, Finding, Judgement, conclude
from ray_precheck.accuracy.standards.binary import judge_without_errors
from ray_precheck.accuracy.thresholds import ULP_MEAN_LIMIT, ULP_SHARE_LIMIT, ULP_THRESHOLD
from ray_precheck.numerics.rounding import machine_epsilon, spacing
from ray_precheck.schema.dtypes import Array


@dataclass(frozen=True, slots=True)
class Ulp:
    """The mean error is below `mean` units, or the share of elements that are more than `threshold`
    units off is below `share`; half types and fp8 have no limit for the mean.

    A unit is 2**(e - mantissa bits) for a bench in [2**e, 2**(e+1)), that of 1 for a bench of 0.
    Integers and booleans must be equal.
    """

    name: ClassVar[str] = "ulp"
    columns: ClassVar[tuple[str, ...]] = (
        "MaxUlpErr",
        "MeanUlpErr",
        "UlpErrShare",
        "DifferentShare",
    )

    threshold: float | None = None
    mean: float | None = None
    share: float | None = None

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the mean and the share."""
        found = judge_without_errors(comparison)
        if found is not None:
            return found
        dtype = comparison.dtype
        threshold = limit_of(ULP_THRESHOLD, dtype) if self.threshold is None else self.threshold
        mean_limit = limit_of(ULP_MEAN_LIMIT, dtype) if self.mean is None else self.mean
        share_limit = limit_of(ULP_SHARE_LIMIT, dtype) if self.share is None else self.share
        wrong, largest, mean = _measure(comparison, threshold)
        findings = []
        passes = wrong.share < share_limit or (mean_limit is not None and mean < mean_limit)
        if not passes:
            findings.append(
                Finding(
                    metric=f"share of elements more than {threshold:g} units in the last place off",
                    value=wrong.share,
                    limit=share_limit,
                    relation="below",
                    basis=_mean_note(mean, mean_limit, largest),
                    wrong=wrong.count,
                    total=wrong.total,
                    at=wrong.at,
                )
            )
        cells = [("MaxUlpErr", largest), ("MeanUlpErr", mean), ("UlpErrShare", wrong.share)]
        return conclude(comparison, findings, [("Standard", self.name), *cells])


def _mean_note(mean: float, limit: float | None, largest: float) -> str:
    alternative = "" if limit is None else f"; a mean below {limit:g} would do as well"
    return f"the mean is {mean:.4g} units, the largest error {largest:.4g}{alternative}"


def _measure(comparison: Comparison, threshold: float) -> tuple[Wrong, float, float]:
    """Return the elements beyond the threshold, the largest error and the mean, in units."""
    wrong, largest, total = Wrong(), 0.0, 0.0
    for chunk in chunks(comparison.device_out, comparison.bench_out, comparison.dtype):
        units = ulp_errors(chunk, comparison.dtype)
        wrong = wrong.plus(units, chunk.finite, threshold, chunk.start)
        largest = max(largest, float(units.max()))
        total += float(units.sum())
    return wrong, largest, total / wrong.total if wrong.total else 0.0


def ulp_errors(chunk: Chunk, dtype: str) -> Array:
    """Return the errors in units in the last place of the bench, `(N,)` float64."""
    units = spacing(chunk.magnitude, dtype)
    return np.asarray(chunk.abs_err / np.where(chunk.magnitude > 0, units, machine_epsilon(dtype)))
