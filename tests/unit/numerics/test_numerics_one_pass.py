"""The compiled pass and numpy find the same ends and sums, bit by bit."""

import math
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from ray_precheck.numerics import one_pass
from ray_precheck.numerics.one_pass import BFLOAT16, FLOAT16, FLOAT32, sums, sums_by_numpy
from ray_precheck.schema.dtypes import Array

needs_extension = pytest.mark.skipif(
    one_pass.COMPILED is None, reason="the extension was not built"
)


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


def bits(numbers: Sequence[float]) -> list[bytes]:
    # The bits of a NaN are its maker's affair.
    return [b"nan" if math.isnan(each) else struct.pack("<d", each) for each in numbers]


@needs_extension
@pytest.mark.parametrize("kind", [FLOAT32, BFLOAT16, FLOAT16])
@pytest.mark.parametrize(
    "name",
    [
        "",
        "nan",
        "inf",
        "infinities",
        "zeros of both signs",
        "-0.0",
        "huge",
        "subnormal",
        "negative",
    ],
)
def test_both_ways_find_the_same_bits(name: str, kind: int) -> None:
    for size in (1, 2, 15, 16, 17, 500, 8143, 8144, 8145, 16384, 16385, 70_001):
        values = odd(name, size)
        with np.errstate(all="ignore"):
            if kind == BFLOAT16:
                stored = (values.view(np.uint32) >> 16).astype(np.uint16)
            else:
                stored = values.astype((np.float32, None, np.float16)[kind])
        found = (way(stored.ctypes.data, size, kind) for way in (sums, sums_by_numpy))
        one, other = map(bits, found)
        assert one == other, size


@pytest.mark.parametrize("way", [sums, sums_by_numpy])
def test_sums_are_exact_to_float64_and_nothing_overflows(way: object) -> None:
    values: Array = np.array([3e38, -1e38, 3e38, 1e-30], np.float32)
    assert callable(way)
    top, bottom, total, squares = way(values.ctypes.data, 4, FLOAT32)
    wide: Array = values.astype(np.float64)
    assert (top, bottom) == (wide.max(), wide.min())
    assert total == pytest.approx(math.fsum(wide.tolist()), rel=1e-15)
    assert squares == pytest.approx(math.fsum((wide * wide).tolist()), rel=1e-15)


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
        found = sums(halves.ctypes.data + 2 * number, 1, kind)
        assert bits(found[:2]) == bits([value, value])


@needs_extension
def test_no_memory_and_no_kind_are_refused() -> None:
    for address, count, kind in ((0, 1, 0), (8, 0, 0), (8, 1, 3)):
        with pytest.raises(ValueError, match="no values"):
            sums(address, count, kind)
