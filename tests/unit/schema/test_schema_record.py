"""Records as nouns: whether `x[0, 1]` or `x[[0, 1]]` was called."""

import pytest

from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import Constant, SequenceSpec, TensorSpec, ValueSpec

pytestmark = pytest.mark.unit

X = TensorSpec("float32", (4, 5, 6))


def numbers(*values: int, is_list: bool = False) -> SequenceSpec:
    return SequenceSpec(tuple(map(Constant, values)), is_list)


@pytest.mark.parametrize(
    ("index", "value", "is_tuple"),
    [
        (numbers(1, -2), Constant(3.0), True),
        (numbers(1, -2), TensorSpec("float32", (6,)), True),
        (numbers(1, 2), TensorSpec("float32", (1, 6)), True),
        (numbers(1, 2), TensorSpec("float32", (2, 5, 6)), False),
        (numbers(3, 1, 2, 0), Constant(3.0), False),
        (numbers(1, 5), Constant(3.0), False),
        (numbers(1, 2, is_list=True), Constant(3.0), False),
        (SequenceSpec((Constant(slice(1, 2, None)), Constant(0))), Constant(3.0), True),
        (Constant(1), Constant(3.0), False),
    ],
)
def test_what_is_written_to_an_index_tells_whether_it_is_a_tuple(
    index: ValueSpec, value: ValueSpec, is_tuple: bool
) -> None:
    record = ApiRecord(ApiName("Tensor", "__setitem__", 0), (X, index, value), (), (X,))
    assert record.is_indexed_by_tuple is is_tuple


@pytest.mark.parametrize(("shape", "is_tuple"), [((6,), True), ((2, 5, 6), False)])
def test_what_is_read_tells_whether_the_index_is_a_tuple(
    shape: tuple[int, ...], is_tuple: bool
) -> None:
    out = TensorSpec("float32", shape)
    record = ApiRecord(ApiName("Tensor", "__getitem__", 0), (X, numbers(1, 2)), (), (out,))
    assert record.is_indexed_by_tuple is is_tuple
