"""One tensor or value of a pair of operators: what was captured, how it differs, and the verdict.

Goes out: `TensorRow` and `ComparisonMode`. Called by all of this room, and by the jobs that compare captures.

The columns of compare_result, and the cells of a row in them. The columns before ours are those of
mindstudio-probe 26.2, in its order and spelling (core/common/const.py, `CompareConst`), and so are the
formats of their cells: metrics of tensors with 12 digits behind the point, a cosine above 0.9999 with 6;
`unsupported` where there is nothing to compute from, `N/A` where NaN or infinities are at other places,
`shape unmatched`. Err_message is a list in JSON, as there.

The cells of the statistics of two values: Max, Min, Mean and Norm, their differences and relative errors.
The rules are those of mindstudio-probe 26.2 (core/compare/acc_compare.py, `CalcStatsDiff`): equal texts
have the difference `0` and the relative error `0`; two numbers d = t - g and |d / g * 100| with a percent
sign, `inf` where g = 0; NaN against a number `Nan`; an infinity against anything else `inf` or `-inf`; two
names of devices `N/A`; other texts `Diff`. Numbers that are equal but spelled otherwise (0.0 and -0.0) have
no difference here, where msprobe says `inf`.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

from ray_precheck.foreign import without_controls
from ray_precheck.numerics.arrays import machine_epsilon
from ray_precheck.numerics.statistics import FIELDS, STATISTICS
from ray_precheck.store.tables import encode_name, encode_row
from ray_precheck.trace.difference.elements import BesideMask, ElementDifference
from ray_precheck.trace.items import OUTPUT, Item

PASS, WARNING, ERROR, UNMATCHED = "pass", "warning", "error", "unmatched"
_ORDER = {"": 0, PASS: 0, WARNING: 1, ERROR: 2, UNMATCHED: 3}
NOT_THERE = "N/A"
# Said of tensors whose files cannot be read.
BY_STATISTICS = "statistics are compared instead"


class ComparisonMode(Enum):
    """What two dumps have in common, which decides the columns: files of tensors, statistics, or digests
    alone."""

    REAL = "real"
    STATISTICS = "statistics"
    DIGESTS = "digests"


@dataclass(slots=True)
class TensorRow:
    """One tensor or value of a pair of operators.

    A side that is not there is None, and its name `N/A`. `tensors` says that both sides are tensors, and
    `reshaped` that their shapes differ. `statistics` are the cells of the statistics
    (`statistics.statistics_cells`). `elements` is there where both files were read. `unread` says why
    files were not compared. `layout` says that other shapes, or values in another order, hold the same
    values. `relative_l2` is measured, or with `estimated` an estimate from sketches; `noise` is the
    relative L2 distance of two golden runs. All three are None where they are not known. `beside` is there
    where a mask hides how far the other elements are apart. `slack` is the L2 distance that honest updates
    of an unsteady parameter explain, 0 for all others (`unsteady`); `is_late` says that such updates may have
    come before. `inside` is the relative L2 distance that parameters inside of a module bring to an output.
    """

    target_name: str
    golden_name: str
    target: Item | None
    golden: Item | None
    tensors: bool = False
    reshaped: bool = False
    statistics: tuple[str, ...] = ()
    elements: ElementDifference | None = None
    unread: str = ""
    layout: str = ""
    relative_l2: float | None = None
    estimated: bool = False
    noise: float | None = None
    beside: BesideMask | None = None
    slack: float = 0.0
    is_late: bool = False
    inside: float = 0.0
    saved: "Callable[[], Sequence[TensorRow]]" = tuple
    result: str = ""
    messages: list[str] = field(default_factory=list)

    @property
    def item(self) -> Item:
        """The value on the target side, or on the golden side where that is the only one."""
        found = self.target if self.target is not None else self.golden
        if found is None:
            raise ValueError("a row has at least one side")
        return found

    @property
    def name(self) -> str:
        """The name of that value."""
        return self.target_name if self.target is not None else self.golden_name

    @property
    def both(self) -> tuple[Item, Item]:
        """The target and the golden value of a row that both sides have."""
        if self.target is None or self.golden is None:
            raise ValueError(f"{self.target_name} against {self.golden_name}: only one side has it")
        return self.target, self.golden

    @property
    def is_output(self) -> bool:
        """Whether it is an output of the operator; parameters and gradients count as inputs."""
        found = self.target if self.target is not None else self.golden
        return found is not None and found.part == OUTPUT

    @property
    def is_matched(self) -> bool:
        """Whether both sides have it."""
        return self.target is not None and self.golden is not None

    def note(self, result: str, message: str) -> None:
        """Add a message; the result becomes the worse of the present one and `result`."""
        if _ORDER[result] > _ORDER[self.result]:
            self.result = result
        self.messages.append(f"{result}: {message}" if result != PASS else message)


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


_BASIC = (
    "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
    "NPU Requires_grad", "Bench Requires_grad",
)  # fmt: skip
_METRICS = (
    "Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
)  # fmt: skip
_VERDICT = ("Requires_grad Consistent", "Result", "Err_message")
OWN = (
    "RMSE", "MAPE", "Relative L2", "Noise Floor", "Share of Noise", "Digest Equal", "Match", "Call",
)  # fmt: skip
_NOTHING = (NOT_THERE,) * 5
UNSUPPORTED, SHAPE_UNMATCHED = "unsupported", "shape unmatched"
_NO_FILE = "-1"
# Norms up to it are those of zero vectors: core/compare/algorithm, Const.FLOAT_EPSILON.
_ZERO = machine_epsilon("float64")


def headings(mode: ComparisonMode) -> tuple[str, ...]:
    """Return the headings of compare_result for a mode; the last is `Call`, the name of the piece."""
    middle = {
        ComparisonMode.REAL: (*_METRICS, *HEADINGS[OURS], *HEADINGS[THEIRS]),
        ComparisonMode.STATISTICS: HEADINGS,
        ComparisonMode.DIGESTS: ("NPU MD5", "BENCH MD5"),
    }[mode]
    names = ("Data_name",) if mode is ComparisonMode.REAL else ()
    return (*_BASIC, *middle, *_VERDICT, "NPU_Stack_Info", *names, *OWN)


def cells(
    row: TensorRow, mode: ComparisonMode, match: str = "", call: str = "", stack: Sequence[str] = ()
) -> list[str]:
    """Return the cells of a judged row under `headings(mode)`.

    `match` says how the pair of operators was found, `call` is the name of the piece, and `stack` the
    lines of the program, which msprobe has in the first row of an operator.
    """
    target, golden = row.target, row.golden
    dtype, shape, grad = _description(target)
    golden_dtype, golden_shape, golden_grad = _description(golden)
    name = encode_name(row.target_name)
    golden_name = name if row.golden_name == row.target_name else encode_name(row.golden_name)
    found = [
        name, golden_name, dtype, golden_dtype, shape, golden_shape,
        grad, golden_grad,
    ]  # fmt: skip
    if mode is ComparisonMode.STATISTICS:
        found += row.statistics
    elif mode is ComparisonMode.REAL:
        found += metric_cells(row)
        found += (*row.statistics[OURS], *row.statistics[THEIRS])
    else:
        found += (digest_cell(target), digest_cell(golden))
    message = _listed(*row.messages) if row.messages else "[]"
    found += ("True" if grad == golden_grad else "False", row.result, message)
    found.append(str(list(stack)) if stack else NOT_THERE)
    if mode is ComparisonMode.REAL:
        found.append(str([_file(target), _file(golden)]))
    found += own_cells(row)
    found += (match, _plain(call))
    return found


def metric_cells(row: TensorRow) -> tuple[str, ...]:
    """Return the cells of msprobe's six metrics."""
    found = row.elements
    if found is None:
        return ((SHAPE_UNMATCHED if row.reshaped and not row.unread else UNSUPPORTED),) * 6
    if not found.size:
        return (UNSUPPORTED,) * 6
    if found.odd > found.flipped:
        return (NOT_THERE,) * 6
    largest = (_rounded(found.max_abs), _rounded(found.max_relative))
    if found.size == 1:  # msprobe squeezes what it reads, and compares no 0-d tensors
        return (UNSUPPORTED, UNSUPPORTED, *largest, UNSUPPORTED, UNSUPPORTED)
    return (
        _cosine(found), _text(found.euclidean), *largest,
        _rounded(found.thousandth / found.numbers), _rounded(found.five_thousandths / found.numbers),
    )  # fmt: skip


