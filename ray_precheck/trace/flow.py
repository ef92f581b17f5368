"""The data flow of a capture: which record gave each value that a record gets.

Comes in: the records of a capture in the order of its file, which is that of the run, and the contents of
its tensors where they were read. Goes out: a `Flow`. Called by `walk`, for both sides.

A dump gives tensors no identity; captures of graphs do (`Item.variable`). Equal contents are the surest
sign of one tensor; then equal statistics: Max and Min to the last bit, Mean and Norm but for the order of
their sums, which a view changes. Where several records gave such a value the last one counts. A change in
place is a record that gives the changed value, so that later readers find it. A digest of the capture
(`md5`, which is a CRC-32 of the bytes) counts where it has no statistics.

Which calls of several ranks are one collective. A capture says in which group of ranks a collective ran;
the ranks of a group call its collectives in the same order. So the n-th `all_reduce` of a group on one rank
belongs to the n-th on each other rank. Sends and receives are counted for each pair of ranks, and a capture
may say the number of each since its process has begun (`sequence`), which holds where ranks captured other
steps. Without it the n-th send of a capture is the n-th receive of the other one, if there are as many.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ray_precheck.numerics.statistics import FIELDS, MAX, MIN
from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.items import INPUT, OUTPUT, Item, items_of
from ray_precheck.trace.side import CaptureSide, RecordEntry

# Sums of float32 in another order: as for `difference.elements`.
_CLOSE = 1e-5
# Of equal extremes (zeros, ones, masks) there may be thousands: so many of the last ones are looked at.
MOST_ALIKE = 16
_NO_CHANGES = ("__index__", "__int__", "__invert__", "__iter__")
Content = Callable[[str, str], str]


@dataclass(slots=True)
class FlowRecord:
    """A record with its values, read once: `outputs` are what it gives, `inputs` what it gets, which are
    arguments, parameters and incoming gradients."""

    entry: RecordEntry
    items: Sequence[Item]
    inputs: list[Item] = field(init=False)
    outputs: list[Item] = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = [item for item in self.items if item.part != OUTPUT]
        self.outputs = [item for item in self.items if item.part == OUTPUT]


class Producer(NamedTuple):
    """The record that gave a value: its key, the path of the value in it, and its place in the run.

    `by_content` says that the bytes agree; else the statistics do.
    """

    key: str
    path: str
    place: int
    by_content: bool


@dataclass(slots=True)
class Flow:
    """Who gave each value. `producers` has them by key and path of the getter; `used` are the keys and paths
    of values that a later record gets, `first` those of values that no record gave, at their first use."""

    producers: dict[tuple[str, str], Producer] = field(default_factory=dict)
    used: set[tuple[str, str]] = field(default_factory=set)
    first: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def producer(self, key: str, path: str) -> Producer | None:
        """Return who gave a value to a record; None where no record did."""
        return self.producers.get((key, path))

    def first_use(self, key: str, path: str) -> tuple[str, str] | None:
        """Return where a value that no record gave was got first; None for another value."""
        return self.first.get((key, path))

    def is_used(self, key: str, path: str) -> bool:
        """Return whether a later record gets a value that a record gave."""
        return (key, path) in self.used

    def readers(self) -> Mapping[str, str]:
        """Return the first record that gets what one gave, by its key."""
        found: dict[str, str] = {}
        for (reader, _), giver in self.producers.items():
            found.setdefault(giver.key, reader)
        return found


class _Given(NamedTuple):
    mean: Any
    norm: Any
    place: Producer


def flow_of(records: Iterable[FlowRecord], content: Content | None = None) -> Flow:
    """Return the data flow of a capture; `content` tells what the file of a value holds, "" for unknown."""
    flow = Flow()
    by_content: dict[tuple[str, int], Producer] = {}
    by_marks: dict[tuple[Any, ...], list[_Given]] = {}
    firsts: dict[tuple[Any, ...], tuple[str, str]] = {}
    for place, record in enumerate(records):
        key = record.entry.key
        for item in record.inputs:
            if item.element is None or not is_followed(item):
                continue
            found = _producer_of(key, item, content, by_content, by_marks)
            if found is not None:
                flow.producers[key, item.path] = found
                flow.used.add((found.key, found.path))
            else:
                mark = (*mark_of(item), item.norm, item.digest)
                flow.first[key, item.path] = firsts.setdefault(mark, (key, item.path))
        for item in record.outputs:
            if item.element is None or not is_followed(item):
                continue
            given_by = Producer(key, item.path, place, by_content=False)
            known = _identity(key, item, content)
            if known:
                by_content[known, _count(item)] = given_by._replace(by_content=True)
            given = _Given(item.mean, item.norm, given_by)
            alike = by_marks.setdefault(mark_of(item), [])
            alike.append(given)
            if len(alike) > MOST_ALIKE:
                del alike[0]
    return flow


def is_followed(item: Item) -> bool:
    """Return whether a value is a tensor with elements; numbers carry no identity."""
    return item.is_tensor and 0 not in item.element["shape"]  # type: ignore[index]


def _count(item: Item) -> int:
    return math.prod(item.shape or ())


def writes_in_place(call: str) -> bool:
    """Return whether a call changes its first argument, by its name: `add_`, `__setitem__`, `__iadd__`."""
    name = call.rpartition(".")[0].rpartition(".")[2]
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in _NO_CHANGES)
    return name.endswith("_")


def mark_of(item: Item) -> tuple[Any, ...]:
    """Return what all views of a tensor have in common; its digest where there are no statistics."""
    element = item.element or {}
    high, low = element.get(MAX), element.get(MIN)
    if type(high) is not float or type(low) is not float:  # nearly all are
        high = item.number(MAX)
        if high is None:
            return (item.dtype, _count(item), item.digest)
        low = item.number(MIN)
    # NaN is not equal to itself.
    return (item.dtype, _count(item), "nan" if high != high else high, "nan" if low != low else low)


def _producer_of(
    key: str,
    item: Item,
    content: Content | None,
    by_content: dict[tuple[str, int], Producer],
    by_marks: dict[tuple[Any, ...], list[_Given]],
) -> Producer | None:
    known = _identity(key, item, content)
    if known:
        found = by_content.get((known, _count(item)))
        if found is not None or item.variable:
            return found
    mark = mark_of(item)
    if mark[-1] in ("", None) and not known:
        return None
    alike = reversed(by_marks.get(mark, ()))
    return next((each.place for each in alike if is_close(item, each.mean, each.norm)), None)


def _identity(key: str, item: Item, content: Content | None) -> str:
    """Return what tells a tensor from others: its variable, else its bytes; "" where neither is known."""
    if item.variable:
        return f"variable {item.variable}"
    return content(key, item.path) if content else ""


def is_close(item: Item, given_mean: float | None, given_norm: float | None) -> bool:
    """Return whether a value's Mean and Norm agree with those that were given, but for the order of sums."""
    mean, norm = item.mean, item.norm
    if norm is None or given_norm is None or mean is None or given_mean is None:
        return norm is given_norm and mean is given_mean
    if not (math.isfinite(norm) and math.isfinite(given_norm)):
        return True
    root = math.sqrt(max(1, _count(item)))
    least = max(abs(mean), abs(given_mean), abs(norm) / root)
    return (
        math.isclose(norm, given_norm, rel_tol=_CLOSE) and abs(mean - given_mean) <= _CLOSE * least
    )


