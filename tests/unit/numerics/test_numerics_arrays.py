"""Pieces, values that are the same, and sums of squares."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.numerics.arrays import (
    CHUNK_ELEMENTS,
    add_squares,
    l2_norm,
    pieces,
    root_mean_square,
    same_values,
)

pytestmark = pytest.mark.unit


@given(st.integers(0, 60), st.integers(1, 9))
def test_pieces_cover_all_elements_once_and_in_order(count: int, size: int) -> None:
    found = list(pieces(count, size))
    assert [i for piece in found for i in range(piece.start, piece.stop)] == list(range(count))
    assert all(piece.stop - piece.start == size for piece in found[:-1])
    assert all(one.stop == other.start for one, other in pairwise(found))


def test_pieces_are_chunks_where_no_size_is_given() -> None:
    assert list(pieces(CHUNK_ELEMENTS + 1)) == [
        slice(0, CHUNK_ELEMENTS),
        slice(CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1),
    ]


def test_nan_is_the_same_as_nan_and_infinity_with_its_own_sign_alone() -> None:
    nan, inf = math.nan, math.inf
    one = np.array([nan, nan, inf, inf, -inf, 0.0, 1.0])
    other = np.array([nan, 1.0, inf, -inf, -inf, -0.0, 2.0])
    assert same_values(one, other).tolist() == [True, False, True, False, True, True, False]
    assert same_values(np.array([complex(nan, 1)]), np.array([complex(2, nan)])).all()
    assert same_values(np.array([1, 2]), np.array([1, 3])).tolist() == [True, False]


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_sums_of_squares_neither_overflow_nor_vanish(size: float) -> None:
    values = np.array([3.0, -4.0]) * size
    assert l2_norm(values) == l2_norm(values, 4 * size) == pytest.approx(5 * size)
    assert root_mean_square(values) == pytest.approx(5 * size / math.sqrt(2))
    scale, squares = add_squares(*add_squares(0.0, 0.0, np.abs(values[:1])), np.abs(values[1:]))
    assert scale * math.sqrt(squares) == pytest.approx(5 * size)


@pytest.mark.parametrize("values", [np.zeros(0), np.zeros(3)])
def test_the_norm_of_nothing_is_0(values: np.ndarray) -> None:
    assert l2_norm(values) == root_mean_square(values) == 0.0
    assert add_squares(0.0, 0.0, values) == (0.0, 0.0)


def test_the_size_of_complex_values_counts() -> None:
    assert root_mean_square(np.array([3 + 4j])) == 5.0


def test_an_infinite_error_makes_the_sum_infinite() -> None:
    scale, squares = add_squares(1.0, 1.0, np.array([math.inf]))
    assert scale * math.sqrt(squares) == math.inf
