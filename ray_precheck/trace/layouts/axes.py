"""How the ranks of a run are laid out: stages of a pipeline, and in each a mesh of axes.

Comes in: the open captures of all ranks of a step, in their order, perhaps a layout that the user gave. Goes
out: a `SideLayout`. Called by `together`.

Where nothing is given, ranks with the same parameters are a stage, and the groups of the collectives (and the
meshes of DTensors) in their records say the sizes of its axes: as torch's meshes, the last axis varies
fastest.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_precheck.errors import UsageError
from ray_precheck.trace.items import Item, bare_name
from ray_precheck.trace.side import FORWARD, MODULE, CaptureSide

PIPELINE = "pp"
_AXIS = re.compile(r"([A-Za-z_]\w*)=([1-9]\d*)")
# The marks of a record that tells a group of ranks.
_GROUP, _MESH, _NAMED = b'"group_ranks"', b'"device_mesh"', b'"parameter"'


@dataclass(frozen=True, slots=True)
class LayoutStage:
    """Ranks that run the same part of the model. `ranks` are their positions among the captures of the side,
    in the order of their mesh, whose axes have these names and sizes, the slowest first. `lead` is the one
    whose calls stand for those of all, None for the first."""

    ranks: tuple[int, ...]
    axes: tuple[tuple[str, int], ...] = ()
    lead: int | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(size for _, size in self.axes)

    @property
    def first(self) -> int:
        """The rank whose calls stand for those of all."""
        return self.ranks[0] if self.lead is None else self.lead


@dataclass(frozen=True, slots=True)
class SideLayout:
    """The stages of a run, in the order of the model; one where there is no pipeline."""

    stages: tuple[LayoutStage, ...]

    @property
    def words(self) -> str:
        """The axes in words: `dp=2 x tp=2 ranks`, `2 x 2 ranks` where no names are known, `1 rank`."""
        first = self.stages[0]
        pairs = [(PIPELINE, len(self.stages))] if len(self.stages) > 1 else []
        pairs += first.axes
        said = [f"{name}={size}" if name else str(size) for name, size in pairs]
        return (
            (", " if PIPELINE in dict(pairs) else " x ").join(said) + " ranks" if said else "1 rank"
        )


def parsed_axes(text: str) -> tuple[tuple[str, int], ...]:
    """Read `dp=2,tp=2`, the slowest axis first; axes of one rank are left out.

    Raises:
        UsageError: it has another form, or an axis stands twice.
    """
    found: list[tuple[str, int]] = []
    for each in text.split(","):
        match = _AXIS.fullmatch(each.strip())
        if match is None or match[1] in (name for name, _ in found):
            raise UsageError(
                f"the layout {text!r} has {each!r} where an axis and its number of ranks are expected, each"
                " once, the slowest first: dp=2,tp=2"
            )
        found.append((match[1], int(match[2])))
    return tuple((name, size) for name, size in found if size > 1)


def side_layout(sides: Sequence[CaptureSide], given: str = "") -> SideLayout:
    """Return the layout of the ranks of a run: as it is given, or as their records tell.

    Raises:
        UsageError: the given layout has another number of ranks.
    """
    if given:
        return _given_layout(len(sides), given)
    if len(sides) == 1:
        return SideLayout((LayoutStage((0,)),))
    names = [_parameters(side) for side in sides]
    if any(not each for each in names):
        names = [frozenset() for _ in sides]
    members: dict[frozenset[str], list[int]] = {}
    for rank, each in enumerate(names):
        members.setdefault(each, []).append(rank)
    shared = frozenset.intersection(*members)
    is_pipeline = (
        len(members) > 1
        and len({len(each) for each in members.values()}) == 1
        and len(shared) * 2
        < min(map(len, members))  # Else experts, of which each rank has its own.
    )
    stages = list(members.values()) if is_pipeline else [list(range(len(sides)))]
    groups = set(itertools.chain.from_iterable(groups_of(sides[each[0]]) for each in stages))
    return SideLayout(tuple(LayoutStage(tuple(each), _axes(each, groups)) for each in stages))


def _given_layout(count: int, given: str) -> SideLayout:
    axes = parsed_axes(given)
    if math.prod(size for _, size in axes) != count:
        raise UsageError(
            f"the layout {given} is one of {math.prod(size for _, size in axes)} ranks, but there are {count}"
            " dumps of the step; give the sizes of all axes, the slowest first"
        )
    inner = tuple(axis for axis in axes if axis[0] != PIPELINE)
    stages: dict[int, list[int]] = {}
    for rank, place in enumerate(itertools.product(*(range(size) for _, size in axes))):
        stage = sum(at for at, (name, _) in zip(place, axes, strict=True) if name == PIPELINE)
        stages.setdefault(stage, []).append(rank)
    return SideLayout(tuple(LayoutStage(tuple(each), inner) for each in stages.values()))


def parameter_shapes(side: CaptureSide) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes that the parameters of a rank have in the calls that get them, by plain name."""
    found: dict[str, tuple[int, ...]] = {}
    for item in _named_items(side):
        found.setdefault(bare_name(item.state_name), item.shape or ())
    return found


