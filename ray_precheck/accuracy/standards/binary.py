"""`binary`: equal to the bench, element by element.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`, and by the other
standards for integers, booleans, and NaN and infinities that differ. Source: msprobe,
precision_standard/binary_consistency.py and compare/algorithm.py, compare_bool_tensor: the share of elements
that differ must be 0.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ray_precheck.accuracy.metrics import Wrong, is_measurable, rounded_bench
from ray_precheck.accuracy.standards.base import (
    Comparison,
    Finding,
    Judgement,
    conclude,
    mismatched,
)
from ray_precheck.numerics.arrays import pieces, same_values


@dataclass(frozen=True, slots=True)
class Binary:
    """Every element equals the bench as the tested dtype holds it; NaN equals NaN, 0 equals -0.

    `different` is the share of elements that may differ.
    """

    name: ClassVar[str] = "binary"
    columns: ClassVar[tuple[str, ...]] = ("DifferentShare",)

    different: float = 0.0

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the share of elements that differ."""
        wrong = _different(comparison)
        findings = []
        if not wrong.share <= self.different:
            findings.append(
                Finding(
                    metric="share of elements that differ",
                    value=wrong.share,
                    limit=self.different,
                    basis="every element must equal the bench" if not self.different else "",
                    wrong=wrong.count,
                    total=wrong.total,
                    at=wrong.at,
                )
            )
        columns = (("Standard", self.name), ("DifferentShare", wrong.share))
        return conclude(comparison, findings, columns)


def judge_without_errors(comparison: Comparison) -> Judgement | None:
    """Judge outputs without measurable errors: integers and booleans by equality; NaN and
    infinities that the bench lacks, or has elsewhere, are an error. None where errors can be
    measured."""
    if not is_measurable(comparison.dtype):
        return Binary().judge(comparison)
    return mismatched(comparison)


def _different(comparison: Comparison) -> Wrong:
    device_flat, bench_flat = comparison.device_out.reshape(-1), comparison.bench_out.reshape(-1)
    wrong = Wrong()
    for piece in pieces(len(device_flat)):
        device, bench = device_flat[piece], rounded_bench(bench_flat[piece], comparison.dtype)
        differs = (~same_values(device, bench)).astype(np.float64)
        wrong = wrong.plus(differs, np.ones(differs.shape, bool), 0.0, piece.start)
    return wrong
