"""A shortest edit script between two long sequences of tokens.

Comes in: two lists of token numbers. Goes out: the runs of equal tokens that the script keeps, which are a
longest common subsequence. Called by `align` between anchors. Not Myers' algorithm, whose time grows with
the square of the number of edits: the bits of one Python integer hold a whole row of the table of lengths,
as in Hyyrö's "Bit-parallel LCS-length computation revisited" (AWOCA 2004), so that 100,000 against 100,000
tokens take some 3 s on one core whatever they are. The rows that the way back needs are computed
again from every 256th, so that memory stays small: the rows of 100,000 tokens would be 1.3 GB.

Pairs of calls that their values prove to be the same call, as a chain in both orders. As in patience diff
(Bram Cohen), a call is an anchor if what it is told by stands once on each side; what it is told by is its
operator, its shapes and the digests or norms of its outputs.

Values only help. A run that is wrong from some call on has no anchors behind it; what agrees there by
chance is told by its place: an anchor that would need insertions which the next one takes back must be
supported by more neighbours than it is away from them.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ray_precheck.trace.alignment.calls import Features

# Longer boxes are aligned a stretch of this length after the other, half of which is kept each time.
_STRETCH = 100_000
_ROWS_KEPT = 256
# Tokens with so many places have their mask kept, at most 3,125 masks of 12.5 KB; the masks of all others
# are made anew each time.
_FREQUENT = 32


class Run(NamedTuple):
    """`length` equal tokens from `target` and `golden` on."""

    target: int
    golden: int
    length: int


class Box(NamedTuple):
    """A stretch of both sides, ends excluded."""

    target: int
    target_end: int
    golden: int
    golden_end: int


def kept_runs(target: Sequence[int], golden: Sequence[int], boxes: Sequence[Box]) -> list[Run]:
    """Return the runs of equal tokens that shortest edit scripts of the boxes keep, in order.

    A box with more than 100,000 tokens on a side is done in stretches, and may keep fewer than could be.
    """
    pairs: list[tuple[int, int]] = []
    for box in boxes:
        pairs += _pairs_of(target, golden, box)
    pairs.sort()
    return joined(pairs)


def joined(pairs: Sequence[tuple[int, int]]) -> list[Run]:
    """Return runs of consecutive pairs."""
    found: list[Run] = []
    for x, y in pairs:
        if (
            found
            and found[-1].target + found[-1].length == x
            and found[-1].golden + found[-1].length == y
        ):
            found[-1] = found[-1]._replace(length=found[-1].length + 1)
        else:
            found.append(Run(x, y, 1))
    return found


def _pairs_of(target: Sequence[int], golden: Sequence[int], box: Box) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while True:
        box = _without_ends(target, golden, box, found)
        x, x_end, y, y_end = box
        if x == x_end or y == y_end:
            return found
        ends = min(x_end, x + _STRETCH), min(y_end, y + _STRETCH)
        pairs = _common(target, golden, Box(x, ends[0], y, ends[1]))
        if ends == (x_end, y_end):
            return found + pairs
        half = x + _STRETCH // 2, y + _STRETCH // 2
        kept = [pair for pair in pairs if pair[0] < half[0] and pair[1] < half[1]]
        found += kept
        x, y = (kept[-1][0] + 1, kept[-1][1] + 1) if kept else half
        box = Box(min(x, x_end), x_end, min(y, y_end), y_end)


def _without_ends(
    target: Sequence[int], golden: Sequence[int], box: Box, found: list[tuple[int, int]]
) -> Box:
    """Pair equal tokens at both ends of a box, and return what is between."""
    x, x_end, y, y_end = box
    while x < x_end and y < y_end and target[x] == golden[y]:
        found.append((x, y))
        x += 1
        y += 1
    while x < x_end and y < y_end and target[x_end - 1] == golden[y_end - 1]:
        x_end -= 1
        y_end -= 1
        found.append((x_end, y_end))
    return Box(x, x_end, y, y_end)


def _common(target: Sequence[int], golden: Sequence[int], box: Box) -> list[tuple[int, int]]:
    """Return the pairs of a longest common subsequence of a box, in order.

    Bit j of row i is 0 where the golden token j makes the common subsequence longer.
    """
    rows, width = target[box.target : box.target_end], box.golden_end - box.golden
    mask_of = _masks(golden[box.golden : box.golden_end])
    all_ones = (1 << width) - 1
    kept = [all_ones]
    row = all_ones
    for number, token in enumerate(rows, 1):
        row = _next_row(row, mask_of(token))
        if number % _ROWS_KEPT == 0:
            row &= all_ones
            kept.append(row)
    found: list[tuple[int, int]] = []
    column = width
    for block in reversed(range(len(kept))):
        start = block * _ROWS_KEPT
        tokens = rows[start : start + _ROWS_KEPT]
        column = _way_back(kept[block], tokens, mask_of, start, column, found)
        kept.pop()
    found.reverse()
    return [(box.target + x, box.golden + y) for x, y in found]


def _next_row(row: int, mask: int) -> int:
    """Return the row after one more token: bits above the width are of no meaning."""
    used = row & mask
    return (row + used) | (row ^ used) if used else row


def _way_back(
    row: int,
    tokens: Sequence[int],
    mask_of: Callable[[int], int],
    start: int,
    column: int,
    found: list[tuple[int, int]],
) -> int:
    """Append the pairs of a block of rows, last first, and return the column that is left."""
    size = (column + 7) // 8
    ones = (1 << column) - 1
    row &= ones
    held = [row.to_bytes(size, "little")]
    for token in tokens:
        row = _next_row(row, mask_of(token) & ones) & ones
        held.append(row.to_bytes(size, "little"))
    at = len(tokens)
    while at and column:
        byte, bit = (column - 1) >> 3, (column - 1) & 7
        if held[at][byte] >> bit & 1:
            column -= 1
            continue
        at -= 1
        if held[at][byte] >> bit & 1:
            column -= 1
            found.append((start + at, column))
    return column


def _masks(tokens: Sequence[int]) -> Callable[[int], int]:
    """Return what gives the places of a token as the bits of a number."""
    places: dict[int, list[int]] = {}
    for number, token in enumerate(tokens):
        places.setdefault(token, []).append(number)
    made: dict[int, int] = {}

    def mask_of(token: int) -> int:
        if token in made:
            return made[token]
        own = places.get(token)
        if own is None:
            return 0
        bits = bytearray(own[-1] // 8 + 1)
        for place in own:
            bits[place >> 3] |= 1 << (place & 7)
        mask = int.from_bytes(bits, "little")
        if len(own) >= _FREQUENT:
            made[token] = mask
        return mask

    return mask_of


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
