"""Rounding and spacing of number formats, against tables of every representable number."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ray_precheck.numerics import arrays
from ray_precheck.numerics.arrays import (
    epsilon_of,
    machine_epsilon,
    overflow_from,
    round_to_dtype,
    smallest_normal,
    smallest_subnormal,
    spacing,
    unit_roundoff,
)
from ray_precheck.schema.dtypes import DTYPES, Array

pytestmark = pytest.mark.unit

SMALL_FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = tuple(name for name, dtype in DTYPES.items() if dtype.kind == "float")
ALL_NUMPY = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


def every_finite(dtype: str) -> Array:
    """Return the finite numbers of a format in ascending order, made from all its bit patterns."""
    native = ALL_NUMPY[dtype]
    bits = np.arange(2 ** (8 * native.itemsize), dtype=f"uint{8 * native.itemsize}")
    with np.errstate(invalid="ignore"):  # signalling NaN patterns
        values = bits.view(native).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


TABLES = {dtype: every_finite(dtype) for dtype in SMALL_FLOATS}


def nearest(value: float, dtype: str) -> float:
    """Return the number of the table that is nearest, ties to the even one, beyond it infinity."""
    table = TABLES[dtype]
    largest = float(table[-1])
    if abs(value) > largest:
        step = Fraction(largest) - Fraction(float(table[-2]))
        beyond = Fraction(abs(value)) - Fraction(largest)
        # The largest number has the odd pattern wherever infinity follows it; e4m3fn has it even.
        ends_odd = dtype != "float8_e4m3fn"
        if beyond > step / 2 or (beyond == step / 2 and ends_odd):
            return float(np.copysign(np.inf, value))
        return float(np.copysign(largest, value))
    above = int(np.searchsorted(table, value))
    if float(table[above]) == value:
        return value
    low, high = float(table[above - 1]), float(table[above])
    to_low, to_high = Fraction(value) - Fraction(low), Fraction(high) - Fraction(value)
    if to_low != to_high:
        return low if to_low < to_high else high
    return low if Fraction(low) / (Fraction(high) - Fraction(low)) % 2 == 0 else high


@st.composite
def awkward_floats(draw: st.DrawFn, dtype: str) -> float:
    """Draw any float64, a number of the format, a tie, or a neighbour of a tie."""
    table = TABLES[dtype]
    place = draw(st.integers(0, len(table) - 2))
    tie = (float(table[place]) + float(table[place + 1])) / 2
    return draw(
        st.one_of(
            st.floats(allow_nan=False, allow_infinity=False),
            st.sampled_from(
                [float(table[place]), tie, np.nextafter(tie, np.inf), np.nextafter(tie, -np.inf)]
            ).map(float),
        )
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_rounding_finds_the_nearest_number_with_ties_to_even(
    dtype: str, data: st.DataObject
) -> None:
    value = data.draw(awkward_floats(dtype))
    assert float(round_to_dtype(np.array([value]), dtype)[0]) == nearest(value, dtype)


@settings(deadline=None, max_examples=150)
@given(value=awkward_floats("float8_e4m3fn").filter(lambda x: abs(x) <= 464.0))
@example(464.0)  # the tie above the largest number goes down to it, which is even
@example(2.0**-10)  # half of the smallest subnormal goes to 0
def test_rounding_to_e4m3fn_finds_the_nearest_number_up_to_its_last_tie(value: float) -> None:
    rounded = float(round_to_dtype(np.array([value]), "float8_e4m3fn")[0])
    assert rounded == nearest(value, "float8_e4m3fn")


@pytest.mark.parametrize("value", [464.5, 500.0, -1e30])
def test_what_overflows_e4m3fn_is_nan_because_it_has_no_infinity(value: float) -> None:
    assert np.isnan(np.array(value).astype(ml_dtypes.float8_e4m3fn).astype(np.float64))
    assert np.isnan(round_to_dtype(np.array([value]), "float8_e4m3fn")[0])


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_numbers_of_the_format_round_to_themselves(dtype: str) -> None:
    table = TABLES[dtype]
    rounded = round_to_dtype(table, dtype)
    assert rounded.dtype == DTYPES[dtype].carrier
    np.testing.assert_array_equal(rounded.astype(np.float64), table)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_rounding_float32_numbers_agrees_with_ml_dtypes(numbers: list[float]) -> None:
    single = np.array(numbers, dtype=np.float32)
    with np.errstate(over="ignore"):
        expected = single.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_to_dtype(single.astype(np.float64), "bfloat16"), expected)


def test_bfloat16_is_rounded_once_and_not_through_float32() -> None:
    # Just above the tie between 1 and 1 + 2**-7; in float32 the last bit is lost and it looks a tie.
    value = 1.0 + 2.0**-8 + 2.0**-40
    through_float32 = round_to_dtype(np.array([np.float32(value)], dtype=np.float64), "bfloat16")
    assert through_float32[0] == 1.0
    assert round_to_dtype(np.array([value]), "bfloat16")[0] == 1.0 + 2.0**-7


def test_float16_is_rounded_once_and_not_through_float32() -> None:
    value = 1.0 + 2.0**-11 + 2.0**-40
    assert np.float16(np.float32(value)) == 1.0
    assert round_to_dtype(np.array([value]), "float16")[0] == np.float16(1.0 + 2.0**-10)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2", "float32"])
def test_beyond_the_last_tie_numbers_become_infinite_and_at_the_largest_they_stay(
    dtype: str,
) -> None:
    info = DTYPES[dtype]
    step = float(spacing(np.array([info.largest]), dtype)[0])
    below_tie = np.nextafter(info.largest + step / 2, 0.0)
    values = np.array([info.largest, below_tie, info.largest + step / 2, -1.7e308])
    with np.errstate(over="raise"):
        rounded = round_to_dtype(values, dtype)
    np.testing.assert_array_equal(rounded, np.array([info.largest, info.largest, np.inf, -np.inf]))


@pytest.mark.parametrize("dtype", [name for name in FLOATS if name != "float8_e4m3fn"])
def test_nan_infinity_and_the_sign_of_zero_survive_rounding(dtype: str) -> None:
    rounded = round_to_dtype(np.array([np.nan, np.inf, -np.inf, -0.0, 0.0]), dtype)
    assert np.isnan(rounded[0])
    assert rounded[1] == np.inf
    assert rounded[2] == -np.inf
    assert list(np.signbit(rounded[3:])) == [True, False]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float16"])
def test_rounding_keeps_the_shape_also_of_scalars_and_of_empty_arrays(dtype: str) -> None:
    for shape in ((), (0,), (2, 0, 3), (2, 3)):
        rounded = round_to_dtype(np.full(shape, 1.25), dtype)
        assert isinstance(rounded, np.ndarray)
        assert rounded.shape == shape
        assert (rounded == 1.25).all()


@pytest.mark.parametrize("chunk_elements", [1, 3, 7])
def test_the_size_of_the_chunks_changes_no_number(
    monkeypatch: pytest.MonkeyPatch, chunk_elements: int
) -> None:
    values = np.linspace(-3.0, 3.0, 40).reshape(4, 10).T
    whole = round_to_dtype(values, "bfloat16")
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", chunk_elements)
    np.testing.assert_array_equal(round_to_dtype(values, "bfloat16"), whole)
    np.testing.assert_array_equal(whole, values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_complex_numbers_round_both_parts() -> None:
    value = np.array([1.0 + 2.0**-30 + (2.0 - 2.0**-40) * 1j])
    rounded = round_to_dtype(value, "complex64")
    assert rounded.dtype == np.complex64
    assert rounded[0] == 1.0 + 2.0j


def test_integers_and_booleans_are_cast() -> None:
    assert round_to_dtype(np.array([1, 0, 2]), "bool").tolist() == [True, False, True]
    cast = round_to_dtype(np.array([-3, 7]), "int8")
    assert cast.dtype == np.int8
    assert cast.tolist() == [-3, 7]


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_the_quantum_is_the_distance_to_the_next_number(dtype: str) -> None:
    positive = TABLES[dtype][TABLES[dtype] >= 0]
    np.testing.assert_array_equal(spacing(positive[:-1], dtype), np.diff(positive))


@settings(deadline=None, max_examples=60)
@given(st.floats(allow_nan=False, allow_infinity=False))
@example(0.0)
@example(5e-324)
@example(1.7976931348623157e308)
def test_the_quantum_of_float64_is_that_of_the_math_module(value: float) -> None:
    assert float(spacing(np.array([value]), "float64")[0]) == math.ulp(value)


def test_zero_and_what_is_not_finite_have_the_quantum_of_the_subnormals() -> None:
    steps = spacing(np.array([0.0, np.nan, np.inf, -np.inf]), "float16")
    assert steps.tolist() == [2.0**-24] * 4


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_epsilon_is_the_spacing_at_one_and_half_of_it_is_lost_at_most(dtype: str) -> None:
    table = TABLES[dtype]
    assert machine_epsilon(dtype) == float(table[table > 1.0][0]) - 1.0
    values = np.linspace(1.0, 2.0, 10_001)
    lost = np.abs(round_to_dtype(values, dtype) - values) / values
    bound = unit_roundoff(dtype) / (1.0 + unit_roundoff(dtype))
    assert 0.9 * bound < lost.max() <= bound


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_epsilon_and_the_smallest_numbers_are_those_of_numpy(dtype: str) -> None:
    info = np.finfo(dtype)
    assert machine_epsilon(dtype) == float(info.eps) == 2 * unit_roundoff(dtype)
    assert smallest_normal(dtype) == float(info.smallest_normal)
    assert smallest_subnormal(dtype) == float(info.smallest_subnormal)


def test_dtypes_are_known_by_any_spelling_and_others_have_no_epsilon() -> None:
    assert epsilon_of("torch.half") == epsilon_of("Float16") == 2.0**-10
    assert epsilon_of("Complex64") == 2.0**-23
    assert [epsilon_of(name) for name in ("int64", "bool", "torch.quint4x2", "")] == [0.0] * 4


@pytest.mark.parametrize("dtype", [name for name, each in DTYPES.items() if each.kind == "float"])
def test_numbers_overflow_from_the_first_that_rounding_does_not_keep(dtype: str) -> None:
    first = overflow_from(dtype)
    ends = np.array([np.nextafter(first, 0.0), first])
    for sign in (1.0, -1.0):
        assert np.isfinite(round_to_dtype(sign * ends, dtype)).tolist() == [True, False]
