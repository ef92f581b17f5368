"""From numbers to a verdict.

Comes in: `Metrics` and the tested dtype. Goes out: a verdict and the sentence that explains it.
Called by `check`.
"""

import numpy as np

from ray_precheck.compare.thresholds import COSINE_LIMIT, MAX_ABS_ERR_LIMIT, ROUNDING_NOISE_ULP
from ray_precheck.schema.dtypes import DTYPES, quantum
from ray_precheck.schema.result import Metrics, Verdict


def judge(metrics: Metrics, tested_dtype: str) -> tuple[Verdict, str]:
    """Judge an output by msprobe's rule: Cosine > 0.99 and MaxAbsErr < 0.0001.

    A cosine of None is not judged (fewer than two elements). The sentence is empty for a pass
    without anything to say; for an error it names the number, its limit, the place, and whether
    the limit lies below the rounding noise of `tested_dtype` at that magnitude.
    """
    notes = []
    if metrics.left_out:
        notes.append(f"{metrics.left_out} NaN or infinite elements agree and are left out")
    if metrics.mismatch:
        return Verdict.ERROR, "; ".join([metrics.mismatch, *notes])
    reasons = []
    # The comparisons are written so that a NaN fails.
    if metrics.cosine is not None and not metrics.cosine > COSINE_LIMIT:
        reasons.append(f"cosine {metrics.cosine:.6g} is not above {COSINE_LIMIT}")
    if not metrics.max_abs_err < MAX_ABS_ERR_LIMIT:
        place = list(metrics.worst_index)
        reasons.append(
            f"MaxAbsErr {metrics.max_abs_err:.6g} at index {place} is not below {MAX_ABS_ERR_LIMIT}"
        )
        reasons.extend(_rounding_note(metrics, tested_dtype))
    verdict = Verdict.ERROR if reasons else Verdict.PASS
    return verdict, "; ".join([*reasons, *notes])


def _rounding_note(metrics: Metrics, tested_dtype: str) -> list[str]:
    """Say so where the limit is finer than the tested dtype can be at this magnitude."""
    if DTYPES[tested_dtype].kind not in ("float", "complex"):
        return []
    here = _ulp(metrics.bench_at_worst, tested_dtype)
    if here > MAX_ABS_ERR_LIMIT:
        return [
            f"one unit in the last place of {tested_dtype} at {metrics.bench_at_worst:.6g} is"
            f" {here:.3g}, already larger than the limit (the error is"
            f" {metrics.max_abs_err / here:.3g} of them)"
        ]
    largest = _ulp(metrics.bench_largest, tested_dtype)
    if metrics.max_abs_err <= ROUNDING_NOISE_ULP * largest:
        return [
            f"the limit is below the rounding noise of {tested_dtype}: the error is"
            f" {metrics.max_abs_err / largest:.3g} units in the last place of the largest output"
            f" {metrics.bench_largest:.6g}"
        ]
    return []


def _ulp(magnitude: float, dtype: str) -> float:
    return float(quantum(np.float64(magnitude), dtype))  # type: ignore[arg-type]
