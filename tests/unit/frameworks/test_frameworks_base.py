"""Flattening of outputs and mapping of arguments."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.frameworks.base import flatten_outputs, map_leaves

pytestmark = pytest.mark.unit


class Tensor:
    """Stands for a tensor of a framework; equal only to itself."""


class Size(tuple[int, ...]):
    """Stands for torch.Size, a tuple of its own type."""


class SortResult(NamedTuple):
    values: Any
    indices: Any


A, B, C = Tensor(), Tensor(), Tensor()


def flat(value: Any) -> list[Any]:
    return flatten_outputs(value, lambda leaf: isinstance(leaf, Tensor))


@pytest.mark.parametrize(
    ("value", "leaves"),
    [
        (A, [A]),
        (None, [None]),
        (3, [3]),
        ("text", ["text"]),
        ((A, B), [A, B]),
        ([A, [B, (C,)]], [A, B, C]),
        (SortResult(A, B), [A, B]),
        ({"x": A, "y": (B, 2)}, [A, B, 2]),
        ((A, None, 3), [A, None, 3]),
    ],
)
def test_outputs_with_tensors_are_opened_in_order(value: Any, leaves: list[Any]) -> None:
    assert flat(value) == leaves


@pytest.mark.parametrize("value", [(), [], {}, (1, 2), [1, [2]], Size((2, 3)), {"a": 1}, ((), [])])
def test_containers_without_a_tensor_are_one_leaf(value: Any) -> None:
    found = flat(value)
    assert len(found) == 1
    assert found[0] is value


def test_a_size_beside_a_tensor_stays_one_leaf() -> None:
    size = Size((2, 3))
    found = flat((A, size, [1, 2]))
    assert found == [A, size, [1, 2]]
    assert found[1] is size


NESTED = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=10,
)


@settings(deadline=None, max_examples=60)
@given(NESTED)
def test_mapping_the_identity_changes_neither_values_nor_types(value: Any) -> None:
    assert repr(map_leaves(value, lambda leaf: leaf)) == repr(value)


@settings(deadline=None, max_examples=60)
@given(NESTED)
def test_leaves_are_converted_once_each_in_call_order(value: Any) -> None:
    seen: list[Any] = []
    map_leaves(value, seen.append)
    count = iter(range(1000))
    numbered = map_leaves(value, lambda leaf: next(count))
    in_order: list[Any] = []
    map_leaves(numbered, in_order.append)
    assert in_order == list(range(len(seen)))


def test_every_leaf_is_converted_where_it_stands() -> None:
    value = ([1, (2, 3)], {"k": [4], "l": None})
    assert map_leaves(value, lambda leaf: (leaf or 0) * 10) == ([10, (20, 30)], {"k": [40], "l": 0})


def test_the_argument_itself_is_not_changed() -> None:
    value = [[1], {"k": 2}]
    map_leaves(value, str)
    assert value == [[1], {"k": 2}]
