"""One output of an API against the bench: the detail row.

Comes in: a leaf of the tested outputs and the bench's leaf, and how they are judged. Goes out: an
`OutputCheck`. Called by `check`. For the metrics the bench is rounded to the tested dtype first, so
that a correctly rounded half-precision result has error 0; a standard gets it unrounded as well.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ray_precheck.accuracy.metrics import metrics_of, rounded_bench
from ray_precheck.accuracy.standards.auto import Auto, coarse_note
from ray_precheck.accuracy.standards.base import (
    Cells,
    Comparison,
    Standard,
    added_cells,
    no_implementations,
)
from ray_precheck.accuracy.standards.honest import Distance
from ray_precheck.accuracy.standards.msprobe import MSPROBE
from ray_precheck.descriptors.descriptor import framework_dtype
from ray_precheck.numerics.arrays import smallest_normal
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Metrics, OutputCheck, Uncompared, Verdict
from ray_precheck.schema.values import HostTensor, Quantized

# Unions of types, which are made anew each time that they are written in a function.
_NUMBERS = int | float | complex
_COMPARABLE = HostTensor | Uncompared


@dataclass(frozen=True, slots=True)
class Judge:
    """How the leaves of one direction of a call are judged.

    `framework` spells the dtypes; `of_finite` says whether no input is infinite or NaN, so that
    infinities that agree were computed. The other fields are those of a `Comparison`.
    """

    framework: str
    standard: Standard = MSPROBE
    type_name: str = ""
    direction: str = "forward"
    is_exact: bool = False
    of_finite: Callable[[], bool] = lambda: False


def check_output(
    name: str,
    tested: Any,
    bench: Any,
    judge: Judge,
    implementations: Callable[[], Sequence[Array]] = no_implementations,
) -> OutputCheck:
    """Compare one leaf: tensors by the standard of `judge`, everything else by equality.

    `implementations` are asked for only by standards that need them.
    """
    if isinstance(bench, Uncompared):
        reason = f"not compared: {bench.reason}"
        return row_of(name, tested, bench, judge.framework, Verdict.SKIP, reason)
    if isinstance(tested, HostTensor) and isinstance(bench, _NUMBERS):
        bench = _number(bench)
    if isinstance(bench, HostTensor) and isinstance(tested, _NUMBERS):
        tested = _number(tested)
    if not isinstance(tested, HostTensor) or not isinstance(bench, HostTensor):
        return row_of(name, tested, bench, judge.framework, *_compared_values(tested, bench))
    differs = _stored_otherwise(tested, bench)
    if not differs and tested.shape != bench.shape:
        differs = f"shape {list(tested.shape)} where the bench has {list(bench.shape)}"
    if differs:
        return row_of(name, tested, bench, judge.framework, Verdict.ERROR, differs)
    judged = _judged(tested, _comparison(tested, bench, judge, implementations), judge)
    return row_of(name, tested, bench, judge.framework, *judged)


def row_of(
    name: str,
    tested: Any,
    bench: Any,
    framework: str,
    verdict: Verdict,
    message: str,
    metrics: Metrics | None = None,
    columns: Cells = (),
) -> OutputCheck:
    """Return the detail row of two leaves, which have been compared."""
    is_alone = isinstance(bench, Uncompared)
    has_shape = isinstance(tested, HostTensor) and isinstance(bench, _COMPARABLE)
    return OutputCheck(
        name=name,
        bench_dtype="" if is_alone else _dtype_cell(bench, framework),
        tested_dtype="" if is_alone and tested is None else _dtype_cell(tested, framework),
        shape=str(tested.shape) if has_shape else "",
        metrics=metrics,
        verdict=verdict,
        message=message,
        columns=columns,
    )


def _number(value: complex) -> HostTensor:
    """Return a Python number as a tensor without dimensions, in the widest dtype of its kind."""
    dtype = {bool: "bool", int: "int64", float: "float64"}.get(type(value), "complex128")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        dtype = "float64"
    return HostTensor(dtype, np.asarray(value, dtype))


def check_with_limits(
    name: str,
    tested: HostTensor,
    bench: HostTensor,
    judge: Judge,
    implementations: Callable[[], Sequence[Array]],
) -> tuple[OutputCheck, Iterator[Distance] | None]:
    """Compare a tensor as `check_output` does, by the standard `auto`; also return the limits of its errors
    (`Auto.limits`) if it passes."""
    comparison = _comparison(tested, bench, judge, implementations)
    found = _judged(tested, comparison, judge)
    check = row_of(name, tested, bench, judge.framework, *found)
    if not isinstance(judge.standard, Auto) or check.verdict is not Verdict.PASS:
        return check, None
    return check, judge.standard.limits(comparison)


def _comparison(
    tested: HostTensor,
    bench: HostTensor,
    judge: Judge,
    implementations: Callable[[], Sequence[Array]],
) -> Comparison:
    """Return two tensors of one shape beside each other."""
    rounded = rounded_bench(bench.data, tested.dtype)
    metrics = metrics_of(tested.data, rounded, smallest_normal(tested.dtype))
    return Comparison(
        type_name=judge.type_name,
        direction=judge.direction,
        dtype=tested.dtype,
        device_out=tested.data,
        bench_out=bench.data,
        metrics=metrics,
        implementations=implementations,
        framework=judge.framework,
        is_exact=judge.is_exact,
        rounded=rounded,
    )


def _judged(
    tested: HostTensor, comparison: Comparison, judge: Judge
) -> tuple[Verdict, str, Metrics | None, Cells]:
    """Return verdict, message, metrics and added cells of a comparison."""
    metrics = comparison.metrics
    judgement = judge.standard.judge(comparison)
    message = judgement.message
    if judgement.verdict is Verdict.ERROR and judge.standard.name != Auto.name:
        message += coarse_note(comparison)
    columns = added_cells(judge.standard, comparison, judgement.columns)
    reason = nothing_compared(tested, metrics, of_finite=judge.of_finite)
    if reason:
        return Verdict.SKIP, reason, None, ()
    return judgement.verdict, message, metrics, columns


def _stored_otherwise(tested: HostTensor, bench: HostTensor) -> str:
    """Return how two quantized or nested tensors differ beside their values, "" where they do not."""
    mine, other = tested.storage, bench.storage
    if mine is None and other is None:
        return ""
    if not isinstance(mine, Quantized) or not isinstance(other, Quantized):
        return "" if mine == other else f"it is a tensor of {mine} where the bench has {other}"
    if mine.axis == other.axis and len(mine.scale) == len(other.scale):
        if mine.zero_point != other.zero_point:
            return (
                f"zero point {_few(mine.zero_point)} where the bench has {_few(other.zero_point)}"
            )
        if np.allclose(mine.scale, other.scale, 2.0**-20, 0.0):
            return ""
    return f"scale {_few(mine.scale)} where the bench has {_few(other.scale)}"


def _few(numbers: Sequence[float]) -> str:
    shown = ", ".join(f"{number:.9g}" for number in numbers[:4])
    return shown if len(numbers) <= 4 else f"{shown}, ..."


def nothing_compared(
    tested: HostTensor,
    metrics: Metrics | None = None,
    of_finite: Callable[[], bool] = lambda: False,
) -> str:
    """Return that an output has no element that could be compared, "" where it has one.

    NaN and infinities that agree are no evidence where they may come from the inputs alone; an infinity of
    finite inputs has its place and its sign.
    """
    count = tested.data.size
    if not count:
        return "no element to compare: the output is empty"
    if metrics is None or metrics.mismatch or metrics.left_out < count:
        return ""
    if np.isinf(tested.data).any() and of_finite():
        return ""
    return f"no element to compare: all {count} are NaN or infinite, on both sides alike"


def _compared_values(tested: Any, bench: Any) -> tuple[Verdict, str]:
    if not same_value(tested, bench):
        return Verdict.ERROR, f"{_show(tested)} where the bench has {_show(bench)}"
    if isinstance(tested, float) and not math.isfinite(tested):
        return Verdict.SKIP, f"nothing to compare: it is {tested} on both sides"
    return Verdict.PASS, ""


def same_value(tested: Any, bench: Any) -> bool:
    """Return whether two values are equal; NaN equals NaN, a list equals the tuple of the same values."""
    if isinstance(tested, list | tuple) and isinstance(bench, list | tuple):
        pairs = zip(tested, bench, strict=False)
        return len(tested) == len(bench) and all(same_value(t, b) for t, b in pairs)
    if isinstance(tested, float) and isinstance(bench, float) and tested != tested:
        return bench != bench
    return type(tested) is type(bench) and bool(tested == bench)


def _dtype_cell(leaf: Any, framework: str) -> str:
    if isinstance(leaf, HostTensor):
        return framework_dtype(leaf.dtype, framework)
    return type(leaf).__name__


def _show(value: Any) -> str:
    if isinstance(value, HostTensor):
        return f"a tensor of shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
