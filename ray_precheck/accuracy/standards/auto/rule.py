"""`auto`: an output is an error if no honest implementation of the call is so far off.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`. Results that
move, compare, count or choose the given numbers must be equal, integers, booleans and floats alike
(`operators.exact`). Other results may have a multiple of the error of the worst honest implementation of
this call. That error is estimated without the CPU's kernel of the tested dtype, which may be as wrong as
the device, or be the code under test: by a composed implementation in float64 that rounds after each
step, and by the bench for inputs that are half a unit in the last place off. The CPU's own kernel counts
after them, if it is not the kernel under test and its own error is within the same limits. The
implementations are computed one by one until the output passes. An error that cannot be estimated is judged
by the standard that is published for the API and the dtype.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np

from ray_precheck.accuracy.ambiguous import exact_elements
from ray_precheck.accuracy.metrics import chunks
from ray_precheck.accuracy.standards.auto.moments import biased
from ray_precheck.accuracy.standards.base import (
    EXACT,
    ROUNDING,
    Comparison,
    Finding,
    Judgement,
    coarse_implementations,
    conclude,
    kernel_of,
    mismatched,
    moved_benches,
)
from ray_precheck.accuracy.standards.binary import Binary
from ray_precheck.accuracy.standards.honest import (
    MOST_JUMPS,
    Distance,
    Measure,
    distance,
    estimates,
    rounded_once,
    worse,
)
from ray_precheck.accuracy.standards.published import Published
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict

# Of few elements so many may be at a step. Of values spread over a binade of bfloat16, 1 in 128 is within
# half a unit of a step; if 1 in 100 is, 3 of 40 elements (of which 5 % are 2) are in one output of 130.
_FEW_AT_STEPS = 2


@dataclass(frozen=True, slots=True)
class Auto:
    """Errors of the device, each with a limit as a multiple of the worst honest implementation's error.

    `rmse`, `max_abs_err` and `max_rel_err` are these factors; None stands for those of the dtype.
    """

    name: ClassVar[str] = "auto"
    columns: ClassVar[tuple[str, ...]] = ("HonestRMSE", "HonestMaxAbsErr", *Published.columns)

    rmse: float | None = None
    max_abs_err: float | None = None
    max_rel_err: float | None = None

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by equality where honest results are equal, else by the size of their errors."""
        if comparison.is_exact:
            return _judge_exact(comparison)
        if comparison.device_out.dtype.kind not in "fc":
            return _judge_whole(comparison)
        if not comparison.metrics.mismatch and comparison.metrics.max_abs_err == 0.0:
            return conclude(comparison, [], [])
        found = self._judge_elements(comparison)
        finding = biased(comparison) if found.verdict is Verdict.PASS else None
        return found if finding is None else conclude(comparison, [finding], found.columns)

    def _judge_elements(self, comparison: Comparison) -> Judgement:
        """Judge by the size of the errors of elements."""
        measure = Measure(self.rmse, self.max_abs_err, self.max_rel_err)
        honest = rounded_once(comparison)
        own = measure.own_distance(comparison, honest)
        if measure.passes(comparison, own, honest, measure.limits(comparison, honest)):
            return conclude(comparison, [], _cells(honest))
        coarse, formats = coarse_implementations(comparison.implementations())
        if not len(coarse):
            return _by_implementations(measure, comparison, own, honest)
        as_coarse = replace(comparison, implementations=lambda: coarse, is_coarse=True)
        found = _by_implementations(measure, as_coarse, own, honest)
        if found.verdict is not Verdict.ERROR:
            return found
        # Where the operands have few bits, honest results may differ as those of float32 do.
        full = _by_implementations(measure, comparison, own, honest)
        if full.verdict is not Verdict.ERROR:
            return full
        return replace(found, message=f"{found.message}; {formats} does not explain it")


def _by_implementations(
    measure: Measure, comparison: Comparison, own: Distance, honest: Distance
) -> Judgement:
    """Judge by one implementation after the other, until the output passes; `honest` is the error of
    rounding once."""
    if not len(comparison.implementations()):
        return Published().judge(comparison)
    bench, dtype = comparison.bench_out, comparison.dtype
    for implementation in estimates(comparison):
        honest = worse(honest, distance(implementation, bench, dtype))
        if measure.passes(comparison, own, honest, measure.limits(comparison, honest)):
            return conclude(comparison, [], _cells(honest))
    kernel = kernel_of(comparison.implementations())
    if kernel is None:
        return _concluded(measure, comparison, honest)
    note = measure.refutation(comparison, kernel, honest)
    if note:
        return _concluded(measure, comparison, honest, note=note)
    honest = worse(honest, distance(kernel, bench, dtype))
    return _concluded(measure, comparison, honest, [kernel])


def coarse_note(comparison: Comparison) -> str:
    """Return the words that follow the Message of another standard's error: whether operands of fewer bits
    explain it. "" for a call without any."""
    coarse, formats = coarse_implementations(comparison.implementations())
    if not len(coarse):
        return ""
    judged = Auto().judge(comparison)
    honest = dict(judged.columns).get("HonestRMSE", 0.0)
    if judged.verdict is Verdict.ERROR:
        return f"; the program computed with {formats}, which does not explain it"
    return (
        f"; {ROUNDING} the program computed with {formats}, and honest results have an RMSE of"
        f" {honest:.3g} then"
    )


def _concluded(
    measure: Measure,
    comparison: Comparison,
    honest: Distance,
    kernels: Sequence[Array] = (),
    note: str = "",
) -> Judgement:
    """Return the verdict by all honest results, once elements that say nothing are left out."""
    own = measure.excused_distance(comparison, honest, kernels)
    limits = measure.limits(comparison, honest)
    if limits.admits(own):
        return conclude(comparison, [], _cells(honest))
    found = mismatched(comparison) if own.strange else None
    if found is None:
        findings = _findings(comparison, own, honest, limits)
        found = conclude(comparison, findings, _cells(honest))
    return replace(found, message="; ".join(filter(None, [found.message, note])))


def _judge_exact(comparison: Comparison) -> Judgement:
    """Judge an exact function of the given inputs: every element is the bench, rounded once."""
    if comparison.device_out.dtype.kind not in "fc":
        return Binary().judge(comparison)
    if not comparison.metrics.mismatch and comparison.metrics.max_abs_err == 0.0:
        return conclude(comparison, [], [])
    wrong = ~exact_elements(comparison)
    if not wrong.any():
        return conclude(comparison, [], [])
    found = mismatched(comparison)
    if found is not None:
        return found
    at, error = comparison.metrics.worst_index, comparison.metrics.max_abs_err
    place = int(np.ravel_multi_index(at, comparison.device_out.shape)) if at else 0
    count = int(np.count_nonzero(wrong))
    finding = Finding("largest error", error, 0.0, "at most", EXACT, count, wrong.size, place)
    return conclude(comparison, [finding], [])


def _judge_whole(comparison: Comparison) -> Judgement:
    """Judge integers and booleans that are computed before they are decided: equal to the bench, or, in a
    few elements, to its result for moved inputs.

    The moved inputs part equal values in both orders. The CPU's own kernel does not count, because only the
    bench could prove that it is right.
    """
    found = Binary().judge(comparison)
    if comparison.metrics.max_abs_err == 0.0 and not comparison.metrics.mismatch:
        return found
    differs = comparison.device_out != comparison.bench_out
    if np.count_nonzero(differs) > max(_FEW_AT_STEPS, MOST_JUMPS * differs.size):
        return found
    implementations = comparison.implementations()
    for implementation in chain(implementations, moved_benches(implementations)):
        differs &= comparison.device_out != implementation
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
