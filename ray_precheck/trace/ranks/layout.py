"""How the ranks of a run are laid out: which of them do what together.

Comes in: the summaries of all dumps, or what a user says (`--layout dp=2,tp=2`). Goes out: a `RankLayout`.
Called before the checks. A group is told by its collectives: what they carry is found by its values among the
gradients of parameters; parameters that the ranks have as parts of their own, and sends, tell its kind.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ray_precheck.errors import UsageError
from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.items import INPUT, OUTPUT, Item, bare_name, items_of
from ray_precheck.trace.ranks.nouns import (
    ExchangeFact,
    RankGroup,
    RankLayout,
    RankTrace,
    TensorFact,
)
from ray_precheck.trace.ranks.summary import fact_of, named_tensors
from ray_precheck.trace.ranks.together import have_gradients_alike, train_together
from ray_precheck.trace.side import record_from_json

GRAMMAR = "axes with their sizes, the leftmost varying slowest, as in dp=2,tp=2"
DATA, TENSOR, PIPELINE, CONTEXT, EXPERT, UNKNOWN = "dp", "tp", "pp", "cp", "ep", "unknown"
# What these bring is the same for all from one rank: samples, weights.
_COPIES = ("broadcast", "scatter", "gather", "send", "recv")
# Ranks by their numbers, of one step.
Ranks = Mapping[int, RankTrace]
# So many ranks of a group are asked what its collectives carry: they run one program.
_ASKED = 8
# A gradient that was only scaled after its collective keeps the ratios of its statistics so well.
_SAME_RATIO = 1e-5


def parse_layout(text: str) -> tuple[tuple[str, int], ...]:
    """Return the axes that a user names, with their sizes.

    Raises:
        UsageError: the text is something else.
    """
    axes: list[tuple[str, int]] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isdecimal() or not int(size):
            raise UsageError(f"--layout: {part!r} is no axis; expected {GRAMMAR}")
        if name in dict(axes):
            raise UsageError(f"--layout names the axis {name} twice; expected {GRAMMAR}")
        axes.append((name, int(size)))
    return tuple(axes)


def layout_of_axes(axes: Sequence[tuple[str, int]], ranks: Iterable[int]) -> RankLayout:
    """Return the groups of axes: ranks that differ in one axis alone.

    Raises:
        UsageError: the sizes do not give the number of ranks.
    """
    there = set(ranks)
    total = math.prod(size for _, size in axes)
    if total <= max(there, default=0):
        said = " x ".join(str(size) for _, size in axes)
        raise UsageError(
            f"--layout: {said} is {total} ranks, and the capture has rank {max(there)}; expected {GRAMMAR}"
        )
    groups = []
    for place, (name, size) in enumerate(axes):
        step = math.prod(other for _, other in axes[place + 1 :])
        others = [
            [number * math.prod(o for _, o in axes[at + 1 :]) for number in range(other)]
            for at, (_, other) in enumerate(axes)
            if at != place
        ]
        for offsets in product(*others):
            begin = sum(offsets)
            members = tuple(begin + number * step for number in range(size))
            if len(there.intersection(members)) > 1:
                groups.append(RankGroup(name, members, "--layout"))
    return RankLayout(tuple(groups), tuple(axes))


@dataclass(slots=True)
class GroupEvidence:
    """What the collectives of a group carry: the `reduced` parameters, by whose gradients; `sharded` ones,
    which FSDP gathers; the operations of the `forward` pass; the `makers` that are not the program."""

    reduced: dict[str, str] = field(default_factory=dict)
    sharded: set[str] = field(default_factory=set)
    forward: Counter[str] = field(default_factory=Counter)
    makers: Counter[str] = field(default_factory=Counter)


def evidence_of(steps: Sequence[Ranks]) -> dict[tuple[int, ...], GroupEvidence]:
    """Return what the collectives carry, by the ranks of their group."""
    found: dict[tuple[int, ...], GroupEvidence] = defaultdict(GroupEvidence)
    for ranks in steps:
        seen: Counter[tuple[int, ...]] = Counter()
        for _, summary in sorted(ranks.items()):
            groups = {each.meeting.ranks for each in summary.exchanges if each.meeting.peer is None}
            groups = {members for members in groups if seen[members] < _ASKED}
            if not groups:
                continue
            seen.update(groups)
            gradients = _Gradients(summary)
            first_backward = next(
                (at for at, key in enumerate(summary.keys) if ".backward" in key),
                len(summary.keys),
            )
            for each in summary.exchanges:
                members = each.meeting.ranks
                if members in groups and each.meeting.peer is None and len(members) > 1:
                    _take(found[members], each, summary, gradients, each.place < first_backward)
    return dict(found)


def _take(
    evidence: GroupEvidence,
    each: ExchangeFact,
    summary: RankTrace,
    gradients: "_Gradients",
    is_forward: bool,
) -> None:
    record = record_from_json(each.raw)
    maker = record.get("by")
    named = record.get("parameters")
    names = [bare_name(name) for name in named if isinstance(name, str)] if named else []
    operation = each.meeting.operation.removeprefix("functional.")
    if isinstance(maker, str) and maker:
        evidence.makers[maker] += 1
        if maker.startswith("FSDP"):
            if "all_reduce" not in operation:
                evidence.sharded.update(names)
                return
        elif operation == "ddp_all_reduce":
            evidence.reduced.update(dict.fromkeys(names, "DistributedDataParallel reduces it"))
            return
    facts = [(item, exchanged_fact(item, summary)) for item in items_of(record) if item.is_tensor]
    if "all_reduce" in operation:
        for item, fact in facts:
            name = gradients.named(fact, is_before=item.part == INPUT)
            if name:
                evidence.reduced[name] = "its gradient is reduced over them"
                return
    if (
        is_forward
        and operation not in _COPIES
        and any(item.part == OUTPUT and len(fact.shape) > 1 for item, fact in facts)
    ):
        evidence.forward[operation] += 1


def exchanged_fact(item: Item, summary: RankTrace) -> TensorFact:
    """Return what the kept record of a collective says of a tensor."""
    row = item.statistic("sketch")
    is_known = type(row) is int and 0 <= row < len(summary.sketches)
    return fact_of(item, summary.sketches[row] if is_known else None)


class _Gradients:
    """The gradients of a dump, to be found by their values."""

    def __init__(self, summary: RankTrace) -> None:
        self._before = {
            fact.checksum: name for name, fact in summary.gradients.items() if not fact.is_constant
        }
        self._after: dict[tuple[int, ...], list[tuple[str, TensorFact]]] = defaultdict(list)
        for name, update in summary.updates.items():
            if update.gradient is not None and not update.gradient.is_constant:
                self._after[update.gradient.shape].append((name, update.gradient))

    def named(self, fact: TensorFact, *, is_before: bool) -> str:
        """Return the parameter whose gradient a collective got or gave, but for a factor; "" for none."""
        if is_before:
            return self._before.get(fact.checksum, "")
        return next(
            (name for name, other in self._after.get(fact.shape, ()) if factor_of(fact, other)), ""
        )


def factor_of(one: TensorFact, other: TensorFact) -> float:
    """Return by which positive factor all statistics of `other` are those of `one`; 0.0 where there is no
    such factor. Constant tensors have none."""
    if one.is_constant or other.is_constant or not one.statistics[3] or one.shape != other.shape:
        return 0.0
    factor = other.statistics[3] / one.statistics[3]
    scale = factor * one.statistics[3] / math.sqrt(max(1, one.size))
    if not math.isfinite(scale) or not scale:
        return 0.0
    pairs = zip(one.statistics[:3], other.statistics[:3], strict=True)
    close = all(abs(a * factor - b) <= _SAME_RATIO * max(abs(b), scale) for a, b in pairs)
    return factor if close else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The parameters that all ranks of a group have in one shape, at the start of the first step: which
    agree, which differ, and which agree but are constant, so that nothing can be told."""

    agree: frozenset[str] = frozenset()
    differ: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    own: int = 0


