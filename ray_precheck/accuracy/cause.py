"""The likely cause of an error, where the numbers show one.

Comes in: the tested array, the float64 bench and the tested dtype. Goes out: a phrase for the
Message, or "". Called by `sentence`, only for outputs in error. Every cause is a hypothesis of how
the device's array came from the bench's, and is named only where that hypothesis predicts the
device's values nearly as well as their rounding allows, and the plain bench does not. The first that
fits is named, the most special ones first.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ray_precheck.accuracy.metrics import chunks, rounded_bench, unravelled
from ray_precheck.numerics.arrays import (
    machine_epsilon,
    root_mean_square,
    round_to_dtype,
    same_values,
    smallest_normal,
    spacing,
    unit_roundoff,
)
from ray_precheck.schema.dtypes import DTYPES, Array

# Of larger arrays the rows around the worst element are looked at: each hypothesis takes some
# passes and float64 copies.
LARGEST_ELEMENTS = 1 << 18
# Predictions may be this many units in the last place off, also of the array's root mean square:
# the error of a few roundings and of a sum in another order.
_UNITS = 4.0
# The possible error of float32 sums of many terms that cancel, as a share of the array's root mean
# square.
_LONG_SUM = 2.0**-16
# A structure must explain at least this share of the wrong elements, to allow for chance.
_MOST = 0.99
# Errors up to so many units in the last place of the tested dtype are that dtype's own.
_OWN_UNITS = 3.0
# Below this many elements a pattern may be chance.
_FEWEST = 4
# A factor on some elements: on so many at least, of which the largest is so many times the smallest; their
# errors are one share of them to so much, and larger than so many units in the last place. Random errors, and
# those of rounding to a coarser format, scatter by as much as they are.
_FEWEST_ALIKE, _OF_OTHER_SIZE, _ALIKE, _CLEAR_UNITS = 8, 1.1, 0.03, 32.0


@dataclass(frozen=True, slots=True)
class _Case:
    """The two arrays in float64 or complex128, the bench both exact and rounded to the dtype.

    `tolerance` is the error that rounding may cause in each element; the elements beyond it are `wrong`.
    """

    dtype: str
    device: Array
    exact: Array
    bench: Array
    tolerance: Array
    wrong: Array

    def predicts(self, values: Array, where: Array | None = None) -> bool:
        """Return whether the device's values are these, rounding aside."""
        near = _near(self.device, values, self.tolerance)
        if where is not None:
            near = near[where]
        return bool(near.size) and float(np.mean(near)) >= _MOST


def likely_cause(device_out: Array, bench_out: Array, dtype: str) -> str:
    """Return what probably went wrong, "" where no cause shows.

    Both arrays have one shape; the bench is not rounded to `dtype`.
    """
    if not device_out.size or DTYPES[dtype].kind == "bool":
        return ""
    if device_out.size <= LARGEST_ELEMENTS:
        return _cause(device_out, bench_out, dtype)
    length = device_out.shape[-1] if device_out.shape[-1] <= LARGEST_ELEMENTS else 1
    rows, bench_rows = (side.reshape(-1, length) for side in (device_out, bench_out))
    window = _worst_rows(rows, bench_rows, dtype)
    found = _cause(rows[window], bench_rows[window], dtype)
    where = f"rows {window.start} to {window.stop - 1} of {len(rows)}"
    return f"{found} (looked at: {where}, around the worst; indices begin there)" if found else ""


