"""The health of values: what is counted, and its text."""

import json

import numpy as np
import pytest

from ray_precheck.capture.writing.elements import health_field
from ray_precheck.numerics.statistics import Health, health_of, largest_finite

NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def test_each_kind_of_value_is_counted_once() -> None:
    values = np.float32([0, -0.0, 1e-40, -1e-45, 1, np.nan, np.inf, np.inf, -np.inf, 2.0**100])
    assert health_of(values, "float32") == Health(1, 2, 1, 2, 2, pytest.approx(28, abs=1e-6))


@pytest.mark.parametrize("dtype", NORMAL)
@pytest.mark.parametrize("widened", [False, True])
def test_subnormal_is_what_the_tensors_own_dtype_says(dtype: str, widened: bool) -> None:
    """The smallest normal value is none, the one below it is; also where halves were widened."""
    least = NORMAL[dtype]
    stored = "float32" if dtype == "bfloat16" or (widened and dtype == "float16") else dtype
    values = np.array([least, -least, least / 2, -least / 4, 0, 1], stored)
    found = health_of(values, dtype)
    assert (found.subnormal, found.zero, found.nan) == (2, 1, 0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_headroom_is_to_the_dtypes_largest_value(dtype: str) -> None:
    most = np.finfo(dtype).max
    assert largest_finite(dtype) == float(most)
    assert health_of(np.array([most, -1], dtype), dtype).headroom == 0
    assert health_of(np.array([-most / 2, 1], dtype), dtype).headroom == pytest.approx(1)
    # That of what is finite, where not all is.
    assert health_of(np.array([-most / 8, np.inf, np.nan], dtype), dtype).headroom == pytest.approx(
        3
    )


def test_bfloat16_has_its_own_largest_value() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert largest_finite("bfloat16") == float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)


def test_integers_and_truth_values_have_zeros_only() -> None:
    assert health_of(np.array([0, 3, 0]), "int64") == Health(zero=2)
    assert health_of(np.array([True, False]), "bool") == Health(zero=1)
    assert largest_finite("int64") is None


def test_parts_of_complex_values_are_counted() -> None:
    values = np.array([complex(np.nan, 0), complex(1, -np.inf)], np.complex64)
    found = health_of(values, "complex64", 1.0, 1.0)
    assert (found.nan, found.negative_infinity, found.zero) == (1, 1, 1)
    assert found.headroom == pytest.approx(128)


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [np.nan, np.inf]])
def test_where_nothing_is_finite_there_is_no_headroom(values: list[float]) -> None:
    assert health_of(np.float32(values), "float32").headroom is None


def test_all_of_a_large_tensor_is_counted() -> None:
    values = np.ones(300_000, np.float32)
    values[::7] = 0
    values[1::7] = 1e-39
    values[2::100_000] = np.nan
    for known in ((None, None), (np.nan, np.nan)):
        found = health_of(values, "float32", *known)
        assert (found.nan, found.zero) == (3, np.count_nonzero(values == 0))
        assert found.subnormal == np.count_nonzero((values > 0) & (values < 1e-38))


def test_known_ends_spare_the_search_for_nan() -> None:
    """They are believed: that is what makes health cheap."""
    assert health_of(np.float32([1, np.nan]), "float32", 4.0, -8.0) == Health(
        headroom=pytest.approx(125)
    )


def test_the_text_has_counts_that_are_not_zero() -> None:
    text = health_field(Health(1, 2, 3, 4, 5, 12.345)).removeprefix(', "health": ')
    assert json.loads(text) == {
        "nan": 1, "+inf": 2, "-inf": 3, "zero": 4, "subnormal": 5, "headroom": 12.3,
    }  # fmt: skip
    assert health_field(Health(zero=7)) == ', "health": {"zero": 7}'
    assert health_field(Health(headroom=3.0)) == ""


def test_a_script_that_asks_numpy_for_exceptions_gets_none() -> None:
    with np.errstate(all="raise"):
        values = np.array([np.nan, np.inf, 1e-310, 1e300, 0.0])
        assert health_of(values, "float64").subnormal == 1
