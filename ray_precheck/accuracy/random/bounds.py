"""How far a statistic of honest random draws may stray: limits, and the distributions of draws.

Comes in: an expectation, a number of independent draws and a chance. Goes out: the closed interval
that the statistic of honest draws leaves with at most that chance, both sides together, a known false-alarm
rate. Every limit is a proven bound for any number of draws, not an approximation for many of them. Called by
`accuracy.random.statistics` and `accuracy.random.laws`.

All but two are Chernoff's bound P(mean >= x) <= exp(-n * rate(x)), solved for x by bisection; the
rate functions are the Legendre transforms that Dembo and Zeitouni, Large Deviations Techniques and
Applications, 2nd ed., section 2.2, exercise 2.2.23 list.

The distribution functions, on float64 arrays of any shape, are those that NumPy lacks. They are as exact as a
bound on ten million draws can tell (about 1e-4), far from the last place.
"""

import math
from collections.abc import Callable

import numpy as np

from ray_precheck.schema.dtypes import Array

# The chance that a call with a correct generator is judged an error. It is divided evenly among the
# outputs and statistics of the call (Bonferroni). A dump with 1,000 random calls raises a false alarm
# once in 1,000 runs.
FALSE_ALARM_RATE = 1e-6

Limits = tuple[float, float]
_BISECTIONS = 80
_MOST_TERMS = 1000
_PRECISE = 1e-10


def share_limits(expected: float, count: int, chance: float) -> Limits:
    """Return the limits of a mean of numbers in [0, 1] with this expectation, such as a share.

    rate(x) = x ln(x/p) + (1-x) ln((1-x)/(1-p)), for independent numbers that need not have the same
    expectation (p is their mean), and for draws without replacement: Hoeffding, Probability
    inequalities for sums of bounded random variables, JASA 58 (1963), theorem 1 and section 6.
    """

    def rate(share: float) -> float:
        return _term(share, expected) + _term(1.0 - share, 1.0 - expected)

    level = _level(count, chance)
    return _solve(rate, expected, 0.0, level), _solve(rate, expected, 1.0, level)


def _term(found: float, expected: float) -> float:
    if found == 0.0:
        return 0.0
    return found * math.log(found / expected) if expected > 0.0 else math.inf


def largest_gap(count: int, chance: float) -> float:
    """Return the limit of Kolmogorov's statistic, the largest gap between two distributions.

    P(D > d) <= 2 exp(-2 n d^2) for any distribution, also a discrete one: Dvoretzky, Kiefer and
    Wolfowitz, with the constant of Massart, The tight constant in the Dvoretzky-Kiefer-Wolfowitz
    inequality, Annals of Probability 18 (1990). It is the first term of Kolmogorov's own series.
    """
    return math.sqrt(_level(count, chance) / 2)


def mean_limit(variance: float, count: int, chance: float) -> float:
    """Return how far a mean of draws may be from its expectation: P <= 2 exp(-n d^2 / (2 v)).

    For strictly sub-Gaussian draws, that is normal ones and those uniform over a range or over
    whole numbers in a range: sinh(s)/s <= exp(s^2/6).
    """
    return math.sqrt(2 * variance * _level(count, chance))


def square_limits(count: int, chance: float) -> Limits:
    """Return the limits of the mean of the squares of standard normal draws (chi-square over n):
    rate(x) = (x - 1 - ln x) / 2."""
    return _around_one(lambda x: (x - 1 - math.log(x)) / 2, count, chance)


def gamma_limits(shape: float, chance: float) -> Limits:
    """Return the limits of a gamma variable over its mean, such as the mean of n exponential draws
    over theirs (`shape` = n): rate(x) = x - 1 - ln x."""
    return _around_one(lambda x: x - 1 - math.log(x), shape, chance)


def poisson_limits(expected: float, chance: float) -> Limits:
    """Return the limits of a Poisson variable over its expectation: rate(x) = x ln x - x + 1."""
    return _around_one(
        lambda x: x * math.log(x) - x + 1 if x > 0 else 1.0, expected, chance, lowest=0.0
    )


