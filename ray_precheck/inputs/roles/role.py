"""The role of an argument, such as an index: not every number of its range is valid.

Comes in: the spec of an argument, and the values drawn for it. Goes out: a spec with a valid range, and
valid values. Made by the rules of `inputs.roles.table`, used by `inputs.generate`. Recorded
statistics are kept where they are valid. Only sums, products, quotients, square roots and comparisons are
used, so that all hosts get the same bits.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.numerics.arrays import pieces, round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import TensorSpec

# So many distinct indices are drawn at a time.
_CHUNK_PLACES = 1 << 20
# Of more indices some are alike by chance, for any table of weights.
_MOST_UNREPEATED = 1 << 16
# How large the sum of a probability's row may be off, by its recorded mean, to count as 1.
_PROBABILITY_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Role:
    """Values of any kind: the base, which changes nothing."""

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a range that suits; statistics that no longer hold are dropped."""
        return spec

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return values that suit, made of drawn ones; `generator` is for this alone."""
        return values

    def stream(self, path: str) -> str:
        """Return the name of the random stream that `shaped` gets: arguments with one stream get
        the same numbers."""
        return path


def known_range(spec: TensorSpec) -> tuple[float, float] | None:
    """Return both extremes where the dump tells them, as finite numbers; else None."""
    low, high = spec.low, spec.high
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return low, high


def is_whole(spec: TensorSpec) -> bool:
    """Return whether a tensor holds whole numbers."""
    return DTYPES[spec.dtype].kind in ("int", "uint")


def _over(spec: TensorSpec, low: float, high: float) -> TensorSpec:
    return replace(spec, low=low, high=high, mean=None, norm=None)


@dataclass(frozen=True, slots=True)
class Within(Role):
    """Numbers of [low, high]; a recorded range is kept, or cut to it. `usual` replaces a range that
    is unknown or lies outside. With `only_unknown` a recorded range stays as it is; with `whole`
    only whole numbers are meant."""

    low: float
    high: float
    usual: tuple[float, float] | None = None
    only_unknown: bool = False
    whole: bool = False

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a range within [low, high]."""
        if DTYPES[spec.dtype].kind == "bool" or self.low > self.high:
            return spec
        if self.whole and not is_whole(spec):
            return spec
        usual = self.usual or (self.low, self.high)
        known = known_range(spec)
        if known is None:
            return _over(spec, *usual)
        low, high = known
        if self.only_unknown or self.low <= low <= high <= self.high:
            return spec
        low, high = max(self.low, low), min(self.high, high)
        return _over(spec, low, high) if low <= high else _over(spec, *usual)


