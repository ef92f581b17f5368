"""The likely cause of an error, with planted faults."""

from collections.abc import Callable

import numpy as np
import pytest
from standard_cases import normal

from ray_precheck.accuracy import cause
from ray_precheck.accuracy.cause import likely_cause
from ray_precheck.numerics.arrays import round_to_dtype, spacing
from ray_precheck.schema.dtypes import DTYPES, Array

pytestmark = pytest.mark.unit

FLOATS = ("float32", "float16", "bfloat16")
BENCH = normal(64, 48)


def rounded(values: Array, dtype: str) -> Array:
    return round_to_dtype(np.asarray(values, np.float64), dtype)


def edited(index: object, value: float) -> Callable[[Array], Array]:
    def edit(values: Array) -> Array:
        copy = values.copy()
        copy[index] = value
        return copy

    return edit


FAULTS: dict[str, tuple[Callable[[Array], Array], str]] = {
    "factor": (lambda x: 1.1 * x, "a constant factor: the device is 1.1"),
    "offset": (lambda x: x + 0.5, "a constant offset: the device is the bench plus 0.5"),
    "zeroed block": (
        edited(slice(60, 64), 0.0),
        "192 elements are zero, one block of 192 from index [60, 0] on",
    ),
    "zeroed columns": (
        edited((slice(None), slice(45, 48)), 0.0),
        "192 elements are zero, one block, [0:64, 45:48]",
    ),
    "all zero": (np.zeros_like, "every element is zero"),
    "wrong block": (
        edited((slice(8, 16), slice(0, 6)), 7.0),
        "all 48 wrong elements are in one block, [8:16, 0:6]",
    ),
    "one element": (edited((3, 4), 9.0), "a single element is wrong"),
    "one NaN": (edited((3, 4), np.nan), "a single element is wrong"),
    "sign": (np.negative, "the sign of every element is flipped"),
    "sign of some": (lambda x: np.where(x > 1, -x, x), "the sign is flipped in "),
    "rows forward": (
        lambda x: np.roll(x, 1, 0),
        "rows shifted by one: along axis 0 each is the one before it in the bench",
    ),
    "rows back": (
        lambda x: np.vstack([x[1:], x[:1] * 0]),
        "rows shifted by one: along axis 0 each is the one after it in the bench",
    ),
    "columns": (lambda x: np.roll(x, 1, 1), "elements shifted by one: along axis 1"),
    "transposed": (
        lambda x: x.T.reshape(x.shape),
        "transposed: axes 0 and 1 of the bench are swapped",
    ),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, dtype: str) -> None:
    change, expected = FAULTS[fault]
    assert likely_cause(rounded(change(BENCH), dtype), BENCH, dtype).startswith(expected[:60])
    assert expected in likely_cause(rounded(change(BENCH), "float32"), BENCH, "float32")


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_factor_on_some_elements_is_named_with_their_count(dtype: str) -> None:
    large = np.abs(BENCH) >= 1.5
    factor = 1.02 if dtype == "float32" else 1.5
    found = likely_cause(rounded(np.where(large, factor * BENCH, BENCH), dtype), BENCH, dtype)
    assert found == (
        f"a constant factor on {large.sum()} of {BENCH.size} elements, all those from 1.5 in size on: the"
        f" device is {factor:g} times the bench there"
    )
    scattered = np.random.default_rng(0).random(BENCH.shape) < 0.01
    found = likely_cause(rounded(np.where(scattered, 0.75 * BENCH, BENCH), dtype), BENCH, dtype)
    assert found.startswith(f"a constant factor on {scattered.sum()} of {BENCH.size} elements: the")


RANDOM_ERRORS: dict[str, Callable[[np.random.Generator, Array], Array]] = {
    "absolute": lambda rng, x: x + 0.1 * rng.standard_normal(x.shape),
    "relative": lambda rng, x: x * (1 + 0.1 * rng.standard_normal(x.shape)),
    "of one sign": lambda rng, x: x * (1 + 0.1 * rng.random(x.shape)),
    "another element": lambda rng, x: rng.permutation(x.reshape(-1)).reshape(x.shape),
}


