"""`auto`: an output is an error if no honest implementation of the call is so far off.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`. Results that
move, compare, count or choose the given numbers must be equal, integers, booleans and floats alike
(`operators.exact`). Other results may have a multiple of the error of the worst honest implementation of
this call. That error is estimated without the CPU's kernel of the tested dtype, which may be as wrong as
the device, or be the code under test: by a composed implementation in float64 that rounds after each
step, and by the bench for inputs that are half a unit in the last place off. The CPU's own kernel counts
after them, if it is not the kernel under test and its own error is within the same limits. The
implementations are computed one by one until the output passes. An error that cannot be estimated is judged
by the standard that is published for the API and the dtype. `HonestBy` says which of these decided.

Errors that are within their limits must also have the shape of rounding (`bias`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import numpy as np

from ray_precheck.accuracy.ambiguous import exact_elements
from ray_precheck.accuracy.metrics import chunks
from ray_precheck.accuracy.standards.base import (
    BENCH_HEADING,
    EXACT,
    HONEST_BY_HEADING,
    ROUNDING,
    Comparison,
    Finding,
    Judgement,
    coarse_implementations,
    conclude,
    has_any,
    kernel_of,
    least_errors_of,
    mismatched,
    moved_benches,
)
from ray_precheck.accuracy.standards.bias import biased
from ray_precheck.accuracy.standards.honest import (
    BY_KERNEL,
    BY_MOVES,
    BY_NORMS,
    BY_ROUNDING,
    BY_STEPS,
    MOST_JUMPS,
    Distance,
    Measure,
    distance,
    estimates,
    rounded_once,
    worse,
)
from ray_precheck.accuracy.standards.published import Binary, Published
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict

# Of few elements so many may be at a step. Of values spread over a binade of bfloat16, 1 in 128 is within
# half a unit of a step; if 1 in 100 is, 3 of 40 elements (of which 5 % are 2) are in one output of 130.
_FEW_AT_STEPS = 2
# The other words of `HonestBy`: equality with the bench, the published standard, and elements whose errors
# honest implementations have, too, so that they do not count.
_EQUALITY, _PUBLISHED, _LEFT_OUT = "equality", "published", "left-out elements"


@dataclass(frozen=True, slots=True)
class Auto:
    """Errors of the device, each with a limit as a multiple of the worst honest implementation's error.

    `rmse`, `max_abs_err` and `max_rel_err` are these factors; None stands for those of the dtype.
    """

    name: ClassVar[str] = "auto"
    columns: ClassVar[tuple[str, ...]] = (
        BENCH_HEADING,
        "HonestRMSE",
        "HonestMaxAbsErr",
        HONEST_BY_HEADING,
        *Published.columns,
    )

    rmse: float | None = None
    max_abs_err: float | None = None
    max_rel_err: float | None = None

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by equality where honest results are equal, else by the size of their errors."""
        if comparison.is_exact:
            return _with_basis(_judge_exact(comparison), _EQUALITY)
        if comparison.device_out.dtype.kind not in "fc":
            return _judge_whole(comparison)
        if not comparison.metrics.mismatch and comparison.metrics.max_abs_err == 0.0:
            return _with_basis(conclude(comparison, [], []), _EQUALITY)
        found = self._judge_elements(comparison)
        finding = biased(comparison) if found.verdict is Verdict.PASS else None
        return found if finding is None else conclude(comparison, [finding], found.columns)

    @property
    def measure(self) -> Measure:
        """How many times the error of honest results an error may be."""
        return Measure(self.rmse, self.max_abs_err, self.max_rel_err)

    def settled(
        self, comparison: Comparison, own: Distance, honest: Distance, scale: Distance
    ) -> Judgement | None:
        """Return the judgement of a result, some elements of which are in `comparison`, if the errors of all
        its elements, `own`, are those of rounding once, `honest`; None where more is to be asked.

        `scale` are the root mean square and the largest magnitude of the bench.
        """
        if comparison.metrics.max_abs_err == 0.0:
            return _with_basis(conclude(comparison, [], []), _EQUALITY)
        limits = self.measure.limits(comparison, honest, scale)
        is_doubtful = comparison.is_exact or not limits.admits(own) or biased(comparison)
        return None if is_doubtful else conclude(comparison, [], _cells(honest, BY_ROUNDING))

    def limits(self, comparison: Comparison) -> Iterator[Distance]:
        """Yield the limits of the errors of an output, each wider than the one before: those of rounding
        once, those by the norms of a product, then by one implementation after the other."""
        measure, honest = self.measure, rounded_once(comparison)
        yield measure.limits(comparison, honest)
        coarse, _ = coarse_implementations(comparison.implementations())
        if has_any(coarse):
            comparison = replace(comparison, implementations=lambda: coarse, is_coarse=True)
        least = least_errors_of(comparison.implementations(), comparison.bench_out)
        if least is not None:
            yield measure.limits(comparison, worse(honest, Distance(*least)))
        for estimate in estimates(comparison):
            honest = worse(honest, estimate)
            yield measure.limits(comparison, honest)

    def _judge_elements(self, comparison: Comparison) -> Judgement:
        """Judge by the size of the errors of elements."""
        measure, honest = self.measure, rounded_once(comparison)
        own = measure.own_distance(comparison, honest)
        if measure.passes(comparison, own, honest, measure.limits(comparison, honest)):
            return conclude(comparison, [], _cells(honest, honest.by))
        coarse, formats = coarse_implementations(comparison.implementations())
        if not has_any(coarse):
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
    bench, dtype = comparison.bench_out, comparison.dtype
    least = least_errors_of(comparison.implementations(), bench)
    if least is not None:
        at_least = worse(honest, Distance(*least))
        if measure.passes(comparison, own, at_least, measure.limits(comparison, at_least)):
            return conclude(comparison, [], _cells(at_least, BY_NORMS))
    if not has_any(comparison.implementations()):
        return _with_basis(Published().judge(comparison), _PUBLISHED)
    for estimate in estimates(comparison):
        honest = worse(honest, estimate)
        if measure.passes(comparison, own, honest, measure.limits(comparison, honest)):
            return conclude(comparison, [], _cells(honest, estimate.by))
    kernel = kernel_of(comparison.implementations())
    if kernel is None:
        return _concluded(measure, comparison, honest)
    note = measure.refutation(comparison, kernel, honest)
    if note:
        return _concluded(measure, comparison, honest, note=note)
    honest = worse(honest, replace(distance(kernel, bench, dtype), by=BY_KERNEL))
    return _concluded(measure, comparison, honest, [kernel])


