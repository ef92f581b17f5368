"""Where in an output its errors are, and how large: block maxima and a histogram.

Comes in: an output in error, its bench, and the Message of its row. Goes out: a `Heat`, some hundred numbers
for an output of any size. Called by the check where it finds the error; `store.heat` keeps them.

An error is measured in units of the limit for single elements that the Message names ("MaxAbsErr 0.5 at index
[0] is not below 0.0001"). Where the standard has none (a cosine, an RMSE, equal bits) it is
|error| / max(|bench|, the smallest normal number of the tested dtype).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ray_precheck.accuracy.metrics import absolute_difference, magnitudes, rounded_bench
from ray_precheck.accuracy.thresholds import MAX_ABS_ERR_LIMIT
from ray_precheck.numerics.arrays import machine_epsilon, same_values, smallest_normal, spacing
from ray_precheck.schema.dtypes import DTYPES, Array

# A page shows a tensor in some centimeters: more blocks would be smaller than a finger.
MOST_BLOCKS = 16
# Half decades. Errors outside of them are counted in the first and the last bin.
FIRST_DECADE, LAST_DECADE = -12, 12
BINS = 2 * (LAST_DECADE - FIRST_DECADE)
# Larger outputs are measured piece by piece, so that copies in float64 stay below some 30 MB.
_ELEMENTS_AT_ONCE = 1 << 19


class ErrorKind(Enum):
    """How the error of one element is measured."""

    ABSOLUTE = "|error|"
    RELATIVE = "relative error"
    UNITS = "units in the last place"


@dataclass(frozen=True, slots=True)
class ElementLimit:
    """The limit of the error of one element, NaN for none. `is_rounded`: the bench is rounded to the tested
    dtype before."""

    kind: ErrorKind
    limit: float = math.nan
    is_rounded: bool = True

    @property
    def unit(self) -> str:
        """The unit of the numbers of a `Heat`, in words."""
        if math.isnan(self.limit):
            return self.kind.value
        return f"times the limit ({self.kind.value} {self.limit:.4g})"


@dataclass(frozen=True, slots=True)
class Heat:
    """The errors of one output of `shape`, in `unit`; above `above` is an error, NaN where none is known.

    `blocks` `(R, C)` float32, at most 16 x 16, are the largest errors of blocks: the last dimension is the
    columns, all others together are the rows, both divided evenly. `counts` `(48,)` int64 are the elements
    with an error in each half decade from 1e-12 to 1e12, `zeros` those without one, `nonfinite` those that
    are NaN or infinite on one side alone.
    """

    name: str
    shape: tuple[int, ...]
    unit: str
    above: float
    blocks: Array
    counts: Array
    zeros: int
    nonfinite: int


def bin_edges() -> tuple[float, ...]:
    """Return the edges of the bins of every `Heat`, `(49,)`."""
    return tuple(10.0 ** (FIRST_DECADE + place / 2) for place in range(BINS + 1))


_NUMBER = r"([-+.\w]+)"
# The sentences of the standards about single elements, the first that fits counts.
_SENTENCES = (
    (rf"MaxAbsErr {_NUMBER} at index \[[^\]]*\] is not below {_NUMBER}", ErrorKind.ABSOLUTE, True),
    (rf"largest error is {_NUMBER}, must be at most {_NUMBER}", ErrorKind.ABSOLUTE, False),
    (rf"largest relative error is {_NUMBER}, must be at most {_NUMBER}", ErrorKind.RELATIVE, False),
    (
        rf"(share) of elements more than {_NUMBER} units in the last place off",
        ErrorKind.UNITS,
        False,
    ),
    (
        rf"(share) of elements (?:whose relative error is above|with a relative error below) {_NUMBER}",
        ErrorKind.RELATIVE,
        False,
    ),
)
_COMPILED = tuple((re.compile(text), kind, rounded) for text, kind, rounded in _SENTENCES)


def element_limit(message: str, standard: str) -> ElementLimit:
    """Return the limit of single elements that the Message of an error names; that of msprobe's rule, where
    it is the `standard`, also where the Message names another metric."""
    for sentence, kind, is_rounded in _COMPILED:
        found = sentence.search(message)
        limit = _positive(found[2]) if found else math.nan
        if not math.isnan(limit):
            return ElementLimit(kind, limit, is_rounded)
    if standard == "msprobe":
        return ElementLimit(ErrorKind.ABSOLUTE, MAX_ABS_ERR_LIMIT)
    return ElementLimit(ErrorKind.RELATIVE)


def _positive(text: str) -> float:
    try:
        value = float(text.rstrip("."))
    except ValueError:
        return math.nan
    return value if 0 < value < math.inf else math.nan


def heat_of(
    name: str, device_out: Array, bench_out: Array, dtype: str, limit: ElementLimit
) -> Heat:
    """Measure an output against its bench, which has the same shape and is not empty."""
    shape = device_out.shape
    device, bench = (
        each.reshape(-1, shape[-1] if shape else 1) for each in (device_out, bench_out)
    )
    rows, columns = (_edges(extent) for extent in device.shape)
    blocks = np.zeros((len(rows) - 1, len(columns) - 1), np.float32)
    counts = np.zeros(BINS, np.int64)
    zeros = nonfinite = 0
    for piece in _pieces(rows, columns):
        errors = _errors(device[piece.place], bench[piece.place], dtype, limit)
        by_row = np.maximum.reduceat(errors, piece.starts(0, rows), axis=0)
        largest = np.maximum.reduceat(by_row, piece.starts(1, columns), axis=1)
        blocks[piece.blocks] = np.maximum(blocks[piece.blocks], largest)
        zeros += int(np.count_nonzero(errors == 0))
        finite = errors[(errors > 0) & (errors < np.inf)]
        nonfinite += int(np.count_nonzero(errors == np.inf))
        places = np.floor(2 * (np.log10(finite) - FIRST_DECADE)).clip(0, BINS - 1)
        counts += np.bincount(places.astype(np.int64), minlength=BINS)
    above = math.nan if math.isnan(limit.limit) else 1.0
    return Heat(name, shape, limit.unit, above, blocks, counts, zeros, nonfinite)


def _edges(extent: int) -> Array:
    """Return where the blocks of a dimension begin, and its end."""
    blocks = min(extent, MOST_BLOCKS)
    return np.arange(blocks + 1) * extent // blocks


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements that are measured at once: their rows and columns, and the blocks that they are in."""

    place: tuple[slice, slice]
    blocks: tuple[slice, slice]

    def starts(self, axis: int, edges: Array) -> Array:
        """Return where the blocks begin in the piece."""
        first, blocks = self.place[axis].start, self.blocks[axis]
        return np.asarray(np.maximum(edges[blocks.start : blocks.stop], first) - first)


