"""What the statistics of a value say of NaN and infinities in it.

Comes in: an `Item` of a record. Goes out: its `Values`. Called by the walk through a capture and by the
headroom.
"""

import math
from typing import NamedTuple

from ray_precheck.numerics.statistics import FIELDS, largest_finite
from ray_precheck.trace.items import Item

_HALVES = ("float16", "bfloat16", "complex32")
_FLOATS = ("float", "bfloat", "complex", "half", "double")
_SCALARS = ("float", "numpy.float", "float16", "float32", "float64")


class NonFinite(NamedTuple):
    """Which values that are not finite a tensor holds."""

    nan: bool = False
    positive: bool = False
    negative: bool = False

    @property
    def is_mask(self) -> bool:
        """Whether they are -inf alone, as in a mask of attention."""
        return self.negative and not self.nan and not self.positive

    def beyond(self, other: "NonFinite") -> bool:
        """Return whether there is a kind of values here that `other` has not."""
        return any(own and not theirs for own, theirs in zip(self, other, strict=True))

    def __or__(self, other: "NonFinite") -> "NonFinite":
        """Return the values of both."""
        return NonFinite(*(own or theirs for own, theirs in zip(self, other, strict=True)))

    @property
    def words(self) -> str:
        """The values in words: `NaN, inf`, without a sign in front, which no spreadsheet takes for a
        formula."""
        names = zip(self, ("NaN", "inf", "negative inf"), strict=True)
        return ", ".join(name for found, name in names if found)


class Values(NamedTuple):
    """A floating value as its statistics show it.

    `found` is None where no statistic is known. `largest` is the largest finite absolute value that is
    known: of a tensor with infinities the other end. `mark` tells the values of one tensor from those of
    another as far as statistics do, whatever view they are seen through.
    """

    item: Item
    found: NonFinite | None
    largest: float | None
    mark: tuple[str, ...]

    @property
    def is_finite(self) -> bool:
        """Whether it is known, and NaN and infinity are not in it."""
        return self.found is not None and not any(self.found)


def dtype_name(item: Item) -> str:
    """Return the dtype without the name of the framework: float16; "" for what is no tensor."""
    name = item.dtype.rpartition(".")[2].lower()
    return {"half": "float16", "float": "float32", "double": "float64"}.get(name, name)


def is_half(item: Item) -> bool:
    """Return whether a tensor has a dtype of 16 bits for each number."""
    return dtype_name(item) in _HALVES


def is_floating(item: Item) -> bool:
    """Return whether a value can hold NaN or infinity: a tensor of floats, or a Python float."""
    if item.is_tensor:
        return dtype_name(item).startswith(_FLOATS)
    return item.type_name in _SCALARS


def largest_held(item: Item) -> float | None:
    """Return the largest finite value of a tensor's dtype; None where it is not known."""
    return largest_finite(dtype_name(item))


def values_of(item: Item) -> Values:
    """Return what is known of a floating value.

    `Max` that is finite rules out NaN and +inf, `Min` NaN and -inf, but for devices whose maximum leaves
    NaN out: there `Mean` or `Norm` is NaN. A `Mean` or `Norm` that is infinite says nothing, because a
    sum of finite values overflows, too. The counts of `health`, where a capture has them, are exact.
    """
    if not item.is_tensor:
        return _of_scalar(item)
    top, bottom = item.ends
    mark = (
        dtype_name(item),
        str(_elements(item)),
        *(str(item.statistic(each)) for each in FIELDS),
    )
    ends = [abs(each) for each in (top, bottom) if each is not None and math.isfinite(each)]
    return Values(item, _found(item, top, bottom), max(ends, default=None), mark)


def share_of_underflow(item: Item) -> tuple[float, float] | None:
    """Return the shares of zeros and of subnormal values; None where the capture did not count them."""
    health, size = _health(item), _elements(item)
    if health is None or not size:
        return None
    return health.get("zero", 0) / size, health.get("subnormal", 0) / size


def _of_scalar(item: Item) -> Values:
    value = item.number("value")
    if value is None:
        return Values(item, None, None, ())
    found = NonFinite(math.isnan(value), value == math.inf, value == -math.inf)
    return Values(item, found, abs(value) if math.isfinite(value) else None, (str(value),))


def _found(item: Item, top: float | None, bottom: float | None) -> NonFinite | None:
    health = _health(item)
    if health is not None:
        return NonFinite(*(bool(health.get(each)) for each in ("nan", "+inf", "-inf")))
    if top is None and bottom is None:
        return None
    nan = any(each is not None and math.isnan(each) for each in (top, bottom))
    positive = math.inf in (top, bottom)
    negative = -math.inf in (top, bottom)
    if not (nan or positive or negative):
        sums = (item.mean, item.norm)
        nan = any(each is not None and math.isnan(each) for each in sums)
    return NonFinite(nan, positive, negative)


def _health(item: Item) -> dict[str, float] | None:
    """Return the counts of a tensor; None where there are none, or where one of them is no number."""
    found = item.statistic("health")
    if not isinstance(found, dict):
        return None
    if not all(isinstance(each, int | float) for each in found.values()):
        return None
    return {str(name): each for name, each in found.items()}


def _elements(item: Item) -> int:
    return math.prod(item.shape or ())
