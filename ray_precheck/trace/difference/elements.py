"""How the elements of two captured tensors differ: all metrics in one pass over both.

Comes in: two `MappedTensor` of one shape. Goes out: an `ElementDifference`. Called by `measuring`. Both
are read in pieces that stay in the core's cache. Sums of squares are taken in float64, because float32
loses digits in sums of many elements; relative errors and their shares are computed in the wider of both
dtypes and at least float32, as msprobe 26.2 has it (core/compare/utils.py, `get_relative_err`).

Elements that are NaN or infinite on either side are left out of all metrics, and counted. A complex
element counts as two, its real and its imaginary part; positions are those of the complex elements.

Whether two tensors hold the same values in another layout or order. With files the values themselves are
compared, up to a size; without, the statistics, which cannot prove it.

Distances of two tensors that sums of squares do not show: beside masks, and near the ends of float64. A
mask (-1e9, the smallest float32) that stands among the scores of attention is nearly all of their norm:
scores that are a third too large have a relative L2 distance of 1e-39 beside it. So where the magnitudes of
the golden side have a gap of `GAP` powers of two, the smaller ones are compared by themselves.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.numerics.arrays import CACHED_ELEMENTS, machine_epsilon, pieces, same_values
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.items import Item

# Where at most one element in so many differs, the errors are computed for these alone: taking them out
# costs as much as computing with six times as many.
_FEW = 8
THOUSANDTH, FIVE_THOUSANDTHS = 0.001, 0.005


@dataclass(slots=True)
class ElementDifference:
    """What was measured of two tensors of `size` elements each.

    All counts are of numbers, `parts` for each element: 2 where it is complex. `finite` numbers are finite
    on both sides.
    `target_squares`, `golden_squares`, `products` and `squares` are the sums of t^2, g^2, t g and
    (t - g)^2 over the finite elements. `max_abs` is the largest |t - g|, at the flat position `worst` (-1
    where nothing differs). `max_relative` is the largest |t - g| / |g|, where g = 0 counts as msprobe
    has it: the machine epsilon is added to both; `thousandth` and `five_thousandths` count the elements
    whose relative error is below 1/1000 and 5/1000. `relative_sum` is the sum of |t - g| / |g| over the
    `relative_count` elements whose g is not 0. `max_scaled` is the largest |t - g| / max(|t|, |g|, 1).
    `beyond` counts the elements with |t - g| > atol + rtol |g|. `unequal` counts the finite elements
    that differ, and `identical` tells whether all bits are the same.

    `target_nan`, `target_infinite`, `golden_nan` and `golden_infinite` count elements. `odd` elements are
    NaN or infinite otherwise than on the other side, the first at `first_odd`; `flipped` of them are
    infinities of other signs.
    """

    size: int
    parts: int = 1
    finite: int = 0
    target_squares: float = 0.0
    golden_squares: float = 0.0
    products: float = 0.0
    squares: float = 0.0
    max_abs: float = 0.0
    worst: int = -1
    max_relative: float = 0.0
    thousandth: int = 0
    five_thousandths: int = 0
    relative_sum: float = 0.0
    relative_count: int = 0
    max_scaled: float = 0.0
    beyond: int = 0
    unequal: int = 0
    identical: bool = True
    target_nan: int = 0
    target_infinite: int = 0
    golden_nan: int = 0
    golden_infinite: int = 0
    odd: int = 0
    flipped: int = 0
    first_odd: int = -1

    @property
    def numbers(self) -> int:
        """How many numbers each tensor has: a complex element has two."""
        return self.size * self.parts

    @property
    def cosine(self) -> float:
        """Cosine similarity; 1 for two zero vectors, NaN where one is zero or nothing is finite."""
        norms = math.sqrt(self.target_squares) * math.sqrt(self.golden_squares)
        if norms:
            return self.products / norms
        return math.nan if self.target_squares or self.golden_squares or not self.finite else 1.0

    @property
    def euclidean(self) -> float:
        """Euclidean distance of both."""
        return math.sqrt(self.squares)

    @property
    def rmse(self) -> float:
        """Root of the mean squared error; NaN where nothing is finite."""
        return math.sqrt(self.squares / self.finite) if self.finite else math.nan

    @property
    def mape(self) -> float:
        """Mean of |t - g| / |g| as a fraction, over the elements whose g is not 0; NaN without any."""
        return self.relative_sum / self.relative_count if self.relative_count else math.nan

    @property
    def relative_l2(self) -> float:
        """||t - g|| / ||g||; 0 for two zero vectors, infinite for a golden one, NaN if nothing is finite."""
        if not self.finite:
            return math.nan
        if not self.golden_squares:
            return math.inf if self.squares else 0.0
        return math.sqrt(self.squares / self.golden_squares)


def element_difference(
    target: MappedTensor, golden: MappedTensor, rtol: float = 0.0, atol: float = 0.0
) -> ElementDifference:
    """Measure two tensors of one shape; `rtol` and `atol` are for `ElementDifference.beyond`.

    Both are widened to the wider of their dtypes, and at least to float32.
    """
    size = target.raw.size
    found = ElementDifference(size)
    same_format = target.raw.dtype == golden.raw.dtype and target.dtype == golden.dtype
    work = _Work(target, golden, rtol, atol)
    found.parts = work.parts
    with np.errstate(all="ignore"):
        for piece in pieces(size, CACHED_ELEMENTS):
            ours, theirs = target.raw[piece], golden.raw[piece]
            if same_format and np.array_equal(_bits(ours), _bits(theirs)):
                work.add_equal(found, golden.carrier(theirs))
                continue
            found.identical = False
            work.add(found, target.carrier(ours), golden.carrier(theirs), piece.start)
    found.identical &= same_format
    return found


def _bits(piece: Array) -> Array:
    """Return a piece as numbers whose equality is that of bits, of 8 bytes where the length allows."""
    if piece.nbytes % 8 == 0:
        return piece.view(np.uint64)
    return piece.view(np.uint8)


class _Work:
    """The memory and the dtype in which pieces of two tensors are compared."""

    def __init__(
        self, target: MappedTensor, golden: MappedTensor, rtol: float, atol: float
    ) -> None:
        kinds = [each.carrier(each.raw[:0]).dtype for each in (target, golden)]
        self.dtype: np.dtype[Any] = np.result_type(*kinds, np.float32)
        self.complex = self.dtype.kind == "c"
        self.real = self.dtype if not self.complex else np.empty(0, self.dtype).real.dtype
        if any(kind.kind in "iub" for kind in kinds) and self.real != np.float64:
            self.real = np.dtype(np.float64)  # float32 does not hold integers beyond 2^24
            self.dtype = np.dtype(np.complex128) if self.complex else self.real
        self.parts = 2 if self.complex else 1
        # float64 does not hold integers beyond 2^53: which are equal is asked of themselves.
        self.whole = all(kind.kind in "iu" for kind in kinds)
        length = min(CACHED_ELEMENTS, max(target.raw.size, 1)) * self.parts
        self.wide = [np.empty(length) for _ in range(3)]
        self.narrow = [np.empty(length, self.real) for _ in range(2)]
        self.flags = np.empty(length, np.bool_)
        self.epsilon = self.real.type(machine_epsilon(self.real.name))
        self.rtol, self.atol = rtol, atol
        # The largest |t - g| yet, rounded to the dtype of the work.
        self.largest: Any = self.real.type(0)

    def add_equal(self, found: ElementDifference, piece: Array) -> None:
        """Count a piece whose bits are the same on both sides."""
        flat = self._flat(piece)
        wide = self._widened(flat, 0)
        squares = float(np.dot(wide, wide))
        count = flat.size
        if not math.isfinite(squares):
            finite = np.isfinite(flat)
            nan = int(np.count_nonzero(np.isnan(flat)))
            infinite = flat.size - int(np.count_nonzero(finite)) - nan
            found.target_nan += nan
            found.golden_nan += nan
            found.target_infinite += infinite
            found.golden_infinite += infinite
            count -= nan + infinite
            wide = np.where(finite, wide, 0.0)
            squares = float(np.dot(wide, wide))
        found.finite += count
        found.golden_squares += squares
        found.target_squares += squares
        found.products += squares
        found.thousandth += flat.size
        found.five_thousandths += flat.size
        found.relative_count += int(np.count_nonzero(flat != 0)) - (flat.size - count)

    def add(self, found: ElementDifference, ours: Array, theirs: Array, start: int) -> None:
        """Compare a piece that begins at the element `start`."""
        target, golden = self._flat(ours), self._flat(theirs)
        wide, other = self._widened(target, 0), self._widened(golden, 1)
        own, golden_squares = float(np.dot(wide, wide)), float(np.dot(other, other))
        count = target.size
        if not (math.isfinite(own) and math.isfinite(golden_squares)):
            target, golden, count = self._finite(found, target, golden, start)
            wide, other = self._widened(target, 0), self._widened(golden, 1)
            own, golden_squares = float(np.dot(wide, wide)), float(np.dot(other, other))
        found.finite += count
        found.target_squares += own
        found.golden_squares += golden_squares
        found.products += float(np.dot(wide, other))
        one, two = (ours, theirs) if self.whole else (target, golden)
        unequal = np.not_equal(one, two, out=self.flags[: target.size])
        number = int(np.count_nonzero(unequal))
        found.unequal += number
        if self.whole and number and found.worst < 0:
            found.worst = start + int(np.argmax(unequal))
        if number * _FEW > target.size:
            self._add_errors(found, target, golden, wide, other, start, None)
            return
        places = np.flatnonzero(unequal)
        few = golden[places]
        found.thousandth += target.size - number
        found.five_thousandths += target.size - number
        # NumPy counts what is true far faster than what is not 0.
        held = np.not_equal(golden, 0, out=self.flags[: golden.size])
        found.relative_count += int(np.count_nonzero(held)) - int(np.count_nonzero(few))
        if number:
            self._add_errors(found, target[places], few, wide[places], other[places], start, places)

    def _add_errors(
        self,
        found: ElementDifference,
        target: Array,
        golden: Array,
        wide: Array,
        other: Array,
        start: int,
        places: Array | None,
    ) -> None:
        """Add the errors of elements; `places` are theirs in the piece, None for all of them."""
        difference = np.subtract(wide, other, out=self.wide[2][: wide.size])
        found.squares += float(np.dot(difference, difference))
        size = np.subtract(target, golden, out=self.narrow[0][: target.size])
        np.abs(size, out=size)
        largest = size.max()
        if largest >= self.largest and largest > 0:
            self._note_worst(found, size, largest, start, places)
        magnitude = np.abs(golden, out=self.narrow[1][: golden.size])
        if largest > self.atol:
            excess = np.multiply(magnitude, self.rtol, dtype=self.real)
            np.subtract(size, excess, out=excess)
            found.beyond += int(np.count_nonzero(excess > self.atol))
        if largest > found.max_scaled:
            _scale_largest(found, target, size, magnitude)
        self._add_relative(found, target, golden, size, magnitude)

    def _flat(self, piece: Array) -> Array:
        """Return a piece in the dtype of the work, the parts of complex elements one by one."""
        same = piece.astype(self.dtype, copy=False)
        return same.view(self.real) if self.complex else same

    def _widened(self, flat: Array, which: int) -> Array:
        if flat.dtype == np.float64:
            return flat
        wide: Array = self.wide[which][: flat.size]
        np.copyto(wide, flat)
        return wide

    def _finite(
        self, found: ElementDifference, target: Array, golden: Array, start: int
    ) -> tuple[Array, Array, int]:
        """Count what is NaN or infinite; return both with 0 in these places, and how many are left."""
        own_nan, golden_nan = np.isnan(target), np.isnan(golden)
        own_infinite, golden_infinite = np.isinf(target), np.isinf(golden)
        found.target_nan += int(np.count_nonzero(own_nan))
        found.golden_nan += int(np.count_nonzero(golden_nan))
        found.target_infinite += int(np.count_nonzero(own_infinite))
        found.golden_infinite += int(np.count_nonzero(golden_infinite))
        out = own_nan | golden_nan | own_infinite | golden_infinite
        odd = out & ~same_values(target, golden)
        if odd.any():
            found.odd += int(np.count_nonzero(odd))
            found.flipped += int(np.count_nonzero(odd & own_infinite & golden_infinite))
            if found.first_odd < 0:
                found.first_odd = start + int(np.argmax(odd)) // self.parts
        left = target.size - int(np.count_nonzero(out))
        return np.where(out, 0, target), np.where(out, 0, golden), left

    def _note_worst(
        self, found: ElementDifference, size: Array, largest: Any, start: int, places: Array | None
    ) -> None:
        """Keep the largest difference, exact, of those that are the largest once rounded."""
        self.largest = largest
        candidates = np.flatnonzero(size == largest)
        exact = np.abs(self.wide[2][candidates])
        at = int(np.argmax(exact))
        if exact[at] > found.max_abs:
            found.max_abs = float(exact[at])
            place = int(candidates[at] if places is None else places[candidates[at]])
            found.worst = start + place // self.parts

    def _add_relative(
        self, found: ElementDifference, target: Array, golden: Array, size: Array, magnitude: Array
    ) -> None:
        zero = golden == 0
        shares = np.divide(size, magnitude, out=size)
        if zero.any():
            shares[zero] = 0
            found.relative_count += shares.size - int(np.count_nonzero(zero))
            found.relative_sum += float(shares.sum())
            shares[zero] = np.abs(target[zero] + self.epsilon - self.epsilon) / self.epsilon
        else:
            found.relative_count += shares.size
            found.relative_sum += float(shares.sum())
        found.max_relative = max(found.max_relative, float(shares.max()))
        found.thousandth += int(np.count_nonzero(shares < THOUSANDTH))
        found.five_thousandths += int(np.count_nonzero(shares < FIVE_THOUSANDTHS))


def _scale_largest(found: ElementDifference, target: Array, size: Array, magnitude: Array) -> None:
    """Keep the largest scaled error; it cannot be above the largest difference."""
    scale = np.abs(target)
    np.maximum(scale, magnitude, out=scale)
    np.maximum(scale, 1, out=scale)
    found.max_scaled = max(found.max_scaled, float(np.divide(size, scale, out=scale).max()))


# Masks are at least so large (BERT's is -1e4), and so many powers of two above the other values.
SMALLEST_MASK, GAP = 1e3, 6
# Where fewer of the elements that differ do so by more than 0.5 %, nothing is hidden: all honest runs have a
# few, near zero.
_SHARE = 0.01
# The exponents of float64 (frexp), subnormal ones included.
_LEAST_EXPONENT, _EXPONENTS = -1074, 2100


@dataclass(frozen=True, slots=True)
class BesideMask:
    """How far the elements below a mask are apart: their relative L2 distance. `smallest` is the lower bound
    of the mask's magnitudes, a power of two, and `masked` counts them."""

    relative_l2: float
    smallest: float
    masked: int


