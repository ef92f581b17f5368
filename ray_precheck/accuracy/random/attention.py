"""Attention that drops some of its weights.

Comes in: query, key, value and output of one call, as float64 arrays. Goes out: `StatisticalTest`s. Called by
`check.random.rules`. The mask does not show in the output, but the output's deviation from the one
without dropout is a sum of independent terms whose variance is known: each weight a_k becomes
a_k m_k / (1-p), where m_k is 1 with probability 1-p. One number a row is looked at, the deviation
along a fixed random direction.
"""

import math

import numpy as np

from ray_precheck.accuracy.random.pooled import PATTERN_BITS, Sums, digest_of_draws
from ray_precheck.accuracy.random.statistics import (
    Observation,
    StatisticalTest,
    SummedTest,
    fact,
    within,
)
from ray_precheck.schema.dtypes import Array

# Weights that are computed at most; heads beyond are left out.
_MOST_WEIGHTS = 1 << 22


def attention_tests(
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    bias: Array | None,
    probability: float,
    scale: float | None,
    unit: float,
) -> list[StatisticalTest]:
    """Test an attention `(..., L, E)` x `(..., S, E)` x `(..., S, V)` with dropout.

    `bias` is added to the scores, -inf where one is masked; `unit` is the relative size of one unit
    in the last place of the tested dtype.
    """
    tests = [fact("are not finite", ~np.isfinite(out))]
    if probability >= 1:
        return [*tests, fact("are not 0", out != 0)]
    weights, values, found = _weights(query, key, value, out, bias, scale)
    direction = np.random.Generator(np.random.Philox(key=0)).choice([-1.0, 1.0], value.shape[-1])
    plain = weights @ (values @ direction)[..., None]
    terms = weights * (values @ direction)[..., None, :] / (1 - probability)
    deviation = found @ direction - plain[..., 0]
    return [
        *tests,
        _slope(terms, plain[..., 0], deviation, probability, 4 * unit),
        SummedTest(
            _spread(terms, deviation, probability),
            _spread_sums(terms, deviation, probability, np.linalg.norm(found, axis=-1), unit),
            _pattern(weights, values, found, probability, unit),
        ),
    ]


def _pattern(weights: Array, values: Array, found: Array, p: float, unit: float) -> str:
    """Return a digest of the output; "" where two masks may give the same one. A mask shows by the weights
    whose share of the output is more than its rounding; two agree in one with a chance of p^2 + (1-p)^2."""
    shares = weights * np.linalg.norm(values, axis=-1)[..., None, :]
    shown = int(np.count_nonzero(shares > 2 * unit * np.linalg.norm(found, axis=-1)[..., None]))
    bits = -shown * math.log2(p**2 + (1 - p) ** 2)
    return digest_of_draws(np.ascontiguousarray(found.reshape(-1))) if bits >= PATTERN_BITS else ""


def _spread_sums(
    terms: Array, deviation: Array, p: float, size: Array, unit: float
) -> tuple[Sums, ...]:
    """Return the sums of the square of each row's deviation over the expected one.

    The deviation is a sum of independent terms t_k (m_k - (1-p)), whose cumulants are those of a Bernoulli
    variable times sums of powers of t; its moments follow from them. Rounding of the output, of
    Euclidean length `size`, adds its own square, and may scale the deviation by a unit.
    """
    q = 1 - p
    k2, k3, k4 = p * q, p * q * (1 - 2 * p), p * q * (1 - 6 * p * q)
    k6 = p * q * (1 - 30 * p * q + 120 * (p * q) ** 2)
    second = k2 * np.sum(terms**2, -1)
    drops = second > 0
    terms, second, rounded = terms[drops], second[drops], unit * size[drops]
    if not len(second):
        return ()
    # In units of the expected square the cumulants do not overflow.
    unit_terms = terms / np.sqrt(second)[:, None]
    c3, c4, c6 = (k * np.sum(unit_terms**n, -1) for k, n in ((k3, 3), (k4, 4), (k6, 6)))
    fourth, sixth = 3 + c4, 15 + 15 * c4 + 10 * c3**2 + c6
    squares = deviation[drops] ** 2 / second
    slack = 2 * unit + rounded**2 / second
    count = len(second)
    return (
        Sums(
            "spread",
            count,
            count,
            float(np.sum(squares - 1)),
            float(np.sum(fourth - 1)),
            float(np.sum(sixth - 3 * fourth + 2)),
            float(np.sum(slack)),
        ),
    )


