"""Rounding to steps, where rounding before it decides between two of them.

Comes in: the tested leaf and the bench's, in steps that are not rounded yet, or the arguments of a call that
rounds to steps. Goes out: the bench's with the tested side's choice where it is as right. Called by
`check.judge` and by `accuracy.ambiguous`.

A number within a few roundings of float32 of the middle between two steps may go to either.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ray_precheck.operators.ambiguous import Stepped
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import HostCall, HostTensor, Quantized

# 16 roundings of float32, of numbers of at least 1.
_NEAR = 2.0**-20
# A choice is the next step if it is that far to this share of it.
_SAME_STEP = 1e-3


def quantized_like(tested: HostTensor, bench: HostTensor) -> HostTensor:
    """Return the whole numbers of a quantized bench: the tested ones where the bench lies half a step off."""
    storage = bench.storage
    if not isinstance(storage, Quantized) or bench.data.dtype.kind != "f":
        return bench
    whole = np.rint(bench.data)
    if tested.shape == bench.shape and tested.data.dtype.kind in "iu":
        shift = np.abs(storage.along(bench.data.ndim)[1])
        near = 0.5 + storage.slack + _NEAR * np.maximum(np.abs(bench.data) + shift, 1.0)
        whole = np.where(np.abs(bench.data - tested.data) <= near, tested.data, whole)
    return replace(bench, data=whole.astype(bench.dtype))


class Observed(NamedTuple):
    """The extremes that a fused observer follows, and the steps that it chooses for them."""

    lowest: Array
    highest: Array
    scale: Array
    zero_point: Array


def observed(
    x: Array,
    before: tuple[Array, Array],
    weight: float,
    ends: tuple[int, int],
    axis: int | None,
    is_symmetric: bool,
) -> Observed:
    """Return what `fused_moving_avg_obs_fake_quant` makes of new values, along an axis or of all.

    As torch's ChooseQuantizationParams (aten/src/ATen/native/quantized/cpu/QuantUtils.h): the range has 0 in
    it, a symmetric one in the middle. The smallest scales, which torch widens, are not.
    """
    rest = None if axis is None else tuple(at for at in range(x.ndim) if at != axis % x.ndim)
    new = (x.min(axis=rest).reshape(-1), x.max(axis=rest).reshape(-1))
    followed = []
    for old, now in zip(before, new, strict=True):
        known = np.resize(old, now.shape).astype(np.float64)
        with np.errstate(invalid="ignore"):
            followed.append(np.where(np.isinf(known), now, known + weight * (now - known)))
    (low, high), (first, last) = followed, ends
    straddles = (low < 0) & (high > 0) & is_symmetric
    half = (last - first) // 2
    reach = np.maximum(np.abs(low / -(half + 1)), np.abs(high / half))
    low = np.minimum(np.where(straddles, -reach * (half + 1), low), 0.0)
    high = np.maximum(np.where(straddles, reach * half, high), 0.0)
    scale = (high - low) / (last - first)
    scale = np.where(scale == 0, 0.1, scale)
    from_low, from_high = first - low / scale, last - high / scale
    nearer = abs(first) + np.abs(low / scale) < abs(last) + np.abs(high / scale)
    zero = np.where(straddles, (first + last) / 2, np.where(nearer, from_low, from_high))
    zero = np.clip(np.rint(zero), first, last)
    return Observed(followed[0], followed[1], scale, zero)


def stepped_to(
    rounding: Stepped, call: HostCall, tested: HostTensor, bench: HostTensor
) -> HostTensor:
    """Return the bench's output of a call, one step on where the input lies in the middle of two."""
    if len(call.args) < 2 or not isinstance(call.args[0], HostTensor):
        return bench
    x: Array = call.args[0].data.astype(np.float64)
    scale = call.args[1].data if isinstance(call.args[1], HostTensor) else np.asarray(call.args[1])
    if rounding.observes:
        scale = _observed_scale(x, call)
    scale = scale.astype(np.float64)
    if rounding.axis is not None and scale.size > 1:
        axis = call.args[rounding.axis] if rounding.axis < len(call.args) else None
        if type(axis) is not int or scale.ndim != 1:
            return bench
        scale = scale.reshape([-1 if at == axis % x.ndim else 1 for at in range(x.ndim)])
    if x.shape != bench.shape or (scale.ndim != x.ndim and scale.size != 1):
        return bench
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = x / scale
        middle = np.abs(np.abs(steps - np.floor(steps)) - 0.5)
        near = middle <= _NEAR * np.maximum(np.abs(steps), 1.0)
        moved = tested.data.astype(np.float64) - bench.data
        next_one = np.abs(np.abs(moved) - np.abs(scale)) <= _SAME_STEP * np.abs(scale)
        other = bench.data + np.copysign(np.abs(scale), moved)
    return replace(bench, data=np.where(near & next_one, other, bench.data))


def _observed_scale(x: Array, call: HostCall) -> Array:
    """Return the scale that `fused_moving_avg_obs_fake_quant` rounds with: a new one, or the given one."""
    tensors = [each.data for each in call.args[1:7] if isinstance(each, HostTensor)]
    if len(tensors) != 6 or len(call.args) < 11:
        return np.zeros(0)
    observes, _, lowest, highest, scale, _ = tensors
    if not observes.any():
        return scale
    weight, first, last, axis, *rest = call.args[7:]
    per_row, is_symmetric = [*rest, False, False][:2]
    ends = (first, last)
    return observed(
        x, (lowest, highest), weight, ends, axis if per_row else None, is_symmetric
    ).scale
