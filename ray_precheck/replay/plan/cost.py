"""The expected cost of a call, estimated from the raw JSON of its records.

Comes in: raw records. Goes out: seconds on one CPU core and bytes, good for ordering, batch sizes
and the choice of the worker, and for nothing else. Called by the planner for every call of a dump,
so nothing is decoded.
"""

import functools
import re

from ray_precheck.schema.record import ApiName

_SHAPE = re.compile(rb'"shape"\s*:\s*\[([0-9,\s]*)\]')
# Measured on the CPU captures that the repository ships, one core of a shared machine, +-50 %.
_PER_CALL_S = 1.2e-3
_PER_GRADIENT_S = 1.5e-3
_PER_ELEMENT_S = 60e-9
_PER_FLOP_S = 0.15e-9
# The cost of decoding records that are longer than those of the other measurements, so that a batch
# of tiny tensors does not have a thousand megabytes of JSON.
_PER_BYTE_S = 20e-9
_FREE_BYTES = 1 << 16
_LARGEST_S = 1e6
_MOST_ELEMENTS = 1 << 63
_ELEMENT_BYTES = 4
_OUTPUT = b'"output"'
_PRODUCTS = ("matmul", "linear", "bmm", "mm", "conv", "einsum", "attention", "dense", "dot")


def estimate_load(name: ApiName, forward: bytes, backward: bytes | None) -> tuple[float, int]:
    """Return the seconds that checking a call takes, device and bench together, and the bytes of its
    outputs and gradients, taken as 32-bit ones.

    Elements of all tensors are counted once; sums of products count 2 k floating-point operations
    an output element, with k**2 = |A| |B| / |C| as for a product of matrices A (m,k) and B (k,n).
    """
    sizes = _sizes(forward)
    elements = float(sum(sizes))
    made = sum(_sizes(forward[forward.rfind(_OUTPUT) :]))
    cost = _PER_CALL_S + _decoding_s(forward)
    passes = 1
    if backward is not None:
        elements += sum(_sizes(backward))
        made += sum(_sizes(backward[backward.rfind(_OUTPUT) :]))
        cost += _PER_GRADIENT_S + _decoding_s(backward)
        passes = 3
    cost += elements * _PER_ELEMENT_S
    if len(sizes) > 2 and _is_product(name.api):
        left, right, out = float(sizes[0]), float(sizes[1]), float(max(sizes[-1], 1))
        inner = (left * right / out) ** 0.5
        cost += passes * 2.0 * out * inner * _PER_FLOP_S
    return min(cost, _LARGEST_S), min(made, _MOST_ELEMENTS) * _ELEMENT_BYTES


def _sizes(record: bytes) -> list[int]:
    """Return the elements of every tensor of a record."""
    return list(map(_elements, _SHAPE.findall(record)))


def _decoding_s(record: bytes) -> float:
    longer = len(record) - _FREE_BYTES
    return longer * _PER_BYTE_S if longer > 0 else 0.0


@functools.lru_cache(1024)
def _is_product(api: str) -> bool:
    return any(part in api for part in _PRODUCTS)


@functools.lru_cache(1 << 14)
def _elements(shape: bytes) -> int:
    """Return the elements of a shape; more of them, or more digits, than any tensor has count as
    the most: the product of 100,000 long numbers would take minutes."""
    count = 1
    for extent in shape.replace(b",", b" ").split():
        count = min(count * int(extent[:19]), _MOST_ELEMENTS)
        if count == 0:
            break
    return count
