"""The ends and the sums of values in memory, in one pass over it.

Comes in: the address of contiguous float32, bfloat16 or float16 values. Goes out: the largest and the
smallest one, their sum and the sum of their squares. Called for each tensor of a capture, of either
framework.

A small extension in C (`_one_pass.c`) does it; where it was not built, numpy gives the same numbers, bit by
bit: ends are exact (NaN where there is one, +0 above -0), and sums are float64 in 16 lanes, lane i of the
elements i, i + 16, ...; lanes are then added by halves. Squares of float32 are exact in float64 and cannot
overflow there. The compiled pass takes 0.12 ns a value in the cache, 0.13 us a call; numpy takes some
1.5 ns and 25 us. `COMPILED` is the extension, which finds sketch and health in the same pass (`everything`).
"""

import ctypes
import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.numerics.arrays import pieces

COMPILED: ModuleType | None
try:
    from ray_precheck.numerics import _one_pass
except ImportError:  # it was installed without a compiler
    COMPILED = None
else:
    COMPILED = _one_pass
# How values are stored, by the numbers that the extension has for it.
FLOAT32, BFLOAT16, FLOAT16 = range(3)
KINDS_OF_NUMPY = {np.dtype(np.float32): FLOAT32, np.dtype(np.float16): FLOAT16}
_LANES = 16
_PIECE = 1 << 14  # 128 KiB of float64
_STORED = {FLOAT32: np.float32, BFLOAT16: np.uint16, FLOAT16: np.float16}


class EndsAndSums(NamedTuple):
    """The ends of some values, their sum and the sum of their squares."""

    max: float
    min: float
    total: float
    squares: float


def sums_by_numpy(address: int, count: int, kind: int) -> tuple[float, float, float, float]:
    """Return what `sums` does, without the extension."""
    stored = np.dtype(_STORED[kind])
    memory: Any = (ctypes.c_char * (count * stored.itemsize)).from_address(address)
    values: np.ndarray[Any, Any] = np.ndarray((count,), stored, memory)
    top, bottom = -math.inf, math.inf
    totals, squares = np.zeros(_LANES), np.zeros(_LANES)
    # The script may have asked for exceptions, and what is in new memory may be a signalling NaN.
    with np.errstate(all="ignore"):
        for place in pieces(count, _PIECE):
            piece = values[place]
            if kind == BFLOAT16:
                piece = np.left_shift(piece.astype(np.uint32), np.uint32(16)).view(np.float32)
            top, bottom = np.maximum(top, piece.max()), np.minimum(bottom, piece.min())
            # The lanes so far are the first row, so that each lane is summed in order.
            rows = np.zeros((1 + -(-piece.size // _LANES), _LANES))
            rows.reshape(-1)[_LANES : _LANES + piece.size] = piece
            own = rows * rows
            rows[0], own[0] = totals, squares
            totals, squares = np.add.reduce(rows, axis=0), np.add.reduce(own, axis=0)
        if top == 0 or bottom == 0:
            top, bottom = _signed_zeros(values, float(top), float(bottom))
        return float(top), float(bottom), _folded(totals), _folded(squares)


def _signed_zeros(values: Any, top: float, bottom: float) -> tuple[float, float]:
    """Return ends of which one is zero, with the sign of the largest or the smallest zero."""
    if values.dtype == np.uint16:
        zeros = values[values & 0x7FFF == 0] != 0
    else:
        zeros = np.signbit(values[values == 0])
    if top == 0:
        top = -0.0 if zeros.all() else 0.0
    if bottom == 0:
        bottom = -0.0 if zeros.any() else 0.0
    return top, bottom


def _folded(lanes: Any) -> float:
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = lanes[:half] + lanes[half:]
    return float(lanes[0])


# `sums(address, count, kind)` returns the fields of `EndsAndSums`. It has no function around it, which would
# take as long as the call.
sums = sums_by_numpy if COMPILED is None else _one_pass.sums


def sums_of_array(values: "np.ndarray[Any, Any]") -> EndsAndSums:
    """Return the sums of a contiguous array of a dtype in `KINDS_OF_NUMPY`, which has elements."""
    return EndsAndSums(*sums(values.ctypes.data, values.size, KINDS_OF_NUMPY[values.dtype]))
