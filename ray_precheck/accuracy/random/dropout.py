"""Dropout in all its forms: of elements, of the slopes of rrelu, and of the weights of an attention.

Comes in: input and output of one call, and how it drops. Goes out: `StatisticalTest`s of the output, and of a
gradient, which must follow the draws of the forward pass. Called by `check.random.rules`. The output of
dropout and rrelu shows the draws beside the input.

The mask of an attention does not show in its output, but the output's deviation from the one without dropout
is a sum of independent terms whose variance is known: each weight a_k becomes a_k m_k / (1-p), where m_k is 1
with probability 1-p. One number a row is looked at, the deviation along a fixed random direction.
"""

import math
from dataclasses import dataclass

import numpy as np

from ray_precheck.accuracy.random.laws import uniform
from ray_precheck.accuracy.random.pooled import PATTERN_BITS, Sums, digest_of_draws
from ray_precheck.accuracy.random.statistics import (
    Draws,
    Observation,
    StatisticalTest,
    SummedTest,
    fact,
    grain_of,
    neighbours,
    no_repeats,
    sampled,
    share_test,
    within,
)
from ray_precheck.numerics.arrays import machine_epsilon, pieces, smallest_normal, spacing
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostTensor

# Klambauer et al., Self-Normalizing Neural Networks, NIPS 2017: scale * alpha of SELU.
_ALPHA = 1.7580993408473766
# Weights that are computed at most; heads beyond are left out.
_MOST_WEIGHTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Dropping:
    """How a call drops: an element x becomes `scale * x + shift`, or `dropped` with a probability.

    `unit_dims`: so many leading dimensions have one decision for each of their places, as where
    whole channels are dropped; None: each element has its own.
    """

    probability: float
    scale: float
    shift: float = 0.0
    dropped: float = 0.0
    unit_dims: int | None = None


def dropout(probability: float, unit_dims: int | None = None) -> Dropping:
    """Return how dropout drops: x / (1 - p), or 0."""
    scale = 1.0 / (1.0 - probability) if probability < 1 else 0.0
    return Dropping(probability, scale, unit_dims=unit_dims)


