"""Why a call has no partner: the nearest candidate, and what speaks against it.

Comes in: groups of positions in order. Goes out: one sentence for each call that is alone. Called by
`align`.
"""

from collections.abc import Collection, Sequence

from ray_precheck.trace.alignment.calls import Call, Shape
from ray_precheck.trace.alignment.gaps import Group

_SIDES = ("target", "golden side")
# So many calls of the other side are looked at for each, those at the same place of the gap first.
_CANDIDATES = 16


def notes_of_names(
    groups: Sequence[Group], target: Sequence[Call], golden: Sequence[Call]
) -> dict[int, str]:
    """Return what to say of each group of one side, by its number, where only names count."""
    return {
        number: f"the {_SIDES[not group.golden]} has no call of this name"
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
