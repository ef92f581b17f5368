"""The metrics of two tensors: by hand, and against a plain formula in float64."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.numerics.arrays import CACHED_ELEMENTS
from ray_precheck.trace.difference import elements
from ray_precheck.trace.difference.elements import ElementDifference, element_difference

pytestmark = pytest.mark.unit

EPSILON = float(np.finfo(np.float32).eps)


def mapped(array: Any, dtype: str = "") -> MappedTensor:
    array = np.asarray(array)
    return MappedTensor(dtype or str(array.dtype), array.shape, array.reshape(-1))


def compared(target: Any, golden: Any, **tolerances: float) -> ElementDifference:
    return element_difference(mapped(target), mapped(golden), **tolerances)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def test_metrics_are_those_worked_out_by_hand() -> None:
    found = compared(floats(3, 4, 2), floats(3, 2, 4), rtol=0.4, atol=0.5)
    assert found.euclidean == pytest.approx(math.sqrt(8))
    assert found.cosine == pytest.approx((9 + 8 + 8) / 29)
    assert found.max_abs == 2.0
    assert found.worst == 1
    assert found.max_relative == 1.0
    assert found.mape == pytest.approx((0 + 1 + 0.5) / 3)
    assert found.rmse == pytest.approx(math.sqrt(8 / 3))
    assert found.relative_l2 == pytest.approx(math.sqrt(8 / 29))
    assert (found.thousandth, found.five_thousandths) == (1, 1)
    assert found.max_scaled == 0.5
    assert found.beyond == 1  # 2 > 0.5 + 0.4 * 2, and 2 < 0.5 + 0.4 * 4
    assert found.unequal == 2
    assert not found.identical


def test_shares_count_elements_below_a_thousandth_and_five() -> None:
    golden = floats(1, 1, 1, 1)
    found = compared(golden * floats(1, 1.0005, 1.004, 1.006), golden)
    assert (found.thousandth, found.five_thousandths) == (2, 3)


def test_equal_bits_have_no_difference() -> None:
    values = np.linspace(-3, 3, 101, dtype=np.float32)
    found = compared(values, values.copy())
    assert found.identical
    assert (found.euclidean, found.max_abs, found.worst, found.unequal) == (0.0, 0.0, -1, 0)
    assert found.cosine == pytest.approx(1.0)
    assert found.thousandth == found.finite == found.size == 101
    assert (found.mape, found.relative_count) == (0.0, 100)


def test_a_golden_zero_counts_with_the_machine_epsilon_on_both_sides() -> None:
    found = compared(floats(0, 1e-3), floats(0, 0))
    expected = np.float32(1e-3) + np.float32(EPSILON) - np.float32(EPSILON)
    assert found.max_relative == pytest.approx(float(expected) / EPSILON, rel=1e-6)
    assert math.isnan(found.mape)
    assert found.relative_l2 == math.inf
    assert math.isnan(found.cosine)


def test_two_zero_vectors_are_equal() -> None:
    found = compared(floats(0.0, 0.0), floats(0.0, -0.0))
    assert (found.cosine, found.relative_l2, found.max_abs) == (1.0, 0.0, 0.0)
    assert not found.identical


def test_infinities_of_opposite_signs_are_odd_and_flipped() -> None:
    found = compared(floats(1, 2, math.inf), floats(1, 2, -math.inf))
    assert (found.odd, found.flipped, found.first_odd) == (1, 1, 2)
    assert (found.finite, found.euclidean) == (2, 0.0)


def test_nan_on_one_side_is_odd_and_left_out_of_the_metrics() -> None:
    found = compared(floats(1, math.nan, 5), floats(1, 2, 4))
    assert (found.odd, found.flipped, found.first_odd) == (1, 0, 1)
    assert (found.target_nan, found.golden_nan) == (1, 0)
    assert (found.max_abs, found.worst, found.finite) == (1.0, 2, 2)
    assert found.rmse == pytest.approx(math.sqrt(0.5))


def test_nan_and_infinity_at_the_same_places_are_equal() -> None:
    ours = floats(math.nan, math.inf, -math.inf, 1)
    found = compared(ours, ours.copy())
    assert (found.odd, found.target_nan, found.golden_infinite, found.finite) == (0, 1, 2, 1)
    other = compared(floats(math.nan, math.inf, -math.inf, 2), ours)
    assert (other.odd, other.target_nan, other.target_infinite, other.max_abs) == (0, 1, 2, 1.0)


def test_nothing_finite_has_no_numbers() -> None:
    found = compared(floats(math.nan), floats(1))
    assert math.isnan(found.relative_l2)
    assert math.isnan(found.rmse)
    assert math.isnan(found.cosine)


def test_an_empty_tensor_has_no_elements() -> None:
    found = compared(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert (found.size, found.finite, found.identical) == (0, 0, True)


def test_a_scalar_is_one_element() -> None:
    found = compared(np.float32(2.75), np.float32(2.5))
    assert (found.max_abs, found.worst) == (0.25, 0)


def test_large_integers_keep_their_digits() -> None:
    found = compared(np.array([2**40 + 1, 5]), np.array([2**40, 5]))
    assert (found.unequal, found.max_abs, found.worst) == (1, 1.0, 0)


def test_truth_values_count_as_numbers() -> None:
    found = compared(np.array([True, False, True]), np.array([True, True, True]))
    assert (found.unequal, found.max_abs, found.worst) == (1, 1.0, 1)


def test_complex_elements_count_by_their_parts_at_their_own_position() -> None:
    golden = np.array([1 + 1j, 2 + 2j], np.complex64)
    found = compared(golden + np.array([0, 3j], np.complex64), golden)
    assert (found.max_abs, found.worst) == (3.0, 1)
    assert found.euclidean == 3.0


def test_other_dtypes_are_compared_after_widening() -> None:
    golden = np.array([1.0, 1.0 + 2**-20], np.float64)
    found = compared(golden.astype(np.float16), golden)
    assert found.max_abs == 2**-20
    assert not compared(floats(1), np.array([1.0])).identical
    assert compared(np.array([1], np.int32), floats(1)).unequal == 0


def test_formats_that_numpy_lacks_are_widened_piece_by_piece() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)

    def widen(some: Any) -> Any:
        return (some.astype(np.uint32) << 16).view(np.float32)

    target = MappedTensor("bfloat16", (2,), bits, widen)
    found = element_difference(target, mapped(floats(1, 2.5)))
    assert (found.max_abs, found.worst) == (0.5, 1)


def test_sums_keep_the_digits_that_float32_sums_lose() -> None:
    golden = np.full(1 << 22, 1.0, np.float32)
    found = compared(golden * np.float32(1 + 2**-20), golden)
    assert found.golden_squares == float(1 << 22)
    assert found.relative_l2 == pytest.approx(2**-20, rel=1e-12)


@pytest.mark.parametrize(
    "place", [0, CACHED_ELEMENTS - 1, CACHED_ELEMENTS, 2 * CACHED_ELEMENTS + 16]
)
def test_the_worst_element_is_found_in_whatever_piece_it_is(place: int) -> None:
    golden = np.ones(2 * CACHED_ELEMENTS + 17, np.float32)
    target = golden.copy()
    target[place] = 1.5
    assert (found := compared(target, golden)).worst == place
    assert found.unequal == 1
    assert found.finite == golden.size
    target[place] = math.nan
    assert compared(target, golden).first_odd == place


def test_of_differences_that_round_alike_the_exact_one_is_the_largest() -> None:
    golden = floats(1, 1)
    target = floats(1e-9, 1e-8)
    assert compared(target, golden).max_abs == 1.0 - float(np.float32(1e-9))


_FLOATS = hnp.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
)


@settings(max_examples=200, deadline=None)
@given(_FLOATS, st.integers(0, 2**31), st.floats(0, 0.1), st.sampled_from([0.05, 0.5, 1]))
def test_metrics_are_those_of_a_plain_float64_formula(
    golden: Any, seed: int, share: float, differing: float
) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(golden.size) * (rng.random(golden.size) < differing)
    target = (golden * (1 + share * noise)).astype(np.float32)
    found = compared(target, golden, rtol=1e-3, atol=1e-5)
    t, g = target.astype(np.float64), golden.astype(np.float64)
    difference = np.abs(t - g)
    assert found.squares == pytest.approx(float(np.sum(difference**2)), rel=1e-12, abs=1e-300)
    assert found.max_abs == difference.max()
    assert found.worst == (int(np.argmax(difference)) if difference.any() else -1)
    assert found.unequal == np.count_nonzero(difference)
    assert found.golden_squares == pytest.approx(float(g @ g), rel=1e-12)
    norms = float(np.linalg.norm(t) * np.linalg.norm(g))
    if norms:
        assert found.cosine == pytest.approx(float(t @ g) / norms, abs=1e-12)
    scaled = difference / np.maximum(np.maximum(np.abs(t), np.abs(g)), 1)
    assert found.max_scaled == pytest.approx(scaled.max(), rel=1e-6)
    nonzero = g != 0
    if nonzero.any():
        shares = difference[nonzero] / np.abs(g[nonzero])
        assert found.mape == pytest.approx(shares.mean(), rel=1e-5)
    clear = np.abs(difference - (1e-5 + 1e-3 * np.abs(g))) > 1e-6 * (np.abs(g) + 1)
    beyond = difference > 1e-5 + 1e-3 * np.abs(g)
    assert abs(found.beyond - int(beyond.sum())) <= int((~clear).sum())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64"])
def test_elements_taken_out_count_as_they_do_among_all_others(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    size = 2 * CACHED_ELEMENTS + 100
    golden = (8 * rng.standard_normal(size)).astype(dtype)
    golden[::7] = 0
    target = golden.copy()
    places = rng.choice(size, size // 20, replace=False)
    target[places] = target[places] * 1.004 + rng.integers(-2, 3, places.size)
    if dtype != "int64":
        target[5] = golden[6] = math.nan
        target[8] = math.inf
    few = compared(target, golden, rtol=0.01, atol=0.1)
    assert 0 < few.unequal * elements._FEW < size
    monkeypatch.setattr(elements, "_FEW", size)
    every = compared(target, golden, rtol=0.01, atol=0.1)
    for name in ElementDifference.__slots__:
        found, wanted = getattr(few, name), getattr(every, name)
        # Sums have another order.
        assert found == (pytest.approx(wanted, rel=1e-5) if name.endswith(("s", "sum")) else wanted)
