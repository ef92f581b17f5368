"""Where two tensors differ: bins and blocks against values worked out by hand."""

import itertools
import math

import numpy as np
import pytest

from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.numerics.arrays import CHUNK_ELEMENTS
from ray_precheck.running.tensor_views import ShownDifference, TensorBudget, difference_of_tensors
from ray_precheck.schema.dtypes import Array

pytestmark = pytest.mark.unit


def tensor(values: Array, dtype: str = "float32") -> MappedTensor:
    return MappedTensor(dtype, values.shape, values.reshape(-1))


def difference(ours: Array, theirs: Array, most: int = 1 << 30) -> ShownDifference:
    return difference_of_tensors("output.0", tensor(ours), tensor(theirs), TensorBudget(most))


def test_what_is_not_finite_on_both_sides_alike_is_equal() -> None:
    golden = np.array([[1.0, np.nan, np.inf, -np.inf], [1.0, 1.0, 1.0, 1.0]], np.float32)
    ours = golden.copy()
    ours[1] = [1.0, np.nan, np.inf, 1.01]
    found = difference(ours, golden)
    assert found.blocks is not None
    assert found.histogram is not None
    assert found.blocks.values[0].tolist() == [0, 0, 0, 0]
    assert found.blocks.values[1, :3].tolist() == [0, math.inf, math.inf]
    assert "5 of 8 are equal" in found.histogram.title
    assert "2 are NaN or infinite on one side, or beyond 1e+06" in found.histogram.title
    assert sum(found.histogram.counts) == 1


@pytest.mark.parametrize(
    "shape",
    [(), (1,), (7,), (40, 3), (2, 3, 50), (33, 17), (CHUNK_ELEMENTS + 5,), (3, CHUNK_ELEMENTS + 5)],
)
def test_blocks_are_the_largest_of_what_they_hold(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    golden = np.asarray(rng.standard_normal(shape), np.float32)
    ours = golden + np.asarray(rng.standard_normal(shape) ** 9 * 1e-4, np.float32)
    found = difference(ours, golden)
    assert found.blocks is not None
    assert found.histogram is not None
    columns = shape[-1] if shape else 1
    wide = golden.astype(np.float64)
    apart = np.abs(ours.astype(np.float64) - wide) / np.sqrt(np.mean(wide**2))
    table = apart.reshape(-1, columns)
    rows = _cuts(table.shape[0])
    expected = [
        [table[top:bottom, left:right].max() for left, right in _cuts(columns)]
        for top, bottom in rows
    ]
    np.testing.assert_allclose(found.blocks.values, expected, rtol=1e-6)
    edges = np.array(found.histogram.edges)
    np.testing.assert_array_equal(found.histogram.counts, np.histogram(apart, edges)[0])


def _cuts(length: int) -> list[tuple[int, int]]:
    """Return where the blocks of a dimension begin and end."""
    blocks = min(16, length)
    edges = [length * block // blocks for block in range(blocks + 1)]
    return list(itertools.pairwise(edges))


def test_more_elements_than_may_be_read_are_told() -> None:
    budget = TensorBudget(10)
    values = np.ones(8, np.float32)
    assert difference_of_tensors("a", tensor(values), tensor(values), budget).histogram is not None
    found = difference_of_tensors("b", tensor(values), tensor(values), budget)
    assert found == ShownDifference(missing="b has 8 elements, more than are read to be drawn")


def test_other_shapes_and_nothing_at_all() -> None:
    assert "other shapes" in difference(np.ones(3), np.ones(4)).missing
    assert difference(np.ones((0, 3)), np.ones((0, 3))) == ShownDifference()


@pytest.mark.parametrize("dtype", ["bool", "int64", "complex64"])
def test_numbers_of_all_kinds_are_drawn(dtype: str) -> None:
    golden = np.array([0, 1, 1, 0]).astype(dtype)
    ours = np.array([0, 1, 1, 1]).astype(dtype)
    found = difference_of_tensors("x", tensor(ours, dtype), tensor(golden, dtype), TensorBudget())
    assert found.blocks is not None
    np.testing.assert_allclose(found.blocks.values, [[0, 0, 0, math.sqrt(2)]])
