"""The errors of both sides of a call in units of what rounding explains, and how far the sides are apart.

Comes in: the judged rows of both sides. Goes out: an `OutputContrast` for each output and gradient. Called by
`commands.naive.contrast`. The unit is the error of the worst honest implementation that `auto` has estimated
for this output, root mean square and largest error each by itself; an error counts by the larger of its two
shares.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ray_precheck.accuracy.metrics import is_measurable
from ray_precheck.accuracy.standards.honest import Distance, distance
from ray_precheck.check.judge import Compared
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.values import HostTensor


@dataclass(frozen=True, slots=True)
class OutputContrast:
    """An output, or a gradient, of a call under default and under plain kernels.

    `name` is that of a detail row. `default_error` and `naive_error` are the errors against the bench,
    `difference` the distance of the two, in units of what rounding explains: 0 where honest results are equal
    and so are these, infinite where they are not, or for NaN and infinity at other places; None where it
    could not be measured. `index` is where the worse of the two sides errs most. `message` says why it is an
    error.
    """

    name: str
    dtype: str
    shape: str
    default_error: float | None
    naive_error: float | None
    difference: float | None
    verdict: Verdict
    index: tuple[int, ...] = ()
    message: str = ""


def contrasted(default: Sequence[Compared], naive: Sequence[Compared]) -> list[OutputContrast]:
    """Return a row for each output that either side was judged by, in the order of the default side."""
    others = {row.check.name: row for row in naive}
    mine = {row.check.name: row for row in default}
    names = [*mine, *(name for name in others if name not in mine)]
    return [_contrast(mine.get(name), others.get(name)) for name in names]


def _contrast(default: Compared | None, naive: Compared | None) -> OutputContrast:
    both = [row for row in (default, naive) if row is not None]
    honest = _honest(both)
    difference = None if len(both) < 2 else _difference(both[0].tested, both[1].tested, honest)
    worse = max(
        both, key=lambda row: (row.check.verdict is Verdict.ERROR, _error(row, honest) or 0)
    )
    metrics, errs = worse.check.metrics, bool(_error(worse, honest))
    verdicts = {row.check.verdict for row in both}
    verdict = next(
        (each for each in (Verdict.ERROR, Verdict.PASS) if each in verdicts), Verdict.SKIP
    )
    return OutputContrast(
        worse.check.name,
        worse.check.tested_dtype,
        worse.check.shape,
        None if default is None else _error(default, honest),
        None if naive is None else _error(naive, honest),
        difference,
        verdict,
        metrics.worst_index if metrics is not None and errs else (),
        worse.check.message,
    )


def _honest(rows: Sequence[Compared]) -> Distance:
    """Return the error that rounding explains: the larger of what the standard found for both sides."""
    found = [_estimated(row.check.columns) for row in rows]
    known = [each for each in found if each is not None]
    if known:
        return Distance(max(each.rmse for each in known), max(each.largest for each in known))
    for row in rows:
        if _is_measured(row.tested, row.bench):
            dtype = row.tested.dtype
            return distance(round_to_dtype(row.bench.data, dtype), row.bench.data, dtype)
    return Distance()


def _estimated(columns: Sequence[tuple[str, float | str]]) -> Distance | None:
    cells: Mapping[str, float | str] = dict(columns)
    if "HonestRMSE" not in cells:
        return None
    return Distance(float(cells["HonestRMSE"]), float(cells["HonestMaxAbsErr"]))


def _error(row: Compared, honest: Distance) -> float | None:
    if row.check.verdict is Verdict.SKIP:
        return None
    if not _is_measured(row.tested, row.bench):
        return 0.0 if row.check.verdict is Verdict.PASS else math.inf
    return _units(distance(row.tested.data, row.bench.data, row.tested.dtype), honest)


def _difference(default: object, naive: object, honest: Distance) -> float | None:
    if not isinstance(default, HostTensor) or not isinstance(naive, HostTensor):
        return None
    if (default.dtype, default.shape) != (naive.dtype, naive.shape):
        return math.inf
    if not _is_measured(default, naive):
        return 0.0 if np.array_equal(default.data, naive.data) else math.inf
    return _units(distance(default.data, _wide(naive.data), default.dtype), honest)


def _wide(data: Array) -> Array:
    return data.astype(np.complex128 if data.dtype.kind == "c" else np.float64)


def _is_measured(tested: object, other: object) -> bool:
    """Return whether two leaves are tensors of floats of one shape."""
    if not isinstance(tested, HostTensor) or not isinstance(other, HostTensor):
        return False
    kinds = {tested.data.dtype.kind, other.data.dtype.kind}
    return is_measurable(tested.dtype) and kinds <= {"f", "c"} and tested.shape == other.shape


def _units(error: Distance, honest: Distance) -> float:
    if error.strange:
        return math.inf
    pairs = ((error.rmse, honest.rmse), (error.largest, honest.largest))
    return max(own / theirs if theirs else (math.inf if own else 0.0) for own, theirs in pairs)
