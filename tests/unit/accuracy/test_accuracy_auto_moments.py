"""`auto` finds errors that have not the shape of rounding, though each of them is small."""

from typing import Any

import numpy as np
import pytest
from standard_cases import comparison, normal

from ray_precheck.accuracy.standards.auto import Auto
from ray_precheck.accuracy.standards.bias import _first_of_equals
from ray_precheck.numerics.arrays import round_to_dtype, spacing
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.unit

HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
# A function whose kernel rounds its result once, for which no implementation is far off.
API = "Torch.sin"


def rounded(values: Array, dtype: str) -> Array:
    return round_to_dtype(values, dtype).astype(np.float64)


def judged(tested: Array, bench: Array, dtype: str, **options: Any) -> tuple[Verdict, str]:
    implementations = options.pop("implementations", [rounded(bench, dtype)])
    case = comparison(
        tested, bench, dtype, **{"api": API, "implementations": implementations, **options}
    )
    found = Auto().judge(case)
    return found.verdict, found.message


def cut_off(values: Array, dtype: str) -> Array:
    near = rounded(values, dtype)
    return near - np.sign(near) * spacing(near, dtype) * (np.abs(near) > np.abs(values))


def by_chance(values: Array, dtype: str, seed: int = 1) -> Array:
    near = rounded(values, dtype)
    unit = spacing(near, dtype)
    rest = (values - near) / unit
    farther = np.random.default_rng(seed).random(values.shape) < np.abs(rest)
    return near + np.sign(rest) * unit * farther


@HALVES
def test_what_is_rounded_once_passes(dtype: str) -> None:
    for seed in range(200):
        bench = np.random.default_rng(seed).standard_normal(400)
        in_float32 = (bench * (1 + 1e-6)).astype(np.float32)
        assert judged(rounded(in_float32, dtype), bench, dtype)[0] is Verdict.PASS


@HALVES
@pytest.mark.parametrize("count", [100, 4096])
def test_what_is_cut_off_is_found(dtype: str, count: int) -> None:
    found, message = judged(cut_off(normal(count), dtype), normal(count), dtype)
    assert found is Verdict.ERROR
    assert "in units in the last place, is 0." in message


def test_a_sum_in_float32_that_is_cut_off_is_found_and_another_function_is_not() -> None:
    bench = normal(4096)
    tested = cut_off(bench, "float32")
    assert judged(tested, bench, "float32", api="Torch.add")[0] is Verdict.ERROR
    assert judged(tested, bench, "float32")[0] is Verdict.PASS


@HALVES
def test_rounding_by_chance_is_found(dtype: str) -> None:
    bench = normal(4096)
    found, message = judged(by_chance(bench, dtype), bench, dtype)
    assert found is Verdict.ERROR
    assert "rounded to the farther neighbour" in message


@HALVES
@pytest.mark.parametrize(("factor", "units"), [(1.003, 0.5), (1.001, 0.15)])
def test_a_factor_is_found_where_it_is_beyond_the_noise(
    dtype: str, factor: float, units: float
) -> None:
    """A shift of d units is found from (1.5 / d)^2 elements on."""
    coarser = {"float16": 8.0, "bfloat16": 1.0}[dtype]
    count = max(100, int(4 * (1.5 / (units * coarser)) ** 2))
    bench = normal(count)
    assert judged(rounded(bench * factor, dtype), bench, dtype)[0] is Verdict.ERROR


def test_equal_values_count_once() -> None:
    """One product that is rounded to the farther neighbour is no shift, however often it is there."""
    bench = np.full(4096, 1.0 + 0.49 * 2.0**-10)
    bench[:64] = normal(64)
    tested = rounded(bench, "float16")
    tested[64:] += 2.0**-10
    assert judged(tested, bench, "float16")[0] is Verdict.PASS


def test_a_shift_that_another_honest_implementation_has_passes() -> None:
    bench = normal(4096)
    tested = cut_off(bench, "bfloat16")
    assert judged(tested, bench, "bfloat16", implementations=[tested])[0] is Verdict.PASS


def test_what_channels_share_in_an_honest_implementation_they_may_share_in_this_one() -> None:
    """Five channels, whose means were rounded: each is off by its own amount."""
    bench = np.random.default_rng(0).uniform(0.5, 1.0, (4, 5, 100))
    near, unit = rounded(bench, "float16"), 2.0**-11
    own, others = np.array([1.0, 1.0, 1.0, 0.0, 0.0]), np.array([-1.0, 1.0, 0.0, 0.0, 0.0])
    tested, implementation = (near + unit * shifts[:, None] for shifts in (own, others))
    assert judged(tested, bench, "float16", implementations=[implementation])[0] is Verdict.PASS
    assert judged(near + unit, bench, "float16", implementations=[near])[0] is Verdict.ERROR


def test_few_elements_and_what_has_no_error_say_nothing() -> None:
    bench = normal(30)
    assert judged(cut_off(bench, "bfloat16"), bench, "bfloat16")[0] is Verdict.PASS
    whole = np.arange(4096.0) % 128
    assert judged(whole, whole, "bfloat16")[0] is Verdict.PASS


def test_the_first_of_equal_values_are_those_that_sorting_with_places_finds() -> None:
    draw = np.random.default_rng(0)
    for values in (
        normal(1000),
        draw.integers(1, 50, 1000).astype(np.float64),
        np.concatenate([normal(5000), normal(5000)[:7]]),
        np.array([2.0]),
    ):
        _, first = np.unique(values, return_index=True)
        assert np.array_equal(np.flatnonzero(_first_of_equals(values)), np.sort(first))


@HALVES
def test_what_the_elements_of_one_channel_have_in_common_is_no_bias(dtype: str) -> None:
    draw = np.random.default_rng(0)
    bench = draw.uniform(0.5, 2.0, (8, 64, 8))
    bench[:, 3] = draw.uniform(2.0**-10, 2.0**-9, (8, 8))
    tested = rounded(bench, dtype)
    tested[:, 3] += spacing(tested[:, 3], dtype)
    assert judged(tested, bench, dtype)[0] is Verdict.PASS
    # Spread over all channels it is one.
    order = draw.permutation(bench.size)
    bench, tested = (each.reshape(-1)[order].reshape(8, 64, 8) for each in (bench, tested))
    assert judged(tested, bench, dtype)[0] is Verdict.ERROR
