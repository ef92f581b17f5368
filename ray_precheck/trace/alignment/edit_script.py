"""A shortest edit script between two long sequences of tokens.

Comes in: two lists of token numbers. Goes out: the runs of equal tokens that the script keeps, which are a
longest common subsequence. Called by `align` between anchors. Not Myers' algorithm, whose time grows with
the square of the number of edits: the bits of one Python integer hold a whole row of the table of lengths,
as in Hyyrö's "Bit-parallel LCS-length computation revisited" (AWOCA 2004), so that 100,000 against 100,000
tokens take some 3 s on one core whatever they are. The rows that the way back needs are computed
again from every 256th, so that memory stays small: the rows of 100,000 tokens would be 1.3 GB.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
