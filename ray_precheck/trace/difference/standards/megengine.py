"""`megengine`: no element may be off by more than 1e-3 of its magnitude, or of 1 if that is less.

Comes in: the rows of a pair of operators. Goes out: their results. Called by `registry`. Source: MegEngine
1.13, imperative/python/megengine/tools/compare_binary_iodump.py, `check`: the error of an element is
|t - g| / max(|t|, |g|, 1) in float32, its limit `--max-err` with the default 1e-3; sums that are not finite
and other shapes fail. Its tree of failures does not show those two; here they are errors like others.
Between two runs of one implementation its documentation has -e 1e-7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.numerics.statistics import MAX, MIN
from ray_precheck.trace.difference.row import ERROR, WARNING, ComparisonMode, TensorRow
from ray_precheck.trace.difference.standards.base import counted, index_of, odd_sentence

MAX_ERR = 1e-3


@dataclass(frozen=True, slots=True)
class MegEngine:
    """The largest scaled error is at most `limit`."""

    name: ClassVar[str] = "megengine"

    limit: float = MAX_ERR

    def judge(self, rows: Sequence[TensorRow], mode: ComparisonMode) -> None:
        """Judge each row by itself."""
        for row in rows:
            found = row.elements
            if row.reshaped:
                row.note(ERROR, "the shapes differ")
            elif found is None:
                _judge_without_elements(row, mode, self.limit)
            elif found.finite < found.numbers:
                count = found.numbers - found.finite
                row.note(ERROR, f"{count} of {counted(found)} are NaN or infinite")
            elif found.max_scaled > self.limit:
                at = index_of(row, found.worst)
                row.note(
                    ERROR,
                    f"the largest |t - g| / max(|t|, |g|, 1) is {found.max_scaled:.6g}, above"
                    f" {self.limit:g}; the largest difference is at {at}",
                )


def _judge_without_elements(row: TensorRow, mode: ComparisonMode, limit: float) -> None:
    """Judge by Max and Min: the scaled error of each is at most the largest of all elements."""
    target, golden = row.target, row.golden
    if mode is ComparisonMode.DIGESTS or target is None or golden is None or not target.is_tensor:
        return
    if odd := odd_sentence(row):
        row.note(ERROR, odd)
        return
    for name in (MAX, MIN):
        ours, theirs = target.number(name), golden.number(name)
        if ours is None or theirs is None or ours == theirs:
            continue
        error = abs(ours - theirs) / max(abs(ours), abs(theirs), 1.0)
        if error > limit:
            row.note(WARNING, f"{name} is off by {error:.6g} of its magnitude, above {limit:g}")
            return
