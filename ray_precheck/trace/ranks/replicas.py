"""Which parameters the ranks of a group have as copies of one, and which as parts of their own.

Comes in: the summaries of all dumps, a group, what its collectives carry. Goes out: `Replicas`. Called before
the checks of parameters, gradients and updates. An equality of constant tensors (norms of ones, biases of
zeros) tells nothing: then the reduction of gradients tells, placements, Megatron's marks, an operator that
gets and gives the same on all ranks, or parameters of the same role in other layers.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ray_precheck.trace.ranks.layout import DATA, EXPERT, TENSOR, UNKNOWN, GroupEvidence, Ranks
from ray_precheck.trace.ranks.nouns import RankGroup, RankTrace, TensorFact
from ray_precheck.trace.ranks.summary import named_tensors

_NUMBER = re.compile(r"\d+")
_SHARD, _REPLICATE = "Shard", "Replicate"
_NORM_DIMENSIONS = 1


class Odd(NamedTuple):
    """A parameter that is not as those of its role: `is_copy` where ranks have one part though those of its
    role are parts, else it differs though these are copies. `like` is one of its role."""

    name: str
    step: int
    is_copy: bool
    like: str


@dataclass(slots=True)
class Replicas:
    """The parameters of a group: `copies` with the basis in words, `parts`, those of which it `cannot` be
    told, and the `odd` ones."""

    group: RankGroup
    copies: dict[str, str] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    untold: set[str] = field(default_factory=set)
    odd: list[Odd] = field(default_factory=list)


def members_of(ranks: Ranks, group: RankGroup) -> list[RankTrace]:
    """Return the dumps of a group in a step."""
    return [ranks[rank] for rank in group.ranks if rank in ranks]


def role_of(name: str) -> str:
    """Return a parameter's name without the numbers of its layers: `layers.#.n1.weight`."""
    return _NUMBER.sub("#", name)


def replicas_of(
    steps: Sequence[Ranks], group: RankGroup, evidence: GroupEvidence | None
) -> Replicas:
    """Return which parameters the ranks of a group have as copies of one."""
    told = evidence or GroupEvidence()
    found = Replicas(group)
    differ: dict[str, int] = {}
    agree: dict[str, int] = {}
    constant: set[str] = set()
    for ranks in steps:
        known = [dict(named_tensors(each)) for each in members_of(ranks, group)]
        marks = [each.marks for each in members_of(ranks, group)]
        has_marks = any(_is_marked(each) for mark in marks for each in mark.values())
        for name in dict.fromkeys(name for each in known for name in each):
            if name in found.copies or name in found.parts:
                continue
            facts = [each[name] for each in known if name in each]
            if len(facts) < 2 or len(facts) < len(known):
                continue
            own = [mark[name] for mark in marks if name in mark]
            basis, is_part = _told_of(name, facts, own, told, group, has_marks=has_marks)
            if is_part:
                found.parts.add(name)
            elif basis:
                found.copies[name] = basis
            elif len({fact.shape for fact in facts}) > 1:
                found.parts.add(name)
            elif any(not fact.is_same(facts[0]) for fact in facts):
                if name not in agree and name not in constant:
                    differ.setdefault(name, next(iter(ranks.values())).step)
            elif not facts[0].is_constant:
                if name not in differ:
                    agree.setdefault(name, next(iter(ranks.values())).step)
            else:
                constant.add(name)
    _judge_by_roles(found, agree, differ, steps)
    _judge_constants(found, constant - agree.keys(), steps, group)
    _leave_beside_parts(found, agree, group)
    return found


def _leave_beside_parts(found: Replicas, agree: Iterable[str], group: RankGroup) -> None:
    """Leave open what only begins alike beside a part in its module: a bias may be one, too."""
    if group.kind not in (TENSOR, UNKNOWN):
        return
    modules = {name.rpartition(".")[0] for name in found.parts}
    for name in agree:
        if name in found.copies and name.rpartition(".")[0] in modules:
            del found.copies[name]
            found.untold.add(name)


def _told_of(
    name: str,
    facts: Sequence[TensorFact],
    marks: Sequence[Mapping[str, object]],
    evidence: GroupEvidence,
    group: RankGroup,
    *,
    has_marks: bool,
) -> tuple[str, bool]:
    """Return the basis on which a parameter is known to be copied, or whether it is known to be a part."""
    placement = placement_in(facts[0], group)
    if placement == _REPLICATE:
        return "its placements say Replicate", False
    if placement == _SHARD or name in evidence.sharded:
        return "", True
    if group.kind in (TENSOR, UNKNOWN) and any(map(_is_marked, marks)):
        return "", True
    if group.kind in (DATA, EXPERT) and any(mark.get("allreduce") is False for mark in marks):
        return "", True
    if name in evidence.reduced:
        return evidence.reduced[name], False
    if group.kind == TENSOR and has_marks:
        return "other parameters are marked tensor_model_parallel, and it is not", False
    return "", False


def placement_in(fact: TensorFact, group: RankGroup) -> str:
    """Return where a distributed tensor lies on the axis of its mesh that a group is, "" for none."""
    if not fact.mesh:
        return ""
    numbers = np.array(json.loads(fact.mesh))
    for axis, placement in zip(range(numbers.ndim), fact.placements, strict=False):
        lines = np.moveaxis(numbers, axis, -1).reshape(-1, numbers.shape[axis])
        if any(set(group.ranks) == set(line.tolist()) for line in lines):
            return placement
    return ""