@dataclass(frozen=True, slots=True)
class Indices(Within):
    """Indices that may be alike, between the same bounds: they are, as often as the dump tells, else a
    quarter of them is. Those of one shape are alike at the same places in a call."""

    whole: bool = True

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the drawn indices, some of them several times."""
        return repeated(values, spec, generator) if is_whole(spec) else values

    def stream(self, path: str) -> str:
        """Return the stream of all the index tensors of the call."""
        return "indices"


def index_into(extent: int) -> Indices:
    """Return the role of an index into a dimension, from the front or from the back."""
    return Indices(-extent, extent - 1, (0, extent - 1))


def repeated(values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
    """Return drawn numbers with as many different ones as the dump tells, without it with three quarters
    of them at most. The smallest and the largest one stay."""
    wanted = spec.structure.distinct if spec.structure else None
    flat = values.reshape(-1)
    if wanted is None:
        if 2 < flat.size <= _MOST_UNREPEATED:
            _repeat_some(flat, generator)
        return values
    found = np.unique(flat)
    if len(found) > wanted:
        kept = found[spread_places(generator.random(wanted), len(found))]
        kept[-1], kept[0] = found[-1], found[0]
        # Each becomes the nearest of those that stay, which moves the mean least.
        middles = 0.5 * (kept[:-1].astype(np.float64) + kept[1:])
        flat[:] = kept[np.searchsorted(middles, flat)]
    elif len(found) < wanted and is_whole(spec):
        _add_others(flat, found, wanted - len(found), spec, generator)
    return values


def _repeat_some(flat: Array, generator: np.random.Generator) -> None:
    """Copy numbers to other places, until a quarter of them is not the first of its kind."""
    _, first = np.unique(flat, return_index=True)
    count = max(flat.size // 4, 1)
    if flat.size - len(first) >= count or len(first) < 3:
        return
    order = generator.permutation(flat.size)
    order = order[(order != flat.argmin()) & (order != flat.argmax())]
    count = min(count, len(order))
    sources = generator.integers(flat.size, size=count)
    flat[order[:count]] = flat[sources]


def _add_others(
    flat: Array, found: Array, count: int, spec: TensorSpec, generator: np.random.Generator
) -> None:
    """Put numbers that do not occur at the places of those that occur already."""
    low, high = int(spec.low or 0), int(spec.high or 0)
    low = max(low, 0) if high >= 0 else low  # what is below 0 may be no index
    places = max(high - low + 1, 0)
    share = generator.random(min(places, 2 * count + len(found)))
    tried = low + spread_places(share, places)
    others = generator.permutation(np.setdiff1d(tried, found))[:count]
    _, first = np.unique(flat, return_index=True)
    again = generator.permutation(np.setdiff1d(np.arange(flat.size), first))[: len(others)]
    flat[again] = others[: len(again)].astype(flat.dtype)


def spread_places(share: Array, places: int) -> Array:
    """Return int64 numbers from 0 to below `places`, rising along the last dimension, from random
    numbers `share` of [0, 1) in the same shape.

    Each lies in one of as many neighbouring pieces of nearly the same length, so they differ, and no
    table of all the places is needed. There are at least as many places.
    """
    count = share.shape[-1]
    length, longer = divmod(places, max(count, 1))
    number = np.arange(count + 1, dtype=np.int64)
    edges = number * length + number * longer // max(count, 1)
    return np.asarray(edges[:-1] + (share * np.diff(edges)).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Distinct(Role):
    """Indices into a dimension that differ along `axis`: of two equal indices the last write
    counts, and the order of the threads decides which write is last."""

    extent: int
    axis: int

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a range within the dimension."""
        if not is_whole(spec) or self.extent < 1:
            return spec
        return Within(0, self.extent - 1).bounded(spec)

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return permutations of the dimension, cut to length; more indices than it has stay."""
        axis = self.axis if spec.shape else 0
        moved = np.moveaxis(np.atleast_1d(values), axis, -1)
        count = moved.shape[-1]
        if not is_whole(spec) or count > self.extent:
            return values
        assert spec.low is not None
        assert spec.high is not None
        low, places = int(spec.low), int(spec.high) - int(spec.low) + 1
        if places < count:
            low, places = 0, self.extent
        lines = np.empty((moved.size // max(count, 1), count), values.dtype)
        step = max(1, _CHUNK_PLACES // max(count, 1))
        for start in range(0, len(lines), step):
            part = lines[start : start + step]
            share = generator.random((len(part), 2, count))
            chosen = spread_places(share[:, 0], places)
            order = np.argsort(share[:, 1], kind="stable")
            part[:] = low + np.take_along_axis(chosen, order, -1)
        found = np.moveaxis(lines.reshape(moved.shape), -1, axis)
        return np.ascontiguousarray(found).reshape(spec.shape)


@dataclass(frozen=True, slots=True)
class DistinctTogether(Role):
    """One of several index tensors that together address each place once: `extents` are those of
    the dimensions that they index, and this is the one at `position`."""

    extents: tuple[int, ...]
    position: int
    name: str

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a range within its dimension."""
        return Distinct(self.extents[self.position], -1).bounded(spec)

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return this coordinate of places that were drawn without repetition."""
        places = math.prod(self.extents)
        if not is_whole(spec) or values.size > places:
            return values
        chosen = generator.permutation(spread_places(generator.random(values.size), places))
        return (
            np.unravel_index(chosen, self.extents)[self.position]
            .reshape(spec.shape)
            .astype(values.dtype)
        )

    def stream(self, path: str) -> str:
        """Return the stream of all the index tensors of the call."""
        return self.name


@dataclass(frozen=True, slots=True)
class Coordinates(Role):
    """Indices whose last dimension addresses places of a tensor with these leading extents; with
    `distinct` no place twice."""

    extents: tuple[int, ...]
    distinct: bool = False

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with the range of the largest of its dimensions."""
        return Distinct(max(self.extents, default=0), -1).bounded(spec)

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return coordinates in range, distinct ones where there are as many places."""
        depth = spec.shape[-1] if spec.shape else 0
        extents = self.extents[:depth]
        if not is_whole(spec) or not depth or depth != len(extents) or 0 in extents:
            return values
        rows = values.size // depth
        if self.distinct and rows <= math.prod(extents):
            places = math.prod(extents)
            chosen = generator.permutation(spread_places(generator.random(rows), places))
            columns = np.unravel_index(chosen, extents)
            return np.stack(columns, -1).reshape(spec.shape).astype(values.dtype)
        found = np.minimum(values, np.array(extents, values.dtype) - 1)
        if not self.distinct and rows > 2:  # some places are addressed again
            order, count = generator.permutation(rows), max(rows // 4, 1)
            lines = found.reshape(rows, depth)
            lines[order[:count]] = lines[order[count : 2 * count]]
        return found


@dataclass(frozen=True, slots=True)
class Classes(Role):
    """Class indices of a loss, `ignored` among them where the dump has recorded it as an extreme."""

    count: int
    ignored: int | None = None

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a range of classes, and the ignored one if it was there."""
        if not is_whole(spec) or self._ignores(spec):
            return spec
        return Within(0, self.count - 1).bounded(spec)

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return classes, and the ignored one as often as the mean tells, else a tenth."""
        if not is_whole(spec) or not self._ignores(spec):
            told = spec.structure is not None and spec.structure.distinct
            return repeated(values, spec, generator) if told and is_whole(spec) else values
        assert spec.high is not None
        assert self.ignored is not None
        highest = min(max(int(spec.high), 0), self.count - 1)
        share = 0.1
        if isinstance(spec.mean, float | int):
            usual = highest / 2
            share = min(max((usual - spec.mean) / (usual - self.ignored), 0.0), 1.0)
        found = generator.integers(0, highest, spec.shape, endpoint=True)
        ignored = generator.random(spec.shape) < share
        ignored.reshape(-1)[generator.integers(ignored.size)] = True
        if ignored.all() and spec.high != self.ignored:  # a mean loss over nothing is NaN
            ignored.reshape(-1)[0] = False
        return np.asarray(np.where(ignored, self.ignored, found).astype(values.dtype))

    def _ignores(self, spec: TensorSpec) -> bool:
        outside = self.ignored is not None and not 0 <= self.ignored < self.count
        return outside and spec.low == self.ignored and spec.high is not None


@dataclass(frozen=True, slots=True)
class Sorted(Role):
    """Numbers that rise along the last dimension; with `falling` they fall."""

    falling: bool = False

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the drawn numbers in order."""
        if not spec.shape:
            return values
        rising = np.sort(values, axis=-1)
        return np.ascontiguousarray(rising[..., ::-1]) if self.falling else rising


