"""Pairs of calls that their values prove to be the same call, as a chain in both orders.

Comes in: the features of both sides. Goes out: pairs of positions, each above the one before on both
sides. Called by `align`, which aligns what is between them. As in patience diff (Bram Cohen), a call is an
anchor if what it is told by stands once on each side; what it is told by is its operator, its shapes and
the digests or norms of its outputs.

Values only help. A run that is wrong from some call on has no anchors behind it; what agrees there by
chance is told by its place: an anchor that would need insertions which the next one takes back must be
supported by more neighbours than it is away from them.
"""

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ray_precheck.trace.alignment.features import Features

Array: TypeAlias = np.ndarray[Any, Any]
Pair: TypeAlias = tuple[int, int]

# Two norms of the same bits differ by the order of their sums: 6 digits of float32's 7.
_EXACT_DIGITS = 6
# Norms of two honest runs agree to some 1e-3: buckets of half a percent on a logarithmic scale, and three
# neighbours that agree at once, since one bucket holds many calls of a model with many layers.
_BUCKET = 5e-3
_NEIGHBOURS = 3
# What a change of the shift between both sides costs a chain, in anchors: a call inserted and another
# removed behind it need one anchor between them, and a whole layer no more than `_MOST_COST`.
_COST, _MOST_COST = 0.25, 8.0
_LOOK_BACK = 256


def anchors(target: Features, golden: Features) -> list[Pair]:
    """Return the anchors in order; none where no values are known."""
    found: list[Pair] = []
    seen: tuple[set[int], set[int]] = set(), set()
    for keys_of in (_digest_keys, _exact_keys, _loose_keys):
        numbers: dict[Hashable, int] = {}
        for x, y in _unique_pairs(
            _numbered(keys_of(target), numbers), _numbered(keys_of(golden), numbers)
        ):
            if x not in seen[0] and y not in seen[1]:
                seen[0].add(x)
                seen[1].add(y)
                found.append((x, y))
    return _chained(_increasing(sorted(found)), len(target.calls) - len(golden.calls))


def _digest_keys(side: Features) -> list[Hashable]:
    return [
        (token, call.digests) if call.digests else None
        for token, call in zip(side.tokens, side.calls, strict=True)
    ]


def _exact_keys(side: Features) -> list[Hashable]:
    return [
        (token, *(f"{norm:.{_EXACT_DIGITS}g}" for norm in call.norms))
        if _tells(call.norms)
        else None
        for token, call in zip(side.tokens, side.calls, strict=True)
    ]


def _loose_keys(side: Features) -> list[Hashable]:
    """Return the key of each call and its two neighbours; None at both ends and where no norm is known."""
    single = [
        (token, *map(_bucket, call.norms)) if _tells(call.norms) else (token,)
        for token, call in zip(side.tokens, side.calls, strict=True)
    ]
    found: list[Hashable] = [None] * len(single)
    for middle in range(1, len(single) - 1):
        window = (single[middle - 1], single[middle], single[middle + 1])
        if any(len(each) > 1 for each in window):
            found[middle] = window
    return found


def _tells(norms: Sequence[float]) -> bool:
    """Return whether norms say anything of a call: all are finite, and not all 0."""
    return any(norms) and all(map(math.isfinite, norms))


def _bucket(norm: float) -> float:
    return math.copysign(math.floor(math.log(abs(norm)) / _BUCKET), norm) if norm else math.inf


def _numbered(keys: Sequence[Hashable], numbers: dict[Hashable, int]) -> Array:
    """Return the number of each key, -1 for None."""
    found = [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(found, np.int64)


def _unique_pairs(target: Array, golden: Array) -> list[Pair]:
    """Return the places of numbers that stand once on each side."""
    once = []
    for numbers in (target, golden):
        values, places, counts = np.unique(numbers, return_index=True, return_counts=True)
        chosen = (counts == 1) & (values >= 0)
        once.append((values[chosen], places[chosen]))
    (values, places), (others, other_places) = once
    _, x, y = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return list(zip(places[x].tolist(), other_places[y].tolist(), strict=True))


def _increasing(pairs: Sequence[Pair]) -> list[Pair]:
    """Return a longest part of pairs, sorted by their first, whose second increase too."""
    ends: list[int] = []
    ends_at: list[int] = []
    before: list[int] = []
    for number, (_, y) in enumerate(pairs):
        at = bisect_left(ends, y)
        before.append(ends_at[at - 1] if at else -1)
        if at == len(ends):
            ends.append(y)
            ends_at.append(number)
        else:
            ends[at], ends_at[at] = y, number
    found = []
    number = ends_at[-1] if ends_at else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def _chained(pairs: Sequence[Pair], last_shift: int) -> list[Pair]:
    """Return the part of increasing pairs that is worth the most, less what its changes of shift cost.

    Neighbours of one shift count together; a chain looks back over 256 such groups. It begins with shift
    0 and ends with `last_shift`, so that one pair by chance, far from its place, is worth less than none.
    """
    groups: list[list[Pair]] = []
    for pair in pairs:
        if groups and groups[-1][-1][0] - groups[-1][-1][1] == pair[0] - pair[1]:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    shifts = np.array([group[0][0] - group[0][1] for group in groups], np.float64)
    worth = -_change(shifts, 0)
    before = [-1] * len(groups)
    for number, group in enumerate(groups):
        start = max(0, number - _LOOK_BACK)
        if start < number:
            gains = worth[start:number] - _change(shifts[start:number], shifts[number])
            best = int(np.argmax(gains))
            if gains[best] > worth[number]:
                worth[number] = gains[best]
                before[number] = start + best
        worth[number] += len(group)
    worth -= _change(shifts, last_shift)
    found: list[list[Pair]] = []
    number = int(np.argmax(worth)) if groups else -1
    if number >= 0 and worth[number] <= -_change(np.zeros(1), last_shift)[0]:
        return []
    while number >= 0:
        found.append(groups[number])
        number = before[number]
    return [pair for group in reversed(found) for pair in group]


def _change(shifts: Array, shift: float) -> Array:
    """Return what a chain pays for each change to another shift."""
    cost: Array = np.minimum(np.abs(shifts - shift) * _COST, _MOST_COST)
    return cost
