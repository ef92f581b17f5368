"""Why an output is in error by msprobe's rule, although the API may be right: rounding that no
kernel can avoid; and where that is not why, what the numbers say of the cause.

Comes in: a `DirectionCheck` with errors, and a way to run the bench again. Goes out: sentences in
the Message of those rows. Called by the forward and backward checks, only where there is an error;
a verdict is never changed here. The other standards measure rounding and name causes themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ray_precheck.check.job import DirectionCheck, Job
from ray_precheck.check.sides.attempt import OutOfMemory, attempt
from ray_precheck.compare.cause import likely_cause
from ray_precheck.compare.standards.base import ROUNDING, ulp
from ray_precheck.compare.standards.msprobe import MSPROBE
from ray_precheck.compare.thresholds import ROUNDING_NOISE_ULP
from ray_precheck.frameworks.base import Leaf, map_leaves
from ray_precheck.operators.effects import MULTILINEAR
from ray_precheck.schema.dtypes import DTYPES, Array, quantum
from ray_precheck.schema.result import Metrics, OutputCheck, Verdict
from ray_precheck.schema.values import HostCall, HostTensor

Recompute = Callable[[HostCall, list[HostTensor | None]], Sequence[Leaf]]


def explain_errors(job: Job, result: DirectionCheck, recompute: Recompute) -> None:
    """Add to each error that rounding explains the sentence that says how.

    `recompute` gives the bench's leaves, in the order of `result.checks`, for other inputs. To an
    error that rounding does not explain its likely cause is added, where there is one.
    """
    if job.sides.standard.name != MSPROBE.name:
        return
    for position, check in enumerate(result.checks):
        tested = result.pairs[check.name][0]
        if not _is_open(check) or not isinstance(tested, HostTensor):
            continue
        note = _rounding(job, result, recompute, position, tested.dtype) or _cause(result, check)
        if note:
            result.checks[position] = replace(check, message=f"{check.message}; {note}")


def _is_open(check: OutputCheck) -> bool:
    """Return whether an output is in error, by its numbers, without an explanation yet."""
    is_error = check.verdict is Verdict.ERROR and check.metrics is not None
    return is_error and ROUNDING not in check.message


def _rounding(
    job: Job, result: DirectionCheck, recompute: Recompute, position: int, dtype: str
) -> str:
    metrics = result.checks[position].metrics
    if metrics is None or metrics.mismatch:
        return ""
    note = _summed_terms(job, result, recompute, position, dtype) or _conditioning(
        job, result, recompute, position, dtype
    )
    return f"{ROUNDING} {note}" if note else ""


def _cause(result: DirectionCheck, check: OutputCheck) -> str:
    tested, bench = result.pairs[check.name]
    if not isinstance(bench, HostTensor) or tested.shape != bench.shape:
        return ""
    cause = likely_cause(tested.data, bench.data, tested.dtype)
    return f"likely cause: {cause}" if cause else ""


def _summed_terms(
    job: Job, result: DirectionCheck, recompute: Recompute, position: int, dtype: str
) -> str:
    """Explain the error of a sum by the magnitudes of its terms.

    |fl(sum) - sum| <= gamma_n * sum |terms| for any order of summation (Higham, Accuracy and
    Stability of Numerical Algorithms, 2nd ed., eq. 4.4); a few units of the right side are noise.
    """
    record = job.record
    is_linear = MULTILINEAR.of(record.name.type_name, record.framework)
    if not is_linear or DTYPES[dtype].kind != "float":
        return ""
    magnitudes = _again(job, result, recompute, position, _absolute)
    metrics = result.checks[position].metrics
    if magnitudes is None or metrics is None:
        return ""
    total = float(magnitudes[metrics.worst_index])
    units = metrics.max_abs_err / ulp(total, dtype)
    if not units <= ROUNDING_NOISE_ULP:
        return ""
    return (
        f"the magnitudes of the summed terms add up to {total:.6g}, and the error is {units:.3g}"
        f" units in the last place of {dtype} at that size"
    )


def _conditioning(
    job: Job, result: DirectionCheck, recompute: Recompute, position: int, dtype: str
) -> str:
    """Explain the error by what half a unit in the last place of the inputs does to the bench."""
    if DTYPES[dtype].kind != "float":
        return ""
    generator = np.random.Generator(np.random.Philox(key=position))
    moved = _again(job, result, recompute, position, lambda tensor: _nudged(tensor, generator))
    metrics = result.checks[position].metrics
    bench = result.pairs[result.checks[position].name][1]
    if moved is None or metrics is None or not isinstance(bench, HostTensor):
        return ""
    with np.errstate(invalid="ignore"):
        change = float(np.nanmax(np.abs(moved - bench.data), initial=0.0))
    if not _explains(change, metrics):
        return ""
    return (
        "ill-conditioned: moving the inputs by half a unit in the last place moves the bench by"
        f" {change:.3g}"
    )


def _explains(change: float, metrics: Metrics) -> bool:
    return 0 < change < np.inf and metrics.max_abs_err <= ROUNDING_NOISE_ULP * change


def _again(
    job: Job,
    result: DirectionCheck,
    recompute: Recompute,
    position: int,
    change: Callable[[HostTensor], HostTensor],
) -> Array | None:
    """Return one of the bench's outputs for changed inputs, None where that cannot be had."""

    def changed(value: Any) -> Any:
        if isinstance(value, HostTensor) and DTYPES[value.dtype].kind == "float":
            return change(value)
        return value

    call = HostCall(map_leaves(job.call.args, changed), map_leaves(job.call.kwargs, changed))
    cotangents = [changed(cotangent) for cotangent in result.cotangents]
    try:
        leaves, _ = attempt(lambda: recompute(call, cotangents))
    except OutOfMemory:  # The verdict stands without an explanation.
        return None
    bench = result.pairs[result.checks[position].name][1]
    if leaves is None or len(leaves) <= position:
        return None
    leaf = leaves[position]
    fits = (
        isinstance(leaf, HostTensor) and isinstance(bench, HostTensor) and leaf.shape == bench.shape
    )
    return leaf.data if fits else None


def _absolute(tensor: HostTensor) -> HostTensor:
    return HostTensor(tensor.dtype, np.abs(tensor.data))


def _nudged(tensor: HostTensor, generator: np.random.Generator) -> HostTensor:
    """Return a tensor, in float64, half a unit in the last place away in random directions."""
    wide = tensor.data.astype(np.float64)
    signs = generator.choice([-0.5, 0.5], size=wide.shape)
    return HostTensor("float64", np.asarray(wide + signs * quantum(wide, tensor.dtype)))
