"""Which operators of two compiled graphs belong together, by the operators of the model that they stand for.

Comes in: calls with `origins`. Goes out: groups. Called by `align`, where a capture says what its operators
were made of: an NPU's graph fuses operators of the model, splits them, and adds others (casts, changes of
layout), so that neither names nor order tell. Operators that stand for one of the model belong together,
and with them all that these stand for; where none does, those of one name.
"""

from collections.abc import Sequence

from ray_precheck.formats.ge_graph import file_form
from ray_precheck.trace.alignment.calls import Call
from ray_precheck.trace.alignment.gaps import Group

# An operator of the model, in one of its runs.
_Token = tuple[str, str]


def has_origins(calls: Sequence[Call]) -> bool:
    """Return whether a capture says what its operators stand for."""
    return any(call.origins for call in calls)


def grouped_by_origins(target: Sequence[Call], golden: Sequence[Call]) -> list[Group]:
    """Return the groups of both sides, and a group for each call that has no partner."""
    sides = [_tokens(calls) for calls in (target, golden)]
    found = _joined(*sides)
    taken = [{at for group in found for at in group[side]} for side in range(2)]
    # What is left has no operator of the model in common: then the names count.
    names = [
        [() if at in taken[side] else (_own_token(call),) for at, call in enumerate(calls)]
        for side, calls in enumerate((target, golden))
    ]
    found += _joined(*names)
    taken = [{at for group in found for at in group[side]} for side in range(2)]
    found += [Group((at,), ()) for at in range(len(target)) if at not in taken[0]]
    return found + [Group((), (at,)) for at in range(len(golden)) if at not in taken[1]]


def _tokens(calls: Sequence[Call]) -> list[tuple[_Token, ...]]:
    return [
        tuple((file_form(each), call.name.rpartition(".")[2]) for each in call.origins)
        for call in calls
    ]


def _own_token(call: Call) -> _Token:
    before, _, number = call.name.rpartition(".")
    return before, number


def _joined(target: Sequence[Sequence[_Token]], golden: Sequence[Sequence[_Token]]) -> list[Group]:
    """Return groups of calls that are connected by tokens which both sides have."""
    shared = {each for tokens in target for each in tokens}
    shared &= {each for tokens in golden for each in tokens}
    leader: dict[_Token, _Token] = {each: each for each in shared}

    def find(token: _Token) -> _Token:
        while leader[token] != token:
            leader[token] = leader[leader[token]]
            token = leader[token]
        return token

    for tokens in (*target, *golden):
        known = [each for each in tokens if each in shared]
        for each in known[1:]:
            leader[find(each)] = find(known[0])
    members: dict[_Token, tuple[list[int], list[int]]] = {}
    for side, calls in enumerate((target, golden)):
        for at, tokens in enumerate(calls):
            first = next((each for each in tokens if each in shared), None)
            if first is not None:
                members.setdefault(find(first), ([], []))[side].append(at)
    return [Group(tuple(ours), tuple(theirs)) for ours, theirs in members.values()]
