"""`assert-close`: what `torch.testing.assert_close` asserts with its defaults.

Comes in: the rows of a pair of operators. Goes out: their results. Called by `registry`. Each element has
|t - g| <= atol + rtol |g| with the tolerances of `tolerances`; dtypes and shapes are the same; NaN is equal
to nothing (equal_nan=False). Without elements Max and Min are held to the same tolerances.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.numerics.statistics import MAX, MIN
from ray_precheck.trace.difference.measuring import dtype_of, tolerances
from ray_precheck.trace.difference.row import ERROR, ComparisonMode, TensorRow
from ray_precheck.trace.difference.standards.base import (
    counted,
    dtypes_differ,
    index_of,
    odd_sentence,
)
from ray_precheck.trace.difference.statistics import statistics_of


@dataclass(frozen=True, slots=True)
class AssertClose:
    """The default tolerances by dtype."""

    name: ClassVar[str] = "assert-close"

    def judge(self, rows: Sequence[TensorRow], mode: ComparisonMode) -> None:
        """Judge each row by itself."""
        for row in rows:
            if not row.tensors:
                _judge_value(row)
            elif row.reshaped:
                row.note(ERROR, "the shapes differ")
            elif dtypes_differ(row):
                row.note(ERROR, "the dtypes differ")
            elif row.elements is not None:
                _judge_elements(row)
            elif mode is not ComparisonMode.DIGESTS:
                _judge_statistics(row)


def _judge_elements(row: TensorRow) -> None:
    found = row.elements
    assert found is not None
    if odd := odd_sentence(row):
        row.note(ERROR, odd)
    nan = min(found.target_nan, found.golden_nan)
    if nan and not found.odd:
        row.note(ERROR, f"{nan} of {counted(found)} are NaN, which is equal to nothing")
    if found.beyond:
        at = index_of(row, found.worst)
        row.note(
            ERROR,
            f"{found.beyond} of {counted(found)} are beyond the tolerances; the largest difference"
            f" is {found.max_abs:.6g} at {at}",
        )


def _judge_statistics(row: TensorRow) -> None:
    target, golden = row.both
    if odd := odd_sentence(row):
        row.note(ERROR, odd)
        return
    rtol, atol = tolerances(dtype_of(target.dtype) or "", dtype_of(golden.dtype) or "")
    for name in (MAX, MIN):
        ours, theirs = target.number(name), golden.number(name)
        if ours is None or theirs is None or not math.isfinite(theirs):
            continue
        if not abs(ours - theirs) <= atol + rtol * abs(theirs):
            row.note(ERROR, f"{name} is {ours:.6g}, in the golden capture {theirs:.6g}")


def _judge_value(row: TensorRow) -> None:
    target, golden = row.both
    ours, theirs = statistics_of(target)[0], statistics_of(golden)[0]
    if isinstance(ours, float) and isinstance(theirs, float):
        rtol, atol = tolerances("float64", "float64")
        if ours == theirs or abs(ours - theirs) <= atol + rtol * abs(theirs):
            return
    if ours != theirs or golden.is_tensor:
        row.note(ERROR, "the values differ")