def may_be_masked(found: ElementDifference, largest: float | None) -> bool:
    """Return whether masks may hide a difference; `largest` is the largest magnitude of the golden side, None
    where it is not known: then their norm bounds it."""
    if not found.unequal or found.parts != 1:
        return False
    bound = largest if largest is not None else math.sqrt(found.golden_squares)
    if not bound >= SMALLEST_MASK:
        return False
    return found.numbers - found.five_thousandths > _SHARE * found.unequal


def beside_mask(target: MappedTensor, golden: MappedTensor) -> BesideMask | None:
    """Return how far the elements below a mask are apart; None where there is no mask."""
    counts = np.zeros(_EXPONENTS, np.int64)
    for _, theirs in _pieces(target, golden):
        exponents = np.frexp(theirs[theirs != 0])[1] - _LEAST_EXPONENT
        counts += np.bincount(exponents, minlength=_EXPONENTS)
    there = np.flatnonzero(counts)
    gaps = np.flatnonzero(np.diff(there) > GAP)
    if not len(gaps):
        return None
    # The topmost gap: what is above it is the mask.
    first = int(there[gaps[-1] + 1])
    smallest = math.ldexp(0.5, first + _LEAST_EXPONENT)
    if smallest < SMALLEST_MASK / 2:
        return None
    squares = golden_squares = 0.0
    for ours, theirs in _pieces(target, golden):
        below = np.abs(theirs) < smallest
        difference = ours[below] - theirs[below]
        squares += float(np.dot(difference, difference))
        golden_squares += float(np.dot(theirs[below], theirs[below]))
    if not golden_squares:
        return None
    return BesideMask(math.sqrt(squares / golden_squares), smallest, int(counts[first:].sum()))


