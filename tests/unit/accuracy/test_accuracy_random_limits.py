"""Draws that lie exactly on a median, on an end of their range, or one step beyond it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from draws import alarms, drawn, held, whole

from ray_precheck.accuracy.random import laws
from ray_precheck.accuracy.random.statistics import StatisticalTest, draws_of

pytestmark = pytest.mark.unit

LN_2 = math.log(2)


def said(tests: list[StatisticalTest], what: str) -> str:
    """Return the sentence of a test."""
    return next(test.text for test in (test(1e-6) for test in tests) if what in test.text)


# By distribution: tests of draws of which every second one is the median, the others are below it.
AT_MEDIAN = {
    "normal": laws.normal(drawn(np.tile([0.0, -1.0], 100)), 0.0, 1.0),
    "uniform": laws.uniform(drawn(np.tile([0.5, 0.25], 100)), 0.0, 1.0),
    "exponential": laws.exponential(drawn(np.tile([1.0, 0.5], 100)), LN_2),
    "cauchy": laws.cauchy(drawn(np.tile([0.0, -1.0], 100)), 0.0, 1.0),
    "laplace": laws.laplace(drawn(np.tile([0.0, -1.0], 100)), 0.0, 1.0),
    "log-normal": laws.log_normal(drawn(np.tile([1.0, 0.5], 100)), 0.0, 1.0),
    "uniform integers": laws.uniform_whole_numbers(whole(np.tile([2, 1], 100)), 0, 4),
}


@pytest.mark.parametrize("law", AT_MEDIAN)
def test_a_draw_at_the_median_is_not_below_it(law: str) -> None:
    assert said(AT_MEDIAN[law], "neighbours").startswith(
        "the share of neighbours that are alike is 0,"
    )


@pytest.mark.parametrize("vanished", [0.0, 2.0**-149])
def test_nor_is_one_where_others_vanish(vanished: float) -> None:
    tests = laws.log_normal(drawn(np.array([vanished] + [1.0] * 399)), 0.0, 1.0)
    assert said(tests, "below their median").startswith(
        "the share of draws below their median is 0.0025,"
    )


def test_a_draw_at_the_scale_is_not_within_it() -> None:
    tests = laws.cauchy(drawn(np.tile([1.0, -1.0], 100)), 0.0, 1.0)
    assert said(tests, "within the scale").startswith("the share of draws within the scale is 0,")


# A value one step beyond 1, and one of two steps, of which the first may come from rounding.
@pytest.mark.parametrize(("value", "is_wrong"), [(1 + 2.0**-23, False), (1 + 2.0**-22, True)])
def test_a_draw_may_be_one_step_from_where_it_belongs(value: float, is_wrong: bool) -> None:
    draws = drawn(np.array([value]))
    assert alarms(laws.normal(draws, 1.0, 0.0)[:1]) is is_wrong
    assert alarms(laws.uniform(draws, 1.0, 1.0)[:1]) is is_wrong
    assert alarms(laws.uniform(draws, 0.0, 1.0)[:1]) is is_wrong
    assert alarms(laws.uniform(drawn(-np.array([value])), -1.0, 0.0)[:1]) is is_wrong


def test_0_is_no_negative_number() -> None:
    zero = draws_of(held(np.zeros(1)))
    for tests in (
        laws.exponential(zero, 1.0),
        laws.gamma(zero, 1.0, 1.0),
        laws.log_normal(zero, 0.0, 1.0),
        laws.poisson(whole(np.zeros(1)), 1.0, np.random.default_rng(0)),
    ):
        assert not alarms(tests[:1])


@pytest.mark.parametrize("law", ["exponential", "gamma", "laplace"])
def test_the_mean_may_be_off_by_the_grain_of_the_generator(law: str) -> None:
    draws = drawn(np.linspace(0.1, 2.0, 200))
    parameters = {"exponential": (1.0,), "gamma": (1.0, 1.0), "laplace": (0.0, 1.0)}[law]

    def limits(grain: float) -> list[float]:
        tests = getattr(laws, law)(replace(draws, grain=grain), *parameters)
        words = said(tests, "the mean over").split()
        return [float(words[-3]), float(words[-1])]

    low, high = limits(0.0)
    assert limits(0.25) == pytest.approx([low - 0.25, high + 0.25], abs=1e-5)


def test_moments_of_coarse_uniform_draws_say_nothing() -> None:
    draws = drawn(np.linspace(0.0, 1.0, 200))
    for grain, is_said in ((0.02, True), (0.03, False)):
        tests = laws.uniform(replace(draws, grain=grain), 0.0, 1.0)
        assert any("the mean" in test(1e-6).text for test in tests) is is_said
