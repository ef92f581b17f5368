"""Shapes of distributions as tables of quantiles, and their fit to a mean and a variance.

Comes in: mean and variance of numbers between 0 and 1. Goes out: a table of quantiles that has both.
Called by `inputs.distribution`. A number is drawn by one uniform number: it chooses a cell of the
table and the place between the cell's two edges. Only +, -, *, / and sqrt are used at run time, which
IEEE 754 rounds in one way, so the tables have the same bits on every host; exp and log have not.
"""

import functools
from statistics import NormalDist

import numpy as np

from ray_precheck.schema.dtypes import Array

CELLS = 1024
# The end of the last cell: the cell then has the second moment of the normal's tail beyond 1/1024.
_LAST_NORMAL = 3.7
# Powers of a normal number: 0 stands for uniform, 1 is normal, above it the tails grow.
TWO_SIDED = (0, 1, 2, 3)
ONE_SIDED = (1, 2, 3, 4, 6, 8)
_MOST_STEPS = 40
_MEAN_TOLERANCE = 1e-4  # of a standard deviation
_VARIANCE_TOLERANCE = 1e-3  # of the variance
# The steps of the fit may not leave the scale at which clipping still bends the shape.
_LARGEST_SCALE = 1e4


@functools.cache
def two_sided(power: int) -> Array:
    """Return the `(CELLS + 1,)` edges of sign(z) |z|**power, z normal, with mean 0 and variance 1.

    Power 0 is the uniform distribution.
    """
    if power == 0:
        return _standard(np.linspace(-1.0, 1.0, CELLS + 1))
    z = _normal_edges(CELLS)
    return _standard(z * _whole_power(np.abs(z), power - 1))


@functools.cache
def one_sided(power: int) -> Array:
    """Return the `(CELLS + 1,)` edges of |z|**power, z normal, with mean 0 and variance 1."""
    return _standard(_whole_power(_normal_edges(2 * CELLS)[CELLS:], power))


@functools.cache
def _normal_edges(cells: int) -> Array:
    """Return the quantiles of the normal distribution, rounded so that the last bits, in which
    mathematical libraries differ, are gone."""
    normal = NormalDist()
    inner = [round(normal.inv_cdf(i / cells), 9) for i in range(1, cells)]
    return np.array([-_LAST_NORMAL, *inner, _LAST_NORMAL])


def _whole_power(values: Array, power: int) -> Array:
    """Return a power by multiplication; `**` goes through the C library's pow."""
    result = np.ones_like(values)
    for _ in range(power):
        result = result * values
    return result


def _standard(edges: Array) -> Array:
    mean, second = moments(edges)
    return np.asarray((edges - mean) / np.sqrt(second - mean * mean))


def moments(edges: Array) -> tuple[float, float]:
    """Return mean and second moment of draws from a table, which are uniform within each cell."""
    # Of a cell (a + b) / 2 and (a a + a b + b b) / 3; each inner edge is in two cells.
    first, last, cells = float(edges[0]), float(edges[-1]), len(edges) - 1
    mean = (2.0 * float(edges.sum()) - first - last) / (2 * cells)
    squares = 2.0 * float((edges * edges).sum()) - first * first - last * last
    return mean, (squares + float((edges[:-1] * edges[1:]).sum())) / (3 * cells)


def fit_clipped(shape: Array, mean: float, variance: float) -> Array | None:
    """Return the edges clip(shift + scale * shape, 0, 1) that have this mean and variance.

    `shape` has mean 0 and variance 1. Where nothing is clipped, shift and scale are mean and
    standard deviation; otherwise Newton's method looks for them. None if it does not converge.
    """
    deviation = float(np.sqrt(variance))
    shift, scale = mean, deviation
    edges = _clipped(shape, shift, scale)
    if float(edges.min()) > 0.0 and float(edges.max()) < 1.0:
        return edges
    for _ in range(_MOST_STEPS):
        found, second = moments(edges)
        off_mean = mean - found
        off_second = variance + mean * mean - second
        off_variance = variance - (second - found * found)
        if (
            abs(off_mean) <= _MEAN_TOLERANCE * deviation
            and abs(off_variance) <= _VARIANCE_TOLERANCE * variance
        ):
            return edges
        step = _step(shape, edges, off_mean, off_second)
        if step is None:
            return None
        by_shift, by_scale = step
        # Half a scale at most in one step, so that it does not jump to where all is clipped.
        limit = 0.5 * scale
        shift += min(max(by_shift, -limit), limit)
        scale += min(max(by_scale, -limit), limit)
        if not scale < _LARGEST_SCALE:
            return None
        edges = _clipped(shape, shift, scale)
    return None


def _clipped(shape: Array, shift: float, scale: float) -> Array:
    # Rounded to float32, so that the last bits of the fit do not reach the drawn numbers.
    edges = float(np.float32(scale)) * shape
    edges += float(np.float32(shift))
    np.maximum(edges, 0.0, out=edges)
    return np.minimum(edges, 1.0, out=edges)


def _step(
    shape: Array, edges: Array, off_mean: float, off_second: float
) -> tuple[float, float] | None:
    """Return Newton's step of shift and scale, None where the moments do not depend on both.

    The derivatives are those of sums over the edges that are not clipped, which are nearly the same.
    """
    free = ((edges > 0.0) & (edges < 1.0)) / (len(edges) - 1)
    a, b = float(free.sum()), float((free * shape).sum())
    free *= edges
    c, d = 2.0 * float(free.sum()), 2.0 * float((free * shape).sum())
    determinant = a * d - b * c
    if not abs(determinant) > 1e-12 * (abs(a * d) + abs(b * c)):
        return None
    return (d * off_mean - b * off_second) / determinant, (
        a * off_second - c * off_mean
    ) / determinant


def fit_inside(shape: Array, mean: float, variance: float) -> tuple[Array, float]:
    """Return the edges of a shape that reaches the nearer end, and the share of draws that are to be
    at the ends 0 and 1 instead, so that both together have this mean and variance.

    The ends alone have mean m and variance m (1 - m), the largest that there is; the mixture with
    share w has the variance (1 - w) v + w m (1 - m). It is what any mean and variance can have.
    """
    reach = min(mean / -float(shape.min()), (1.0 - mean) / float(shape.max()))
    piece, widest = reach * reach, mean * (1.0 - mean)
    if variance <= piece or not widest > piece:
        return _clipped(shape, mean, float(np.sqrt(max(variance, 0.0)))), 0.0
    return _clipped(shape, mean, reach), min((variance - piece) / (widest - piece), 1.0)