def _pieces(rows: Array, columns: Array) -> Iterator[_Piece]:
    """Yield all of a small output; of a large one some rows of one row of blocks at a time, or, where a row
    is large, too, some columns of one block."""
    width, every = int(columns[-1]), slice(0, len(columns) - 1)
    if rows[-1] * width <= _ELEMENTS_AT_ONCE:
        place = slice(0, int(rows[-1])), slice(0, width)
        yield _Piece(place, (slice(0, len(rows) - 1), every))
        return
    for r in range(len(rows) - 1):
        band = slice(r, r + 1)
        for some_rows in _steps(rows[r], rows[r + 1], max(1, _ELEMENTS_AT_ONCE // width)):
            if width <= _ELEMENTS_AT_ONCE:
                yield _Piece((some_rows, slice(0, width)), (band, every))
                continue
            for c in range(len(columns) - 1):
                for some in _steps(columns[c], columns[c + 1], _ELEMENTS_AT_ONCE):
                    yield _Piece((some_rows, some), (band, slice(c, c + 1)))


def _steps(begin: int, end: int, step: int) -> Iterator[slice]:
    for start in range(int(begin), int(end), step):
        yield slice(start, min(start + step, int(end)))


def _errors(device: Array, bench: Array, dtype: str, limit: ElementLimit) -> Array:
    """Return the error of each element; infinite where NaN or infinities differ, 0 where they agree."""
    rounded = rounded_bench(bench, dtype)
    if limit.is_rounded:
        bench = rounded
    if device.dtype.kind == "b":
        device, bench = device.astype(np.int64), bench.astype(np.int64)
    with np.errstate(all="ignore"):
        errors = absolute_difference(*_wide(device, bench))
        magnitude = magnitudes(bench)
        if limit.kind is ErrorKind.RELATIVE:
            least = smallest_normal(dtype) if DTYPES[dtype].kind in ("float", "complex") else 1.0
            errors = errors / np.maximum(magnitude, least)
        elif limit.kind is ErrorKind.UNITS:
            units = spacing(magnitude, dtype)
            errors = errors / np.where(magnitude > 0, units, machine_epsilon(dtype))
        if not math.isnan(limit.limit):
            errors = errors / limit.limit
    is_finite = np.isfinite(device) & np.isfinite(rounded)
    if not is_finite.all():
        agrees = same_values(device, rounded)
        errors = np.where(is_finite, errors, np.where(agrees, 0.0, np.inf))
    # The difference of two finite numbers may be beyond float64, or 0 / 0 in a dtype without a smallest one.
    return np.asarray(np.nan_to_num(errors, nan=np.inf, posinf=np.inf))


def _wide(device: Array, bench: Array) -> tuple[Array, Array]:
    """Return both as float64 or complex128; integers beside integers stay as they are."""
    kinds = {device.dtype.kind, bench.dtype.kind}
    if kinds <= {"i", "u"}:
        return device, bench
    wide = np.complex128 if "c" in kinds else np.float64
    return device.astype(wide, copy=False), bench.astype(wide, copy=False)
