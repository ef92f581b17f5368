"""Where two captured tensors differ, as a histogram and a heat map of blocks.

Comes in: two values of captures that are on this machine, or two tensors. Goes out: charts, or a sentence on
why there are none. Called by the cards of `compare` and `locate`. Tensors are mapped and read in pieces.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ray_precheck.dump.mapped import MappedTensor, MappedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import caught, first_line
from ray_precheck.numerics.arrays import CHUNK_ELEMENTS
from ray_precheck.running.capture_views import OpenedPair
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.view import (
    BlockMaxima,
    Floats,
    Histogram,
    Integers,
)
from ray_precheck.trace.difference.measuring import open_item
from ray_precheck.trace.items import Item

# Elements of all tensors of a view that are read for histograms: two passes take about 4 s on one core.
_MOST_ELEMENTS = 1 << 27
_MOST_BLOCKS = 16
# Half decades from 1e-12, below which float64 sums have no digits, to 1e6.
_FIRST_DECADE, _LAST_DECADE, _BINS_OF_DECADE = -12, 6, 2


@dataclass(slots=True)
class TensorBudget:
    """How many elements of tensors may still be read for a view."""

    left: int = _MOST_ELEMENTS


@dataclass(frozen=True, slots=True)
class ShownDifference:
    """Where two tensors differ, or why that is not shown."""

    histogram: Histogram | None = None
    blocks: BlockMaxima | None = None
    missing: str = ""


def shown_difference(
    pair: OpenedPair, items: tuple[Item, Item], budget: TensorBudget
) -> ShownDifference:
    """Return how the elements of two captured tensors differ, in units of the root mean square of the golden
    one: the root mean square of what is drawn is the relative L2 distance."""
    path = items[0].path
    if not any(item.file for item in items):
        return ShownDifference(
            missing=f"the captures have no files of tensors: where in {path} they differ is not known"
        )
    opened: list[MappedTensor] = []
    for what, side, item in zip(
        ("target", "golden run"), (pair.target, pair.golden), items, strict=True
    ):
        if side is None or not item.file:
            return ShownDifference(missing=f"the {what} has no file of {item.path} on this machine")
        tensors = MappedTensors(side.data_folder)
        try:
            opened.append(open_item(item, tensors))
        except NotCheckable as reason:
            return ShownDifference(missing=f"{item.path} of the {what} cannot be read: {reason}")
    return difference_of_tensors(items[0].path, opened[0], opened[1], budget)


def difference_of_tensors(
    path: str,
    ours: MappedTensor,
    theirs: MappedTensor,
    budget: TensorBudget,
    *,
    names: tuple[str, str] = ("target", "golden run"),
) -> ShownDifference:
    """Return how the elements of two tensors with these `names` differ, in units of the root mean square of
    the second one."""
    if ours.shape != theirs.shape:
        return ShownDifference(missing=f"{path} has other shapes on both sides")
    size = math.prod(ours.shape)
    if size > budget.left:
        return ShownDifference(
            missing=f"{path} has {size:,} elements, more than are read to be drawn"
        )
    budget.left -= size
    if not size:
        return ShownDifference()
    charts, error = caught(lambda: _charts_of(path, ours, theirs, names))
    if charts is None:
        return ShownDifference(
            missing=f"{path} cannot be drawn: {first_line(error or ValueError())}"
        )
    return ShownDifference(*charts)


def _charts_of(
    path: str, ours: MappedTensor, theirs: MappedTensor, names: tuple[str, str]
) -> tuple[Histogram, BlockMaxima]:
    scale = _root_mean_square(theirs) or 1.0
    shape = ours.shape
    columns = shape[-1] if shape else 1
    rows = math.prod(shape) // columns
    row_blocks, column_blocks = min(_MOST_BLOCKS, rows), min(_MOST_BLOCKS, columns)
    row_edges = [rows * block // row_blocks for block in range(row_blocks + 1)]
    starts = np.array([columns * block // column_blocks for block in range(column_blocks)])
    values = np.full((row_blocks, column_blocks), np.nan)
    bins = (_LAST_DECADE - _FIRST_DECADE) * _BINS_OF_DECADE
    counts = np.zeros(bins + 2, np.int64)
    for block in range(row_blocks):
        for piece, column in _pieces_of_rows(row_edges[block], row_edges[block + 1], columns):
            apart = _distances(ours, theirs, piece) / scale
            counts += _counted(apart, bins)
            largest = apart.reshape(-1, min(columns, len(apart))).max(axis=0)
            inner = starts[(starts > column) & (starts < column + len(largest))] - column
            cuts = np.concatenate(([0], inner))
            first = int(np.searchsorted(starts, column, "right")) - 1
            here = values[block, first : first + len(cuts)]
            here[:] = np.fmax(here, np.maximum.reduceat(largest, cuts))
    edges = [10.0 ** (_FIRST_DECADE + place / _BINS_OF_DECADE) for place in range(bins + 1)]
    same, infinite = int(counts[0]), int(counts[-1])
    # Those below the first edge are zeros of a difference, or beyond the digits of float64 sums.
    said = [f"{same:,} of {math.prod(shape):,} are equal"] if same else []
    if infinite:
        said.append(f"{infinite:,} are NaN or infinite on one side, or beyond {edges[-1]:g}")
    left_out = f" (not drawn: {', '.join(said)})" if said else ""
    unit = f"|{names[0]} - {names[1]}| by the root mean square of {names[1]}"
    return (
        Histogram(
            f"How far the elements of {path} are apart{left_out}",
            unit,
            tuple(edges),
            tuple(counts[1:-1].tolist()),
        ),
        BlockMaxima(f"The largest difference in each block of {path}", unit, shape, values),
    )


def _pieces_of_rows(first: int, last: int, columns: int) -> Iterator[tuple[slice, int]]:
    """Yield the places of the elements of rows in pieces, with their first column: of whole rows, or of one
    row where that is long."""
    step = max(1, CHUNK_ELEMENTS // columns)
    for row in range(first, last, step):
        begin, end = row * columns, min(row + step, last) * columns
        if step > 1:
            yield slice(begin, end), 0
            continue
        for start in range(begin, end, CHUNK_ELEMENTS):
            yield slice(start, min(start + CHUNK_ELEMENTS, end)), start - begin


def _distances(ours: MappedTensor, theirs: MappedTensor, piece: slice) -> Floats:
    """Return |target - golden|; infinite where only one is finite, or both are infinite and differ."""
    one, other = (_wide(side.carrier(side.raw[piece])) for side in (ours, theirs))
    with np.errstate(all="ignore"):
        apart: Floats = np.abs(one - other).astype(np.float64, copy=False)
        same = (one == other) | ((one != one) & (other != other))
    apart[same] = 0.0
    apart[np.isnan(apart)] = np.inf
    return apart


def _wide(some: Array) -> Array:
    """Return float64, or complex128."""
    return some.astype(np.complex128 if some.dtype.kind == "c" else np.float64, copy=False)


def _counted(apart: Floats, bins: int) -> Integers:
    """Return how many elements are below the first bin, in each bin, and above the last."""
    with np.errstate(divide="ignore"):
        decades = (np.log10(apart) - _FIRST_DECADE) * _BINS_OF_DECADE
    places = np.clip(np.floor(decades), -1, bins).astype(np.int64) + 1
    return np.bincount(places, minlength=bins + 2)


def _root_mean_square(tensor: MappedTensor) -> float:
    squares = 0.0
    for start in range(0, tensor.raw.size, CHUNK_ELEMENTS):
        some = np.abs(_wide(tensor.carrier(tensor.raw[start : start + CHUNK_ELEMENTS])))
        some = some[np.isfinite(some)]
        with np.errstate(over="ignore"):
            squares += float(np.dot(some, some))
    found = math.sqrt(squares / max(1, tensor.raw.size))
    return found if math.isfinite(found) else 1.0
