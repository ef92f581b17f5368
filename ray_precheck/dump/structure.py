"""What captures of ours record of a tensor beyond msprobe's fields: the structure of its values, and its
layout in memory.

Comes in: the element of a record. Goes out: a `Structure`; strides, offset and the argument whose memory is
shared; or `NotCheckable` with the place and the reason. Called by `dump.decode`. A structure is there where
a look at the values showed more than their statistics; fields of it that are not known here are those of
later captures, and are passed over.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ray_precheck.dump.shown import shown
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.values import Structure, TensorSpec

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


_LARGEST = 2**63 - 1


def layout_of(
    value: dict[str, Any], shape: tuple[int, ...], path: str
) -> tuple[tuple[int, ...] | None, int, str]:
    """Return the strides (None: those of a contiguous tensor), the offset and the path of an argument
    whose memory a tensor shares ("" for none).

    Raises:
        NotCheckable: they are not those of a tensor of this shape.
    """
    stride, offset, shares = value.get("stride"), value.get("offset"), value.get("shares")
    if stride is not None:
        whole = isinstance(stride, list) and all(_is_count(step) for step in stride)
        if not whole or len(stride) != len(shape):
            raise NotCheckable(
                f"{path}: stride {shown(stride)} is not a list of {len(shape)} steps of 0 or more"
            )
        stride = tuple(stride)
    if offset is not None and not _is_count(offset):
        raise NotCheckable(f"{path}: offset {shown(offset)} is not a count of elements")
    if shares is not None and not isinstance(shares, str):
        raise NotCheckable(f"{path}: shares {shown(shares)} is not the path of an argument")
    return stride, offset or 0, shares or ""


def lazy_of(value: dict[str, Any], path: str) -> str:
    """Return what was still to be done to a tensor's memory: "conj", "neg" or "".

    Raises:
        NotCheckable: it is something else.
    """
    lazy = value.get("lazy", "")
    if lazy not in ("", "conj", "neg"):
        raise NotCheckable(f"{path}: lazy {shown(lazy)} is neither conj nor neg")
    return str(lazy)


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number <= _LARGEST


def require_earlier(tensors: Iterable[tuple[str, TensorSpec]]) -> None:
    """Require that each tensor of a call shares the memory of one before it, if it shares any.

    Raises:
        NotCheckable: it names another path.
    """
    earlier: set[str] = set()
    for path, spec in tensors:
        if spec.shares and spec.shares not in earlier:
            raise NotCheckable(
                f"forward {path}: shares {shown(spec.shares)} names no tensor before it"
            )
        earlier.add(path)
