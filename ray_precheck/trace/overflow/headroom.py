"""How far the values of tensors are from the limit of their dtype, in each step and over steps.

Comes in: the records of one dump; the headrooms of all steps. Goes out: `Headroom`s, and `Trend`s. Called by
the job and the session of `overflow_check --headroom`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ray_precheck.numerics.statistics import headroom
from ray_precheck.trace.items import OUTPUT
from ray_precheck.trace.overflow.records import (
    dtype_name,
    is_floating,
    largest_held,
    share_of_underflow,
    values_of,
)
from ray_precheck.trace.side import API, CaptureSide

# A tensor is near its limit when its values may grow by this many powers of two: a factor of 8.
NEAR_BITS = 3.0
# Rows are kept of tensors within a factor of 1,024, so that a trend is seen before they are near.
KEPT_BITS = 10.0
# Of a tensor with more subnormal values than this share there is a row, too.
KEPT_SUBNORMAL = 0.1
# A step further away than this many times the observed ones is no forecast.
_FAR = 10


class Headroom(NamedTuple):
    """The headroom of an output in one step, in powers of two: log2(limit / largest absolute value).

    `underflow` is the share of zeros and `subnormal` that of subnormal values, None where not counted.
    """

    key: str
    tensor: str
    dtype: str
    bits: float
    underflow: float | None
    subnormal: float | None


class Trend(NamedTuple):
    """The headroom of a tensor over steps.

    `bits` is that of the last step, `slope` the change in each step of the fitted line (0 for one step),
    `reached` the step in which the line is at the limit, None where it never gets there.
    """

    rank: str
    key: str
    tensor: str
    dtype: str
    steps: int
    bits: float
    slope: float
    reached: float | None


def headrooms(side: CaptureSide) -> Iterator[Headroom]:
    """Yield the outputs of calls that are near the limit of their dtype, or that underflow.

    Infinite values are left out: the largest finite end of the tensor counts.
    """
    for entry in side.entries:
        if entry.kind != API:
            continue
        for item in side.items(entry):
            limit = largest_held(item) if item.part == OUTPUT and is_floating(item) else None
            largest = values_of(item).largest if limit is not None else None
            if limit is None or largest is None:
                continue
            bits = headroom(largest, limit)
            zero, subnormal = share_of_underflow(item) or (None, None)
            underflows = subnormal is not None and subnormal >= KEPT_SUBNORMAL
            if bits is not None and (bits <= KEPT_BITS or underflows):
                yield Headroom(entry.key, item.path, dtype_name(item), bits, zero, subnormal)


def trends(measured: Iterable[tuple[str, int, Headroom]]) -> list[Trend]:
    """Return the tensors that are near their limit in the last step, or get there, the nearest first.

    `measured` are headrooms with their rank and step. The line is that of least squares; a tensor whose
    line falls is forecast to reach the limit where the line is 0, if that is not further away than ten
    times the steps from the first to the last.
    """
    series: dict[tuple[str, str, str, str], dict[int, float]] = defaultdict(dict)
    for rank, step, each in measured:
        name = rank, each.key, each.tensor, each.dtype
        series[name][step] = min(each.bits, series[name].get(step, math.inf))
    found = [_trend(name, by_step) for name, by_step in series.items()]
    kept = [each for each in found if each.bits <= NEAR_BITS or each.reached is not None]
    return sorted(
        kept, key=lambda each: (each.bits > NEAR_BITS, each.reached or math.inf, each.bits)
    )


def _trend(name: tuple[str, str, str, str], by_step: dict[int, float]) -> Trend:
    steps = sorted(by_step)
    last = by_step[steps[-1]]
    if len(steps) < 2:
        return Trend(*name, len(steps), last, 0.0, None)
    slope, start = np.polyfit(steps, [by_step[each] for each in steps], 1)
    reached = -start / slope if slope < 0 else None
    if reached is not None and reached - steps[-1] > _FAR * (steps[-1] - steps[0]):
        reached = None
    return Trend(*name, len(steps), last, float(slope), None if reached is None else float(reached))
