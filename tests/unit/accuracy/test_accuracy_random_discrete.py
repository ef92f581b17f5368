"""Statistical tests of discrete draws: the ends of their range, coarse steps, parameters at their limits."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from draws import alarms, judged, rng, whole

from ray_precheck.accuracy.random import laws
from ray_precheck.accuracy.random.bounds import poisson_limits, share_limits
from ray_precheck.accuracy.random.statistics import Draws, StatisticalTest, drawn_of
from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.unit

# The chance for which ln(2 / chance) is 1, so that limits can be worked out by hand.
CHANCE = 2 / math.e


def stepping(values: Sequence[float], step: float, grain: float = 0.0) -> Draws:
    return Draws(np.array(values, np.float64), np.full(len(values), float(step)), grain, math.inf)


def texts(tests: Sequence[StatisticalTest], chance: float = CHANCE) -> list[str]:
    return [test(chance).text for test in tests]


def limits(low: float, high: float) -> str:
    return f"limits {low:.6g} to {high:.6g}"


class TestUniform:
    # Over 10 to 19. Where numbers have a step of 2, a draw may have been rounded down to 8, or up to 20.
    @pytest.mark.parametrize(
        ("step", "inside", "outside"), [(0, (10, 19), (9, 20)), (1, (10, 19), (9, 20)), (2, (8, 20), (7, 21))]
    )  # fmt: skip
    def test_a_draw_may_leave_its_range_by_rounding_alone(
        self, step: float, inside: tuple[float, float], outside: tuple[float, float]
    ) -> None:
        for values, is_right in ((inside, True), (outside[:1], False), (outside[1:], False)):
            test = laws.uniform_whole_numbers(stepping(values, step), 10, 20)[1]
            assert test(CHANCE).passed is is_right

    # The tenth of the range that 10 stands for ends at 0.1, or one step of 2 behind that.
    @pytest.mark.parametrize(
        ("value", "step", "gap"), [(10, 0, 0.9), (19, 0, 0.9), (10, 2, 0.7), (19, 2, 0.7)]
    )
    def test_a_draw_stands_for_its_part_of_the_range_and_the_step_around_it(
        self, value: float, step: float, gap: float
    ) -> None:
        said = texts(laws.uniform_whole_numbers(stepping([value], step), 10, 20))
        assert f"the largest gap to the uniform distribution is {gap}, limits 0 to 0.707107" in (
            said
        )

    # The variance is (1 - 1/100) / 12 = 0.0825, the limit sqrt(2 * 0.0825 / 200) = 0.0287228; a step
    # of 2 adds a fifth of the range.
    @pytest.mark.parametrize(("step", "slack"), [(0, 0.0), (2, 0.2)])
    def test_the_mean_may_be_off_by_the_rounding_of_coarse_draws(
        self, step: float, slack: float
    ) -> None:
        draws = stepping(np.tile(np.arange(10, 20), 20).tolist(), step)
        within = limits(0.4212772 - slack, 0.4787228 + slack)
        assert f"the mean, as a part of the range, is 0.45, {within}" in texts(
            laws.uniform_whole_numbers(draws, 10, 20)
        )

    def test_the_ends_are_counted_where_no_draw_is_rounded(self) -> None:
        values = np.tile(np.arange(10, 20), 20).tolist()
        said = texts(laws.uniform_whole_numbers(stepping(values, 1), 10, 20))
        for end in (10, 19):
            expected = limits(*share_limits(0.1, 200, CHANCE))
            assert f"the share of {end} is 0.1, {expected}" in said
        said = texts(laws.uniform_whole_numbers(stepping(values, 2), 10, 20))
        assert not any("the share of 1" in text for text in said)

    @pytest.mark.parametrize("count", [2, 5, 12])
    def test_the_moments_of_the_square_are_those_of_the_whole_range(self, count: int) -> None:
        tests = laws.uniform_whole_numbers(whole(np.arange(count)), 0, count)
        (sums,) = drawn_of(tests[:1], is_captured=False).sums
        squares = ((np.arange(count) - (count - 1) / 2) / (count / 2)) ** 2
        off = squares - squares.mean()
        assert sums.expected == pytest.approx(squares.sum())
        assert sums.off == pytest.approx(0.0, abs=1e-12)
        assert sums.variance == pytest.approx((off**2).sum(), abs=1e-12)
        assert sums.third == pytest.approx((off**3).sum(), abs=1e-12)

    def test_of_an_odd_count_the_lower_half_is_the_smaller_one(self) -> None:
        # Of 0, 1 and 2 one third is below 1: neighbours are alike with 1/9 + 4/9.
        said = texts(laws.uniform_whole_numbers(whole(np.tile([0, 1], 100)), 0, 3))
        expected = limits(*share_limits(5 / 9, 100, CHANCE))
        assert f"the share of neighbours that are alike is 0, {expected}" in said


class TestBernoulli:
    def test_what_is_impossible_or_certain_is_a_fact(self) -> None:
        certain = np.array([0.0, 1.0, 0.5, 0.5])
        for values, is_wrong in (([0, 1, 0, 1], False), ([1, 1, 0, 1], True), ([0, 0, 0, 1], True)):
            tests = laws.bernoulli(stepping(values, 0), certain)
            assert alarms(tests[1:2]) is is_wrong

    def test_neighbours_and_stretches_are_judged_by_the_probability(self) -> None:
        # ln(100^2 / 2 / 0.5) / -ln(0.8) = 41.3: as many elements agree by chance where 4 of 5 are alike.
        for p in (0.2, 0.8):
            said = texts(laws.bernoulli(stepping(rng().random(100) < p, 0), p), 0.5)
            assert said[-1] == "no stretch of 42 elements occurs twice"
            assert said[-2].endswith(limits(*share_limits(0.68, 50, 0.5)))

    def test_draws_are_grouped_by_their_probabilities(self) -> None:
        p = np.array([0.8, 0.1, 0.6, 0.3, 0.2, 0.7, 0.4, 0.5])
        ones = (p == 0.8) | (p == 0.1) | (p == 0.2)
        said = texts(laws.bernoulli(stepping(ones, 0), p), 1.0)
        shares = {"0.1 to 0.2": 1, "0.3 to 0.4": 0, "0.5 to 0.6": 0, "0.7 to 0.8": 0.5}
        for (name, share), text in zip(shares.items(), said[2:], strict=True):
            mean = sum(map(float, name.split(" to "))) / 2
            within = limits(*share_limits(mean, 2, 1.0))
            assert text == f"the share of ones where the probability is {name} is {share}, {within}"


class TestPoisson:
    def test_a_rate_of_0_allows_0_alone(self) -> None:
        for value, verdict in ((0, Verdict.PASS), (1, Verdict.ERROR)):
            tests = laws.poisson(whole(np.array([0, value])), 0.0, rng())
            assert judged(tests).verdict is verdict
            assert not any("the Poisson distribution" in text for text in texts(tests))

    def test_another_draw_than_0_needs_a_rate(self) -> None:
        tests = laws.poisson(whole(np.array([0, 2])), np.array([0.0, 1.0]), rng())
        assert not alarms(tests)

    # Two steps of 2 are a hundredth of the expected total of 400.
    @pytest.mark.parametrize(("step", "slack"), [(0, 0.0), (1, 0.0), (2, 0.01)])
    def test_the_total_may_be_off_by_the_rounding_of_coarse_draws(
        self, step: float, slack: float
    ) -> None:
        low, high = poisson_limits(400, CHANCE)
        said = texts(laws.poisson(stepping([204, 204], step), 200.0, rng()))
        within = limits(low - slack, high + slack)
        assert f"the mean over the expected one is 1.02, {within}" in said

    @pytest.mark.parametrize(
        ("rate", "step", "is_looked_at"),
        [(1e4, 0, True), (1e4, 1, True), (1.001e4, 0, False), (1e4, 2, False)],
    )
    def test_the_distribution_is_looked_at_where_it_takes_few_terms_and_draws_are_fine(
        self, rate: float, step: float, is_looked_at: bool
    ) -> None:
        said = texts(laws.poisson(stepping([1e4], step), rate, rng()))
        assert any("the Poisson distribution" in text for text in said) is is_looked_at

    def test_0_stands_for_all_from_0_to_its_probability(self) -> None:
        # Of a rate of ln 2 one half is 0, and 0.347 are 1: all 0 are below the median, no 1 is.
        tests = laws.poisson(whole(np.tile([0, 1], 200)), math.log(2), rng())
        assert any(
            text.startswith("the share of neighbours that are alike is 0,") for text in texts(tests)
        )
        tests = laws.poisson(whole(np.zeros(4000)), math.log(2), rng())
        gaps = [text.split()[8] for text in texts(tests) if "largest gap" in text]
        assert [float(gap.rstrip(",")) for gap in gaps] == [pytest.approx(0.5, abs=0.01)]


class TestGeometric:
    @pytest.mark.parametrize("probability", [0.0, 1.0])
    def test_without_a_chance_or_without_a_doubt_there_is_no_distribution(
        self, probability: float
    ) -> None:
        tests = laws.geometric(stepping([1, 1], 0), probability, rng())
        assert texts(tests) == ["none are no whole numbers of 1 or more"]

    @pytest.mark.parametrize(("value", "is_wrong"), [(0, True), (1, False), (1.5, True)])
    def test_numbers_are_whole_and_begin_with_1(self, value: float, is_wrong: bool) -> None:
        assert alarms(laws.geometric(stepping([value], 0), 0.5, rng())[:1]) is is_wrong

    def test_1_stands_for_the_probability_and_2_for_what_follows(self) -> None:
        said = texts(laws.geometric(stepping([1, 2] * 100, 0), 0.5, rng()))
        assert said[-1].startswith("the share of neighbours that are alike is 0,")


class TestBinomial:
    @pytest.mark.parametrize(
        ("value", "is_wrong"), [(-1, True), (0, False), (0.5, True), (3, False), (4, True)]
    )
    def test_successes_are_whole_and_no_more_than_trials(
        self, value: float, is_wrong: bool
    ) -> None:
        assert alarms(laws.binomial(stepping([value], 0), 3.0, 0.5)[:1]) is is_wrong

    def test_no_trials_have_no_share_of_successes(self) -> None:
        tests = laws.binomial(stepping([0, 0], 0), 0.0, 0.5)
        assert texts(tests) == ["none are no whole numbers of 0 to the number of trials"]

    def test_the_share_is_that_of_all_trials(self) -> None:
        # 30 * 0.1 + 10 * 0.9 of 40 are expected.
        tests = laws.binomial(stepping([5, 5], 0), np.array([30.0, 10.0]), np.array([0.1, 0.9]))
        within = limits(*share_limits(0.3, 40, CHANCE))
        assert texts(tests)[1] == f"the share of successes is 0.25, {within}"


def test_a_category_without_a_weight_is_a_fact() -> None:
    below, at_most = np.array([0.0, 0.5, 0.5]), np.array([0.5, 0.5, 1.0])
    chosen = np.arange(3.0)
    tests = laws.categories(chosen, below, at_most, 0.0, rng())
    assert texts(tests)[0] == "1 of 3 elements are categories without a weight, the first at [1]"


def test_the_gap_to_the_weights_leaves_room_for_the_grain() -> None:
    # u is 1/4 or 3/4, so that the ends are 1/4 off, by a grain of 1/8 one eighth.
    ends = np.array([0.25, 0.75])
    for grain, gap in ((0.0, 0.25), (0.125, 0.125)):
        tests = laws.categories(np.arange(2.0), ends, ends, grain, rng())
        assert f"the largest gap to the given weights is {gap}, limits 0 to 0.5" in texts(tests)


def test_the_middle_is_not_below_the_median() -> None:
    ends = np.tile([0.5, 0.25], 100)
    said = texts(laws.categories(np.arange(200.0), ends, ends, 0.0, rng()))
    assert said[2].startswith("the share of neighbours that are alike is 0,")


class TestPermutation:
    # Of 3 and more fixed points there is at most one set of 3 for every 3! permutations.
    @pytest.mark.parametrize(("chance", "most"), [(1 / 6, 2), (0.16, 3), (0.5, 1), (0.51, 1)])
    def test_more_fixed_points_than_the_chance_allows_are_found(
        self, chance: float, most: int
    ) -> None:
        place = np.arange(5.0)
        assert texts(laws.permutation(place), chance)[2] == (
            f"the number of elements at their own place is 5, limits 0 to {most}"
        )

    def test_pairs_that_ascend_are_counted_without_the_last_of_an_odd_number(self) -> None:
        values = np.array([0.0, 1.0, 2.0, 4.0, 5.0, 3.0, 6.0])
        within = limits(*share_limits(0.5, 3, 1.0))
        assert texts(laws.permutation(values), 1.0)[1] == (
            f"the share of pairs of neighbours that ascend is 0.666667, {within}"
        )

    def test_the_same_number_twice_does_not_ascend(self) -> None:
        tests = laws.permutation(np.array([1.0, 1.0, 2.0, 3.0]))
        assert "the share of pairs of neighbours that ascend is 0.5," in texts(tests)[1]
