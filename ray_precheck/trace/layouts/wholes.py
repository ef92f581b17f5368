"""How the parts of a tensor that the ranks of two runs hold make the whole that both have.

Comes in: the elements of one tensor on all ranks of both runs. Goes out: its values on both sides, of one
shape. Called by `together`.

For each axis of a layout a tensor is a replica on each rank, sharded along a dimension, or an addend of a sum
(`Fold`). Placements tell of DTensors. Of plain tensors the shapes tell, because both wholes have one shape;
where several ways fit, agreement over the ranks (replicas agree, shards and addends do not), the operator
(the product of shards is an addend), and what a collective does with the tensor later decide, and of what is
left the first way whose values agree. A way is never taken because its values agree where shapes and ranks
speak against it, so that a wrong value stays one.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.trace.layouts.parts import (
    JoinedDistance,
    PartFiles,
    PartValues,
    added_parts,
    are_replicas,
    distance_between,
    joined_parts,
    rooted_parts,
    scaled,
    with_statistics_of,
)

# ROOT: of Euclidean norms, the root of the sum of squares.
REPLICA, SHARD, SUM, ROOT = "replica", "shard", "sum", "root"
# What a way costs: one that speaks for itself nothing, one that shapes alone can force the most.
_AGREEING_SHARD, _AGREEING_SUM, _SHARD, _SUM, _OTHER_REPLICA, _OTHER_SCALE = (
    3.0,
    2.0,
    1.0,
    1.5,
    6.0,
    0.3,
)
# The batch is mostly the first dimension.
_LATER_DIMENSION = 0.1
# A way whose values are so near those of the other side is taken before cheaper ones that are not: what is
# wrong by less is wrong in all ways.
_NEAR = 0.03
_MOST_WAYS, _MOST_TRIED = 4096, 12
# A shard that is so far off, and so many times as far as any other, is named.
_NEAR_SHARD, _TIMES = 1e-5, 10.0
# Addends whose sum is so near the other side's value are addends of it.
_ADDED = 1e-4


class Fold(NamedTuple):
    """What the ranks along an axis have of a tensor. `is_scaled`: the values are so many times those of the
    whole run as the axis has ranks, because each rank's loss is the mean of its own samples."""

    kind: str
    dim: int = 0
    is_scaled: bool = False


class AxisRole(NamedTuple):
    """What a value is to its record: an output may be a sum of which the ranks have addends (`may_add`: of
    these axes), and a value of a backward pass may be scaled. `is_parameter`: it is the gradient of a
    parameter, which has no samples. `whole` is what a collective makes of it; `undivided` are axes whose
    ranks have no shards of it; `is_dealt`: its rows are tokens, which each run may have in its own order."""

    is_backward: bool = False
    may_add: frozenset[int] = frozenset()
    is_parameter: bool = False
    whole: Mapping[str, Any] | None = None
    undivided: frozenset[int] = frozenset()
    is_dealt: bool = False


