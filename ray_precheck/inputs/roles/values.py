"""Kinds of arguments that are no indices: sorted, lengths, probabilities, matrices, masks.

As `inputs.roles.role`, whose base class they share. Only sums, products, quotients, square roots and
comparisons are used, so that all hosts get the same bits.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from ray_precheck.inputs.roles.role import Role, Within, is_known, is_whole, spread_places
from ray_precheck.numerics.arrays import pieces
from ray_precheck.numerics.rounding import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import TensorSpec

# How large the sum of a probability's row may be off, by its recorded mean, to count as 1.
_PROBABILITY_TOLERANCE = 0.05


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
        if is_known(spec) and not (spec.low or 0) >= 0:
            return False
        if spec.mean is None or not math.isfinite(spec.mean):
            return not is_known(spec) or (spec.high or 0) <= 1
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
        size = max(abs(spec.low or 0), abs(spec.high or 0)) if is_known(spec) else 1.0
        factor = 0.4 / (largest * math.sqrt(n)) if largest > 0 else 0.0
        found = float(size or 1.0) * (np.eye(n) + wide * factor)
        if DTYPES[spec.dtype].kind == "complex":
            return np.asarray(found.astype(values.dtype))
        return round_to_dtype(found, spec.dtype)




@dataclass(frozen=True, slots=True)
class _Beside(Role):
    """Numbers that depend on another argument, which is named by its path."""

    path: str
    spec: TensorSpec

    @property
    def companion(self) -> tuple[str, TensorSpec]:
        """The other argument."""
        return self.path, self.spec


@dataclass(frozen=True, slots=True)
class Same(_Beside):
    """The very tensor that another argument is: the squared gradient of an optimiser's step."""

    def beside(self, values: Array, other: Array) -> Array:
        """Return the other's numbers."""
        return other.copy()


@dataclass(frozen=True, slots=True)
class Ranked(_Beside):
    """Numbers that are large where the numbers of another argument are large, as the divisor of an
    optimiser's step, the root of a mean of squares, beside the mean that it divides. Drawn on their
    own, large numbers would be divided by the smallest ones, which no step does."""

    def beside(self, values: Array, other: Array) -> Array:
        """Return the drawn numbers in the order of the other's magnitudes, chunk by chunk."""
        flat, sizes = values.reshape(-1), other.reshape(-1)
        for piece in pieces(len(flat)):
            chunk = flat[piece]
            order = np.argsort(np.abs(sizes[piece]), kind="stable")
            chunk[order] = np.sort(chunk)
        return values