def _named_items(side: CaptureSide) -> Iterator[Item]:
    for entry in side.entries:
        if _NAMED in side.raw(entry):
            yield from (item for item in side.items(entry) if item.is_tensor and item.state_name)


def _parameters(side: CaptureSide) -> frozenset[str]:
    """Return what tells the part of the model that a rank runs: its parameters, else its modules."""
    return frozenset(parameter_shapes(side)) or frozenset(
        entry.key for entry in side.entries if entry.kind == MODULE and entry.direction == FORWARD
    )


def groups_of(side: CaptureSide) -> Iterator[tuple[int, ...]]:
    """Yield the groups of ranks that a capture names: those of collectives, and each line of a mesh."""
    seen: set[str] = set()
    for entry in side.entries:
        raw = side.raw(entry)
        if _GROUP not in raw and _MESH not in raw:
            continue
        waiting: list[Any] = [side.record(entry)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list):
                waiting += value
            elif isinstance(value, dict):
                ranks, mesh = value.get("group_ranks"), value.get("device_mesh")
                waiting += [each for name, each in value.items() if name != "device_mesh"]
                if isinstance(ranks, list) and all(type(each) is int for each in ranks):
                    yield tuple(ranks)
                if isinstance(mesh, list) and str(mesh) not in seen:
                    seen.add(str(mesh))
                    yield from lines_of(mesh)


def lines_of(mesh: Any) -> Iterator[tuple[int, ...]]:
    """Yield the ranks along each dimension of a mesh, a list of lists of ranks."""
    import numpy as np

    try:
        ranks = np.array(mesh, np.int64)
    except (ValueError, TypeError):
        return
    for dim in range(ranks.ndim):
        for line in np.moveaxis(ranks, dim, -1).reshape(-1, ranks.shape[dim]):
            yield tuple(line.tolist())


def _axes(ranks: Sequence[int], groups: Iterable[Sequence[int]]) -> tuple[tuple[str, int], ...]:
    """Return the axes of ranks: a group of every s-th of them, k ranks long, is an axis that ends at s k."""
    count = len(ranks)
    if count == 1:
        return ()
    ends = {1, count}
    for group in groups:
        if not set(group) <= set(ranks) or not 1 < len(group) < count:
            continue
        places = sorted(ranks.index(rank) for rank in group)
        stride = places[1] - places[0]
        if all(b - a == stride for a, b in itertools.pairwise(places)):
            ends |= {stride, stride * len(places)}
    sizes, last = [], 1
    for end in sorted(ends):
        if end % last == 0 and count % end == 0 and end > last:
            sizes.append(end // last)
            last = end
    return tuple(("", size) for size in reversed(sizes))