def spread_of(step: Ranks, members: Iterable[int]) -> Spread:
    """Return how the parameters of some ranks agree; `own` counts those that not all of them have."""
    known = [dict(named_tensors(step[rank])) for rank in members if rank in step]
    if len(known) < 2:
        return Spread()
    sets: dict[str, set[str]] = {"agree": set(), "differ": set(), "constant": set()}
    own = 0
    for name in dict.fromkeys(name for each in known for name in each):
        facts = [each[name] for each in known if name in each]
        if len(facts) < len(known) or len({fact.shape for fact in facts}) > 1:
            own += 1
        elif any(not fact.is_same(facts[0]) for fact in facts):
            sets["differ"].add(name)
        else:
            sets["constant" if facts[0].is_constant else "agree"].add(name)
    agree, differ, constant = (frozenset(each) for each in sets.values())
    return Spread(agree, differ, constant, own)


def infer_layout(
    steps: Sequence[Ranks], evidence: Mapping[tuple[int, ...], GroupEvidence]
) -> RankLayout:
    """Return the groups that the records and the values tell of."""
    if not steps:
        return RankLayout()
    groups: dict[tuple[int, ...], RankGroup] = {}
    for members, each in sorted(evidence.items()):
        first = next((ranks for ranks in steps if len(ranks.keys() & set(members)) > 1), None)
        if first is not None:
            groups[members] = _group(members, each, spread_of(first, members))
    for group in _meshes(steps[0]):
        if groups.get(group.ranks, group).kind in (UNKNOWN, group.kind):
            groups[group.ranks] = group
    for group in (*_pipelines(steps), *_by_agreement(steps, list(groups.values()))):
        if groups.get(group.ranks, group).kind in (UNKNOWN, group.kind):
            groups[group.ranks] = group
    return RankLayout(tuple(groups[members] for members in sorted(groups)))