def own_cells(row: TensorRow) -> tuple[str, ...]:
    """Return RMSE, MAPE (a fraction), Relative L2, Noise Floor, Share of Noise and Digest Equal."""
    distance, noise, found = row.relative_l2, row.noise, row.elements
    if distance is None and noise is None and found is None:
        return (*_NOTHING, _digests(row))
    share = distance / noise if distance is not None and noise else None
    return (
        _short(found.rmse) if found is not None else NOT_THERE,
        _short(found.mape) if found is not None else NOT_THERE,
        _short(distance) if distance is not None else NOT_THERE,
        _short(noise) if noise is not None else NOT_THERE,
        _short(share) if share is not None else NOT_THERE,
        _digests(row),
    )


def encode_rows(rows: Iterable[Sequence[str]]) -> bytes:
    """Return rows of cells as lines of CSV, the bytes of `store.columns.encode_row`, but sooner."""
    lines = []
    for row in rows:
        line = ",".join(row)
        if "\n" in line or "\r" in line:
            line = encode_row(row).decode("utf-8")[:-2]
        elif '"' in line:
            line = ",".join([_quoted(cell) if "," in cell or '"' in cell else cell for cell in row])
        elif line.count(",") >= len(row):  # mostly by shapes
            line = ",".join([f'"{cell}"' if "," in cell else cell for cell in row])
        lines.append(line)
    lines.append("")
    return without_controls("\r\n".join(lines)).encode("utf-8", errors="backslashreplace")