@dataclass(frozen=True, slots=True)
class Lengths(Role):
    """Lengths of sequences, from 1 to `longest`, one of them `longest`; `falling` where the API wants
    the longest first."""

    longest: int
    falling: bool = False

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec with a range of lengths."""
        return Within(1, self.longest).bounded(spec) if is_whole(spec) else spec

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the drawn lengths, one of which is the longest, in order where that is wanted."""
        if not is_whole(spec) or self.longest < 1:
            return values
        values.reshape(-1)[0] = self.longest
        return Sorted(falling=True).shaped(values, spec, generator) if self.falling else values


@dataclass(frozen=True, slots=True)
class PackedSizes(Role):
    """How many of the sequences that are packed into `rows` rows have a first, a second, ... row: as many as
    the recorded Max at first, then fewer and fewer (`torch.nn.utils.rnn.PackedSequence.batch_sizes`)."""

    rows: int

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the sizes of sequences of random lengths, the first as long as there are sizes."""
        if not is_whole(spec) or values.ndim != 1 or not isinstance(spec.high, int):
            return values
        longest, others = values.size, spec.high - 1
        # Each other sequence has one row; the rows that are left are drawn from all that they may have.
        left, places = self.rows - longest - others, others * (longest - 1)
        if others < 0 or not 0 <= left <= places:
            return values
        drawn = generator.permutation(places)[:left] // max(longest - 1, 1)
        lengths = 1 + np.bincount(drawn, minlength=others)
        sizes = 1 + (lengths[:, np.newaxis] > np.arange(longest)).sum(axis=0)
        return np.asarray(sizes.astype(values.dtype))


@dataclass(frozen=True, slots=True)
class Parts(Role):
    """Whole numbers of 0 and more that add up to `total`; with `running` their running sums, with
    `from_zero` these begin with a 0, with `open_end` they do not have the total itself."""

    total: int
    running: bool = False
    from_zero: bool = False
    open_end: bool = False

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return parts between places that are drawn at random, where the total has them; of several rows
        each has its own."""
        if not is_whole(spec) or not spec.shape or self.total < 0 or not values.size:
            return values
        if values.ndim > 1:
            lines = values.reshape(-1, values.shape[-1])
            alone = replace(spec, shape=lines.shape[1:])
            parts = [self.shaped(line, alone, generator) for line in lines]
            return np.stack(parts).reshape(values.shape)
        inner = values.size - 1 - self.from_zero + self.open_end
        if inner < 0:
            return np.full_like(values, 0 if self.from_zero else self.total)
        if inner < self.total:  # parts of 1 and more
            cuts = 1 + spread_places(generator.random(inner), self.total - 1)
        else:
            cuts = np.sort(generator.integers(0, self.total, inner, endpoint=True))
        first = [0] if self.from_zero or not self.running else []
        last = [] if self.open_end else [self.total]
        sums = np.concatenate([np.array(first, np.int64), cuts, np.array(last, np.int64)])
        found = sums if self.running else np.diff(sums)
        return np.asarray(found.astype(values.dtype))


