"""The sketch of a tensor: 64 numbers that stand for it when it is compared with another.

Comes in: the values of a tensor, or of a part of it and where that lies. Goes out: 64 buckets. Called for
each tensor of a capture with sketches; `pytorch.sketch` does the same on a torch device.

A sketch is linear: bucket b is the sum of s(i) x[i] over the elements i with h(i) = b, with signs s and
buckets h that are fixed functions of the global index. So the sketch of a difference is the
difference of the sketches, and the sketches of the shards of a tensor add up to that of the whole. This is
CountSketch (Charikar, Chen and Farach-Colton, Finding frequent items in data streams, ICALP 2002):

    ||x||^2 is estimated as sum_b bucket[b]^2, without bias, with variance 2 / 64 (||x||^4 - sum_i x[i]^4)

so that the estimated L2 norm has a standard deviation of at most 9 % of the true one, and a few changed
elements are seen nearly exactly. The variance is larger where many changed elements share a bucket by the
map: in one column of a tensor whose width is a multiple of 509 (a third of such differences is estimated
within 0.8 to 1.25), and a little for a head of 64 in a row of 1,024. scripts/README.md
has the share within that band for 35 kinds of differences.

How small a difference is seen: 16 values at a time are added in float32, all else in float64, and float32 is
what is stored. That leaves a noise of 1e-7 of the tensor's norm in the difference of two sketches whose
tensors differ everywhere: estimates are off by at most 5 % from it at 1e-6 of the norm, by 20 % at 3e-7,
and differences below 1e-7 are not told apart. Stored as float64 they would be off by nearly as much, 4 % and
20 %, so float32 is enough. Where tensors differ in a part only, the noise is that of the part. Equal tensors
have equal sketches on the same kind of device; float64 values are rounded to float32 before.

Nothing in the map of indices to buckets and signs depends on the seed of a run, on a framework or on the
version of numpy: sketches of other runs, hosts and devices can be subtracted. An index is an element's place
in the row-major order of the whole tensor, however it is sharded. The map of index i, with blocks of 16 rows
of 509 elements:

    block, p = divmod(i, 8144)         row, column = divmod(p, 509)
    word     = splitmix64(block)       64 bits: bits 0 to 47 are eight rotations, bits 48 to 63 signs
    bucket   = (column % 64 + rotation[column // 64]) % 64
    sign     = SIGNS[p] * (-1 if bit 48 + row of word else 1)

So the rows of a block are added with signs (a product of a vector and a matrix), and only what remains, a
sixteenth, is moved to its buckets. Elements of one column of a block share a bucket, all others meet by
chance. The length of a row is a prime number, so that a column, a head or a channel of a tensor, which is
a progression of indices, meets itself only where its step is a multiple of 509. A block
has fewer than the 9,216 elements from which OpenBLAS starts threads for such a product.

splitmix64: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
"""

import math
import threading
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from ray_precheck.numerics.arrays import CACHED_ELEMENTS, l2_norm, pieces
from ray_precheck.numerics.one_pass import COMPILED, KINDS_OF_NUMPY

BUCKETS = 64
ROW, ROWS = 509, 16
BLOCK = ROW * ROWS
GROUPS = 8
# The first counter of the words whose bits are the fixed signs; no block has such a number.
_SIGN_WORDS = 1 << 62

Array: TypeAlias = np.ndarray[Any, Any]


def mixed(numbers: Array) -> Array:
    """Return the 64-bit words that splitmix64 gives for some counters, as uint64."""
    with np.errstate(over="ignore"):
        word = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def _bits(words: Array, first: int, count: int) -> Array:
    """Return some bits of each word as the last dimension, 0 or 1, int64."""
    shifts = np.arange(first, first + count, dtype=np.uint64)
    bits: Array = (words[..., None] >> shifts) & np.uint64(1)
    return bits.astype(np.int64)


