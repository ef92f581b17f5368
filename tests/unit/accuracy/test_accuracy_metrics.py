"""Distances between a tested output and the bench, worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from ray_precheck.accuracy.metrics import metrics_of
from ray_precheck.numerics import arrays
from ray_precheck.schema.dtypes import DTYPES
from ray_precheck.schema.result import Metrics

pytestmark = pytest.mark.unit

INF, NAN = math.inf, math.nan
NORMAL_FLOAT32 = 2.0**-126


def compared(
    device: Any, bench: Any, dtype: str = "float64", smallest_normal: float = NORMAL_FLOAT32
) -> Metrics:
    return metrics_of(np.array(device, dtype), np.array(bench, dtype), smallest_normal)


def test_the_numbers_of_a_vector_worked_out_by_hand() -> None:
    found = compared([1, 2, 3], [1, 2, 5])
    assert found.cosine == pytest.approx(20 / math.sqrt(14 * 30), abs=1e-15)
    assert found.max_abs_err == 2.0
    assert found.max_rel_err == 0.4
    assert found.worst_index == (2,)
    assert found.bench_at_worst == 5.0
    assert found.bench_largest == 5.0
    assert found.left_out == 0
    assert found.mismatch == ""


def test_the_worst_element_of_a_matrix_is_named_by_row_and_column() -> None:
    found = compared([[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, -6, 5]])
    assert found.worst_index == (1, 1)
    assert found.bench_at_worst == 6.0
    assert found.max_abs_err == 10.0
    assert found.max_rel_err == pytest.approx(10 / 6)


def test_of_equally_wrong_elements_the_first_is_the_worst() -> None:
    assert compared([1, 0, 0, 1], [0, 0, 0, 0]).worst_index == (0,)


def test_the_largest_relative_error_need_not_be_at_the_largest_absolute_one() -> None:
    found = compared([100.0, 2.0], [90.0, 1.0])
    assert found.max_abs_err == 10.0
    assert found.max_rel_err == 1.0


def test_the_relative_error_at_zero_is_in_units_of_the_smallest_normal_number() -> None:
    assert compared([3.0, 1.0], [0.0, 1.0], smallest_normal=0.5).max_rel_err == 6.0
    assert compared([0.25, 1.0], [0.125, 1.0], smallest_normal=0.5).max_rel_err == 0.25


def test_a_relative_error_beyond_all_floats_is_infinite() -> None:
    assert compared([5.0, 1.0], [0.0, 1.0], smallest_normal=2.0**-1022).max_rel_err == INF


@pytest.mark.parametrize("dtype", [name for name, d in DTYPES.items() if d.carrier == name])
def test_equal_outputs_of_every_dtype_have_no_error(dtype: str) -> None:
    found = compared([[0, 1], [1, 1]], [[0, 1], [1, 1]], dtype)
    assert found.cosine == pytest.approx(1.0)
    assert (found.max_abs_err, found.max_rel_err, found.mismatch) == (0.0, 0.0, "")


@pytest.mark.parametrize(
    ("device", "bench", "cosine"),
    [
        ([1, 0], [0, 1], 0.0),
        ([1, 1], [-1, -1], -1.0),
        ([1, 1], [2, 2], 1.0),
        ([0, 0], [0, 0], 1.0),
        ([0, 0], [1, 0], 0.0),
        ([1, 0], [0, 0], 0.0),
    ],
)
def test_the_cosine_of_opposite_right_angled_and_zero_vectors(
    device: list[float], bench: list[float], cosine: float
) -> None:
    assert compared(device, bench).cosine == pytest.approx(cosine, abs=1e-15)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
def test_empty_outputs_agree(shape: tuple[int, ...]) -> None:
    assert metrics_of(np.zeros(shape), np.zeros(shape), 1.0) == Metrics(None, 0.0, 0.0)


@pytest.mark.parametrize(("shape", "index"), [((), ()), ((1,), (0,)), ((1, 1), (0, 0))])
def test_one_element_has_no_cosine(shape: tuple[int, ...], index: tuple[int, ...]) -> None:
    found = metrics_of(np.full(shape, 3.0), np.full(shape, 2.0), 1.0)
    assert found.cosine is None
    assert (found.max_abs_err, found.max_rel_err, found.worst_index) == (1.0, 0.5, index)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        metrics_of(np.zeros((2, 3)), np.zeros((3, 2)), 1.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_and_infinity_that_agree_are_left_out(dtype: str) -> None:
    values = [NAN, INF, -INF, 2.0, 4.0]
    found = compared(values, [NAN, INF, -INF, 2.0, 3.0], dtype)
    assert found.left_out == 3
    assert found.mismatch == ""
    assert (found.max_abs_err, found.worst_index, found.bench_largest) == (1.0, (4,), 3.0)
    assert found.cosine == pytest.approx(16 / math.sqrt(20 * 13))


def test_outputs_of_nothing_but_agreeing_nan_have_no_error() -> None:
    found = compared([NAN, NAN], [NAN, NAN])
    assert (found.cosine, found.max_abs_err, found.max_rel_err) == (1.0, 0.0, 0.0)
    assert (found.left_out, found.mismatch) == (2, "")


@pytest.mark.parametrize(
    ("device", "bench"),
    [(NAN, 1.0), (1.0, NAN), (INF, -INF), (INF, NAN), (NAN, INF), (INF, 1e308), (1e308, -INF)],
)
@pytest.mark.parametrize("chunk_elements", [1, 2, 1024])
def test_nan_and_infinity_that_differ_name_the_first_index(
    monkeypatch: pytest.MonkeyPatch, device: float, bench: float, chunk_elements: int
) -> None:
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", chunk_elements)
    found = compared([[1, NAN], [device, device]], [[50, NAN], [bench, bench]])
    assert found.mismatch == f"at index [1, 0] it is {device} where the bench has {bench}"
    assert found.worst_index == (1, 0)
    assert (found.max_abs_err, found.max_rel_err) == (INF, INF)
    assert found.left_out == 1


def test_a_single_nan_is_a_mismatch_too() -> None:
    found = compared(NAN, 1.0)
    assert found.mismatch == "at index [] it is nan where the bench has 1.0"
    assert found.worst_index == ()


def test_complex_numbers_are_compared_in_the_plane() -> None:
    found = compared([3 + 4j, 1j, 1], [0, 1, 1j], "complex64")
    assert found.max_abs_err == 5.0
    assert found.worst_index == (0,)
    # <d, b> = 0 over the parts (3, 4, 0, 1, 1, 0) and (0, 0, 1, 0, 0, 1).
    assert found.cosine == pytest.approx(0.0, abs=1e-15)
    assert compared([1 + 1j, 2], [1 + 1j, 2], "complex128").cosine == pytest.approx(1.0)


def test_complex_nan_and_infinity_agree_or_are_named() -> None:
    agree = compared(
        [complex(NAN, 1), complex(INF, 2), 1], [complex(0, NAN), complex(INF, 2), 1], "complex128"
    )
    assert (agree.left_out, agree.mismatch) == (2, "")
    differ = compared([1, complex(INF, 2)], [1, complex(INF, -2)], "complex128")
    assert differ.worst_index == (1,)
    assert "at index [1]" in differ.mismatch


def test_a_strided_output_is_compared_element_by_element() -> None:
    device, bench = np.arange(12.0).reshape(3, 4).T, np.arange(12.0).reshape(3, 4).T.copy()
    bench[3, 1] += 1
    assert metrics_of(device, bench, 1.0).worst_index == (3, 1)


def test_a_strided_complex_vector_is_compared() -> None:
    every_second = np.arange(10, dtype=np.complex128)[::2]
    assert metrics_of(every_second, every_second, 1.0).max_abs_err == 0.0


@pytest.mark.parametrize("real", ["float32", "int64"])
def test_a_real_output_where_the_bench_is_complex_is_compared_in_the_plane(real: str) -> None:
    found = metrics_of(np.array([1, 2], real), np.array([1, 2 + 1j]), 1.0)
    assert found.max_abs_err == 1.0
    assert found.cosine == pytest.approx(5 / math.sqrt(5 * 6))


def test_64_bit_integers_are_subtracted_exactly() -> None:
    big = 2**53
    found = compared([big + 1, 0], [big, 0], "int64")
    assert found.max_abs_err == 1.0
    assert compared([2**64 - 1, 0], [2**64 - 2, 0], "uint64").max_abs_err == 1.0
    assert compared([0, 1], [2**64 - 1, 1], "uint64").max_abs_err == float(2**64)


def test_the_difference_of_the_extremes_of_int64_does_not_wrap() -> None:
    found = compared([-(2**63), 0], [2**63 - 1, 0], "int64", 1.0)
    assert found.max_abs_err == float(2**64)
    assert found.max_rel_err == 2.0
    assert found.cosine == pytest.approx(-1.0)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_small_integers_do_not_wrap(dtype: str) -> None:
    info = np.iinfo(dtype)
    found = compared([info.min, 1], [info.max, 1], dtype, 1.0)
    assert found.max_abs_err == float(info.max) - float(info.min)
    assert compared([0, 1], [255, 1], "uint8").max_abs_err == 255.0


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_the_smallest_integer_has_its_magnitude(dtype: str) -> None:
    smallest = int(np.iinfo(dtype).min)
    found = compared([smallest + 64, 1], [smallest, 1], dtype, 1.0)
    assert found.bench_at_worst == -float(smallest)
    assert found.max_rel_err == pytest.approx(64 / -float(smallest))


def test_signed_and_unsigned_integers_are_subtracted_exactly() -> None:
    device, bench = np.array([-1, 2**62 + 1]), np.array([0, 2**62 - 1], np.uint64)
    assert metrics_of(device, bench, 1.0).max_abs_err == 2.0
    assert (
        metrics_of(np.array([-1, 0]), np.array([2**64 - 1, 0], np.uint64), 1.0).max_abs_err
        == 2.0**64
    )


def test_booleans_differ_by_one() -> None:
    found = compared([True, False, True], [True, True, True], "bool", 1.0)
    assert (found.max_abs_err, found.max_rel_err, found.worst_index) == (1.0, 1.0, (1,))
    assert found.cosine == pytest.approx(2 / math.sqrt(6))


def test_integers_are_compared_with_floats_as_numbers() -> None:
    found = metrics_of(np.array([1, 2], np.int32), np.array([1.0, 2.5]), 1.0)
    assert (found.max_abs_err, found.worst_index) == (0.5, (1,))


@pytest.mark.parametrize("unit", [1e308, 1e200, 1e-200, 1e-308, 5e-324])
def test_squares_neither_overflow_nor_vanish(unit: float) -> None:
    found = compared([unit, unit], [unit, 0.0], smallest_normal=unit)
    assert found.cosine == pytest.approx(math.sqrt(0.5))
    assert (found.max_abs_err, found.max_rel_err, found.bench_largest) == (unit, 1.0, unit)


def test_a_difference_beyond_all_floats_is_infinite() -> None:
    found = compared([1.5e308, 1.0], [-1.5e308, 1.0])
    assert found.max_abs_err == INF
    assert found.mismatch == ""
    assert found.cosine == pytest.approx(-1.0)


def test_the_cosine_of_a_tiny_and_a_plain_vector_is_that_of_their_directions() -> None:
    assert compared([1e-200, 1e-200], [1e-5, 1e-5]).cosine == pytest.approx(1.0)


def test_a_complex_magnitude_beyond_all_floats_is_infinite() -> None:
    value = [1.5e308 + 1.5e308j, 1.0]
    found = compared(value, value, "complex128")
    assert (found.max_abs_err, found.bench_largest) == (0.0, 1.5e308)
    assert found.cosine == pytest.approx(1.0)


def test_the_first_of_all_chunks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", 2)
    found = compared([NAN, 0, 5, NAN], [0, 0, 0, 0])
    assert found.worst_index == (0,)
    assert found.mismatch == "at index [0] it is nan where the bench has 0.0"
    assert compared([0, 1, 1, 0], [0, 0, 0, 0]).worst_index == (1,)


def test_a_number_below_0_is_as_far_from_an_unsigned_one_as_both_together() -> None:
    signed, unsigned = np.array([-3, 0], np.int8), np.array([2, 0], np.uint8)
    for device, bench in ((signed, unsigned), (unsigned, signed)):
        assert metrics_of(device, bench, 1.0).max_abs_err == 5.0
