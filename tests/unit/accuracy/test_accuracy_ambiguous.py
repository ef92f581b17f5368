"""Ties and bases: what is right in more than one way."""

from typing import Any

import numpy as np
import pytest

from ray_precheck.accuracy.ambiguous import chosen_like, observed
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

pytestmark = pytest.mark.unit

TIES = np.array([[3.0, 1.0, 3.0, 2.0], [5.0, 5.0, 0.0, 5.0]], np.float32)
rng = np.random.default_rng(5)


def tensor(values: Any) -> HostTensor:
    data = np.asarray(values)
    return HostTensor(data.dtype.name, data)


def aligned(
    api: str, args: tuple[Any, ...], tested: list[Any], bench: list[Any], **kwargs: Any
) -> list[Any]:
    sides = [[tensor(leaf) for leaf in side] for side in (tested, bench)]
    call = HostCall((tensor(args[0]), *args[1:]), kwargs)
    return [leaf.data for leaf in chosen_like(ApiName("Torch", api, 0), call, *sides)]


@pytest.mark.parametrize(
    ("api", "args", "kwargs", "tested", "bench"),
    [
        ("argmax", (TIES, 1), {}, [2, 3], [0, 0]),
        ("argmax", (TIES,), {"dim": 1}, [2, 1], [0, 0]),
        ("argmax", (TIES,), {}, 7, 4),
        ("argmin", (-TIES, 1), {}, [2, 1], [0, 0]),
        ("argmax", (TIES, 1), {"keepdim": True}, [[2], [3]], [[0], [0]]),
        ("argmax", (TIES.T, -2), {}, [2, 3], [0, 0]),
        ("argsort", (TIES, 1), {}, [[1, 3, 2, 0], [2, 3, 1, 0]], [[1, 3, 0, 2], [2, 0, 1, 3]]),
        ("argsort", (TIES,), {}, [[1, 3, 2, 0], [2, 3, 1, 0]], [[1, 3, 0, 2], [2, 0, 1, 3]]),
        # A bool is no dimension: the last one is sorted along.
        ("argsort", (TIES, False), {}, [[1, 3, 2, 0], [2, 3, 1, 0]], [[1, 3, 0, 2], [2, 0, 1, 3]]),
    ],
)
def test_an_index_that_selects_an_equal_value_is_as_right(
    api: str, args: tuple[Any, ...], kwargs: dict[str, Any], tested: Any, bench: Any
) -> None:
    (chosen,) = aligned(api, args, [np.asarray(tested)], [np.asarray(bench)], **kwargs)
    np.testing.assert_array_equal(chosen, tested)


@pytest.mark.parametrize("wrong", [[1, 3], [2, 2], [2, 4], [2, 9], [-1, 0]])
def test_an_index_of_another_value_stays_wrong(wrong: list[int]) -> None:
    (chosen,) = aligned("argmax", (TIES, 1), [np.array(wrong)], [np.array([0, 0])])
    assert (chosen != wrong).any()


