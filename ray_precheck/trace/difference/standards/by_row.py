"""The standards that judge each row by itself: those of other tools, and of `torch.testing`.

Comes in: a row that both sides have, and the mode of the comparison. Goes out: its result. Called by
`registry`.
"""

import math

from ray_precheck.accuracy.thresholds import COSINE_LIMIT
from ray_precheck.numerics.statistics import FIELDS, MAX, MIN
from ray_precheck.trace.difference.measuring import dtype_of, tolerances
from ray_precheck.trace.difference.rows import (
    ERROR,
    SHAPE_UNMATCHED,
    WARNING,
    ComparisonMode,
    TensorRow,
    digest_cell,
    metric_cells,
    statistics_of,
)
from ray_precheck.trace.difference.standards.base import (
    counted,
    dtypes_differ,
    index_of,
    odd_sentence,
)

# precision_tool's -c, the highest cosine that it lists.
COSINE_TO_LIST = 0.98
# CompareConst.MAX_ABS_ERR_THRESHOLD and MAGNITUDE of ptdbg_ascend; COSINE_LIMIT is its COS_THRESHOLD.
PTDBG_MAX_ABS_ERR = 0.001
_MAGNITUDE = 0.5


def judge_by_npu_hooks(row: TensorRow, mode: ComparisonMode) -> None:
    """`npu-hooks`: numbers without a verdict, as `torch_npu.hooks.tools.compare` gives them.

    That tool writes Cosine, RMSE and MAPE and leaves the verdict to its reader: a row with numbers passes
    here, and one without any, because of NaN or other shapes, is an error.
    """
    if row.reshaped:
        row.note(ERROR, "the shapes differ")
    elif mode is not ComparisonMode.DIGESTS and (odd := odd_sentence(row)):
        row.note(ERROR, odd)


def judge_by_ptdbg(row: TensorRow, mode: ComparisonMode) -> None:
    """`ptdbg`: an error only where the cosine is low and the largest absolute error is large.

    Source: ptdbg_ascend, the predecessor of msprobe (gitee.com/ascend/att, debug/accuracy_tools/ptdbg_ascend,
    compare/acc_compare.py, `check_accuracy`): "Accuracy Reached or Not" is no where Cosine < 0.99 and
    MaxAbsErr > 0.001, or where neither could be computed. Of statistics it warns where two of them differ by
    more than half of the larger one (`MAGNITUDE`). Infinities of other signs, and in statistics NaN on one
    side and other shapes, are errors here, which ptdbg passes.
    """
    if mode is ComparisonMode.DIGESTS:
        if digest_cell(row.target) != digest_cell(row.golden):
            row.note(ERROR, "the digests differ")
    elif row.elements is not None or mode is ComparisonMode.REAL:
        _judge_metrics(row)
    else:
        _judge_magnitudes(row)


def _judge_metrics(row: TensorRow) -> None:
    cosine, _, largest, *_ = metric_cells(row)
    if cosine == SHAPE_UNMATCHED:
        row.note(ERROR, "the shapes differ")
    elif odd := odd_sentence(row):
        row.note(ERROR, odd)
    elif row.elements is not None:
        try:
            low = float(cosine) < COSINE_LIMIT
        except ValueError:
            return
        if low and row.elements.max_abs > PTDBG_MAX_ABS_ERR:
            row.note(
                ERROR, f"the cosine is {cosine}, below 0.99, and MaxAbsErr {largest}, above 0.001"
            )


def _judge_magnitudes(row: TensorRow) -> None:
    target, golden = row.target, row.golden
    if target is None or golden is None or not target.is_tensor or not golden.is_tensor:
        return
    if row.reshaped:
        row.note(ERROR, "the shapes differ")
        return
    if odd := odd_sentence(row):
        row.note(ERROR, odd)
        return
    for name in FIELDS:
        ours, theirs = target.number(name), golden.number(name)
        if ours is None or theirs is None or ours == theirs:
            continue
        if abs(ours - theirs) / (max(abs(ours), abs(theirs)) + 1e-10) > _MAGNITUDE:
            row.note(WARNING, f"{name} differs by more than half of the larger one")
            return


def judge_by_precision_tool(row: TensorRow, mode: ComparisonMode) -> None:
    """`precision_tool`: an output whose cosine is at most 0.98.

    Source: Ascend's precision_tool 0.1.11, lib/compare/compare_result.py, `is_cosine_sim_over_threshold`:
    `vcs` lists the operators of which an output has a cosine <= 0.98 (`-c`), and passes NaN. Here other
    shapes, unless the values are the same in another layout, and NaN or infinities that are not the same on
    both sides, are errors of an output, too. Without elements there is no cosine, and those alone are seen.
    """
    if not row.is_output:
        return
    if row.reshaped:
        if not row.layout:
            row.note(ERROR, "the shapes differ")
    elif mode is not ComparisonMode.DIGESTS and (odd := odd_sentence(row)):
        row.note(ERROR, odd)
    elif row.elements is not None:
        cosine = metric_cells(row)[0]
        try:
            low = float(cosine) <= COSINE_TO_LIST
        except ValueError:
            return
        if low:
            row.note(ERROR, f"the cosine is {cosine}, not above {COSINE_TO_LIST}")


def judge_by_assert_close(row: TensorRow, mode: ComparisonMode) -> None:
    """`assert-close`: what `torch.testing.assert_close` asserts with its defaults.

    Each element has |t - g| <= atol + rtol |g| with the default `tolerances` by dtype; dtypes and shapes are
    the same; NaN is equal to nothing (equal_nan=False). Without elements Max and Min are held to the same
    tolerances.
    """
    if not row.tensors:
        _judge_value(row)
    elif row.reshaped:
        row.note(ERROR, "the shapes differ")
    elif dtypes_differ(row):
        row.note(ERROR, "the dtypes differ")
    elif row.elements is not None:
        _judge_elements(row)
    elif mode is not ComparisonMode.DIGESTS:
        _judge_ends(row)


def _judge_elements(row: TensorRow) -> None:
    found = row.elements
    assert found is not None
    if odd := odd_sentence(row):
        row.note(ERROR, odd)
    nan = min(found.target_nan, found.golden_nan)
    if nan and not found.odd:
        row.note(ERROR, f"{nan} of {counted(found)} are NaN, which is equal to nothing")
    if found.beyond:
        at = index_of(row, found.worst)
        row.note(
            ERROR,
            f"{found.beyond} of {counted(found)} are beyond the tolerances; the largest difference"
            f" is {found.max_abs:.6g} at {at}",
        )


def _judge_ends(row: TensorRow) -> None:
    target, golden = row.both
    if odd := odd_sentence(row):
        row.note(ERROR, odd)
        return
    rtol, atol = tolerances(dtype_of(target.dtype) or "", dtype_of(golden.dtype) or "")
    for name in (MAX, MIN):
        ours, theirs = target.number(name), golden.number(name)
        if ours is None or theirs is None or not math.isfinite(theirs):
            continue
        if not abs(ours - theirs) <= atol + rtol * abs(theirs):
            row.note(ERROR, f"{name} is {ours:.6g}, in the golden capture {theirs:.6g}")


def _judge_value(row: TensorRow) -> None:
    target, golden = row.both
    ours, theirs = statistics_of(target)[0], statistics_of(golden)[0]
    if isinstance(ours, float) and isinstance(theirs, float):
        rtol, atol = tolerances("float64", "float64")
        if ours == theirs or abs(ours - theirs) <= atol + rtol * abs(theirs):
            return
    if ours != theirs or golden.is_tensor:
        row.note(ERROR, "the values differ")