def _worst_rows(rows: Array, bench_rows: Array, dtype: str) -> slice:
    """Return which of the rows, `(N, M)`, are around the largest error."""
    worst, at = -1.0, 0
    for chunk in chunks(rows, bench_rows, dtype):
        place = int(np.argmax(chunk.abs_err))
        if chunk.abs_err[place] > worst:
            worst, at = float(chunk.abs_err[place]), chunk.start + place
    count = min(LARGEST_ELEMENTS // rows.shape[1], len(rows))
    begin = min(max(at // rows.shape[1] - count // 2, 0), len(rows) - count)
    return slice(begin, begin + count)


def _cause(device_out: Array, bench_out: Array, dtype: str) -> str:
    with np.errstate(all="ignore"):
        # The first tolerance fits operators on single elements, the second sums: their error is in
        # proportion to the terms, so that by the first tolerance small sums look wrong.
        cases = (_case(device_out, bench_out, dtype, tolerance) for tolerance in _TOLERANCES)
        found = (cause(case) for case in cases for cause in _CAUSES)
        return next(filter(None, found), "") or _precision(device_out, bench_out, dtype)


def _case(
    device_out: Array, bench_out: Array, dtype: str, tolerance_of: Callable[[Array, str], Array]
) -> _Case:
    wide = np.complex128 if "c" in (device_out.dtype.kind, bench_out.dtype.kind) else np.float64
    device, exact = device_out.astype(wide), bench_out.astype(wide)
    bench = rounded_bench(exact, dtype).astype(wide)
    tolerance = tolerance_of(exact, dtype)
    wrong = np.asarray(~_near(device, bench, tolerance))
    return _Case(dtype, device, exact, bench, tolerance, wrong)


def _near(device: Array, values: Array, tolerance: Array) -> Array:
    """Return where the values are the device's: within the tolerance, or the same non-number."""
    return np.asarray((np.abs(device - values) <= tolerance) | same_values(device, values))


def _own_tolerance(exact: Array, dtype: str) -> Array:
    if DTYPES[dtype].kind not in ("float", "complex"):
        return np.zeros(exact.shape)
    magnitude = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    return np.asarray(_UNITS * spacing(magnitude, dtype))


def _summed_tolerance(exact: Array, dtype: str) -> Array:
    at_least = _own_tolerance(np.asarray(_finite_rms(exact)), dtype)
    return np.maximum(_own_tolerance(exact, dtype), at_least)


def _long_sum_tolerance(exact: Array, dtype: str) -> Array:
    if DTYPES[dtype].kind not in ("float", "complex"):
        return np.zeros(exact.shape)
    return np.maximum(_summed_tolerance(exact, dtype), _LONG_SUM * _finite_rms(exact))


def _finite_rms(values: Array) -> float:
    return root_mean_square(np.where(np.isfinite(values), np.abs(values), 0.0))


def _overflow(case: _Case) -> str:
    """NaN or infinity where the values, or intermediate results, went beyond the largest number."""
    largest = DTYPES[case.dtype].largest
    bad = case.wrong & ~np.isfinite(case.device)
    if not bad.any() or not largest:
        return ""
    beyond = bad & np.isinf(case.bench)
    if beyond.sum() >= _MOST * bad.sum():
        return (
            f"overflow: the bench is beyond the largest {case.dtype}, {largest:.6g}, where the"
            f" device has {_kinds(case.device[bad])}"
        )
    finite = np.abs(case.bench[bad & np.isfinite(case.bench)])
    if finite.size and finite.min() >= 0.25 * largest:
        return (
            f"overflow: {_kinds(case.device[bad])} where the bench is near the largest"
            f" {case.dtype}, {largest:.6g}"
        )
    return ""


def _kinds(values: Array) -> str:
    found = [("NaN", np.isnan(values).any()), ("infinity", np.isinf(values).any())]
    return " and ".join(name for name, there in found if there)


def _clamped(case: _Case) -> str:
    """An infinity of the bench is the largest finite number on the device."""
    largest = DTYPES[case.dtype].largest
    infinite = case.wrong & np.isinf(case.bench) & np.isfinite(case.device)
    if not infinite.any() or not largest:
        return ""
    if not (np.abs(case.device[infinite]) >= 0.99 * largest).all():
        return ""
    count = int(infinite.sum())
    return f"infinity clamped to the largest {case.dtype}, {largest:.6g}, in {count} elements"


def _flushed(case: _Case) -> str:
    """Subnormal numbers of the bench are zeros on the device."""
    info = DTYPES[case.dtype]
    if not info.mantissa_bits:
        return ""
    subnormal = (np.abs(case.bench) < smallest_normal(case.dtype)) & (case.bench != 0)
    flushed = subnormal & (case.device == 0)
    others = case.wrong & ~flushed
    if flushed.sum() < max(1.0, _MOST * subnormal.sum()) or others.any():
        return ""
    return (
        f"subnormal numbers flushed to zero: {int(flushed.sum())} elements below"
        f" {2.0**info.min_exponent:.3g}"
    )


def _sign(case: _Case) -> str:
    """Wrong elements have the right size and the wrong sign."""
    if not case.wrong.any() or not case.predicts(-case.bench, case.wrong):
        return ""
    count = int(case.wrong.sum())
    if count == np.count_nonzero(case.bench):
        return "the sign of every element is flipped"
    largest = float(np.max(np.abs(case.bench[case.wrong])))
    right = np.abs(case.bench[~case.wrong & (np.abs(case.bench) > case.tolerance)])
    if right.size and float(right.min()) > largest:
        return f"the sign is flipped in all {count} elements up to {largest:.3g} in size"
    return f"the sign is flipped in {count} elements"


def _factor(case: _Case) -> str:
    """The device is the bench times one number."""
    finite = np.isfinite(case.device) & np.isfinite(case.bench)
    device, bench = case.device[finite], case.bench[finite]
    if np.count_nonzero(bench) < _FEWEST:
        return ""
    scale = float(np.max(np.abs(bench)))
    weights = np.conj(bench / scale)
    factor = np.sum(weights * device) / np.sum(weights * bench)
    if factor == 0 or not np.isfinite(factor) or (np.imag(factor) and abs(np.imag(factor)) > 1e-3):
        return ""
    factor = float(np.real(factor))
    # A small factor hides within the rounding of each element, but not in that of all of them.
    left, before = root_mean_square(device - factor * bench), root_mean_square(device - bench)
    if not left < 0.5 * before or not case.predicts(factor * case.bench, finite):
        return ""
    shown = (
        f"{factor:.4g}"
        if abs(factor - 1) >= 5e-4
        else f"1 {'+' if factor > 1 else '-'} {abs(factor - 1):.2g}"
    )
    return f"a constant factor: the device is {shown} times the bench everywhere"


def _factor_of_some(case: _Case) -> str:
    """The wrong elements are the bench times one number, and all others are right."""
    wrong = case.wrong & np.isfinite(case.device) & np.isfinite(case.exact)
    if (
        DTYPES[case.dtype].kind != "float"
        or case.device.dtype.kind == "c"
        or wrong.sum() < max(_FEWEST_ALIKE, _MOST * case.wrong.sum())
    ):
        return ""
    device, bench = case.device[wrong], case.exact[wrong]
    sizes = np.abs(bench)
    # Of one size alone a factor is no more likely than an offset.
    if not sizes.all() or float(np.max(sizes)) < _OF_OTHER_SIZE * float(np.min(sizes)):
        return ""
    factor = float(np.median(device / bench))
    # Signs, and a factor on all elements, have words of their own, with the tolerance of sums, too.
    if wrong.all() or abs(factor + 1.0) <= _ALIKE:
        return ""
    apart = np.abs(device - factor * bench)
    allowed = _ALIKE * abs(factor - 1.0) * sizes + spacing(sizes, case.dtype)
    # Where an error is a few units, any factor is as near to it.
    is_clear = np.abs(device - bench) > _CLEAR_UNITS * spacing(sizes, case.dtype)
    if float(np.mean(apart <= allowed)) < _MOST or float(np.mean(is_clear)) < _MOST:
        return ""
    right = np.abs(case.exact[~case.wrong])
    least = float(np.min(sizes))
    where = _extent(wrong)
    if right.size and float(np.max(np.where(np.isfinite(right), right, 0.0))) < least:
        where = f"all those from {least:.3g} in size on"
    told = f", {where}" if where else ""
    count = int(wrong.sum())
    return (
        f"a constant factor on {count} of {wrong.size} elements{told}: the device is {factor:.4g} times the"
        " bench there"
    )


def _offset(case: _Case) -> str:
    """The device is the bench plus one number."""
    finite = np.isfinite(case.device) & np.isfinite(case.bench)
    if (
        finite.sum() < _FEWEST
        or float(np.mean(case.wrong)) <= 0.5  # an offset is everywhere
        or np.ptp(np.abs(case.bench[finite])) == 0
    ):
        return ""
    offset = np.median((case.device - case.bench)[finite].real)
    if offset == 0 or not case.predicts(case.bench + offset, finite):
        return ""
    return f"a constant offset: the device is the bench plus {offset:.6g} everywhere"


def _shifted(case: _Case) -> str:
    """The device's values are those of a neighbour along an axis."""
    for axis, size in enumerate(case.bench.shape):
        if size < 3:
            continue
        name = "rows" if axis == case.bench.ndim - 2 else "elements"
        for step in (1, -1):
            moved = np.roll(case.bench, step, axis)
            inner = np.ones(size, bool)
            # The elements that move in there are not the bench's.
            inner[0 if step == 1 else -1] = False
            shape = [1] * axis + [size] + [1] * (case.bench.ndim - axis - 1)
            where = np.broadcast_to(inner.reshape(shape), case.bench.shape)
            if case.wrong[where].sum() < _FEWEST:
                continue
            if case.predicts(moved, where) and case.predicts(moved, case.wrong & where):
                which = "the one before it" if step == 1 else "the one after it"
                return f"{name} shifted by one: along axis {axis} each is {which} in the bench"
    return ""


def _transposed(case: _Case) -> str:
    """The device's values are the bench's with two axes swapped."""
    shape = case.bench.shape
    if len(shape) < 2 or case.wrong.sum() < 2:
        return ""
    for first in range(len(shape) - 1):
        for second in range(first + 1, len(shape)):
            if 1 in (shape[first], shape[second]):
                continue
            swapped = np.swapaxes(case.bench, first, second).reshape(shape)
            if case.predicts(swapped) and case.predicts(swapped, case.wrong):
                return f"transposed: axes {first} and {second} of the bench are swapped"
    return ""


def _zeros(case: _Case) -> str:
    """Some of the device's elements are zero where the bench's are not."""
    zero = case.wrong & (case.device == 0)
    count = int(zero.sum())
    if not count or count < _MOST * case.wrong.sum():
        return ""
    if not case.device.any():
        return "every element is zero"
    where = _extent(zero)
    return f"{count} elements are zero, {where}" if where else f"{count} elements are zero"


def _extent(marked: Array) -> str:
    """Return the block that holds all marked elements, "" where it is hardly filled."""
    flat = np.flatnonzero(marked)
    length = int(flat[-1] - flat[0] + 1)
    if len(flat) >= 0.9 * length:
        return f"one block of {length} from index {list(unravelled(int(flat[0]), marked.shape))} on"
    corners = [
        np.flatnonzero(marked.any(axis=_others(axis, marked))) for axis in range(marked.ndim)
    ]
    box = [(int(places[0]), int(places[-1]) + 1) for places in corners]
    volume = int(np.prod([end - begin for begin, end in box]))
    if len(flat) < 0.9 * volume:
        return ""
    return f"one block, [{', '.join(f'{begin}:{end}' for begin, end in box)}]"


def _others(axis: int, values: Array) -> tuple[int, ...]:
    return tuple(other for other in range(values.ndim) if other != axis)


def _few(case: _Case) -> str:
    """One element is wrong, or one block, and all others are right."""
    count = int(case.wrong.sum())
    if not count or case.wrong.size < 16 or count > case.wrong.size // 4:
        return ""
    # Errors of rounding differ by degrees; the errors of wrong elements stand out.
    error = np.abs(case.device - case.bench)
    error = np.where(np.isfinite(case.device) & np.isfinite(case.bench), error, np.inf)
    others = np.where(np.isfinite(error) & ~case.wrong, error, 0.0).max()
    if not (error[case.wrong] > np.maximum(4.0 * case.tolerance[case.wrong], others)).all():
        return ""
    if count == 1:
        return "a single element is wrong, all others are as exact as rounding allows"
    where = _extent(case.wrong)
    return f"all {count} wrong elements are in {where}" if where else ""


def _precision(device_out: Array, bench_out: Array, dtype: str) -> str:
    """The error is noise of the size that a coarser format's rounding makes."""
    case = _case(device_out, bench_out, dtype, _own_tolerance)
    info = DTYPES[case.dtype]
    finite = np.isfinite(case.device) & np.isfinite(case.exact)
    if info.kind != "float" or finite.sum() < 2 * _FEWEST or not case.exact[finite].any():
        return ""
    device, bench = case.device[finite], case.bench[finite]
    for coarse in reversed(_coarser(case.dtype)):
        ours, theirs = (round_to_dtype(side, coarse) == side for side in (device, bench))
        if device.any() and ours.all() and np.mean(theirs) < 0.75:
            return f"every value is exactly a {coarse}: it was computed in, or rounded to, {coarse}"
    error = device - case.exact[finite]
    size = root_mean_square(error)
    relative = size / root_mean_square(case.exact[finite])
    # Noise is spread over all elements, and larger than the rounding of the output itself.
    if np.max(np.abs(error)) > 8 * size or relative < machine_epsilon(case.dtype):
        return ""
    # Rounding to bfloat16 moves a float16 by up to 4 of its units; a smaller error is its own rounding.
    own_units = np.abs(error) / spacing(np.abs(case.exact[finite]), case.dtype)
    if float(np.quantile(own_units, _MOST)) <= _OWN_UNITS:
        return ""
    for coarse in _coarser(case.dtype):
        unit = unit_roundoff(coarse)
        # The rounding of inputs or of one step, and of sums of some thousand terms.
        if 0.1 * unit <= relative <= 2.0 * unit:
            # Long sums in float16 itself are off as far.
            summed = f"{case.dtype} or {coarse}" if info.bits == 16 else coarse
            return (
                f"lower precision: the error is {relative:.2g} of the output's size, like that of"
                f" inputs in {coarse} or of sums accumulated in {summed}"
            )
    return ""


def _coarser(dtype: str) -> list[str]:
    """Return the formats with fewer bits that a device may compute in instead, the finest first."""
    bits = DTYPES[dtype].mantissa_bits
    return [
        name for name in ("float32", "float16", "bfloat16") if DTYPES[name].mantissa_bits < bits
    ]


_TOLERANCES = (_own_tolerance, _summed_tolerance, _long_sum_tolerance)
_CAUSES: tuple[Callable[[_Case], str], ...] = (
    _clamped,
    _overflow,
    _flushed,
    _zeros,
    _sign,
    _factor,
    _transposed,
    _shifted,
    _offset,
    _factor_of_some,
    _few,
)
