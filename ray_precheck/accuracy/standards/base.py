"""The protocol of a standard: a rule that makes a verdict from one output's comparison.

Comes in: a `Comparison`, from `accuracy.outputs`. Goes out: a `Judgement`, of an error with one sentence that
says why. The standards beside this module keep to it. Facts that cost another run of the API are functions,
called only by the standards that need them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ray_precheck.accuracy.cause import likely_cause
from ray_precheck.accuracy.metrics import (
    Errors,
    is_measurable,
    measure_errors,
    rounded_bench,
    unravelled,
)
from ray_precheck.numerics.arrays import smallest_normal, spacing
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Metrics, Verdict

# The basis of a limit where every honest implementation gives the bench's bits.
EXACT = "honest implementations are exact"
# The smallest normal number of float32 and bfloat16, below which a device may flush to zero: only
# equal bits can meet a limit that is no larger.
_FLUSHED = smallest_normal("float32")
# Beyond this a ratio says no more than that it is large.
_LARGEST_RATIO = 1e6
# Starts every sentence that explains an error by rounding, so that scripts can tell these apart.
ROUNDING = "rounding:"
Cells = tuple[tuple[str, float | str], ...]
# The columns that every standard but the default adds before its own: the rule that judged the row,
# and the errors against the float64 bench that is not rounded, from which two result sets are
# compared. `MaxRelativeErr`, which every run has, is of all elements and against the rounded bench;
# those here are of the elements above the small value of the published standards.
STANDARD_HEADING = "Standard"
# How `auto` saw the bench: "exact", whole, or the share of a sample.
BENCH_HEADING, WHOLE = "Bench", "exact"
# By which honest implementation `auto` decided.
HONEST_BY_HEADING = "HonestBy"
ERROR_HEADINGS = {
    "MaxRelErrAboveSmall": "max_rel_err",
    "MeanRelErrAboveSmall": "mean_rel_err",
    "RMSE": "rmse",
    "SmallValueErr": "small_value_err",
}
# Their names in files of runs before the release of 0.1.0.
OLD_HEADINGS = {"MaxRelErr": "MaxRelErrAboveSmall", "MeanRelErr": "MeanRelErrAboveSmall"}


def no_implementations() -> tuple[Array, ...]:
    """Return the implementations of a comparison if the CPU cannot run in the tested dtype: none."""
    return ()


def moved_benches(implementations: Sequence[Array]) -> Sequence[Array]:
    """Return the benches, not rounded, of inputs moved by up to half a unit in the last place, back by as
    much, and by next to nothing, both ways; () where the implementations have none."""
    return getattr(implementations, "moved", ())


def coarse_implementations(implementations: Sequence[Array]) -> tuple[Sequence[Array], str]:
    """Return the results of honest implementations whose float32 products have operands of fewer bits, as
    the tested one's have, and the words for these; (), "" where it has full float32, or makes no product."""
    found = getattr(implementations, "coarse", ())
    return (found, getattr(implementations, "formats", "")) if has_any(found) else ((), "")


def has_any(implementations: Sequence[Array]) -> bool:
    """Return whether there is an implementation; only the first is computed, where the length computes
    all of them."""
    return next(iter(implementations), None) is not None


def least_errors_of(
    implementations: Sequence[Array], bench_out: Array
) -> tuple[float, float] | None:
    """Return the RMSE and the largest error that an honest implementation has at least, where these are known
    before any is computed; else None."""
    known = getattr(implementations, "least_errors", None)
    found: tuple[float, float] | None = None if known is None else known(bench_out)
    return found


def narrowed_implementations(implementations: Sequence[Array]) -> Sequence[Array]:
    """Return the results of implementations of a half type that also round the numbers of a formula to it;
    () where there are none."""
    return getattr(implementations, "narrowed", ())


def moved_farther(implementations: Sequence[Array]) -> float:
    """Return how many times as far from the bench as the moves bring it the benches of moved inputs are.

    It is 1 but for float64, which has no room for what half a unit in the last place of the inputs does.
    """
    return float(getattr(implementations, "moved_farther", 1.0))


