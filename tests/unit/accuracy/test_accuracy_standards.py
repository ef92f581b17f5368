"""From numbers to a verdict."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ray_precheck.accuracy.standards.base import ROUNDING, Judgement, ulp
from ray_precheck.accuracy.standards.msprobe import Msprobe, judge
from ray_precheck.accuracy.thresholds import COSINE_LIMIT, MAX_ABS_ERR_LIMIT, allowed
from ray_precheck.schema.result import Metrics, Verdict

pytestmark = pytest.mark.unit

GOOD = Metrics(cosine=1.0, max_abs_err=0.0, max_rel_err=0.0, bench_at_worst=1.0, bench_largest=1.0)


def test_the_limits_are_those_of_msprobe() -> None:
    assert (COSINE_LIMIT, MAX_ABS_ERR_LIMIT) == (0.99, 0.0001)


def test_an_output_that_agrees_passes_without_a_word() -> None:
    assert judge(GOOD, "float32") == Judgement(Verdict.PASS, "")


@pytest.mark.parametrize(
    ("cosine", "verdict"),
    [
        (1.0, Verdict.PASS),
        (float(np.nextafter(0.99, 1.0)), Verdict.PASS),
        (0.99, Verdict.ERROR),
        (0.0, Verdict.ERROR),
        (-1.0, Verdict.ERROR),
        (math.nan, Verdict.ERROR),
        (None, Verdict.PASS),
    ],
)
def test_the_cosine_must_be_above_its_limit_where_there_is_one(
    cosine: float | None, verdict: Verdict
) -> None:
    found = judge(replace(GOOD, cosine=cosine), "float32")
    assert found.verdict is verdict
    assert ("is not above 0.99" in found.message) == (verdict is Verdict.ERROR)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (0.0, Verdict.PASS),
        (float(np.nextafter(0.0001, 0.0)), Verdict.PASS),
        (0.0001, Verdict.ERROR),
        (1.0, Verdict.ERROR),
        (math.inf, Verdict.ERROR),
        (math.nan, Verdict.ERROR),
    ],
)
def test_the_largest_absolute_error_must_be_below_its_limit(error: float, verdict: Verdict) -> None:
    found = judge(replace(GOOD, max_abs_err=error, worst_index=(2, 1)), "float32")
    assert found.verdict is verdict
    assert ("at index [2, 1] is not below 0.0001" in found.message) == (verdict is Verdict.ERROR)


def test_the_relative_error_is_not_judged() -> None:
    assert judge(replace(GOOD, max_rel_err=math.inf), "float32").verdict is Verdict.PASS


def test_both_reasons_are_told() -> None:
    message = judge(replace(GOOD, cosine=0.5, max_abs_err=1.0), "float32").message
    assert message.startswith("cosine 0.5 is not above 0.99; MaxAbsErr 1 at index []")


def test_a_mismatch_is_an_error_whatever_the_numbers_say() -> None:
    found = judge(replace(GOOD, mismatch="at index [3] it is nan"), "float32")
    assert found == Judgement(Verdict.ERROR, "at index [3] it is nan")


def test_elements_that_were_left_out_are_told_in_a_pass_and_in_an_error() -> None:
    note = "2 NaN or infinite elements agree and are left out"
    assert judge(replace(GOOD, left_out=2), "float32") == Judgement(Verdict.PASS, note)
    assert judge(replace(GOOD, left_out=2, mismatch="m"), "float32").message == f"m; {note}"
    assert judge(replace(GOOD, left_out=2, cosine=0.0), "float32").message.endswith(f"; {note}")


@pytest.mark.parametrize(
    ("dtype", "magnitude", "unit"),
    [("bfloat16", 100.0, "0.5"), ("float16", 100.0, "0.0625"), ("float32", 2.0**20, "0.125")],
)
def test_a_limit_finer_than_the_dtype_is_explained(dtype: str, magnitude: float, unit: str) -> None:
    numbers = replace(GOOD, max_abs_err=0.5, bench_at_worst=magnitude, bench_largest=magnitude)
    found = judge(numbers, dtype)
    assert found.verdict is Verdict.ERROR
    assert f"one unit in the last place of {dtype} at {magnitude:.6g} is {unit}" in found.message
    count = 0.5 / float(unit)
    assert f"(the error is {count:.3g} unit{'' if count == 1 else 's'})" in found.message
    assert ROUNDING in found.message


def test_an_error_of_many_units_in_the_last_place_is_not_put_down_to_rounding() -> None:
    numbers = replace(GOOD, max_abs_err=5.0, bench_at_worst=100.0, bench_largest=100.0)
    message = judge(numbers, "bfloat16").message
    assert "already larger than the limit, but the error is 10 units" in message
    assert ROUNDING not in message


def test_a_unit_in_the_last_place_is_that_of_the_dtype_at_the_magnitude() -> None:
    assert ulp(100.0, "bfloat16") == 0.5
    assert ulp(1.0, "float32") == 2.0**-23
    assert ulp(0.0, "float16") == 2.0**-24


def test_an_error_within_the_rounding_noise_of_the_largest_output_is_explained() -> None:
    numbers = replace(GOOD, max_abs_err=2.0**-12, bench_at_worst=0.5, bench_largest=1000.0)
    message = judge(numbers, "float32").message
    assert f"{ROUNDING} the error is 4 units in the last place of float32" in message
    assert message.endswith("at the largest output 1000")


# 2^-10 is a unit of float16 at 1, and 8 of them are noise.
@pytest.mark.parametrize(
    ("limit", "units", "is_larger", "is_noise"),
    [(2.0**-11, 8, True, True), (2.0**-11, 9, True, False), (2.0**-10, 8, False, True)],
)
def test_a_unit_must_be_larger_than_the_limit_to_excuse_an_error(
    limit: float, units: int, is_larger: bool, is_noise: bool
) -> None:
    numbers = replace(GOOD, max_abs_err=units * 2.0**-10)
    message = judge(numbers, "float16", limits=Msprobe(max_abs_err=limit)).message
    assert ("already larger than the limit" in message) is is_larger
    assert (ROUNDING in message) is is_noise


@pytest.mark.parametrize(
    ("dtype", "error"), [("float32", 0.01), ("float32", math.inf), ("float64", 0.001)]
)
def test_an_error_far_above_the_rounding_noise_has_no_excuse(dtype: str, error: float) -> None:
    numbers = replace(GOOD, max_abs_err=error, bench_at_worst=0.5, bench_largest=1000.0)
    message = judge(numbers, dtype).message
    assert "last place" not in message
    assert message.endswith("is not below 0.0001")


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_have_no_rounding_noise(dtype: str) -> None:
    numbers = replace(GOOD, max_abs_err=1.0, bench_at_worst=1e18, bench_largest=1e18)
    assert "last place" not in judge(numbers, dtype).message


def test_rounding_noise_never_changes_a_verdict() -> None:
    numbers = replace(GOOD, max_abs_err=1e-3, bench_at_worst=1e4, bench_largest=1e4)
    assert judge(numbers, "bfloat16").verdict is Verdict.ERROR
    assert judge(numbers, "float64").verdict is Verdict.ERROR


@pytest.mark.parametrize(
    ("dtype", "units"), [("float32", 2.0), ("complex128", 2.0), ("float16", 0.0)]
)
def test_units_of_inputs_are_allowed_where_kernels_compute_in_the_dtype(
    dtype: str, units: float
) -> None:
    more = allowed("Functional.grid_sample", dtype).input_units
    assert more == (units or allowed("Torch.add", dtype).input_units)
