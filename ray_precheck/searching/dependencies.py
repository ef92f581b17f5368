"""Which switches of a rung need which others to be on; pure.

Comes in: a rung, and sets of its switches. Goes out: sets and orders in which nothing is on without what it
needs. Called by the other modules of this folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ray_precheck.searching.bisection import Rung

NONE_ON: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Which switches of a rung need which others to be on."""

    needs: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, rung: Rung) -> "Dependencies":
        """Return those of a rung among the members that can be off."""
        members = frozenset(rung.members)
        found = {each.name: members.intersection(each.needs) for each in rung.switches}
        return cls({name: needed for name, needed in found.items() if needed})

    def closed(self, names: frozenset[str]) -> frozenset[str]:
        """Return the switches with all that they need."""
        new = names
        while new := frozenset().union(*(self.needs[n] for n in new if n in self.needs)) - names:
            names |= new
        return names

    def without(self, names: Iterable[str], deleted: frozenset[str]) -> frozenset[str]:
        """Return the switches without these, and without what needs one that is deleted."""
        left, gone = frozenset(names) - deleted, deleted
        while gone := frozenset(n for n in left if n in self.needs and self.needs[n] & gone):
            left -= gone
        return left

    def in_order(self, names: Sequence[str]) -> list[str]:
        """Return the switches in their order, except that what one needs stands before it."""
        if not self.needs:
            return list(names)
        within, found = set(names), dict[str, None]()
        for name in names:
            path = [name]
            while path:
                missing = [
                    each
                    for each in sorted(self.needs.get(path[-1], NONE_ON))
                    if each in within and each not in found and each not in path
                ]
                if missing:
                    path.append(missing[0])
                else:
                    found[path.pop()] = None
        return list(found)
