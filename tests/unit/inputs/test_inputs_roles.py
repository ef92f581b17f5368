"""Values that mean something: in range, distinct, sorted, adding up, definite."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.inputs.roles.records import Even
from ray_precheck.inputs.roles.role import (
    Classes,
    Coordinates,
    Distinct,
    DistinctTogether,
    Lengths,
    Matrix,
    NonZero,
    PackedSizes,
    Parts,
    Probabilities,
    Ranked,
    Role,
    Same,
    Signs,
    Sorted,
    Within,
    index_into,
    spread_places,
)
from ray_precheck.inputs.roles.rowwise import Causal, Normed
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import Bound, TensorSpec

pytestmark = pytest.mark.unit

PATH = "input_args.0"


def whole(
    *shape: int, low: Bound = None, high: Bound = None, mean: Bound = None, dtype: str = "int64"
) -> TensorSpec:
    return TensorSpec(dtype, shape, low, high, mean=mean)


def floats(
    *shape: int, low: Bound = None, high: Bound = None, mean: Bound = None, dtype: str = "float32"
) -> TensorSpec:
    return TensorSpec(dtype, shape, low, high, mean=mean)


def drawn(role: Role, spec: TensorSpec, *, path: str = PATH) -> Array:
    data = GeneratedTensors(0, "Torch.x.0", roles={path: role}).tensor(spec, path).data
    assert data.shape == spec.shape
    return data


@pytest.mark.parametrize(
    ("low", "high", "span"),
    [(2, 5, (2, 5)), (-7, -1, (-7, -1)), (None, None, (0, 6)), (3, 90, (3, 6)), (50, 90, (0, 6))],
)
def test_indices_keep_a_recorded_range_that_fits_and_else_stay_in_theirs(
    low: Bound, high: Bound, span: tuple[int, int]
) -> None:
    data = drawn(index_into(7), whole(500, low=low, high=high))
    assert (data.min(), data.max()) == span


def test_an_index_rule_changes_no_float_and_no_boolean() -> None:
    for spec in (floats(5, low=20.0, high=30.0), whole(5, low=None, high=None, dtype="bool")):
        assert index_into(7).bounded(spec) is spec


def test_statistics_of_another_range_do_not_count() -> None:
    spec = Within(0, 5, whole=True).bounded(whole(9, low=0, high=50, mean=25.0))
    assert (spec.low, spec.high, spec.mean) == (0, 5, None)


def test_a_domain_stands_only_for_an_unknown_range() -> None:
    domain = Within(0.5, 1.5, only_unknown=True)
    assert drawn(domain, floats(100)).min() >= 0.5
    assert drawn(domain, floats(100, low=-9.0, high=-8.0)).max() <= -8.0
    assert drawn(domain, floats(100, low=math.nan, high=math.nan)).min() >= 0.5


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 5), st.data())
def test_distinct_indices_are_permutations_along_their_axis(
    extent: int, lines: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, extent))
    for axis, shape in ((0, (count, lines)), (-1, (lines, count))):
        found = np.moveaxis(drawn(Distinct(extent, axis), whole(*shape)), axis, -1)
        assert all(len(set(line)) == count for line in found.tolist())
        assert 0 <= found.min() <= found.max() < extent


def test_distinct_indices_keep_the_recorded_range_where_it_is_wide_enough() -> None:
    found = drawn(Distinct(100, 0), whole(5, low=10, high=14))
    assert sorted(found.tolist()) == [10, 11, 12, 13, 14]
    assert drawn(Distinct(100, 0), whole(6, low=10, high=14)).max() > 14


def test_more_indices_than_places_stay_in_range() -> None:
    found = drawn(Distinct(3, 0), whole(50))
    assert set(found.tolist()) == {0, 1, 2}


def test_distinct_indices_of_many_places_need_no_table_of_the_places() -> None:
    found = drawn(Distinct(1 << 60, 0), whole(50, 3))
    assert len(set(found.T.tolist()[0])) == 50
    assert found.max() > 1 << 59
    places = drawn(Coordinates((1 << 40, 1 << 20), distinct=True), whole(50, 2))
    assert len({tuple(row) for row in places.tolist()}) == 50


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 30), st.integers(0, 100))
def test_places_spread_over_all_there_are(count: int, more: int) -> None:
    generator = np.random.Generator(np.random.Philox(key=1))
    found = spread_places(generator.random((200, count)), count + more)
    assert (np.diff(found, axis=-1) >= 1).all()
    assert 0 <= found.min() <= found.max() < count + more
    if more < 10:
        assert set(found.flat) == set(range(count + more))


def test_lines_of_distinct_indices_differ() -> None:
    found = drawn(Distinct(50, -1), whole(4, 50))
    assert len({tuple(line) for line in found.tolist()}) == 4


def test_distinct_indices_do_not_depend_on_how_many_lines_are_drawn_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = drawn(Distinct(10, -1), whole(8, 5))
    monkeypatch.setattr("ray_precheck.inputs.roles.role._CHUNK_PLACES", 20)
    np.testing.assert_array_equal(drawn(Distinct(10, -1), whole(8, 5)), before)


def test_index_tensors_together_address_each_place_once() -> None:
    parts = [
        drawn(DistinctTogether((3, 5), place, "all"), whole(4, 3), path=f"input_args.1.{place}")
        for place in range(2)
    ]
    places = Counter(zip(parts[0].flat, parts[1].flat, strict=True))
    assert len(places) == 12
    assert parts[0].max() < 3
    assert parts[1].max() < 5


@pytest.mark.parametrize("distinct", [True, False])
def test_coordinates_lie_within_each_dimension(distinct: bool) -> None:
    found = drawn(Coordinates((2, 30, 7), distinct=distinct), whole(40, 2))
    assert found[:, 0].max() == 1
    assert 2 < found[:, 1].max() < 30
    if distinct:
        assert len({tuple(row) for row in found.tolist()}) == 40


@pytest.mark.parametrize("low", [-100, 0])
def test_the_ignored_class_occurs_only_where_it_was_recorded(low: int) -> None:
    found = drawn(Classes(10, -100), whole(1000, low=low, high=9))
    assert (found == -100).any() == (low == -100)
    assert set(found.tolist()) - {-100} == set(range(10))


def test_not_everything_is_ignored() -> None:
    found = drawn(Classes(10, -100), whole(3, low=-100, high=9, mean=-100.0))
    assert sorted(found == -100) == [False, True, True]


def test_classes_beyond_the_last_one_are_drawn_again() -> None:
    assert drawn(Classes(4), whole(100, low=0, high=50)).max() == 3


@pytest.mark.parametrize("falling", [False, True])
def test_sorted_numbers_rise_or_fall_along_the_last_dimension(falling: bool) -> None:
    steps = np.diff(drawn(Sorted(falling), floats(4, 9, low=-1.0, high=1.0)), axis=-1)
    assert ((steps <= 0) if falling else (steps >= 0)).all()
    assert (steps != 0).any()


def test_lengths_reach_the_longest_and_fall_where_that_is_wanted() -> None:
    found = drawn(Lengths(12, falling=True), whole(6))
    assert found.max() == found[0] == 12
    assert found.min() >= 1
    assert (np.diff(found) <= 0).all()


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 60), st.integers(1, 20))
def test_parts_add_up_to_their_total(total: int, count: int) -> None:
    parts = drawn(Parts(total), whole(count))
    assert parts.sum() == total
    assert parts.min() >= (1 if count <= total else 0)
    sums = drawn(Parts(total, running=True), whole(count))
    assert sums[-1] == total
    np.testing.assert_array_equal(sums, np.cumsum(parts))


def test_offsets_begin_at_0_and_end_before_the_total() -> None:
    found = drawn(Parts(20, running=True, from_zero=True, open_end=True), whole(5))
    assert found[0] == 0
    assert found[-1] < 20
    assert (np.diff(found) >= 1).all()


def test_sizes_of_packed_sequences_fall_from_their_number_and_add_up_to_the_rows() -> None:
    found = drawn(PackedSizes(12), whole(4, low=1, high=5))
    assert found[0] == 5
    assert found.sum() == 12
    assert found.min() >= 1
    assert (np.diff(found) <= 0).all()
    # Five sequences with four rows at most have no 25 rows.
    spec = whole(4, low=1, high=5)
    np.testing.assert_array_equal(drawn(PackedSizes(25), spec), drawn(Role(), spec))


def test_lines_of_a_sparse_matrix_have_different_places_in_order() -> None:
    begins = drawn(Even(3, 8, 7, running=True), whole(4))
    assert begins.tolist() == [0, 2, 4, 7]
    places = drawn(Even(3, 8, 7), whole(7))
    assert set(places.tolist()) <= set(range(8))
    for line in np.split(places, begins[1:-1]):
        assert (np.diff(line) > 0).all()


def test_rows_that_are_normalised_are_zero_or_far_from_0_where_the_call_allows_it() -> None:
    spec = floats(40, 64, low=-1.0, high=1.0)

    def counts(role: Role) -> tuple[int, int]:
        """How many rows are zero, and how many have a mean of ten deviations and more."""
        rows = drawn(role, spec).astype(np.float64)
        zero = (rows == 0).all(axis=1)
        return int(zero.sum()), int((np.abs(rows.mean(1)) > 10 * rows.std(1))[~zero].sum())

    assert counts(Normed()) == (0, 0)
    # An eighth of the rows, and half of that.
    assert counts(Normed(offset=True)) == (0, 4)
    assert counts(Normed(zero=True)) == (2, 0)
    assert counts(Normed(zero=True, offset=True)) == (2, 4)


def test_the_ignored_class_occurs_once_where_the_mean_leaves_it_no_share() -> None:
    found = drawn(Classes(5, -100), whole(50, low=-100, high=4, mean=2.0))
    assert (found == -100).sum() == 1


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_probabilities_add_up_to_1_along_their_axis(axis: int) -> None:
    found = drawn(Probabilities(axis), floats(4, 6, low=0.0, high=0.9))
    np.testing.assert_allclose(found.sum(axis), 1.0, rtol=1e-6)
    assert found.min() >= 0


@pytest.mark.parametrize("axis", [1, -1, -2])
def test_a_recorded_mean_of_1_over_their_count_makes_numbers_probabilities(axis: int) -> None:
    count = (4, 6)[axis]
    found = drawn(Probabilities(axis), floats(4, 6, low=0.0, high=0.9, mean=1 / count))
    np.testing.assert_allclose(found.sum(axis), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    "spec", [floats(4, 6, low=-1.0, high=0.9), floats(4, 6, low=0.0, high=0.9, mean=0.5)]
)
def test_what_was_no_probability_stays_as_it_was(spec: TensorSpec) -> None:
    np.testing.assert_array_equal(drawn(Probabilities(), spec), drawn(Role(), spec))


def test_signs_are_both_of_minus_1_and_1() -> None:
    for spec in (floats(50, low=-1.0, high=1.0), whole(50, low=-1, high=1), floats(50)):
        assert set(drawn(Signs(), spec).tolist()) == {-1, 1}


@pytest.mark.parametrize(("recorded", "expected"), [(-1.0, {-1}), (1.0, {1}), (0.5, {-1, 1})])
def test_signs_that_were_all_alike_stay_so(recorded: float, expected: set[int]) -> None:
    spec = floats(50, low=recorded, high=recorded)
    assert set(drawn(Signs(), spec).tolist()) == expected


@pytest.mark.parametrize(("low", "high"), [(-3, 3), (0, 3), (-3, 0), (0, 0)])
def test_whole_divisors_are_never_0(low: int, high: int) -> None:
    found = drawn(NonZero(), whole(200, low=low, high=high))
    assert (found != 0).all()
    assert np.isin(found, range(low, max(high, 1) + 1)).all()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (0.0, 5.0), (None, None), (1e-6, 2e-6)])
@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_matrices_are_well_conditioned(symmetric: bool, low: Bound, high: Bound, n: int) -> None:
    found = drawn(Matrix(symmetric), floats(2, n, n, low=low, high=high)).astype(np.float64)
    assert np.linalg.cond(found).max() < 20
    if symmetric:
        np.testing.assert_array_equal(found, np.swapaxes(found, -1, -2))
        assert np.linalg.eigvalsh(found).min() > 0
    largest = max(abs(low or 0), abs(high or 0)) or 1.0
    assert 0.5 * largest < np.abs(found).max() < 1.5 * largest


def test_what_is_no_square_matrix_stays() -> None:
    spec = floats(3, 4, low=0.0, high=1.0)
    np.testing.assert_array_equal(drawn(Matrix(), spec), drawn(Role(), spec))


def hidden(mask: Array) -> list[list[bool]]:
    return np.asarray(mask).astype(bool).tolist()


LATER = np.triu(np.ones((4, 4), bool), 1)


@pytest.mark.parametrize(
    ("spec", "hides", "expected"),
    [
        (whole(4, 4, low=False, high=True, dtype="bool"), True, LATER),
        (whole(4, 4, dtype="bool"), False, ~LATER),
        (floats(4, 4, low=0.0, high=1.0, mean=6 / 16), True, LATER),
        (floats(4, 4, low=-1e4, high=0.0, mean=-1e4 * 6 / 16), True, np.where(LATER, -1e4, 0.0)),
        (floats(4, 4, low=0.0, high=1.0, mean=10 / 16), False, ~LATER),
        # A mean within a hundredth of the distance is that of the mask.
        (floats(4, 4, low=-1e4, high=0.0, mean=-3840.0), True, np.where(LATER, -1e4, 0.0)),
        (floats(4, 4, low=-math.inf, high=0.0), True, np.where(LATER, -math.inf, 0.0)),
    ],
)
def test_a_mask_of_attention_hides_what_comes_later(
    spec: TensorSpec, hides: bool, expected: Array
) -> None:
    np.testing.assert_array_equal(drawn(Causal(hides), spec), expected)


@pytest.mark.parametrize(
    "spec",
    [
        floats(4, 4, low=0.0, high=1.0, mean=0.9),
        floats(4, 4, low=-1e4, high=0.0, mean=-3860.0),
        floats(4, 4, low=-0.5, high=0.5),
        whole(4, 4, low=True, high=True, dtype="bool"),
        whole(4, 1, dtype="bool"),
        floats(4, low=0.0, high=1.0),
    ],
)
def test_a_mask_with_other_statistics_stays(spec: TensorSpec) -> None:
    np.testing.assert_array_equal(drawn(Causal(), spec), drawn(Role(), spec))


def test_longer_keys_than_queries_are_hidden_from_the_end() -> None:
    found = drawn(Causal(), whole(2, 4, dtype="bool"))
    assert found.tolist() == [[False, False, False, True], [False] * 4]


def test_the_same_tensor_twice_has_the_same_numbers() -> None:
    spec = TensorSpec("float32", (50,), -1.0, 1.0, mean=0.0, norm=3.0)
    tensors = GeneratedTensors(0, "Torch.x.0", roles={"b": Same("a", spec)})
    first, second = (tensors.tensor(spec, path).data for path in ("a", "b"))
    np.testing.assert_array_equal(first, second)
    assert first is not second


def test_a_divisor_is_large_where_what_it_divides_is() -> None:
    above = TensorSpec("float32", (4, 50), -1.0, 1.0, mean=0.0, norm=3.0)
    below = TensorSpec("float32", (4, 50), 1e-8, 2.0, mean=0.1, norm=3.0)
    tensors = GeneratedTensors(0, "Torch.x.0", roles={"b": Ranked("a", above)})
    divided, divisor = tensors.tensor(above, "a").data, tensors.tensor(below, "b").data
    order = np.argsort(np.abs(divided), axis=None, kind="stable")
    assert (np.diff(divisor.reshape(-1)[order]) >= 0).all()
    plain = GeneratedTensors(0, "Torch.x.0").tensor(below, "b").data
    np.testing.assert_array_equal(np.sort(divisor, axis=None), np.sort(plain, axis=None))


KINDS = [
    index_into(5),
    Distinct(5, -1),
    DistinctTogether((5,), 0, "x"),
    Coordinates((5, 5)),
    Classes(5, -100),
    Sorted(),
    Lengths(5),
    Parts(5),
    Probabilities(),
    Signs(),
    NonZero(),
    Matrix(),
    Matrix(symmetric=True),
    Causal(),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (2, 2), (2, 3, 3)])
def test_every_role_takes_every_tensor(kind: Role, dtype: str, shape: tuple[int, ...]) -> None:
    for low, high in ((None, None), (-math.inf, math.nan), (0, 1), (-100, 9)):
        spec = TensorSpec(dtype, shape, low, high)
        tensor = GeneratedTensors(0, "Torch.x.0", roles={PATH: kind}).tensor(spec, PATH)
        plain = GeneratedTensors(0, "Torch.x.0").tensor(spec, PATH)
        assert (tensor.shape, tensor.data.dtype) == (shape, plain.data.dtype)
