"""The calls that the edit script leaves: renamed, fused, split, or on one side alone.

Comes in: pairs of positions that are sure or likely. Goes out: groups of positions, all calls in one
each. Called by `align`. Around each gap between pairs a window is aligned by dynamic programming, which
makes the sum of the scores of `Likeness` as large as it can be; its moves are a call of one side, a pair,
and a group of up to 8 calls for one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ray_precheck.trace.alignment.edit_script import Box, Run, kept_runs
from ray_precheck.trace.alignment.features import Features
from ray_precheck.trace.alignment.likeness import LONGEST_FUSION, Likeness

Pair: TypeAlias = tuple[int, int]
Way: TypeAlias = Callable[[Box], list[Run]]

# So many pairs on each side of a gap are decided again with it: an edit script has more than one shortest
# form, and a fused call may look like one of its parts.
_MARGIN = 4
# Windows that are so near to each other are one, until it has this many calls on a side.
_NEAR, _LONGEST = 8, 96
# A larger window (1 s) is first divided by operators alone, then by shapes alone.
_MOST_CELLS = 20_000
# So many cells of all windows are computed, in some 20 s; what is left then stays without partners.
_CELLS_IN_ALL = 3_000_000


class Group(NamedTuple):
    """Positions of the target and of the golden side that belong together; one of the two may be ()."""

    target: tuple[int, ...]
    golden: tuple[int, ...]


def grouped(
    target: Features, golden: Features, pairs: Sequence[Pair], firm: set[int]
) -> list[Group]:
    """Return every call of both sides in a group, in order.

    `pairs` increase on both sides. Those whose position in the target is in `firm` are kept; others may
    be paired otherwise if they are next to a gap.
    """
    filler = _Filler(target, golden)
    found: list[Group] = []
    done = 0
    for start, end, box in _windows(pairs, firm, len(target.calls), len(golden.calls)):
        found += [Group((x,), (y,)) for x, y in pairs[done:start]]
        found += filler.filled(box)
        done = end
    return found + [Group((x,), (y,)) for x, y in pairs[done:]]


def _windows(
    pairs: Sequence[Pair], firm: set[int], length: int, golden_length: int
) -> Iterator[tuple[int, int, Box]]:
    """Yield the boxes around gaps, each with the pairs (from, to) that it decides again."""
    gaps = []
    before = (-1, -1)
    for number, pair in enumerate([*pairs, (length, golden_length)]):
        if pair[0] - before[0] > 1 or pair[1] - before[1] > 1:
            gaps.append(number)
        before = pair
    at = 0
    done = 0
    while at < len(gaps):
        start = _moved(pairs, firm, gaps[at], max(done, gaps[at] - _MARGIN))
        end = gaps[at]
        x, _ = pairs[start - 1] if start else (-1, -1)
        while (
            at + 1 < len(gaps)
            and gaps[at + 1] - end <= _NEAR
            and _is_free(pairs, firm, end, gaps[at + 1])
            and pairs[gaps[at + 1] - 1][0] - x < _LONGEST
        ):
            at += 1
            end = gaps[at]
        following = gaps[at + 1] if at + 1 < len(gaps) else len(pairs)
        most = min(len(pairs), end + _MARGIN, end + (following - end) // 2)
        while end < most and pairs[end][0] not in firm:
            end += 1
        first = pairs[start - 1] if start else (-1, -1)
        last = pairs[end] if end < len(pairs) else (length, golden_length)
        yield start, end, Box(first[0] + 1, last[0], first[1] + 1, last[1])
        # The gap before `end` is decided: without a pair behind it the next window begins after that pair.
        done = end if end > gaps[at] else end + 1
        at += 1


def _moved(pairs: Sequence[Pair], firm: set[int], start: int, least: int) -> int:
    while start > least and pairs[start - 1][0] not in firm:
        start -= 1
    return start


def _is_free(pairs: Sequence[Pair], firm: set[int], start: int, end: int) -> bool:
    return all(pairs[number][0] not in firm for number in range(start, end))


class _Filler:
    """Aligns windows, and keeps count of what that costs."""

    def __init__(self, target: Features, golden: Features) -> None:
        self.target, self.golden = target, golden
        self.likeness = Likeness(target, golden)
        self.shapes = _shape_numbers(target, golden)
        self.cells_left = _CELLS_IN_ALL

    def filled(self, box: Box) -> list[Group]:
        """Return every call of a box in a group, in order."""
        return self._divided(box, (self._by_family, self._by_shapes))

    def _divided(self, box: Box, ways: Sequence[Way]) -> list[Group]:
        width, height = box.target_end - box.target, box.golden_end - box.golden
        if not width or not height:
            return _alone(box)
        if width * height <= _MOST_CELLS and width * height <= self.cells_left:
            self.cells_left -= width * height
            return _best_groups(self.likeness, box)
        if not ways:
            return _alone(box)
        found: list[Group] = []
        x, y = box.target, box.golden
        for run in ways[0](box):
            found += self._divided(Box(x, run.target, y, run.golden), ways[1:])
            found += [
                Group((run.target + number,), (run.golden + number,))
                for number in range(run.length)
            ]
            x, y = run.target + run.length, run.golden + run.length
        return found + self._divided(Box(x, box.target_end, y, box.golden_end), ways[1:])

    def _by_family(self, box: Box) -> list[Run]:
        return kept_runs(self.target.families, self.golden.families, [box])

    def _by_shapes(self, box: Box) -> list[Run]:
        return kept_runs(*self.shapes, [box])


def _shape_numbers(target: Features, golden: Features) -> tuple[list[int], list[int]]:
    """Return numbers of the shapes of calls, operators aside; calls without outputs are like no other."""
    numbers: dict[Pair, int] = {}
    found = [
        [
            numbers.setdefault((inputs, outputs), len(numbers)) if call.outputs else -1 - side
            for call, inputs, outputs in zip(each.calls, each.inputs, each.outputs, strict=True)
        ]
        for side, each in enumerate((target, golden))
    ]
    return found[0], found[1]


def _alone(box: Box) -> list[Group]:
    """Return the calls of a box, each without a partner."""
    return [
        *(Group((), (y,)) for y in range(box.golden, box.golden_end)),
        *(Group((x,), ()) for x in range(box.target, box.target_end)),
    ]


def _best_groups(likeness: Likeness, box: Box) -> list[Group]:
    """Return the groups with the largest sum of scores."""
    width, height = box.target_end - box.target, box.golden_end - box.golden
    best = [[0.0] * (height + 1) for _ in range(width + 1)]
    moves = [[(0, 1)] * (height + 1)] + [[(1, 0)] * (height + 1) for _ in range(width)]
    for i in range(1, width + 1):
        row, above = best[i], best[i - 1]
        x = box.target + i - 1
        for j in range(1, height + 1):
            y = box.golden + j - 1
            score, move = (above[j], (1, 0)) if above[j] > row[j - 1] else (row[j - 1], (0, 1))
            fits = likeness.of_pair(x, y)
            if fits and above[j - 1] + fits > score:
                score, move = above[j - 1] + fits, (1, 1)
            if likeness.may_be_fused(x, y):
                for count in range(2, min(LONGEST_FUSION, j) + 1):
                    fits = likeness.of_fusion(x, y, count)
                    if fits and above[j - count] + fits > score:
                        score, move = above[j - count] + fits, (1, count)
                for count in range(2, min(LONGEST_FUSION, i) + 1):
                    fits = likeness.of_split(x, y, count)
                    if fits and best[i - count][j - 1] + fits > score:
                        score, move = best[i - count][j - 1] + fits, (count, 1)
            row[j] = score
            moves[i][j] = move
    return _followed(moves, box)


def _followed(moves: Sequence[Sequence[Pair]], box: Box) -> list[Group]:
    found = []
    i, j = box.target_end - box.target, box.golden_end - box.golden
    while i or j:
        step = moves[i][j] if i and j else (i and 1, 1 if not i else 0)
        x, y = box.target + i, box.golden + j
        found.append(Group(tuple(range(x - step[0], x)), tuple(range(y - step[1], y))))
        i, j = i - step[0], j - step[1]
    found.reverse()
    return found
