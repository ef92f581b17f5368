"""The errors against float64, with values worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from ray_precheck.accuracy.metrics import (
    Wrong,
    chunks,
    is_measurable,
    measure_errors,
    rounded_bench,
)
from ray_precheck.accuracy.standards.honest import distance
from ray_precheck.accuracy.thresholds import limit_of
from ray_precheck.numerics import arrays
from ray_precheck.schema.dtypes import Array

pytestmark = pytest.mark.unit


def array(*values: Any) -> Array:
    return np.array(values)


def test_relative_errors_are_of_the_elements_above_the_small_value() -> None:
    found = measure_errors(
        array(1.5, 2.0, 0.25, 2.0**-21), array(1.0, 2.0, 0.5, 2.0**-21), "float32"
    )
    assert (found.elements, found.normal, found.small) == (4, 3, 1)
    assert found.max_rel_err == pytest.approx(0.5, rel=1e-12)
    assert found.mean_rel_err == pytest.approx(1 / 3, rel=1e-12)
    assert found.rmse == pytest.approx(math.sqrt((0.25 + 0.0625) / 3), rel=1e-12)
    assert found.small_value_err == 0.0


@pytest.mark.parametrize(
    ("dtype", "small_value"), [("float32", 2.0**-20), ("float16", 2.0**-10), ("bfloat16", 2.0**-10)]
)
def test_a_value_is_small_up_to_the_small_value_of_its_dtype(
    dtype: str, small_value: float
) -> None:
    above = float(np.nextafter(small_value, 1.0))
    found = measure_errors(np.zeros(3), array(small_value, -small_value, above), dtype)
    assert (found.normal, found.small) == (1, 2)


@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 2.0**-30), ("float16", 1e-16), ("bfloat16", 1e-16)]
)
def test_a_small_value_is_wrong_above_the_absolute_limit_of_its_dtype(
    dtype: str, limit: float
) -> None:
    right, wrong = array(limit, 0.0), array(1.01 * limit, 0.0)
    assert measure_errors(right, np.zeros(2), dtype).small_value_err == 0.0
    assert measure_errors(wrong, np.zeros(2), dtype).small_value_err == 0.5


@pytest.mark.parametrize(
    ("dtype", "eps"), [("float32", 2.0**-52), ("float16", 2.0**-23), ("bfloat16", 2.0**-8)]
)
def test_the_divisor_of_a_relative_error_has_the_epsilon_of_its_dtype(
    dtype: str, eps: float
) -> None:
    found = measure_errors(array(2.0), array(1.0), dtype)
    assert found.max_rel_err == pytest.approx(1.0 / (1.0 + eps), rel=1e-15)


def test_the_bench_is_not_rounded_to_the_dtype() -> None:
    exact = array(1 + 2.0**-13)
    assert measure_errors(array(1.0), exact, "float16").max_rel_err > 2.0**-14


def test_what_is_not_finite_once_rounded_is_left_out() -> None:
    device = array(np.inf, np.nan, 1.0, 65504.0, np.inf)
    bench = array(1e6, 1.0, np.nan, 1e6, 3.0)
    found = measure_errors(device, bench, "float16")
    assert (found.normal, found.small, found.max_rel_err, found.rmse) == (0, 0, 0.0, 0.0)


def test_an_empty_output_has_no_error() -> None:
    found = measure_errors(np.zeros((0, 3)), np.zeros((0, 3)), "float32")
    assert (found.elements, found.max_rel_err, found.mean_rel_err, found.rmse) == (0, 0.0, 0.0, 0.0)
    assert found.worst_index == ()


def test_complex_numbers_are_measured_by_their_magnitudes() -> None:
    found = measure_errors(array(3 + 4j), array(0 + 4j), "complex64")
    assert found.max_rel_err == pytest.approx(0.75)
    assert found.rmse == pytest.approx(3.0)


def test_the_worst_index_is_that_of_the_largest_relative_error() -> None:
    device, bench = np.ones((4, 5)), np.ones((4, 5))
    device[1, 2], device[3, 4] = 1.5, 2.0
    assert measure_errors(device, bench, "float32").worst_index == (3, 4)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    bench = draw.standard_normal((13, 11))
    device = bench + 1e-3 * draw.standard_normal((13, 11))
    whole = measure_errors(device, bench, "float32")
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", 7)
    assert len(list(chunks(device, bench, "float32"))) == 21
    pieces = measure_errors(device, bench, "float32")
    assert pieces.worst_index == whole.worst_index
    for name in ("max_rel_err", "mean_rel_err", "rmse", "small_value_err"):
        assert getattr(pieces, name) == pytest.approx(getattr(whole, name), rel=1e-12)


def test_the_root_mean_square_of_huge_errors_does_not_overflow() -> None:
    found = measure_errors(array(3e300, 0.0), array(0.5, 4e300), "float64")
    assert found.rmse == pytest.approx(math.sqrt(12.5) * 1e300)


def test_arrays_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shapes differ: \(2,\) and \(3,\)"):
        measure_errors(np.zeros(2), np.zeros(3), "float32")


def test_a_dtype_without_a_row_has_that_of_float32() -> None:
    table = {"float32": 1.0, "float16": 2.0}
    assert [limit_of(table, name) for name in ("float16", "float64", "complex64")] == [
        2.0,
        1.0,
        1.0,
    ]


def test_only_floats_and_complex_numbers_are_measured() -> None:
    names = ("float32", "bfloat16", "complex64", "int8", "uint8", "bool")
    assert [is_measurable(name) for name in names] == [True, True, True, False, False, False]


def test_a_bench_of_another_kind_is_not_rounded() -> None:
    assert rounded_bench(array(1.3), "int32")[0] == 1.3
    assert rounded_bench(array(1 + 2.0**-13), "float16")[0] == 1.0
    assert rounded_bench(array(3), "float16").dtype.kind == "i"


def test_wrong_elements_are_counted_among_those_considered() -> None:
    values, considered = array(5.0, 1.0, np.nan, 9.0), array(True, True, True, False)
    found = Wrong().plus(values, considered, 2.0, start=10)
    assert (found.count, found.total, found.at, found.largest) == (2, 3, 12, math.inf)
    more = found.plus(array(7.0), array(True), 2.0, start=20)
    assert (more.count, more.total, more.at, more.share) == (3, 4, 12, 0.75)


def test_a_value_at_the_limit_is_not_wrong() -> None:
    assert Wrong().plus(array(2.0), array(True), 2.0, 0).count == 0
    assert Wrong().share == 0.0


def test_an_element_at_the_limit_is_not_beyond_it() -> None:
    every = np.array([True])
    assert Wrong().plus(np.array([2.0]), every, 2.0, 0) == Wrong(0, 1, 0.0, -1)
    assert Wrong().plus(np.array([3.0]), every, 2.0, 7) == Wrong(1, 1, 3.0, 7)


def test_equal_outputs_have_no_worst_element() -> None:
    found = distance(np.ones(3, np.float32), np.ones(3), "float32")
    assert (found.largest, found.at, found.relative_at) == (0.0, -1, -1)


def test_of_equal_errors_the_first_is_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", 2)
    out, bench = array(1.0, 1.5, 1.0, 1.5), np.ones(4)
    assert measure_errors(out, bench, "float64").worst_index == (1,)
    every = np.ones(2, bool)
    wrong = Wrong().plus(array(0.0, 3.0), every, 1.0, 0).plus(array(3.0, 3.0), every, 1.0, 2)
    assert (wrong.count, wrong.total, wrong.largest, wrong.at) == (3, 4, 3.0, 1)


def test_an_error_beyond_all_numbers_has_no_finite_mean() -> None:
    assert measure_errors(array(1.7e308, 1.0), array(-1.7e308, 1.0), "float64").rmse == math.inf
