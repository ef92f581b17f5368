"""The compiled pass finds the ends of values bit by bit, and exact sums."""

import math
import zlib
from typing import Any

import numpy as np
import pytest

from ray_precheck.capture.recording import arguments
from ray_precheck.numerics import one_pass
from ray_precheck.numerics.everything import everything
from ray_precheck.numerics.one_pass import BFLOAT16, FLOAT16, FLOAT32, EndsAndSums, crc32_of
from ray_precheck.numerics.sketch import BUCKETS, places_of
from ray_precheck.numerics.statistics import health_of, summary_of
from ray_precheck.schema.dtypes import Array

needs_extension = pytest.mark.skipif(
    one_pass.COMPILED is None, reason="the extension was not built"
)


def sums(values: Array, kind: int) -> EndsAndSums:
    assert one_pass.COMPILED is not None
    return EndsAndSums(*one_pass.COMPILED.sums(values.ctypes.data, values.size, kind))


def odd(name: str, size: int) -> Array:
    values: Array = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    place = size // 2
    if name in ("nan", "inf"):
        values[place] = float(name)
    elif name == "infinities":
        values[0], values[place] = -np.inf, np.inf
    elif name == "zeros of both signs":
        values = np.maximum(values, 0) * np.float32(-1)
        values[place] = 0
    elif name == "-0.0":
        values[:] = -0.0
    elif name == "huge":
        values = np.clip(values, -3, 3) * np.float32(1e38)
    elif name == "subnormal":
        values = values * np.float32(1e-40)
    elif name == "negative":
        values = -np.abs(values) - 1
    return values


ODD = [
    "",
    "nan",
    "inf",
    "infinities",
    "zeros of both signs",
    "-0.0",
    "huge",
    "subnormal",
    "negative",
]


def in_order(values: list[float]) -> list[tuple[float, float]]:
    """Return finite values with their signs, which tell -0.0 from 0.0."""
    return sorted((each, math.copysign(1, each)) for each in values)


@needs_extension
@pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16, FLOAT16])
@pytest.mark.parametrize("name", ODD)
def test_ends_are_exact_and_sums_are_those_of_float64(name: str, kind: int) -> None:
    for size in (1, 2, 15, 16, 17, 500, 8143, 8144, 8145, 16384, 16385, 70_001):
        stored = wide = odd(name, size)
        with np.errstate(all="ignore"):
            if kind == BFLOAT16:
                stored = (wide.view(np.uint32) >> 16).astype(np.uint16)
                wide = (stored.astype(np.uint32) << 16).view(np.float32)
            elif kind == FLOAT16:
                stored = wide.astype(np.float16)
                wide = stored.astype(np.float32)
        found, values = sums(stored, kind), wide.astype(np.float64).tolist()
        if any(map(math.isnan, values)):
            assert all(map(math.isnan, found))
            continue
        ends = in_order(values)
        assert in_order([found.max, found.min]) == [ends[0], ends[-1]]
        finite = all(map(math.isfinite, values))
        if finite:
            size_of_terms = math.fsum(map(abs, values))
            assert found.total == pytest.approx(math.fsum(values), rel=0, abs=1e-15 * size_of_terms)
            squares = math.fsum(each * each for each in values)
            assert found.squares == pytest.approx(squares, rel=1e-14, abs=0)
        else:
            assert found.squares == math.inf
            assert not math.isfinite(found.total)


@needs_extension
@pytest.mark.parametrize("kind", [FLOAT16, BFLOAT16])
def test_each_half_is_widened_to_its_value(kind: int) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        wide = (
            halves.view(np.float16).astype(np.float32)
            if kind == FLOAT16
            else (halves.astype(np.uint32) << 16).view(np.float32)
        )
    for number, value in enumerate(wide.tolist()):
        found = sums(halves[number : number + 1], kind)
        both = (found.max, found.min)
        assert (
            all(map(math.isnan, both))
            if math.isnan(value)
            else in_order(list(both)) == in_order([value, value])
        )


@needs_extension
def test_no_memory_and_no_kind_are_refused() -> None:
    assert one_pass.COMPILED is not None
    for address, count, kind in ((0, 1, 0), (8, 0, 0), (8, 1, 3)):
        with pytest.raises(ValueError, match="no values"):
            one_pass.COMPILED.sums(address, count, kind)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", ODD)
def test_statistics_of_arrays_do_not_need_the_extension(
    name: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.errstate(over="ignore"):
        values: Array = odd(name, 70_001).astype(dtype)
    found = summary_of(values)
    monkeypatch.setattr(one_pass, "COMPILED", None)
    assert found == pytest.approx(summary_of(values), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 79, 80, 127, 128, 129, 200, 4095, 70_001])
def test_checksums_are_those_of_zlib(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw: Array = np.random.default_rng(size).integers(0, 256, size + 1, dtype=np.uint8)
    found = [crc32_of(raw[begin : begin + size]) for begin in (0, 1)]
    monkeypatch.setattr(one_pass, "COMPILED", None)
    assert found == [crc32_of(raw[begin : begin + size]) for begin in (0, 1)]
    assert found == [zlib.crc32(raw[begin : begin + size].tobytes()) for begin in (0, 1)]


@needs_extension
@pytest.mark.parametrize("name", ODD)
def test_sketches_and_health_are_those_of_numpy(name: str) -> None:
    for size in (1, 509, 513, 8143, 8144, 30_001):
        values = odd(name, size)
        found = everything(values.ctypes.data, size, FLOAT32)
        assert found is not None
        sizes = np.abs(values)
        health = health_of(values, "float32")
        assert found.health("float32") == health
        assert found.below == np.count_nonzero(sizes < np.finfo(np.float32).smallest_normal)
        if found.buckets is not None:
            places, signs = places_of(np.arange(size))
            wide = values.astype(np.float64) * signs
            expected = np.bincount(places, weights=wide, minlength=BUCKETS)
            noise = 1e-6 * float(np.linalg.norm(wide))
            assert found.buckets == pytest.approx(expected, rel=0, abs=noise)


@needs_extension
def test_values_of_a_kind_are_found_in_the_order_of_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two, three = (np.zeros(each) for each in (1, 2, 3))
    nested: Any = [one]
    for _ in range(12):
        nested = [nested]
    for value in (
        (one, [two, (three, 4)], {"x": one, "y": None}),
        [one, "text", 1.5, True, {"a": [two]}],
        one,
        None,
        (),
        nested,
        (nested, nested[0], three),
    ):
        found = arguments.found_in(value, np.ndarray)
        with monkeypatch.context() as patched:
            patched.setattr(arguments, "COMPILED", None)
            assert [*map(id, found)] == [*map(id, arguments.found_in(value, np.ndarray))]
