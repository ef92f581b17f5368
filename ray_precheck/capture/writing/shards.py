"""The sketch of a part of a sharded tensor, by the places of its elements in the whole.

Comes in: the local values of a process, and which part of the whole tensor they are. Goes out: the
sketch of the part, such that those of all parts add up to the sketch of the whole. Called for tensors
that are distributed (DTensor); plain tuples describe the part, so nothing here needs torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np

from ray_precheck.numerics.sketch import Array, largest_of, sketch, sketch_at, zeros

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


def sketch_part(
    values: Array, whole: Sequence[int], offsets: Sequence[int], largest: float | None = None
) -> Array:
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
        return sketch(values, 0, largest)
    if largest is None and values.dtype.kind not in "iub":
        largest = largest_of(values)
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