@lru_cache(maxsize=4096)
def _quoted(cell: str) -> str:
    return encode_row([cell]).decode("utf-8")[:-2]


def digest_cell(item: Item | None) -> str:
    """Return the digest of a value: of what is no tensor the CRC-32 of its text, as msprobe has it."""
    if item is None or item.element is None:
        return NOT_THERE
    if item.digest or item.is_tensor:
        return encode_name(item.digest) or NOT_THERE
    if item.type_name == "torch.ProcessGroup":
        return str(item.element.get("group_ranks"))
    return f"{zlib.crc32(str(item.element.get('value', '')).encode()):08x}"


def _digests(row: TensorRow) -> str:
    target, golden = row.target, row.golden
    if not row.tensors or target is None or golden is None:
        return NOT_THERE
    if target.element is None or "md5" not in target.element:  # nearly all captures
        return NOT_THERE
    if not target.digest or not golden.digest:
        return NOT_THERE
    return "True" if target.digest == golden.digest else "False"


_NULL, _MISSING = ("None", "None", NOT_THERE), (NOT_THERE, NOT_THERE, NOT_THERE)


def _description(item: Item | None) -> tuple[str, str, str]:
    """Return dtype, shape and requires_grad, as msprobe shows them."""
    if item is None:
        return _MISSING
    element = item.element
    if element is None:
        return _NULL
    dtype = element.get("dtype")
    if isinstance(dtype, str) and dtype:
        grad = element.get("requires_grad")
        shown = NOT_THERE if grad is None else "True" if grad else "False"
        return _plain(dtype), str(element.get("shape")), shown
    kind, value = item.type_name, element.get("value")
    if kind == "torch.Size":
        return kind, encode_name(str(value)), NOT_THERE
    if kind == "slice":
        return kind, f"({len(value) if isinstance(value, list) else 0},)", NOT_THERE
    if kind in ("ellipsis", "torch.ProcessGroup"):
        return kind, "[]", NOT_THERE
    return _class_text(type(value)), "[]", NOT_THERE


def _class_text(kind: type[object]) -> str:
    return str(kind)


def _file(item: Item | None) -> str:
    return NOT_THERE if item is None else item.file or _NO_FILE


def _cosine(found: ElementDifference) -> str:
    norms = math.sqrt(found.target_squares), math.sqrt(found.golden_squares)
    if max(norms) <= _ZERO:
        return "1.0"
    if min(norms) <= _ZERO:
        return "Nan"
    cosine = found.cosine
    digits = float(f"{cosine:.12f}")
    return repr(round(digits, 6) if digits > 0.9999 else digits)


def _rounded(number: float) -> str:
    return _text(float(f"{number:.12f}"))


def _text(number: float) -> str:
    text = repr(float(number))
    return {"nan": "Nan", "inf": " inf", "-inf": " -inf"}.get(text, text)


def _short(number: float) -> str:
    text = f"{number:.6g}"
    return {"nan": "Nan", "inf": " inf", "-inf": " -inf"}.get(text, text)


@lru_cache(maxsize=256)
def _plain(text: str) -> str:
    return encode_name(text)


@lru_cache(maxsize=64)
def _listed(*messages: str) -> str:
    return json.dumps(messages)