def is_out_of_range(found: ElementDifference) -> bool:
    """Return whether squares have left the range of float64, so that the relative L2 distance is wrong."""
    if not found.unequal:
        return False
    return not math.isfinite(found.squares + found.golden_squares) or found.squares == 0.0


def scaled_distance(target: MappedTensor, golden: MappedTensor) -> float:
    """Return the relative L2 distance, with elements divided by a power of two near the largest magnitude."""
    largest = max(
        (
            float(np.abs(side).max())
            for both in _pieces(target, golden)
            for side in both
            if side.size
        ),
        default=0.0,
    )
    if not largest:
        return 0.0
    power = -math.frexp(largest)[1]
    squares = golden_squares = 0.0
    for ours, theirs in _pieces(target, golden):
        ours, theirs = np.ldexp(ours, power), np.ldexp(theirs, power)
        difference = ours - theirs
        squares += float(np.dot(difference, difference))
        golden_squares += float(np.dot(theirs, theirs))
    if not golden_squares:
        return math.inf if squares else 0.0
    return math.sqrt(squares / golden_squares)


def _pieces(target: MappedTensor, golden: MappedTensor) -> Iterator[tuple[Array, Array]]:
    """Yield the elements that are finite on both sides, in float64, the parts of complex ones one by one."""
    for piece in pieces(target.raw.size, CACHED_ELEMENTS):
        ours, theirs = (_flat(side.carrier(side.raw[piece])) for side in (target, golden))
        finite = np.isfinite(ours) & np.isfinite(theirs)
        yield ours[finite], theirs[finite]


