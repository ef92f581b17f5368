"""How far an output is beyond its limit, as one number that orders the outputs of a run.

Comes in: a row of the details. Goes out: a number. Called by the summary. It is made of the columns
that the files have:

    size = max(sqrt(2 * (1 - Cosine)), e)

is how large the error is beside the output: the first part is the root mean square of the error as a
share of that of the output, where both are of one length, and 1 or more where the output is all wrong;
`e` is the error of the worst element. `e` and the limit depend on the standard of the row:

    msprobe       e = min(MaxAbsErr, MaxRelativeErr); the limit is 1e-4, of the output itself where
                  that is larger than 1. So a gradient of 1e-5 that is all wrong is 10,000 times beyond
                  its limit, and a sum of 5,000 that is 0.0005 off is within it.
    auto          the larger of MaxAbsErr / HonestMaxAbsErr and RMSE / HonestRMSE
    benchmark     the largest of the ratios to the reference
    ulp           MaxUlpErr / the limit for single elements
    thousandth    size / 0.001
    others        size in units in the last place of the tested dtype

with e = min(MaxRelativeErr, 1) for all but msprobe. No number is larger than size in units in the last
place, so that a limit of nearly 0 (equal bits are expected) makes no number of 1e+36. It is infinite
where shapes, NaN or infinities differ. Limits of a user's file are not known here: the published ones
count.
"""

import math
from collections.abc import Callable, Mapping

from ray_precheck.accuracy.standards.base import ROUNDING, STANDARD_HEADING
from ray_precheck.accuracy.standards.published import RATIO_HEADINGS
from ray_precheck.accuracy.thresholds import MAX_ABS_ERR_LIMIT, ULP_THRESHOLD, limit_of
from ray_precheck.descriptors.descriptor import read_dtype
from ray_precheck.numerics.arrays import machine_epsilon
from ray_precheck.schema.dtypes import is_differentiable

Row = Mapping[str, str]
_THOUSANDTH = 1e-3
# A larger number tells a person no more than that the output is all wrong.
_LARGEST_SHOWN = 1e6
_HONEST = {"MaxAbsErr": "HonestMaxAbsErr", "RMSE": "HonestRMSE"}


def beyond_limit(row: Row) -> float:
    """Return how many times an output is beyond its limit; infinite where nothing can be measured.

    `row` are the cells of a detail row by their headings.
    """
    absolute, relative = number_in(row, "MaxAbsErr"), number_in(row, "MaxRelativeErr")
    if not math.isfinite(absolute):
        return math.inf
    if absolute == 0.0:
        return 0.0  # The cosine has its own rounding.
    standard = row.get(STANDARD_HEADING, "").split(" ")[0]
    angle = _angle(row)
    # A row without a relative error is judged by the absolute one.
    worst = relative if math.isfinite(relative) else absolute
    if standard in ("", "msprobe"):
        return max(angle, min(absolute, worst)) / MAX_ABS_ERR_LIMIT
    dtype = read_dtype(row.get("Tested Dtype", "")) or "float32"
    size = max(angle, min(worst, 1.0))
    most = size / _unit(dtype)
    measured = _MEASURES.get(standard, _no_measure)(row, dtype, size)
    return min(most, measured) if math.isfinite(measured) else most


def times_cell(times: float) -> str:
    """Return how many times an output is beyond its limit as a table shows it: `0.0381`, `1746`,
    `>1e6`, `inf`."""
    if _LARGEST_SHOWN < times < math.inf:
        return ">1e6"
    return f"{times:.0f}" if 1000 <= times < math.inf else f"{times:.3g}"


def nearness(max_abs_err: str) -> float:
    """Return the error of an output that passes msprobe's rule, in units of its limit; 0 where the
    cell holds no number."""
    try:
        return float(max_abs_err) / MAX_ABS_ERR_LIMIT
    except ValueError:
        return 0.0


def is_rounding(message: str) -> bool:
    """Return whether the Message says that rounding explains the error, which no kernel can avoid."""
    return ROUNDING in message


def _angle(row: Row) -> float:
    """Return the error that the cosine shows, as a share of the output; 0 where there is no cosine."""
    cosine = number_in(row, "Cosine")
    return math.sqrt(2.0 * max(0.0, 1.0 - cosine)) if math.isfinite(cosine) else 0.0


def _unit(dtype: str) -> float:
    """Return one unit in the last place of 1; 1e-4 where the dtype has no places after the point."""
    return machine_epsilon(dtype) if is_differentiable(dtype) else MAX_ABS_ERR_LIMIT


def _no_measure(row: Row, dtype: str, size: float) -> float:
    return math.inf


def _to_honest(row: Row, dtype: str, size: float) -> float:
    pairs = [(number_in(row, own), number_in(row, honest)) for own, honest in _HONEST.items()]
    ratios = [own / honest for own, honest in pairs if own >= 0 and honest > 0]
    return max(ratios, default=math.inf)


def _to_reference(row: Row, dtype: str, size: float) -> float:
    ratios = [number_in(row, heading) for heading in RATIO_HEADINGS.values()]
    return max((ratio for ratio in ratios if ratio >= 0), default=math.inf)


def _to_units(row: Row, dtype: str, size: float) -> float:
    units = number_in(row, "MaxUlpErr")
    return units / limit_of(ULP_THRESHOLD, dtype) if units >= 0 else math.inf


def _to_thousandth(row: Row, dtype: str, size: float) -> float:
    return size / _THOUSANDTH


_MEASURES: dict[str, Callable[[Row, str, float], float]] = {
    "auto": _to_honest,
    "benchmark": _to_reference,
    "ulp": _to_units,
    "thousandth": _to_thousandth,
}


def number_in(row: Row, heading: str) -> float:
    """Return the number in the cell of a column, NaN where there is none."""
    try:
        return float(row.get(heading, ""))
    except ValueError:
        return math.nan
