"""Which call of the target is which call of the golden side.

Comes in: the calls of both captures (`calls_of`). Goes out: a list of `Match`, in which every call of both
sides stands. Called by the jobs that compare captures.

Calls whose names agree from first to last are matched by name. Else the same name proves nothing: after an
inserted call the numbers of all later calls of its type are shifted. Then, in this order: `order.anchors`
finds calls that have the same values, `order.kept_runs` aligns what is between them by operator and shapes,
and `gaps` decides what is left, with its surroundings, by likeness: renamed, fused and split calls. Shapes
and order decide, values only help, since the target may be wrong.

Also here: why a call has no partner: the nearest candidate, and what speaks against it.

The pairs of records that a comparison looks at, in the order of its rows. Every record of both sides is in
a piece.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ray_precheck.trace.alignment.calls import OF_LAYOUT, Call, Shape, features_of
from ray_precheck.trace.alignment.gaps import Group, grouped
from ray_precheck.trace.alignment.order import Box, anchors, kept_runs
from ray_precheck.trace.alignment.origins import grouped_by_origins, has_origins
from ray_precheck.trace.side import API, MODULE, CaptureSide, RecordEntry

_SIDES = ("target", "golden side")
# So many calls of the other side are looked at for each, those at the same place of the gap first.
_CANDIDATES = 16
_NO_OPERATOR = "has no operator that stands for the same one of the model"
_OF_LAYOUT = "belongs to the layout of this run: the other side needs no such call"


def notes_of_names(
    groups: Sequence[Group],
    target: Sequence[Call],
    golden: Sequence[Call],
    said: str = "has no call of this name",
) -> dict[int, str]:
    """Return what to say of each group of one side, by its number, where only names count."""
    return {
        number: f"the {_SIDES[not group.golden]} {said}"
        for number, group in enumerate(groups)
        if not group.target or not group.golden
    }


def notes_of_gaps(
    groups: Sequence[Group],
    target: Sequence[Call],
    golden: Sequence[Call],
    copies: Collection[Group] = (),
) -> dict[int, str]:
    """Return what to say of each group of one side, by its number.

    Candidates are the calls of the other side that have no partner either and stand between the same
    matches; where there are none, the call of the same name. `copies` are the groups of recomputed calls
    whose first call has no partner.
    """
    calls = target, golden
    owners = _owners(groups, calls)
    found: dict[int, str] = {}
    for start, end in _gaps(groups):
        for side in range(2):
            own = [at for at in range(start, end) if groups[at][side]]
            others = [groups[at][not side][0] for at in range(start, end) if groups[at][not side]]
            for place, number in enumerate(own):
                call = calls[side][groups[number][side][0]]
                if groups[number] in copies:
                    found[number] = f"computes {call.recompute_of} again, which has no partner"
                    continue
                near = place * len(others) // len(own)
                first = max(0, min(near - _CANDIDATES // 2, len(others) - _CANDIDATES))
                candidates = [calls[not side][at] for at in others[first : first + _CANDIDATES]]
                same_kind = [each for each in candidates if each.kind == call.kind]
                if same_kind:
                    found[number] = _against(
                        call, max(same_kind, key=lambda each: _rank(call, each))
                    )
                else:
                    found[number] = _of_name(call, _SIDES[not side], owners[side])
    return found


def _owners(
    groups: Sequence[Group], calls: tuple[Sequence[Call], Sequence[Call]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return for each side the names of the other side that are taken, with the name that took them."""
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    for group in groups:
        if group.target and group.golden:
            for side in range(2):
                taker = calls[side][group[side][0]].name
                for at in group[not side]:
                    found[side].setdefault(calls[not side][at].name, taker)
    return found


