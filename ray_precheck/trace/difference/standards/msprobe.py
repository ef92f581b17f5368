"""`msprobe`: the rules of mindstudio-probe 26.2 for the three modes, and what they do not see.

Comes in: the rows of a pair of operators. Goes out: their results. Called by `registry`. Source:
core/compare/indicator_analysis, algorithm.py (TENSOR_CHECKERS, STATISTICS_CHECKERS, MD5_CHECKERS) and
calculator.py (the operators that are left out). Its rules look from inputs to outputs; parameters count as
inputs.

Two things are an error here that msprobe passes, and the message says so: NaN or infinities that are not
the same on both sides where the golden side has some, and infinities of opposite signs. Values that only
one side has are `unmatched`, where msprobe passes them, or warns. Between frameworks dtypes are compared by
what they are, not by their spelling, and `requires_grad` counts only where both frameworks record it.
"""

import math
import re
from collections.abc import Iterable, Sequence

from ray_precheck.numerics.statistics import FIELDS, NORM
from ray_precheck.trace.difference.rows import (
    ENDS,
    ERROR,
    NOT_THERE,
    OURS,
    SHARES,
    THEIRS,
    WARNING,
    ComparisonMode,
    TensorRow,
    digest_cell,
    metric_cells,
    relative,
    statistics_of,
)
from ray_precheck.trace.difference.standards.base import dtypes_differ, odd_sentence, shortened
from ray_precheck.trace.items import Item

# ApiIndicatorCalculator: operators whose results mean nothing, and those whose inputs do not.
ALL_IGNORED = frozenset(
    "empty empty_like numpy to __setitem__ empty_with_format new_empty_strided new_empty"
    " empty_strided".split()
)
INPUTS_IGNORED = frozenset(
    "_reduce_scatter_base _all_gather_base all_to_all_single batch_isend_irecv".split()
)
# DTypeErrChecker: fused tensors, whose sides are merged.
_MERGED = re.compile("qkv|gate_up")
_NORM = FIELDS.index(NORM)
# RelativeErrChecker and RelativeWarnChecker: NormRelativeErr of inputs and outputs.
_INPUT_NORM, OUTPUT_NORM, _OUTPUT_ALONE, _TIMES = 0.1, 0.5, 0.1, 10.0
# OneThousandthErrChecker: above it for all inputs, below it for an output. Its message says 0.6, its
# rule is 0.1.
_INPUT_SHARE, OUTPUT_SHARE = 0.9, 0.1
# CosineWarnChecker: above it for all inputs, and an output so far below the inputs.
_INPUT_COSINE, _COSINE_LOSS = 0.9, 0.1
_NOT_FINITE = frozenset(("Nan", " inf", " -inf"))


def judge_by_msprobe(rows: Sequence[TensorRow], mode: ComparisonMode) -> None:
    """Judge by the rules of the mode."""
    if not rows:
        return
    operator = _operator(rows)
    if operator in ALL_IGNORED:
        return
    judged = rows
    if operator in INPUTS_IGNORED:
        judged = [row for row in rows if row.is_output]
    for row in judged:
        if mode is ComparisonMode.DIGESTS:
            _judge_digests(row)
        else:
            _judge_row(row)
    if mode is ComparisonMode.DIGESTS or judged is not rows:
        return
    inputs = [row for row in rows if not row.is_output]
    outputs = [row for row in rows if row.is_output]
    for row in inputs:
        _judge_value(row)
    if mode is ComparisonMode.REAL:
        _judge_metrics(inputs, outputs)
    else:
        _judge_norms(inputs, outputs)


def _operator(rows: Sequence[TensorRow]) -> str:
    """Return the second part of the first input's name, by which msprobe leaves operators out."""
    first = next((row.target_name for row in rows if not row.is_output), "")
    parts = first.split(".", 2)
    return parts[1] if len(parts) > 1 else ""


def _judge_row(row: TensorRow) -> None:
    """Apply the rules that look at one row alone."""
    if odd := odd_sentence(row):
        ends = (row.statistics[side][:ENDS] for side in (OURS, THEIRS))
        are_finite = [_NOT_FINITE.isdisjoint(each) for each in ends]
        found = are_finite == [False, True]
        row.note(ERROR, odd if found else f"{odd} (msprobe passes this)")
    target, golden = row.target, row.golden
    if target is None or golden is None or target.element is None or golden.element is None:
        return
    if not row.tensors and (words := _odd_number(target, golden)):
        row.note(ERROR, words)
    ours, theirs = target.element.get("requires_grad"), golden.element.get("requires_grad")
    if ours is not None and theirs is not None and ours != theirs:
        row.note(ERROR, f"requires_grad is {ours}, in the golden capture {theirs}")
    if not row.tensors or target.element["dtype"] != golden.element["dtype"]:
        _judge_dtypes(row, target, golden)
    if row.reshaped:
        row.note(
            ERROR, f"the shape is {list(target.shape or ())}, golden {list(golden.shape or ())}"
        )


