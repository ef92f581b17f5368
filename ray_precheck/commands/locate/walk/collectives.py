"""What ranks tell of each other: an error that came through a collective was made elsewhere.

Comes in: what was found in the dump of each rank, one by one. Goes out: the same, with a root at each
collective whose ranks all got the right values and that gave wrong ones, and without the roots that lie
behind the arrival of an error of another rank. Called by the session when all dumps are there.

In the walk through one dump a collective is no operator: it may give what differs though its own rank got
the same as in the golden run. Such an arrival is explained where another rank of the group brought what
differs: for sums by the absolute differences of all addends over the norm of the result (Higham, Accuracy
and Stability of Numerical Algorithms, 2nd ed., section 1.7), for all others by the largest difference.

Also here: one rank's record of a collective, as the walk through its dump sees it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ray_precheck.commands.locate.walk.estimate import floor_of, stands_out
from ray_precheck.commands.locate.walk.nouns import (
    INHERITED,
    Passed,
    Root,
    RootKind,
    SeenRecord,
    SharedRecord,
    WalkState,
)
from ray_precheck.commands.locate.walk.places import DumpRoots
from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.items import Item

# As for a single record: an output that differs by more than so many times what explains it is wrong.
_SUSPICIOUS = 10.0
# Whole numbers have no rounding.
_SMALLEST = 1e-300
# What an error that arrived brings forth, or seems to: estimates, values whose giver nobody knows, and calls
# that only one run has, which differences point out.
_BROUGHT = (RootKind.ESTIMATE, RootKind.GAP, RootKind.CALL)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What a recomputation of a collective says of one rank's record: `own` is in units of what the
    rounding of its sums explains, `place` counts the records of the run, `where` is in the value `item`."""

    key: str
    place: int
    own: float
    is_wrong: bool
    item: str = ""
    where: str = ""
    message: str = ""


Measured = Mapping[str, Sequence[Recomputed]]


class _Met(NamedTuple):
    """One rank's record of a collective."""

    dump: int
    shared: SharedRecord


@dataclass(frozen=True, slots=True)
class _Cause:
    """The rank and the root from which an error came."""

    rank: str
    key: str


def joined_dumps(dumps: Sequence[DumpRoots], measured: Measured | None = None) -> list[DumpRoots]:
    """Return what was found in the dumps, with what the ranks tell of each other.

    `measured` has the recomputed collectives by the label of the dump, where the files of all ranks were
    there.
    """
    return _Joining(dumps, measured or {}).run()