def _weights(
    query: Array, key: Array, value: Array, out: Array, bias: Array | None, scale: float | None
) -> tuple[Array, Array, Array]:
    """Return `(heads, L, S)` weights, `(heads, S, V)` values and `(heads, L, V)` outputs."""
    length, source = query.shape[-2], key.shape[-2]
    heads = query.shape[:-2]
    if heads and key.shape[:-2] != heads:
        groups = heads[-1] // key.shape[-3]
        key, value = (np.repeat(each, groups, axis=-3) for each in (key, value))
    count = max(1, _MOST_WEIGHTS // max(length * source, 1))
    flat = [each.reshape(-1, *each.shape[-2:])[:count] for each in (query, key, value, out)]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = flat[0] @ flat[1].swapaxes(-1, -2) * factor
    if bias is not None:
        whole = np.broadcast_to(bias, (*heads, length, source))
        scores = scores + whole.reshape(-1, length, source)[:count]
    largest = np.max(scores, -1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0.0))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0), flat[2], flat[3]


def _slope(terms: Array, plain: Array, deviation: Array, p: float, slack: float) -> StatisticalTest:
    """Test the slope of the output on the one without dropout, which is 1 (Bernstein's bound)."""
    square = float(np.sum(plain**2))

    def test(chance: float) -> Observation:
        if not square:
            return Observation("no output to compare the size of", telling=False)
        parts = terms * plain[..., None] / square
        level = math.log(2 / chance)
        largest = float(np.abs(parts).max()) * max(p, 1 - p) * level / 3
        variance = p * (1 - p) * float(np.sum(parts**2))
        limit = largest + math.sqrt(largest**2 + 2 * level * variance) + slack
        found = 1 + float(np.sum(deviation * plain)) / square
        what = "the size over that without dropout"
        return within(what, found, (1 - limit, 1 + limit), (0.0, 2.0))

    moved = terms * plain[..., None]
    variance = p * (1 - p) * float(np.sum(moved**2))
    if not square or not variance:
        return test
    # Weighted so that the calls whose dropout moves the output least count most.
    weight = square / variance
    sums = Sums(
        "size",
        plain.size,
        square * weight,
        float(np.sum(deviation * plain)) * weight,
        square * weight,
        p * (1 - p) * (2 * p - 1) * float(np.sum(moved**3)) * weight**3,
        slack * square * weight,
    )
    return SummedTest(test, (sums,))


def _spread(terms: Array, deviation: Array, p: float) -> StatisticalTest:
    """Test the square of the deviation over the expected one.

    Lower limit: P(sum of Y_i <= sum of E Y_i - t) <= exp(-t^2 / (2 sum of E Y_i^2)) for independent
    Y_i >= 0 (Maurer, A bound on the deviation probability for sums of non-negative random
    variables, JIPAM 4 (2003)); above: Bernstein's bound.
    """
    second = p * (1 - p) * np.sum(terms**2, -1)
    fourth = 3 * second**2 + p * (1 - p) * (1 - 6 * p * (1 - p)) * np.sum(terms**4, -1)
    largest = float(np.max(np.sum(np.abs(terms), -1), initial=0.0) * max(p, 1 - p)) ** 2
    expected = float(np.sum(second))

    def test(chance: float) -> Observation:
        if not expected:
            return Observation("no weight whose loss would show", telling=False)
        level = math.log(2 / chance)
        below = math.sqrt(2 * level * float(np.sum(fourth)))
        above = level * largest / 3 + math.sqrt((level * largest / 3) ** 2 + below**2)
        found = float(np.sum(deviation**2))
        limits = (max(0.0, expected - below) / expected, (expected + above) / expected)
        return within("the spread over the expected one", found / expected, limits, (0.0, 2.0))

    return test