def _flat(piece: Array) -> Array:
    if piece.dtype.kind == "c":
        return piece.astype(np.complex128, copy=False).view(np.float64)
    return piece.astype(np.float64, copy=False)


# Sorting more would take longer than all else.
_MOST_ELEMENTS = 1 << 22
_MOST_DIMENSIONS = 5
# Sums in another order differ by some roundings of float32, in which statistics are computed.
_CLOSE = 1e-5


def same_statistics(target: Item, golden: Item, tolerance: float = _CLOSE) -> bool:
    """Return whether Max, Min, Mean and Norm are known and agree, sums within `tolerance` of the norm."""
    mean, norm, mean2, norm2 = target.mean, target.norm, golden.mean, golden.norm
    if mean is None or norm is None or mean2 is None or norm2 is None:
        return False
    if None in target.ends or target.ends != golden.ends:
        return False
    root = math.sqrt(max(1, math.prod(target.shape or ())))
    return math.isclose(norm, norm2, rel_tol=tolerance) and abs(mean - mean2) <= tolerance * max(
        abs(mean), abs(mean2), abs(norm) / root
    )


def other_layout(target: MappedTensor, golden: MappedTensor) -> str:
    """Return in which layout of another shape the same values lie, "" if in none."""
    if target.raw.size != golden.raw.size or not target.raw.size:
        return ""
    if target.raw.size > _MOST_ELEMENTS:
        return ""
    ours, theirs = _values(target), _values(golden)
    if np.array_equal(ours, theirs, equal_nan=True):
        return "the same values, reshaped"
    if len(target.shape) == len(golden.shape) <= _MOST_DIMENSIONS:
        shaped = theirs.reshape(golden.shape)
        for axes in permutations(range(len(golden.shape))):
            moved = shaped.transpose(axes)
            if moved.shape == target.shape and np.array_equal(
                moved.reshape(-1), ours, equal_nan=True
            ):
                return f"the same values, transposed: golden.permute{axes}"
    return other_order(target, golden)


def other_order(target: MappedTensor, golden: MappedTensor) -> str:
    """Return that the same values lie in another order, "" if they do not, or are too many to sort."""
    if target.raw.size != golden.raw.size or target.raw.size > _MOST_ELEMENTS:
        return ""
    if np.array_equal(np.sort(_values(target)), np.sort(_values(golden)), equal_nan=True):
        return "the same values in another order"
    return ""


def _values(tensor: MappedTensor) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    return tensor.carrier(tensor.raw)
