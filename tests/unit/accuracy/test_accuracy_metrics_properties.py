"""What holds for all pairs of outputs."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.accuracy.metrics import metrics_of
from ray_precheck.numerics import arrays
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Metrics

pytestmark = pytest.mark.unit

PLAIN = st.floats(-1e6, 1e6).map(lambda x: x if abs(x) > 1e-6 else 0.0)
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
ANY = st.one_of(FINITE, st.sampled_from([math.nan, math.inf, -math.inf]))


@st.composite
def pairs(draw: st.DrawFn, elements: Any, smallest: int = 0) -> tuple[Array, Array]:
    """Draw two float64 vectors of one length; about half of the elements are the same."""
    size = draw(st.integers(smallest, 12))
    bench = draw(st.lists(elements, min_size=size, max_size=size))
    device = [draw(st.one_of(st.just(value), elements)) for value in bench]
    return np.array(device, np.float64), np.array(bench, np.float64)


def with_chunks(chunk_elements: int, device: Array, bench: Array) -> Metrics:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_ELEMENTS", chunk_elements)
        return metrics_of(device, bench, 2.0**-126)


@settings(deadline=None, max_examples=100)
@given(pairs(ANY), st.integers(1, 5))
def test_the_size_of_the_chunks_changes_nothing(
    pair: tuple[Array, Array], chunk_elements: int
) -> None:
    small, whole = with_chunks(chunk_elements, *pair), with_chunks(1 << 18, *pair)
    np.testing.assert_equal(small.bench_at_worst, whole.bench_at_worst)  # NaN equals NaN
    assert small.worst_index == whole.worst_index
    assert (small.max_abs_err, small.max_rel_err) == (whole.max_abs_err, whole.max_rel_err)
    assert (small.bench_largest, small.left_out) == (whole.bench_largest, whole.left_out)
    assert small.mismatch == whole.mismatch
    assert (small.cosine is None) == (whole.cosine is None)
    assert small.cosine is None or small.cosine == pytest.approx(whole.cosine, abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(pairs(PLAIN, smallest=2))
def test_the_numbers_are_those_of_their_formulas(pair: tuple[Array, Array]) -> None:
    device, bench = (list(map(float, side)) for side in pair)
    found = metrics_of(*pair, 1e-3)
    errors = [abs(d - b) for d, b in zip(device, bench, strict=True)]
    assert found.max_abs_err == max(errors)
    assert found.worst_index == (errors.index(max(errors)),)
    assert found.bench_at_worst == abs(bench[errors.index(max(errors))])
    assert found.bench_largest == max(map(abs, bench))
    relative = [e / max(abs(b), 1e-3) for e, b in zip(errors, bench, strict=True)]
    assert found.max_rel_err == pytest.approx(max(relative), rel=1e-14)
    norms = math.hypot(*device) * math.hypot(*bench)
    dot = math.fsum(d * b for d, b in zip(device, bench, strict=True))
    if norms:
        assert found.cosine == pytest.approx(dot / norms, abs=1e-12)
    else:
        assert found.cosine == float(not any(device) and not any(bench))


@settings(deadline=None, max_examples=80)
@given(pairs(ANY))
def test_cosine_error_and_what_is_left_out_are_symmetric(pair: tuple[Array, Array]) -> None:
    one, other = metrics_of(*pair, 1.0), metrics_of(*pair[::-1], 1.0)
    assert one.cosine == other.cosine
    assert one.max_abs_err == other.max_abs_err
    assert one.worst_index == other.worst_index
    assert one.left_out == other.left_out
    assert bool(one.mismatch) == bool(other.mismatch)


@settings(deadline=None, max_examples=80)
@given(pairs(ANY, smallest=2))
def test_the_cosine_lies_between_minus_one_and_one(pair: tuple[Array, Array]) -> None:
    found = metrics_of(*pair, 1.0)
    assert found.cosine is not None
    assert -1.0 <= found.cosine <= 1.0


@settings(deadline=None, max_examples=80)
@given(st.lists(ANY, min_size=2, max_size=12))
def test_an_output_agrees_with_itself(values: list[float]) -> None:
    array = np.array(values)
    found = metrics_of(array, array.copy(), 1.0)
    assert found.cosine == pytest.approx(1.0)
    assert (found.max_abs_err, found.max_rel_err, found.mismatch) == (0.0, 0.0, "")
    assert found.left_out == np.count_nonzero(~np.isfinite(array))


@settings(deadline=None, max_examples=80)
@given(pairs(ANY, smallest=1))
def test_there_is_a_mismatch_just_where_something_infinite_or_nan_differs(
    pair: tuple[Array, Array],
) -> None:
    device, bench = pair
    same = (device == bench) | (np.isnan(device) & np.isnan(bench))
    differs = ~same & ~(np.isfinite(device) & np.isfinite(bench))
    found = metrics_of(device, bench, 1.0)
    assert bool(found.mismatch) == bool(differs.any())
    if differs.any():
        assert found.worst_index == (int(np.argmax(differs)),)
        assert found.max_abs_err == math.inf


@settings(deadline=None, max_examples=80)
@given(pairs(PLAIN, smallest=2), st.integers(-900, 900))
def test_the_cosine_does_not_depend_on_the_unit(pair: tuple[Array, Array], exponent: int) -> None:
    unit = 2.0**exponent
    scaled = metrics_of(pair[0] * unit, pair[1] * unit, 1.0)
    assert scaled.cosine == pytest.approx(metrics_of(*pair, 1.0).cosine, abs=1e-12)


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(["int64", "uint64", "int8", "uint8"]), st.data())
def test_integers_are_subtracted_without_rounding(dtype: str, data: st.DataObject) -> None:
    info = np.iinfo(dtype)
    # The smallest signed integer has no magnitude in its own dtype: a test of its own.
    elements = st.integers(int(info.min) + 1 if info.min else 0, int(info.max))
    device = data.draw(st.lists(elements, min_size=1, max_size=6))
    bench = data.draw(st.lists(elements, min_size=len(device), max_size=len(device)))
    found = metrics_of(np.array(device, dtype), np.array(bench, dtype), 1.0)
    assert found.max_abs_err == float(max(abs(d - b) for d, b in zip(device, bench, strict=True)))


@settings(deadline=None, max_examples=40)
@given(pairs(PLAIN, smallest=2))
def test_the_arrays_are_not_changed(pair: tuple[Array, Array]) -> None:
    before = [side.copy() for side in pair]
    for side in pair:
        side.setflags(write=False)
    metrics_of(*pair, 1.0)
    for side, copy in zip(pair, before, strict=True):
        np.testing.assert_array_equal(side, copy)