@dataclass
class PartGrid:
    """The elements of a tensor on the ranks of a side: `elements` in the order of the axes, the last one
    fastest, of which `sizes` are the sizes, with the files of their ranks. `fixed` has the folds that
    placements tell, by axis, else None; `role` says what the tensor is to its record, and
    `ranks` of which rank each element is."""

    sizes: tuple[int, ...]
    elements: Sequence[Mapping[str, Any]]
    files: Sequence[PartFiles]
    fixed: Sequence[Fold | None]
    role: AxisRole = field(default_factory=AxisRole)
    ranks: Sequence[int] = ()
    _values: dict[int, PartValues] = field(default_factory=dict)

    def value(self, at: int) -> PartValues:
        """Return the values of a part."""
        if at not in self._values:
            self._values[at] = self.files[at].values(self.elements[at])
        return self._values[at]

    def part_of(self, values: PartValues) -> Mapping[str, Any] | None:
        """Return the element of the part whose values these are; None for what several parts made."""
        return next(
            (self.elements[at] for at, each in self._values.items() if each is values), None
        )

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the parts."""
        return tuple(tuple(each.get("shape") or ()) for each in self.elements)

    @cached_property
    def agreeing(self) -> tuple[bool, ...]:
        """Whether the ranks along each axis have the same values."""
        found = []
        for axis, size in enumerate(self.sizes):
            stride = math.prod(self.sizes[axis + 1 :])
            firsts = [at - (at // stride % size) * stride for at in range(len(self.elements))]
            pairs = enumerate(firsts)
            found.append(
                all(are_replicas(self.elements[at], self.elements[first]) for at, first in pairs)
            )
        return tuple(found)

    @property
    def key(self) -> tuple[Any, ...]:
        """What the possible ways hang on."""
        return (
            self.sizes,
            self.shapes,
            self.agreeing,
            tuple(self.fixed),
            self.role._replace(whole=None),
        )


class JoinWay(NamedTuple):
    """A way in which the parts of both sides make a whole of one shape."""

    cost: float
    target: tuple[Fold, ...]
    golden: tuple[Fold, ...]
    shape: tuple[int, ...]


class Wholes(NamedTuple):
    """The whole values of a tensor on both sides, and how they were made. `odd` are the target's parts that
    are other replicas, or are farther from the golden run's part than all others; `is_unordered`: the order
    of the parts is not known, so that only statistics are there. `distance` is how far both sides are
    apart."""

    target: PartValues
    golden: PartValues
    way: JoinWay
    odd: tuple[int, ...] = ()
    is_unordered: bool = False
    distance: float = math.inf
    is_not_added: bool = False


@dataclass(slots=True)
class WholeMaker:
    """Puts tensors together. `scales` has for each side and axis whether the values of backward passes are so
    many times those of the whole run as the axis has ranks: the first that tell decide; `divided` the sides
    and axes over which parameters are sharded; `blocks` the order of the samples that was seen last; `said`
    the modules with spread experts of which a tensor was left out, `unlike` the experts that have another
    number of tokens in the other run."""

    scales: dict[tuple[int, int], bool] = field(default_factory=dict)
    divided: set[tuple[int, int]] = field(default_factory=set)
    blocks: int = 1
    said: set[str] = field(default_factory=set)
    unlike: set[str] = field(default_factory=set)
    _ways: dict[Any, list[JoinWay]] = field(default_factory=dict)

    def make(self, target: PartGrid, golden: PartGrid) -> Wholes | None:
        """Return the values of both sides; None where the parts do not make wholes of one shape."""
        known = tuple(sorted(self.scales.items())), tuple(sorted(self.divided))
        key = (target.key, golden.key, known)
        if key not in self._ways:
            self._ways[key] = self._possible(target, golden)
        found: list[tuple[JoinWay, PartValues, PartValues, JoinedDistance]] = []
        for way in self._ways[key]:
            theirs = _folded(golden, way.golden, None, self.blocks)[0]
            ours = _folded(target, way.target, theirs, self.blocks)[0]
            distance = distance_between(ours, theirs)
            found.append((way, ours, theirs, distance))
            is_free = _is_free(target, way.target) or _is_free(golden, way.golden)
            near = distance.statistics if distance.is_moved and is_free else distance.value
            if near is not None and near < _NEAR:
                self._note_scales(target, golden, found)
                return self._ordered(target, golden, found[-1])._replace(distance=near)
        if not found:
            return None
        return self._ordered(target, golden, found[0])

    def _note_scales(
        self,
        target: PartGrid,
        golden: PartGrid,
        found: Sequence[tuple[JoinWay, PartValues, PartValues, JoinedDistance]],
    ) -> None:
        """Note what the first gradient says of the scale of its axes: other scales did not fit."""
        way, ours = found[-1][0], found[-1][1]
        if not ours.size or not any(each for each in ours.statistics.values()):
            return  # Zeros have any scale.
        for side, (grid, folds) in enumerate(((target, way.target), (golden, way.golden))):
            if grid.role.is_backward:
                for axis, fold in enumerate(folds):
                    is_free = grid.fixed[axis] is None and not grid.agreeing[axis]
                    if fold.kind != REPLICA and is_free:
                        self.scales.setdefault((side, axis), fold.is_scaled)

    def _ordered(
        self,
        target: PartGrid,
        golden: PartGrid,
        found: tuple[JoinWay, PartValues, PartValues, JoinedDistance],
    ) -> Wholes:
        """Return the values in the order of the other side, as far as one is found."""
        way, ours, theirs, distance = found
        is_moved = partial(_is_moved, is_dealt=target.role.is_dealt)
        if is_moved(distance) and _is_free(target, way.target) | _is_free(golden, way.golden):
            for blocks in _orders(target, golden, way):
                again = _folded(golden, way.golden, None, blocks)[0]
                own, odd = _folded(target, way.target, again, blocks)
                if not is_moved(distance_between(own, again)):
                    self.blocks = blocks if blocks > 3 else self.blocks
                    return Wholes(own, again, way, odd)
            ours, theirs = (_without_order(each) for each in (ours, theirs))
            return Wholes(ours, theirs, way, is_unordered=True)
        odd = _folded(target, way.target, theirs, self.blocks)[1]
        return Wholes(
            ours,
            theirs,
            way,
            odd or _odd_shards(target, way, ours, theirs),
            is_not_added=self._is_sum(target, way, theirs),
        )

    def _is_sum(self, target: PartGrid, way: JoinWay, theirs: PartValues) -> bool:
        """Return whether the values of ranks that should be replicas would be right if they were added up."""
        other = [
            axis
            for axis, fold in enumerate(way.target)
            if fold.kind == REPLICA and not target.agreeing[axis] and target.fixed[axis] is None
        ]
        if not other:
            return False
        for is_scaled in (False, True):
            folds = tuple(
                Fold(SUM, 0, is_scaled) if axis in other else fold
                for axis, fold in enumerate(way.target)
            )
            near = distance_between(_folded(target, folds, theirs, self.blocks)[0], theirs)
            if near.exact is not None and near.exact < _ADDED:
                return True
        return False

    def _possible(self, target: PartGrid, golden: PartGrid) -> list[JoinWay]:
        sides = []
        for side, grid in enumerate((target, golden)):
            divided = frozenset(axis for of, axis in self.divided if of == side)
            scales = {axis: each for (of, axis), each in self.scales.items() if of == side}
            sides.append(_side_ways(grid, divided, scales))
        by_shape: dict[tuple[int, ...], list[tuple[float, tuple[Fold, ...]]]] = {}
        for cost, folds, shape in sides[1]:
            by_shape.setdefault(shape, []).append((cost, folds))
        found = [
            JoinWay(cost + other, folds, others, shape)
            for cost, folds, shape in sides[0]
            for other, others in by_shape.get(shape, ())
        ]
        return sorted(found, key=lambda way: way.cost)[:_MOST_TRIED]


def _side_ways(
    grid: PartGrid, divided: frozenset[int], scales: Mapping[int, bool]
) -> list[tuple[float, tuple[Fold, ...], tuple[int, ...]]]:
    """Return the ways of one side with what they cost and the shape of the whole."""
    options = [
        _options(grid, axis, False if axis in divided else scales.get(axis), axis in divided)
        for axis in range(len(grid.sizes))
    ]
    found = []
    for chosen in itertools.islice(itertools.product(*options), _MOST_WAYS):
        folds = tuple(fold for _, fold in chosen)
        shape = _whole_shape(grid.sizes, grid.shapes, folds)
        if shape is not None:
            found.append((sum(cost for cost, _ in chosen), folds, shape))
    return found


def _options(
    grid: PartGrid, axis: int, scale: bool | None, is_divided: bool
) -> list[tuple[float, Fold]]:
    """Return what the ranks along an axis may have of a tensor, and what each costs; `is_divided`: the ranks
    have parts of parameters."""
    fixed = grid.fixed[axis]
    if fixed is not None:
        return [(0.0, fixed)]
    role, agree, dims = grid.role, grid.agreeing[axis], len(grid.shapes[0])
    found = [(0.0 if agree else _OTHER_REPLICA, Fold(REPLICA))]
    if agree and role.is_parameter and scale is not False:
        found.append((_OTHER_SCALE, Fold(REPLICA, 0, True)))
    for is_scaled in (False, True):
        other = _OTHER_SCALE if is_scaled else 0.0
        if role.is_backward and scale is not None and is_scaled is not scale:
            continue
        may_divide = axis not in role.undivided and (is_divided or not role.is_parameter)
        if (not is_scaled or role.is_backward) and may_divide:
            cost = (_AGREEING_SHARD if agree else _SHARD) + other
            found += [
                (cost + _LATER_DIMENSION * dim, Fold(SHARD, dim, is_scaled)) for dim in range(dims)
            ]
        if axis in role.may_add:
            found.append(((_AGREEING_SUM if agree else _SUM) + other, Fold(SUM, 0, is_scaled)))
    return found


def _whole_shape(
    sizes: Sequence[int], shapes: Sequence[tuple[int, ...]], folds: Sequence[Fold]
) -> tuple[int, ...] | None:
    """Return the shape of what parts of these shapes make; None where they do not fit."""
    left = list(shapes)
    for size, fold in zip(reversed(sizes), reversed(folds), strict=True):
        groups = [left[at : at + size] for at in range(0, len(left), size)]
        left = []
        for group in groups:
            shape = list(group[0])
            if fold.kind == SHARD:
                if any(len(each) != len(shape) for each in group):
                    return None
                for dim in range(len(shape)):
                    if dim != fold.dim and any(each[dim] != shape[dim] for each in group):
                        return None
                shape[fold.dim] = sum(each[fold.dim] for each in group)
            elif any(each != group[0] for each in group):
                return None
            left.append(tuple(shape))
    return left[0]


def _folded(
    grid: PartGrid, folds: Sequence[Fold], other: PartValues | None, blocks: int
) -> tuple[PartValues, tuple[int, ...]]:
    """Return the whole that parts make, and which parts are not the same replica as the first one.

    Of replicas that differ the farthest from `other` stands for all: an error of one rank is one.
    """
    places = list(itertools.product(*(range(size) for size in grid.sizes)))
    kept = {
        place: at
        for at, place in enumerate(places)
        if all(
            not (each and folds[axis].kind == REPLICA and grid.agreeing[axis])
            for axis, each in enumerate(place)
        )
    }
    values = {place: grid.value(at) for place, at in kept.items()}
    members: dict[tuple[int, ...], tuple[int, ...]] = {place: (at,) for place, at in kept.items()}
    order = [axis for axis in reversed(range(len(folds))) if folds[axis].kind != REPLICA]
    order += [axis for axis in reversed(range(len(folds))) if folds[axis].kind == REPLICA]
    odd: tuple[int, ...] = ()
    merged: dict[tuple[int, ...], PartValues]
    parts: dict[tuple[int, ...], tuple[int, ...]]
    for axis in order:
        groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for place in values:
            groups.setdefault((*place[:axis], 0, *place[axis + 1 :]), []).append(place)
        merged, parts = {}, {}
        for first, group in groups.items():
            chosen = [values[place] for place in group]
            if folds[axis].kind == REPLICA:
                worst = _farthest(chosen, other)
                if len(chosen) > 1:
                    odd = members[group[worst]]
                scale = 1 / grid.sizes[axis] if folds[axis].is_scaled else 1.0
                merged[first], parts[first] = scaled(chosen[worst], scale), members[group[worst]]
            else:
                whole = None
                if folds[axis].kind == SUM and grid.role.whole:
                    whole = grid.files[0].values(grid.role.whole)
                if grid.fixed[axis] is None and folds[axis].kind == SHARD:
                    # The sketch of a distributed tensor has the indices of its own ranks alone.
                    chosen = [replace(each, is_global=False) for each in chosen]
                merged[first] = _merged(chosen, folds[axis], blocks, whole)
                parts[first] = tuple(at for place in group for at in members[place])
        values, members = merged, parts
    return next(iter(values.values())), odd


def _merged(
    parts: Sequence[PartValues], fold: Fold, blocks: int, whole: PartValues | None
) -> PartValues:
    if fold.kind == SHARD:
        found = joined_parts(parts, fold.dim, blocks if _has_blocks(parts, fold, blocks) else 1)
    elif fold.kind == ROOT:
        found = rooted_parts(parts)
    else:
        found = added_parts(parts)
    found = scaled(found, 1 / len(parts)) if fold.is_scaled else found
    return found if whole is None else with_statistics_of(found, whole, len(parts))


def _has_blocks(parts: Sequence[PartValues], fold: Fold, blocks: int) -> bool:
    shape = parts[0].shape
    return blocks > 1 and bool(shape) and shape[fold.dim] % blocks == 0


def _farthest(replicas: Sequence[PartValues], other: PartValues | None) -> int:
    if len(replicas) == 1 or other is None:
        return 0
    apart = [distance_between(each, other).value or 0.0 for each in replicas]
    return max(range(len(apart)), key=lambda at: (apart[at], -at))


def _is_free(grid: PartGrid, folds: Sequence[Fold]) -> bool:
    """Return whether there are shards whose order no placement tells."""
    return any(
        fold.kind == SHARD and known is None for fold, known in zip(folds, grid.fixed, strict=True)
    )


def _is_moved(distance: JoinedDistance, *, is_dealt: bool) -> bool:
    """Return whether the same values stand in another order, or of tokens, in whatever order, others."""
    return distance.is_moved or (is_dealt and distance.is_apart)


def _orders(target: PartGrid, golden: PartGrid, way: JoinWay) -> list[int]:
    """Return the numbers of blocks that shards may have of a whole: a fused projection has two or three, and
    samples that were dealt out one by one as many as a rank has."""
    found = [1, 2, 3]
    for grid, folds in ((target, way.target), (golden, way.golden)):
        for fold in folds:
            if fold.kind == SHARD and grid.shapes[0]:
                found.append(grid.shapes[0][fold.dim])
    return list(dict.fromkeys(found))


def _without_order(values: PartValues) -> PartValues:
    return PartValues(values.shape, values.statistics)


def _odd_shards(
    target: PartGrid, way: JoinWay, ours: PartValues, theirs: PartValues
) -> tuple[int, ...]:
    """Return the shard that is off, where both wholes are known and one shard has all of the difference."""
    if len(way.target) != 1 or way.target[0].kind != SHARD:
        return ()
    if ours.array is None or theirs.array is None or ours.array.shape != theirs.array.shape:
        return ()
    dim, start, found = way.target[0].dim, 0, []
    for shape in target.shapes:
        place = [slice(None)] * len(shape)
        place[dim] = slice(start, start + shape[dim])
        start += shape[dim]
        one, two = (
            PartValues(shape, dict.fromkeys(FIELDS), each.array[tuple(place)])
            for each in (ours, theirs)
            if each.array is not None
        )
        found.append(distance_between(one, two).value or 0.0)
    worst = max(range(len(found)), key=found.__getitem__)
    others = max((each for at, each in enumerate(found) if at != worst), default=0.0)
    return (worst,) if found[worst] > _NEAR_SHARD and found[worst] > _TIMES * others else ()
