"""Roles at their limits: full ranges, classes to ignore, sums of 0, matrices in stacks, masks."""

import math

import numpy as np
import pytest
from test_inputs_roles import LATER, drawn, floats, whole

from ray_precheck.inputs.roles.role import (
    Classes,
    Coordinates,
    Distinct,
    DistinctTogether,
    Lengths,
    Matrix,
    NonZero,
    Parts,
    Probabilities,
    Ranked,
    Role,
    Signs,
    Within,
)
from ray_precheck.inputs.roles.rowwise import Causal
from ray_precheck.numerics.arrays import round_to_dtype
from ray_precheck.schema.values import Bound, TensorSpec

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("role", "spec"),
    [
        (Lengths(5), floats(6, low=-1.0, high=1.0)),
        (Lengths(0), whole(6, low=2, high=3)),
        (Probabilities(1), floats(5, low=0.0, high=1.0)),
        (Probabilities(-3), floats(5, 2, low=0.0, high=1.0)),
        (Probabilities(), floats(5, 2, low=0.0, high=2.0)),
        (Matrix(), floats(2, 3, 4, low=0.0, high=1.0)),
        (Causal(), floats(4, 4, low=-5.0, high=3.0)),  # no mask that is added has scores above 0
        (Causal(), floats(4, 4, low=-1.0, high=0.0)),
        (Causal(), floats(4, 4, low=-100.0, high=0.0, mean=-38.75)),
        (Causal(), whole(1, 4, dtype="bool")),  # one row hides nothing
        (Causal(), whole(2, 4, 3, dtype="bool")),
    ],
)
def test_values_that_the_role_does_not_fit_stay(role: Role, spec: TensorSpec) -> None:
    np.testing.assert_array_equal(drawn(role, spec), drawn(Role(), spec))


def test_offsets_that_have_the_total_too_begin_with_0() -> None:
    closed = Parts(20, running=True, from_zero=True)
    assert drawn(closed, whole(1)).tolist() == [0]
    assert drawn(closed, whole(2)).tolist() == [0, 20]
    opened = Parts(20, running=True, from_zero=True, open_end=True)
    assert drawn(opened, whole(1)).tolist() == [0]
    assert drawn(Parts(20), whole(1)).tolist() == [20]


def test_probabilities_of_zeros_are_even() -> None:
    found = drawn(Probabilities(), floats(2, 4, low=0.0, high=0.0))
    np.testing.assert_array_equal(found, np.full((2, 4), 0.25))


def test_numbers_up_to_1_or_of_an_unknown_range_become_probabilities() -> None:
    for spec in (floats(2, 4, low=0.0, high=1.0), floats(2, 4), floats(2, 4, mean=math.nan)):
        np.testing.assert_allclose(drawn(Probabilities(), spec).sum(-1), 1.0, rtol=1e-6)


def test_a_recorded_range_does_not_choose_the_sign() -> None:
    assert set(drawn(Signs(), floats(50, low=1.0, high=5.0)).tolist()) == {-1, 1}


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(-1, 0, {-1}), (0, 0, {1}), (0, 1, {1}), (-1, 1, {-1, 1})]
)
def test_0_as_a_divisor_becomes_the_nearest_number_of_the_range(
    low: int, high: int, expected: set[int]
) -> None:
    assert set(drawn(NonZero(), whole(200, low=low, high=high)).tolist()) == expected


def test_matrices_may_come_in_stacks_of_stacks() -> None:
    found = drawn(Matrix(), floats(2, 3, 4, 4, low=-1.0, high=1.0)).astype(np.float64)
    assert np.linalg.cond(found).max() < 20


@pytest.mark.parametrize(("low", "high", "size"), [(-5.0, 2.0, 5.0), (-2.0, 5.0, 5.0)])
def test_matrices_are_as_large_as_the_largest_magnitude(
    low: float, high: float, size: float
) -> None:
    found = drawn(Matrix(), floats(40, 40, low=low, high=high))
    # 0.4 W / sqrt(40) is 0.07 of it at most.
    np.testing.assert_allclose(np.diagonal(found), size, rtol=0.07)


def test_a_constant_matrix_becomes_a_multiple_of_the_identity() -> None:
    found = drawn(Matrix(), floats(3, 3, low=2.0, high=2.0))
    np.testing.assert_array_equal(found, 2 * np.eye(3))


