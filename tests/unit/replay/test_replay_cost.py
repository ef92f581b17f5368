"""What a call is expected to cost, from raw JSON."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.replay.planner import estimate_load
from ray_precheck.schema.record import ApiName

pytestmark = pytest.mark.unit


def raw(*shapes: tuple[int, ...]) -> bytes:
    tensors = [{"type": "torch.Tensor", "shape": shape, "Max": 1.0} for shape in shapes]
    return json.dumps({"input_args": tensors[:-1], "output": tensors[-1:]}).encode()


def cost(api: str, forward: bytes, backward: bytes | None = None) -> float:
    return estimate_load(ApiName("Torch", api, 0), forward, backward)[0]


def test_a_call_without_tensors_still_costs_something() -> None:
    assert 0.0 < cost("add", b"{}") < 0.1


def test_more_elements_cost_more() -> None:
    costs = [cost("add", raw((size,), (size,))) for size in (1, 10**4, 10**6, 10**8)]
    assert costs == sorted(set(costs))


def test_elements_are_counted_over_all_dimensions() -> None:
    assert cost("add", raw((20, 30, 40))) == cost("add", raw((24_000,)))
    assert cost("add", raw((0, 10**9))) == cost("add", raw((0,)))


def test_a_scalar_tensor_is_one_element() -> None:
    assert cost("add", raw(())) == cost("add", raw((1,)))


def test_a_backward_record_costs_extra() -> None:
    forward = raw((10, 10), (10, 10))
    assert cost("add", forward) < cost("add", forward, b"{}") < cost("add", forward, forward)


@pytest.mark.parametrize("api", ["matmul", "linear", "bmm", "conv2d", "linalg.multi_dot"])
def test_products_cost_more_than_their_elements(api: str) -> None:
    forward = raw((1000, 1000), (1000, 1000), (1000, 1000))
    plain, product = cost("add", forward), cost(api, forward)
    # 2 m k n operations; k is seen in the sizes.
    assert product - plain == pytest.approx(2e9 * 0.15e-9, rel=0.01)
    assert cost(api, forward, b"{}") - cost("add", forward, b"{}") == pytest.approx(
        3 * (product - plain)
    )


def test_a_narrow_product_costs_less_than_a_wide_one_of_the_same_output() -> None:
    narrow = cost("matmul", raw((1000, 1), (1, 1000), (1000, 1000)))
    assert narrow < cost("matmul", raw((1000, 100), (100, 1000), (1000, 1000)))


def test_blanks_in_the_json_do_not_matter() -> None:
    tight, wide = b'{"shape":[2,3]}', b'{"shape" :\n [ 2 ,\t3 ]}'
    assert cost("add", tight) == cost("add", wide)


def test_a_product_with_an_empty_output_is_counted() -> None:
    assert math.isfinite(cost("matmul", raw((0, 4), (4, 0), (0, 0))))


def test_a_shape_of_absurd_extents_has_a_cost_that_can_be_sorted() -> None:
    assert cost("add", raw((10**30, 10**30))) <= 1e6
    assert cost("add", raw((int("9" * 4000),))) <= 1e6


@pytest.mark.parametrize("api", ["add", "matmul"])
def test_a_shape_of_many_absurd_extents_has_the_largest_cost(api: str) -> None:
    shape = (10**18,) * 20
    assert cost(api, raw(shape, shape, shape)) == 1e6


def test_a_broken_shape_does_not_stop_the_planning() -> None:
    assert cost("add", b'{"shape": [1 2]}') > 0


def test_decoding_costs_from_64_kibibytes_on() -> None:
    plain, free, longer = (b"{}".ljust(size) for size in (2, 65536, 65536 + 1000))
    assert cost("add", free) == cost("add", plain)
    # 20 ns a byte, of either record.
    assert cost("add", longer) - cost("add", free) == pytest.approx(20e-6)
    assert cost("add", plain, longer) - cost("add", plain, free) == pytest.approx(20e-6)


def test_the_bytes_are_those_of_outputs_and_gradients() -> None:
    name, forward, backward = ApiName("Torch", "add", 0), raw((9, 9), (5, 2)), raw((9,), (3,))
    assert estimate_load(name, forward, None)[1] == 40
    assert estimate_load(name, forward, backward)[1] == 52


def test_a_product_needs_two_tensors_and_an_output() -> None:
    two = raw((1000, 1000), (1000, 1000))
    assert cost("matmul", two) == cost("add", two)


def test_the_inner_extent_of_a_product_is_seen_in_its_output() -> None:
    # 1000 x 10 times 10 x 20: 2 * 1000 * 20 * 10 operations of 0.15 ns.
    forward = raw((1000, 10), (10, 20), (1000, 20))
    assert cost("matmul", forward) - cost("add", forward) == pytest.approx(60e-6)


EXTENTS = st.integers(0, 10**9)
SHAPES = st.lists(st.lists(EXTENTS, max_size=5).map(tuple), min_size=1, max_size=5)


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(["add", "matmul", "conv2d"]), SHAPES, st.booleans())
def test_every_cost_is_a_positive_number_within_its_limit(
    api: str, shapes: list[tuple[int, ...]], has_backward: bool
) -> None:
    forward = raw(*shapes)
    found = cost(api, forward, forward if has_backward else None)
    assert 0.0 < found <= 1e6