def coarse_note(comparison: Comparison) -> str:
    """Return the words that follow the Message of another standard's error: whether operands of fewer bits
    explain it. "" for a call without any."""
    coarse, formats = coarse_implementations(comparison.implementations())
    if not has_any(coarse):
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
        # Where every element counts, the limits are wider by the kernel's error.
        by = BY_KERNEL if kernels and own.count == honest.count else _LEFT_OUT
        return conclude(comparison, [], _cells(honest, by))
    found = mismatched(comparison) if own.strange else None
    if found is None:
        findings = error_findings(comparison, own, honest, limits)
        found = conclude(comparison, findings, _cells(honest, honest.by))
    else:
        found = _with_basis(found, _EQUALITY)
    return replace(found, message="; ".join(filter(None, [found.message, note])))


def _judge_exact(comparison: Comparison) -> Judgement:
    """Judge an exact function of the given inputs: every element is the bench, rounded once."""
    if comparison.device_out.dtype.kind not in "fc":
        return Binary().judge(comparison)
    if not comparison.metrics.mismatch and comparison.metrics.max_abs_err == 0.0:
        return conclude(comparison, [], [])
    wrong = ~exact_elements(comparison.device_out, comparison.bench_out, comparison.dtype)
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
    found = _with_basis(Binary().judge(comparison), _EQUALITY)
    if comparison.metrics.max_abs_err == 0.0 and not comparison.metrics.mismatch:
        return found
    differs = comparison.device_out != comparison.bench_out
    if np.count_nonzero(differs) > max(_FEW_AT_STEPS, MOST_JUMPS * differs.size):
        return found
    implementations = comparison.implementations()
    by_steps = ((each, BY_STEPS) for each in implementations)
    by_moves = ((each, BY_MOVES) for each in moved_benches(implementations))
    for implementation, by in chain(by_steps, by_moves):
        differs &= comparison.device_out != implementation
        if not differs.any():
            return _with_basis(conclude(comparison, [], []), by)
    return found


def error_findings(
    comparison: Comparison, own: Distance, honest: Distance, limits: Distance
) -> list[Finding]:
    """Return which errors are beyond their limits."""
    beyond = sum(
        int(np.count_nonzero(chunk.abs_err > limits.largest))
        for chunk in chunks(comparison.device_out, comparison.bench_out, comparison.dtype)
    )
    total = comparison.device_out.size
    of_elements = beyond, total, own.at, total - own.count
    found = [
        Finding(metric, value, limit, "at most", _basis(theirs), *of_elements)
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


def _cells(honest: Distance, by: str) -> list[tuple[str, float | str]]:
    errors = [("HonestRMSE", honest.rmse), ("HonestMaxAbsErr", honest.largest)]
    return [*errors, (HONEST_BY_HEADING, by)]


def _with_basis(found: Judgement, by: str) -> Judgement:
    """Return a judgement without honest errors with the word for what decided it."""
    return replace(found, columns=(*found.columns, (HONEST_BY_HEADING, by)))
