"""What lies around a value that no captured record gave.

Comes in: what records gave, in the order of the run. Goes out: how far such a value may differ in honest
runs, and the record that probably lies before it. Called by `walk`.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from ray_precheck.numerics.rounding import epsilon_of
from ray_precheck.trace.items import Item

# Operators that were not captured read what was given shortly before.
_RECENT = 64
# A value that nothing captured gets is looked for so many values further back.
_LOOSE = 4


@dataclass(frozen=True, slots=True)
class _Given:
    key: str
    count: int
    difference: float
    is_dangling: bool


@dataclass(slots=True)
class Surroundings:
    """The values that were given last. `has_given_floats`: an operator has given a floating value; `coarsest`
    is the dtype of those with the fewest digits."""

    has_given_floats: bool = False
    coarsest: str = ""
    _recent: deque[_Given] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def note(self, key: str, item: Item, difference: float, *, is_dangling: bool) -> None:
        """Take note of a value that a record gave; `is_dangling`: no captured record gets it."""
        if "float" in item.dtype.lower() or "complex" in item.dtype.lower():
            self.has_given_floats = True
        if epsilon_of(item.dtype) > epsilon_of(self.coarsest):
            self.coarsest = item.dtype
        count = math.prod(item.shape or ())
        self._recent.append(_Given(key, count, difference, is_dangling))

    def expected(self, item: Item) -> float:
        """Return the relative difference that a value may have: the largest of those values that nothing
        else gets, which an operator that was not captured got; else the median of all."""
        known = [each for each in self._recent if math.isfinite(each.difference)]
        loose = [each.difference for each in known if each.is_dangling]
        if loose:
            return max(loose)
        return median(each.difference for each in known) if known else 0.0

    def before(self, item: Item) -> str:
        """Return the record that probably lies before a value: of those that gave as many elements, else of
        all, the last one, or one shortly before it whose value nothing captured gets."""
        count = math.prod(item.shape or ())
        alike = [each for each in self._recent if each.count == count]
        found, best = "", math.inf
        for distance, each in enumerate(reversed(alike or self._recent)):
            rank = distance - _LOOSE * each.is_dangling
            if rank < best:
                found, best = each.key, rank
        return found
