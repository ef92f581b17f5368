"""Arguments of which the operator looks at whole rows: scores of a softmax and their masks, numbers to be
normalised, numbers that are put in order.

As `inputs.roles.role`, whose base class they share. Where the record has a `Structure` its rows are made;
where it has none, a few rows are all equal, masked, zero, or far from 0 beside their own spread, as the
operator allows. Recorded extremes stay where they are.

A row is a line along the last dimension (`LINES`; `NORMED` where its mean counts), a channel, which is
dimension 1 with all others (`CHANNELS`), or a channel of one sample (`SAMPLES`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ray_precheck.inputs.distribution import Body, floats, recorded_body, two_sided, value_range
from ray_precheck.inputs.roles.role import Role, known_range, repeated
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import Structure, TensorSpec

LINES, NORMED, CHANNELS, SAMPLES = "lines", "normed", "channels", "samples"
# Scores of this and less are those of a mask.
MASKED_SCORE = -1e4
# The share of rows that are unlike the others where the dump tells nothing.
_SHARE = 1 / 8
# How large a mean is beside the deviation: the square of it is lost by a variance that is computed as a
# difference of two sums, of the 24 and of the 11 bits of a float. The difference of a number and the mean
# loses no more than the factor itself.
_OFFSET, _OFFSET_OF_HALF = 64.0, 256.0
# Numbers with mean 0 and variance 1, none beyond 4 deviations.
_NORMAL = Body(two_sided(1).edges, -4.0, 4.0)


def row_count(shape: tuple[int, ...], look: str) -> int:
    """Return how many rows a tensor has, 0 where it has none."""
    if look in (LINES, NORMED):
        return math.prod(shape[:-1]) if shape else 0
    if len(shape) < 2:
        return 0
    return shape[1] if look == CHANNELS else shape[0] * shape[1]


def in_rows(values: Array, look: str, rows: int) -> tuple[Array, Callable[[Array], Array]]:
    """Return `(rows, n)` values and the function that brings them into their shape again."""
    shape = values.shape
    if not values.flags.writeable:
        values = values.copy()
    if look != CHANNELS:
        return np.ascontiguousarray(values).reshape(rows, -1), lambda lines: lines.reshape(shape)
    moved = np.moveaxis(values, 1, 0)
    lines = np.ascontiguousarray(moved).reshape(rows, -1)
    return lines, lambda lines: np.ascontiguousarray(np.moveaxis(lines.reshape(moved.shape), 0, 1))


@dataclass(frozen=True, slots=True)
class Rowwise(Role):
    """Numbers whose rows may be all zero, all masked or all equal, if the record says so."""

    look: str = field(default=LINES, kw_only=True)

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the drawn numbers with the rows that were recorded, or with the usual ones."""
        found = spec.structure
        if found is None:
            return self.usual(values, spec, generator)
        if found.rows and found.rows == row_count(spec.shape, self.look):
            return _recorded_rows(values, spec, found, self.look, generator)
        return values

    def usual(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the numbers where the dump does not tell of rows."""
        return values


@dataclass(frozen=True, slots=True)
class Scores(Rowwise):
    """Scores of a softmax: some rows are all equal, and all masked where scores are masked."""

    def usual(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the numbers with a row of one number, and a row of the lowest where that hides."""
        lines, back, free = _free_rows(values, spec, self.look, generator)
        known = known_range(spec)
        if len(free) < 3 or known is None:
            return values
        count = _share_of(len(free))
        for row in free[:count]:
            lines[row] = lines[row, :1]
        if known[0] <= MASKED_SCORE:
            lines[free[count : 2 * count]] = _rounded(known[0], spec)
        return back(lines)


@dataclass(frozen=True, slots=True)
class Normed(Rowwise):
    """Numbers to be normalised: some rows are far from 0 beside their spread, and some are zero.

    `rows` is the number of those rows that are normalised together, `zero` and `offset` say which of both
    the call allows.
    """

    rows: int = 0
    zero: bool = False
    offset: bool = False

    def usual(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the numbers with a row of zeros and rows with an offset."""
        known = known_range(spec)
        if DTYPES[spec.dtype].kind != "float" or known is None:
            return values
        rows = self.rows or row_count(spec.shape, self.look)
        lines, back, free = _free_rows(values, spec, self.look, generator, rows)
        if len(free) < 3:
            return values
        count = _share_of(len(free))
        if self.offset and lines.shape[1] >= 8:
            for row in free[:count]:
                lines[row] = _offset_row(lines[row], spec, generator)
        if self.zero and known[0] <= 0 <= known[1]:
            lines[free[count : count + max(count // 2, 1)]] = 0
        return back(lines)


@dataclass(frozen=True, slots=True)
class Ordered(Role):
    """Numbers that are put in order: some are equal, unless a gradient hangs on which is taken."""

    equal: bool = True

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the drawn numbers with as few different ones as were recorded, or with some equal."""
        if not self.equal or DTYPES[spec.dtype].kind not in ("int", "uint", "float"):
            return values
        if spec.structure is not None and spec.structure.distinct:
            return repeated(values, spec, generator)
        length = spec.shape[-1] if spec.shape else 0
        if length < 4:
            return values
        lines = values.reshape(-1, length)
        flat = values.reshape(-1)
        ends = {place: flat[place] for place in (int(flat.argmin()), int(flat.argmax()))}
        places = generator.permutation(length)
        # More than two are equal where there are many: a standard may try both orders of two.
        count = max(int(length * _SHARE), 1)
        sources = places[count : count + max(count // 4, 1)]
        lines[:, places[:count]] = lines[:, np.resize(sources, count)]
        for place, value in ends.items():
            flat[place] = value
        return values


def without_zero_rows(spec: TensorSpec) -> TensorSpec:
    """Return the spec of the numbers outside of the rows that were recorded as zero."""
    found = spec.structure
    if found is None or not 0 < found.zero_rows < found.rows or spec.mean is None:
        return spec
    count = spec.size // found.rows * (found.rows - found.zero_rows)
    return replace(spec, shape=(count,), mean=spec.mean * spec.size / count, structure=None)


def with_nan(values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
    """Return floats with as many NaN as were recorded, at random places."""
    count = spec.structure.nan if spec.structure else 0
    if count and DTYPES[spec.dtype].kind in ("float", "complex"):
        values.reshape(-1)[generator.permutation(values.size)[:count]] = np.nan
    return values


def _share_of(rows: int) -> int:
    return max(int(rows * _SHARE), 1)


def _free_rows(
    values: Array,
    spec: TensorSpec,
    look: str,
    generator: np.random.Generator,
    rows: int | None = None,
) -> tuple[Array, Callable[[Array], Array], Array]:
    """Return the rows of a tensor, and in random order those that hold none of its extremes."""
    rows = row_count(spec.shape, look) if rows is None else rows
    if not rows or not values.size or values.size % rows:
        return values, lambda lines: lines, np.empty(0, np.int64)
    lines, back = in_rows(values, look, rows)
    width = lines.shape[1]
    flat = lines.reshape(-1)
    ends = {int(flat.argmin()) // width, int(flat.argmax()) // width}
    order = generator.permutation(rows)
    return lines, back, order[~np.isin(order, list(ends))]


def _offset_row(row: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
    """Return a row around the largest of its first numbers, with a small deviation from it."""
    first = row[:4].astype(np.float64)
    centre = 0.9 * float(first[np.abs(first).argmax()])
    factor = _OFFSET_OF_HALF if spec.dtype == "float16" else _OFFSET
    drawn = centre + abs(centre) / factor * _NORMAL.draw(generator, row.size)
    return round_to_dtype(drawn, spec.dtype)


def _recorded_rows(
    values: Array,
    spec: TensorSpec,
    found: Structure,
    look: str,
    generator: np.random.Generator,
) -> Array:
    """Return the numbers with the rows that were recorded."""
    if found.row_means is not None and DTYPES[spec.dtype].kind == "float":
        lines, back = in_rows(values, look, found.rows)
        values = back(_around_means(lines, spec, found, found.row_means, generator))
    lines, back, free = _free_rows(values, spec, look, generator)
    alike = (lines == lines[:, :1]).all(axis=1)
    zeros = alike & (lines[:, 0] == 0)
    hidden = alike & (lines[:, 0] <= MASKED_SCORE)
    there = [int(kind.sum()) for kind in (zeros, hidden, alike & ~zeros & ~hidden)]
    wanted = [found.zero_rows, found.masked_rows, found.equal_rows]
    missing = [max(most - count, 0) for most, count in zip(wanted, there, strict=True)]
    # The rows with the extremes come last: all rows may be so.
    order = np.concatenate([free, np.setdiff1d(np.arange(found.rows), free)])
    order = order[~alike[order]]
    zero, masked, equal = np.split(order, np.cumsum(missing))[:3]
    lines[zero] = 0
    if len(masked):
        lowest = MASKED_SCORE if spec.low is None or spec.low != spec.low else float(spec.low)
        lines[masked] = _rounded(min(lowest, MASKED_SCORE), spec)
    lines[equal] = True if DTYPES[spec.dtype].kind == "bool" else lines[equal, :1]
    return back(lines)


def _rounded(value: float, spec: TensorSpec) -> Array:
    if DTYPES[spec.dtype].kind == "float":
        return round_to_dtype(np.array([value], np.float64), spec.dtype)
    return np.array([value]).astype(DTYPES[spec.dtype].carrier)


def _around_means(
    lines: Array,
    spec: TensorSpec,
    found: Structure,
    means: tuple[float, float],
    generator: np.random.Generator,
) -> Array:
    """Return rows around means between the two that were recorded, which add up to the recorded mean and
    norm as far as they can; the recorded extremes are in the rows with the extreme means."""
    rows, width = lines.shape
    norm = None
    if isinstance(spec.norm, int | float) and math.isfinite(spec.norm):
        square = spec.norm / max(spec.size, 1) * spec.norm - found.row_deviation**2
        norm = math.sqrt(max(square, 0.0) * rows)
    of_means = replace(
        spec, dtype="float64", shape=(rows,), low=means[0], high=means[1], norm=norm, structure=None
    )
    span = value_range(of_means)
    centres = floats(generator, span, (rows,), "float64", recorded_body(of_means, span))
    known = known_range(spec)
    for row in range(rows):
        drawn = centres[row] + found.row_deviation * _NORMAL.draw(generator, width)
        if known is not None:
            drawn = np.clip(drawn, float(known[0]), float(known[1]))
        lines[row] = round_to_dtype(drawn, spec.dtype)
    if known is not None:
        for place, end in zip((centres.argmin(), centres.argmax()), known, strict=True):
            lines[place, generator.integers(width)] = _rounded(float(end), spec)[0]
    return lines


@dataclass(frozen=True, slots=True)
class Causal(Rowwise):
    """An attention mask that hides what comes later: above the diagonal stands True,
    1 or what the dump recorded as the lowest. Where the statistics contradict it
    the drawn values stay. Rows that hide everything are there if the record has some."""

    hides_where_true: bool = True

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the mask for every matrix of the last two dimensions."""
        found = self._masked(values, spec)
        # Not super(): a dataclass with slots is another class than the one that is named here.
        return found if spec.structure is None else Rowwise.shaped(self, found, spec, generator)

    def _masked(self, values: Array, spec: TensorSpec) -> Array:
        if len(spec.shape) < 2:
            return values
        later = np.triu(np.ones(spec.shape[-2:], bool), 1 + spec.shape[-1] - spec.shape[-2])
        ends = self._hidden_and_seen(spec)
        if ends is None or not self._fits(spec, float(later.mean()), ends):
            return values
        hidden, seen = ends
        mask = np.where(later, hidden, seen).astype(values.dtype)
        return np.ascontiguousarray(np.broadcast_to(mask, spec.shape))

    def _hidden_and_seen(self, spec: TensorSpec) -> tuple[float, float] | None:
        kind = DTYPES[spec.dtype].kind
        low, high = spec.low, spec.high
        if kind == "bool" and (low is None or low != high):
            return (1, 0) if self.hides_where_true else (0, 1)
        if low is None or high is None:
            return None
        if low < -1.0 and high == 0:  # added to the scores
            return float(low), 0.0
        if (low, high) == (0, 1):
            return (1, 0) if self.hides_where_true else (0, 1)
        return None

    def _fits(self, spec: TensorSpec, later: float, ends: tuple[float, float]) -> bool:
        """Return whether a mean that was recorded is that of the mask."""
        if not later > 0.0 or spec.shape[-1] < spec.shape[-2]:  # of an empty mask it is NaN
            return False
        if spec.mean is None or not math.isfinite(spec.mean) or spec.mean in (spec.low, spec.high):
            return True  # unknown, or it cannot be: both values occur
        hidden, seen = ends
        expected = later * hidden + (1.0 - later) * seen
        return abs(spec.mean - expected) <= 0.01 * abs(hidden - seen)
