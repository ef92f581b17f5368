"""Where a value that differs from the golden run's belongs: to another rank, or to another call of its own.

Comes in: what was found in the dump of each rank, and the dumps. Goes out: the same, where a root whose value
another rank, or another call of the same operator, has in the golden run says so: "rank 1 has rank 0's part",
"rank 1 has rank 0's samples". Called by the search when all dumps are there. Golden records of other ranks
are read for the first roots alone, of the nearest ranks first.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ray_precheck.commands.locate.walk.nouns import Root, RootKind
from ray_precheck.commands.locate.walk.places import DumpRoots
from ray_precheck.dump.tensors import read_sketches, sketch_of
from ray_precheck.errors import DumpError
from ray_precheck.numerics.sketch import Array, estimated_norm
from ray_precheck.numerics.statistics import STATISTICS
from ray_precheck.trace.items import Item, bare_name, parameter_names, parameter_place
from ray_precheck.trace.side import API, CaptureSide, RecordEntry, open_side

# So many dumps are open at a time, so many roots of a dump are looked at, and so many alike of a step.
_OPEN, _ROOTS, _ALIKE = 8, 4, 4
# So many other ranks are asked, and so many other calls of the same operator.
_RANKS, _CALLS = 16, 32
# Sums of float32 in another order; of sketches twice as much.
_CLOSE = 1e-5
_OPTIMIZER = "Optimizer."
_ASKED = (RootKind.WEIGHT, RootKind.INPUT, RootKind.MASK)


class DumpPlace(NamedTuple):
    """A dump of the target and its golden one."""

    target: Path
    golden: Path


class _Value(NamedTuple):
    """A tensor and its sketch, None where it has none."""

    item: Item
    sketch: Array | None


def told_by_ranks(dumps: Sequence[DumpRoots], places: Mapping[str, DumpPlace]) -> list[DumpRoots]:
    """Return what was found, with roots that say whose value they have; `places` are by labels of dumps."""
    with _Dumps() as opened:
        return list(_told(dumps, places, opened))


def _told(
    dumps: Sequence[DumpRoots], places: Mapping[str, DumpPlace], opened: "_Dumps"
) -> Iterator[DumpRoots]:
    by_step: dict[str, list[DumpRoots]] = {}
    for dump in dumps:
        if dump.label in places:
            by_step.setdefault(dump.step, []).append(dump)
    asked: dict[tuple[str, str, str], int] = {}
    for dump in dumps:
        roots = [root for root in dump.located.roots if root.kind in _ASKED and not root.cause]
        named = {}
        for root in roots[:_ROOTS] if dump.label in places else ():
            alike = dump.step, root.key, root.item
            asked[alike] = asked.get(alike, 0) + 1
            if asked[alike] <= _ALIKE:
                named[id(root)] = _named(dump, root, by_step[dump.step], places, opened)
        told = [named.get(id(root)) or root for root in dump.located.roots]
        told += _stale(dump, dumps, places, opened)
        yield dump._replace(located=replace(dump.located, roots=told))


def _stale(
    dump: DumpRoots,
    dumps: Sequence[DumpRoots],
    places: Mapping[str, DumpPlace],
    opened: "_Dumps",
) -> Iterator[Root]:
    """Yield the weights of a later step that are not what the update of the step before gave on this rank,
    though they are in the golden run."""
    weights = [root for root in dump.located.silent if root.kind is RootKind.WEIGHT]
    if not weights or dump.label not in places or not dump.step.isdigit():
        return
    before = [
        each
        for each in dumps
        if each.rank == dump.rank and each.step.isdigit() and each.label in places
        and int(each.step) < int(dump.step)
    ]  # fmt: skip
    last = max(before, key=lambda each: int(each.step), default=None)
    if last is None or int(last.step) != int(dump.step) - 1:
        return
    try:
        for root in weights:
            kept = [
                _has_kept(opened.of(now), opened.of(then), root)
                for now, then in zip(places[dump.label], places[last.label], strict=True)
            ]
            if kept[0] is False and kept[1] is True:
                who = f"rank {dump.rank}" if dump.rank else "the run"
                said = (
                    f"{root.message}: {who} does not begin step {dump.step} with what its update"
                    f" in step {last.step} gave: something changed the parameter since"
                )
                yield replace(root, cause="stale parameter", message=said)
    except (DumpError, OSError):
        return


def _has_kept(now: "_Opened", then: "_Opened", root: Root) -> bool | None:
    """Return whether a step begins with the parameter that the update of the step before gave; None where
    one of both is not known."""
    begun = next(now.values(root.key, root.item), None)
    updated = then.updated(begun.item.state_name) if begun is not None else None
    return None if begun is None or updated is None else _is_one(begun, updated)


def _named(
    dump: DumpRoots,
    root: Root,
    step: Sequence[DumpRoots],
    places: Mapping[str, DumpPlace],
    opened: "_Dumps",
) -> Root | None:
    """Return a root that says whose value it has; None where that is not found."""
    try:
        mine = opened.of(places[dump.label].target)
        own = list(mine.values(root.key, root.item))
        for other in _nearest(dump, step):
            theirs = opened.of(places[other.label].golden)
            found = list(theirs.values(root.key, root.item))
            if _are_one(own, found):
                return _of_rank(dump.rank, other.rank, root, own[0].item, found[0].item)
            state = mine.random_state(root.key) if root.kind is RootKind.MASK else ""
            if state and state == theirs.random_state(root.key):
                return _same_mask(dump.rank, other.rank, root)
        if root.kind is RootKind.INPUT:
            here = opened.of(places[dump.label].golden)
            for key in here.siblings(root.key):
                if _are_one(own, list(here.values(key, root.item))):
                    said = f"{root.message}: it is what the golden run has at {key} (swapped)"
                    return replace(root, cause=f"swapped with {key}", message=said)
    except (DumpError, OSError):
        return None
    return None


def _nearest(dump: DumpRoots, step: Sequence[DumpRoots]) -> list[DumpRoots]:
    own = int(dump.rank) if dump.rank.isdigit() else 0
    others = [each for each in step if each.rank != dump.rank and each.rank.isdigit()]
    return sorted(others, key=lambda each: abs(int(each.rank) - own))[:_RANKS]


def _of_rank(rank: str, other: str, root: Root, mine: Item, theirs: Item) -> Root:
    if root.kind is RootKind.WEIGHT:
        is_other = mine.state_name != theirs.state_name
        cause = f"rank {rank} has rank {other}'s {theirs.state_name if is_other else 'part'}"
        said = f"{root.message}: {cause}, as the golden run's rank {other} has it (a wrong slice)"
    elif root.kind is RootKind.INPUT:
        cause = f"rank {rank} has rank {other}'s samples"
        said = f"{root.message}: {cause}, as the golden run's rank {other} has them"
    else:
        cause = f"rank {rank} draws rank {other}'s random numbers"
        said = f"{root.message}: {cause} (samples or a mask)"
    return replace(root, cause=cause, message=said)


def _same_mask(rank: str, other: str, root: Root) -> Root:
    cause = f"ranks {other} and {rank} draw the same mask"
    said = (
        f"{root.message}: rank {rank} begins with the random state of the golden run's rank {other}"
    )
    return replace(root, cause=cause, message=said)


def _are_one(ours: Sequence[_Value], theirs: Sequence[_Value]) -> bool:
    """Return whether both are the same tensors, none of which is a constant."""
    return bool(ours) and len(ours) == len(theirs) and all(map(_is_one, ours, theirs))


def _is_one(mine: _Value, other: _Value) -> bool:
    one, two = mine.item, other.item
    if one.dtype != two.dtype or one.shape != two.shape or one.ends != two.ends:
        return False
    if one.digest and two.digest:
        return one.digest == two.digest
    if one.ends[0] == one.ends[1]:
        return False
    if mine.sketch is not None and other.sketch is not None:
        norm = float(estimated_norm(other.sketch))
        return float(estimated_norm(mine.sketch - other.sketch)) <= _CLOSE * norm
    numbers = [(one.number(each.field), two.number(each.field)) for each in STATISTICS]
    if any(a is None or b is None for a, b in numbers):
        return False
    least = float(two.norm or 0.0) / math.sqrt(max(1, math.prod(two.shape or ())))
    return all(
        abs(a - b) <= _CLOSE * max(abs(b), least)
        for a, b in numbers
        if a is not None and b is not None
    )


class _Opened:
    """An open dump, its records by key, and its sketches."""

    def __init__(self, side: CaptureSide) -> None:
        self._side = side
        self._entries: dict[str, RecordEntry] = {entry.key: entry for entry in side.entries}
        self._sketches = read_sketches(side.folder)

    def values(self, key: str, path: str) -> Iterator[_Value]:
        """Yield a value of a record; without a path the tensors that it gave."""
        if key not in self._entries:
            return
        for item in self._side.items(self._entries[key]):
            if item.is_tensor and (item.path == path if path else item.path.startswith("output")):
                yield self._value(item)

    def updated(self, name: str) -> _Value | None:
        """Return a parameter as the last update has left it; None where no update has its name."""
        found = None
        for entry in self._side.entries if name else ():
            if not entry.key.startswith(_OPTIMIZER):
                continue
            items = self._side.items(entry)
            names = parameter_names(items)
            for item in items:
                is_left = item.path.startswith("output.") and ".params." in item.path
                place = parameter_place(item) if is_left else None
                if place is not None and names.get(place) == bare_name(name):
                    found = self._value(item)
        return found

    def _value(self, item: Item) -> _Value:
        sketch = None
        if len(self._sketches) and item.element is not None:
            sketch = sketch_of(item.element, self._sketches)
        return _Value(item, sketch)

    def random_state(self, key: str) -> str:
        """Return the digest of the random state that a call began with, "" where it is not known."""
        if key not in self._entries:
            return ""
        found = self._side.record(self._entries[key]).get("generator")
        return found if isinstance(found, str) else ""

    def siblings(self, key: str) -> Iterable[str]:
        """Return the other calls of an operator, in the order of the run."""
        entry = self._entries.get(key)
        if entry is None:
            return ()
        name = entry.call.rpartition(".")[0]
        alike = [
            each.key
            for each in self._side.entries
            if each.kind == API
            and each.direction == entry.direction
            and each.key != key
            and each.call.rpartition(".")[0] == name
        ]
        return alike[:_CALLS]


class _Dumps(ExitStack):
    """The dumps that are read, of which the latest few stay open."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: OrderedDict[Path, tuple[_Opened, ExitStack]] = OrderedDict()
        self.callback(self._close)

    def of(self, path: Path) -> _Opened:
        """Return an open dump.

        Raises:
            DumpError: it cannot be read.
        """
        if path in self._opened:
            self._opened.move_to_end(path)
            return self._opened[path][0]
        held = ExitStack()
        found = _Opened(held.enter_context(open_side(str(path))))
        self._opened[path] = found, held
        if len(self._opened) > _OPEN:
            self._opened.popitem(last=False)[1][1].close()
        return found

    def _close(self) -> None:
        for _, held in self._opened.values():
            held.close()