@dataclass(frozen=True, slots=True)
class AtMost(Role):
    """A mask with at most so many True elements."""

    count: int

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the mask without those of its True elements that are too many, at random places."""
        taken = generator.permutation(np.flatnonzero(values))
        values.reshape(-1)[taken[self.count :]] = False
        return values


@dataclass(frozen=True, slots=True)
class Probabilities(Role):
    """Numbers of 0 and more whose sum along `axis` is 1, unless the recorded mean says otherwise."""

    axis: int = -1

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the drawn numbers divided by their sums."""
        if not spec.shape or DTYPES[spec.dtype].kind != "float" or not self._fits(spec):
            return values
        wide = np.abs(values.astype(np.float64))
        totals = wide.sum(axis=self.axis, keepdims=True)
        even = np.full_like(wide, 1.0 / spec.shape[self.axis])
        found = np.divide(wide, totals, out=even, where=(totals > 0) & np.isfinite(totals))
        return round_to_dtype(found, spec.dtype)

    def _fits(self, spec: TensorSpec) -> bool:
        if not -len(spec.shape) <= self.axis < len(spec.shape):
            return False
        low, high = known_range(spec) or (0, 1)
        if not low >= 0:
            return False
        if spec.mean is None or not math.isfinite(spec.mean):
            return high <= 1
        return abs(spec.mean * spec.shape[self.axis] - 1.0) <= _PROBABILITY_TOLERANCE