@pytest.mark.parametrize("kind", RANDOM_ERRORS)
def test_random_errors_of_some_elements_are_no_factor(kind: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        where = rng.random(BENCH.shape) < 0.01 * 3.0 ** rng.integers(5)
        device = np.where(where, RANDOM_ERRORS[kind](rng, BENCH), BENCH)
        assert "factor" not in likely_cause(rounded(device, "float32"), BENCH, "float32")


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_honest_output_has_no_cause(dtype: str) -> None:
    assert likely_cause(rounded(BENCH, dtype), BENCH, dtype) == ""
    next_to = np.nextafter(rounded(BENCH, "float32"), np.float32(np.inf))
    assert likely_cause(next_to, BENCH, "float32") == ""


def test_an_output_that_has_nothing_to_do_with_the_bench_has_no_cause() -> None:
    assert likely_cause(rounded(normal(64, 48, seed=7), "float32"), BENCH, "float32") == ""


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [("float32", 1.001), ("float16", 1.001), ("float16", 1.01), ("bfloat16", 1.01)],
)
def test_a_small_factor_is_seen_through_the_rounding(dtype: str, factor: float) -> None:
    found = likely_cause(rounded(factor * BENCH, dtype), BENCH, dtype)
    assert found.startswith(f"a constant factor: the device is {factor:.3f}"[:-1])


def test_flipped_signs_of_small_values_are_told_with_their_size() -> None:
    device = np.where(np.abs(BENCH) < 0.01, -BENCH, BENCH)
    count = int(np.sum(np.abs(BENCH) < 0.01))
    found = likely_cause(rounded(device, "float32"), BENCH, "float32")
    assert found.startswith(f"the sign is flipped in all {count} elements up to 0.00")


