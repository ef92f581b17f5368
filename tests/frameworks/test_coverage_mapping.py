"""Rows of the mapping that the coverage run found wrong or missing, against MindSpore's own numbers.

The numbers are those of MindSpore 2.10 on the CPU, or of its documentation, not of torch.
"""

from typing import Any

import pytest
import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.mindspore.bench.mapping import resolve_mindspore
from ray_precheck.schema.record import ApiName

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]


def bench(name: str, *args: Any, **kwargs: Any) -> Any:
    prefix, _, api = name.partition(".")
    return resolve_mindspore(ApiName(prefix, api, 0))(*args, **kwargs)


def test_unique_values_come_in_the_order_of_their_first_place() -> None:
    values, places = bench("Functional.unique", torch.tensor([3, 1, 3, 2]))
    assert (values.tolist(), places.tolist()) == ([3, 1, 2], [0, 1, 0, 2])


def test_unique_values_are_padded_at_the_end() -> None:
    values, places = bench("Functional.unique_with_pad", torch.tensor([3, 1, 3, 2]), 0)
    assert (values.tolist(), places.tolist()) == ([3, 1, 2, 0], [0, 1, 0, 2])


@pytest.mark.parametrize("name", ["Functional.dot", "Tensor.dot"])
def test_dot_of_more_dimensions_is_that_of_numpy(name: str) -> None:
    assert bench(name, torch.ones(2, 3, 4), torch.ones(2, 4, 5)).shape == (2, 3, 2, 5)
    assert bench(name, torch.ones(4), torch.ones(4)).item() == 4.0


def test_the_complement_of_a_whole_number_is_logical() -> None:
    found = bench("Tensor.__invert__", torch.tensor([3, 0, -2]))
    assert found.tolist() == [False, True, False]


def test_the_complement_named_invert_is_bitwise() -> None:
    assert bench("Tensor.invert", torch.tensor([3, 0, -2])).tolist() == [-4, -1, 1]


@pytest.mark.parametrize(
    ("args", "kwargs", "divisor"),
    [
        ((0,), {}, 2),
        ((), {"axis": 0}, 2),
        ((0, 1), {}, 1),
        ((), {"dim": 0, "correction": 1}, 1),
        ((0,), {"correction": 0}, 2),
    ],
)
def test_std_divides_by_n_less_its_degrees_of_freedom(
    args: tuple[Any, ...], kwargs: dict[str, Any], divisor: int
) -> None:
    found = bench("Tensor.std", torch.tensor([[1.0], [3.0]]), *args, **kwargs)
    assert found.item() == pytest.approx((2 / divisor) ** 0.5)


@pytest.mark.parametrize("kwargs", [{"dim": 0}, {"dim": 0, "keepdim": True}])
def test_std_along_dim_without_a_correction_has_no_bench(kwargs: dict[str, Any]) -> None:
    with pytest.raises(NotCheckable, match="differs between MindSpore's devices"):
        bench("Tensor.std", torch.ones(3, 4), **kwargs)


@pytest.mark.parametrize("name", ["Tensor.index_fill_", "Tensor.index_add_"])
def test_in_place_operators_take_int32_indices(name: str) -> None:
    rest = (torch.ones(1, 2),) if name.endswith("add_") else (1.0,)
    tensor = torch.zeros(3, 2)
    bench(name, tensor, 0, torch.tensor([1], dtype=torch.int32), *rest)
    assert tensor.tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("hsplit", (2, 4, 2)), ("vsplit", (4, 2, 2)), ("dsplit", (2, 2, 4)), ("tensor_split", (4, 2))],
)
def test_splits_take_the_number_of_sections(name: str, shape: tuple[int, ...]) -> None:
    halves = bench(f"Functional.{name}", torch.ones(shape), 2)
    assert [half.numel() for half in halves] == [torch.ones(shape).numel() // 2] * 2
    thirds = bench(f"Functional.{name}", torch.ones(shape), indices_or_sections=[1, 3])
    assert len(thirds) == 3


def test_buckets_may_be_a_list() -> None:
    values = torch.tensor([0.5, 1.0, 2.5], dtype=torch.float64)
    assert bench("Functional.bucketize", values, [1.0, 2.0]).tolist() == [0, 0, 2]
    assert bench("Functional.bucketize", values, [1.0, 2.0], right=True).tolist() == [0, 1, 2]


def test_a_shape_may_be_a_tensor() -> None:
    assert bench("Functional.expand", torch.ones(1, 4), torch.tensor([3, 4])).shape == (3, 4)


def test_the_size_to_fold_into_may_be_a_tensor() -> None:
    columns, size = torch.rand(1, 8, 9), torch.tensor([4, 4])
    assert bench("Functional.fold", columns, size, [2, 2]).shape == (1, 2, 4, 4)
    assert bench("Tensor.fold", columns, (4, 4), (2, 2)).shape == (1, 2, 4, 4)


def test_the_extreme_of_an_empty_segment_is_unknown() -> None:
    rows = torch.tensor([[1.0], [3.0], [2.0]])
    ids = torch.tensor([0, 0, 1])
    assert bench("Functional.unsorted_segment_max", rows, ids, 2).tolist() == [[3.0], [2.0]]
    assert bench("Tensor.unsorted_segment_min", rows, ids, 2).tolist() == [[1.0], [2.0]]
    with pytest.raises(NotCheckable, match="empty"):
        bench("Functional.unsorted_segment_max", rows, ids, 3)


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
def test_mirrored_padding_has_the_edge_where_it_is_symmetric(mode: str) -> None:
    found = bench("Functional.mirror_pad", torch.tensor([1, 2, 3]), torch.tensor([[2, 1]]), mode)
    assert found.tolist() == ([3, 2, 1, 2, 3, 2] if mode == "REFLECT" else [2, 1, 1, 2, 3, 3])


def test_blocks_move_to_the_batch_and_back() -> None:
    image = torch.arange(20.0).reshape(1, 1, 4, 5)
    blocks = bench("Functional.space_to_batch_nd", image, [2, 2], [[0, 0], [0, 1]])
    assert blocks.shape == (4, 1, 2, 3)
    assert blocks[0, 0].tolist() == [[0, 2, 4], [10, 12, 14]]
    back = bench("Functional.batch_to_space_nd", blocks, [2, 2], [[0, 0], [0, 1]])
    assert torch.equal(back, image)


def test_a_batch_of_products_is_summed_along_one_axis() -> None:
    left, right = torch.rand(2, 3, 4), torch.rand(2, 4, 5)
    assert torch.allclose(bench("Functional.batch_dot", left, right), torch.bmm(left, right))
    flipped = bench("Functional.batch_dot", left, right.transpose(1, 2), (2, 2))
    assert torch.allclose(flipped, torch.bmm(left, right))


def test_bits_are_counted_in_twos_complement() -> None:
    bits = bench("Functional.population_count", torch.tensor([3, 0, -1], dtype=torch.int16))
    assert bits.tolist() == [2, 0, 16]
