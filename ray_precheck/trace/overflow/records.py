"""A record as the walk through a capture sees it.

Comes in: an entry and its JSON. Goes out: a `FollowedRecord`, and sentences about what it bore. Used by
`births`.

Also here: what the statistics of a value say of NaN and infinities in it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ray_precheck.numerics.statistics import FIELDS, largest_finite
from ray_precheck.operators.effects import AUGMENTED, CASTS, READS_NO_VALUES
from ray_precheck.operators.table import FactTable
from ray_precheck.trace.items import INPUT, PARAMETERS, Item, items_of
from ray_precheck.trace.side import BACKWARD, RecordEntry

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


@dataclass(frozen=True, slots=True)
class FollowedRecord:
    """A record with its floating inputs and outputs.

    `items` are all values of it, `operator` is its name without number and direction. Not among the
    inputs are values that the operator does not read: what stood in `out=` and in a tensor that is filled.
    """

    entry: RecordEntry
    fields: Mapping[str, Any]
    framework: str
    operator: str
    items: list[Item]
    inputs: list[Values]
    outputs: list[Values]

    @property
    def bad_outputs(self) -> list[Values]:
        """The outputs that are not finite."""
        return bad_of(self.outputs)

    @property
    def gives_tensors(self) -> bool:
        """Whether a tensor of any dtype is among the outputs."""
        return any(each.is_tensor and not _comes_in(each) for each in self.items)

    @property
    def is_backward(self) -> bool:
        """Whether gradients pass through."""
        return self.entry.direction == BACKWARD

    @property
    def constants(self) -> NonFinite:
        """What is not finite among the Python numbers that the operator gets."""
        return all_of(each for each in bad_of(self.inputs) if not each.item.is_tensor)

    @property
    def makes_nan(self) -> bool:
        """Whether a forward pass makes NaN and gets none, as 0 x inf does."""
        made = all_of(self.bad_outputs).nan and not all_of(self.inputs).nan
        return made and not self.is_backward

    @property
    def is_in_place(self) -> bool:
        """Whether the operator changes its first argument."""
        by_name = self.operator.endswith("_") and not self.operator.endswith("__")
        return by_name or self.is_of(AUGMENTED)

    def is_of(self, table: FactTable[bool]) -> bool:
        """Return whether a table has a row for the operator."""
        return bool(table.of(self.operator, self.framework))


def opened(entry: RecordEntry, fields: Mapping[str, Any], framework: str) -> FollowedRecord:
    """Return a record with what its statistics say."""
    operator = entry.call.rpartition(".")[0]
    items = items_of(fields, entry.key)
    unread = {"input.out"}
    if READS_NO_VALUES.of(operator, framework) and entry.direction != BACKWARD:
        unread.add("input.0")
    read = [each for each in items if _comes_in(each) and each.path not in unread]
    return FollowedRecord(
        entry,
        fields,
        framework,
        operator,
        items,
        [values_of(each) for each in read if is_floating(each)],
        [values_of(each) for each in items if not _comes_in(each) and is_floating(each)],
    )


def bad_of(values: Iterable[Values]) -> list[Values]:
    """Return the values that are not finite."""
    return [each for each in values if each.found is not None and any(each.found)]


def all_of(values: Iterable[Values]) -> NonFinite:
    """Return what is not finite in any of some values."""
    found = NonFinite()
    for each in values:
        found |= each.found or NonFinite()
    return found


def cast_of(record: FollowedRecord, values: Values, given: NonFinite) -> str:
    """Return a sentence about finite inputs that the dtype of the output cannot hold, "" if there are none.

    Casts are the operators of the table, and under autocast those that compute in a half type.
    """
    autocast = record.fields.get("autocast")
    limit = largest_held(values.item)
    if not values.item.is_tensor or given.nan or limit is None:
        return ""
    if not (is_half(values.item) if autocast else record.is_of(CASTS)):
        return ""
    sizes = (_size(each) for each in record.items if each.part == INPUT)
    largest = max((size for size in sizes if size is not None), default=0.0)
    if largest <= limit:
        return ""
    how = "autocast gives" if autocast else "the cast gives"
    dtype = dtype_name(values.item)
    return f"{how} a value of {largest:.6g} in {dtype}, whose largest is {limit:.6g}"


def how_born(record: FollowedRecord, got: NonFinite) -> str:
    """Return a sentence about a birth; `got` is what was not finite among constants and masks."""
    if not record.inputs and not record.is_backward:
        said = "born here, from no floating input"
    elif any(got):
        said = f"born here: of what it got only {got.words} was not finite, a constant or a mask"
    else:
        known = [each.largest for each in record.inputs if each.largest is not None]
        said = "born here: all floating inputs were finite"
        said += f", the largest absolute value was {max(known):.6g}" if known else ""
    unknown = [each.item.path for each in record.inputs if each.found is None]
    if unknown:
        said += f"; {', '.join(unknown[:3])} has no statistics and may not have been"
    return said


def _comes_in(item: Item) -> bool:
    return item.part in (INPUT, PARAMETERS)


def _size(item: Item) -> float | None:
    """Return the largest finite absolute value of a number or a tensor, also of whole numbers."""
    if not item.is_tensor and item.type_name not in ("float", "int"):
        return None
    numbers = item.ends if item.is_tensor else (item.number("value"),)
    known = [abs(each) for each in numbers if each is not None]
    return max((each for each in known if each < float("inf")), default=None)
