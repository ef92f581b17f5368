"""Statistical tests of continuous draws: what the steps of their dtype leave room for, worked out by hand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ray_precheck.accuracy.random import laws
from ray_precheck.accuracy.random.bounds import gamma_limits, share_limits, square_limits
from ray_precheck.accuracy.random.statistics import Draws, StatisticalTest

pytestmark = pytest.mark.unit

# The chance for which ln(2 / chance) is 1, so that limits can be worked out by hand.
CHANCE = 2 / math.e
LN_2 = math.log(2)
ROOT_E = math.exp(0.5)


def stepping(values: Sequence[float], step: float, grain: float = 0.0) -> Draws:
    return Draws(np.array(values), np.full(len(values), step), grain, math.inf)


def texts(tests: Sequence[StatisticalTest]) -> list[str]:
    return [test(CHANCE).text for test in tests]


# Each draw lies one scale beyond the median, and its step is as large: it may be the median itself.
ONE_SCALE_UP = {
    "normal": lambda grain: laws.normal(stepping([5.0], 2.0, grain), 3.0, 2.0),
    "uniform": lambda grain: laws.uniform(stepping([6.0], 1.0, grain), 3.0, 7.0),
    "exponential": lambda grain: laws.exponential(stepping([LN_2], LN_2 / 2, grain), 2.0),
    "gamma": lambda grain: laws.gamma(stepping([LN_2], LN_2 / 2, grain), 1.0, 2.0),
    "Cauchy": lambda grain: laws.cauchy(stepping([5.0], 2.0, grain), 3.0, 2.0),
    "Laplace": lambda grain: laws.laplace(stepping([5.0], 2.0, grain), 3.0, 2.0),
    "log-normal": lambda grain: laws.log_normal(stepping([ROOT_E], ROOT_E / 2, grain), 0.0, 0.5),
}


# Each draw lies below the median, by one step.
ONE_SCALE_DOWN = {
    "normal": lambda grain: laws.normal(stepping([1.0], 2.0, grain), 3.0, 2.0),
    "uniform": lambda grain: laws.uniform(stepping([4.0], 1.0, grain), 3.0, 7.0),
    "exponential": lambda grain: laws.exponential(stepping([LN_2 / 4], LN_2 / 4, grain), 2.0),
    "gamma": lambda grain: laws.gamma(stepping([LN_2 / 4], LN_2 / 4, grain), 1.0, 2.0),
    "Cauchy": lambda grain: laws.cauchy(stepping([1.0], 2.0, grain), 3.0, 2.0),
    "Laplace": lambda grain: laws.laplace(stepping([1.0], 2.0, grain), 3.0, 2.0),
    "log-normal": lambda grain: laws.log_normal(
        stepping([1 / ROOT_E], 0.5 / ROOT_E, grain), 0.0, 0.5
    ),
}


@pytest.mark.parametrize("law", ONE_SCALE_UP)
@pytest.mark.parametrize("tests", [ONE_SCALE_UP, ONE_SCALE_DOWN], ids=["above", "below"])
def test_the_gap_leaves_room_for_a_step_and_the_grain(
    tests: dict[str, Callable[[float], list[StatisticalTest]]], law: str
) -> None:
    for grain, gap in ((0.0, 0.5), (0.125, 0.375)):
        (said,) = (text for text in texts(tests[law](grain)) if "the largest gap" in text)
        words = said.removeprefix(f"the largest gap to the {law} distribution is ").split(",")
        assert float(words[0]) == pytest.approx(gap, abs=1e-6)


LOGARITHMS = replace(
    stepping([ROOT_E, 1 / ROOT_E] * 50, 0.0), step=np.tile([ROOT_E, 1 / ROOT_E], 50) / 4
)


@pytest.mark.parametrize(
    "tests",
    [
        laws.normal(stepping([5.0, 1.0] * 50, 1.0), 3.0, 2.0),
        laws.log_normal(LOGARITHMS, 0.0, 0.5),
    ],
)
def test_moments_of_normal_draws_leave_room_for_their_steps(tests: list[StatisticalTest]) -> None:
    # In deviations the draws are 1 or -1, each known to a half: squares of 0.25 to 2.25.
    said = texts(tests)
    # sqrt(2 / 100) and the step.
    mean = "the mean, in standard deviations from the expected one, is 0"
    assert f"{mean}, limits -0.641421 to 0.641421" in said
    low, high = square_limits(100, CHANCE)
    variance = "the variance over the expected one is 1"
    assert f"{variance}, limits {low - 1.25:.6g} to {high + 0.75:.6g}" in said


def test_a_square_is_at_least_0() -> None:
    said = texts(laws.normal(stepping([1.0, -1.0] * 50, 3.0), 0.0, 1.0))
    low, high = square_limits(100, CHANCE)
    variance = "the variance over the expected one is 1"
    assert f"{variance}, limits {low - 15:.6g} to {high + 1:.6g}" in said


def test_moments_of_uniform_draws_are_those_of_their_range() -> None:
    values = np.tile([3.0, 7.0], 100).tolist()
    said = texts(laws.uniform(stepping(values, 0.0), 3.0, 7.0))
    # sqrt(2 / 12 / 200) = 0.0288675.
    assert "the mean, as a part of the range, is 0.5, limits 0.471132 to 0.528868" in said
    low, high = share_limits(1 / 3, 200, CHANCE)
    square = "the mean square over that of a half range is 1"
    assert f"{square}, limits {low:.6g} to {high:.6g}" in said


@pytest.mark.parametrize(("grain", "is_said"), [(0.024, True), (0.025, False)])
def test_moments_are_looked_at_while_four_times_their_slack_is_below_a_tenth(
    grain: float, is_said: bool
) -> None:
    said = texts(laws.uniform(stepping([0.5] * 200, 0.0, grain), 0.0, 1.0))
    assert any("as a part of the range" in text for text in said) is is_said


@pytest.mark.parametrize(
    ("tests", "shape", "slack"),
    [
        (laws.exponential(stepping([0.5] * 9, 0.25, 0.125), 2.0), 9, 0.625),
        (laws.gamma(stepping([2.0] * 9, 0.25, 0.125), 4.0, 2.0), 36, 0.15625),
        (laws.laplace(stepping([0.5] * 9, 0.25, 0.125), 0.0, 0.5), 9, 0.625),
    ],
)
def test_a_mean_leaves_room_for_the_steps_and_the_grain(
    tests: list[StatisticalTest], shape: float, slack: float
) -> None:
    low, high = gamma_limits(shape, CHANCE)
    limits = f"limits {low - slack:.6g} to {high + slack:.6g}"
    assert f"the mean over the expected one is 1, {limits}" in texts(tests)


def test_a_draw_of_infinity_is_one_of_the_top_of_its_distribution() -> None:
    said = texts(laws.cauchy(stepping([math.inf], 1.0), 0.0, 1.0))
    assert "the largest gap to the Cauchy distribution is 1, limits 0 to 0.707107" in said
