"""What a capture computes of a tensor's values beside its statistics, whatever the framework.

Comes in: arrays of numpy, or what gives a part of a tensor as one. Goes out: the part that the settings
choose, checksums, the structure of the values, and the sketch of a part of a sharded tensor. Called by the
tensors of each framework.

Checksums are as msprobe 26.2 has them: `md5` is the CRC-32 of the bytes; `xor` the exclusive or of the bytes
read as 64-bit words (zeros fill the last one), or the value itself of a tensor without dimensions.

The structure says how many values differ, which rows are all zero, masked or equal, which have a mean that
is large beside their deviation, and how many values are NaN, for the arguments of those operators that
behave in another way there (`inputs.roles.table.looks_of`). A few values are looked at first: both ends of
each row, or a few rows. All are read only where these show what is looked for, which is seldom.

The sketch of a part is keyed by the places of its elements in the whole, such that the sketches of all parts
add up to that of the whole. Plain tuples describe the part, so nothing here needs torch.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ray_precheck.capture.settings import TensorSlice
from ray_precheck.capture.writing.elements import mapping, number, scalar
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
from ray_precheck.numerics.one_pass import crc32_of
from ray_precheck.numerics.sketch import Array, largest_of, sketch, sketch_at, zeros
from ray_precheck.numerics.statistics import MAX, MIN

_WORD_BYTES = 8
_WORD = (1 << 64) - 1
Raw = np.ndarray[Any, np.dtype[np.uint8]]
# What gives the part of a tensor that an index chooses, with numbers that numpy knows.
Part = Callable[[Any], Array]
# Of so many values different ones are counted, so many rows are looked at first, and so many values of few.
_MOST_SORTED, _MOST_COUNTED, _MOST_LOOKED_AT = 1 << 12, 1 << 20, 1 << 22
_MOST_ROWS = 512
_FEW_ROWS, _FEW_VALUES, _FEW_VALUES_OF_EACH = 8, 64, 8
# A mean is large beside a deviation from here on.
_LARGE_MEAN = 16.0
# What a dimension of the mesh does: shards this dimension of the tensor, or replicates (None); a text
# names whatever else it does.
Placing: TypeAlias = int | str | None
# Runs of so many elements are sketched one by one.
_LONG = 4096
# Elements of the window into which short runs are put between zeros, and how thinly they may lie there:
# a look-up of an element takes some 40 times as long as an element of the window.
_WINDOW, _THINNEST = 1 << 17, 32
# Rows whose numbers are computed at a time.
_ROWS_AT_ONCE = 1 << 14


def chosen_part(shape: Sequence[int], slices: Sequence[TensorSlice]) -> tuple[slice, ...] | None:
    """Return the index of the part that is chosen; None for the whole, where no slice fits.

    A slice is left out for a tensor that lacks the dimension, or has another size there.
    """
    chosen = {
        part.dim: slice(part.begin, part.end)
        for part in slices
        if part.dim < len(shape) and part.size in (None, shape[part.dim])
    }
    if not chosen:
        return None
    return tuple(chosen.get(dim, slice(None)) for dim in range(len(shape)))


def raw_bytes(values: np.ndarray[Any, Any]) -> Raw:
    """Return the bytes of an array, `(n,)` uint8, in the order of its elements."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def crc32_text(raw: Raw) -> str:
    """Return the CRC-32 of bytes, as 8 hexadecimal digits."""
    return f'"{crc32_of(raw):08x}"'


