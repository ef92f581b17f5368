"""The calls that the edit script leaves: renamed, fused, split, or on one side alone.

Comes in: pairs of positions that are sure or likely. Goes out: groups of positions, all calls in one
each. Called by `align`. Around each gap between pairs a window is aligned by dynamic programming, which
makes the sum of the scores of `Likeness` as large as it can be; its moves are a call of one side, a pair,
and a group of up to 8 calls for one.

How well calls fit each other: one to one, and several calls to one that does what they do. A pair with the
same operator and shapes is worth 1, so no other pair may take a call away from it; the numbers below were
set by F1 after random edits (`tests/unit/trace/alignment/test_alignment_edits.py`, scripts/README.md).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeAlias

from ray_precheck.trace.alignment.calls import Features, are_close
from ray_precheck.trace.alignment.order import Box, Run, kept_runs

# Shapes and operator: the same, another input, another output of as many dimensions, other shapes.
_SAME, _SAME_OUTPUTS, _SAME_RANKS, _SAME_FAMILY = 1.0, 0.7, 0.6, 0.4
# Another operator: the same shapes; the same first input and outputs.
_RENAMED, _PARTLY_RENAMED = 0.5, 0.3
# Several calls for one: the boundary fits, how much of the inputs, and each call that it explains.
_FUSED, _FUSED_INPUTS, _FUSED_WHOLE, _FUSED_EACH, _FUSED_KNOWN = 0.35, 0.25, 0.05, 0.03, 0.08
_NUMBER = frozenset([()])
# Values: two honest runs differ by less than 2 %, and another value speaks against another operator.
_CLOSE, _CLOSE_BY, _FAR = 0.25, 0.02, -0.1
# Between equals the same name or spelling.
_SAME_NAME, _SAME_TYPE = 0.02, 0.01
LONGEST_FUSION = 8

# Operators and what they are made of, where the shapes at the boundary may differ.
_PARTS = {
    name: frozenset(parts.split())
    for name, parts in {
        "scaled_dot_product_attention": "matmul softmax",
        "linear": "matmul add",
        "addmm": "matmul add",
        "baddbmm": "matmul add",
        "rms_norm": "rsqrt mul",
        "layer_norm": "mean mul add",
        "softmax": "exp sum div",
        "log_softmax": "softmax log",
        "cross_entropy": "log_softmax nll_loss",
        "silu": "sigmoid mul",
        "swiglu": "silu mul",
        "rotary_embedding": "mul add",
        "addcmul": "mul add",
        "addcdiv": "div add",
    }.items()
}


@dataclass(frozen=True, slots=True)
class Likeness:
    """The scores of calls of a target and a golden side, by their positions."""

    target: Features
    golden: Features
    _pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    _groups: dict[Hashable, float] = field(default_factory=dict)

    def of_pair(self, x: int, y: int) -> float:
        """Return how well two calls fit each other; 0 if they are no pair."""
        key = self.target.tokens[x], self.golden.tokens[y]
        score = self._pairs.get(key)
        if score is None:
            score = self._pairs[key] = self._shaped(x, y)
        if not score:
            return 0.0
        first, second = self.target.calls[x], self.golden.calls[y]
        score += self._valued(x, y, certain=key[0] == key[1])
        if first.type_name == second.type_name:
            score += _SAME_NAME if first.name == second.name else _SAME_TYPE
        return score

    def of_fusion(self, x: int, y: int, count: int) -> float:
        """Return how well one call of the target fits `count` golden ones that end with `y`."""
        score = self._group(self.target, x, self.golden, y, count)
        return score + self._valued(x, y) if score else 0.0

    def of_split(self, x: int, y: int, count: int) -> float:
        """Return how well `count` calls of the target that end with `x` fit one golden call."""
        score = self._group(self.golden, y, self.target, x, count)
        return score + self._valued(x, y) if score else 0.0

    def may_be_fused(self, x: int, y: int) -> bool:
        """Return whether one of two calls could end what the other one does alone."""
        target, golden = self.target, self.golden
        return target.outputs[x] == golden.outputs[y] and target.tokens[x] != golden.tokens[y]

    def _shaped(self, x: int, y: int) -> float:
        target, golden = self.target, self.golden
        if target.tokens[x] == golden.tokens[y]:
            return _SAME
        same_outputs = target.outputs[x] == golden.outputs[y]
        first, second = target.calls[x], golden.calls[y]
        if first.family == second.family:
            if same_outputs:
                return _SAME_OUTPUTS
            ranks = [[len(shape) for shape in call.outputs] for call in (first, second)]
            return _SAME_RANKS if ranks[0] == ranks[1] else _SAME_FAMILY
        if not same_outputs or not first.outputs:
            return 0.0
        if target.inputs[x] == golden.inputs[y]:
            return _RENAMED
        return _PARTLY_RENAMED if first.inputs[:1] == second.inputs[:1] else 0.0

    def _valued(self, x: int, y: int, *, certain: bool = False) -> float:
        close = are_close(self.target.calls[x].norms, self.golden.calls[y].norms, _CLOSE_BY)
        if close is None:
            return 0.0
        return _CLOSE if close else 0.0 if certain else _FAR

    def _group(self, one: Features, at: int, many: Features, last: int, count: int) -> float:
        """Return how well a call fits a group of `count` of the other side that ends with `last`."""
        first = last - count + 1
        key = one is self.target, one.tokens[at], *many.tokens[first : last + 1]
        score = self._groups.get(key)
        if score is None:
            score = self._groups[key] = _boundary(one, at, many, first, last)
        return score


def _boundary(one: Features, at: int, many: Features, first: int, last: int) -> float:
    """Return how well the shapes at the boundary of a group fit a call that does what the group does.

    The outputs must be those of the last call; the inputs those that do not come out of a call of the
    group, the first call's among them, each once or as often as the group gets it, numbers aside. Where
    the operator is known to be made of the group's, the inputs may have other shapes. At most 0.97.
    """
    if one.outputs[at] != many.outputs[last]:
        return 0.0
    head = many.calls[first].inputs
    taken = [*head, *chain.from_iterable(many.outside[first + 1 : last + 1])]
    given = one.calls[at].inputs
    shapes, own = set(taken) - _NUMBER, set(given) - _NUMBER
    starts_alike = own.issuperset(_NUMBER.union(head[:1]) - _NUMBER)
    parts = _PARTS.get(one.calls[at].family)
    is_known = parts is not None and parts <= {call.family for call in many.calls[first : last + 1]}
    if not is_known and not (starts_alike and own <= shapes):
        return 0.0
    share = len(own & shapes) / len(own | shapes) if own or shapes else 1.0
    is_whole = len(taken) == len(given) and sorted(taken) == sorted(given)
    return (
        _FUSED
        + _FUSED_INPUTS * share
        + _FUSED_WHOLE * is_whole
        + _FUSED_EACH * (last - first + 1)
        + _FUSED_KNOWN * is_known
    )


Pair: TypeAlias = tuple[int, int]
Way: TypeAlias = Callable[[Box], list[Run]]

# So many pairs on each side of a gap are decided again with it: an edit script has more than one shortest
# form, and a fused call may look like one of its parts.
_MARGIN = 4
# Windows that are so near to each other are one, until it has this many calls on a side.
_NEAR, _LONGEST = 8, 96
# A larger window (1 s) is first divided by operators alone, then by shapes alone.
_MOST_CELLS = 20_000
# So many cells of all windows are computed, in some 20 s of CPU; what is left then stays without partners.
# 100,000 calls with edits at 5 % of the places need 540,000.
_CELLS_IN_ALL = 2_000_000
# What a stretch of calls without partners costs: to open it and for each call, and at most. A block that
# one side lacks costs no more than some calls; single pairs in the midst of it are not worth two of them.
_OPEN, _EACH, _LONG = 0.05, 0.1, 1.5


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
    """Return the groups with the largest sum of scores, less the costs of calls without partners."""
    table = _Table(likeness, box)
    for i in range(1, table.width + 1):
        table.add_row(i)
    return table.groups()


class _Table:
    """The best sums for the first `i` calls of the target and `j` golden ones of a box.

    A stretch of n calls without partners costs `min(_OPEN + n * _EACH, _LONG)`, which needs the best sum
    of each of the two forms on each side, as in Gotoh's alignment with affine gaps (J. Mol. Biol. 162
    (1982)): those of golden calls are kept for the row, those of the target for each column.
    """

    def __init__(self, likeness: Likeness, box: Box) -> None:
        self.likeness, self.box = likeness, box
        self.width, self.height = box.target_end - box.target, box.golden_end - box.golden
        self.best = [[-_cost(j) for j in range(self.height + 1)]]
        # How many calls of each side the last step to here takes.
        self.moves: list[list[Pair]] = [[(0, j) for j in range(self.height + 1)]]
        self.short = [(cost - _OPEN, 0) for cost in self.best[0]]
        self.long = [(cost - _LONG, 0) for cost in self.best[0]]

    def add_row(self, i: int) -> None:
        above, x = self.best[-1], self.box.target + i - 1
        row, moves = [-_cost(i)], [(i, 0)]
        self.best.append(row)
        self.moves.append(moves)
        short = row[0] - _OPEN, 0
        long = row[0] - _LONG, 0
        for j in range(1, self.height + 1):
            # Each is the best sum with such a stretch at the end, and where the stretch begins.
            short = max((short[0] - _EACH, short[1]), (row[j - 1] - _OPEN - _EACH, j - 1))
            long = max(long, (row[j - 1] - _LONG, j - 1))
            below = max(
                (self.short[j][0] - _EACH, self.short[j][1]), (above[j] - _OPEN - _EACH, i - 1)
            )
            self.short[j] = below
            further = self.long[j] = max(self.long[j], (above[j] - _LONG, i - 1))
            score, start = max(short, long)
            move = 0, j - start
            other, start = max(below, further)
            if other > score:
                score, move = other, (i - start, 0)
            score, move = self._paired(i, j, x, score, move)
            row.append(score)
            moves.append(move)

    def _paired(self, i: int, j: int, x: int, score: float, move: Pair) -> tuple[float, Pair]:
        """Return the best sum and its move, of these and of those that end with a pair or a group."""
        likeness, best, y = self.likeness, self.best, self.box.golden + j - 1
        above = best[i - 1]
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
        return score, move

    def groups(self) -> list[Group]:
        """Return the groups that the best sum of all calls is made of."""
        found: list[Group] = []
        i, j = self.width, self.height
        while i or j:
            wide, high = self.moves[i][j]
            x, y = self.box.target + i, self.box.golden + j
            if wide and high:
                found.append(Group(tuple(range(x - wide, x)), tuple(range(y - high, y))))
            else:
                found += _alone(Box(x - wide, x, y - high, y))[::-1]
            i, j = i - wide, j - high
        found.reverse()
        return found


def _cost(count: int) -> float:
    """Return what a stretch of calls without partners costs."""
    return min(_OPEN + count * _EACH, _LONG) if count else 0.0