def alpha_dropout(probability: float, unit_dims: int | None = None) -> Dropping:
    """Return how alpha dropout drops: it keeps the mean and variance of SELU's outputs."""
    if probability >= 1:
        return Dropping(probability, 0.0, unit_dims=unit_dims)
    scale = 1.0 / math.sqrt((_ALPHA**2 * probability + 1.0) * (1.0 - probability))
    shift = _ALPHA * scale * probability
    return Dropping(probability, scale, shift, shift - _ALPHA * scale, unit_dims)


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask that an output shows: three bool arrays of the input's shape.

    `seen`: the element tells whether it was kept (an input of 0 does not); `kept`: it was kept;
    `wrong`: its value is neither that of a kept nor that of a dropped element.
    """

    seen: Array
    kept: Array
    wrong: Array


def mask_of(x: HostTensor, out: HostTensor, dropping: Dropping) -> Mask:
    """Return the mask that an output shows. Elements whose input is NaN, infinite or about to overflow
    are not judged."""
    found = [np.empty(x.data.size, bool) for _ in range(3)]
    inputs, outputs = x.data.reshape(-1), out.data.reshape(-1)
    for place in pieces(x.data.size):
        parts = _seen(inputs[place], outputs[place], out.dtype, dropping)
        for whole, part in zip(found, parts, strict=True):
            whole[place] = part
    seen, kept, wrong = (whole.reshape(x.shape) for whole in found)
    return Mask(seen, kept, wrong)


def _seen(x: Array, out: Array, dtype: str, dropping: Dropping) -> tuple[Array, Array, Array]:
    wide, found = x.astype(np.float64), out.astype(np.float64)
    usable = np.isfinite(wide) & (
        np.abs(wide) * (dropping.scale + 1) < DTYPES[dtype].largest * 0.98
    )
    wide = np.where(usable, wide, 0.0)
    whole = wide * dropping.scale + dropping.shift
    blur = _blur(wide * dropping.scale, dtype, dropping)
    kept = np.abs(found - whole) <= blur
    dropped = np.abs(found - dropping.dropped) <= (blur if dropping.dropped else 0.0)
    return usable & (np.abs(whole - dropping.dropped) > 4 * blur), kept, usable & ~(kept | dropped)


def _blur(values: Array, dtype: str, dropping: Dropping) -> Array:
    """Return how far rounding may take `scale * x + shift`: two units in the last place for the
    scale in the tested dtype and the product, two for the sum, and 1 - p in float32. Values below
    the smallest normal number may be flushed."""
    of_scale = 2.0 * machine_epsilon("float32")
    relative = 2.0 * machine_epsilon(dtype) + of_scale / max(1.0 - dropping.probability, of_scale)
    size = np.abs(values) + 2 * (abs(dropping.shift) + abs(dropping.dropped))
    return np.asarray(relative * size + smallest_normal(dtype))


def dropout_tests(mask: Mask, dropping: Dropping) -> list[StatisticalTest]:
    """Test survivors, the share of dropped elements and their independence."""
    p = dropping.probability
    survivors = f"x * {dropping.scale:.6g}" + (f" + {dropping.shift:.6g}" if dropping.shift else "")
    either = f"{dropping.dropped:.6g} or {survivors}"
    tests = [fact(f"are not {either}", mask.wrong, f"all are {either}")]
    if dropping.unit_dims is None:
        dropped = ~mask.kept[mask.seen]
    else:
        seen, kept = _units(mask, dropping.unit_dims)
        partly = (mask.seen & ~mask.kept).reshape(*kept.shape, -1).any(-1) & kept
        tests.append(
            fact("are dropped in part", partly, "no channel is dropped in part", "channels")
        )
        dropped = ~kept[seen]
    # Neighbours stay beside each other, so that a mask that is repeated in each row is seen.
    sample = dropped[sampled(len(dropped))]
    if not len(sample) or p >= 1:
        return tests
    tests.append(share_test("the share of dropped elements", sample, p, "dropped"))
    return [*tests, neighbours(sample, p), no_repeats(dropped, max(p, 1 - p))]


def _units(mask: Mask, unit_dims: int) -> tuple[Array, Array]:
    """Return for each channel whether it is seen, and whether an element of it was kept."""
    channels = mask.seen.shape[:unit_dims]
    seen = mask.seen.reshape(*channels, -1).any(-1)
    return seen, (mask.seen & mask.kept).reshape(*channels, -1).any(-1)


def recorded_mask_tests(mask: Mask, recorded: HostTensor) -> list[StatisticalTest]:
    """Test whether the mask that an API returns (native_dropout) is that of its output."""
    differs = mask.seen & (recorded.data.astype(bool) != mask.kept)
    return [fact("are not what the output shows", differs, "it is the mask that the output shows")]


def dropout_gradient_tests(
    mask: Mask, dropping: Dropping, incoming: HostTensor | None, grad: HostTensor
) -> list[StatisticalTest]:
    """Test whether the gradient is the incoming one times the scale where the element was kept, and 0
    elsewhere. If the output does not show whether an element was kept, both values are right."""
    seen, kept = mask.seen, mask.kept
    if dropping.unit_dims is not None:
        shape = (*seen.shape[: dropping.unit_dims], *[1] * (seen.ndim - dropping.unit_dims))
        seen, kept = (
            np.broadcast_to(part.reshape(shape), mask.seen.shape)
            for part in _units(mask, dropping.unit_dims)
        )
    wrong = np.empty(grad.data.size, bool)
    was_seen, was_kept, found = seen.reshape(-1), kept.reshape(-1), grad.data.reshape(-1)
    arrived = np.zeros(1) if incoming is None else incoming.data.reshape(-1)
    for at in pieces(len(wrong)):
        coming = arrived if incoming is None else arrived[at]
        wrong[at] = _wrong_gradient(
            was_seen[at], was_kept[at], found[at], coming, grad.dtype, dropping
        )
    wrong = wrong.reshape(grad.shape)
    what = f"the incoming gradient * {dropping.scale:.6g} where the output kept the element, else 0"
    return [fact(f"are not {what}", wrong, f"it is {what}")]


def _wrong_gradient(
    seen: Array, kept: Array, grad: Array, arrived: Array, dtype: str, dropping: Dropping
) -> Array:
    arrived = arrived.astype(np.float64)
    through = arrived * dropping.scale
    passes = np.abs(grad.astype(np.float64) - through) <= _blur(through, dtype, dropping)
    zero = grad == 0
    wrong = np.where(seen, np.where(kept, ~passes, ~zero), ~(passes | zero))
    return np.asarray(wrong & np.isfinite(arrived))


def slopes_of(x: HostTensor, out: HostTensor) -> tuple[Array, Array]:
    """Return the slopes that rrelu has drawn for negative elements, and the largest error of each by
    rounding; NaN where the element is not negative or too small to tell."""
    wide, found = x.data.astype(np.float64), out.data.astype(np.float64)
    tiny = smallest_normal(x.dtype)
    usable = np.isfinite(wide) & (wide < -tiny / 2.0**-8)
    divisor = np.where(usable, wide, 1.0)
    step = spacing(found, out.dtype) / np.abs(divisor)
    return np.where(usable, found / divisor, np.nan), step


def rrelu_tests(x: HostTensor, out: HostTensor, low: float, high: float) -> list[StatisticalTest]:
    """Test elements that stay, and the slopes of the others: uniform in their range."""
    slopes, step = slopes_of(x, out)
    stays = (x.data >= 0) & (out.data != x.data)
    drawn = ~np.isnan(slopes)
    place = sampled(int(drawn.sum()))
    draws = Draws(slopes[drawn][place], 2 * step[drawn][place], grain_of(out.dtype), math.inf)
    tests = [fact("change though they are not negative", stays, "what is not negative stays")]
    return [*tests, *uniform(draws, low, high)] if len(draws) else tests


def rrelu_gradient_tests(
    x: HostTensor, out: HostTensor, incoming: HostTensor | None, grad: HostTensor
) -> list[StatisticalTest]:
    """Test whether the gradient is the incoming one times the slope that the output shows."""
    slopes, step = slopes_of(x, out)
    arrived = np.zeros(grad.shape) if incoming is None else incoming.data.astype(np.float64)
    slopes = np.where(x.data > 0, 1.0, slopes)
    through = arrived * slopes
    blur = np.abs(arrived) * step * 2 + 2 * spacing(through, grad.dtype)
    off = np.abs(grad.data.astype(np.float64) - through) > blur
    wrong = ~np.isnan(slopes) & np.isfinite(arrived) & off
    what = "the incoming gradient times the slope that the output shows"
    return [fact(f"are not {what}", wrong, f"it is {what}")]


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
