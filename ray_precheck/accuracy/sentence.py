"""The one sentence that says why an output is in error.

Comes in: a `Finding` and the arrays. Goes out: text for the Message. Called by the standards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ray_precheck.accuracy.cause import likely_cause
from ray_precheck.accuracy.comparison import Comparison
from ray_precheck.accuracy.metrics import unravelled
from ray_precheck.numerics.rounding import smallest_normal
from ray_precheck.schema.dtypes import Array

# The basis of a limit where every honest implementation gives the bench's bits.
EXACT = "honest implementations are exact"
# The smallest normal number of float32 and bfloat16, below which a device may flush to zero: only
# equal bits can meet a limit that is no larger.
_FLUSHED = smallest_normal("float32")
# Beyond this a ratio says no more than that it is large.
_LARGEST_RATIO = 1e6


@dataclass(frozen=True, slots=True)
class Finding:
    """A metric that is beyond its limit.

    `metric` is its name in words, `relation` the relation that `value` must have to `limit` ("at
    most", "below", "at least"), and `basis` the origin of the limit in words. `wrong` of `total`
    elements are beyond the limit, 0 of 0 for a metric that elements do not have; the worst element is
    at the flat position `at`, -1 for none.
    """

    metric: str
    value: float
    limit: float
    relation: str = "at most"
    basis: str = ""
    wrong: int = 0
    total: int = 0
    at: int = -1

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
