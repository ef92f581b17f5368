"""What is said of one tensor, and of two side by side: `pt`, `cp`, `hist`.

Comes in: tensors in files, mapped or read. Goes out: a `WordAnswer`. Called by the words. All is measured in
pieces, so that a tensor need not fit into memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.commands.inspect.answers import Table, WordAnswer
from ray_precheck.commands.inspect.opened import TensorFile
from ray_precheck.numerics.arrays import pieces
from ray_precheck.numerics.statistics import summary_of
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.items import Item

_PIECE = 1 << 20
_BARS = 20
_BAR_WIDTH = 40
# The text of a tensor has this many numbers in a line, as precision_tool's has.
_IN_A_LINE = 8
# A larger array is shown by its ends, as NumPy does.
_SHOWN_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class ItemDifferences:
    """Two tensors side by side, as `cp` of precision_tool measures them.

    Of tensors of other sizes the shorter one is continued with zeros, as there. `wrong` counts the elements
    where |l - r| > al + rl |r|, and those where one side alone is NaN or infinite, as `numpy.isclose` has it;
    `items` are the first of these, and `top` the first of all: place, left, right. `cosine` is NaN where one
    side is zero or not finite.
    """

    count: int
    wrong: int
    cosine: float
    items: tuple[tuple[int, Any, Any], ...]
    top: tuple[tuple[int, Any, Any], ...]

    @property
    def all_close(self) -> bool:
        """Whether `numpy.allclose` of both is true."""
        return not self.wrong

    @property
    def share(self) -> float:
        """The share of wrong elements; 0 of none."""
        return self.wrong / self.count if self.count else 0.0


def differences(left: Array, right: Array, atol: float, rtol: float, most: int) -> ItemDifferences:
    """Measure two tensors; `most` elements in error and the first `most` elements are kept."""
    one, two = left.reshape(-1), right.reshape(-1)
    count, wrong = max(one.size, two.size), 0
    first: list[int] = []
    squares = [0.0, 0.0, 0.0]
    with np.errstate(all="ignore"):
        for piece in pieces(count, _PIECE):
            ours, theirs = _part(one, piece), _part(two, piece)
            places = np.flatnonzero(~np.isclose(ours, theirs, rtol=rtol, atol=atol))
            wrong += len(places)
            first += (places[: most - len(first)] + piece.start).tolist()
            wide = [each.astype(np.result_type(each, np.float64)) for each in (ours, theirs)]
            for place, (a, b) in enumerate(((0, 0), (1, 1), (0, 1))):
                squares[place] += float(np.vdot(wide[a], wide[b]).real)
    is_known = all(map(math.isfinite, squares))
    norms = math.sqrt(squares[0]) * math.sqrt(squares[1]) if is_known else math.nan
    cosine = squares[2] / norms if norms else (1.0 if squares[0] == squares[1] else math.nan)
    shown = first, range(min(most, count))
    items, top = (tuple((at, _at(one, at), _at(two, at)) for at in places) for places in shown)
    # Rounding may leave it a little above 1; the smaller one of 1 and NaN is not to be 1.
    return ItemDifferences(count, wrong, min(cosine, 1.0), items, top)


def _part(flat: Array, piece: slice) -> Array:
    """Return a piece of a flat tensor, continued with zeros behind its end."""
    own = np.asarray(flat[piece])
    if own.dtype == np.bool_:
        own = own.astype(np.float32)
    missing = piece.stop - piece.start - own.size
    return np.concatenate([own, np.zeros(missing, own.dtype)]) if missing else own


def _at(flat: Array, at: int) -> Any:
    return flat[at].item() if at < flat.size else 0


def compared_items(
    left: TensorFile, right: TensorFile, atol: float, rtol: float, most: int
) -> WordAnswer:
    """Return what `cp` says of two tensors."""
    found = differences(left.values, right.values, atol, rtol, most)
    notes: list[str] = []
    if left.values.size != right.values.size:
        notes.append(
            f"note: {left.values.size} and {right.values.size} elements; the shorter one is continued with"
            " zeros"
        )
    elif left.values.shape != right.values.shape:
        notes.append(
            f"note: shapes {left.values.shape} and {right.values.shape}, compared in row-major order"
        )
    parts: tuple[str | Table, ...] = (
        _pairs("Error Item Table", found.items),
        _pairs("Top Item Table", found.top),
        f"SrcFile: {left.path}",
        f"DstFile: {right.path}",
        f"NumCnt: {found.count}",
        f"AllClose: {found.all_close}",
        f"ConSim: {found.cosine:.8g}",
        f"ErrorPer: {found.share:.8g} (rl= {rtol:g}, al= {atol:g})",
        *notes,
    )
    data = {
        "SrcFile": left.path,
        "DstFile": right.path,
        "NumCnt": found.count,
        "AllClose": found.all_close,
        "ConSim": found.cosine,
        "ErrorPer": found.share,
        "rl": rtol,
        "al": atol,
        "errors": [list(each) for each in found.items],
        "top": [list(each) for each in found.top],
    }
    return WordAnswer(data, parts)


def _pairs(title: str, items: Sequence[tuple[int, Any, Any]]) -> Table:
    rows = [
        (str(at), *map(_number, (left, right, _distance(left, right)))) for at, left, right in items
    ]
    return Table(("Index", "Left", "Right", "Diff"), rows, title, frozenset(range(4)))


def _distance(left: Any, right: Any) -> float:
    if isinstance(left, complex) or isinstance(right, complex):
        return float(abs(left - right))
    return abs(float(left) - float(right))


def _number(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def statistics_line(item: Item) -> str:
    """Return the line of a value as precision_tool has it under a file: shape, dtype, Max, Min, Mean."""
    facts = [("Shape", tuple(item.shape or ())), ("Dtype", item.dtype)]
    facts += [(name, item.statistic(name)) for name in ("Max", "Min", "Mean", "Norm")]
    return " ".join(f"[{name}: {value}]" for name, value in facts if value is not None)


def printed(tensor: TensorFile, text_folder: Path) -> WordAnswer:
    """Return what `pt` says of a tensor, whose numbers are written as text beside its file, or in a folder
    where that cannot be done."""
    values = tensor.values
    summary = summary_of(np.asarray(values))
    top, low, mean, _ = summary if summary is not None else (None, None, None, None)
    if values.dtype == np.bool_ and values.size:
        mean = float(np.count_nonzero(values)) / values.size  # as precision_tool's, by numpy.mean
    written = _written(tensor, text_folder)
    facts = {
        "Shape": tuple(values.shape),
        "Dtype": tensor.dtype,
        "Max": top,
        "Min": low,
        "Mean": mean,
        "Path": tensor.path,
        "TxtFile": written,
    }
    shown = np.array2string(np.asarray(values), threshold=_SHOWN_ITEMS, edgeitems=3)
    lines = (f"{name}: {value}" for name, value in facts.items())
    return WordAnswer(
        {**facts, "Shape": list(values.shape)}, (f"Array: {shown}", "=============", *lines)
    )


def _written(tensor: TensorFile, text_folder: Path) -> Path:
    name = f"{tensor.path.name}.txt"
    beside = tensor.path.with_name(name)
    try:
        _write(tensor.values, beside)
    except OSError:
        beside = text_folder / name
        text_folder.mkdir(parents=True, exist_ok=True)
        _write(tensor.values, beside)
    return beside


def _write(values: Array, path: Path) -> None:
    flat = values.reshape(-1)
    with path.open("w", encoding="ascii") as file:
        for piece in pieces(flat.size, _IN_A_LINE * (1 << 14)):
            numbers = [repr(each) for each in np.asarray(flat[piece]).tolist()]
            for at in range(0, len(numbers), _IN_A_LINE):
                file.write(" ".join(numbers[at : at + _IN_A_LINE]) + "\n")


def histogram(name: str, values: Array) -> WordAnswer:
    """Return how the values of a tensor are spread: so many in each of 20 equal ranges from Min to Max, and
    how many are zero, NaN and infinite. The real and imaginary parts of complex numbers count."""
    flat = values.reshape(-1)
    if flat.dtype.kind == "c":
        flat = np.ascontiguousarray(flat).view(flat.real.dtype)
    low, high, odd = math.inf, -math.inf, {"zero": 0, "NaN": 0, "inf": 0, "-inf": 0}
    for piece in pieces(flat.size, _PIECE):
        wide = np.asarray(flat[piece]).astype(np.float64)
        odd["zero"] += int(np.count_nonzero(wide == 0))
        odd["NaN"] += int(np.count_nonzero(np.isnan(wide)))
        odd["inf"] += int(np.count_nonzero(wide == np.inf))
        odd["-inf"] += int(np.count_nonzero(wide == -np.inf))
        finite = wide[np.isfinite(wide)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low > high:
        return WordAnswer({"name": name, **odd}, (f"{name}: {_odd(odd, flat.size)}",))
    # Scaled, so that the range of the largest numbers of float64 is a number, too.
    scale = max(abs(low), abs(high)) or 1.0
    edges = (
        np.linspace(low / scale, high / scale, _BARS + 1)
        if high > low
        else np.array([low, high]) / scale
    )
    counts = np.zeros(len(edges) - 1, np.int64)
    for piece in pieces(flat.size, _PIECE):
        wide = np.asarray(flat[piece]).astype(np.float64)
        counts += _counted(wide[np.isfinite(wide)] / scale, edges)
    rows = [
        (_number(start * scale), _number(end * scale), str(count), _bar(count, counts.max()))
        for start, end, count in zip(
            edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True
        )
    ]
    data = {"name": name, "edges": (edges * scale).tolist(), "counts": counts.tolist(), **odd}
    table = Table(("From", "To", "Count", ""), rows, name, frozenset(range(3)))
    return WordAnswer(data, (table, _odd(odd, flat.size)))


def _counted(scaled: Array, edges: Array) -> Array:
    if edges[0] == edges[-1]:
        return np.array([scaled.size])
    return np.histogram(scaled, edges)[0]


def _bar(count: int, largest: int) -> str:
    return "#" * math.ceil(_BAR_WIDTH * count / largest) if largest else ""


def _odd(odd: dict[str, int], size: int) -> str:
    return f"{size} elements: " + ", ".join(f"{count} {name}" for name, count in odd.items())