def test_matrices_of_bfloat16_hold_its_numbers() -> None:
    found = drawn(Matrix(), floats(7, 7, low=-1.0, high=1.0, dtype="bfloat16"))
    np.testing.assert_array_equal(found, round_to_dtype(found.astype(np.float64), "bfloat16"))


def test_longer_keys_are_hidden_from_the_end_in_each_matrix_of_a_stack() -> None:
    found = drawn(Causal(), whole(3, 2, 4, dtype="bool"))
    assert found.tolist() == [[[False, False, False, True], [False] * 4]] * 3


# 6 of 16 elements are hidden: -37.5, of which the mean may be off by a hundredth of the distance.
@pytest.mark.parametrize("mean", [-38.5, -36.5, None])
def test_a_mean_may_be_a_hundredth_of_the_distance_off(mean: Bound) -> None:
    spec = floats(4, 4, low=-100.0, high=0.0, mean=mean)
    np.testing.assert_array_equal(drawn(Causal(), spec), np.where(LATER, -100.0, 0.0))


@pytest.mark.parametrize(
    ("role", "spec"),
    [
        (Within(0, 5), whole(9, low=0, high=5, mean=1.0)),
        (Within(0, 5), whole(9, low=0, high=0, mean=0.0)),
        (Within(0, 5), whole(9, low=5, high=5, mean=5.0)),
        (Within(5, 2), whole(9, low=0, high=9)),  # a range without a number
        (Within(2, 5), whole(9, low=0, high=1, dtype="bool")),
        (Distinct(0, 0), whole(9, low=0, high=9)),
        (Distinct(5, 0), floats(9, low=0.0, high=9.0)),
        (Classes(10, 10), whole(9, low=10, high=12)),  # the class behind the last one is no class
        (Classes(10, -100), floats(9, low=-200.0, high=9.0)),
    ],
)
def test_a_range_that_fits_is_left_with_all_its_statistics(role: Role, spec: TensorSpec) -> None:
    assert role.bounded(spec) is spec


def test_a_range_may_be_cut_to_one_number() -> None:
    for low, high, left in ((5, 9, 5), (-9, 0, 0)):
        found = Within(0, 5).bounded(whole(9, low=low, high=high))
        assert (found.low, found.high) == (left, left)


@pytest.mark.parametrize("ignored", [0, 9])
def test_a_class_that_counts_is_not_ignored(ignored: int) -> None:
    found = Classes(10, ignored).bounded(whole(9, low=ignored, high=50))
    assert (found.low, found.high) == (ignored, 9)


def test_as_many_classes_are_ignored_as_the_mean_tells() -> None:
    # Between -100 and the middle of 0 to 9 a mean of -47.75 is half way; the recorded 50 is no class.
    found = drawn(Classes(10, -100), whole(10_000, low=-100, high=50, mean=-47.75))
    assert 0.45 < (found == -100).mean() < 0.55
    assert set(found.tolist()) == {-100, *range(10)}
    assert set(drawn(Classes(10, -100), whole(5, low=-100, high=-100, mean=-100.0))) == {-100}


def test_all_places_can_be_addressed_once() -> None:
    assert sorted(drawn(DistinctTogether((5,), 0, "x"), whole(5)).tolist()) == [0, 1, 2, 3, 4]
    found = drawn(Coordinates((2, 3), distinct=True), whole(6, 2))
    assert {tuple(row) for row in found.tolist()} == {(i, j) for i in range(2) for j in range(3)}


def test_floats_are_no_indices() -> None:
    spec = floats(3, low=-1.0, high=1.0)
    for role in (DistinctTogether((5,), 0, "x"), Distinct(5, 0), Classes(5, -1)):
        np.testing.assert_array_equal(drawn(role, spec), drawn(Role(), spec))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ranked_numbers_lie_in_the_order_of_magnitudes_of_the_others(dtype: str) -> None:
    generator = np.random.default_rng(0)
    other = np.round(generator.normal(size=5000), 1).astype(dtype)  # many are equal
    other[:4] = 0.0, -0.0, np.nan, np.inf
    drawn = generator.normal(size=5000).astype(dtype)
    found = Ranked("input_args.0", TensorSpec(dtype, (5000,))).beside(drawn.copy, other)
    order = np.argsort(np.abs(other), kind="stable")
    np.testing.assert_array_equal(found[order], np.sort(drawn))
