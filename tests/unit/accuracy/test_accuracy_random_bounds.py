"""Limits of honest draws and the distribution functions, against values that are known."""

import math

import numpy as np
import pytest

from ray_precheck.accuracy.random import dropout
from ray_precheck.accuracy.random.bounds import (
    gamma_cdf,
    gamma_limits,
    largest_gap,
    log_gamma,
    mean_limit,
    normal_cdf,
    poisson_limits,
    share_limits,
    square_limits,
)
from ray_precheck.accuracy.random.dropout import attention_tests
from ray_precheck.accuracy.random.statistics import SAMPLE_ELEMENTS, no_repeats, sampled

pytestmark = pytest.mark.unit


class TestBounds:
    """Against values that are known or worked out by hand."""

    def test_a_share_of_one_half_of_a_thousand(self) -> None:
        # Binomial(1000, 1/2): the exact two-sided limits for 1e-6 are 423 and 577.
        low, high = share_limits(0.5, 1000, 1e-6)
        assert 0.40 < low < 0.423
        assert 0.577 < high < 0.60

    def test_a_share_that_is_impossible_or_certain_has_no_room(self) -> None:
        assert share_limits(0.0, 10, 1e-6) == pytest.approx((0.0, 0.0), abs=1e-12)
        assert share_limits(1.0, 10, 1e-6) == pytest.approx((1.0, 1.0), abs=1e-12)

    def test_few_elements_have_all_the_room(self) -> None:
        assert share_limits(0.5, 4, 1e-6) == (0.0, 1.0)

    def test_the_gap_is_that_of_massart(self) -> None:
        assert largest_gap(100, 0.05) == pytest.approx(0.13581, abs=1e-5)

    def test_the_others_reach_their_rate(self) -> None:
        assert mean_limit(4.0, 100, 2 * np.exp(-2)) == pytest.approx(0.4)
        for limits, rate in (
            (square_limits(50, 0.01), lambda x: 25 * (x - 1 - np.log(x))),
            (gamma_limits(50, 0.01), lambda x: 50 * (x - 1 - np.log(x))),
            (poisson_limits(50, 0.01), lambda x: 50 * (x * np.log(x) - x + 1)),
        ):
            assert [rate(limit) for limit in limits] == pytest.approx([np.log(200)] * 2)


class TestSpecialFunctions:
    def test_the_normal_distribution_function(self) -> None:
        z = np.array([-np.inf, -3.0, -1.0, 0.0, 1.959963985, np.inf])
        exact = [0.0, 0.001349898, 0.158655254, 0.5, 0.975, 1.0]
        assert normal_cdf(z) == pytest.approx(exact, abs=1e-7)

    def test_the_gamma_distribution_function_of_whole_shapes_is_a_poisson_sum(self) -> None:
        for shape, x in ((1, 0.5), (3, 2.0), (3, 9.0), (40, 35.0), (40, 60.0)):
            terms = [np.exp(k * np.log(x) - x - sum(np.log(range(1, k + 1)))) for k in range(shape)]
            assert gamma_cdf(np.array(shape), np.array([x])) == pytest.approx(
                1 - sum(terms), abs=1e-9
            )

    def test_small_probabilities_of_gamma_draws_keep_their_digits(self) -> None:
        # The first term is x^3 / 6, the second 3x / 4 of it.
        for x in (1e-3, 1e-5, 1e-8):
            expected = x**3 / 6 * (1 - 0.75 * x)
            assert gamma_cdf(np.array(3.0), np.array([x])) == pytest.approx(expected, rel=1e-6)

    def test_the_gamma_function_of_whole_numbers_is_a_factorial(self) -> None:
        expected = [0.0, 0.0, np.log(2), np.log(6), np.log(362880)]
        assert log_gamma(np.array([1, 2, 3, 4, 10])) == pytest.approx(expected, abs=1e-11)


def test_the_limits_of_attention_are_bernsteins() -> None:
    # Two weights of 1/2 on values of 1: with p = 1/4 the terms are 2/3 and the parts of the slope too.
    # With ln(2 / chance) = 1, the largest term 2/3 * 3/4 / 3 = 1/6 and the variance 3/16 * 8/9 = 1/6 the
    # limit is 1/6 + sqrt(1/36 + 2/6) = 0.76759.
    query, keys, values = np.zeros((1, 1, 1)), np.zeros((1, 2, 1)), np.ones((1, 2, 1))
    tests = attention_tests(query, keys, values, np.ones((1, 1, 1)), None, 0.25, None, 0.0)
    text = tests[1](2 / math.e).text
    assert text == "the size over that without dropout is 1, limits 0.232408 to 1.76759"


def test_statistics_look_at_so_many_elements_at_most_spread_evenly() -> None:
    for count in (0, 1, SAMPLE_ELEMENTS, SAMPLE_ELEMENTS + 1, 5 * SAMPLE_ELEMENTS - 1):
        seen = range(count)[sampled(count)]
        assert len(seen) <= SAMPLE_ELEMENTS
        assert 2 * len(seen) >= min(count, SAMPLE_ELEMENTS)


def test_heads_beyond_so_many_weights_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    query, keys, values, out = (generator.normal(size=(5, 2, 3)) for _ in range(4))
    monkeypatch.setattr(dropout, "_MOST_WEIGHTS", 15)  # of three heads: each has 2 x 2
    for many, few in zip(
        attention_tests(query, keys, values, out, None, 0.5, None, 0.0)[1:],
        attention_tests(query[:3], keys[:3], values[:3], out[:3], None, 0.5, None, 0.0)[1:],
        strict=True,
    ):
        assert many(1e-6) == few(1e-6)


def test_a_stretch_may_be_half_of_all_elements() -> None:
    # 20^2 / 2 / 0.2 = 1000 < 2^10: ten elements tell, with two values that are as common.
    values = np.tile(np.array([0, 1, 1, 0, 1, 0, 0, 0, 1, 1]), 2)
    seen = no_repeats(values, 0.5)(0.2)
    assert (seen.passed, seen.text) == (False, "the 10 elements from 10 on repeat those from 0 on")
