"""Calls that a checkpointed region computes again: copies of their first call, not calls of their own.

Comes in: calls, and the groups of those that are computed once. Goes out: a group for each copy. Called by
`align`. Captures of msprobe do not say which calls these are; there they are inserted calls.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ray_precheck.trace.alignment.calls import Call
from ray_precheck.trace.alignment.gaps import Group
from ray_precheck.trace.side import MODULE


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