@pytest.mark.parametrize(
    ("api", "args", "shape"),
    [
        ("argmin_with_value", (TIES, None), ()),  # of all elements, not along a dimension
        ("argmax", (TIES, 2), (2,)),
        ("argmax", (TIES, 7), (2,)),
        ("argmax", (TIES,), (2,)),  # of all elements there is one index
        ("argmax", (TIES, 1), (3, 2, 1)),
        ("sort", (TIES, 1), (3, 4)),
    ],
)
def test_indices_that_do_not_fit_are_left_as_they_are(
    api: str, args: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    tested, bench = np.ones(shape, np.int64), np.zeros(shape, np.int64)
    many = [[side.astype(np.float32), side] for side in (tested, bench)]
    sides = many if api in ("sort", "argmin_with_value") else [[tested], [bench]]
    chosen = aligned(api, args, *sides)
    np.testing.assert_array_equal(chosen[-1], bench)


def test_an_index_that_comes_twice_is_no_order() -> None:
    bench = np.array([[1, 3, 0, 2], [2, 0, 1, 3]])
    twice = np.array([[1, 3, 0, 0], [2, 0, 1, 3]])
    (chosen,) = aligned("argsort", (TIES, 1), [twice], [bench])
    np.testing.assert_array_equal(chosen, bench)


def test_a_stable_sort_has_one_right_order() -> None:
    bench, tested = np.array([[1, 3, 0, 2]]), np.array([[1, 3, 2, 0]])
    (chosen,) = aligned("argsort", (TIES[:1], 1), [tested], [bench], stable=True)
    np.testing.assert_array_equal(chosen, bench)


def test_of_values_and_indices_only_the_indices_are_aligned() -> None:
    whole = TIES.astype(np.int64)
    tested = [np.array([[9, 3]]), np.array([[2, 0]])]
    bench = [np.array([[3, 3]]), np.array([[0, 2]])]
    values, indices = aligned("topk", (whole[:1], 2), tested, bench)
    np.testing.assert_array_equal(values, bench[0])
    np.testing.assert_array_equal(indices, tested[1])


def test_the_largest_of_whole_numbers_is_no_index() -> None:
    (found,) = aligned("max", (np.array([0, 0, 3]),), [np.array(1)], [np.array(0)])
    assert found == 0


def test_nan_is_as_good_as_another_nan() -> None:
    holes = np.array([np.nan, 1.0, np.nan])
    (chosen,) = aligned("argmax", (holes, 0), [np.array(2)], [np.array(0)])
    assert chosen == 2


@pytest.mark.parametrize("factor", [-1.0, np.exp(0.7j)])
def test_singular_vectors_are_right_up_to_a_common_factor(factor: complex) -> None:
    u, s, vh = np.linalg.svd(rng.normal(size=(4, 3)) + 0j, full_matrices=False)
    turned = [u * [factor, 1, 1], s, vh * np.array([[np.conj(factor)], [1], [1]])]
    found = aligned("linalg.svd", (np.eye(3),), turned, [u, s, vh])
    for mine, other in zip(found, turned, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-12)


def test_singular_vectors_that_turn_on_one_side_alone_stay_wrong() -> None:
    u, s, vh = np.linalg.svd(rng.normal(size=(4, 3)), full_matrices=False)
    found = aligned("linalg.svd", (np.eye(3),), [-u, s, vh], [u, s, vh])
    np.testing.assert_allclose(found[2], -vh)


def test_a_vector_that_no_factor_turns_stays_as_the_bench_has_it() -> None:
    values, vectors = np.linalg.eigh(np.diag([1.0, 2.0, 3.0]))
    found = aligned("linalg.eigh", (np.eye(3),), [values, vectors[:, ::-1]], [values, vectors])
    np.testing.assert_array_equal(found[1][:, 0], vectors[:, 0])


@pytest.mark.parametrize("factor", [-1.0, np.exp(0.7j)])
def test_columns_on_both_sides_turn_together(factor: complex) -> None:
    u, s, vh = np.linalg.svd(rng.normal(size=(2, 4, 3)) + 0j, full_matrices=False)
    v = np.conj(np.swapaxes(vh, -1, -2))
    turned = [u * [factor, 1, 1], s, v * [factor, 1, 1]]
    found = aligned("svd", (np.eye(3),), turned, [u, s, v])
    for mine, other in zip(found, turned, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-12)


@pytest.mark.parametrize("api", ["svd", "linalg.svd"])
def test_vectors_of_one_side_alone_turn_too(api: str) -> None:
    u, s, _ = np.linalg.svd(rng.normal(size=(4, 3)), full_matrices=False)
    found = aligned(api, (np.eye(3),), [-u, s], [u, s])
    np.testing.assert_allclose(found[0], -u)


def test_outputs_that_are_no_matrices_are_left_as_they_are() -> None:
    r = np.triu(np.ones((3, 3)))
    found = aligned("linalg.qr", (np.eye(3),), [np.empty(0), -r], [np.empty(0), r])
    np.testing.assert_array_equal(found[1], r)
    values = np.array([1.0, 2.0])
    found = aligned("linalg.eigh", (np.eye(2),), [values, -values], [values, values])
    np.testing.assert_array_equal(found[1], values)


@pytest.mark.parametrize(
    ("api", "expected"), [("linalg.eigh", [1.0, 2.0]), ("linalg.eig", [2.0, 1.0])]
)
def test_eigenvalues_may_come_without_vectors(api: str, expected: list[float]) -> None:
    (found,) = aligned(api, (np.eye(2),), [np.array([2.0, 1.0])], [np.array([1.0, 2.0])])
    np.testing.assert_array_equal(found, expected)


def test_vectors_of_another_shape_or_beside_another_output_are_left_alone() -> None:
    values, vectors = np.linalg.eigh(np.diag([1.0, 2.0, 3.0]))
    for tested in ([values, -vectors[:, :2]], [values, -vectors, values]):
        found = aligned("linalg.eigh", (np.eye(3),), tested, [values, vectors])
        np.testing.assert_array_equal(found[1], vectors)


@pytest.mark.parametrize(("tested", "bench"), [(None, tensor(1)), (tensor(1), None), (None, None)])
def test_outputs_that_are_no_tensors_are_left_alone(tested: Any, bench: Any) -> None:
    call = HostCall((tensor(TIES),), {})
    assert chosen_like(ApiName("Torch", "argmax", 0), call, [tested], [bench]) == [bench]


def test_q_and_r_turn_together() -> None:
    q, r = np.linalg.qr(rng.normal(size=(2, 4, 3)))
    found = aligned("qr", (np.eye(3),), [-q, -r], [q, r])
    np.testing.assert_allclose(found[0], -q)
    np.testing.assert_allclose(found[1], -r)


def test_eigenvalues_come_in_any_order_with_their_vectors() -> None:
    values, vectors = np.linalg.eig(rng.normal(size=(2, 4, 4)) + 0j)
    tested = [values[:, ::-1], vectors[:, :, ::-1] * 1j]
    found = aligned("linalg.eig", (np.eye(4),), tested, [values, vectors])
    np.testing.assert_allclose(found[0], tested[0])
    np.testing.assert_allclose(found[1], tested[1], atol=1e-12)


def test_a_wrong_eigenvalue_stays_wrong() -> None:
    values = np.array([1.0, 2.0, 3.0])
    (found,) = aligned("linalg.eigvals", (np.eye(3),), [np.array([3.0, 2.0, 9.0])], [values])
    np.testing.assert_array_equal(found, [3.0, 2.0, 1.0])


@pytest.mark.parametrize("tested", [[np.zeros(2, int)], [np.zeros(3, int)] * 2, []])
def test_outputs_of_other_shapes_or_number_are_left_alone(tested: list[Any]) -> None:
    (found,) = aligned("argmax", (TIES, 1), tested, [np.zeros(3, int)])
    np.testing.assert_array_equal(found, np.zeros(3, int))


def test_other_operators_are_left_alone() -> None:
    (found,) = aligned("add", (TIES,), [TIES + 1], [TIES])
    np.testing.assert_array_equal(found, TIES)


def test_columns_need_not_have_a_length_of_1() -> None:
    # The columns have lengths of 2; the first ones are turned around, the second ones 120 degrees apart.
    bench = np.array([[2.0, 2.0], [0.0, 0.0]])
    tested = np.array([[-2.0, -1.0], [0.0, 3**0.5]])
    values = np.array([1.0, 2.0])
    found = aligned("linalg.eigh", (np.eye(2),), [values, tested], [values, bench])
    np.testing.assert_array_equal(found[1], bench * [-1, 1])


def test_a_column_of_zeros_stays() -> None:
    values, zeros = np.array([1.0, 2.0]), np.zeros((2, 2))
    found = aligned("linalg.eigh", (np.eye(2),), [values, zeros], [values, zeros])
    np.testing.assert_array_equal(found[1], zeros)


class TestCastsToIntegers:
    SOURCE = np.array([1.9, -2.5, np.nan, np.inf, 3e9, 255.5], np.float32)
    BENCH = np.array([1, -2, -(2**31), -(2**31), -(2**31), 255], np.int32)

    def test_of_floats_that_integers_do_not_hold_any_integer_is_right(self) -> None:
        tested = np.array([1, -2, 0, 2**31 - 1, 2**31 - 1, 255], np.int32)
        for api in ("int", "to", "type"):
            (chosen,) = self.aligned(api, [self.SOURCE], tested, self.BENCH)
            np.testing.assert_array_equal(chosen, tested)

    def test_of_all_others_only_the_bench_is(self) -> None:
        tested = np.array([2, -3, 0, 0, 0, 256], np.int32)
        (chosen,) = self.aligned("int", [self.SOURCE], tested, self.BENCH)
        np.testing.assert_array_equal(chosen, [1, -2, 0, 0, 0, 255])

    def test_the_limits_of_64_bits_are_held(self) -> None:
        source = np.array([-(2.0**63), 2.0**63, 2.0**62])
        bench = np.array([-(2**63), -(2**63), 2**62])
        (chosen,) = self.aligned("long", [source], np.zeros(3, np.int64), bench)
        np.testing.assert_array_equal(chosen, [-(2**63), 0, 2**62])

    def test_a_copy_casts_its_second_argument(self) -> None:
        tested = np.zeros(6, np.int32)
        (chosen,) = self.aligned("copy_", [tested, self.SOURCE], tested, self.BENCH)
        np.testing.assert_array_equal(chosen, [1, -2, 0, 0, 0, 255])

    def test_integers_wrap_round_in_one_way(self) -> None:
        source, bench = np.array([300]), np.array([44], np.uint8)
        (chosen,) = self.aligned("byte", [source], np.array([255], np.uint8), bench)
        np.testing.assert_array_equal(chosen, bench)

    @staticmethod
    def aligned(api: str, args: list[Any], tested: Any, bench: Any) -> list[Any]:
        call = HostCall(tuple(map(tensor, args)), {})
        name = ApiName("Tensor", api, 0)
        sides = [tensor(tested)], [tensor(bench)]
        return [leaf.data for leaf in chosen_like(name, call, *sides, "pytorch")]


@pytest.mark.parametrize(("observes", "is_right"), [(0, True), (1, False)])
def test_a_middle_is_that_of_the_steps_that_the_call_rounds_with(
    observes: int, is_right: bool
) -> None:
    """Half a step of the given scale is the middle where no new scale is observed."""
    x = np.array([0.5, 3.0, -3.0])
    flags = [tensor([observes]), tensor([1])]
    ends_scale_zero = [tensor([-3.0]), tensor([3.0]), tensor([1.0]), tensor([0])]
    args = (x, *flags, *ends_scale_zero, 0.01, 0, 255, -1)
    tested, bench = np.array([1.0, 3.0, -3.0]), np.array([0.0, 3.0, -3.0])
    (chosen,) = aligned("fused_moving_avg_obs_fake_quant", args, [tested], [bench])
    np.testing.assert_array_equal(chosen, tested if is_right else bench)


@pytest.mark.parametrize(("low", "high", "zero_point"), [(-145.75, 134.75, 5), (-85.75, 92.75, -5)])
def test_a_zero_point_between_two_numbers_is_computed_from_the_end_that_torch_takes(
    low: float, high: float, zero_point: int
) -> None:
    """By the end that is nearer to 0 it is 5 and -5, as torch 2.13 says, by the other one 4 and -6."""
    unknown = (np.array([np.inf]), np.array([-np.inf]))
    found = observed(np.array([low, high]), unknown, 0.01, (-128, 127), None, False)
    assert found.zero_point == [zero_point]