def _meshes(step: Ranks) -> list[RankGroup]:
    """Return the groups of the meshes of distributed tensors: those that calls get are tensor-parallel, those
    of parameters alone are gathered before they are used."""
    found: dict[tuple[int, ...], RankGroup] = {}
    for kind, of in ((TENSOR, "call_meshes"), (DATA, "own_meshes")):
        told = "calls get" if kind == TENSOR else "parameters have"
        for mesh in sorted({mesh for summary in step.values() for mesh in getattr(summary, of)}):
            numbers = np.array(json.loads(mesh))
            for axis in range(numbers.ndim):
                for members in np.moveaxis(numbers, axis, -1).reshape(-1, numbers.shape[axis]):
                    ranks = tuple(int(each) for each in members)
                    if len(ranks) > 1 and ranks not in found:
                        basis = f"the mesh {mesh} of distributed tensors that {told}"
                        found[ranks] = RankGroup(kind, ranks, basis)
    return list(found.values())


def _group(members: tuple[int, ...], each: GroupEvidence, spread: Spread) -> RankGroup:
    shown = f"process group {ranges_of(members)}"
    if each.sharded:
        return RankGroup(
            DATA, members, f"{shown}, over which FSDP gathers {_parameters(each.sharded)}"
        )
    apart = (spread.differ - each.reduced.keys()) | (spread.differ & each.sharded)
    replicated = spread.agree | spread.constant | each.reduced.keys()
    exchanges = ", ".join(each.forward)
    parts = f"parts of {_parameters(apart)} are other ones on each of its ranks"
    if (apart or spread.own) and any("all_to_all" in operation for operation in each.forward):
        if spread.own:
            parts = f"{spread.own} parameters are not on all of its ranks"
        return RankGroup(EXPERT, members, f"{shown}, which exchanges by {exchanges}; {parts}")
    if apart and each.forward:
        return RankGroup(TENSOR, members, f"{shown}, which exchanges by {exchanges}; {parts}")
    shared = spread.agree | spread.differ | spread.constant
    if shared and each.reduced and 2 * len(each.reduced) >= len(replicated):
        said = f"{shown}, whose collectives reduce gradients of {_parameters(each.reduced)}"
        if any("all_reduce" not in operation for operation in each.forward):
            return RankGroup(CONTEXT, members, f"{said}, and which exchanges by {exchanges}")
        return RankGroup(DATA, members, said)
    if "DTensor" in each.makers or (each.forward and spread.agree):
        return RankGroup(TENSOR, members, f"{shown}, which exchanges by {exchanges or 'DTensors'}")
    return RankGroup(UNKNOWN, members, shown)


def _parameters(names: Iterable[str]) -> str:
    count = len(set(names))
    return f"{count} parameter{'' if count == 1 else 's'}"


def _pipelines(steps: Sequence[Ranks]) -> list[RankGroup]:
    """Return the ranks that are linked by sends."""
    links: dict[int, set[int]] = defaultdict(set)
    for ranks in steps:
        for rank, summary in ranks.items():
            for each in summary.exchanges:
                if each.meeting.peer is not None:
                    links[rank].add(each.meeting.peer)
                    links[each.meeting.peer].add(rank)
    found = []
    waiting = set(links)
    while waiting:
        reached, new = set(), {min(waiting)}
        while new:
            reached |= new
            new = {other for rank in new for other in links[rank]} - reached
        waiting -= reached
        members = tuple(sorted(reached))
        spread = spread_of(steps[0], members)
        shared = len(spread.agree | spread.differ | spread.constant)
        # Stages of one class and one seed have parameters that begin alike, and no gradient in common.
        there = [[ranks[rank] for rank in members if rank in ranks] for ranks in steps]
        has_gradients = any(
            each.gradient for one in there for s in one for each in s.updates.values()
        )
        is_divided = has_gradients and not any(map(have_gradients_alike, there))
        kind = CONTEXT if shared > spread.own and not is_divided else PIPELINE
        found.append(RankGroup(kind, members, f"sends between the ranks {ranges_of(members)}"))
    return found


def _by_agreement(steps: Sequence[Ranks], groups: Sequence[RankGroup]) -> list[RankGroup]:
    """Return groups of ranks with the same parameters that no other group has together."""
    step = steps[0]
    by_names: dict[frozenset[tuple[str, tuple[int, ...]]], list[int]] = defaultdict(list)
    for rank, summary in sorted(step.items()):
        named = frozenset((name, fact.shape) for name, fact in named_tensors(summary))
        if named:
            by_names[named].append(rank)
    found = []
    for members in by_names.values():
        spread = spread_of(step, members)
        told, known = len(spread.agree), len(spread.agree) + len(spread.differ)
        if len(members) < 2 or not told or 2 * told < known:
            continue
        if not _are_linked(members, groups):
            basis = f"agreement of {told} of {known} parameters"
            is_loose = not train_together(steps, members)
            if is_loose:
                basis += "; they exchange too little to train together"
            found.append(RankGroup(DATA, tuple(members), basis, is_loose))
    return found


def _are_linked(members: Iterable[int], groups: Sequence[RankGroup]) -> bool:
    """Return whether known groups link all these ranks to each other."""
    wanted = set(members)
    reached = {min(wanted)}
    while True:
        linked = [
            set(group.ranks)
            for group in groups
            if group.kind != UNKNOWN and reached & set(group.ranks)
        ]
        more = reached.union(*linked)
        if wanted <= more or more == reached:
            return wanted <= more
        reached = more