class _Joining:
    def __init__(self, dumps: Sequence[DumpRoots], measured: Measured) -> None:
        self._dumps = dumps
        self._measured = {
            label: {each.key: each for each in some} for label, some in measured.items()
        }
        self._met: dict[tuple[str, str], list[_Met]] = defaultdict(list)
        self._ranks: dict[str, set[int]] = defaultdict(set)
        for number, dump in enumerate(dumps):
            rank = _number(dump.rank)
            self._ranks[dump.step].add(rank)
            for shared in dump.located.shared:
                self._met[dump.step, shared.meeting.name_on(rank)].append(_Met(number, shared))

    def run(self) -> list[DumpRoots]:
        joined = [self._joined(number, dump) for number, dump in enumerate(self._dumps)]
        differing = (
            each
            for each in joined
            if each.located.roots
            or each.located.shared
            or any(map(_is_weight, each.located.silent))
        )
        last = max((_number(each.step) for each in differing), default=-1)
        return [_with_silent(each) if _number(each.step) <= last else each for each in joined]

    def _joined(self, number: int, dump: DumpRoots) -> DumpRoots:
        known = self._measured.get(dump.label, {})
        wrong = [_wrong_root(each) for each in known.values() if each.is_wrong]
        roots = [*dump.located.roots, *wrong]
        passed = [each for each in dump.located.passed if each.key not in known]
        passed += self._passed_on(dump, known)
        arrived: tuple[int, _Cause] | None = None
        for shared in dump.located.shared:
            if not shared.arrives or any(root.key == shared.key for root in wrong):
                continue
            found = self._judged(dump, _Met(number, shared))
            if isinstance(found, Root):
                roots.append(found)
            elif found is not None:
                passed.append(_inherited(shared.key, shared.direction, shared.place, found))
                arrived = arrived or (shared.place, found)
        if arrived is not None:
            place, cause = arrived
            later = [root for root in roots if root.place > place and root.kind in _BROUGHT]
            roots = [root for root in roots if root not in later]
            passed += [
                _inherited(root.key, root.direction, root.place, cause, root) for root in later
            ]
        located = replace(
            dump.located,
            roots=sorted(roots, key=lambda root: root.place),
            passed=sorted(passed, key=lambda each: each.place),
            judged=dump.located.judged + len(known),
        )
        return dump._replace(located=located)

    def _passed_on(self, dump: DumpRoots, known: Mapping[str, Recomputed]) -> Iterator[Passed]:
        """Yield the collectives that are right, and only pass on what the own rank brought."""
        for shared in dump.located.shared:
            found = known.get(shared.key)
            if found is not None and not found.is_wrong and not shared.arrives:
                yield Passed(INHERITED, shared.key, shared.direction, shared.place, found.own)

    def _judged(self, dump: DumpRoots, met: _Met) -> "Root | _Cause | None":
        """Return what an arrival is: a root, or inherited from a cause; None for nothing."""
        shared = met.shared
        meeting = shared.meeting
        others = self._met[dump.step, meeting.name_on(_number(dump.rank))]
        senders = [each for each in others if not each.shared.arrives]
        known = self._measured.get(dump.label, {}).get(shared.key)
        is_right = known is not None and not known.is_wrong
        is_explained = is_right or _explains([each.shared for each in others], shared)
        if senders and is_explained:
            return self._cause(max(senders, key=lambda each: each.shared.got_size))
        if not senders and (beyond := self._beyond(dump, met)) is not None:
            return beyond
        if is_explained:
            return None  # The result is the sum of what came in: rounding that cancellation made large.
        absent = sorted(set(meeting.ranks) - self._ranks[dump.step])
        if meeting.unpaired:
            said, kind = _unpaired(shared), RootKind.GAP
        elif absent and not senders:
            said = _absent(shared, absent)
            kind = RootKind.GAP
        else:
            said, kind = self._wrong(dump, shared, others), RootKind.COLLECTIVE
        return Root(
            kind, shared.key, shared.direction, shared.place, shared.item,
            own=shared.gave / max(shared.floor, shared.got, _SMALLEST), message=said,
        )  # fmt: skip

    def _wrong(self, dump: DumpRoots, shared: SharedRecord, others: Iterable[_Met]) -> str:
        """Return the sentence about a collective that gave what its inputs do not explain."""
        ranks = [self._dumps[each.dump].rank for each in others if each.shared.arrives]
        group = shared.meeting.group
        told = f"the ranks {group}" if group[:1].isdigit() else f"the group {group}"
        if shared.meeting.peer is not None:
            told = f"rank {shared.meeting.peer}"
        return (
            f"what it got from {told} is that of the golden run, and what it gave differs by"
            f" {shared.gave:.3g} of its norm on {_named(ranks)}: the collective itself is wrong"
        )

    def _beyond(self, dump: DumpRoots, met: _Met) -> _Cause | None:
        """Return a sender whose record of a late collective was left out, because it has so many."""
        meeting = met.shared.meeting
        told = {each.dump for each in self._met[dump.step, meeting.name_on(_number(dump.rank))]}
        for number, other in enumerate(self._dumps):
            if number in told or other.step != dump.step or not other.located.shared_left_out:
                continue
            if not meeting.ranks or _number(other.rank) in meeting.ranks:
                return self._cause(_Met(number, other.located.shared[-1]))
        return None

    def _cause(self, met: _Met, seen: frozenset[tuple[int, str]] = frozenset()) -> _Cause:
        """Return where the error of a rank that takes part in a collective comes from: its first root
        before, else the sender of what arrived there before."""
        dump, shared = self._dumps[met.dump], met.shared
        roots = [root for root in dump.located.roots if root.place <= shared.place]
        firm = [root for root in roots if root.kind not in _BROUGHT]
        before = [
            each
            for each in dump.located.shared
            if each.arrives and each.place < shared.place and (met.dump, each.key) not in seen
        ]
        first = min([*firm, *roots], key=lambda root: root.place, default=None)
        if first is not None and not (before and before[0].place < first.place):
            return _Cause(dump.rank, first.key)
        for arrival in before:
            others = self._met[dump.step, arrival.meeting.name_on(_number(dump.rank))]
            senders = [each for each in others if not each.shared.arrives]
            if senders:
                told = max(senders, key=lambda each: each.shared.got_size)
                return self._cause(told, seen | {(met.dump, arrival.key)})
        return _Cause(dump.rank, first.key if first is not None else shared.key)


