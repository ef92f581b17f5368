"""Arrays of random numbers: floats, complex numbers, whole numbers, booleans.

Comes in: a generator, a range and, where the dump tells the moments, a `Body`. Goes out: an array in
the carrier of its dtype. Called by `inputs.generate`. How large the chunks are changes no number.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ray_precheck.inputs.distribution import Body
from ray_precheck.inputs.ranges import INFINITE_SHARE, ValueRange
from ray_precheck.numerics.arrays import pieces
from ray_precheck.numerics.rounding import round_to_dtype
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import TensorSpec

# Each number passes the processor's cache four times: 256 KiB of float64 stay in it.
_CHUNK_ELEMENTS = 1 << 15


def floats(
    generator: np.random.Generator,
    span: ValueRange,
    shape: tuple[int, ...],
    dtype: str,
    body: Body | None = None,
) -> Array:
    """Return numbers of a body, or uniform over the range, rounded once, with the extremes of the
    body or the infinities that the range asks for.

    The float64 numbers that are rounded exist only in chunks.
    """
    values = np.empty(shape, DTYPES[dtype].carrier)
    flat = values.reshape(-1)
    for chunk in _chunks(flat):
        drawn = body.draw(generator, len(chunk)) if body else _uniform(generator, span, len(chunk))
        chunk[:] = round_to_dtype(drawn, dtype)
    if body is not None:
        _place_ends(generator, flat, span, dtype, body)
    for wanted, infinity in ((span.minus_infinity, -np.inf), (span.plus_infinity, np.inf)):
        if wanted and len(flat):
            flat[generator.integers(len(flat), size=_share(len(flat)))] = infinity
    return values


def _chunks(flat: Array) -> Iterator[Array]:
    return (flat[piece] for piece in pieces(len(flat), _CHUNK_ELEMENTS))


def _uniform(generator: np.random.Generator, span: ValueRange, count: int) -> Array:
    """Return float64 numbers, uniform over the range; a range of one value costs no draw."""
    if span.low == span.high:
        return np.full(count, span.low, dtype=np.float64)
    share = generator.random(count)
    # low + share * (high - low) would overflow where the range is wider than the largest float.
    return np.clip(span.low * (1.0 - share) + span.high * share, span.low, span.high)


def _place_ends(
    generator: np.random.Generator, flat: Array, span: ValueRange, dtype: str, body: Body | None
) -> None:
    """Put the ends, rounded, where the body wants them, and Min and Max at two random places."""
    low, high = span.low, span.high
    if DTYPES[dtype].kind == "float":
        low, high = round_to_dtype(np.array([low, high], np.float64), dtype)
    if body is not None and body.end_share > 0.0:
        for chunk in _chunks(flat):
            chosen = generator.random(len(chunk))
            chunk[chosen < body.end_share] = low
            chunk[chosen < body.end_share * body.high_share] = high
    first, second = generator.integers(len(flat)), generator.integers(len(flat) - 1)
    flat[first] = low
    flat[second + (second >= first)] = high


def _share(count: int) -> int:
    """Return how many elements are made infinite, at least one."""
    return max(1, round(count * INFINITE_SHARE))


def complex_numbers(
    generator: np.random.Generator, span: ValueRange, spec: TensorSpec, body: Body | None
) -> Array:
    """Return complex numbers; statistics with a mean are those of magnitudes, as msprobe takes them
    for complex tensors, and get random directions."""
    data = np.empty(spec.shape, DTYPES[spec.dtype].carrier)
    if body is None or span.low < 0:
        data.real = floats(generator, span, spec.shape, "float64")
        data.imag = floats(generator, span, spec.shape, "float64")
        return data
    magnitude = floats(generator, span, spec.shape, "float64", body)
    # A point of the unit circle from two products, (1 - t**2, 2 t) / (1 + t**2) for one quarter, in
    # a random quarter. No sine, whose last bit differs between mathematical libraries.
    flat, sizes = data.reshape(-1), magnitude.reshape(-1)
    for chunk, size in zip(_chunks(flat), _chunks(sizes), strict=True):
        turn = 4.0 * generator.random(len(chunk))
        quarter = turn.astype(np.int8)
        t = 2.0 * (turn - quarter) - 1.0
        cosine, sine = (1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t)
        sign = np.where(quarter < 2, size, -size)
        chunk.real = sign * np.where(quarter % 2 == 0, cosine, sine)
        chunk.imag = sign * np.where(quarter % 2 == 0, sine, cosine)
    return data


def integers(generator: np.random.Generator, span: ValueRange, spec: TensorSpec) -> Array:
    """Return whole numbers of the closed range, or booleans."""
    carrier = DTYPES[spec.dtype].carrier
    low, high = int(span.low), int(span.high)
    if carrier == "bool":
        return generator.integers(low, high, spec.shape, endpoint=True).astype(bool)
    return np.asarray(
        generator.integers(low, high, spec.shape, dtype=np.dtype(carrier).type, endpoint=True)
    )


def whole_numbers(
    generator: np.random.Generator, span: ValueRange, spec: TensorSpec, body: Body
) -> Array:
    """Return whole numbers of a body, with its extremes."""

    def draw(count: int) -> Array:
        return np.clip(np.rint(body.draw(generator, count)), span.low, span.high)

    return _drawn_with_ends(generator, span, spec, draw, body)


def two_values(
    generator: np.random.Generator, span: ValueRange, spec: TensorSpec, share: float
) -> Array:
    """Return the two whole numbers of a range, or booleans, the larger with a recorded share."""

    def draw(count: int) -> Array:
        return np.where(generator.random(count) < share, span.high, span.low)

    return _drawn_with_ends(generator, span, spec, draw)


def _drawn_with_ends(
    generator: np.random.Generator,
    span: ValueRange,
    spec: TensorSpec,
    draw: Callable[[int], Array],
    body: Body | None = None,
) -> Array:
    """Return values that `draw` makes, as many as it is asked for, with the ends of their range."""
    values = np.empty(spec.shape, DTYPES[spec.dtype].carrier)
    flat = values.reshape(-1)
    for chunk in _chunks(flat):
        chunk[:] = draw(len(chunk))
    _place_ends(generator, flat, span, spec.dtype, body)
    return values