def _is_marked(marks: Mapping[str, object]) -> bool:
    return marks.get("tensor_model_parallel") is True


def _judge_by_roles(
    found: Replicas, agree: Mapping[str, int], differ: Mapping[str, int], steps: Sequence[Ranks]
) -> None:
    """Take what agrees for copies and what differs for parts, unless those of its role say otherwise."""
    copies: dict[str, list[str]] = defaultdict(list)
    parts: dict[str, list[str]] = defaultdict(list)
    for name in (*agree, *found.copies):
        copies[role_of(name)].append(name)
    for name in (*differ, *found.parts):
        parts[role_of(name)].append(name)
    told = len(agree) + len(found.copies)
    for name, step in differ.items():
        alike, unlike = copies[role_of(name)], parts[role_of(name)]
        is_copy = _beats(len(alike), len(unlike), is_vector=_is_in_norm(name, steps))
        if not alike and found.group.kind == DATA:
            # One of many: the ranks of a data-parallel group have all parameters as copies.
            is_copy = len(differ) <= max(1, told // 10)
            alike = [next(iter(agree), "")]
        if is_copy:
            found.copies[name] = "other layers have it as a copy"
            found.odd.append(Odd(name, step, is_copy=False, like=alike[0]))
        else:
            found.parts.add(name)
    for name, step in agree.items():
        shape = _shape_of(name, steps)
        alike = [each for each in parts[role_of(name)] if _shape_of(each, steps) == shape]
        unlike = copies[role_of(name)]
        if alike and not _beats(len(unlike), len(alike), is_vector=_is_in_norm(name, steps)):
            found.parts.add(name)
            found.odd.append(Odd(name, step, is_copy=True, like=alike[0]))
        else:
            found.copies[name] = f"the ranks have it alike at the start of step {step}"
    for name in found.parts:  # marks or placements say so, the values do not
        if name not in differ and name not in {each.name for each in found.odd}:
            since = _equal_since(name, found.group, steps)
            others = [
                each
                for each in parts[role_of(name)]
                if each != name and _equal_since(each, found.group, steps) is None
            ]
            if since is not None and others:
                found.odd.append(Odd(name, since, is_copy=True, like=others[0]))


def _shape_of(name: str, steps: Sequence[Ranks]) -> tuple[int, ...] | None:
    """Return the shape that a parameter has on the first rank that has it."""
    for ranks in steps:
        for summary in ranks.values():
            update = summary.updates.get(name)
            fact = update.before if update is not None else summary.parameters.get(name)
            if fact is not None:
                return fact.shape
    return None


def _beats(copies: int, parts: int, *, is_vector: bool) -> bool:
    """Return whether a role is one of copies; where as many say one thing as the other, norms are copies."""
    return copies > parts or (copies == parts and is_vector)


def _is_in_norm(name: str, steps: Sequence[Ranks]) -> bool:
    """Return whether a module has vectors alone, as norms have."""
    module = name.rpartition(".")[0]
    for ranks in steps:
        for summary in ranks.values():
            shapes = [
                len(fact.shape)
                for other, fact in named_tensors(summary)
                if other.rpartition(".")[0] == module
            ]
            if shapes:
                return max(shapes) <= _NORM_DIMENSIONS
    return False


def _equal_since(name: str, group: RankGroup, steps: Sequence[Ranks]) -> int | None:
    """Return the first step in which the ranks have a parameter alike that is not constant."""
    for ranks in steps:
        there = [dict(named_tensors(each)).get(name) for each in members_of(ranks, group)]
        facts = [each for each in there if each is not None]
        if len(facts) > 1 and not facts[0].is_constant and not facts[0].placements:
            same = all(fact.is_same(facts[0]) for fact in facts)
            return next(iter(ranks.values())).step if same else None
    return None


def _judge_constants(
    found: Replicas, names: Iterable[str], steps: Sequence[Ranks], group: RankGroup
) -> None:
    roles = {role_of(name): name for name in found.copies}
    parts = {role_of(name) for name in found.parts}
    for name in names:
        if name in found.copies or name in found.parts:
            continue
        if role_of(name) in roles:
            found.copies[name] = f"{roles[role_of(name)]} is a copy"
        elif group.kind == DATA and not found.parts:
            found.copies[name] = "the ranks have all other parameters alike"
        elif role_of(name) not in parts and _operator_is_copied(name, steps, group):
            found.copies[name] = "its operator gets and gives the same on the ranks"
        else:
            found.untold.add(name)


def _operator_is_copied(name: str, steps: Sequence[Ranks], group: RankGroup) -> bool:
    """Return whether the record that uses a parameter first got and gave the same on all ranks."""
    for ranks in steps:
        seen: Counter[tuple[int, int]] = Counter()
        for summary in members_of(ranks, group):
            key = summary.uses.get(name, "")
            if key not in summary.keys or not key.endswith(".forward"):
                return False
            place = summary.keys.index(key)
            seen[int(summary.got[place]), int(summary.gave[place])] += 1
        if seen:
            return len(seen) == 1
    return False
