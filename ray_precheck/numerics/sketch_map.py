"""The map of a sketch: to which bucket, and with which sign, an element of a tensor goes.

Comes in: a global index, that is the element's place in the row-major order of the whole tensor, however
it is sharded. Goes out: a bucket of 64 and a sign, and the tables from which `sketch` and its twin for
torch devices compute whole ranges at the speed of memory. Nothing here depends on the seed of a run, on
a framework or on the version of numpy: sketches of other runs, hosts and devices can be subtracted.

The map of index i, with blocks of 16 rows of 509 elements:

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

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

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
