"""Distribution functions that NumPy lacks, on float64 arrays.

Comes in: arguments of any shape. Goes out: probabilities. Called by `accuracy.random.laws`. They are
as exact as a bound on ten million draws can tell (about 1e-4), far from the last place.
"""

import math

import numpy as np

from ray_precheck.schema.dtypes import Array

_MOST_TERMS = 1000
_PRECISE = 1e-10


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
