"""The standards by name, and the verdicts of an operator by one of them.

Comes in: the measured rows of a pair of operators. Goes out: the same rows, judged. Called by the job that
compares captures. What every standard says alike is said here: what only one side has is unmatched, files
that were not read, values in another layout, what was estimated, and what statistics cannot show.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ray_precheck.numerics.statistics import MAX
from ray_precheck.operators.effects import READS_NO_VALUES, UNINITIALISED
from ray_precheck.options.shared import MAX_ERR, MEGENGINE
from ray_precheck.trace.difference.elements import same_statistics
from ray_precheck.trace.difference.rows import (
    BY_STATISTICS,
    OURS,
    PASS,
    THEIRS,
    UNMATCHED,
    WARNING,
    ComparisonMode,
    TensorRow,
    are_same,
    statistics_of,
)
from ray_precheck.trace.difference.standards.auto import judge_by_auto
from ray_precheck.trace.difference.standards.base import (
    CaptureStandard,
    dtypes_differ,
    operator_of,
    shortened,
)
from ray_precheck.trace.difference.standards.by_row import (
    judge_by_assert_close,
    judge_by_npu_hooks,
    judge_by_precision_tool,
    judge_by_ptdbg,
)
from ray_precheck.trace.difference.standards.megengine import judge_by_megengine
from ray_precheck.trace.difference.standards.msprobe import judge_by_msprobe
from ray_precheck.trace.items import SAID_BEFORE, Item


def _by_row(judge: Callable[[TensorRow, ComparisonMode], None]) -> CaptureStandard:
    def judge_each(rows: Sequence[TensorRow], mode: ComparisonMode) -> None:
        for row in rows:
            judge(row, mode)

    return judge_each


STANDARDS: dict[str, CaptureStandard] = {
    "msprobe": judge_by_msprobe,
    "ptdbg": _by_row(judge_by_ptdbg),
    "npu-hooks": _by_row(judge_by_npu_hooks),
    MEGENGINE: judge_by_megengine,
    "precision_tool": _by_row(judge_by_precision_tool),
    "assert-close": _by_row(judge_by_assert_close),
    "auto": judge_by_auto,
}


def standard_of(name: str, max_err: float | None = None) -> CaptureStandard:
    """Return a standard by its name; `max_err` is the limit of `megengine`, None for its default."""
    if name == MEGENGINE:
        return partial(judge_by_megengine, max_err=MAX_ERR if max_err is None else max_err)
    return STANDARDS[name]


BLIND = "Max, Min, Mean and Norm agree; they do not show the order of the values"
# Estimates below it are the sketches' own noise (numerics.sketch).
_SKETCH_NOISE = 1e-6
# Estimates above it are no rounding.
_OTHER_VALUES = 1e-3
OTHER_ORDER = (
    "Max, Min, Mean and Norm agree, and the sketches differ: other values, or another order"
)
UNSET = "it is whatever stood in memory, which nothing had written: not compared"
NO_ELEMENTS = "neither side has an element: dtype and shape alone were compared"
_SINGLE: tuple[list[int], ...] = ([], [1])


def judge_rows(
    rows: Sequence[TensorRow],
    standard: CaptureStandard,
    mode: ComparisonMode,
    noise: Sequence[float | None] | None = None,
) -> None:
    """Set result and messages of all rows of a pair of operators.

    `noise` is the relative L2 distance of two golden runs for each row, None where it was not measured.
    """
    for row, measured in zip(rows, noise or [None] * len(rows), strict=True):
        row.noise = measured
        row.result, row.messages = PASS, []
    matched = [row for row in rows if row.target is not None and row.golden is not None]
    unset = {id(row) for row in matched if _is_unset(row)}
    judged = [row for row in matched if id(row) not in unset and not _is_unnamed(row)]
    standard(judged, mode)
    for row in rows:
        if id(row) in unset:
            row.note(PASS, UNSET)
        elif row.target is not None and row.golden is not None:
            _say_facts(row, mode)
        else:
            side = "golden" if row.target is None else "target"
            row.note(UNMATCHED, f"only the {side} capture has it")


def _is_unnamed(row: TensorRow) -> bool:
    """Return whether it is the name of a parameter of an optimizer, of which one side knows the number alone:
    captures of level L1 do."""
    if not row.name.startswith("Optimizer.") or ".names." not in row.item.path:
        return False
    return any(str(statistics_of(item)[0]).isdigit() for item in row.both)


def _is_unset(row: TensorRow) -> bool:
    """Return whether both sides have whatever stood in memory: what `empty` returns, and what is written over
    whole, as by `copy_`. Other shapes and dtypes are differences, too."""
    if not row.tensors or row.reshaped or row.item.dtype != row.both[1].dtype:
        return False
    operator = operator_of(row)
    if row.is_output:
        return bool(UNINITIALISED.of(operator))
    path = row.item.path
    is_over = path == "input.out" or (path == "input.0" and READS_NO_VALUES.of(operator))
    return bool(is_over) and ".backward" not in row.name


def _say_facts(row: TensorRow, mode: ComparisonMode) -> None:
    """Add what was found about a row, whatever the standard."""
    target, golden = row.both
    if not row.tensors:
        _say_values(row, target, golden)
        return
    if row.unread and (target.file or golden.file):
        instead = BY_STATISTICS if _has_statistics(row) else "nothing was compared"
        row.note(WARNING, f"{row.unread}; {instead}")
    if row.layout:
        # The sums of the values do not show it, so that no rule of others does.
        row.note(WARNING if row.result == PASS else PASS, row.layout)
    if _is_empty(target) and _is_empty(golden):
        row.note(PASS, NO_ELEMENTS)
    elif row.elements is not None:
        if dtypes_differ(row):
            row.note(PASS, f"compared after widening {target.dtype} and {golden.dtype}")
    elif mode is not ComparisonMode.DIGESTS and row.estimated:
        _say_estimate(row, target, golden)
    elif mode is not ComparisonMode.DIGESTS and _is_blind(row, target, golden):
        row.note(PASS, BLIND)
    elif row.result == PASS and (side := _without_values(row, target, golden)):
        # A pass means that something was compared.
        result = UNMATCHED if SAID_BEFORE in (target.put_together, golden.put_together) else WARNING
        row.note(result, f"nothing was compared: the {side} has no values of this tensor")


def _say_values(row: TensorRow, target: Item, golden: Item) -> None:
    """Say of a row that passed, and is no pair of tensors, in what it differs."""
    if row.result != PASS or row.messages:
        return
    for side, item, other in (("target", target, golden), ("golden side", golden, target)):
        if not item.is_tensor and other.is_tensor:
            row.note(WARNING, f"nothing was compared: the {side} has no tensor here")
            return
    ours, theirs = (str(statistics_of(item)[0]) for item in (target, golden))
    if ours != theirs:
        row.note(PASS, f"the value is {shortened(ours)}, in the golden capture {shortened(theirs)}")


def _say_estimate(row: TensorRow, target: Item, golden: Item) -> None:
    distance = row.relative_l2 or 0.0
    if distance > _SKETCH_NOISE:
        row.note(PASS, "Relative L2 is estimated from sketches")
    if distance > _OTHER_VALUES and same_statistics(target, golden):
        row.note(WARNING if row.result == PASS else PASS, OTHER_ORDER)


def _is_blind(row: TensorRow, target: Item, golden: Item) -> bool:
    """Return whether equal statistics are all that is known of tensors of more than one element."""
    if not are_same(row.statistics) or row.layout or not _has_statistics(row):
        return False
    if target.element is not None and target.element["shape"] in _SINGLE:
        return False
    return not target.digest or target.digest != golden.digest


def _without_values(row: TensorRow, target: Item, golden: Item) -> str:
    """Return which side has nothing that could be compared, "" for none; an empty tensor has no values."""
    if row.estimated or (target.digest and golden.digest):
        return ""
    for side, item in (("target", target), ("golden side", golden)):
        if type(item.statistic(MAX)) is float:  # nearly all of them
            continue
        if not _is_empty(item) and item.number(MAX) is None and item.norm is None:
            return side
    return ""


def _is_empty(item: Item) -> bool:
    return item.element is not None and 0 in item.element["shape"]


def _has_statistics(row: TensorRow) -> bool:
    return bool(row.statistics) and "None" not in (
        row.statistics[OURS][0],
        row.statistics[THEIRS][0],
    )
