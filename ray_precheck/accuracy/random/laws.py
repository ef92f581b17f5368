"""The distributions that random APIs draw from, and the tests of their draws.

Comes in: `Draws` and the parameters of their distribution, numbers or `(N,)` float64 where each draw
has its own. Goes out: `StatisticalTest`s, empty for no draws. Called by `check.random.rules`. A distribution
is judged by its support, the gap to its distribution function, its first moments, and the independence
of its elements. Every statistic allows for the rounding of the draws to their dtype.

A draw of a discrete distribution stands for a step of its distribution function; spread evenly over it by a
generator (`spread`) draws are uniform if their distribution is right, and so judged like those of a
continuous one.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from ray_precheck.accuracy.random import bounds
from ray_precheck.accuracy.random.pooled import (
    SQUARE_MOMENTS,
    Sums,
    pattern_of,
    pattern_of_unequal,
)
from ray_precheck.accuracy.random.statistics import (
    Draws,
    Observation,
    Parameter,
    StatisticalTest,
    SummedTest,
    average,
    distribution,
    fact,
    neighbours,
    no_repeats,
    share_test,
    within,
)
from ray_precheck.schema.dtypes import Array

Cdf = Callable[[Array], Array]
# No standard normal draw of any generator is as large.
_LARGEST_SCORE = 12.0
# Above this rate a Poisson distribution function takes too many terms; totals are still looked at.
_LARGEST_POISSON_RATE = 1e4
# Draws with probabilities of their own are looked at in so many groups of like ones.
_GROUPS = 4


def normal(draws: Draws, mean: Parameter, std: Parameter) -> list[StatisticalTest]:
    """Normal draws: gap, mean, variance, independence. A standard deviation of 0 gives the mean."""
    constant = np.broadcast_to(np.asarray(std) == 0, draws.values.shape)
    exact = fact(
        "differ from the mean though the deviation is 0",
        constant & (abs(draws.values - mean) > draws.step),
    )
    keep = ~constant
    if not keep.any():
        return [exact]
    mean, std = _kept(mean, keep), _kept(std, keep)
    z, step = (draws.values[keep] - mean) / std, draws.step[keep] / std
    gap = _gap("the normal distribution", z, step, draws.grain, bounds.normal_cdf)
    tests = [fact("are not finite", ~np.isfinite(draws.values)), gap, *_normal_moments(z, step)]
    return [
        *([exact] if constant.any() else []),
        *tests,
        *_independence(draws.values[keep], z < 0, step, mean, std),
    ]


def _kept(parameter: Parameter, keep: Array) -> Parameter:
    return parameter if np.ndim(parameter) == 0 else np.asarray(parameter)[keep]


def _normal_moments(z: Array, step: Array) -> list[StatisticalTest]:
    """Test the mean and the mean square of standard normal draws, each known to one step."""
    magnitude, count = np.abs(z), len(z)
    found = float(np.mean(z**2))
    less = found - float(np.mean(np.maximum(magnitude - step, 0.0) ** 2))
    more = float(np.mean((magnitude + step) ** 2)) - found

    def square(chance: float) -> Observation:
        low, high = bounds.square_limits(count, chance)
        return within("the variance over the expected one", found, (low - more, high + less))

    what = "the mean, in standard deviations from the expected one,"
    # Rounding to nearest moves the sums of many draws by the square of a step, to leading order.
    bias = float(np.mean(step**2))
    sums = Sums("square", count, count, count * (found - 1), 2 * count, 8 * count, count * bias)
    return [
        average(what, z, 0.0, 1.0, float(np.mean(step)), "mean", bias),
        SummedTest(square, (sums,)),
    ]


def uniform(draws: Draws, low: Parameter, high: Parameter) -> list[StatisticalTest]:
    """Draws uniform over [low, high): range, gap, two moments, independence."""
    width = np.asarray(high, np.float64) - low
    if np.ndim(width) == 0 and width <= 0:
        return [fact(f"differ from {low}", abs(draws.values - low) > draws.step)]
    outside = (draws.values < low - draws.step) | (draws.values > high + draws.step)
    tests = [fact("are outside of their range", outside | np.isnan(draws.values))]
    u = (draws.values - low) / width
    step = draws.step / width
    uniform_cdf = partial(np.clip, a_min=0.0, a_max=1.0)
    tests.append(_gap("the uniform distribution", u, step, draws.grain, uniform_cdf))
    slack = float(np.mean(step)) + draws.grain
    if 4 * slack < 0.1:
        tests += [
            average("the mean, as a part of the range,", u, 0.5, 1 / 12, slack, "place"),
            share_test(
                "the mean square over that of a half range",
                np.clip(2 * u - 1, -1, 1) ** 2,
                1 / 3,
                "width",
                SQUARE_MOMENTS,
            ),
        ]
    return [*tests, *_independence(draws.values, u < 0.5, step, low, high)]


def exponential(draws: Draws, rate: Parameter) -> list[StatisticalTest]:
    """Exponential draws: sign, gap, mean, independence."""
    x = draws.values * rate
    step = draws.step * rate
    return [
        fact("are not positive numbers", ~(draws.values >= 0)),
        _gap("the exponential distribution", x, step, draws.grain, _exponential_cdf),
        _mean_over(x, 1.0, step + draws.grain),
        *_independence(draws.values, x < math.log(2), step, rate),
    ]


def _exponential_cdf(x: Array) -> Array:
    return np.asarray(-np.expm1(-np.maximum(x, 0.0)))


def _mean_over(x: Array, shape: Parameter, step: Array) -> StatisticalTest:
    """Test the mean of gamma draws of rate 1 over the expected one: their sum has the sum of their
    shapes."""
    shapes, count = np.broadcast_to(np.asarray(shape, np.float64), x.shape), len(x)
    total = max(float(np.sum(shapes)), 1e-300)
    slack, found = float(np.sum(step)) / total, float(np.sum(x)) / total

    def test(chance: float) -> Observation:
        low, high = bounds.gamma_limits(total, chance)
        return within("the mean over the expected one", found, (low - slack, high + slack))

    off = total * (found - 1)
    return SummedTest(test, (Sums("ratio", count, total, off, total, 2 * total, total * slack),))


def gamma(draws: Draws, shape: Parameter, rate: Parameter) -> list[StatisticalTest]:
    """Gamma draws: sign, gap, mean, independence."""
    x, step = draws.values * rate, draws.step * rate
    tests = [
        fact("are not positive numbers", ~(draws.values >= 0)),
        _gap(
            "the gamma distribution",
            x,
            step,
            draws.grain,
            lambda v: bounds.gamma_cdf(np.asarray(shape), np.maximum(v, 0.0)),
        ),
        _mean_over(x, shape, step + draws.grain),
    ]
    return [
        *tests,
        *_independence(
            draws.values, bounds.gamma_cdf(np.asarray(shape), x) < 0.5, step, shape, rate
        ),
    ]


def cauchy(draws: Draws, median: Parameter, scale: Parameter) -> list[StatisticalTest]:
    """Cauchy draws, which have no moments: gap, independence."""
    z, step = (draws.values - median) / scale, draws.step / scale
    numbers = fact("are not numbers", np.isnan(draws.values))
    return [
        SummedTest(numbers, _below_median(z, step, draws.grain)),
        _gap(
            "the Cauchy distribution",
            z,
            step,
            draws.grain,
            lambda x: 0.5 + np.arctan(x) / math.pi,
        ),
        share_test("the share of draws within the scale", np.abs(z) < 1, 0.5, "within"),
        *_independence(draws.values, z < 0, step, median, scale),
    ]


def laplace(draws: Draws, mean: Parameter, scale: Parameter) -> list[StatisticalTest]:
    """Laplace draws: gap, mean magnitude, independence."""
    z, step = (draws.values - mean) / scale, draws.step / scale
    numbers = fact("are not numbers", np.isnan(draws.values))
    return [
        SummedTest(numbers, _below_median(z, step, draws.grain)),
        _gap("the Laplace distribution", z, step, draws.grain, _laplace_cdf),
        _mean_over(np.abs(z), 1.0, step + draws.grain),
        *_independence(draws.values, z < 0, step, mean, scale),
    ]


def _below_median(z: Array, step: Array, grain: float) -> tuple[Sums, ...]:
    """Return the sums of the share of draws below the median, 0; a draw within a step of it may lie on
    either side."""
    either, count = np.abs(z) <= step, len(z)
    off = float(np.sum(np.where(either, 0.0, np.sign(-z) / 2)))
    slack = float(np.sum(either)) / 2 + count * grain
    return (Sums("below", count, count / 2, off, count / 4, 0.0, slack),)


def _laplace_cdf(x: Array) -> Array:
    tail = 0.5 * np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, tail, 1.0 - tail))


def log_normal(draws: Draws, mean: Parameter, std: Parameter) -> list[StatisticalTest]:
    """Draws whose logarithm is normal; those that overflow or vanish in their dtype are left out of
    the moments."""
    usable = (draws.values > draws.step) & np.isfinite(draws.values)
    values, step = draws.values[usable], draws.step[usable]
    mean, std = _kept(mean, usable), _kept(std, usable)
    z, relative = (np.log(values) - mean) / std, step / values / std
    tests = [fact("are negative or no numbers", ~(draws.values >= 0))]
    if usable.all():
        tests.append(
            _gap("the log-normal distribution", z, relative, draws.grain, bounds.normal_cdf)
        )
        tests += _normal_moments(z, relative)
    else:
        below = draws.values <= draws.step
        below[usable] = z < 0
        tests.append(share_test("the share of draws below their median", below, 0.5))
    return [*tests, *_independence(values, z < 0, relative, mean, std)]


def _gap(name: str, values: Array, step: Array, grain: float, cdf: Cdf) -> StatisticalTest:
    """Test the gap between draws and a distribution function, blurred by rounding."""
    with np.errstate(invalid="ignore"):
        lowest = cdf(np.where(np.isposinf(values), np.finfo(np.float64).max, values - step))
        highest = cdf(values + step)
    # Where the draws are so coarse that an infinite one stands for a range, it is one of its top.
    return distribution(name, lowest - grain, np.minimum(highest + grain, 1.0))


def _independence(
    values: Array, below_median: Array, step: Array, *parameters: Parameter
) -> list[StatisticalTest]:
    """Test neighbours for dependence and, where all draws have the same distribution, for repeated stretches.
    `step` is over the scale: a draw that is rounded to more than that does not show on which side it is."""
    alike = neighbours(below_median[step < 1])
    if all(np.ndim(parameter) == 0 for parameter in parameters):
        return [alike, no_repeats(values)]
    pattern = pattern_of_unequal(values, np.where(step < 0.1, 0.5, 1.0))
    return [SummedTest(alike, pattern=pattern)]


def uniform_whole_numbers(draws: Draws, low: int, high: int) -> list[StatisticalTest]:
    """Whole numbers uniform over low to high - 1: range, gap, mean, both ends, independence.

    Where the dtype cannot hold all of them they are blurred by its step, and `high` itself occurs.
    """
    count = high - low
    coarse = draws.step > 1
    step = np.where(coarse, draws.step, 0.0)
    highest = np.where(coarse, high, high - 1)
    found = draws.values
    tests = [
        fact("are no whole numbers", found != np.rint(found)),
        fact(f"are outside of {low} to {high - 1}", (found < low - step) | (found > highest)),
    ]
    u = (found - low) / count
    # P(X <= x) = (x - low + 1) / count; the step before it is where the next lower number is.
    at_most = np.minimum(u + (1 + step) / count, 1.0)
    tests.append(distribution("the uniform distribution", u - step / count, at_most))
    center = (count - 1) / 2 / count
    slack = float(np.mean(step)) / count
    variance = (1 - count**-2) / 12
    tests.append(average("the mean, as a part of the range,", u, center, variance, slack, "place"))
    if not coarse.any():
        tests.append(share_test(f"the share of {low}", found == low, 1 / count, "lowest"))
        last = high - 1
        tests.append(share_test(f"the share of {last}", found == last, 1 / count, "highest"))
        tests[0] = SummedTest(tests[0], (_square_in_range(found - low, count),))
    half = count // 2 / count
    return [*tests, neighbours(found < low + count // 2, half), no_repeats(found)]


def _square_in_range(found: Array, count: int) -> Sums:
    """Return the sums of the squares of whole numbers uniform over 0 to `count` - 1, from their middle and
    over the half range; their central moments are polynomials in `count`."""
    c, half = float(count), count / 2
    second = (c**2 - 1) / 12 / half**2
    fourth = (c**2 - 1) * (3 * c**2 - 7) / 240 / half**4
    sixth = (c**2 - 1) * (3 * c**4 - 18 * c**2 + 31) / 1344 / half**6
    off = float(np.sum(((found - (c - 1) / 2) / half) ** 2 - second))
    variance, third = fourth - second**2, sixth - 3 * fourth * second + 2 * second**3
    n = len(found)
    return Sums("width", n, n * second, off, n * variance, n * third)


def bernoulli(draws: Draws, probability: Parameter) -> list[StatisticalTest]:
    """Draws of 0 and 1: the share of ones, by groups where each draw has its own probability."""
    p = np.broadcast_to(np.asarray(probability, np.float64), draws.values.shape)
    ones = draws.values == 1
    both = p * (1 - p)
    counted = len(ones), float(np.sum(p)), float(np.sum(ones - p))
    sums = Sums("ones", *counted, float(np.sum(both)), float(np.sum(both * (1 - 2 * p))))
    pattern = pattern_of_unequal(ones, np.maximum(p, 1 - p))
    impossible = fact("have a probability of 0", np.where(ones, p == 0, p == 1))
    tests: list[StatisticalTest] = [
        fact("are neither 0 nor 1", (draws.values != 0) & ~ones),
        SummedTest(impossible, (sums,), pattern),
    ]
    if np.ndim(probability) == 0:
        rate = float(probability)
        independence = [neighbours(ones, rate), no_repeats(ones, max(rate, 1 - rate))]
        return [*tests, share_test("the share of ones", ones, rate), *independence]
    for hits in np.array_split(np.argsort(p, kind="stable"), _GROUPS):
        if len(hits):
            name = (
                f"the share of ones where the probability is {p[hits[0]]:.3g} to {p[hits[-1]]:.3g}"
            )
            tests.append(share_test(name, ones[hits], float(np.mean(p[hits]))))
    return tests


def poisson(draws: Draws, rate: Parameter, spread: np.random.Generator) -> list[StatisticalTest]:
    """Poisson draws: whole, gap, total."""
    rates = np.broadcast_to(np.asarray(rate, np.float64), draws.values.shape)
    expected, found = float(np.sum(rates)), float(np.sum(draws.values))
    slack = float(np.sum(np.where(draws.step > 1, draws.step, 0.0))) / max(expected, 1e-300)

    def total(chance: float) -> Observation:
        low, high = bounds.poisson_limits(expected, chance)
        limits = low - slack, high + slack
        return within("the mean over the expected one", found / expected, limits)

    tests = [
        fact(
            "are no whole numbers of 0 or more",
            (draws.values < 0) | (draws.values != np.rint(draws.values)),
        ),
        fact("are not 0 though the rate is", (rates == 0) & (draws.values != 0)),
    ]
    if expected > 0:
        off, moved = found - expected, slack * expected
        sums = Sums("ratio", len(rates), expected, off, expected, expected, moved)
        tests.append(SummedTest(total, (sums,), _pattern(draws.values, rates)))
    small = (rates > 0) & (rates <= _LARGEST_POISSON_RATE) & (draws.step <= 1)
    if small.any():
        below = _poisson_cdf(rates[small], draws.values[small] - 1)
        at_most = _poisson_cdf(rates[small], draws.values[small])
        tests += _stepwise("the Poisson distribution", below, at_most, draws.grain, spread)
    return tests


def _pattern(values: Array, variances: Array) -> str:
    """Return the pattern of draws with these variances: of 1 and more no value has half of the chance."""
    if np.ptp(variances) == 0 < variances[0]:
        return pattern_of(values)
    return pattern_of_unequal(values, np.where(variances >= 1, 0.5, 1.0))


def _poisson_cdf(rates: Array, values: Array) -> Array:
    """Return P(X <= value) = 1 - P(value + 1, rate); 0 below 0."""
    found = 1.0 - bounds.gamma_cdf(np.maximum(values, 0.0) + 1.0, rates)
    return np.asarray(np.where(values < 0, 0.0, found))


def geometric(
    draws: Draws, probability: float, spread: np.random.Generator
) -> list[StatisticalTest]:
    """Numbers of trials up to the first success, 1 and more: whole, gap."""
    wrong = (draws.values < 1) | (draws.values != np.rint(draws.values))
    whole = fact("are no whole numbers of 1 or more", wrong)
    if not 0 < probability < 1:
        return [whole]
    count, mean, q = len(draws), 1 / probability, 1 - probability
    sums = Sums(
        "ratio",
        count,
        count * mean,
        float(np.sum(draws.values - mean)),
        count * q * mean**2,
        count * q * (1 + q) * mean**3,
        float(np.sum(np.where(draws.step > 0.5, draws.step, 0.0))),
    )
    failure = math.log1p(-probability)
    below = -np.expm1(failure * np.maximum(draws.values - 1, 0))
    at_most = -np.expm1(failure * np.maximum(draws.values, 0))
    gap = _stepwise("the geometric distribution", below, at_most, draws.grain, spread)
    return [SummedTest(whole, (sums,), pattern_of(draws.values)), *gap]


def binomial(draws: Draws, trials: Parameter, probability: Parameter) -> list[StatisticalTest]:
    """Numbers of successes: whole, range, and the share of successes among all trials."""
    counts = np.broadcast_to(np.asarray(trials, np.float64), draws.values.shape)
    p = np.broadcast_to(np.asarray(probability, np.float64), draws.values.shape)
    total = float(np.sum(counts))
    wrong = (draws.values < 0) | (draws.values > counts) | (draws.values != np.rint(draws.values))
    tests = [fact("are no whole numbers of 0 to the number of trials", wrong)]
    if total > 0:
        expected, found = float(np.sum(counts * p)), float(np.sum(draws.values))

        def successes(chance: float) -> Observation:
            limits = bounds.share_limits(expected / total, int(total), chance)
            return within("the share of successes", found / total, limits, (0, 1))

        both = counts * p * (1 - p)
        moments = float(np.sum(both)), float(np.sum(both * (1 - 2 * p)))
        sums = Sums("ratio", len(p), expected, found - expected, *moments)
        tests.append(SummedTest(successes, (sums,), _pattern(draws.values, both)))
    return tests


def categories(
    chosen: Array, below: Array, at_most: Array, grain: float, spread: np.random.Generator
) -> list[StatisticalTest]:
    """Draws of categories, `(N,)`: none without a chance, and the gap to their weights.

    `below` and `at_most` are the probabilities of a category below the drawn one, and of a category
    that is at most the drawn one.
    """
    if not len(chosen):
        return []
    impossible = fact("are categories without a weight", at_most <= below)
    u = below + spread.random(len(below)) * np.maximum(at_most - below, 0.0)
    tests = _evenly("the given weights", u, grain)
    count, squares = len(u), (2 * u - 1) ** 2
    variance, third = SQUARE_MOMENTS
    sums = (
        Sums("place", count, count / 2, float(np.sum(u - 0.5)), count / 12, 0.0, count * grain),
        Sums(
            "width",
            count,
            count / 3,
            float(np.sum(squares - 1 / 3)),
            count * variance,
            count * third,
            2 * count * grain,
        ),
    )
    pattern = pattern_of_unequal(chosen, at_most - below)
    return [SummedTest(impossible, sums, pattern), *tests]


def permutation(values: Array) -> list[StatisticalTest]:
    """A permutation of 0 to n - 1: each once, not in order, few of them at their own place."""
    count = len(values)
    place = np.arange(count)
    once = "are missing or there twice (each whole number below the length is due once)"
    ascends = values[: count // 2 * 2 : 2] < values[1::2]
    tests = [
        fact(once, np.sort(values) != place),
        share_test("the share of pairs of neighbours that ascend", ascends, 0.5, "rising"),
    ]

    def fixed(chance: float) -> Observation:
        # The expected number of sets of k fixed points is 1/k! for every length.
        found = int(np.count_nonzero(values == place))
        limit = next(k for k in range(1, 200) if 1 / math.factorial(k) <= chance) - 1
        return within("the number of elements at their own place", found, (0, limit), (0, count))

    # All orders are equally probable: 1 / count! for each.
    pattern = pattern_of(values, math.exp(-math.lgamma(count + 1) / max(count, 1)))
    return [*tests, SummedTest(fixed, pattern=pattern)]


def _stepwise(
    name: str, below: Array, at_most: Array, grain: float, spread: np.random.Generator
) -> list[StatisticalTest]:
    """Test discrete draws, spread evenly over their steps of the distribution function: then they
    are uniform if their distribution is right (randomised probability integral transform)."""
    u = below + spread.random(len(below)) * np.maximum(at_most - below, 0.0)
    return _evenly(name, u, grain)


def _evenly(name: str, u: Array, grain: float) -> list[StatisticalTest]:
    return [distribution(name, u - grain, np.minimum(u + grain, 1.0)), neighbours(u < 0.5)]