def _odd_number(target: Item, golden: Item) -> str:
    """Return that a number, such as a loss, is NaN or infinite where the golden one is finite; "" if not."""
    if target.type_name != "float" or golden.type_name not in ("float", "int"):
        return ""
    ours, theirs = target.number("value"), golden.number("value")
    if ours is None or theirs is None or math.isfinite(ours) or not math.isfinite(theirs):
        return ""
    return f"the value is {ours}, in the golden capture {theirs}"


def _judge_dtypes(row: TensorRow, target: Item, golden: Item) -> None:
    if _MERGED.search(row.golden_name):
        return
    if target.is_tensor and golden.is_tensor:
        if dtypes_differ(row):
            row.note(ERROR, f"the dtype is {target.dtype}, in the golden capture {golden.dtype}")
    elif target.is_tensor != golden.is_tensor or target.type_name != golden.type_name:
        row.note(ERROR, f"the type is {target.type_name}, in the golden capture {golden.type_name}")


def _judge_value(row: TensorRow) -> None:
    """Apply the rule for arguments that are no tensors: equal, or an error."""
    target, golden = row.target, row.golden
    if row.tensors or target is None or golden is None or target.is_tensor or golden.is_tensor:
        return
    if target.element is None or golden.element is None:
        return
    if target.type_name in ("torch.Size", "slice", "ellipsis", "torch.ProcessGroup"):
        return  # msprobe's rule is for what Python has a class of
    ours, theirs = statistics_of(target)[0], statistics_of(golden)[0]
    if ours != theirs:
        shown = [shortened(repr(each)) for each in (ours, theirs)]
        row.note(ERROR, f"the value is {shown[0]}, in the golden capture {shown[1]}")


def _judge_digests(row: TensorRow) -> None:
    ours, theirs = digest_cell(row.target), digest_cell(row.golden)
    if ours == theirs:
        return
    if NOT_THERE in (ours, theirs):
        row.note(WARNING, "only one side has a digest")
    else:
        row.note(ERROR, "the digests differ")


def _judge_norms(inputs: Sequence[TensorRow], outputs: Sequence[TensorRow]) -> None:
    if not outputs:
        return
    largest = _largest_norm(inputs)
    for row in outputs if largest < _INPUT_NORM else ():
        cell = row.statistics[SHARES][_NORM]
        if cell != "0" and abs(relative(cell)) > OUTPUT_NORM:
            row.note(
                ERROR,
                f"the relative error of the norm is {cell}, above 50%, that of inputs below 10%",
            )
    out = _largest_norm(outputs)
    if (out > _OUTPUT_ALONE) if not largest else (out / largest > _TIMES):
        row = outputs[0]
        row.note(WARNING, "the relative error of the norm is more than 10 times that of the inputs")


def _largest_norm(rows: Iterable[TensorRow]) -> float:
    """Return the largest relative error of a norm; words, such as `inf`, do not count in msprobe."""
    found = (row.statistics[SHARES][_NORM] for row in rows)
    return max((relative(cell) for cell in found if cell[-1] == "%"), default=0.0)


def _judge_metrics(inputs: Sequence[TensorRow], outputs: Sequence[TensorRow]) -> None:
    if not outputs:
        return
    before, after = ([metric_cells(row) for row in rows] for rows in (inputs, outputs))
    first = outputs[0]
    if _least(before, 4) > _INPUT_SHARE and _least(after, 4) < OUTPUT_SHARE:
        first.note(
            ERROR,
            "less than 10% of the elements of an output are within 1/1000, and more than 90% of the inputs",
        )
    if _least(before, 0) > _INPUT_COSINE and _least(before, 0) - _least(after, 0) > _COSINE_LOSS:
        first.note(WARNING, "the cosine of an output is more than 0.1 below that of the inputs")


def _least(cells: Iterable[Sequence[str]], column: int) -> float:
    """Return the smallest number of a column, at most 1; words do not count."""
    smallest = 1.0
    for row in cells:
        try:
            smallest = min(smallest, float(row[column]))
        except ValueError:
            continue
    return smallest