def xor_text(raw: Raw, single: object = None) -> str:
    """Return the exclusive or of the 64-bit words in bytes, 16 hexadecimal digits; null where there are none.

    `single` is the value of a tensor without dimensions, which stands for itself; a whole number does it as
    digits.
    """
    if isinstance(single, bool | float):
        return scalar(single)
    if isinstance(single, int):
        return f'"0x{single & _WORD:016x}"'
    if not raw.size:
        return "null"
    words = np.zeros(-(-raw.size // _WORD_BYTES), np.uint64)
    words.view(np.uint8)[: raw.size] = raw
    return f'"0x{int(np.bitwise_xor.reduce(words)):016x}"'


def array_structure(values: Array, look: str | None, nan: bool) -> str:
    """Return the field `structure` of an array, as `structure_field` does; float16 is widened."""
    if values.dtype == np.float16:
        return structure_field(
            lambda at: values[at].astype(np.float32), values.shape, "f", look, nan
        )
    return structure_field(lambda at: values[at], values.shape, values.dtype.kind, look, nan)


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


def _some(part: Part, shape: tuple[int, ...], look: str, rows: int, most: int, few: int) -> Array:
    """Return the first values of each row, as a line for each; of more rows than `most` of about so many."""
    values = np.asarray(part(_index_of(shape, look, rows, most, 0, few)))
    first, last = _row_dims(shape, look)
    if look == CHANNELS:
        values = np.moveaxis(values, 1, 0)
    return values.reshape(math.prod(values.shape[: last - first]), -1)


def _row_dims(shape: tuple[int, ...], look: str) -> tuple[int, int]:
    """Return the first of the dimensions that tell rows apart, and that behind the last."""
    return 1 if look == CHANNELS else 0, {CHANNELS: 2, SAMPLES: 2}.get(look, len(shape) - 1)


@functools.lru_cache(1 << 12)
def _index_of(
    shape: tuple[int, ...], look: str, rows: int, most: int, end: int, few: int
) -> tuple[int | slice, ...]:
    """Return the index of one end of each row (0 or -1), or of `few` values in each dimension of a row.

    Of more rows than `most` it is that of about so many, which a step along the longest dimension finds.
    """
    first, last = _row_dims(shape, look)
    inner = slice(0, few) if few else end
    index: list[int | slice] = [
        slice(None) if first <= dim < last else inner for dim in range(len(shape))
    ]
    if rows > most:
        longest = max(range(first, last), key=shape.__getitem__)
        index[longest] = slice(None, None, -(-rows // most))
    return tuple(index)


def _whole_rows(part: Part, shape: tuple[int, ...], look: str, rows: int) -> bool:
    """Return whether some row may hold one value alone: its ends are equal."""
    begins, ends = (part(_index_of(shape, look, rows, _MOST_ROWS, end, 0)) for end in (0, -1))
    return b"\1" in np.equal(begins, ends).tobytes()  # a tenth of the time of `any`


def _offset(part: Part, shape: tuple[int, ...], look: str, rows: int) -> bool:
    """Return whether one of a few rows has a large mean, by a few of its values."""
    few = _FEW_VALUES if look == NORMED else _FEW_VALUES_OF_EACH
    lines = _some(part, shape, look, rows, _FEW_ROWS, few)
    means = np.add.reduce(lines, axis=1) / lines.shape[1]
    # All values are on the side of a large mean, which is seen at less cost than a deviation.
    near = np.logical_and.reduce(lines * means[:, None] > 0, axis=1)
    if b"\1" not in near.tobytes():
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


class PartsDoNotAddUp(ValueError):
    """The local values of a tensor are no elements of the whole one; the text says why."""


@dataclass(frozen=True, slots=True)
class LocalPart:
    """Which part of a tensor a process holds.

    `shape` is that of the local values (a dimension may be 0), `offsets` is where the part begins.
    `counted` is False on all but the first of the processes that hold the same part: a sum over processes
    takes it once.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    counted: bool = True


def local_part(
    whole: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    placings: Sequence[Placing],
) -> LocalPart:
    """Return which part of a tensor of shape `whole` the process at a coordinate of a mesh holds.

    Dimensions are cut as `torch.chunk` does: pieces of the size rounded up, the last ones smaller or
    empty. A dimension that is sharded by several dimensions of the mesh is cut by the first one first.

    Raises:
        PartsDoNotAddUp: a dimension of the mesh does neither (`Partial`, a strided shard).
    """
    shape, offsets, counted = list(whole), [0] * len(whole), True
    for pieces, place, placing in zip(mesh, coordinate, placings, strict=True):
        if isinstance(placing, str):
            raise PartsDoNotAddUp(
                f"placement {placing}: the local values are no elements of the whole tensor at places"
                " that are known, so there is no sketch of it (Shard and Replicate have one)"
            )
        if placing is None:
            counted = counted and place == 0
            continue
        size = shape[placing]
        step = -(-size // pieces)
        begin, end = min(place * step, size), min((place + 1) * step, size)
        shape[placing], offsets[placing] = end - begin, offsets[placing] + begin
    return LocalPart(tuple(shape), tuple(offsets), counted)


def sketch_part(values: Array, whole: Sequence[int], offsets: Sequence[int]) -> Array:
    """Return the sketch of a box of a tensor, `(64,)` float64.

    `values` have the shape of the box, which begins at `offsets` of the tensor of shape `whole`; they
    are treated as by `sketch`. Memory is bounded by 10 MB beside a copy of values that are not contiguous.

    Raises:
        ValueError: the box does not lie in the tensor.
    """
    box = values.shape
    if not len(box) == len(whole) == len(offsets) or any(
        not 0 <= offset <= offset + size <= limit
        for offset, size, limit in zip(offsets, box, whole, strict=True)
    ):
        raise ValueError(
            f"a part of shape {tuple(box)} at {tuple(offsets)} does not lie in a tensor of shape"
            f" {tuple(whole)}"
        )
    if not values.size:
        return zeros()
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values)
        real = values.view(values.real.dtype).reshape(*box, 2)
        return sketch_part(real, (*whole, 2), (*offsets, 0))
    cut = [dim for dim, size in enumerate(box) if size != whole[dim]]
    if not cut:
        return sketch(values)
    largest = None if values.dtype.kind in "iub" else largest_of(values)
    return _sketch_runs(np.ascontiguousarray(values), whole, offsets, cut[-1], largest)


def _sketch_runs(
    values: Array, whole: Sequence[int], offsets: Sequence[int], cut: int, largest: float | None
) -> Array:
    """Return the sketch of a box whose last dimension that is not whole is `cut`.

    It is made of equal runs, one in each row, where a row is what has the same indices before `cut`.
    """
    length, width = prod(values.shape[cut:]), prod(whole[cut:])
    inner = offsets[cut] * prod(whole[cut + 1 :])
    table, total, first = values.reshape(-1, length), zeros(), 0
    for rows in _row_numbers(values.shape[:cut], whole[:cut], offsets[:cut]):
        runs = table[first : first + rows.size]
        first += rows.size
        if length >= _LONG:
            for row, run in zip(rows.tolist(), runs, strict=True):
                total += sketch(run, row * width + inner, largest)
            continue
        for begin, end in _consecutive(rows):
            some = runs[begin:end]
            row, last = int(rows[begin]), int(rows[end - 1])
            near = width <= _THINNEST * length and some.size >= _LONG
            if near and last - row + 1 == end - begin:
                total += _sketch_window(some, row, width, inner, largest)
            else:
                total += _sketch_looked_up(some, rows[begin:end] * width + inner, largest)
    return total


def _row_numbers(
    box: Sequence[int], whole: Sequence[int], offsets: Sequence[int]
) -> Iterator[Array]:
    """Yield the row-major numbers of the rows of a box among those of the whole, int64."""
    count = prod(box)
    for first in range(0, count, _ROWS_AT_ONCE):
        left = np.arange(first, min(first + _ROWS_AT_ONCE, count), dtype=np.int64)
        rows, stride = np.zeros_like(left), 1
        for size, limit, offset in zip(
            reversed(box), reversed(whole), reversed(offsets), strict=True
        ):
            left, index = np.divmod(left, size)
            rows += (index + offset) * stride
            stride *= limit
        yield rows


def _consecutive(rows: Array) -> Iterator[tuple[int, int]]:
    """Yield the ranges in which row numbers are consecutive; all at once where those are short."""
    borders = np.flatnonzero(np.diff(rows) != 1) + 1
    if borders.size * 16 > rows.size:
        yield 0, rows.size
        return
    edges = [0, *borders.tolist(), rows.size]
    yield from pairwise(edges)


def _sketch_window(runs: Array, row: int, width: int, inner: int, largest: float | None) -> Array:
    """Return the sketch of the runs of consecutive rows, put between zeros."""
    total = zeros()
    step = max(1, _WINDOW // width)
    window = np.zeros((min(step, len(runs)), width), runs.dtype)
    for first in range(0, len(runs), step):
        some = runs[first : first + step]
        window[: len(some), inner : inner + runs.shape[1]] = some
        total += sketch(window[: len(some)], (row + first) * width, largest)
    return total


def _sketch_looked_up(runs: Array, starts: Array, largest: float | None) -> Array:
    """Return the sketch of runs whose elements' places are looked up one by one."""
    total = zeros()
    step = max(1, _WINDOW // runs.shape[1])
    within = np.arange(runs.shape[1], dtype=np.int64)
    for first in range(0, len(runs), step):
        some = slice(first, first + step)
        total += sketch_at(runs[some], starts[some, None] + within, largest)
    return total
