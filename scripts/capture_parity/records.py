"""What differs between two dumps of the same step.

Comes in: the records of msprobe's dump and of ours, as JSON has them. Goes out: each difference, with the key
of its record and its place in there. Called by the main module and by the tests.

Statistics are equal within msprobe's rounding: it sums in float32, one value after the other in each lane of
the processor, and its error grows with the root of the number of elements.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

Json = Any
Records = Mapping[str, Mapping[str, Json]]
# Fields that only our records have, which msprobe's tools do not look at.
OUR_FIELDS = frozenset(
    "stack parent gradient_of recompute version autocast autocast_device health sketch changed index lazy"
    " offset shares stride structure vmapped argument buffer parameter".split()
)
STATISTICS = ("Max", "Min", "Mean", "Norm")
_EPSILON = 2.0**-24
_ROUNDINGS = 4.0
_LEAST = 1e-6


class RecordDifference(NamedTuple):
    """One place at which two dumps differ.

    `kind` is missing (a record that only msprobe has), extra (one that only we have), length, value, absent
    (a field that we do not have), or the name of a statistic.
    """

    key: str
    path: str
    kind: str
    theirs: Json
    ours: Json


def rounding_of(element: Mapping[str, Json]) -> float:
    """Return how far msprobe's sums may lie from the truth, relative to it."""
    return _LEAST + _ROUNDINGS * _EPSILON * math.sqrt(math.prod(element.get("shape", ())))


def differences_of_dumps(theirs: Records, ours: Records) -> Iterator[RecordDifference]:
    """Yield all differences of two dumps, those of the keys first."""
    for key in theirs:
        if key not in ours:
            yield RecordDifference(key, "", "missing", None, None)
    for key in ours:
        if key not in theirs:
            yield RecordDifference(key, "", "extra", None, None)
    for key in theirs:
        if key in ours:
            yield from _of_values(key, "", theirs[key], ours[key])


def _of_values(key: str, path: str, theirs: Json, ours: Json) -> Iterator[RecordDifference]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        yield from _of_fields(key, path, theirs, ours)
    elif isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            yield RecordDifference(key, path, "length", theirs, ours)
        for index, (their_value, our_value) in enumerate(zip(theirs, ours, strict=False)):
            yield from _of_values(key, f"{path}.{index}", their_value, our_value)
    elif not _is_same(theirs, ours):
        yield RecordDifference(key, path, "value", theirs, ours)


def _of_fields(
    key: str, path: str, theirs: Mapping[str, Json], ours: Mapping[str, Json]
) -> Iterator[RecordDifference]:
    for field, their_value in theirs.items():
        place = f"{path}.{field}" if path else field
        if field in STATISTICS and "shape" in theirs:
            if theirs["shape"] == ours.get("shape") and not _is_near(field, theirs, ours):
                yield RecordDifference(key, place, field, their_value, ours.get(field))
        elif field not in ours:
            yield RecordDifference(key, place, "absent", their_value, None)
        elif field == "shape":
            if their_value != ours[field]:
                yield RecordDifference(key, place, "shape", their_value, ours[field])
        else:
            yield from _of_values(key, place, their_value, ours[field])
    for field in ours:
        if field not in theirs and field not in OUR_FIELDS:
            yield RecordDifference(key, f"{path}.{field}", "more", None, ours[field])


def _is_same(theirs: Json, ours: Json) -> bool:
    if isinstance(theirs, float) and isinstance(ours, float):
        return theirs == ours or (math.isnan(theirs) and math.isnan(ours))
    return type(theirs) is type(ours) and bool(theirs == ours)


def _is_near(field: str, theirs: Mapping[str, Json], ours: Mapping[str, Json]) -> bool:
    """Return whether a statistic is the same; Max and Min are values of the tensor, and exact."""
    their_value, our_value = theirs[field], ours.get(field)
    if not (_is_number(their_value) and _is_number(our_value)):
        return _is_same(their_value, our_value)
    if their_value == our_value or (math.isnan(their_value) and math.isnan(our_value)):
        return True
    if field in ("Max", "Min") or not math.isfinite(their_value) or not math.isfinite(our_value):
        return False
    # A sum that cancels is as exact as the values that it adds: their root mean square.
    scale = abs(their_value)
    norm = theirs.get("Norm")
    count = math.prod(theirs["shape"])
    if field == "Mean" and _is_number(norm) and count:
        scale = max(scale, norm / math.sqrt(count))
    return bool(abs(their_value - our_value) <= rounding_of(theirs) * scale)


def _is_number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def element_at(record: Json, path: Sequence[str]) -> Json:
    """Return what stands at a place of a record, None where nothing does."""
    for name in path:
        if isinstance(record, list):
            record = record[int(name)] if int(name) < len(record) else None
        else:
            record = record.get(name) if isinstance(record, dict) else None
    return record
