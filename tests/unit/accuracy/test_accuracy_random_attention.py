"""Statistical tests of attention with dropout: shared keys, masked rows, large scores, nothing to tell."""

import numpy as np
import pytest
from draws import rng

from ray_precheck.accuracy.random.dropout import attention_tests
from ray_precheck.accuracy.random.statistics import drawn_of
from ray_precheck.schema.dtypes import Array

pytestmark = pytest.mark.unit


def texts(
    query: Array, key: Array, value: Array, out: Array, bias: Array | None = None, p: float = 0.25
) -> list[str]:
    tests = attention_tests(query, key, value, out, bias, p, None, 0.0)
    return [test(0.5).text for test in tests]


def tensors(heads: int, keys: int) -> tuple[Array, Array, Array, Array]:
    """Query, key, value and output of 6 queries and 5 keys of 8 numbers."""
    generator = rng()
    shapes = ((heads, 6, 8), (keys, 5, 8), (keys, 5, 8), (heads, 6, 8))
    query, key, value, out = (generator.normal(size=shape) for shape in shapes)
    return query, key, value, out


def test_heads_that_share_keys_are_as_those_with_keys_of_their_own() -> None:
    query, key, value, out = tensors(4, 2)
    bias = np.where(rng(1).random((6, 5)) < 0.2, -np.inf, 0.0)
    own = (np.repeat(each, 2, axis=0) for each in (key, value))
    assert texts(query, key, value, out, bias) == texts(query, *own, out, bias)


def test_attention_needs_no_heads() -> None:
    one = tensors(1, 1)
    assert texts(*(each[0] for each in one)) == texts(*one)


def test_a_query_that_sees_no_key_has_no_weights() -> None:
    query, key, value, out = tensors(1, 1)
    bias = np.zeros((6, 5))
    bias[2] = -np.inf
    out[0, 2] = 0.0
    others = [0, 1, 3, 4, 5]
    rest = texts(query[:, others], key, value, out[:, others], bias[others])
    assert texts(query, key, value, out, bias) == rest


def test_weights_do_not_overflow() -> None:
    query, key, value, out = tensors(1, 1)
    # All scores may be larger by the same number.
    assert texts(query, key, value, out, np.full((6, 5), 1e4)) == texts(query, key, value, out)


def test_values_in_another_unit_tell_as_much() -> None:
    query, key, value, out = tensors(1, 1)
    own, larger = (
        drawn_of(attention_tests(query, key, by * value, by * out, None, 0.25, None, 0.0), False)
        for by in (1.0, 1024.0)
    )
    assert [sums.name for sums in own.sums] == ["size", "spread"]
    assert larger.sums == own.sums


def test_where_nothing_can_be_lost_the_looks_tell_nothing() -> None:
    query, key, value, out = tensors(1, 1)
    size, spread = (
        test(0.5)
        for test in attention_tests(query, key, 0 * value, 0 * out, None, 0.25, None, 0.0)[1:]
    )
    assert (size.passed, size.telling) == (True, False)
    assert size.text == "no output to compare the size of"
    assert (spread.passed, spread.telling) == (True, False)
    assert spread.text == "no weight whose loss would show"


def test_where_all_is_dropped_the_output_is_0() -> None:
    query, key, value, out = tensors(1, 1)
    assert texts(query, key, value, 0 * out, p=1.0) == ["none are not finite", "none are not 0"]
    assert texts(query, key, value, out, p=1.0)[1].startswith("48 of 48 elements are not 0")
