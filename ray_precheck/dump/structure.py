"""The field `structure` of a tensor's element, which captures of ours have where a look at the values
showed more than their statistics.

Comes in: the element. Goes out: a `Structure`, or `NotCheckable` with the place and the reason. Called by
`dump.decode`. Fields that it does not know are those of later captures, and are passed over.
"""

import math
from collections.abc import Mapping
from typing import Any

from ray_precheck.dump.shown import shown
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.values import Structure

_KINDS_OF_ROWS = ("zero_rows", "masked_rows", "equal_rows")


def structure_of(value: Mapping[str, Any], shape: tuple[int, ...], path: str) -> Structure | None:
    """Return what the element of a tensor of this shape says of the structure of its values.

    Raises:
        NotCheckable: no tensor of this shape is so.
    """
    found = value.get("structure")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise NotCheckable(f"{path}: structure must be an object, not {shown(found)}")
    size = math.prod(shape)
    distinct = _count(found, "distinct", size, "elements", path) if "distinct" in found else None
    if distinct == 0 and size:
        raise NotCheckable(f"{path}: structure has 0 distinct values of {size} elements")
    rows = _count(found, "rows", size, "elements", path)
    if rows and size % rows:
        raise NotCheckable(f"{path}: {size} elements do not lie in {rows} rows of one length")
    zero, masked, equal = (_count(found, name, rows, "rows", path) for name in _KINDS_OF_ROWS)
    if zero + masked + equal > rows:
        raise NotCheckable(
            f"{path}: structure has {zero} zero, {masked} masked and {equal} equal rows of {rows}"
        )
    means, deviation = _row_means(found, rows, path)
    nan = _count(found, "nan", size, "elements", path)
    return Structure(distinct, rows, zero, masked, equal, means, deviation, nan)


def _count(found: dict[str, Any], name: str, most: int, of: str, path: str) -> int:
    count = found.get(name, 0)
    if type(count) is not int or not 0 <= count <= most:
        raise NotCheckable(
            f"{path}: structure's {name} must be a count of at most {most} {of}, not {shown(count)}"
        )
    return count


def _row_means(
    found: dict[str, Any], rows: int, path: str
) -> tuple[tuple[float, float] | None, float]:
    means, deviation = found.get("row_means"), found.get("row_deviation", 0.0)
    if means is None:
        return None, 0.0
    if (
        not rows
        or not isinstance(means, list)
        or len(means) != 2
        or not all(map(_is_finite, means))
    ):
        raise NotCheckable(
            f"{path}: structure's row_means must be the smallest and the largest mean of its rows, not"
            f" {shown(means)} of {rows} rows"
        )
    low, high = map(float, means)
    if low > high:
        raise NotCheckable(f"{path}: structure's row_means [{low:g}, {high:g}] fall")
    if not _is_finite(deviation) or deviation < 0:
        raise NotCheckable(
            f"{path}: structure's row_deviation must be a number of 0 or more, not {shown(deviation)}"
        )
    return (low, high), float(deviation)


def _is_finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def finite(value: Any) -> float | None:
    """Return a finite extreme; None if the record has none, or if it is NaN or infinite."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
