"""Whether two tensors hold the same values in another layout or order.

Comes in: two tensors whose elements differ, or whose shapes do. Goes out: a few words, "" for no. Called
by `measuring`. With files the values themselves are compared, up to a size; without, the statistics, which
cannot prove it.
"""

import math
from itertools import permutations

import numpy as np

from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.trace.items import Item

# Sorting more would take longer than all else.
_MOST_ELEMENTS = 1 << 22
_MOST_DIMENSIONS = 5
# Sums in another order differ by some roundings of float32, in which statistics are computed.
_CLOSE = 1e-5


def same_statistics(target: Item, golden: Item, tolerance: float = _CLOSE) -> bool:
    """Return whether Max, Min, Mean and Norm are known and agree, sums within `tolerance` of the norm."""
    mean, norm, mean2, norm2 = target.mean, target.norm, golden.mean, golden.norm
    if mean is None or norm is None or mean2 is None or norm2 is None:
        return False
    if None in target.ends or target.ends != golden.ends:
        return False
    root = math.sqrt(max(1, math.prod(target.shape or ())))
    return math.isclose(norm, norm2, rel_tol=tolerance) and abs(mean - mean2) <= tolerance * max(
        abs(mean), abs(mean2), abs(norm) / root
    )


def other_layout(target: MappedTensor, golden: MappedTensor) -> str:
    """Return in which layout of another shape the same values lie, "" if in none."""
    if target.raw.size != golden.raw.size or not target.raw.size:
        return ""
    if target.raw.size > _MOST_ELEMENTS:
        return ""
    ours, theirs = _values(target), _values(golden)
    if np.array_equal(ours, theirs, equal_nan=True):
        return "the same values, reshaped"
    if len(target.shape) == len(golden.shape) <= _MOST_DIMENSIONS:
        shaped = theirs.reshape(golden.shape)
        for axes in permutations(range(len(golden.shape))):
            moved = shaped.transpose(axes)
            if moved.shape == target.shape and np.array_equal(
                moved.reshape(-1), ours, equal_nan=True
            ):
                return f"the same values, transposed: golden.permute{axes}"
    return other_order(target, golden)


def other_order(target: MappedTensor, golden: MappedTensor) -> str:
    """Return that the same values lie in another order, "" if they do not, or are too many to sort."""
    if target.raw.size != golden.raw.size or target.raw.size > _MOST_ELEMENTS:
        return ""
    if np.array_equal(np.sort(_values(target)), np.sort(_values(golden)), equal_nan=True):
        return "the same values in another order"
    return ""


def _values(tensor: MappedTensor) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    return tensor.carrier(tensor.raw)
