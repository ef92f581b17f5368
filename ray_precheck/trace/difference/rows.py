"""The rows of a pair of operators: measured, and judged by a standard.

Comes in: the values of two aligned operators, and what their captures have. Goes out: rows. Called by
the job that compares captures, for each pair; the cells of a row are made in `cells`.
"""

from collections.abc import Sequence

from ray_precheck.trace.difference.cells import cells, encode_rows, headings
from ray_precheck.trace.difference.measuring import measure
from ray_precheck.trace.difference.pairing import pair_items
from ray_precheck.trace.difference.reading import Reading, reading_of
from ray_precheck.trace.difference.row import NOT_THERE, ComparisonMode, TensorRow
from ray_precheck.trace.difference.standards.registry import judge_rows
from ray_precheck.trace.items import Item

__all__ = [
    "ComparisonMode", "Reading", "TensorRow", "cells", "encode_rows", "headings", "judge_rows", "pair_items",
    "reading_of", "rows_of_operators",
]  # fmt: skip


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
