"""The smallest set of switches that has an effect: single ones first, then delta debugging.

Comes in: names, and a test of a set of them. Goes out: a set. Called by `commands.naive.contrast`; pure.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

Holds = Callable[[frozenset[str]], bool]


def smallest_set(names: Sequence[str], holds: Holds) -> frozenset[str]:
    """Return a set of names for which `holds` is true, as it is for all of them.

    It is a single name where one suffices, the first in order. Else no name can be left out of the set: it is
    what ddmin finds (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002, section
    3). No set is tried twice.
    """
    tried: dict[frozenset[str], bool] = {frozenset(): False, frozenset(names): True}

    def test(candidate: Sequence[str]) -> bool:
        key = frozenset(candidate)
        if key not in tried:
            tried[key] = holds(key)
        return tried[key]

    for name in names:
        if test([name]):
            return frozenset([name])
    return frozenset(_reduced(list(names), test))


def _reduced(names: list[str], test: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return the names that ddmin leaves."""
    parts = 2
    while len(names) >= 2:
        pieces = _divided(names, parts)
        rests = [[name for name in names if name not in piece] for piece in pieces]
        subset = next(filter(test, pieces), None)
        rest = next(filter(test, rests), None) if subset is None else None
        if subset is not None:
            names, parts = subset, 2
        elif rest is not None:
            names, parts = rest, max(parts - 1, 2)
        elif parts < len(names):
            parts = min(len(names), 2 * parts)
        else:
            break
    return names


def _divided(names: list[str], parts: int) -> list[list[str]]:
    """Return the names in so many pieces, in order, whose lengths differ by 1 at most."""
    ends = [len(names) * part // parts for part in range(parts + 1)]
    return [names[begin:end] for begin, end in pairwise(ends) if begin < end]
