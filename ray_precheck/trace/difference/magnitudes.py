"""Distances of two tensors that sums of squares do not show: beside masks, and near the ends of float64.

Comes in: two `MappedTensor` of one shape. Goes out: relative L2 distances. Called by `measuring`, for the few
tensors where `elements` has found that such a distance may be hidden; both are read once or twice more.

A mask (-1e9, the smallest float32) that stands among the scores of attention is nearly all of their norm:
scores that are a third too large have a relative L2 distance of 1e-39 beside it. So where the magnitudes of
the golden side have a gap of `GAP` powers of two, the smaller ones are compared by themselves.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.numerics.arrays import CACHED_ELEMENTS, pieces
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.difference.elements import ElementDifference

# Masks are at least so large (BERT's is -1e4), and so many powers of two above the other values.
SMALLEST_MASK, GAP = 1e3, 6
# Where fewer of the elements that differ do so by more than 0.5 %, nothing is hidden: all honest runs have a
# few, near zero.
_SHARE = 0.01
# The exponents of float64 (frexp), subnormal ones included.
_LEAST_EXPONENT, _EXPONENTS = -1074, 2100


@dataclass(frozen=True, slots=True)
class BesideMask:
    """How far the elements below a mask are apart: their relative L2 distance. `smallest` is the lower bound
    of the mask's magnitudes, a power of two, and `masked` counts them."""

    relative_l2: float
    smallest: float
    masked: int


def may_be_masked(found: ElementDifference, largest: float | None) -> bool:
    """Return whether masks may hide a difference; `largest` is the largest magnitude of the golden side, None
    where it is not known: then their norm bounds it."""
    if not found.unequal or found.parts != 1:
        return False
    bound = largest if largest is not None else math.sqrt(found.golden_squares)
    if not bound >= SMALLEST_MASK:
        return False
    return found.numbers - found.five_thousandths > _SHARE * found.unequal


def beside_mask(target: MappedTensor, golden: MappedTensor) -> BesideMask | None:
    """Return how far the elements below a mask are apart; None where there is no mask."""
    counts = np.zeros(_EXPONENTS, np.int64)
    for _, theirs in _pieces(target, golden):
        exponents = np.frexp(theirs[theirs != 0])[1] - _LEAST_EXPONENT
        counts += np.bincount(exponents, minlength=_EXPONENTS)
    there = np.flatnonzero(counts)
    gaps = np.flatnonzero(np.diff(there) > GAP)
    if not len(gaps):
        return None
    # The topmost gap: what is above it is the mask.
    first = int(there[gaps[-1] + 1])
    smallest = math.ldexp(0.5, first + _LEAST_EXPONENT)
    if smallest < SMALLEST_MASK / 2:
        return None
    squares = golden_squares = 0.0
    for ours, theirs in _pieces(target, golden):
        below = np.abs(theirs) < smallest
        difference = ours[below] - theirs[below]
        squares += float(np.dot(difference, difference))
        golden_squares += float(np.dot(theirs[below], theirs[below]))
    if not golden_squares:
        return None
    return BesideMask(math.sqrt(squares / golden_squares), smallest, int(counts[first:].sum()))


def is_out_of_range(found: ElementDifference) -> bool:
    """Return whether squares have left the range of float64, so that the relative L2 distance is wrong."""
    if not found.unequal:
        return False
    return not math.isfinite(found.squares + found.golden_squares) or found.squares == 0.0


def scaled_distance(target: MappedTensor, golden: MappedTensor) -> float:
    """Return the relative L2 distance, with elements divided by a power of two near the largest magnitude."""
    largest = max(
        (
            float(np.abs(side).max())
            for both in _pieces(target, golden)
            for side in both
            if side.size
        ),
        default=0.0,
    )
    if not largest:
        return 0.0
    power = -math.frexp(largest)[1]
    squares = golden_squares = 0.0
    for ours, theirs in _pieces(target, golden):
        ours, theirs = np.ldexp(ours, power), np.ldexp(theirs, power)
        difference = ours - theirs
        squares += float(np.dot(difference, difference))
        golden_squares += float(np.dot(theirs, theirs))
    if not golden_squares:
        return math.inf if squares else 0.0
    return math.sqrt(squares / golden_squares)


def _pieces(target: MappedTensor, golden: MappedTensor) -> Iterator[tuple[Array, Array]]:
    """Yield the elements that are finite on both sides, in float64, the parts of complex ones one by one."""
    for piece in pieces(target.raw.size, CACHED_ELEMENTS):
        ours, theirs = (_flat(side.carrier(side.raw[piece])) for side in (target, golden))
        finite = np.isfinite(ours) & np.isfinite(theirs)
        yield ours[finite], theirs[finite]


def _flat(piece: Array) -> Array:
    if piece.dtype.kind == "c":
        return piece.astype(np.complex128, copy=False).view(np.float64)
    return piece.astype(np.float64, copy=False)