def _with_silent(dump: DumpRoots) -> DumpRoots:
    """Return what was found in a dump, with the collectives and updates that only one run has: something
    differs, here or later, for which they may be the cause."""
    located = dump.located
    silent = [root for root in located.silent if not _is_weight(root)]
    if not silent:
        return dump
    roots = sorted([*located.roots, *silent], key=lambda root: root.place)
    return dump._replace(located=replace(located, roots=roots))


def _is_weight(root: Root) -> bool:
    return root.kind is RootKind.WEIGHT


def _explains(all_shared: Sequence[SharedRecord], arrival: SharedRecord) -> bool:
    """Return whether what the ranks brought explains what came out."""
    largest = max((each.got for each in all_shared), default=0.0)
    carried = largest
    if arrival.gave_norm > 0:
        sizes = [each.got_size for each in all_shared if math.isfinite(each.got_size)]
        carried = sum(sizes) / arrival.gave_norm
    return not arrival.gave > _SUSPICIOUS * max(largest, carried, arrival.floor)


def _wrong_root(found: Recomputed) -> Root:
    direction = found.key.rpartition(".")[2]
    return Root(
        RootKind.COLLECTIVE, found.key, direction, found.place, found.item, own=found.own,
        index=found.where, message=found.message,
    )  # fmt: skip


def _inherited(
    key: str, direction: str, place: int, cause: _Cause, root: Root | None = None
) -> Passed:
    own, inherited = (root.own, root.inherited) if root is not None else (None, None)
    said = f"inherited from rank {cause.rank} ({cause.key})"
    return Passed(INHERITED, key, direction, place, own, inherited, said)


def _unpaired(shared: SharedRecord) -> str:
    return (
        f"it gave what differs by {shared.gave:.3g} of its norm, while this rank got the same as in the"
        " golden run: which message of which rank arrived here is not known (it is unpaired)"
    )


def _absent(shared: SharedRecord, absent: Sequence[int]) -> str:
    return (
        f"it gave what differs by {shared.gave:.3g} of its norm, while this rank got the same as in the"
        f" golden run: it came from {_named(list(map(str, absent)))}, whose capture is not here"
    )


def _named(ranks: Sequence[str]) -> str:
    """Return ranks in words: `rank 3`, `the ranks 0-7`."""
    known = ranges_of([_number(rank) for rank in ranks])
    return f"rank {known}" if len(set(ranks)) == 1 else f"the ranks {known}"


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def shared_record(state: WalkState, seen: SeenRecord, *, is_affected: bool) -> SharedRecord | None:
    """Return what other ranks have to know of a collective; None where it got and gave nothing new."""
    meeting = state.meetings.get(seen.record.entry.key)
    if meeting is None:
        return None
    got, got_norm, _, floor = _largest(seen, seen.record.inputs)
    gave, gave_norm, item, other = _largest(seen, seen.record.outputs)
    # A rank that passes on what differs counts too where nobody knows why: weights since an earlier step.
    arrives = item is not None and stands_out(gave, got, item.dtype, is_gradient=False)
    brings = got > _SUSPICIOUS * floor
    if not (is_affected or arrives or brings):
        return None
    arrives = not is_affected and (arrives or not brings)
    entry = seen.record.entry
    return SharedRecord(
        entry.key, entry.direction, seen.place, meeting, arrives, got, got_norm, gave, gave_norm,
        max(floor, other), item.path if item else "",
    )  # fmt: skip


def _largest(seen: SeenRecord, items: Sequence[Item]) -> tuple[float, float, Item | None, float]:
    """Return the largest known difference of some tensors, the norm and the item of it, and its rounding."""
    worst, norm, found, floor = 0.0, 0.0, None, 0.0
    for item in items:
        floor = max(floor, floor_of(item.dtype))
        if seen.difference(item.path) > worst:
            size = item.norm
            worst, found = seen.difference(item.path), item
            norm = size if size is not None and math.isfinite(size) else 0.0
    return worst, norm, found, floor
