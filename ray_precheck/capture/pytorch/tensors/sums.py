"""The ends and the sums of float32 and half types in a tensor's memory.

Comes in: a contiguous tensor on the CPU. Goes out: an `EndsAndSums`. Called for the statistics of
each tensor.

The compiled pass reads the memory once, and its sums are float64 (`numerics.one_pass`). Where it was not
built, numpy finds the ends, and the sums are float32 as torch's, float64 where those overflow; large ones are
torch's own, since the linear algebra of numpy would wake a thread on each core. Both ways find the same ends,
and sums that differ in the last digits of float32.
"""

import math

import numpy as np
import torch

from ray_precheck.capture.pytorch.tensors.memory import borrowed_array, first_address
from ray_precheck.numerics.arrays import pieces
from ray_precheck.numerics.one_pass import BFLOAT16, COMPILED, FLOAT16, FLOAT32, EndsAndSums
from ray_precheck.schema.dtypes import Array

# The dtypes whose memory is read in one pass.
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
# Values whose squares may vanish or overflow in float32 although they are finite.
_SMALL, _LARGE = 1e-30, 1e37
_PIECE = 1 << 17  # 512 KiB of float32: they stay in the second level's cache of a core
_FEW = 1 << 13  # OpenBLAS, which numpy has, uses threads for products of more than 10,000 elements
_ONES = np.ones(_FEW, np.float32)
_highest, _lowest = np.maximum.reduce, np.minimum.reduce


def sums_of(tensor: torch.Tensor) -> EndsAndSums:
    """Return the ends and the sums of a contiguous tensor on the CPU, of `KINDS`, that has elements.

    Raises:
        RuntimeError: the tensor's memory was taken away.
    """
    if COMPILED is None:
        return _sums_without(tensor)
    place = first_address(tensor)
    return EndsAndSums(*COMPILED.sums(place, tensor.numel(), KINDS[tensor.dtype]))


def _sums_without(tensor: torch.Tensor) -> EndsAndSums:
    """Return the same without the extension; float32 is read once in pieces that stay in the core's cache.

    Each piece is summed in float32, the pieces in float64, so that the error does not grow with the size
    of the tensor.
    """
    flat = tensor if tensor.dtype is torch.float32 else tensor.float()
    values = borrowed_array(flat)
    if values.size <= _FEW:
        found = _of_few(values)
    else:
        flat = flat.detach().view(-1)
        found = _of_pieces(flat, values) if values.size > _PIECE else _of_piece(flat, values)
    if found is None:
        return EndsAndSums(*_ends(values), *_wide_sums(values))
    if found.max and found.min:
        return found
    return EndsAndSums(*_ends(values), found.total, found.squares)


def _ends(values: Array) -> tuple[float, float]:
    """Return the largest and the smallest value; numpy takes either zero for the larger one."""
    top, bottom = float(_highest(values)), float(_lowest(values))
    if not (top and bottom):
        # No value lies beyond the zeros then, and these have the sign bit or not.
        bits = values.view(np.int32)
        top = top or (0.0 if _highest(bits) >= 0 else -0.0)
        bottom = bottom or (-0.0 if _lowest(bits) < 0 else 0.0)
    return top, bottom


def _of_few(values: Array) -> EndsAndSums | None:
    """Return what is found in a few values; None where float32 does not hold the sum of squares.

    A product with ones takes a quarter of the time of numpy's `sum`.
    """
    highest, lowest = float(_highest(values)), float(_lowest(values))
    if not (lowest > -_LARGE and highest < _LARGE):
        return None
    # `np.dot` asks first for overrides, which takes as long again.
    squares = float(values.dot(values))
    if not _SMALL < squares < _LARGE and (highest or lowest):
        return None
    return EndsAndSums(highest, lowest, float(values.dot(_ONES[: values.size])), squares)


def _of_piece(flat: torch.Tensor, values: Array) -> EndsAndSums | None:
    """Return the same of more values; the product comes first, because it waits least for values that are
    not in the cache yet."""
    squares, total = torch.dot(flat, flat).item(), flat.sum().item()
    if not _SMALL < squares < _LARGE and squares:
        return None
    highest, lowest = float(_highest(values)), float(_lowest(values))
    if not squares and (highest or lowest):
        return None
    return EndsAndSums(highest, lowest, total, squares)


def _of_pieces(flat: torch.Tensor, values: Array) -> EndsAndSums | None:
    top, bottom, total, squares = -math.inf, math.inf, 0.0, 0.0
    for place in pieces(values.size, _PIECE):
        found = _of_piece(flat[place], values[place])
        if found is None:
            return None
        top, bottom = max(top, found.max), min(bottom, found.min)
        total += found.total
        squares += found.squares
    return EndsAndSums(top, bottom, total, squares)


def _wide_sums(values: Array) -> tuple[float, float]:
    """Return the sums in float64."""
    # The script may have asked for exceptions, and what is in new memory may be a signalling NaN.
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        if wide.size <= _FEW:
            squares = float(wide.dot(wide))
        else:  # numpy's product would wake threads, which then wait for more in a busy loop
            flat = torch.from_numpy(wide)
            squares = torch.dot(flat, flat).item()
        return float(np.add.reduce(wide)), squares
