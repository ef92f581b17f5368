"""The rows of a pair of operators, and what is measured of each: its elements, its statistics, its sketches.

Comes in: the values of two aligned operators and a `Reading`. Goes out: rows, filled in. Called by the job
that compares captures, for each pair. No verdict is made here; the cells of a row are made in `cells`.
"""

import math
from collections.abc import Sequence
from functools import cache

from ray_precheck.dump.mapped import MappedTensor, MappedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import canonical_dtype
from ray_precheck.trace.difference.elements import element_difference
from ray_precheck.trace.difference.layout import other_layout, other_order, same_statistics
from ray_precheck.trace.difference.magnitudes import (
    beside_mask,
    is_out_of_range,
    may_be_masked,
    scaled_distance,
)
from ray_precheck.trace.difference.pairing import pair_items
from ray_precheck.trace.difference.reading import Reading, sketched_distance
from ray_precheck.trace.difference.row import NOT_THERE, ComparisonMode, TensorRow
from ray_precheck.trace.difference.statistics import statistics_cells
from ray_precheck.trace.items import Item

dtype_of = cache(canonical_dtype)
# Only values that differ by so much of their norm are looked at for another order.
_MOVED = 1e-3


def rows_of_operators(
    target_key: str,
    golden_key: str,
    target: Sequence[Item],
    golden: Sequence[Item],
    reading: Reading,
) -> list[TensorRow]:
    """Return all rows of a pair of operators, measured but not judged.

    An operator that only one side has comes with the key "" and no values on the other.
    """
    rows = []
    for ours, theirs in pair_items(target, golden, same_framework=reading.same_framework):
        row = TensorRow(_named(target_key, ours), _named(golden_key, theirs), ours, theirs)
        measure(row, reading)
        rows.append(row)
    return rows


def _named(key: str, item: Item | None) -> str:
    if item is None:
        return NOT_THERE
    return f"{key}.{item.path}" if item.path else key


def measure(row: TensorRow, reading: Reading) -> None:
    """Fill in a row: its elements where both sides have files, its statistics, its sketches."""
    target, golden = row.target, row.golden
    if reading.mode is not ComparisonMode.DIGESTS:
        row.statistics = statistics_cells(target, golden)
    if target is None or golden is None:
        return
    _compare_kinds(row, target, golden)
    if not row.tensors:
        return
    if reading.mode is ComparisonMode.REAL:
        _measure_elements(row, target, golden, reading)
    if row.elements is None and reading.mode is not ComparisonMode.DIGESTS:
        if not row.reshaped:
            row.relative_l2 = sketched_distance((reading.target, reading.golden), target, golden)
            row.estimated = row.relative_l2 is not None
        if row.reshaped and not row.layout and _may_be_another_layout(target, golden):
            row.layout = "the statistics agree, as those of the same values in another layout do"


def _may_be_another_layout(target: Item, golden: Item) -> bool:
    """Return whether as many elements on both sides have the same statistics."""
    sizes = [math.prod(side.shape or ()) for side in (target, golden)]
    return sizes[0] == sizes[1] > 0 and same_statistics(target, golden)


def _compare_kinds(row: TensorRow, target: Item, golden: Item) -> None:
    """Note whether both are tensors, and whether their shapes differ.

    Nearly all pairs have the same dtype and shape, and are looked at once.
    """
    ours, theirs = target.element, golden.element
    if ours is None or theirs is None:
        return
    dtype, shape = ours.get("dtype"), ours.get("shape")
    if not isinstance(dtype, str) or not isinstance(shape, list):
        return
    if shape == theirs.get("shape") and dtype == theirs.get("dtype"):
        row.tensors = True
    elif target.is_tensor and golden.is_tensor:
        row.tensors, row.reshaped = True, shape != theirs["shape"]


def _measure_elements(row: TensorRow, target: Item, golden: Item, reading: Reading) -> None:
    opened: list[MappedTensor] = []
    reasons = []
    for side, item, source in (
        ("target", target, reading.target),
        ("golden", golden, reading.golden),
    ):
        try:
            opened.append(open_item(item, source.tensors))
        except NotCheckable as reason:
            reasons.append(f"{side}: {reason}")
    row.unread = "; ".join(reasons)
    if reasons:
        return
    ours, theirs = opened
    if ours.shape != theirs.shape:
        row.layout = other_layout(ours, theirs)
        return
    rtol, atol = tolerances(ours.dtype, theirs.dtype)
    row.elements = element_difference(ours, theirs, rtol, atol)
    row.relative_l2 = row.elements.relative_l2
    if is_out_of_range(row.elements):
        row.relative_l2 = scaled_distance(ours, theirs)
    if may_be_masked(row.elements, _largest(golden)):
        row.beside = beside_mask(ours, theirs)
    if row.relative_l2 > _MOVED and same_statistics(target, golden):
        row.layout = other_order(ours, theirs)


def _largest(item: Item) -> float | None:
    """Return the largest magnitude of a tensor, as its statistics say; None where they do not."""
    ends = [end for end in item.ends if end is not None]
    largest = max(map(abs, ends), default=math.nan) if len(ends) == 2 else math.nan
    return largest if math.isfinite(largest) else None


def open_item(item: Item, tensors: MappedTensors | None) -> MappedTensor:
    """Map the file of a tensor.

    Raises:
        NotCheckable: there is none, or it cannot be read.
    """
    dtype = dtype_of(item.dtype)
    if tensors is None:
        raise NotCheckable("the capture has no files of tensors")
    if dtype is None:
        raise NotCheckable(f"the dtype {item.dtype} is not read")
    return tensors.open(item.spec(dtype))


# Source: the table in the documentation of torch.testing.assert_close (torch 2.13): rtol and atol by
# dtype, 0 and 0 for all others; of two dtypes the larger ones count. Complex64 has those of float32.
_BY_DTYPE = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


def tolerances(target: str, golden: str) -> tuple[float, float]:
    """Return rtol and atol for two canonical dtypes."""
    pairs = [_BY_DTYPE.get(dtype, (0.0, 0.0)) for dtype in (target, golden)]
    return max(rtol for rtol, _ in pairs), max(atol for _, atol in pairs)