@pytest.mark.parametrize("dtype", FLOATS)
def test_flushed_subnormals_are_named(dtype: str) -> None:
    smallest = 2.0 ** DTYPES[dtype].min_exponent
    bench = BENCH.copy()
    bench[5] = np.linspace(0.3, 0.9, 48) * smallest
    device = rounded(bench, dtype)
    device[5] = 0
    found = likely_cause(device, bench, dtype)
    assert found == f"subnormal numbers flushed to zero: 48 elements below {smallest:.3g}"
    device[6] = 0
    assert "flushed" not in likely_cause(device, bench, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_clamped_infinity_is_named(dtype: str, sign: int) -> None:
    bench = BENCH.copy()
    bench[2] = sign * 10 * DTYPES[dtype].largest
    device = rounded(bench, dtype)
    device[2] = sign * DTYPES[dtype].largest
    assert "infinity clamped to the largest" in likely_cause(device, bench, dtype)
    device[2] = 1
    assert "clamped" not in likely_cause(device, bench, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_where_the_bench_overflows_is_named(dtype: str) -> None:
    bench = BENCH.copy()
    bench[2] = 10 * DTYPES[dtype].largest
    device = rounded(bench, dtype)
    device[2] = np.nan
    found = likely_cause(device, bench, dtype)
    assert found.startswith(f"overflow: the bench is beyond the largest {dtype}")
    assert found.endswith("where the device has NaN")


def test_infinity_where_the_bench_is_near_the_largest_number_is_an_overflow() -> None:
    bench = BENCH.copy()
    bench[2] = 60000.0
    device = rounded(bench, "float16")
    device[2] = np.inf
    assert likely_cause(device, bench, "float16").startswith("overflow: infinity where the bench")


@pytest.mark.parametrize("coarse", ["float16", "bfloat16"])
def test_an_output_in_a_coarser_format_is_named(coarse: str) -> None:
    device = rounded(rounded(BENCH, coarse), "float32")
    found = likely_cause(device, BENCH, "float32")
    assert found.startswith(f"every value is exactly a {coarse}")


@pytest.mark.parametrize(
    ("dtype", "coarse"), [("float32", "bfloat16"), ("float32", "float16"), ("float16", "bfloat16")]
)
def test_inputs_in_a_coarser_format_are_named(dtype: str, coarse: str) -> None:
    left, right = normal(64, 256, seed=1), normal(256, 48, seed=2)
    device = rounded(left, coarse).astype(float) @ rounded(right, coarse).astype(float)
    found = likely_cause(rounded(device, dtype), left @ right, dtype)
    assert found.startswith("lower precision: the error is")
    assert f"inputs in {coarse} or of sums accumulated in " in found
    assert found.endswith(coarse)


def test_sums_in_float32_in_another_order_have_no_cause() -> None:
    left, right = normal(64, 256, seed=1), normal(256, 48, seed=2)
    device = np.zeros((64, 48), np.float32)
    for k in reversed(range(256)):
        device += np.outer(left[:, k], right[k]).astype(np.float32)
    assert likely_cause(device, left @ right, "float32") == ""


def test_integers_that_moved_are_named() -> None:
    bench = np.arange(20).reshape(4, 5)
    assert likely_cause(np.roll(bench, 1, 0), bench, "int64").startswith("rows shifted by one")
    swapped = bench.reshape(5, 4).T.copy()
    assert likely_cause(bench, swapped, "int64").startswith("transposed")


def test_complex_numbers_have_causes() -> None:
    bench = BENCH + 1j * normal(64, 48, seed=3)
    device = (1.1 * bench).astype(np.complex64)
    assert likely_cause(device, bench, "complex64").startswith(
        "a constant factor: the device is 1.1"
    )


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 1), (1, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_small_outputs_do_no_harm(shape: tuple[int, ...], dtype: str) -> None:
    bench = np.ones(shape)
    assert isinstance(likely_cause(np.zeros(shape, dtype), bench, dtype), str)
    likely_cause(np.full(shape, np.nan), bench, "float32")
    likely_cause(np.zeros(shape), np.full(shape, np.nan), "float32")


def test_of_large_outputs_the_rows_around_the_worst_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cause, "LARGEST_ELEMENTS", 16 * 48)
    device = rounded(BENCH, "float32")
    device[60:] = 0
    found = likely_cause(device.reshape(8, 8, 48), BENCH.reshape(8, 8, 48), "float32")
    assert found.startswith("192 elements are zero, one block of 192 from index [12, 0] on")
    assert found.endswith("(looked at: rows 48 to 63 of 64, around the worst; indices begin there)")
    assert likely_cause(rounded(BENCH, "float32"), BENCH, "float32") == ""


def test_of_a_long_row_the_elements_around_the_worst_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cause, "LARGEST_ELEMENTS", 100)
    flat = np.r_[np.ones(2000), 2.0, np.ones(999)]
    found = likely_cause(rounded(-flat, "float32"), flat, "float32")
    assert found.startswith("the sign of every element is flipped (looked at: rows 1950 to 2049 of")


def test_a_factor_next_to_1_is_told_by_its_distance() -> None:
    device = BENCH * (1 + 2.0**-12)
    found = likely_cause(device, BENCH, "float64")
    assert found.startswith("a constant factor: the device is 1 + 0.00024 times the bench")


@pytest.mark.parametrize("units", [1, 2])
def test_a_few_units_of_float16_itself_are_no_bfloat16(units: int) -> None:
    generator = np.random.default_rng(0)
    bench = generator.normal(size=(64, 64))
    step = units * spacing(np.abs(bench), "float16")
    for turns in (generator.choice([-1, 1], bench.shape), generator.uniform(-1, 1, bench.shape)):
        device = round_to_dtype(bench + turns * step, "float16")
        assert "bfloat16" not in likely_cause(device, bench, "float16")


def test_inputs_that_were_rounded_to_bfloat16_are_named_in_float16() -> None:
    bench = np.random.default_rng(0).normal(size=(64, 64))
    device = round_to_dtype(1.2345 * round_to_dtype(bench, "bfloat16"), "float16")
    found = likely_cause(device, 1.2345 * bench, "float16")
    assert found.endswith("inputs in bfloat16 or of sums accumulated in float16 or bfloat16")
