"""The rule of msprobe's precheck, the default: Cosine > 0.99 and MaxAbsErr < 0.0001.

Comes in: a `Comparison`, of which the metrics count. Goes out: a `Judgement`. Called by
`accuracy.outputs`.
"""

from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.accuracy.standards.base import ROUNDING, Comparison, Judgement, ulp
from ray_precheck.accuracy.thresholds import COSINE_LIMIT, MAX_ABS_ERR_LIMIT, ROUNDING_NOISE_ULP
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.result import Metrics, Verdict


@dataclass(frozen=True, slots=True)
class Msprobe:
    """Cosine above and MaxAbsErr below a limit, the same for every dtype; adds no column."""

    name: ClassVar[str] = "msprobe"
    columns: ClassVar[tuple[str, ...]] = ()

    cosine: float = COSINE_LIMIT
    max_abs_err: float = MAX_ABS_ERR_LIMIT

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the metrics, against the bench that is rounded to the tested dtype."""
        return judge(comparison.metrics, comparison.dtype, self)


MSPROBE = Msprobe()


def judge(metrics: Metrics, tested_dtype: str, limits: Msprobe | None = None) -> Judgement:
    """Judge an output by msprobe's rule: Cosine > 0.99 and MaxAbsErr < 0.0001.

    A cosine of None is not judged (fewer than two elements). An error's message names the number,
    its limit and the place, and says so where the limit lies below the rounding noise of
    `tested_dtype` at that magnitude.
    """
    limits = limits or Msprobe()
    notes = []
    if metrics.left_out:
        notes.append(f"{metrics.left_out} NaN or infinite elements agree and are left out")
    if metrics.mismatch:
        return Judgement(Verdict.ERROR, "; ".join([metrics.mismatch, *notes]))
    reasons = []
    # The comparisons are written so that a NaN fails.
    if metrics.cosine is not None and not metrics.cosine > limits.cosine:
        reasons.append(f"cosine {metrics.cosine:.6g} is not above {limits.cosine}")
    if not metrics.max_abs_err < limits.max_abs_err:
        place = list(metrics.worst_index)
        reasons.append(
            f"MaxAbsErr {metrics.max_abs_err:.6g} at index {place} is not below"
            f" {limits.max_abs_err}"
        )
        reasons.extend(_rounding_note(metrics, tested_dtype, limits.max_abs_err))
    verdict = Verdict.ERROR if reasons else Verdict.PASS
    return Judgement(verdict, "; ".join([*reasons, *notes]))


def _rounding_note(metrics: Metrics, tested_dtype: str, limit: float) -> list[str]:
    """Say so where the limit is finer than the tested dtype can be at this magnitude."""
    if DTYPES[tested_dtype].kind not in ("float", "complex"):
        return []
    here = ulp(metrics.bench_at_worst, tested_dtype)
    units = metrics.max_abs_err / here
    if here > limit:
        shown = f"{units:.3g}"
        error = f"{shown} unit" if shown == "1" else f"{shown} units"
        at = f"one unit in the last place of {tested_dtype} at {metrics.bench_at_worst:.6g} is {here:.3g}"
        if units <= ROUNDING_NOISE_ULP:
            return [f"{ROUNDING} {at}, already larger than the limit (the error is {error})"]
        return [f"{at}, already larger than the limit, but the error is {error}"]
    units = metrics.max_abs_err / ulp(metrics.bench_largest, tested_dtype)
    if units <= ROUNDING_NOISE_ULP:
        return [
            f"{ROUNDING} the error is {units:.3g} units in the last place of {tested_dtype} at the"
            f" largest output {metrics.bench_largest:.6g}"
        ]
    return []
