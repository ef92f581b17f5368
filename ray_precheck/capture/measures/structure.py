"""The structure of a tensor's values: how many differ, which rows are all zero, masked or equal, which have
a mean that is large beside their deviation, how many values are NaN.

Comes in: a tensor of any framework, and what is to be looked at (`inputs.roles.table.looks_of`). Goes out:
the field `structure` of its element, or "". Called for the arguments of those operators that behave in
another way there.

A few values are looked at first: both ends of each row, or a few rows. All are read only where these show
what is looked for, which is seldom.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ray_precheck.capture.writing.text import mapping, number
from ray_precheck.inputs.roles.rowwise import (
    CHANNELS,
    LINES,
    MASKED_SCORE,
    NORMED,
    SAMPLES,
    in_rows,
    row_count,
)
from ray_precheck.inputs.roles.rules import DIFFERENT, INDICES
from ray_precheck.numerics.statistics import MAX, MIN

Array = np.ndarray[Any, Any]
# What gives the part of a tensor that an index chooses, with numbers that numpy knows.
Part = Callable[[Any], Array]

# Of so many values different ones are counted, so many rows are looked at first, and so many values of few.
_MOST_SORTED, _MOST_COUNTED, _MOST_LOOKED_AT = 1 << 12, 1 << 20, 1 << 22
_MOST_ROWS = 512
_FEW_ROWS, _FEW_VALUES, _FEW_VALUES_OF_EACH = 8, 64, 8
# A mean is large beside a deviation from here on.
_LARGE_MEAN = 16.0


def structure_field(
    part: Part, shape: tuple[int, ...], kind: str, look: str | None, nan: bool
) -> str:
    """Return the field of a tensor, with a comma in front; "" where there is nothing to tell.

    `kind` is numpy's letter for the kind of the dtype; `nan` says that some value is NaN.
    """
    found: dict[str, str] = {}
    size = math.prod(shape)
    if size < 2 or kind == "c":
        return ""
    with np.errstate(all="ignore"):
        if look in (INDICES, DIFFERENT):
            wanted = kind in "iu" or (look == DIFFERENT and kind == "f" and _has_equal(part, shape))
            if wanted:
                _count_different(found, part(...), size)
        elif look is not None:
            _look_at_rows(found, part, shape, kind, look)
        more = _count_nan(found, part(...)) if nan and size <= _MOST_LOOKED_AT else ""
    return f', "structure": {mapping(list(found.items()))}{more}' if found else ""


def _count_nan(found: dict[str, str], values: Array) -> str:
    """Count NaN, and return the fields of the finite extremes, as msprobe first named them."""
    found["nan"] = str(int(np.count_nonzero(np.isnan(values))))
    finite = values[np.isfinite(values)]
    if not finite.size:
        return ""
    ends = ((MAX, finite.max()), (MIN, finite.min()))
    return "".join(f', "{name}_except_inf_nan": {number(float(end))}' for name, end in ends)


def _count_different(found: dict[str, str], values: Array, size: int) -> None:
    flat = values.reshape(-1)
    different = size
    if size <= _MOST_SORTED:
        ordered = np.sort(flat)
        different = 1 + int(np.count_nonzero(ordered[1:] != ordered[:-1]))
    elif size <= _MOST_COUNTED and flat.dtype.kind in "iu":
        low = flat.min()
        if int(flat.max()) - int(low) < 4 * size:
            different = int(np.count_nonzero(np.bincount((flat - low).astype(np.int64))))
    if different < size:
        found["distinct"] = str(different)


def _has_equal(part: Part, shape: tuple[int, ...]) -> bool:
    """Return whether the first values of the first line have equals among them."""
    line = np.sort(part((*(0 for _ in shape[1:]), slice(0, 1024))))
    return bool((line[1:] == line[:-1]).any())


def _look_at_rows(
    found: dict[str, str], part: Part, shape: tuple[int, ...], kind: str, look: str
) -> None:
    rows = row_count(shape, look)
    width = math.prod(shape) // max(rows, 1)
    if rows < 1 or width < 2:
        return
    counted = _whole_rows(part, shape, look, rows)
    means = (
        kind == "f"
        and look != LINES
        and width >= _FEW_VALUES_OF_EACH
        and _offset(part, shape, look, rows)
    )
    if (not counted and not means) or rows * width > _MOST_LOOKED_AT:
        return
    lines, _ = in_rows(part(...), look, rows)
    alike = (lines == lines[:, :1]).all(axis=1)
    values = lines[alike, 0]
    zero = int(np.count_nonzero(values == 0))
    masked = int(np.count_nonzero(values <= MASKED_SCORE)) if kind == "f" else 0
    counts = {"zero_rows": zero, "masked_rows": masked, "equal_rows": len(values) - zero - masked}
    told = {name: str(count) for name, count in counts.items() if count}
    if means:
        told |= _means_of(lines)
    if told:
        found |= {"rows": str(rows), **told}


def _ends_or_some(
    part: Part, shape: tuple[int, ...], look: str, rows: int, most: int, inner: Any
) -> Array:
    """Return what `inner` chooses of each dimension of a row, as a line for each row; of more rows than
    `most` of about so many, which a step along the longest dimension finds at once."""
    first = 1 if look == CHANNELS else 0
    last = {CHANNELS: 2, SAMPLES: 2}.get(look, len(shape) - 1)
    index: list[Any] = [slice(None) if first <= dim < last else inner for dim in range(len(shape))]
    if rows > most:
        longest = max(range(first, last), key=shape.__getitem__)
        index[longest] = slice(None, None, -(-rows // most))
    values = np.asarray(part(tuple(index)))
    if isinstance(inner, int):
        return values
    if look == CHANNELS:
        values = np.moveaxis(values, 1, 0)
    return values.reshape(math.prod(values.shape[: last - first]), -1)


def _whole_rows(part: Part, shape: tuple[int, ...], look: str, rows: int) -> bool:
    """Return whether some row may hold one value alone: its ends are equal."""
    ends = [_ends_or_some(part, shape, look, rows, _MOST_ROWS, end) for end in (0, -1)]
    return bool((ends[0] == ends[1]).any())


def _offset(part: Part, shape: tuple[int, ...], look: str, rows: int) -> bool:
    """Return whether one of a few rows has a large mean, by a few of its values."""
    some = slice(0, _FEW_VALUES if look == NORMED else _FEW_VALUES_OF_EACH)
    lines = _ends_or_some(part, shape, look, rows, _FEW_ROWS, some)
    means = np.add.reduce(lines, axis=1) / lines.shape[1]
    # All values are on the side of a large mean, which is seen at less cost than a deviation.
    near = (lines * means[:, None] > 0).all(axis=1)
    if not near.any():
        return False
    return bool((np.abs(means) > _LARGE_MEAN * lines.std(axis=1))[near].any())


def _means_of(lines: Array) -> dict[str, str]:
    """Return the means and the deviation of rows, if one mean is large beside it."""
    wide = lines.astype(np.float64)
    means = wide.mean(axis=1)
    wide -= means[:, None]
    deviations = np.sqrt((wide * wide).mean(axis=1))
    deviation = math.sqrt(float((deviations * deviations).mean()))
    large = np.abs(means) > _LARGE_MEAN * deviations
    if not (large & (deviations > 0)).any() or not np.isfinite(means).all():
        return {}
    low, high = float(means.min()), float(means.max())
    return {"row_means": f"[{number(low)}, {number(high)}]", "row_deviation": number(deviation)}
