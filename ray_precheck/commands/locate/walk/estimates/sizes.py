"""The size of a value, as its statistics tell it.

Comes in: an `Item`. Goes out: numbers. Called by the estimates of own errors.
"""

import math

from ray_precheck.numerics.statistics import MAX, MIN
from ray_precheck.trace.items import Item

# Values beyond this stand for a mask of attention: their norm says nothing of the values beside them.
MASKED = 1e30


def is_masked(item: Item) -> bool:
    """Return whether the norm of a value is that of a mask of attention in it."""
    element = item.element or {}
    high, low = element.get(MAX), element.get(MIN)
    if type(high) is not float or type(low) is not float:  # nearly all are
        high, low = item.ends
    return (high is not None and abs(high) > MASKED) or (low is not None and abs(low) > MASKED)


def norm_of(item: Item) -> float:
    """Return the norm, 0 where it is not known or not finite."""
    found = item.norm
    return found if found is not None and math.isfinite(found) else 0.0


def count_of(item: Item) -> int:
    """Return how many elements a value has, at least 1."""
    return max(1, math.prod(item.shape or ()))


def rms_of(item: Item) -> float:
    """Return the root mean square of the elements."""
    return norm_of(item) / math.sqrt(count_of(item))
