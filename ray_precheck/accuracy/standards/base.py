"""The protocol of a standard: a rule that makes a verdict from one output's comparison.

Comes in: a `Comparison`. Goes out: a `Judgement`. The standards beside this module keep to it;
`accuracy.outputs` calls them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ray_precheck.accuracy.comparison import Comparison
from ray_precheck.accuracy.metrics import is_measurable, measure_errors
from ray_precheck.accuracy.sentence import Finding, cause_note, error_sentence
from ray_precheck.numerics.rounding import spacing
from ray_precheck.schema.result import Metrics, Verdict

# Starts every sentence that explains an error by rounding, so that scripts can tell these apart.
ROUNDING = "rounding:"

Cells = tuple[tuple[str, float | str], ...]

# The columns that every standard but the default adds before its own: the rule that judged the row,
# and the errors against the float64 bench that is not rounded, from which two result sets are
# compared. `MaxRelativeErr`, which every run has, is of all elements and against the rounded bench;
# those here are of the elements above the small value of the published standards.
STANDARD_HEADING = "Standard"
ERROR_HEADINGS = {
    "MaxRelErrAboveSmall": "max_rel_err",
    "MeanRelErrAboveSmall": "mean_rel_err",
    "RMSE": "rmse",
    "SmallValueErr": "small_value_err",
}
# Their names in files of runs before the release of 0.1.0.
OLD_HEADINGS = {"MaxRelErr": "MaxRelErrAboveSmall", "MeanRelErr": "MeanRelErrAboveSmall"}


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
    if standard.name == "msprobe":
        return ()
    cells: list[tuple[str, float | str]] = [(STANDARD_HEADING, standard.name)]
    if is_measurable(comparison.dtype):
        errors = measure_errors(comparison.device_out, comparison.bench_out, comparison.dtype)
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