def _gaps(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """Return the stretches of groups (from, to) that have one side only."""
    found = []
    start = 0
    for number, group in enumerate([*groups, Group((0,), (0,))]):
        if group.target and group.golden:
            if start < number:
                found.append((start, number))
            start = number + 1
    return found


def _rank(call: Call, other: Call) -> tuple[bool, bool, bool]:
    return call.family == other.family, call.outputs == other.outputs, call.inputs == other.inputs


def _against(call: Call, other: Call) -> str:
    same_family, same_outputs, same_inputs = _rank(call, other)
    if same_family and same_outputs and same_inputs:
        return f"nearest is {other.name}, but the calls between would then have no partners"
    reasons = []
    if not same_family:
        reasons.append(f"is another operator ({other.family}, not {call.family})")
    if not same_outputs:
        reasons.append(f"gives {_shown(other.outputs)}, not {_shown(call.outputs)}")
    elif not same_inputs:
        reasons.append(f"gets {_shown(other.inputs)}, not {_shown(call.inputs)}")
    return f"nearest is {other.name}, but it {' and '.join(reasons)}"


def _of_name(call: Call, side: str, owners: dict[str, str]) -> str:
    taker = owners.get(call.name)
    if taker:
        return f"{call.name} of the {side} is the partner of {taker}"
    return f"the {side} has no call without a partner at this place"


def _shown(shapes: Sequence[Shape]) -> str:
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "no tensor"


class How(Enum):
    """How a match was found.

    EXACT: the same name. SHIFTED: the same type with another number. RENAMED: another type. FUSED: one call
    of the target for several golden ones. SPLIT: several of the target for one golden one. RECOMPUTED: a
    call that is computed again, with the partner of its first call. UNMATCHED: on one side alone.
    MAPPED: a file of the user says so, or the graphs of both sides.
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
    Modules, gradients and saved values are matched by name, and only what is left over by order. Where
    both sides say what their operators stand for in the model, that counts instead, and then the name.

    Args:
        exact: match the same names only, as msprobe does; every other call is unmatched.

    Time and memory are linear where all names agree. Else the time grows with the product of both lengths
    divided by 30, and linearly beyond 100,000 calls; memory is linear.
    """
    if any(call.pair >= 0 for call in target):
        return _of_pairs(target, golden)
    if [call.name for call in target] == [call.name for call in golden]:
        return [Match((at,), (at,), How.EXACT) for at in range(len(target))]
    every = list(range(len(target))), list(range(len(golden)))
    if not exact and has_origins(target) and has_origins(golden):
        groups = _in_order(grouped_by_origins(target, golden), len(golden))
        notes = notes_of_names(groups, target, golden, _NO_OPERATOR)
        return [_as_mapped(each) for each in _matches(groups, target, golden, notes)]
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


def _of_pairs(target: Sequence[Call], golden: Sequence[Call]) -> list[Match]:
    """Return the matches of two runs of other layouts, whose calls say which belong together."""
    theirs = {call.pair: at for at, call in enumerate(golden) if call.pair >= 0}
    found = [
        Group((at,), (theirs[call.pair],)) for at, call in enumerate(target) if call.pair in theirs
    ]
    groups = _in_order(
        [*found, *_alone(found, range(len(target)), range(len(golden)))], len(golden)
    )
    notes = notes_of_gaps(groups, target, golden)
    for number, group in enumerate(groups):
        side, at = (target, group.target) if group.target else (golden, group.golden)
        if number in notes and side[at[0]].pair == OF_LAYOUT:
            notes[number] = _OF_LAYOUT
    return [_as_mapped(each) for each in _matches(groups, target, golden, notes)]


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


def _as_mapped(match: Match) -> Match:
    """Return a match of two calls of other names as one that the graphs say."""
    is_other = match.how in (How.RENAMED, How.SHIFTED)
    return match._replace(how=How.MAPPED) if is_other else match


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


# Behind the key of a record that only the golden side has: its name must not be that of a target's.
GOLDEN_ONLY = "@golden"


class RecordPair(NamedTuple):
    """Records of both sides that belong together; one side is empty where there is no partner.

    `name` is unique: the key of the first record of the target, or that of the golden side with
    `GOLDEN_ONLY`. A fusion has several records on one side.
    """

    name: str
    target: tuple[RecordEntry, ...]
    golden: tuple[RecordEntry, ...]
    how: How
    note: str = ""


def pieces_of(
    target: CaptureSide,
    golden: CaptureSide,
    calls: tuple[Sequence[Call], Sequence[Call]],
    matches: Iterable[Match],
) -> list[RecordPair]:
    """Return the pieces: those of the target's records in the order of its file, and each record that
    only the golden side has behind the record before it on that side."""
    here, there = _by_call(target), _by_call(golden)
    found: list[RecordPair] = []
    for match in matches:
        own = [here[calls[0][position].name] for position in match.target]
        other = [there[calls[1][position].name] for position in match.golden]
        found += _of_match(own, other, match)
    return _in_order_of_target(found, target, golden)


def _by_call(side: CaptureSide) -> dict[str, dict[str, RecordEntry]]:
    """Return the records of each call by direction."""
    found: dict[str, dict[str, RecordEntry]] = {}
    for entry in side.entries:
        found.setdefault(entry.call, {})[entry.direction] = entry
    return found


def _of_match(
    own: Sequence[dict[str, RecordEntry]], other: Sequence[dict[str, RecordEntry]], match: Match
) -> Iterable[RecordPair]:
    if len(own) == len(other) == 1 and own[0].keys() == other[0].keys():
        # Nearly all of them: a call with one partner, and the same directions on both sides.
        for direction, entry in own[0].items():
            pair = (entry,), (other[0][direction],)
            yield RecordPair(entry.key, *pair, match.how, match.note)
        return
    directions = dict.fromkeys(each for call in (*own, *other) for each in call)
    for direction in directions:
        target = tuple(call[direction] for call in own if direction in call)
        golden = tuple(call[direction] for call in other if direction in call)
        piece = RecordPair(_name(target, golden), target, golden, match.how, match.note)
        if own and other and not (target and golden):
            lacking = "golden side" if target else "target"
            note = f"the {lacking} has no {direction or 'such'} record of this call"
            piece = piece._replace(how=How.UNMATCHED, note=note)
        yield piece


def _name(target: Sequence[RecordEntry], golden: Sequence[RecordEntry]) -> str:
    return target[0].key if target else f"{golden[0].key}{GOLDEN_ONLY}"


def _in_order_of_target(
    pieces: Sequence[RecordPair], target: CaptureSide, golden: CaptureSide
) -> list[RecordPair]:
    place = {entry.key: position for position, entry in enumerate(target.entries)}
    theirs = {entry.key: position for position, entry in enumerate(golden.entries)}
    ours = [piece for piece in pieces if piece.target]
    ours.sort(key=lambda piece: place[piece.target[0].key])
    others = [piece for piece in pieces if not piece.target]
    if not others:
        return ours
    others.sort(key=lambda piece: theirs[piece.golden[0].key])
    before = _before(ours, golden)
    behind: dict[str, list[RecordPair]] = {}
    for piece in others:
        behind.setdefault(before[piece.golden[0].key], []).append(piece)
    found = behind.pop("", [])
    for piece in ours:
        found.append(piece)
        found += behind.pop(piece.name, ())
    return found


def _before(ours: Sequence[RecordPair], golden: CaptureSide) -> dict[str, str]:
    """Return for each record of the golden side the piece of the record before it that has one; "" for
    none."""
    of_key: dict[str, str] = {}
    for piece in ours:
        for entry in piece.golden:
            of_key.setdefault(entry.key, piece.name)
    found, last = {}, ""
    for entry in golden.entries:
        found[entry.key] = last
        last = of_key.get(entry.key, last)
    return found