@lru_cache(maxsize=1)
def fixed_signs() -> Array:
    """Return SIGNS, `(8144,)` float32 of 1 and -1."""
    words = mixed(_SIGN_WORDS + np.arange(-(-BLOCK // 64), dtype=np.int64))
    signs = (1 - 2 * _bits(words, 0, 64)).reshape(-1)[:BLOCK].astype(np.float32)
    signs.flags.writeable = False
    return signs


def row_signs(blocks: Array) -> Array:
    """Return the signs of the rows of some blocks, `(blocks, 16)` float32 of 1 and -1."""
    return (1 - 2 * _bits(mixed(blocks), 6 * GROUPS, ROWS)).astype(np.float32)


def rotations(blocks: Array) -> Array:
    """Return by how many buckets each group of 64 columns is rotated, `(blocks, 8)` int64."""
    shifts = np.arange(GROUPS, dtype=np.uint64) * np.uint64(6)
    numbers: Array = (mixed(blocks)[:, None] >> shifts) & np.uint64(BUCKETS - 1)
    return numbers.astype(np.int64)


def columns_in_buckets(blocks: Array) -> Array:
    """Return which column of a block lies in each bucket, `(blocks, 8, 64)` int64.

    There are eight columns for each bucket; 509 and above are no columns.
    """
    places = (np.arange(BUCKETS) - rotations(blocks)[:, :, None]) % BUCKETS
    columns: Array = places + BUCKETS * np.arange(GROUPS)[:, None]
    return columns


@lru_cache(maxsize=1)
def first_places() -> tuple[Array, Array]:
    """Return bucket and sign of the first 1,024 elements of a tensor, as `places_of` does."""
    return places_of(np.arange(1024, dtype=np.int64))


def places_of(indices: Array) -> tuple[Array, Array]:
    """Return bucket (int64) and sign (float32) of elements, by their global indices."""
    blocks, within = np.divmod(indices, BLOCK)
    rows, columns = np.divmod(within, ROW)
    words = mixed(blocks)
    rotated = (words >> ((columns >> 6) * 6).astype(np.uint64)).astype(np.int64)
    flipped = (words >> (rows + 6 * GROUPS).astype(np.uint64)) & np.uint64(1)
    signs = fixed_signs()[within] * np.where(flipped, np.float32(-1), np.float32(1))
    return (columns + rotated) & (BUCKETS - 1), signs


# Blocks whose products lie in the core's cache together, and those that share one table of places.
_TOGETHER, _TABLE = 4, 16
_GROUP, _CHUNK = _TOGETHER * BLOCK, _TABLE * BLOCK
_ONES = np.ones(_TABLE * GROUPS)
# Between these, sums of float32 neither overflow nor lose bits to subnormal numbers.
_SMALL, _LARGE = 2.0**-80, 2.0**100
# Tensors that are so small are summed element by element.
_FEW = 512


def zeros() -> Array:
    """Return the sketch of nothing, `(64,)` float64."""
    return np.zeros(BUCKETS)


def sketch(values: Array, start: int = 0, largest: float | None = None) -> Array:
    """Return the sketch of a contiguous range of a tensor's elements, `(64,)` float64.

    `values` have any shape and are taken in row-major order; `start` is the global index of the first one.
    Complex values count as two elements each, real and imaginary part, also in `start`'s unit: a complex
    element i is the elements 2i and 2i + 1. Integers and truth values are taken as float32.
    NaN and infinity count as 0. `largest` is the largest absolute value if the caller knows it, NaN or
    infinity if not all are finite; it is computed where it is left out.
    """
    with np.errstate(all="ignore"):  # the script around a capture may have asked for exceptions
        return _sketch_range(np.ascontiguousarray(values).reshape(-1), start, largest)


def sketch_at(values: Array, indices: Array, largest: float | None = None) -> Array:
    """Return the sketch of single elements by their global indices, `(64,)` float64.

    For elements that form no long ranges; takes some 40 times as long as `sketch`, in bounded memory.
    Values are treated as there, but must not be complex; `indices` are int64, as many as values.
    """
    flat, indices = np.ascontiguousarray(values).reshape(-1), indices.reshape(-1)
    total = zeros()
    for some in pieces(flat.size, CACHED_ELEMENTS):
        buckets, signs = places_of(indices[some])
        wide = _rounded(flat[some], largest)
        total += np.bincount(buckets, weights=wide * signs, minlength=BUCKETS)
    return total


def estimated_norm(buckets: Array) -> float:
    """Return the L2 norm that a sketch, or a difference of two, stands for."""
    return l2_norm(buckets)


def largest_of(flat: Array) -> float:
    """Return the largest absolute value; NaN or infinity if not all are finite."""
    highest, lowest = float(flat.max()), float(flat.min())
    return math.nan if math.isnan(highest) else max(highest, -lowest)


def _sketch_range(flat: Array, start: int, largest: float | None) -> Array:
    if flat.dtype.kind == "c":
        flat, start = flat.view(flat.real.dtype), 2 * start
        largest = largest if largest is not None and not math.isfinite(largest) else None
    if not flat.size:
        return zeros()
    cleaned = False
    if flat.dtype.kind not in "iub":
        if largest is None:
            largest = largest_of(flat)
        if not math.isfinite(largest):
            cleaned, largest = True, _finite_largest(flat)
    scaled = _exponent_for(largest or 0.0)
    end = start + flat.size
    kind = None if COMPILED is None else KINDS_OF_NUMPY.get(flat.dtype)
    if kind is None and end <= _FEW and not cleaned and not scaled:
        buckets, signs = first_places()
        products = np.multiply(flat, signs[start:end], dtype=np.float32, casting="same_kind")
        return np.bincount(buckets[start:end], weights=products, minlength=BUCKETS)
    total = zeros()
    for chunk in range(start // _CHUNK, -(-end // _CHUNK)):
        lower, upper = max(start, chunk * _CHUNK), min(end, (chunk + 1) * _CHUNK)
        piece = flat[lower - start : upper - start]
        if cleaned:
            piece = np.where(np.isfinite(piece), piece, piece.dtype.type(0))
        if scaled:
            piece = np.ldexp(piece, -scaled)
        if COMPILED is not None and kind is not None:
            place = total.ctypes.data
            COMPILED.sketch(piece.ctypes.data, piece.size, kind, lower, place)
        else:
            total += _sketch_chunk(piece, chunk, lower - chunk * _CHUNK)
    return np.ldexp(total, scaled) if scaled else total


def _finite_largest(flat: Array) -> float:
    """Return the largest absolute value of those that are finite; 0 if none is."""
    largest = 0.0
    for piece in pieces(flat.size, _CHUNK):
        sizes = np.abs(flat[piece])
        largest = max(largest, float(np.max(sizes, initial=0.0, where=np.isfinite(sizes))))
    return largest


def _rounded(flat: Array, largest: float | None) -> Array:
    """Return values as float64 after the rounding that `sketch` gives them."""
    if flat.dtype.kind in "iub":
        return flat.astype(np.float32).astype(np.float64)
    wide = flat.astype(np.float64)
    if largest is None or not math.isfinite(largest):
        wide[~np.isfinite(wide)] = 0.0
        largest = largest_of(wide)
    if flat.dtype != np.float64:
        return wide
    scaled = _exponent_for(largest)
    return np.ldexp(np.ldexp(wide, -scaled).astype(np.float32).astype(np.float64), scaled)


def is_summed_unscaled(largest: float) -> bool:
    """Return whether float32 holds the sums of values up to a finite largest one as they are."""
    return not _exponent_for(largest)


def _exponent_for(largest: float) -> int:
    """Return by which power of two values are divided so that float32 can hold their sums."""
    if _SMALL < largest < _LARGE or not largest:
        return 0
    return math.frexp(largest)[1]


class _Scratch(threading.local):
    """The memory that sketches are computed in; autograd computes gradients in threads of its own."""

    def __init__(self) -> None:
        self.products = np.empty(_GROUP, np.float32)
        # The last element stays 0: what lies in slots that have no column.
        self.sums = np.zeros(_TABLE * ROW + 1, np.float32)


_scratch = _Scratch()


def _sketch_chunk(piece: Array, chunk: int, offset: int) -> Array:
    """Return the sketch of values that begin at an offset in a chunk of 16 blocks."""
    signs, columns = _tables(chunk)
    products, sums = _scratch.products, _scratch.sums
    end = offset + piece.size
    first_block, last_block = offset // BLOCK, -(-end // BLOCK)
    for block in range(first_block, last_block, _TOGETHER):
        begin, count = block * BLOCK, min(_TOGETHER, last_block - block)
        lower, upper = max(offset, begin), min(end, begin + count * BLOCK)
        if upper - lower < count * BLOCK:
            products[: lower - begin] = 0
            products[upper - begin : count * BLOCK] = 0
        within = slice(lower - begin, upper - begin)
        np.multiply(
            piece[lower - offset : upper - offset], _signs_of_group()[within],
            out=products[within], casting="same_kind",
        )  # fmt: skip
        np.matmul(
            signs[block : block + count],
            products[: count * BLOCK].reshape(count, ROWS, ROW),
            out=sums[block * ROW : (block + count) * ROW].reshape(count, 1, ROW),
        )
    # No place is out of range: to say so takes two thirds of the time.
    moved = sums.take(columns[first_block:last_block], mode="wrap").reshape(-1, BUCKETS)
    # A product with at most 128 ones takes half the time of a sum; it is too small for OpenBLAS's threads.
    buckets: Array = _ONES[: len(moved)] @ moved.astype(np.float64)
    return buckets


@lru_cache(maxsize=1)
def _signs_of_group() -> Array:
    return np.tile(fixed_signs(), _TOGETHER)


@lru_cache(maxsize=256)
def _tables(chunk: int) -> tuple[Array, Array]:
    """Return the signs of a chunk's rows, `(16, 1, 16)`, and where in its sums each bucket's terms are.

    256 tables are 16 MB, and those of 33 million elements.
    """
    blocks = np.arange(chunk * _TABLE, (chunk + 1) * _TABLE, dtype=np.int64)
    columns = columns_in_buckets(blocks)
    places = columns + np.arange(_TABLE)[:, None, None] * ROW
    places[columns >= ROW] = _TABLE * ROW
    return row_signs(blocks)[:, None], places.reshape(_TABLE, GROUPS * BUCKETS)
