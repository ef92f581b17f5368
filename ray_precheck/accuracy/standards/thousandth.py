"""`thousandth`: nearly all elements within a thousandth of the bench.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`. Source: msprobe,
precision_standard/thousandth_standard.py and compare/algorithm.py, get_rel_err_ratio; limits in
`thresholds`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ray_precheck.accuracy.metrics import Wrong, chunks, relative_errors
from ray_precheck.accuracy.standards.base import Cells, Comparison, Finding, Judgement, conclude
from ray_precheck.accuracy.standards.binary import judge_without_errors
from ray_precheck.accuracy.thresholds import THOUSANDTH_LIMIT, THOUSANDTH_SHARE


@dataclass(frozen=True, slots=True)
class Thousandth:
    """A share of at least `share` of the elements has a relative error below `limit`.

    Integers and booleans must be equal.
    """

    name: ClassVar[str] = "thousandth"
    columns: ClassVar[tuple[str, ...]] = ("ThousandthShare", "DifferentShare")

    limit: float = THOUSANDTH_LIMIT
    share: float = THOUSANDTH_SHARE

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the share of elements near the bench."""
        found = judge_without_errors(comparison)
        if found is not None:
            return found
        # The next number below the limit, because a relative error at the limit counts as wrong.
        beyond = float(np.nextafter(self.limit, 0.0))
        wrong = Wrong()
        for chunk in chunks(comparison.device_out, comparison.bench_out, comparison.dtype):
            relative = relative_errors(chunk, comparison.dtype)
            wrong = wrong.plus(relative, chunk.finite, beyond, chunk.start)
        near = (wrong.total - wrong.count) / wrong.total if wrong.total else 1.0
        findings = []
        if not near >= self.share:
            findings.append(
                Finding(
                    metric=f"share of elements with a relative error below {self.limit:g}",
                    value=near,
                    limit=self.share,
                    relation="at least",
                    basis=f"the largest relative error is {wrong.largest:.4g}",
                    wrong=wrong.count,
                    total=wrong.total,
                    at=wrong.at,
                )
            )
        cells: Cells = (("Standard", self.name), ("ThousandthShare", near))
        return conclude(comparison, findings, cells)
