"""How far a statistic of honest random draws may stray: limits with a known false-alarm rate.

Comes in: an expectation, a number of independent draws and a chance. Goes out: the closed interval
that the statistic of honest draws leaves with at most that chance, both sides together. Every limit
is a proven bound for any number of draws, not an approximation for many of them. Called by
`accuracy.random.statistics` and `accuracy.random.laws`.

All but two are Chernoff's bound P(mean >= x) <= exp(-n * rate(x)), solved for x by bisection; the
rate functions are the Legendre transforms that Dembo and Zeitouni, Large Deviations Techniques and
Applications, 2nd ed., section 2.2, exercise 2.2.23 list.
"""

import math
from collections.abc import Callable

# The chance that a call with a correct generator is judged an error. It is divided evenly among the
# outputs and statistics of the call (Bonferroni). A dump with 1,000 random calls raises a false alarm
# once in 1,000 runs.
FALSE_ALARM_RATE = 1e-6

Limits = tuple[float, float]
_BISECTIONS = 80


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
