"""The indices of generated sparse tensors, and the whole numbers of quantized ones.

Comes in: a storage as the dump describes it. Goes out: one with indices; the range of whole numbers. Called
by `inputs.generate`.
"""

import math
from dataclasses import replace

import numpy as np

from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import Quantized, Sparse, TensorSpec

# Draws for a line that is almost full find few new places; what these rounds leave is filled in order.
_MOST_ROUNDS = 16


def with_indices(storage: Sparse, generator: np.random.Generator) -> Sparse:
    """Return a sparse storage with as many different places, in each line between the fewest and the most.

    What a COO tensor has beyond its different places repeats some of them.
    """
    lines, width = storage.grid
    bounds = storage.fewest, storage.most
    if storage.layout == "coo":
        flat = _places(generator, lines, width, storage.distinct, bounds)
        if storage.nnz > len(flat):
            flat = np.concatenate([flat, generator.choice(flat, storage.nnz - len(flat))])
        if not storage.coalesced:
            generator.shuffle(flat)
        shape = storage.sparse_shape
        found = np.stack(np.unravel_index(flat, shape)) if shape else np.zeros((0, len(flat)))
        return replace(storage, indices=(found.astype(np.int64),))
    batch = storage.sparse_shape[:-2]
    compressed = np.zeros((math.prod(batch), lines + 1), np.int64)
    plain = np.zeros((math.prod(batch), storage.nnz), np.int64)
    for matrix in range(len(compressed)):
        flat = _places(generator, lines, width, storage.nnz, bounds)
        line, plain[matrix] = np.divmod(flat, max(width, 1))
        compressed[matrix, 1:] = np.cumsum(np.bincount(line, minlength=lines))
    return replace(
        storage,
        indices=(
            compressed.reshape(*batch, lines + 1),
            plain.reshape(*batch, storage.nnz),
        ),
    )


def _places(
    generator: np.random.Generator, lines: int, width: int, count: int, bounds: tuple[int, int]
) -> Array:
    """Return `(count,)` different places of a matrix, numbered row by row, in order."""
    wanted = _counts(generator, lines, count, bounds)
    found = np.zeros(0, np.int64)
    lacking = wanted
    for _ in range(_MOST_ROUNDS):
        line = np.repeat(np.arange(lines), lacking)
        if not len(line):
            return found
        found = np.union1d(found, line * width + generator.integers(width, size=len(line)))
        lacking = wanted - np.bincount(found // width, minlength=lines)
    rest = []
    for line in np.flatnonzero(lacking):
        taken = found[found // width == line] % width
        free = np.setdiff1d(np.arange(width), taken)
        rest.append(line * width + generator.choice(free, lacking[line], replace=False))
    return np.union1d(found, np.concatenate(rest)) if rest else found


def _counts(
    generator: np.random.Generator, lines: int, count: int, bounds: tuple[int, int]
) -> Array:
    """Return how many places each line has, `(lines,)`; some have the fewest, some the most if they can."""
    fewest, most = bounds
    counts = np.full(lines, fewest, np.int64)
    left = count - fewest * lines
    order = generator.permutation(lines)
    full = min(1, lines, left // max(most - fewest, 1))
    counts[order[:full]] = most
    left -= full * (most - fewest)
    while left > 0:
        open_lines = order[counts[order] < most]
        some = generator.choice(open_lines, min(left, len(open_lines)), replace=False)
        # As many at once as fit evenly: a matrix with long lines takes few rounds.
        step = max(1, min(left // len(open_lines), int((most - counts[some]).min())))
        counts[some] += step
        left -= step * len(some)
    return counts


def as_whole_numbers(spec: TensorSpec, storage: Quantized) -> TensorSpec:
    """Return the spec of the whole numbers of a quantized tensor, whose statistics are of what they mean."""
    if storage.axis is not None or spec.low is None or spec.high is None:
        return replace(spec, low=None, high=None, mean=None, norm=None)
    (scale,), (zero_point,) = storage.scale, storage.zero_point
    low, high = (round(float(end) / scale + zero_point) for end in (spec.low, spec.high))
    return replace(spec, low=low, high=high, mean=None, norm=None)