def _around_one(
    rate: Callable[[float], float], count: float, chance: float, lowest: float = 1e-300
) -> Limits:
    level = _level(count, chance)
    highest = 2.0
    while rate(highest) < level:
        highest *= 2
    return _solve(rate, 1.0, lowest, level), _solve(rate, 1.0, highest, level)


def _level(count: float, chance: float) -> float:
    """Return the rate that is reached with half of the chance: each side has one half."""
    return math.log(2 / chance) / max(count, 1e-300)


def _solve(rate: Callable[[float], float], inner: float, outer: float, level: float) -> float:
    """Return where the rate, which grows from `inner` to `outer`, reaches a level; `outer` where it
    never does: then no value can alarm."""
    if rate(outer) <= level:
        return outer
    for _ in range(_BISECTIONS):
        middle = (inner + outer) / 2
        if rate(middle) <= level:
            inner = middle
        else:
            outer = middle
    return outer


def normal_cdf(z: Array) -> Array:
    """Return the standard normal distribution function, to 7.5e-8.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.17. Infinities give 0 and 1.
    """
    magnitude = np.minimum(np.abs(z), 40.0)
    t = 1.0 / (1.0 + 0.2316419 * magnitude)
    coefficients = (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530, 0.0)
    tail = np.exp(-0.5 * magnitude**2) / math.sqrt(2 * math.pi) * np.polyval(coefficients, t)
    return np.asarray(np.where(np.asarray(z) < 0, tail, 1.0 - tail))


def gamma_cdf(shape: Array, x: Array) -> Array:
    """Return the regularised lower incomplete gamma function P(shape, x), for shape > 0, x >= 0.

    Below x = shape + 1 the series of Abramowitz and Stegun 6.5.29, above it Lentz' evaluation of
    the continued fraction 6.5.31. The number of terms grows with the root of `shape`.
    """
    shape, x = np.broadcast_arrays(np.asarray(shape, np.float64), np.asarray(x, np.float64))
    result = np.where(np.isposinf(x), 1.0, 0.0)
    inside = (x > 0) & np.isfinite(x)
    series = inside & (x < shape + 1)
    fraction = inside & ~series
    result[series] = _series(shape[series], x[series])
    result[fraction] = 1.0 - _continued_fraction(shape[fraction], x[fraction])
    return np.asarray(np.clip(result, 0.0, 1.0))


def _series(shape: Array, x: Array) -> Array:
    term = 1.0 / shape
    total = term.copy()
    for step in range(1, _MOST_TERMS):
        term = term * x / (shape + step)
        total += term
        if not np.any(term > _PRECISE * total):
            break
    return np.asarray(total * _density(shape, x))


def _continued_fraction(shape: Array, x: Array) -> Array:
    tiny = 1e-300
    b = x + 1.0 - shape
    c = np.full_like(x, 1.0 / tiny)
    d = 1.0 / np.where(b == 0.0, tiny, b)
    result = d.copy()
    for step in range(1, _MOST_TERMS):
        a = -step * (step - shape)
        b = b + 2.0
        d = a * d + b
        d = 1.0 / np.where(np.abs(d) < tiny, tiny, d)
        c = b + a / c
        c = np.where(np.abs(c) < tiny, tiny, c)
        change = c * d
        result *= change
        if not np.any(np.abs(change - 1.0) > _PRECISE):
            break
    return np.asarray(result * _density(shape, x))


def _density(shape: Array, x: Array) -> Array:
    """Return exp(-x) x^shape / Gamma(shape)."""
    return np.asarray(np.exp(shape * np.log(x) - x - log_gamma(shape)))


def log_gamma(x: Array) -> Array:
    """Return ln Gamma(x) for x > 0: Stirling's series (Abramowitz and Stegun 6.1.41) at x + 8, and
    the recurrence back. To 1e-12 and better."""
    x = np.asarray(x, np.float64)
    shift = np.sum([np.log(x + step) for step in range(8)], axis=0)
    y = x + 8.0
    series = 1 / (12 * y) - 1 / (360 * y**3) + 1 / (1260 * y**5) - 1 / (1680 * y**7)
    return np.asarray((y - 0.5) * np.log(y) - y + 0.5 * math.log(2 * math.pi) + series - shift)
