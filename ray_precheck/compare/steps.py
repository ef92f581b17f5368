"""Rounding to steps, where rounding before it decides between two of them.

Comes in: the tested leaf and the bench's, in steps that are not rounded yet, or the arguments of a call that
rounds to steps. Goes out: the bench's with the tested side's choice where it is as right. Called by
`check.judge` and by `compare.ambiguous`.

A number within a few roundings of float32 of the middle between two steps may go to either.
"""

from dataclasses import replace

import numpy as np

from ray_precheck.operators.ambiguous import Stepped
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.storage import Quantized
from ray_precheck.schema.values import HostCall, HostTensor

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


def stepped_to(
    rounding: Stepped, call: HostCall, tested: HostTensor, bench: HostTensor
) -> HostTensor:
    """Return the bench's output of a call, one step on where the input lies in the middle of two."""
    if len(call.args) < 2 or not isinstance(call.args[0], HostTensor):
        return bench
    x: Array = call.args[0].data.astype(np.float64)
    scale = call.args[1].data if isinstance(call.args[1], HostTensor) else np.asarray(call.args[1])
    scale = scale.astype(np.float64)
    if rounding.axis is not None:
        axis = call.args[rounding.axis] if rounding.axis < len(call.args) else None
        if type(axis) is not int or scale.ndim != 1:
            return bench
        scale = scale.reshape([-1 if at == axis % x.ndim else 1 for at in range(x.ndim)])
    if x.shape != bench.shape or (rounding.axis is None and scale.size != 1):
        return bench
    with np.errstate(invalid="ignore", divide="ignore"):
        steps = x / scale
        middle = np.abs(np.abs(steps - np.floor(steps)) - 0.5)
        near = middle <= _NEAR * np.maximum(np.abs(steps), 1.0)
        moved = tested.data.astype(np.float64) - bench.data
        next_one = np.abs(np.abs(moved) - np.abs(scale)) <= _SAME_STEP * np.abs(scale)
        other = bench.data + np.copysign(np.abs(scale), moved)
    return replace(bench, data=np.where(near & next_one, other, bench.data))
