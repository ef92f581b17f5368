"""Which calls of several ranks are one collective.

Comes in: an open capture. Goes out: the `Meeting` of each of its collectives. Called by the jobs that locate.

A capture says in which group of ranks a collective ran; the ranks of a group call its collectives in the same
order. So the n-th `all_reduce` of a group on one rank belongs to the n-th on each other rank. Sends and
receives are counted for each pair of ranks.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.trace.flow.flow import FlowRecord
from ray_precheck.trace.items import INPUT, OUTPUT, Item, items_of
from ray_precheck.trace.side import CaptureSide

_PREFIXES = ("Distributed.", "MintDistributed.")
_SENDS, _RECEIVES = ("send", "isend"), ("recv", "irecv")
_WORLD = "world"
_RANGES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


class Meeting(NamedTuple):
    """The collective that a record belongs to.

    `operation` is its name without prefix and number, `group` the ranks of its group as ranges, or the
    name of the group where the capture does not say these, and `number` counts the calls of this
    operation in this group. `peer` is the other rank of a send or receive, None of any other.
    """

    operation: str
    group: str
    number: int
    peer: int | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take part besides the own one; () where they are not known."""
        if self.peer is not None:
            return (self.peer,)
        return ranks_in(self.group)

    def name_on(self, rank: int) -> str:
        """Return what all records of the collective are called, whatever rank they are of."""
        if self.peer is None:
            return f"{self.operation}#{self.number} in {self.group}"
        ends = (rank, self.peer) if self.operation in _SENDS else (self.peer, rank)
        return f"from {ends[0]} to {ends[1]}#{self.number}"


def is_collective(call: str) -> bool:
    """Return whether a call exchanges tensors with other ranks."""
    return call.startswith(_PREFIXES)


def operation_of(call: str) -> str:
    """Return the name of a collective without prefix and number: `all_reduce`."""
    return call.rpartition(".")[0].rpartition(".")[2]


def overwritten(record: FlowRecord) -> tuple[str, ...]:
    """Return the paths of what a collective got and never read: a broadcast reads the tensor of one rank,
    which is the one that did not change."""
    if not is_collective(record.entry.call) or operation_of(record.entry.call) != "broadcast":
        return ()
    given = next((item for item in record.items if item.part == OUTPUT and item.is_tensor), None)
    return tuple(
        item.path
        for item in record.items
        if given is not None and item.part == INPUT and item.is_tensor and not _same(item, given)
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
        operation = operation_of(entry.call)
        group = _group_name(record)
        peer = _peer(operation, items_of(record, entry.key), ranks_in(group))
        counted = _counted(operation, peer), group, peer
        found[entry.key] = Meeting(operation, group, counts[counted], peer)
        counts[counted] += 1
    return found


def _counted(operation: str, peer: int | None) -> str:
    """Return what is counted together: `send` and `isend` are alike for their receiver."""
    return operation if peer is None else operation.removeprefix("i")


def _group_name(record: Mapping[str, Any]) -> str:
    """Return the ranks of a group; else its name, which MindSpore's collectives get as an argument."""
    told = record.get("group")
    ranks = told.get("group_ranks") if isinstance(told, dict) else None
    if isinstance(ranks, list) and ranks and all(type(each) is int for each in ranks):
        return ranges_of(ranks)
    named = record.get("input_kwargs")
    given = named.get("group") if isinstance(named, dict) else None
    name = given.get("value") if isinstance(given, dict) else None
    return name if isinstance(name, str) else _WORLD


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


def ranges_of(ranks: Sequence[int]) -> str:
    """Return ranks as ranges: `0-7,9`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


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
