"""The cells of the statistics of two values: Max, Min, Mean and Norm, their differences and relative errors.

Comes in: two `Item`. Goes out: cells, in the order and the spelling of msprobe's columns. Called by
`measuring` for each row: 400,000 rows have to be quick, so nothing is made here but text.

The rules are those of mindstudio-probe 26.2 (core/compare/acc_compare.py, `CalcStatsDiff`): equal texts
have the difference `0` and the relative error `0`; two numbers d = t - g and |d / g * 100| with a percent
sign, `inf` where g = 0; NaN against a number `Nan`; an infinity against anything else `inf` or `-inf`; two
names of devices `N/A`; other texts `Diff`. Numbers that are equal but spelled otherwise (0.0 and -0.0)
have no difference here, where msprobe says `inf`.
"""

import math
from functools import lru_cache
from typing import Any

from ray_precheck.numerics.statistics import FIELDS, STATISTICS
from ray_precheck.trace.difference.row import NOT_THERE
from ray_precheck.trace.items import Item

_COUNT = len(FIELDS)
# Where in the cells of a row the differences, the relative errors, and the statistics of each side are.
DIFFERENCES, SHARES, OURS, THEIRS = (
    slice(start, start + _COUNT) for start in range(0, 4 * _COUNT, _COUNT)
)
# How many of each, the first ones, are elements: Max and Min.
ENDS = sum(each.is_end for each in STATISTICS)
HEADINGS = (
    *(f"{each.heading.capitalize()} diff" for each in STATISTICS),
    *(f"{each.field}RelativeErr" for each in STATISTICS),
    *(f"{side} {each.heading}" for side in ("NPU", "Bench") for each in STATISTICS),
)
_ABSENT = (NOT_THERE,) * _COUNT
_SAME = "0"
_DEVICES = ("npu", "cpu", "cuda")
_WORDS = {"nan": math.nan, "inf": math.inf, "+inf": math.inf, "infinity": math.inf}
_WORDS |= {"-inf": -math.inf, "-infinity": -math.inf}
_NAN, _POSITIVE, _NEGATIVE = "Nan", "inf", "-inf"
# A spreadsheet takes "inf" for the name of a cell; msprobe writes a space before infinite statistics.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t")
_SHOWN = {"nan": _NAN, "inf": " inf", "-inf": " -inf"}


def statistics_cells(target: Item | None, golden: Item | None) -> tuple[str, ...]:
    """Return differences, relative errors, and the statistics of the target and of the golden side, under
    `HEADINGS`."""
    ours = statistics_of(target) if target is not None else None
    theirs = statistics_of(golden) if golden is not None else None
    if ours is None or theirs is None:
        own = tuple(map(_shown, ours)) if ours is not None else _ABSENT
        other = tuple(map(_shown, theirs)) if theirs is not None else _ABSENT
        return (*_ABSENT, *_ABSENT, *own, *other)
    both = ours + theirs
    # Equal numbers have equal texts but for the two zeros, and for numbers of other types.
    if [*map(type, both)] == _FLOATS and 0.0 not in both:
        return _cells_of_floats(*both)
    return _cells(ours, theirs)


# Most tensors are the output of one operator and the input of others soon after.
@lru_cache(maxsize=2048)
def _cells_of_floats(*both: float) -> tuple[str, ...]:
    return _cells(both[:_COUNT], both[_COUNT:])


def _cells(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> tuple[str, ...]:
    own = tuple(map(_shown, ours))
    if ours == theirs:  # NaN is not equal to itself, and goes the long way
        return (*_SAMES, *_SAMES, *own, *own)
    differences, shares = zip(*map(_difference, ours, theirs), strict=True)
    return (*differences, *shares, *own, *map(_shown, theirs))


_SAMES = (_SAME,) * _COUNT
_FLOATS = [float] * (2 * _COUNT)


def are_same(cells: tuple[str, ...]) -> bool:
    """Return whether the cells of a row tell of no difference."""
    return cells[DIFFERENCES] == _SAMES


def statistics_of(item: Item) -> tuple[Any, ...]:
    """Return the statistics, in the order of `FIELDS`, as in the dump, NaN and infinities as numbers.

    A value that is no tensor has itself for each, as in msprobe.
    """
    element = item.element
    if element is None:
        return (None,) * _COUNT
    if "dtype" in element:
        found = tuple(map(element.get, FIELDS))
        return tuple(map(_number, found)) if str in map(type, found) else found
    kind = element.get("type")
    if kind in ("torch.Size", "slice"):
        return (None,) * _COUNT
    value = element.get("group_ranks" if kind == "torch.ProcessGroup" else "value")
    return (value,) * _COUNT


def _number(value: Any) -> Any:
    return _WORDS.get(value.lower(), value) if isinstance(value, str) else value


def _shown(value: Any) -> str:
    if type(value) is float:
        text = repr(value)
        return text if text[-1] not in "nf" else _SHOWN[text]
    text = str(value)
    # A text that a spreadsheet would run, as an argument of a call may be one; numbers stay.
    return f"'{text}" if text[:1] in _FORMULA_STARTS and _as_float(value) is None else text


def _difference(value: Any, golden: Any) -> tuple[str, str]:
    if type(value) is float and type(golden) is float:
        if value == golden:
            return _SAME, _SAME
        difference = value - golden
        if difference - difference == 0.0 or (math.isfinite(value) and math.isfinite(golden)):
            if golden == 0:
                return repr(difference), _POSITIVE
            return repr(difference), f"{abs(difference / golden * 100)!r}%"
        return _unlike(value, golden)
    if str(value) == str(golden):
        return _SAME, _SAME
    one, other = _as_float(value), _as_float(golden)
    if one is not None and other is not None:
        return _difference(one, other)
    texts = str(value).lower(), str(golden).lower()
    if all(any(device in text for device in _DEVICES) for text in texts):
        return NOT_THERE, NOT_THERE
    return "Diff", "Diff"


def _unlike(value: float, golden: float) -> tuple[str, str]:
    """Return the cells of two numbers of which one is NaN or infinite."""
    if math.isnan(value) or math.isnan(golden):
        word = _SAME if math.isnan(value) and math.isnan(golden) else _NAN
    elif math.isinf(value):
        word = _POSITIVE if value > 0 else _NEGATIVE
    else:
        word = _NEGATIVE if golden > 0 else _POSITIVE
    return word, word


def _as_float(value: Any) -> float | None:
    """Return what pandas takes for a number: truth values are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def relative(cell: str) -> float:
    """Return the number of a relative error's cell, `12.5%` as 0.125; 0 for `0` and for words of text."""
    try:
        return float(cell.strip("%")) / 100
    except ValueError:
        return 0.0
