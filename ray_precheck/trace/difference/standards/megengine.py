"""`megengine`: MegEngine's measure of two variables, and what of an error came with the inputs.

Comes in: the rows of a pair of operators. Goes out: their results. Called by `registry`; `locate` asks for
the error of a row. The measure is that of MegEngine 1.13 (imperative/python/megengine/tools/
compare_binary_iodump.py, `check`): the error of an element is |t - g| / max(|t|, |g|, 1) in float32, that of
a variable its largest, and more than `--max-err` fails. What is not finite and other shapes fail, too; its
tree of failures does not show those two, here they are errors like others.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ray_precheck.numerics.statistics import FIELDS, MAX, MIN
from ray_precheck.options.shared import MAX_ERR
from ray_precheck.trace.difference.rows import (
    ERROR,
    PASS,
    WARNING,
    ComparisonMode,
    TensorRow,
)
from ray_precheck.trace.difference.standards.base import counted, index_of, odd_sentence
from ray_precheck.trace.items import Item

_TOLD = re.compile(r"(?:^|: )error (?:at least )?(\S+), of its inputs")
# The digits of the first values in a text (`formats.megengine`), which the field `digits` does not count.
_DIGITS_OF_VALUES = 4


class ScaledError(NamedTuple):
    """The error of a variable, infinite where what is not finite or another shape fails, and why. Of
    statistics it is a lower bound (`is_bound`)."""

    value: float
    why: str = ""
    is_bound: bool = False


def judge_by_megengine(
    rows: Sequence[TensorRow], mode: ComparisonMode, max_err: float = MAX_ERR
) -> None:
    """Judge each row: an error beyond `max_err` fails. An input whose variable is known is judged where that
    is made; here it is a warning."""
    errors = [scaled_error(row, mode) for row in rows]
    pairs = [*zip(rows, errors, strict=True)]
    brought = largest_known(found for row, found in pairs if not row.is_output)
    for row, found in pairs:
        if found is None:
            continue
        if found.value > max_err:
            is_passed_on = not row.is_output and bool(row.item.variable)
            row.note(WARNING if is_passed_on else ERROR, failure(row, found, max_err))
        if row.is_output:
            row.note(PASS, f"{variable_of(row.item)}{error_in_words(found, brought)}")


def scaled_error(row: TensorRow, mode: ComparisonMode) -> ScaledError | None:
    """Return the error of a row; None for what is no pair of tensors, or has no values on a side."""
    found = row.elements
    if row.reshaped:
        return ScaledError(math.inf, "the shapes differ")
    if found is not None:
        if found.finite < found.numbers:
            count = found.numbers - found.finite
            return ScaledError(math.inf, f"{count} of {counted(found)} are NaN or infinite")
        return ScaledError(found.max_scaled)
    if (
        mode is ComparisonMode.DIGESTS
        or not row.tensors
        or row.target is None
        or row.golden is None
    ):
        return None
    return _by_statistics(row)


def _by_statistics(row: TensorRow) -> ScaledError | None:
    """Return the error as Max, Min and the first values bound it: below 1 that of each is at most the largest
    of all elements. Printed numbers may be half a unit of their last digit off, each."""
    target, golden = row.both
    if odd := odd_sentence(row):
        return ScaledError(math.inf, odd)
    if any(each is not None and not math.isfinite(each) for each in map(target.number, FIELDS)):
        return ScaledError(math.inf, "its statistics are NaN or infinite on both sides")
    digits = [_digits(item) for item in (target, golden)]
    found = [
        (f"{name} is", _apart(target.number(name), golden.number(name), digits))
        for name in (MAX, MIN)
    ]
    of_values = [each and _DIGITS_OF_VALUES for each in digits]
    ours, theirs = target.statistic("first"), golden.statistic("first")
    if isinstance(ours, list) and isinstance(theirs, list):
        found += [
            (f"value {place} is", _apart(_number(one), _number(other), of_values))
            for place, (one, other) in enumerate(zip(ours, theirs, strict=False))
        ]
    known = [(error, what) for what, error in found if error is not None]
    if not known:
        return None
    error, what = max(known)
    return ScaledError(error, f"{what} off by {error:.6g} of its magnitude", is_bound=True)


def _apart(ours: float | None, theirs: float | None, digits: Sequence[int]) -> float | None:
    if ours is None or theirs is None:
        return None
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return 0.0 if ours == theirs or (math.isnan(ours) and math.isnan(theirs)) else math.inf
    slack = sum(_half_unit(*each) for each in zip((ours, theirs), digits, strict=True))
    return max(0.0, abs(ours - theirs) - slack) / max(abs(ours), abs(theirs), 1.0)


def _half_unit(value: float, digits: int) -> float:
    """Return half a unit of the last of so many digits; 0 for a number that is not rounded."""
    if not digits or not value:
        return 0.0
    # 1.5 % more, because the decimal numbers themselves are rounded.
    return 0.5075 * 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)


def _digits(item: Item) -> int:
    """Return with how many digits the statistics were printed; 0 for all of them."""
    found = item.statistic("digits")
    return found if type(found) is int and 0 < found < 20 else 0


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]


def largest_known(errors: Iterable[ScaledError | None]) -> float | None:
    """Return the largest error that is known, None for none."""
    return max((each.value for each in errors if each is not None), default=None)


def failure(row: TensorRow, found: ScaledError, max_err: float) -> str:
    """Return the sentence about a row that fails."""
    if found.is_bound:
        return f"{found.why}, above {max_err:g}"
    if found.why or row.elements is None:
        return found.why
    return (
        f"the largest |t - g| / max(|t|, |g|, 1) is {found.value:.6g}, above {max_err:g}; the largest"
        f" difference is at {index_of(row, row.elements.worst)}"
    )


def variable_of(item: Item) -> str:
    """Return what a variable is called, `variable 11 (c1.Convolution): `; "" where it has no identity."""
    name = item.statistic("name")
    shown = f" ({name})" if isinstance(name, str) and name else ""
    return f"variable {item.variable}{shown}: " if item.variable else ""


def error_in_words(found: ScaledError, brought: float | None) -> str:
    """Return an error, the largest one of the inputs and their ratio; `error_told` reads it again."""
    bound = "at least " if found.is_bound else ""
    said = f"error {bound}{found.value:.6g}, of its inputs"
    if brought is None:
        return f"{said} none is known"
    ratio = found.value / brought if brought else math.inf if found.value else math.nan
    shown = "" if math.isnan(ratio) else f", ratio {ratio:.4g}"
    return f"{said} at most {brought:.6g}{shown}"


def error_told(message: str) -> float | None:
    """Return the error that a message of a row tells; None for other messages."""
    found = _TOLD.search(message)
    return float(found[1]) if found else None
