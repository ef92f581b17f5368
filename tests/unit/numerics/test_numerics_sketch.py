"""The sketch of a range of elements: the map of each index, dtypes, extreme values."""

import threading
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.numerics import sketch as sketches
from ray_precheck.numerics.sketch import BLOCK, estimated_norm, places_of, sketch, sketch_at

WORD = (1 << 64) - 1
# The first buckets of a tensor, and bucket and sign of four elements.
PINNED = [-3293, 1088, -1055, 2931, -4603, -125]
PINNED_PLACES = [(47, -1), (48, -1), (52, -1), (13, -1)]


@cache
def splitmix64(counter: int) -> int:
    """Steele, Lea and Flood 2014, with Python's integers."""
    word = (counter + 1) * 0x9E3779B97F4A7C15 & WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def place_of(index: int) -> tuple[int, int]:
    """Bucket and sign of one element, as the docstring of `sketch` defines them."""
    block, within = divmod(index, 16 * 509)
    row, column = divmod(within, 509)
    word = splitmix64(block)
    rotation = word >> 6 * (column // 64) & 63
    fixed = splitmix64((1 << 62) + within // 64) >> within % 64 & 1
    return (column % 64 + rotation) % 64, -1 if fixed ^ (word >> 48 + row & 1) else 1


def slow_sketch(values: np.ndarray, start: int) -> np.ndarray:
    buckets = [0.0] * 64
    for index, value in enumerate(values.tolist(), start):
        bucket, sign = place_of(index)
        buckets[bucket] += sign * value
    return np.array(buckets)


def normal(size: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * 10).astype(dtype)


def assert_same(found: np.ndarray, wanted: np.ndarray, norm: float) -> None:
    """Equal but for the rounding of sums of 16 float32 values."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-7 * norm)


def test_splitmix64_gives_its_published_first_value() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert sketches.mixed(np.arange(5)).tolist() == [splitmix64(n) for n in range(5)]


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(st.integers(0, 300_000), st.integers(0, 1 << 50)),
    st.one_of(st.integers(0, 600), st.integers(0, 20_000)),
)
def test_every_index_has_the_bucket_and_the_sign_of_the_definition(start: int, size: int) -> None:
    values = normal(size)
    assert_same(sketch(values, start), slow_sketch(values, start), float(np.linalg.norm(values)))


@pytest.mark.parametrize("start", [0, 3, 511, 512, BLOCK - 1, 16 * BLOCK - 1, (1 << 40) + 7])
def test_a_single_element_goes_to_one_bucket_with_its_sign(start: int) -> None:
    bucket, sign = place_of(start)
    wanted = np.zeros(64)
    wanted[bucket] = 3.0 * sign
    assert sketch(np.float32([3.0]), start).tolist() == wanted.tolist()
    assert sketch_at(np.float32([3.0]), np.array([start])).tolist() == wanted.tolist()
    assert [each.tolist() for each in places_of(np.array([start]))] == [[bucket], [float(sign)]]


def test_the_map_is_that_of_every_earlier_capture() -> None:
    """These numbers are in files of users: another map needs another name of the field."""
    sums = sketch(np.arange(1, 100_001, dtype=np.float64) % 251)
    assert sums[:6].astype(int).tolist() == PINNED
    assert [place_of(index) for index in (0, 1, 8144, 10**12)] == PINNED_PLACES


@pytest.mark.parametrize("size", [100, 300_001])
def test_parts_of_a_range_add_up_to_the_whole(size: int) -> None:
    values = normal(size)
    cuts = sorted(np.random.default_rng(1).integers(0, size, 5).tolist())
    edges = [0, *cuts, size]
    parts = [sketch(values[a:b], a) for a, b in pairwise(edges)]
    assert_same(sum(parts, np.zeros(64)), sketch(values), float(np.linalg.norm(values)))


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int8", "int64", "uint64", "bool", "bfloat16"]
)
@pytest.mark.parametrize("size", [77, 20_000])
def test_values_of_other_dtypes_are_those_of_float32(dtype: str, size: int) -> None:
    if dtype == "bfloat16":
        ml_dtypes = pytest.importorskip("ml_dtypes")
        values = normal(size).astype(ml_dtypes.bfloat16)
    else:
        values = (
            normal(size).astype(dtype)
            if dtype != "uint64"
            else normal(size, "int8").view("uint8").astype(dtype)
        )
    wide = values.astype(np.float32)
    found = sketch(values, 7)
    assert_same(found, sketch(wide, 7), float(np.linalg.norm(wide)))
    assert found.dtype == np.float64
    assert np.any(found)


def test_a_complex_value_is_its_two_parts() -> None:
    parts = normal(6_000)
    values = parts.view(np.complex64)
    assert_same(sketch(values, 5), sketch(parts, 10), 1e3)
    assert_same(sketch(values[:20], 5), sketch(parts[:40], 10), 1e3)
    values[3] = complex(np.inf, 1.0)
    parts[6] = 0.0
    assert_same(sketch(values, 5, np.inf), sketch(np.where(np.isfinite(parts), parts, 0), 10), 1e3)


@pytest.mark.parametrize("size", [60, 40_000])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_and_infinity_count_as_zero(size: int, dtype: str) -> None:
    values = normal(size, dtype)
    clean = values.copy()
    for place, value in ((0, np.nan), (size // 2, np.inf), (size - 1, -np.inf)):
        values[place], clean[place] = value, 0.0
    for largest in (None, np.nan, np.inf):
        assert sketch(values, 3, largest).tolist() == sketch(clean, 3).tolist()
    assert not sketch(np.full(size, np.nan, dtype)).any()


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        ("float32", 2.0**125),
        ("float32", 2.0**-146),
        ("float64", 2.0**1010),
        ("float64", 2.0**-1050),
    ],
)
def test_values_near_a_dtypes_limits_neither_overflow_nor_vanish(dtype: str, scale: float) -> None:
    small = np.random.default_rng(0).integers(-7, 8, 100_000).astype(dtype)
    assert sketch(small * np.dtype(dtype).type(scale)).tolist() == (sketch(small) * scale).tolist()


def test_a_mask_full_of_the_smallest_float32_has_a_finite_sketch() -> None:
    lowest = np.finfo(np.float32).min
    mask = np.where(np.tri(512, dtype=bool), np.float32(0), lowest)
    ratio = estimated_norm(sketch(mask)) / (-float(lowest) * np.count_nonzero(mask) ** 0.5)
    assert 0.8 < ratio < 1.25


def test_nothing_has_an_empty_sketch_and_no_norm() -> None:
    assert not sketch(np.zeros(0, np.float32), 12).any()
    assert not sketch(np.zeros((3, 0), np.complex64)).any()
    assert estimated_norm(np.zeros(64)) == 0.0


def test_a_transposed_view_is_taken_in_row_major_order() -> None:
    values = normal(6_000).reshape(60, 100)
    assert sketch(values.T).tolist() == sketch(values.T.copy()).tolist()
    assert sketch(values[::-1, ::2]).tolist() == sketch(values[::-1, ::2].copy()).tolist()


def test_norms_beyond_float64s_squares_are_estimated() -> None:
    assert estimated_norm(np.full(64, 1e300)) == pytest.approx(8e300)
    assert estimated_norm(np.full(64, 1e-300)) == pytest.approx(8e-300)


def test_a_script_that_asks_numpy_for_exceptions_gets_none() -> None:
    values = normal(20_000, "float64")
    values[:5] = [np.nan, np.inf, 1e-300, 1e300, -1e-310]
    with np.errstate(all="raise"):
        assert np.isfinite(sketch(values)).all()
        assert np.isfinite(sketch(values[:40])).all()


def test_threads_do_not_share_the_memory_that_sketches_are_computed_in() -> None:
    tensors = [normal(150_000, seed=seed) for seed in range(4)]
    wanted = [sketch(each).tolist() for each in tensors]
    found: list[list[bool]] = [[] for _ in tensors]

    def work(place: int) -> None:
        for _ in range(20):
            found[place].append(sketch(tensors[place]).tolist() == wanted[place])

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(tensors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(all(each) and len(each) == 20 for each in found)
