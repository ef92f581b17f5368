"""Which call of the target is which call of the golden side.

Comes in: the calls of both captures (`calls_of`). Goes out: a list of `Match`, in which every call of both
sides stands. Called by the jobs that compare captures.

Calls whose names agree from first to last are matched by name. Else the same name proves nothing: after an
inserted call the numbers of all later calls of its type are shifted. Then, in this order: `anchors` finds
calls that have the same values, `edit_script` aligns what is between them by operator and shapes,
and `gaps` decides what is left, with its surroundings, by likeness: renamed, fused and split calls. Shapes
and order decide, values only help, since the target may be wrong.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ray_precheck.trace.alignment.anchors import anchors
from ray_precheck.trace.alignment.calls import Call
from ray_precheck.trace.alignment.edit_script import Box, kept_runs
from ray_precheck.trace.alignment.features import features_of
from ray_precheck.trace.alignment.gaps import Group, grouped
from ray_precheck.trace.alignment.reasons import notes_of_gaps, notes_of_names
from ray_precheck.trace.side import API, MODULE


class How(Enum):
    """How a match was found.

    EXACT: the same name. SHIFTED: the same type with another number. RENAMED: another type. FUSED: one call
    of the target for several golden ones. SPLIT: several of the target for one golden one. RECOMPUTED: a
    call that is computed again, with the partner of its first call. UNMATCHED: on one side alone.
    MAPPED: a file of the user says so; `align` never does.
    """

    EXACT = "exact"
    SHIFTED = "shifted"
    RENAMED = "renamed"
    FUSED = "fused"
    SPLIT = "split"
    RECOMPUTED = "recomputed"
    UNMATCHED = "unmatched"
    MAPPED = "mapped"


class Match(NamedTuple):
    """Calls that belong together, as positions in the calls of the target and of the golden side.

    `target` is () if only the golden side has the call, and the other way round. `note` says of an
    unmatched call which one of the other side was nearest, and why it was not taken; else it is "".
    """

    target: tuple[int, ...]
    golden: tuple[int, ...]
    how: How
    note: str = ""


def align(target: Sequence[Call], golden: Sequence[Call], *, exact: bool = False) -> list[Match]:
    """Return matches that hold every call of both sides.

    They are in the order of the target; calls of the golden side alone stand behind the match of the
    golden call before them. Each position stands in one match, but that RECOMPUTED names the partner of
    the first call once more. Calls of APIs that are computed once never cross: both orders are kept.
    Modules, gradients and saved values are matched by name, and only what is left over by order.

    Args:
        exact: match the same names only, as msprobe does; every other call is unmatched.

    Time and memory are linear where all names agree. Else the time grows with the product of both lengths
    divided by 30, and linearly beyond 100,000 calls; memory is linear.
    """
    if [call.name for call in target] == [call.name for call in golden]:
        return [Match((at,), (at,), How.EXACT) for at in range(len(target))]
    every = list(range(len(target))), list(range(len(golden)))
    if exact:
        named = _same_names(target, golden, *every)
        groups = _in_order([*named, *_alone(named, *every)], len(golden))
        return _matches(groups, target, golden, notes_of_names(groups, target, golden))
    firsts = first_calls(target), first_calls(golden)
    once = [
        [at for at in places if at not in first]
        for places, first in zip(every, firsts, strict=True)
    ]
    found: list[Group] = []
    for kind in dict.fromkeys(call.kind for call in (*target, *golden)):
        found += _of_kind(target, golden, kind, *once)
    copies = grouped_copies(found, *firsts)
    repeated = set(copies.repeated)
    groups = _in_order([*found, *copies.paired, *copies.alone], len(golden), copies.repeated)
    notes = notes_of_gaps(groups, target, golden, set(copies.alone))
    return _matches(groups, target, golden, notes, repeated)


def _of_kind(
    target: Sequence[Call], golden: Sequence[Call], kind: str, *places: Sequence[int]
) -> list[Group]:
    """Return the groups of all calls of a kind."""
    sides = [
        [at for at in each if calls[at].kind == kind]
        for each, calls in zip(places, (target, golden), strict=True)
    ]
    named: list[Group] = []
    if kind != API:
        named = _same_names(target, golden, *sides)
        taken = [{at for group in named for at in group[side]} for side in range(2)]
        sides = [[at for at in sides[side] if at not in taken[side]] for side in range(2)]
    aligned = _aligned([target[at] for at in sides[0]], [golden[at] for at in sides[1]])
    return named + [
        Group(
            tuple(sides[0][at] for at in group.target), tuple(sides[1][at] for at in group.golden)
        )
        for group in aligned
    ]


def _aligned(target: Sequence[Call], golden: Sequence[Call]) -> list[Group]:
    """Return the groups of two sequences, each group above the one before on both sides."""
    first, second = features_of(target, golden)
    firm = anchors(first, second)
    boxes = []
    x = y = 0
    for pair in [*firm, (len(target), len(golden))]:
        boxes.append(Box(x, pair[0], y, pair[1]))
        x, y = pair[0] + 1, pair[1] + 1
    runs = kept_runs(first.steps, second.steps, boxes)
    kept = [(run.target + at, run.golden + at) for run in runs for at in range(run.length)]
    return grouped(first, second, sorted([*firm, *kept]), {x for x, _ in firm})


def _same_names(
    target: Sequence[Call], golden: Sequence[Call], *places: Sequence[int]
) -> list[Group]:
    """Return pairs of the calls with the same names."""
    named = {golden[at].name: at for at in places[1]}
    pairs = {target[at].name: at for at in places[0] if target[at].name in named}
    return [Group((at,), (named[name],)) for name, at in pairs.items()]


def _alone(groups: Sequence[Group], *places: Sequence[int]) -> list[Group]:
    """Return a group for each position that is in none."""
    taken = [{at for group in groups for at in group[side]} for side in range(2)]
    return [
        *(Group((at,), ()) for at in places[0] if at not in taken[0]),
        *(Group((), (at,)) for at in places[1] if at not in taken[1]),
    ]


def _in_order(
    groups: Sequence[Group], golden_length: int, repeated: Sequence[Group] = ()
) -> list[Group]:
    """Return groups in the order of the target; what only the golden side has, or has more than once,
    behind the group of the golden call before it."""
    own: dict[Group, int] = {}
    behind = [-1] * golden_length
    extra = []
    for group in groups:
        if not group.target:
            extra.append(group)
            continue
        own[group] = group.target[0]
        for at in group.golden:
            behind[at] = group.target[0]
    taken = {at for group in groups for at in group.target}
    for group in repeated:
        if group.target[0] in taken:
            extra.append(group)
        else:
            own[group] = group.target[0]
    last = -1
    for at in range(golden_length):
        last = behind[at] = behind[at] if behind[at] >= 0 else last
    keys = {group: (place, -1) for group, place in own.items()}
    keys |= {group: (behind[group.golden[0]], group.golden[0]) for group in extra}
    return sorted(keys, key=lambda group: keys[group])


def _matches(
    groups: Sequence[Group],
    target: Sequence[Call],
    golden: Sequence[Call],
    notes: Mapping[int, str],
    repeated: Collection[Group] = (),
) -> list[Match]:
    found = []
    for number, group in enumerate(groups):
        how = How.RECOMPUTED if group in repeated else _how(group, target, golden)
        found.append(Match(*group, how, notes.get(number, "")))
    return found


def _how(group: Group, target: Sequence[Call], golden: Sequence[Call]) -> How:
    if not group.target or not group.golden:
        return How.UNMATCHED
    if len(group.golden) > 1:
        return How.FUSED
    if len(group.target) > 1:
        return How.SPLIT
    first, second = target[group.target[0]], golden[group.golden[0]]
    if first.name == second.name:
        return How.EXACT
    return How.SHIFTED if first.type_name == second.type_name else How.RENAMED


class Copies(NamedTuple):
    """Groups of copies: `paired` where both sides compute a call again, `repeated` where one side does (the
    other position is that of the partner of the first call), `alone` where the first call has no partner."""

    paired: list[Group]
    repeated: list[Group]
    alone: list[Group]


def first_calls(calls: Sequence[Call]) -> dict[int, int]:
    """Return the position of the first call of each copy, by the position of the copy.

    A copy of a copy has the first call of that; one whose first call is not in the capture, or stands
    behind it, is no copy. The records of modules do not say that they are computed again: a call of a
    module right behind a copy, which it ends with, is a copy of the module's last call before.
    """
    places = {call.name: at for at, call in enumerate(calls)}
    modules: dict[str, int] = {}
    found: dict[int, int] = {}
    for at, call in enumerate(calls):
        if call.kind == MODULE and at - 1 in found:
            first = modules.get(call.type_name, at)
        else:
            first = places.get(call.recompute_of, at) if call.recompute_of else at
        if first < at:
            found[at] = found.get(first, first)
        elif call.kind == MODULE:
            modules[call.type_name] = at
    return found


def grouped_copies(
    groups: Sequence[Group], target_firsts: Mapping[int, int], golden_firsts: Mapping[int, int]
) -> Copies:
    """Return a group for each copy. Those of partners are paired in their order; what one side has more of
    is put beside the partner of its first call."""
    found = Copies([], [], [])
    if not target_firsts and not golden_firsts:
        return found
    target_group = {at: group for group in groups for at in group.target}
    golden_group = {at: group for group in groups for at in group.golden}
    waiting: dict[Group, list[int]] = {}
    for at, first in golden_firsts.items():
        waiting.setdefault(golden_group[first], []).append(at)
    for at, first in target_firsts.items():
        group = target_group[first]
        partners = waiting.get(group)
        if not group.golden:
            found.alone.append(Group((at,), ()))
        elif partners:
            found.paired.append(Group((at,), (partners.pop(0),)))
        else:
            found.repeated.append(Group((at,), group.golden))
    for group, places in waiting.items():
        for at in places:
            if group.target:
                found.repeated.append(Group(group.target, (at,)))
            else:
                found.alone.append(Group((), (at,)))
    return found
