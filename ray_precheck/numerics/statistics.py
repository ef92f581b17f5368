"""The statistics of a tensor in a dump: their names, how they are computed, joined and compared.

Comes in: values on the host, or the statistics of the parts of a tensor. Goes out: a `TensorSummary`, and the
table from which writers, readers and comparisons take names. `capture.pytorch.tensors` computes the same with
torch, on the CPU and on a device (`values`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.numerics.arrays import CACHED_ELEMENTS, pieces
from ray_precheck.schema.dtypes import Array

MAX, MIN, MEAN, NORM = "Max", "Min", "Mean", "Norm"


def _mean_of_parts(means: Sequence[float], sizes: Sequence[int]) -> float:
    sums = [mean * size for mean, size in zip(means, sizes, strict=True)]
    return math.fsum(sums) / sum(sizes)


class Statistic(NamedTuple):
    """A statistic: its field in dump.json, and its name in msprobe's columns of compare_result.

    `joined` makes that of a whole tensor of those of its parts, and of the sizes of these. `distance` says by
    how much a change of the statistic is multiplied to be at most the L2 norm of the change of a tensor of so
    many elements. `is_end`: it is one of the elements, which honest kernels may round otherwise.
    """

    field: str
    heading: str
    joined: Callable[[Sequence[float], Sequence[int]], float]
    distance: Callable[[int], float]
    is_end: bool = False


STATISTICS = (
    Statistic(MAX, "max", lambda ends, _: max(ends), lambda _: 1.0, is_end=True),
    Statistic(MIN, "min", lambda ends, _: min(ends), lambda _: 1.0, is_end=True),
    Statistic(MEAN, "mean", _mean_of_parts, math.sqrt),
    Statistic(NORM, "l2norm", lambda norms, _: math.hypot(*norms), lambda _: 1.0),
)
FIELDS = tuple(each.field for each in STATISTICS)


class TensorSummary(NamedTuple):
    """The statistics of a tensor, in the order of the table; None where the dtype has none."""

    max: float | int | bool | None = None
    min: float | int | bool | None = None
    mean: float | int | bool | None = None
    norm: float | int | bool | None = None

    @classmethod
    def of_single(cls, value: Any) -> "TensorSummary":
        """Return the statistics of a tensor without dimensions: msprobe has its value for each."""
        return cls(*[value] * len(cls._fields))

    def fields(self) -> dict[str, Any]:
        """Return them by their names in a dump; written out, which takes half the time of a loop."""
        top, bottom, mean, norm = self
        return {MAX: top, MIN: bottom, MEAN: mean, NORM: norm}


def summary_of(values: Array | None) -> TensorSummary | None:
    """Return the statistics of values on the host, with sums in float64; None where there are no values.

    As msprobe 26.2 has them for MindSpore (`mindspore_processor.get_stat_info`): bool tensors have any and
    all, 0-d tensors their value four times, complex ones the statistics of the absolute values; integers and
    float64 have all four. There MindSpore computes them, whose CPU lacks the norm.
    """
    if values is None or not values.size:
        return None
    if values.dtype == np.bool_:
        return TensorSummary(bool(values.any()), bool(values.all()))
    total = squares = 0.0
    # The script may have made errors of warnings.
    with np.errstate(all="ignore"):
        if values.dtype.kind == "c":
            values = np.abs(values)
        if not values.ndim:
            return TensorSummary.of_single(values.item())
        flat = np.ascontiguousarray(values).reshape(-1)
        for place in pieces(flat.size, CACHED_ELEMENTS):
            piece = flat[place].astype(np.float64)
            total += float(np.add.reduce(piece))
            squares += float(np.dot(piece, piece))
    mean, norm = total / flat.size, math.sqrt(squares)
    return TensorSummary(float(flat.max()), float(flat.min()), mean, norm)
