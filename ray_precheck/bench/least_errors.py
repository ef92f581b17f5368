"""The least error of an honest float32 product, from its operands alone.

Comes in: the given tensors of a call, and one exact result. Goes out: lower bounds of the error that
`bench.rounded_sums` gives to that result, or None where it is no product of two of the tensors. Called by
`check.bench`: a result whose error the bounds explain needs no other implementation, and no second product.

For the product B of X and Y, with k terms each, `Accumulation.with_errors` takes |x_i|^2 |y_j|^2 / k for the
sum of the squares of the terms of b_ij. With a accumulators the square of its deviation is at least
u^2 / 3 (k / (3 a^2) b_ij^2 + 1 / (2 a) max(0, |x_i|^2 |y_j|^2 - b_ij^2)), and no error is smaller than its
deviation, while 1 in 370 is 3 times as large. So the norms of rows and columns tell, and no element has to be
looked at.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from ray_precheck.bench.rounded_sums import ACCUMULATORS, FLOAT32_UNIT
from ray_precheck.numerics.arrays import CHUNK_ELEMENTS, pieces
from ray_precheck.schema.dtypes import Array

# Of fewer elements the mean of squares may be small by luck, or none may be 3 deviations off: of 16,384 none
# is so by a chance of 1e-19. Sums of fewer terms have little error beside the last rounding.
_LEAST_ELEMENTS, _LEAST_TERMS = 1 << 14, 64
# Smaller matrices of a stack are computed sooner than they are recognized.
_LEAST_STACKED = 1 << 12
_DEVIATIONS = 3.0
# Where few elements are nearly all of the norm, the last rounding may bring these nearer.
_SHARE = 0.8
# A result in float64 differs from the product by so much of the norms at most, and one of which a step was
# rounded to float32 by far more.
_SAME = 1e-12


def errors_by_norms(tensors: Sequence[Array], result: Array) -> tuple[float, float] | None:
    """Return the least RMSE and the least largest error of a composed implementation of a float32 product.

    None where `result`, float64, is no product of two of the `tensors`, float32, with or without a bias that
    is one of them, too, or is small. Tensors of more dimensions count as matrices of rows, as given or
    transposed, or as stacks of matrices. That the result is the product is shown with a vector of random
    signs (Freivalds): one with a wrong row passes by a chance of one half.
    """
    if result.ndim < 2 or result.size < _LEAST_ELEMENTS:
        return None
    rows = result.reshape(-1, result.shape[-1])
    biases = [each for each in tensors if each.shape == rows.shape[1:]]
    sums = chain([rows], (rows - bias for bias in biases))
    found = (_of_product(tensors, each) for each in sums)
    whole = next((each for each in found if each is not None), None)
    return _of_products(tensors, result) if whole is None and result.ndim > 2 else whole


def _of_products(tensors: Sequence[Array], stack: Array) -> tuple[float, float] | None:
    """Return the least errors of a stack of matrices, None where one is no product of its two ones."""
    shape = stack.shape[:-2]
    alike = [each for each in tensors if each.ndim == stack.ndim and each.shape[:-2] == shape]
    if len(alike) < 2 or stack[0].size < _LEAST_STACKED:
        return None
    squares, largest = 0.0, 0.0
    for place in np.ndindex(shape):
        found = _of_product([each[place] for each in alike], stack[place])
        if found is None:
            return None
        squares, largest = squares + found[0] ** 2, max(largest, found[1])
    rmse = math.sqrt(squares / math.prod(shape))
    return rmse, max(rmse, largest)


def _of_product(tensors: Sequence[Array], wanted: Array) -> tuple[float, float] | None:
    """Return the least errors of a matrix, None where it is no product of two of the tensors."""
    signs = np.random.Generator(np.random.Philox(key=2)).choice([-1.0, 1.0], wanted.shape[1])
    for left, right in _fitting(tensors, wanted.shape):
        error = float(np.linalg.norm(_times(wanted, signs) - _times(left, _times(right, signs))))
        rows, columns = _row_squares(left), _row_squares(right.T)
        norms = float(np.sum(rows)) * float(np.sum(columns))
        if not (math.isfinite(norms) and error <= _SAME * math.sqrt(norms * len(signs))):
            continue
        of_result = float(np.sum(_row_squares(wanted)))
        squares = left.shape[1] / (3 * ACCUMULATORS**2) * of_result
        squares += max(0.0, norms - of_result) / (2 * ACCUMULATORS)
        # In sums of so many terms b_ij^2 has the larger factor.
        large = _reached(rows, columns, _LEAST_ELEMENTS) / (2 * ACCUMULATORS)
        scale = FLOAT32_UNIT / math.sqrt(3.0)
        rmse = _SHARE * scale * math.sqrt(squares / wanted.size)
        return rmse, max(rmse, _DEVIATIONS * scale * math.sqrt(large))
    return None


def _fitting(tensors: Sequence[Array], shape: tuple[int, ...]) -> Iterator[tuple[Array, Array]]:
    """Yield the pairs, as given or transposed, whose product has a shape, and terms enough."""
    matrices = [each.reshape(-1, each.shape[-1]) for each in tensors if each.ndim > 1]
    views = [view for each in matrices for view in (each, each.T)]
    for left in views:
        count = left.shape[1]
        if left.shape[0] == shape[0] and count >= _LEAST_TERMS:
            yield from ((left, right) for right in views if right.shape == (count, shape[1]))


def _reached(rows: Array, columns: Array, count: int) -> float:
    """Return what at least so many products of a number of rows and one of columns reach: the largest of what
    those of the a largest and the b largest ones reach, for all a and b whose product is the count."""
    rows, columns = np.sort(rows)[::-1], np.sort(columns)[::-1]
    taken = np.arange(-(-count // len(columns)), len(rows) + 1)
    return float(np.max(rows[taken - 1] * columns[-(-count // taken) - 1], initial=0.0))


def _times(matrix: Array, vector: Array) -> Array:
    """Return a matrix times a vector, in float64, without a wide copy of the whole matrix."""
    if matrix.flags.c_contiguous:
        parts = [matrix[rows].astype(np.float64) @ vector for rows in _rows(matrix)]
        return np.concatenate(parts)
    found = np.zeros(len(matrix))
    for rows in _rows(matrix.T):
        found += vector[rows] @ matrix.T[rows].astype(np.float64)
    return found


def _row_squares(matrix: Array) -> Array:
    """Return the sum of the squares of each row, in float64."""
    if matrix.flags.c_contiguous:
        wide = (matrix[rows].astype(np.float64) for rows in _rows(matrix))
        return np.concatenate([np.einsum("ij,ij->i", part, part) for part in wide])
    found = np.zeros(len(matrix))
    for rows in _rows(matrix.T):
        found += np.square(matrix.T[rows].astype(np.float64)).sum(0)
    return found


def _rows(matrix: Array) -> Iterator[slice]:
    """Yield pieces of rows that stay in the core's cache."""
    return pieces(len(matrix), max(1, CHUNK_ELEMENTS // matrix.shape[1]))
