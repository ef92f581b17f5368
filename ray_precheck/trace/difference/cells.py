"""The columns of compare_result, and the cells of a row in them.

Comes in: a `TensorRow`. Goes out: cells, and lines of CSV. Called by the job that compares captures. The
columns before ours are those of mindstudio-probe 26.2, in its order and spelling (core/common/const.py,
`CompareConst`), and so are the formats of their cells: metrics of tensors with 12 digits behind the point,
a cosine above 0.9999 with 6; `unsupported` where there is nothing to compute from, `N/A` where NaN or
infinities are at other places, `shape unmatched`. Err_message is a list in JSON, as there.
"""

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from ray_precheck.dump.shown import without_controls
from ray_precheck.numerics.arrays import machine_epsilon
from ray_precheck.store.columns import encode_name, encode_row
from ray_precheck.trace.difference.elements import ElementDifference
from ray_precheck.trace.difference.row import NOT_THERE, ComparisonMode, TensorRow
from ray_precheck.trace.difference.statistics import HEADINGS, OURS, THEIRS
from ray_precheck.trace.items import Item

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
