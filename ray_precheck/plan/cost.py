"""What a call is expected to cost, from the raw JSON of its records.

Comes in: raw records. Goes out: seconds on one CPU core, good for ordering and for batch sizes and
nothing else. Called by the planner for every call of a dump, so nothing is decoded.
"""

import re

from ray_precheck.schema.record import ApiName

_SHAPE = re.compile(rb'"shape"\s*:\s*\[([0-9,\s]*)\]')
# Measured on the CPU captures that the repository ships, one core of a shared machine, +-50 %.
_PER_CALL_S = 1.2e-3
_PER_GRADIENT_S = 1.5e-3
_PER_ELEMENT_S = 60e-9
_PER_FLOP_S = 0.15e-9
_LARGEST_S = 1e6
_MOST_ELEMENTS = 1 << 63
_PRODUCTS = ("matmul", "linear", "bmm", "mm", "conv", "einsum", "attention", "dense", "dot")


def estimate_cost(name: ApiName, forward: bytes, backward: bytes | None) -> float:
    """Return the seconds that checking a call takes, device and bench together.

    Elements of all tensors are counted once; sums of products count 2 k floating-point operations
    an output element, with k**2 = |A| |B| / |C| as for a product of matrices A (m,k) and B (k,n).
    """
    sizes = [_elements(found) for found in _SHAPE.findall(forward)]
    elements = float(sum(sizes))
    cost = _PER_CALL_S
    passes = 1
    if backward is not None:
        elements += sum(_elements(found) for found in _SHAPE.findall(backward))
        cost += _PER_GRADIENT_S
        passes = 3
    cost += elements * _PER_ELEMENT_S
    if len(sizes) > 2 and any(part in name.api for part in _PRODUCTS):
        left, right, out = float(sizes[0]), float(sizes[1]), float(max(sizes[-1], 1))
        inner = (left * right / out) ** 0.5
        cost += passes * 2.0 * out * inner * _PER_FLOP_S
    return min(cost, _LARGEST_S)


def _elements(shape: bytes) -> int:
    count = 1
    for extent in re.split(rb"[,\s]+", shape.strip()):
        # More digits than this are no tensor that fits anywhere; int() of them could take minutes.
        text = extent.strip()[:19]
        count *= int(text) if text else 1
    return min(count, _MOST_ELEMENTS)
