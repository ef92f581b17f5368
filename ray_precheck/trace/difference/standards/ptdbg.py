"""`ptdbg`: an error only where the cosine is low and the largest absolute error is large.

Comes in: the rows of a pair of operators. Goes out: their results. Called by `registry`. Source:
ptdbg_ascend, the predecessor of msprobe (gitee.com/ascend/att, debug/accuracy_tools/ptdbg_ascend,
compare/acc_compare.py, `check_accuracy`): "Accuracy Reached or Not" is no where Cosine < 0.99 and MaxAbsErr
> 0.001, or where neither could be computed. Of statistics it warns where two of them differ by more than
half of the larger one (`MAGNITUDE`). Infinities of other signs, and in statistics NaN on one side and other
shapes, are errors here, which ptdbg passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.accuracy.thresholds import COSINE_LIMIT
from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.trace.difference.cells import SHAPE_UNMATCHED, digest_cell, metric_cells
from ray_precheck.trace.difference.row import ERROR, WARNING, ComparisonMode, TensorRow
from ray_precheck.trace.difference.standards.base import odd_sentence

# CompareConst.MAX_ABS_ERR_THRESHOLD and MAGNITUDE; COSINE_LIMIT is CompareConst.COS_THRESHOLD.
MAX_ABS_ERR_LIMIT = 0.001
MAGNITUDE = 0.5


@dataclass(frozen=True, slots=True)
class Ptdbg:
    """Cosine below 0.99 and a largest absolute error above 0.001."""

    name: ClassVar[str] = "ptdbg"

    def judge(self, rows: Sequence[TensorRow], mode: ComparisonMode) -> None:
        """Judge each row by itself."""
        for row in rows:
            if mode is ComparisonMode.DIGESTS:
                if digest_cell(row.target) != digest_cell(row.golden):
                    row.note(ERROR, "the digests differ")
            elif row.elements is not None or mode is ComparisonMode.REAL:
                _judge_metrics(row)
            else:
                _judge_statistics(row)


def _judge_metrics(row: TensorRow) -> None:
    cosine, _, largest, *_ = metric_cells(row)
    if cosine == SHAPE_UNMATCHED:
        row.note(ERROR, "the shapes differ")
    elif odd := odd_sentence(row):
        row.note(ERROR, odd)
    elif row.elements is not None:
        try:
            low = float(cosine) < COSINE_LIMIT
        except ValueError:
            return
        if low and row.elements.max_abs > MAX_ABS_ERR_LIMIT:
            row.note(
                ERROR, f"the cosine is {cosine}, below 0.99, and MaxAbsErr {largest}, above 0.001"
            )


def _judge_statistics(row: TensorRow) -> None:
    target, golden = row.target, row.golden
    if target is None or golden is None or not target.is_tensor or not golden.is_tensor:
        return
    if row.reshaped:
        row.note(ERROR, "the shapes differ")
        return
    if odd := odd_sentence(row):
        row.note(ERROR, odd)
        return
    for name in FIELDS:
        ours, theirs = target.number(name), golden.number(name)
        if ours is None or theirs is None or ours == theirs:
            continue
        if abs(ours - theirs) / (max(abs(ours), abs(theirs)) + 1e-10) > MAGNITUDE:
            row.note(WARNING, f"{name} differs by more than half of the larger one")
            return
