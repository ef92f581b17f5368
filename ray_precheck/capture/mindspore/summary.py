"""Max, Min, Mean and Norm of one tensor, as msprobe defines them for MindSpore.

Comes in: a tensor. Goes out: a `TensorSummary`, or None for a tensor without values (empty, fp8, not yet
initialised).

msprobe 26.2 (`mindspore_processor.get_stat_info`): bool tensors have any and all, 0-d tensors their value
four times, complex ones the statistics of the absolute values; integers and float64 have all four. There they
are computed by MindSpore's operators, of which the CPU lacks the norm; here by numpy from the values on
the host, with sums in float64.
"""

import math
from typing import Any

import mindspore as ms
import numpy as np

from ray_precheck.capture.writing.elements import TensorSummary
from ray_precheck.numerics.arrays import CACHED_ELEMENTS, pieces

# numpy on the host has no such type.
_WITHOUT_VALUES = frozenset({"Float8E4M3FN", "Float8E5M2", "HiFloat8", "Int4", "QInt4x2"})


def values_on_host(tensor: ms.Tensor) -> np.ndarray[Any, Any] | None:
    """Return the values of a tensor on the host, bfloat16 as float32; None where there are none.

    A parameter whose initial values are not drawn yet has none: to draw them would move the random state.
    """
    if tensor.has_init or str(tensor.dtype) in _WITHOUT_VALUES:
        return None
    values = np.asarray(tensor.asnumpy())
    return values.astype(np.float32) if tensor.dtype == ms.bfloat16 else values


def summary_of(values: np.ndarray[Any, Any] | None) -> TensorSummary | None:
    """Return the statistics of values on the host."""
    if values is None or not values.size:
        return None
    if values.dtype == np.bool_:
        return TensorSummary(bool(values.any()), bool(values.all()))
    total = squares = 0.0
    # The script may have made errors of warnings.
    with np.errstate(all="ignore"):
        if values.dtype.kind == "c":
            values = np.abs(values)
        if not values.ndim:
            single = values.item()
            return TensorSummary(single, single, single, single)
        flat = np.ascontiguousarray(values).reshape(-1)
        for place in pieces(flat.size, CACHED_ELEMENTS):
            piece = flat[place].astype(np.float64)
            total += float(np.add.reduce(piece))
            squares += float(np.dot(piece, piece))
    mean, norm = total / flat.size, math.sqrt(squares)
    return TensorSummary(float(flat.max()), float(flat.min()), mean, norm)