@dataclass(frozen=True, slots=True)
class Signs(Role):
    """Numbers that are -1 or 1, as the targets of margin losses."""

    def bounded(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec; an unknown range becomes [-1, 1]."""
        return Within(-1, 1, only_unknown=True).bounded(spec)

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return 1 for values above the middle of the range, else -1."""
        if DTYPES[spec.dtype].kind not in ("int", "float"):
            return values
        if spec.low is not None and spec.low == spec.high and abs(spec.low) == 1:
            return values
        return np.where(generator.random(spec.shape) < 0.5, -1, 1).astype(values.dtype)


@dataclass(frozen=True, slots=True)
class NonZero(Role):
    """Whole numbers without 0: divisors."""

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return the drawn numbers with 1 for 0, or -1 where the range ends there."""
        if not is_whole(spec):
            return values
        instead = -1 if spec.high is not None and spec.high <= 0 and spec.low != 0 else 1
        return np.where(values == 0, np.array(instead, values.dtype), values)


@dataclass(frozen=True, slots=True)
class Matrix(Role):
    """Square matrices that can be inverted without loss: about a multiple of the identity, with
    eigenvalues between a fifth and twice of it. `symmetric`: also positive definite."""

    symmetric: bool = False

    def shaped(self, values: Array, spec: TensorSpec, generator: np.random.Generator) -> Array:
        """Return matrices of m (I + 0.4 W / sqrt(n)), W the centred numbers drawn, at most 1 large,
        and m the largest recorded magnitude."""
        square = len(spec.shape) >= 2 and spec.shape[-1] == spec.shape[-2]
        if not square or DTYPES[spec.dtype].kind not in ("float", "complex"):
            return values
        wide: Array = values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)
        wide = np.where(np.isfinite(wide), wide, 0.0)
        if self.symmetric:
            wide = 0.5 * (wide + np.conj(np.swapaxes(wide, -1, -2)))
        wide = wide - float(wide.real.mean())
        n = spec.shape[-1]
        largest = float(np.abs(wide).max(initial=0.0))
        size = max(map(abs, known_range(spec) or (1.0,)))
        factor = 0.4 / (largest * math.sqrt(n)) if largest > 0 else 0.0
        found = float(size or 1.0) * (np.eye(n) + wide * factor)
        if DTYPES[spec.dtype].kind == "complex":
            return np.asarray(found.astype(values.dtype))
        return round_to_dtype(found, spec.dtype)


@dataclass(frozen=True, slots=True)
class Beside(Role):
    """Numbers that depend on another argument, which is named by its path."""

    path: str
    spec: TensorSpec

    def beside(self, draw: Callable[[], Array], other: Array) -> Array:
        """Return numbers that suit those of the other argument; `draw` gives them as they are recorded."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Same(Beside):
    """The very tensor that another argument is: the squared gradient of an optimiser's step."""

    def beside(self, draw: Callable[[], Array], other: Array) -> Array:
        """Return the other's numbers."""
        return other.copy()


@dataclass(frozen=True, slots=True)
class Ranked(Beside):
    """Numbers that are large where the numbers of another argument are large, as the divisor of an
    optimiser's step, the root of a mean of squares, beside the mean that it divides. Drawn on their
    own, large numbers would be divided by the smallest ones, which no step does."""

    def beside(self, draw: Callable[[], Array], other: Array) -> Array:
        """Return the drawn numbers in the order of the other's magnitudes, chunk by chunk."""
        values = draw()
        flat, sizes = values.reshape(-1), other.reshape(-1)
        for piece in pieces(len(flat)):
            chunk = flat[piece]
            chunk[_rising(np.abs(sizes[piece]))] = np.sort(chunk)
        return values


def _rising(magnitudes: Array) -> Array:
    """Return the places of magnitudes, which are not negative, in rising order; equal ones stay in theirs."""
    if magnitudes.dtype != np.float32:
        return np.argsort(magnitudes, kind="stable")
    # Their bits rise as they do. With its place behind it each is sorted at once: a fifth of the time.
    keys = magnitudes.view(np.uint32).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.intp)
