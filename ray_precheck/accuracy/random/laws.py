"""The continuous distributions that random APIs draw from, and the tests of their draws.

Comes in: `Draws` and the parameters of their distribution, numbers or `(N,)` float64 where each draw
has its own. Goes out: `StatisticalTest`s, empty for no draws. Called by `check.random.rules`. A distribution
is judged by its support, the gap to its distribution function, its first moments, and the independence
of its elements. Every statistic allows for the rounding of the draws to their dtype.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ray_precheck.accuracy.random.bounds import gamma_cdf, gamma_limits, normal_cdf, square_limits
from ray_precheck.accuracy.random.pooled import SQUARE_MOMENTS, Sums, pattern_of_unequal
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


def normal(draws: Draws, mean: Parameter, std: Parameter) -> list[StatisticalTest]:
    """Normal draws: gap, mean, variance, independence. A standard deviation of 0 gives the mean."""
    if not len(draws):
        return []
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
    gap = _gap("the normal distribution", replace(draws, values=z, step=step), normal_cdf)
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
        low, high = square_limits(count, chance)
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
    if not len(draws):
        return []
    width = np.asarray(high, np.float64) - low
    if np.ndim(width) == 0 and width <= 0:
        return [fact(f"differ from {low}", abs(draws.values - low) > draws.step)]
    outside = (draws.values < low - draws.step) | (draws.values > high + draws.step)
    tests = [fact("are outside of their range", outside | np.isnan(draws.values))]
    u = (draws.values - low) / width
    blurred = replace(draws, values=u, step=draws.step / width)
    tests.append(_gap("the uniform distribution", blurred, lambda x: np.clip(x, 0.0, 1.0)))
    slack = float(np.mean(blurred.step)) + draws.grain

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
    return [*tests, *_independence(draws.values, u < 0.5, blurred.step, low, high)]


def exponential(draws: Draws, rate: Parameter) -> list[StatisticalTest]:
    """Exponential draws: sign, gap, mean, independence."""
    if not len(draws):
        return []
    x = draws.values * rate
    step = draws.step * rate
    return [
        fact("are not positive numbers", ~(draws.values >= 0)),
        _gap("the exponential distribution", replace(draws, values=x, step=step), _exponential_cdf),
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
        low, high = gamma_limits(total, chance)
        return within("the mean over the expected one", found, (low - slack, high + slack))

    off = total * (found - 1)
    return SummedTest(test, (Sums("ratio", count, total, off, total, 2 * total, total * slack),))


def gamma(draws: Draws, shape: Parameter, rate: Parameter) -> list[StatisticalTest]:
    """Gamma draws: sign, gap, mean, independence."""
    if not len(draws):
        return []
    x, step = draws.values * rate, draws.step * rate
    tests = [
        fact("are not positive numbers", ~(draws.values >= 0)),
        _gap(
            "the gamma distribution",
            replace(draws, values=x, step=step),
            lambda v: gamma_cdf(np.asarray(shape), np.maximum(v, 0.0)),
        ),
        _mean_over(x, shape, step + draws.grain),
    ]
    return [
        *tests,
        *_independence(draws.values, gamma_cdf(np.asarray(shape), x) < 0.5, step, shape, rate),
    ]


def cauchy(draws: Draws, median: Parameter, scale: Parameter) -> list[StatisticalTest]:
    """Cauchy draws, which have no moments: gap, independence."""
    if not len(draws):
        return []
    z, step = (draws.values - median) / scale, draws.step / scale
    numbers = fact("are not numbers", np.isnan(draws.values))
    return [
        SummedTest(numbers, _below_median(z, step, draws.grain)),
        _gap(
            "the Cauchy distribution",
            replace(draws, values=z, step=step),
            lambda x: 0.5 + np.arctan(x) / math.pi,
        ),
        share_test("the share of draws within the scale", np.abs(z) < 1, 0.5, "within"),
        *_independence(draws.values, z < 0, step, median, scale),
    ]


def laplace(draws: Draws, mean: Parameter, scale: Parameter) -> list[StatisticalTest]:
    """Laplace draws: gap, mean magnitude, independence."""
    if not len(draws):
        return []
    z, step = (draws.values - mean) / scale, draws.step / scale
    numbers = fact("are not numbers", np.isnan(draws.values))
    return [
        SummedTest(numbers, _below_median(z, step, draws.grain)),
        _gap("the Laplace distribution", replace(draws, values=z, step=step), _laplace_cdf),
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
    if not len(draws):
        return []
    usable = (draws.values > draws.step) & np.isfinite(draws.values)
    values, step = draws.values[usable], draws.step[usable]
    mean, std = _kept(mean, usable), _kept(std, usable)
    z = (np.log(values) - mean) / std
    tests = [fact("are negative or no numbers", ~(draws.values >= 0))]
    if usable.all():
        tests.append(
            _gap(
                "the log-normal distribution",
                replace(draws, values=z, step=step / values / std),
                normal_cdf,
            )
        )
        tests += _normal_moments(z, step / values / std)
    else:
        tests.append(
            share_test("the share of draws below their median", _below(draws, usable, z), 0.5)
        )
    return [*tests, *_independence(values, z < 0, step / values / std, mean, std)]


def _below(draws: Draws, usable: Array, z: Array) -> Array:
    below = draws.values <= draws.step
    below[usable] = z < 0
    return below


def _gap(name: str, draws: Draws, cdf: Cdf) -> StatisticalTest:
    """Test the gap between draws and a distribution function, blurred by rounding."""
    with np.errstate(invalid="ignore"):
        lowest = cdf(
            np.where(np.isposinf(draws.values), np.finfo(np.float64).max, draws.values - draws.step)
        )
        highest = cdf(draws.values + draws.step)
    # Where the draws are so coarse that an infinite one stands for a range, it is one of its top.
    return distribution(name, lowest - draws.grain, np.minimum(highest + draws.grain, 1.0))


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