_PREFIXES = ("Distributed.", "MintDistributed.")
_SENDS, _RECEIVES = ("send", "isend"), ("recv", "irecv")
_WORLD = "world"
_RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


class Meeting(NamedTuple):
    """The collective that a record belongs to.

    `operation` is its name without prefix and number, `group` the ranks of its group as ranges, or the
    name of the group where the capture does not say these, and `number` counts the calls of this
    operation in this group. `peer` is the other rank of a send or receive, None of any other; `from_start`
    says that `number` counts since the process has begun, and not in this capture. Nothing can be said of the
    other end of a message that is `unpaired`: it came from any rank, or other messages of the capture have
    numbers, and it has none.
    """

    operation: str
    group: str
    number: int
    peer: int | None = None
    from_start: bool = False
    unpaired: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take part besides the own one; () where they are not known."""
        if self.peer is not None:
            return (self.peer,)
        return () if self.unpaired else ranks_in(self.group)

    def ends_on(self, rank: int) -> tuple[int, int]:
        """Return sender and receiver of a message; the same rank twice of what is none."""
        peer = rank if self.peer is None else self.peer
        return (rank, peer) if self.operation in _SENDS else (peer, rank)

    def name_on(self, rank: int) -> str:
        """Return what all records of the collective are called, whatever rank they are of."""
        alone = f", known on rank {rank} alone" if self.unpaired else ""
        if self.peer is None:
            return f"{self.operation}#{self.number} in {self.group}{alone}"
        sender, receiver = self.ends_on(rank)
        return f"from {sender} to {receiver}#{self.number}{alone}"


def is_collective(call: str) -> bool:
    """Return whether a call exchanges tensors with other ranks."""
    return call.startswith(_PREFIXES)


def operation_of(call: str) -> str:
    """Return the name of a collective without prefix and number: `all_reduce`, `functional.all_reduce`."""
    return call.rpartition(".")[0].partition(".")[2]


def overwritten(record: FlowRecord) -> tuple[str, ...]:
    """Return the paths of what a collective got and never read: a broadcast reads the tensors of one rank,
    which are those that did not change."""
    if not is_collective(record.entry.call):
        return ()
    if operation_of(record.entry.call) not in ("broadcast", "ddp_broadcast"):
        return ()
    tensors = [item for item in record.items if item.is_tensor]
    given = [item for item in tensors if item.part == OUTPUT]
    got = [item for item in tensors if item.part == INPUT]
    return tuple(
        item.path for item, after in zip(got, given, strict=False) if not _same(item, after)
    )


def _same(item: Item, other: Item) -> bool:
    names = (*FIELDS, "md5")
    return all(item.statistic(name) == other.statistic(name) for name in names)


def meetings_of(side: CaptureSide) -> dict[str, Meeting]:
    """Return the meetings of the collectives of a capture by the keys of their records."""
    counts: Counter[tuple[str, str, int | None]] = Counter()
    found = {}
    for entry in side.entries:
        if not is_collective(entry.call):
            continue
        record = side.record(entry)
        operation, group, _, peer, *_ = unnumbered_meeting(entry.call, record)
        sequence = record.get("sequence")
        if peer is not None and type(sequence) is int:
            found[entry.key] = Meeting(operation, group, sequence, peer, from_start=True)
            continue
        counted = _counted(operation, peer), group, peer
        from_anyone = peer is None and operation in (*_SENDS, *_RECEIVES)
        found[entry.key] = Meeting(operation, group, counts[counted], peer, unpaired=from_anyone)
        counts[counted] += 1
    if any(each.from_start for each in found.values()):
        for key, each in found.items():
            if each.peer is not None and not each.from_start:
                found[key] = each._replace(unpaired=True)
    return found


def unnumbered_meeting(call: str, record: Mapping[str, Any]) -> Meeting:
    """Return what a record alone tells of its collective; its number is 0."""
    operation, group = operation_of(call), _group_name(record)
    peer = _peer(operation, items_of(record), ranks_in(group))
    return Meeting(operation, group, 0, peer)


def uneven_ends(meetings: Iterable[tuple[int, Meeting]]) -> frozenset[tuple[tuple[int, int], str]]:
    """Return sender and receiver, and the group, of messages that captures count each for itself and that
    are not as many at both ends: which belongs to which is not known. Each meeting comes with its rank."""
    sent: Counter[tuple[tuple[int, int], str]] = Counter()
    for rank, each in meetings:
        if each.peer is not None and not each.from_start:
            sent[each.ends_on(rank), each.group] += 1 if each.operation in _SENDS else -1
    return frozenset(ends for ends, rest in sent.items() if rest)


def _counted(operation: str, peer: int | None) -> str:
    """Return what is counted together: `send` and `isend` are alike for their receiver."""
    return operation if peer is None else operation.removeprefix("i")


def _group_name(record: Mapping[str, Any]) -> str:
    """Return the ranks of a group; else its name, which MindSpore's collectives get as an argument."""
    told = record.get("group")
    ranks = told.get("group_ranks") if isinstance(told, dict) else None
    if isinstance(ranks, list) and ranks and set(map(type, ranks)) == {int}:
        return _ranges(tuple(ranks))
    named = record.get("input_kwargs")
    given = named.get("group") if isinstance(named, dict) else None
    name = given.get("value") if isinstance(given, dict) else None
    return name if isinstance(name, str) else _WORLD


@lru_cache(maxsize=256)
def _ranges(ranks: tuple[int, ...]) -> str:
    return ranges_of(ranks)


def _peer(operation: str, items: Sequence[Item], ranks: Sequence[int]) -> int | None:
    """Return the other rank, which may be told by its place in the group."""
    if operation not in (*_SENDS, *_RECEIVES):
        return None
    for path in ("input.1", "input.dst", "input.src", "input.group_dst", "input.group_src"):
        for item in items:
            value = (item.element or {}).get("value")
            if item.path == path and type(value) is int:
                if "group_" not in path:
                    return value
                return ranks[value] if 0 <= value < len(ranks) else None
    return None


@lru_cache(maxsize=256)
def ranks_in(ranges: str) -> tuple[int, ...]:
    """Return the ranks of ranges; () for what is none."""
    if not _RANGES.fullmatch(ranges):
        return ()
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
