"""`absolute`: fixed limits for each element, by the dtype.

Comes in: a `Comparison`. Goes out: a `Judgement`. Called by `accuracy.outputs`. Source: msprobe,
precision_standard/absolute_threshold.py and compare/algorithm.py (check_norm_value,
check_small_value, check_inf_nan_value); limits in `thresholds`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ray_precheck.accuracy.metrics import (
    Chunk,
    Wrong,
    chunks,
    is_measurable,
    limit_of,
    relative_errors,
    rounded_bench,
)
from ray_precheck.accuracy.standards.base import Comparison, Finding, Judgement, conclude
from ray_precheck.accuracy.standards.binary import Binary
from ray_precheck.accuracy.thresholds import (
    ABSOLUTE_RTOL,
    ABSOLUTE_SMALL_VALUE_ATOL,
    RELATIVE_ERR_EPS,
    SMALL_VALUE,
)
from ray_precheck.schema.dtypes import DTYPES, Array

_KINDS = {
    "InfNanErrShare": "share of NaN and infinities that differ",
    "RelErrShare": "share of elements whose relative error is above {rtol:.4g}",
    "AbsErrShare": "share of small values whose absolute error is above {small_value_atol:.4g}",
}


@dataclass(frozen=True, slots=True)
class Absolute:
    """No element may have a relative error above `rtol`, no small value an absolute one above
    `small_value_atol`; NaN and infinities must agree, where the largest finite number counts as
    near infinity. Elements up to `small_value` are small. Integers and booleans must be equal.
    """

    name: ClassVar[str] = "absolute"
    columns: ClassVar[tuple[str, ...]] = (*_KINDS, "DifferentShare")

    rtol: float | None = None
    small_value: float | None = None
    small_value_atol: float | None = None

    def judge(self, comparison: Comparison) -> Judgement:
        """Judge by the shares of elements beyond the limits; each must be 0."""
        if not is_measurable(comparison.dtype):
            return Binary().judge(comparison)
        limits = self.limits(comparison.dtype)
        wrong = _wrong(comparison, limits)
        findings = [
            Finding(
                metric=_KINDS[heading].format_map(limits),
                value=kind.share,
                limit=0.0,
                basis=f"the largest such error is {kind.largest:.4g}",
                wrong=kind.count,
                total=kind.total,
                at=kind.at,
            )
            for heading, kind in wrong.items()
            if kind.count
        ]
        cells = [(heading, kind.share) for heading, kind in wrong.items()]
        return conclude(comparison, findings, [("Standard", self.name), *cells])

    def limits(self, dtype: str) -> dict[str, float]:
        """Return the limits for a dtype, by their names."""
        tables = {
            "rtol": ABSOLUTE_RTOL,
            "small_value": SMALL_VALUE,
            "small_value_atol": ABSOLUTE_SMALL_VALUE_ATOL,
        }
        own = {name: getattr(self, name) for name in tables}
        return {
            name: limit_of(table, dtype) if own[name] is None else own[name]
            for name, table in tables.items()
        }


def _wrong(comparison: Comparison, limits: dict[str, float]) -> dict[str, Wrong]:
    special = normal = small = Wrong()
    for chunk in chunks(comparison.device_out, comparison.bench_out, comparison.dtype):
        is_small = chunk.finite & (chunk.magnitude <= limits["small_value"])
        relative = relative_errors(chunk, comparison.dtype)
        clipped = _clipped_relative_errors(chunk, comparison.dtype)
        rtol = limits["rtol"]
        special = special.plus(clipped, ~chunk.finite, rtol, chunk.start)
        normal = normal.plus(relative, chunk.finite & ~is_small, rtol, chunk.start)
        small = small.plus(chunk.abs_err, is_small, limits["small_value_atol"], chunk.start)
    return dict(zip(_KINDS, (special, normal, small), strict=True))


def _clipped_relative_errors(chunk: Chunk, dtype: str) -> Array:
    """Return the relative errors after both sides are clipped to the finite numbers of the dtype.

    NaN on both sides is no error; NaN on one is NaN.
    """
    if chunk.finite.all():
        return np.zeros(chunk.finite.shape)
    device, bench = (_clipped(side, dtype) for side in (chunk.device, chunk.bench))
    with np.errstate(over="ignore", invalid="ignore"):
        divisor = np.abs(chunk.bench) + limit_of(RELATIVE_ERR_EPS, dtype)
        # An infinite bench is as large as its clipped self.
        divisor = np.where(np.isinf(divisor), DTYPES[dtype].largest, divisor)
        relative = np.abs(device - bench) / divisor
    return np.where(np.isnan(device) & np.isnan(bench), 0.0, relative)


def _clipped(values: Array, dtype: str) -> Array:
    largest = DTYPES[dtype].largest
    rounded = rounded_bench(values, dtype).astype(values.dtype)
    if rounded.dtype.kind != "c":
        return np.asarray(np.clip(rounded, -largest, largest))
    real, imaginary = (np.clip(part, -largest, largest) for part in (rounded.real, rounded.imag))
    return np.asarray(real + 1j * imaginary)