def kernel_of(implementations: Sequence[Array]) -> Array | None:
    """Return the values of torch's own operator on the CPU in the recorded dtypes, which may be wrong;
    None if the implementations do not have it, or if it is the kernel under test."""
    return getattr(implementations, "kernel", None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output, or one gradient, beside its bench.

    `type_name` is the API without its number (`Mint.matmul`) in a dump of `framework` ("": unknown),
    `direction` forward, backward, or changed. `dtype` is the canonical dtype of the tested output and
    `device_out` its carrier array; `bench_out` is the bench in float64, complex128 or integers, before
    it is rounded to `dtype`, and `metrics` are the distances to it after rounding. `implementations` are the
    results of honest implementations for the same inputs, carrier arrays of `dtype` computed without a
    kernel of the tested dtype; () if there are none. The sequence is lazy: an implementation is computed
    when it is first read. `kernel_of`, `moved_benches`, `coarse_implementations` and
    `narrowed_implementations` give further results that it may be compared with. `is_coarse`: the
    implementations are those of `coarse_implementations`. `is_exact`: the output moves, compares or chooses
    the given numbers, so that it has one right value. `rounded` is `bench_out` as `dtype` holds it,
    where that has been made.
    """

    type_name: str
    direction: str
    dtype: str
    device_out: Array
    bench_out: Array
    metrics: Metrics
    implementations: Callable[[], Sequence[Array]] = no_implementations
    framework: str = ""
    is_coarse: bool = False
    is_exact: bool = False
    rounded: Array | None = None

    @property
    def bench_once(self) -> Array:
        """The bench rounded once, in the carrier of `dtype`; integers and booleans as they are."""
        return rounded_bench(self.bench_out, self.dtype) if self.rounded is None else self.rounded


@dataclass(frozen=True, slots=True)
class Finding:
    """A metric that is beyond its limit.

    `metric` is its name in words, `relation` the relation that `value` must have to `limit` ("at
    most", "below", "at least"), and `basis` the origin of the limit in words. `wrong` of `total`
    elements are beyond the limit, 0 of 0 for a metric that elements do not have; the worst element is
    at the flat position `at`, -1 for none. `left_out` elements are none of the metric, since the rounding of
    the inputs explains their errors, or an honest implementation is as odd there.
    """

    metric: str
    value: float
    limit: float
    relation: str = "at most"
    basis: str = ""
    wrong: int = 0
    total: int = 0
    at: int = -1
    left_out: int = 0

    @property
    def expects_equality(self) -> bool:
        """Whether only equal bits meet the limit, apart from numbers that may be flushed to
        zero."""
        if self.relation != "at most" or self.limit > _FLUSHED:
            return False
        return self.limit > 0 or self.basis == EXACT

    @property
    def excess(self) -> float:
        """How many times the value is beyond its limit; infinite for a limit of 0 and for NaN."""
        larger, smaller = self.value, self.limit
        if self.relation == "at least":
            larger, smaller = smaller, larger
        if not larger >= 0 or smaller <= 0:
            return float("inf")
        return larger / smaller


def error_sentence(findings: Sequence[Finding], comparison: Comparison) -> str:
    """Return the sentence of an error: the worst finding in full, the others by their numbers,
    and the likely cause where the numbers show one.
    """
    worst = max(findings, key=lambda finding: finding.excess)
    parts = [_in_full(worst, comparison)]
    others = [_in_short(one) for one in findings if one is not worst]
    if others:
        parts.append(f"also {', '.join(others)}")
    return "; ".join([*parts, *cause_note(comparison)])


def cause_note(comparison: Comparison) -> list[str]:
    """Return the likely cause of an error as part of a message, [] where none shows."""
    cause = likely_cause(comparison.device_out, comparison.bench_out, comparison.dtype)
    return [f"likely cause: {cause}"] if cause else []


def _in_short(finding: Finding) -> str:
    text = f"{finding.metric} is {finding.value:.4g}"
    if finding.expects_equality:
        return text
    return f"{text}, must be {finding.relation} {finding.limit:.4g}"


def _in_full(finding: Finding, comparison: Comparison) -> str:
    if finding.expects_equality:
        why = f" ({finding.basis})" if finding.basis else ""
        text = f"must have the same bits as the bench{why}, but the {finding.metric} is {finding.value:.4g}"
        return text + _where(finding, comparison, "off")
    basis = f" ({finding.basis})" if finding.basis else ""
    limit = f"{finding.relation} {finding.limit:.4g}{basis}"
    text = f"{finding.metric} is {finding.value:.4g}, must be {limit}"
    if 1 < finding.excess < float("inf"):
        larger = "the limit" if finding.relation == "at least" else "it"
        text += f"; {larger} is {shown_ratio(finding.excess)} times as large"
    return text + _where(finding, comparison, "beyond it")


def shown_ratio(ratio: float) -> str:
    """Return a ratio as a message names it: `5`, `0.25`, `more than a million`."""
    if _LARGEST_RATIO < ratio < float("inf"):
        return "more than a million"
    return f"{ratio:.4g}"


def _where(finding: Finding, comparison: Comparison, what: str) -> str:
    """Return where the worst element is and how many are `what`, each where the finding has it."""
    text = ""
    if finding.at >= 0:
        text += f"; the worst is {place(finding.at, comparison.device_out, comparison.bench_out)}"
    if finding.total:
        text += f"; {share_of(finding.wrong, finding.total)} {what}"
    if finding.left_out:
        text += f"; left out are {finding.left_out}, whose errors honest implementations have, too"
    return text


def place(flat: int, device_out: Array, bench_out: Array) -> str:
    """Return where an element is and what both sides have there."""
    device, bench = device_out.reshape(-1)[flat], bench_out.reshape(-1)[flat]
    index = list(unravelled(flat, device_out.shape))
    return f"at index {index}: {_shown(device)} where the bench has {_shown(bench)}"


def share_of(count: int, total: int) -> str:
    """Return a count with its share: `3 of 4 elements (75 %) are`."""
    verb = "is" if count == 1 else "are"
    return f"{count} of {total} elements ({count / total:.3g} of all) {verb}"


def _shown(value: object) -> str:
    return f"{float(value):.9g}" if isinstance(value, np.floating) else str(value)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and its explanation, "" for a pass without anything to say.

    `columns` are the cells of the added columns, by their headings; the other cells stay empty.
    """

    verdict: Verdict
    message: str
    columns: Cells = ()


class Standard(Protocol):
    """A rule for verdicts. An instance is frozen, small, picklable and the same in every process.

    Its dataclass fields are its limits, by the words of a user's file; a field of None stands for
    the published limit of the dtype or API at hand.
    """

    @property
    def name(self) -> str:
        """Its name in `--standard` and in the files of users."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of its own that it adds to the details, in their order."""

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge one output. The standard also judges mismatched NaN and infinities, and empty
        outputs."""


def added_headings(standard: Standard) -> tuple[str, ...]:
    """Return all headings that a standard adds to the details; none for the default."""
    if standard.name == "msprobe":
        return ()
    return tuple(dict.fromkeys([STANDARD_HEADING, *ERROR_HEADINGS, *standard.columns]))


def added_cells(standard: Standard, comparison: Comparison, own: Cells) -> Cells:
    """Return the cells of the added columns, with those that the standard has made of its own."""
    errors = None
    if standard.name != "msprobe" and is_measurable(comparison.dtype):
        errors = measure_errors(comparison.device_out, comparison.bench_out, comparison.dtype)
    return error_cells(standard, errors, own)


def error_cells(standard: Standard, errors: Errors | None, own: Cells) -> Cells:
    """Return the cells of the added columns, of errors that have been measured (None: there are none)."""
    if standard.name == "msprobe":
        return ()
    cells: list[tuple[str, float | str]] = [(STANDARD_HEADING, standard.name)]
    if BENCH_HEADING in standard.columns:
        cells.append((BENCH_HEADING, WHOLE))
    if errors is not None:
        cells += [(heading, getattr(errors, field)) for heading, field in ERROR_HEADINGS.items()]
    return tuple(dict([*cells, *own]).items())


def conclude(
    comparison: Comparison, findings: Sequence[Finding], columns: Iterable[tuple[str, float | str]]
) -> Judgement:
    """Return a pass where nothing was found, else an error with its sentence."""
    notes = left_out_note(comparison.metrics)
    if not findings:
        return Judgement(Verdict.PASS, "; ".join(notes), tuple(columns))
    message = "; ".join([error_sentence(findings, comparison), *notes])
    return Judgement(Verdict.ERROR, message, tuple(columns))


def mismatched(comparison: Comparison) -> Judgement | None:
    """Return the error of NaN or infinities that the bench has not, or has elsewhere; else None."""
    metrics = comparison.metrics
    if not metrics.mismatch:
        return None
    notes = [*cause_note(comparison), *left_out_note(metrics)]
    return Judgement(Verdict.ERROR, "; ".join([metrics.mismatch, *notes]))


def left_out_note(metrics: Metrics) -> list[str]:
    """Return the sentence on elements left out because NaN or infinities agree, [] for none."""
    if not metrics.left_out:
        return []
    return [f"{metrics.left_out} NaN or infinite elements agree and are left out"]


def ulp(magnitude: float, dtype: str) -> float:
    """Return one unit in the last place of `dtype` at a magnitude."""
    return float(spacing(np.asarray(magnitude), dtype))
