"""`npu-hooks`: numbers without a verdict, as `torch_npu.hooks.tools.compare` gives them.

Comes in: the rows of a pair of operators. Goes out: their results. Called by `registry`. That tool writes
Cosine, RMSE and MAPE and leaves the verdict to its reader: a row with numbers passes here, and one without
any, because of NaN or other shapes, is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ray_precheck.trace.difference.row import ERROR, ComparisonMode, TensorRow
from ray_precheck.trace.difference.standards.base import odd_sentence


@dataclass(frozen=True, slots=True)
class NpuHooks:
    """Numbers pass; NaN on one side and other shapes do not."""

    name: ClassVar[str] = "npu-hooks"

    def judge(self, rows: Sequence[TensorRow], mode: ComparisonMode) -> None:
        """Judge each row by itself."""
        for row in rows:
            if row.reshaped:
                row.note(ERROR, "the shapes differ")
            elif mode is not ComparisonMode.DIGESTS and (odd := odd_sentence(row)):
                row.note(ERROR, odd)
