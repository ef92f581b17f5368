"""The values that a tensor may take, from the recorded statistics.

Comes in: a `TensorSpec`. Goes out: a `ValueRange`. Called by `inputs.generate`.
"""

import math
from dataclasses import dataclass

from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.values import Bound, TensorSpec

# Where the dump has no Max and Min (summary mode md5, meta and fp8 tensors).
UNKNOWN_FLOAT = (-1.0, 1.0)
UNKNOWN_INTEGER = (0, 1)
# The share of infinite elements where Max or Min is infinite; at least one element is.
INFINITE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Values to draw: uniform over [low, high], and infinities where the dump saw them.

    For booleans 0 and 1 stand for False and True. `note` names the statistics that the dump lacks.
    """

    low: float | int
    high: float | int
    minus_infinity: bool = False
    plus_infinity: bool = False
    note: str = ""


def value_range(spec: TensorSpec) -> ValueRange:
    """Return the range to draw a tensor from.

    Floats: [Min, Max] as recorded. An infinite Min or Max stands for infinite elements beside
    finite ones; the finite ones reach to the recorded finite extreme, else one unit from the other
    bound, or over [-1, 1]. NaN says nothing about the range: the finite extremes count, and without
    them it is unknown. Integers: the closed range, cut to what the
    dtype holds. Booleans: False to True, unless both extremes are the same.
    """
    kind = DTYPES[spec.dtype].kind
    if kind == "bool":
        return _bool_range(spec)
    if kind in ("int", "uint"):
        return _integer_range(spec)
    return _float_range(spec)


def _bool_range(spec: TensorSpec) -> ValueRange:
    if spec.low is None or spec.high is None:
        return ValueRange(0, 1)
    low, high = sorted((bool(spec.low), bool(spec.high)))
    return ValueRange(int(low), int(high))


def _integer_range(spec: TensorSpec) -> ValueRange:
    info = DTYPES[spec.dtype]
    smallest = -(2 ** (info.bits - 1)) if info.kind == "int" else 0
    largest = 2 ** (info.bits - (info.kind == "int")) - 1
    bounds = [spec.low, spec.high]
    if any(bound is None or bound != bound for bound in bounds):
        return ValueRange(*UNKNOWN_INTEGER, note=_unknown_note(spec, UNKNOWN_INTEGER))
    low, high = (_whole(bound, smallest, largest) for bound in bounds if bound is not None)
    return ValueRange(low, high)


def _whole(bound: float | int, smallest: int, largest: int) -> int:
    if isinstance(bound, float) and math.isinf(bound):
        return largest if bound > 0 else smallest
    return max(smallest, min(largest, round(bound)))


def _float_range(spec: TensorSpec) -> ValueRange:
    low, high = _as_float(spec.low), _as_float(spec.high)
    finite = _finite_extremes(spec)
    if finite is not None and (low is None or high is None or low != low or high != high):
        range_text = f"[{finite[0]:.6g}, {finite[1]:.6g}]"
        note = f"recorded range is NaN, drawn from that of its finite elements, {range_text}"
        return ValueRange(*finite, note=note)
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ValueRange(*UNKNOWN_FLOAT, note=_unknown_note(spec, UNKNOWN_FLOAT))
    # A bound beyond the largest finite number of the dtype is an infinity in that dtype.
    limit = DTYPES[spec.dtype].largest
    minus, plus = low < -limit, high > limit
    if high < -limit or low > limit:
        infinity = -math.inf if minus else math.inf
        return ValueRange(infinity, infinity)
    if finite is not None and (minus or plus):
        return ValueRange(*finite, minus_infinity=minus, plus_infinity=plus)
    if minus and plus:
        return ValueRange(*UNKNOWN_FLOAT, minus_infinity=True, plus_infinity=True)
    if minus:
        return ValueRange(max(float(high) - 1.0, -limit), float(high), minus_infinity=True)
    if plus:
        return ValueRange(float(low), min(float(low) + 1.0, limit), plus_infinity=True)
    return ValueRange(float(low), float(high))


def _finite_extremes(spec: TensorSpec) -> tuple[float, float] | None:
    """Return the extremes of the finite elements, where the dump has them and they can be."""
    limit = DTYPES[spec.dtype].largest
    low, high = (
        finite if finite is not None else _as_float(bound)
        for finite, bound in ((spec.finite_low, spec.low), (spec.finite_high, spec.high))
    )
    if low is None or high is None or (spec.finite_low is None and spec.finite_high is None):
        return None
    return (low, high) if -limit <= low <= high <= limit else None


def _as_float(bound: Bound) -> float | None:
    """Return a bound as a float; a whole number beyond all floats is an infinity."""
    try:
        return None if bound is None else float(bound)
    except OverflowError:
        return math.inf if bound is not None and bound > 0 else -math.inf


def _unknown_note(spec: TensorSpec, fallback: tuple[float, float] | tuple[int, int]) -> str:
    if spec.size == 0:
        return ""
    recorded = "NaN" if spec.low is not None and spec.high is not None else "missing"
    return f"recorded range is {recorded}, drawn from [{fallback[0]}, {fallback[1]}]"
