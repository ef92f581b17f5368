"""How far sums and products of honest kernels are from the exact ones, without running a kernel.

Comes in: an operator of torch's dispatcher, its float64 arguments and its exact float64 result. Goes
out: the result with an error of the size that accumulating the terms in another dtype makes. Called
by `bench.rounded`, whose composed implementation takes these operators for one step.

A kernel that adds n terms t_j one after the other makes the error sum_j s_j d_j, where s_j is the
j-th partial sum and d_j the relative error of one rounding (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 4.2). Taken as independent and uniform in [-u, u], as in
Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis (SIAM J. Sci. Comput. 41(5),
2019), the d_j give it the standard deviation u sqrt(sum_j s_j^2 / 3). For terms of mean m and
variance v the expected sum of s_j^2 is n^3 m^2 / 3 + n^2 v / 2; both m and v follow from the sum of
the terms, which is the exact result, and that of their squares, which the same operator gives for
squared arguments.

Equal terms are not rounded independently: as long as the partial sum stays between two powers of two,
each of them is rounded by the same amount in the same direction. In runs of L equal terms (the gradient
that a mean passes on) the d_j of a run are one and the same, and the deviation is sqrt(L) times as large.

The sums that decompositions are made of (`SUMS`) are not estimated, but added up in float32, in lanes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ray_precheck import private_parts
from ray_precheck.frameworks.base import map_leaves
from ray_precheck.numerics.arrays import unit_roundoff
from ray_precheck.schema.dtypes import Array

_ATEN = torch.ops.aten
# Sums are made in so many lanes, as vector units do; each adds one term after the other.
LANES = 8


DECOMPOSITIONS = private_parts.find(private_parts.DECOMPOSITIONS) or {}


# The steps of a mean and of a variance, as torch's decompositions of norms take them; only these register
# them.
VARIANCE = torch.ops.prims.var.default if DECOMPOSITIONS else None


NORM = _ATEN.linalg_vector_norm.default


Change = Callable[[torch.Tensor], torch.Tensor]
# A count of terms: one for all elements of a result, or one for each element.
Count = int | torch.Tensor

# One rounding to float32, in which kernels of float32 and of the half types accumulate, is at most
# this share of a number.
FLOAT32_UNIT = unit_roundoff("float32")
# Kernels keep some partial sums side by side, in registers or for blocks of terms.
ACCUMULATORS = 4
# Products of many factors, which honest kernels round after each.
FACTORS = frozenset((_ATEN.prod.default, _ATEN.prod.dim_int, _ATEN.cumprod.default))


def accumulation_error(
    total: torch.Tensor, squares: torch.Tensor, count: Count, unit: float, accumulators: int = 1
) -> torch.Tensor:
    """Return the standard deviation of the error of a sum, of the shape of `total`.

    `total` is the exact sum of `count` terms, `squares` the sum of their squares (of a complex
    number's magnitude), `unit` the largest relative error of one rounding. The terms are shared out
    over so many `accumulators`, each of which adds its own one after the other.
    """
    count = max(count, 1) if isinstance(count, int) else count.clamp(min=1.0)
    each = count / accumulators
    # In place: these arrays are as large as the output, and there are several of them.
    mean_square = total.abs().div_(count).square_()
    variance = (squares / count).sub_(mean_square).clamp_(min=0.0)
    of_partial_sums = mean_square.mul_(accumulators * each**3 / 3)
    of_partial_sums += variance.mul_(accumulators * each**2 / 2)
    return of_partial_sums.mul_(unit**2 / 3).sqrt_()


def at_least_rounded(result: torch.Tensor, deviation: torch.Tensor, unit: float) -> torch.Tensor:
    """Return a deviation of at least one rounding of the result: the exact sum may happen to be a
    number of the dtype, which the partial sums were not."""
    return torch.maximum(deviation, result.abs().mul_(1.01 * unit))


class Noise:
    """Errors in random directions; the same ones each time for the same calls in the same order."""

    def __init__(self) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=1))

    def added_to(self, exact: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
        """Return `exact` with errors of the standard deviation `deviation` or somewhat more.

        No error is smaller than that, because an error that is near 0 by luck would be no measure. Both have
        one shape; a sparse tensor has errors in the elements that it holds.
        """
        if exact.layout is torch.sparse_coo:
            held = exact.coalesce()
            values = self.added_to(held.values(), deviation[tuple(held.indices())])
            return torch.sparse_coo_tensor(held.indices(), values, held.shape, is_coalesced=True)
        parts = 2 if exact.is_complex() else 1
        drawn = self._generator.standard_normal((*exact.shape, parts))
        signs = np.copysign(1.0, drawn)
        np.maximum(np.abs(drawn, out=drawn), 1.0, out=drawn)
        directions = torch.from_numpy(np.asarray(np.multiply(drawn, signs, out=drawn)))
        if parts == 2:
            return exact + torch.view_as_complex(directions / math.sqrt(2.0)) * deviation
        return directions[..., 0].mul_(deviation).add_(exact)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """How an operator accumulates.

    `counts` gives the number of terms of each of its results from its arguments; None: the operator
    itself counts them, with ones for arguments. `narrow`: honest kernels accumulate in the dtype of
    the tensors, also where that is a half type, not in float32, one term after the other (torch 2.13 on
    the CPU: its gradient of an embedding of which one row occurs 4,096 times is off by 18 roundings).
    `divisors` gives by how much each element of the first argument is divided, and rounded, before it is
    added, as the gradient of a mean over a window is. `partial_sums` gives the sums of the squares of the
    partial sums where those are far from random: errors are at least what these make.
    `narrow_counts` are terms that are so accumulated after the others, as the taps of a convolution
    whose columns are added up, each rounded. `squares` gives the sums of the squares of the terms,
    or nearly so; None: the operator gives them for squared arguments. `runs` gives how many equal terms
    follow each other, on the average; None: one.
    """

    counts: Callable[..., Sequence[Count]] | None = None
    narrow: bool = False
    narrow_counts: Callable[..., Sequence[int]] | None = None
    squares: Callable[..., Sequence[torch.Tensor]] | None = None
    runs: Callable[..., Sequence[float]] | None = None
    divisors: Callable[..., torch.Tensor] | None = None
    partial_sums: Callable[..., Sequence[torch.Tensor | None]] | None = None

    def with_errors(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], unit: float, noise: Noise
    ) -> Any:
        """Return the results of the operator with the errors of accumulating; `unit` is that of
        the dtype of the tensors."""
        exact = func(*args, **kwargs)
        results = list(exact) if isinstance(exact, tuple | list) else [exact]
        if unit > FLOAT32_UNIT and not self.narrow and not self.narrow_counts:
            # Accumulated in float32, the errors are far below one rounding to a half type.
            return exact
        divisors = torch.ones(()) if self.divisors is None else self.divisors(func, *args)
        if self.squares is None:
            squared: Sequence[torch.Tensor] = _results(
                func, args, kwargs, lambda t: t.abs() ** 2, 1.0 / divisors
            )
        else:
            squared = self.squares(*args, **kwargs)
        if self.counts is None:
            counts: Sequence[Count] = _results(
                func, args, kwargs, lambda t: torch.ones_like(t.abs()), divisors
            )
        else:
            counts = self.counts(*args, **kwargs)
        own = unit if self.narrow else min(unit, FLOAT32_UNIT)
        taps = self.narrow_counts(*args, **kwargs) if self.narrow_counts else [1] * len(results)
        runs = self.runs(*args, **kwargs) if self.runs else [1.0] * len(results)
        partial: Sequence[torch.Tensor | None] = [None] * len(results)
        if self.partial_sums is not None:
            partial = self.partial_sums(*args, **kwargs)
        for at, (result, squares) in enumerate(zip(results, squared, strict=True)):
            if result is None:
                continue
            accumulators = 1 if self.narrow else ACCUMULATORS
            deviation = accumulation_error(result, squares, counts[at], own, accumulators)
            if self.divisors is not None:
                deviation = deviation.hypot(own * (squares / 3).sqrt())
            count = torch.as_tensor(counts[at], dtype=torch.float64).clamp(min=1.0)
            if self.narrow and unit > FLOAT32_UNIT:
                # The first term is not rounded, and the caller rounds the last sum.
                deviation *= (1.0 - 1.0 / count).sqrt()
            # No run is longer than its sum.
            deviation *= count.clamp(max=max(runs[at], 1.0)).sqrt()
            of_order = partial[at]
            if of_order is not None:
                of_order = (of_order * (own**2 / (3 * accumulators))).sqrt()
                deviation = torch.maximum(deviation, of_order)
            if unit <= FLOAT32_UNIT:
                deviation = at_least_rounded(result, deviation, unit)
            if taps[at] > 1 and unit > FLOAT32_UNIT:
                deviation = deviation.hypot(accumulation_error(result, squares, taps[at], unit))
            results[at] = noise.added_to(result, deviation)
        return tuple(results) if isinstance(exact, tuple | list) else results[0]


def _results(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], change: Change, factors: torch.Tensor
) -> list[torch.Tensor]:
    """Return the result of an operator for changed floating tensors among its arguments, of which the first
    one is multiplied by factors."""

    def changed(value: Any) -> Any:
        wide = torch.is_tensor(value) and (value.is_floating_point() or value.is_complex())
        return change(value) if wide else value

    first, *rest = map_leaves(args, changed)
    found = func(
        first if factors.dim() == 0 else first * factors, *rest, **map_leaves(kwargs, changed)
    )
    return list(found) if isinstance(found, tuple | list) else [found]


def product_with_errors(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], unit: float, noise: Noise
) -> torch.Tensor:
    """Return `prod` or `cumprod` with the errors of rounding after each of n factors: the relative
    ones add up, to sqrt(n / 3) units."""
    exact: torch.Tensor = func(*args, **kwargs)
    factors = args[0]
    if func is _ATEN.cumprod.default and factors.dim():
        shape = [1] * factors.dim()
        shape[args[1]] = -1
        count = torch.arange(1, factors.shape[args[1]] + 1, dtype=torch.float64).reshape(shape)
    else:
        count = torch.tensor(float(factors.numel() // max(exact.numel(), 1)))
    return noise.added_to(exact, exact.abs() * unit * (count / 3).sqrt())


def equal_run(terms: torch.Tensor, dim: int) -> float:
    """Return how many equal elements follow each other along a dimension, on the average."""
    length = terms.shape[dim] if terms.dim() else 1
    if length < 2 or not terms.numel():
        return 1.0
    changes = terms.narrow(dim, 1, length - 1) != terms.narrow(dim, 0, length - 1)
    return length / (1.0 + float(changes.sum()) * length / terms.numel())


def _run_of_products(left: torch.Tensor, right: torch.Tensor) -> Sequence[float]:
    return [min(equal_run(left, -1), equal_run(right, -2))]


def _run_of_gradient(grad: torch.Tensor, *_: Any, **__: Any) -> Sequence[float]:
    # Sorted: zeros of an activation stand between equal terms, and change no partial sum.
    return [1.0, 1.0, equal_run(grad.flatten(2).sort(-1).values, -1)]


def _run_of_rows(grad: torch.Tensor, indices: torch.Tensor, *_: Any) -> Sequence[float]:
    return [equal_run(grad.flatten(0, indices.dim() - 1) if indices.dim() else grad, 0)]


def _run_of_source(
    _: Any, dim: int, index: Any, source: torch.Tensor, **__: Any
) -> Sequence[float]:
    return [equal_run(source, dim)]


def _run_of_values(
    _: Any, indices: Sequence[torch.Tensor | None], values: torch.Tensor, *__: Any
) -> Sequence[float]:
    given = [each for each in indices if each is not None]
    shape = torch.broadcast_shapes(*(each.shape for each in given))  # type: ignore[no-untyped-call]
    if values.dim() < len(shape) or values.numel() == 1:
        return [float(math.prod(shape))]
    return [equal_run(values.flatten(0, len(shape) - 1) if shape else values, 0)]


def _run_of_pixels(grad: torch.Tensor, *_: Any, **__: Any) -> Sequence[float]:
    return [equal_run(grad.flatten(min(2, grad.dim() - 1)) if grad.dim() else grad, -1)]


def _elements_of_windows(
    func: Any, grad: torch.Tensor, x: torch.Tensor, *window: Any
) -> torch.Tensor:
    """Return of how many elements each mean over a window was made."""
    pool = _ATEN.avg_pool2d if func is _ATEN.avg_pool2d_backward.default else _ATEN.avg_pool3d
    ones = torch.ones_like(x)
    elements, shares = pool(ones, *window[:4], True, 1), pool(ones, *window)
    return torch.div(elements, shares)


def _elements_of_adaptive_windows(func: Any, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    found = torch.ones((1,), dtype=grad.dtype)
    dims = 2 if func is _ATEN._adaptive_avg_pool2d_backward.default else 3
    for size, count in zip(x.shape[-dims:], grad.shape[-dims:], strict=True):
        at = torch.arange(count)
        lengths = -((-(at + 1) * size) // count) - (at * size) // count
        found = found.unsqueeze(-1) * lengths
    return found


def _elements_of_bags(
    func: Any, grad: torch.Tensor, indices: Any, offsets: Any, bags: Any, sizes: torch.Tensor,
    maximum_indices: Any, rows: int, by_frequency: bool, mode: int, *_: Any,
) -> torch.Tensor:  # fmt: skip
    is_mean = mode == 1
    return sizes.clamp(min=1).unsqueeze(-1).to(grad.dtype) if is_mean else torch.ones(())


def _run_of_bags(
    grad: torch.Tensor, indices: torch.Tensor, offsets: Any, bags: torch.Tensor, *_: Any
) -> Sequence[float]:
    """A row that is several times in one bag gets the same gradient so often."""
    if len(bags) != len(indices):  # torch leaves them out where it needs none
        return [equal_run(grad, 0)]
    return [equal_run(grad[bags[indices.argsort(stable=True)]], 0)]


def _of_grid(grad: torch.Tensor, x: torch.Tensor, grid: torch.Tensor, *how: Any) -> Sequence[Count]:
    taps = (2 ** grid.shape[-1], 1, 16)[how[0]]
    found = _back_from_grid(torch.ones_like(grad), x, grid, *how)
    return [1 if found is None else found.abs() * taps, 1]


def _squares_of_grid(grad: torch.Tensor, *rest: Any) -> Sequence[torch.Tensor]:
    """Return at least the sums of the squares: those of weights are at most the weights."""
    found = _back_from_grid(grad**2, *rest)
    return [found if found is None else found.abs(), torch.zeros_like(rest[1])]  # type: ignore[list-item]


def _back_from_grid(grad: torch.Tensor, x: torch.Tensor, grid: torch.Tensor, *how: Any) -> Any:
    dims = grid.shape[-1]
    return getattr(_ATEN, f"grid_sampler_{dims}d_backward")(grad, x, grid, *how)[0]


def _run_of_grid(grad: torch.Tensor, *_: Any) -> Sequence[float]:
    return [*_run_of_pixels(grad), 1.0]


def _length(left: torch.Tensor, *_: Any, **__: Any) -> Sequence[int]:
    return [left.shape[-1]]


def _squares_of_product(left: torch.Tensor, right: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return nearly the sums of the squares of a matrix product's terms, without another product:
    |row|^2 |column|^2 / k, which is their mean over the orders of the k factors of a row."""
    rows = (left.abs() ** 2).sum(-1, keepdim=True)
    columns = (right.abs() ** 2).sum(-2, keepdim=True)
    return [rows * columns / max(left.shape[-1], 1)]


def _of_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, *_: Any, **__: Any,
) -> Sequence[int]:  # fmt: skip
    inner = x.shape[1] if transposed else weight[0].shape[0]
    return [inner * weight[0, 0].numel()]


def _taps_of_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, *_: Any, **__: Any,
) -> Sequence[int]:  # fmt: skip
    return [weight[0, 0].numel() if transposed else 1]


def _of_convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any
) -> Sequence[int]:
    positions = grad.numel() // max(grad.shape[1], 1)
    return [grad.shape[1] * weight[0, 0].numel(), positions, positions]


def _of_pool(x: torch.Tensor, size: Sequence[int]) -> Sequence[int]:
    extents = x.shape[x.dim() - len(size) :]
    return [math.prod(-(-extent // out) for extent, out in zip(extents, size, strict=True))]


def _squares_of_pool(x: torch.Tensor, size: Sequence[int]) -> Sequence[torch.Tensor]:
    return [_ATEN._adaptive_avg_pool3d(x**2, size) / _of_pool(x, size)[0]]


def _partial_sums_of_convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> Sequence[torch.Tensor | None]:
    """Return the squares of the partial sums of biases' gradients, position after position, and of weights'
    gradients, sample after sample.

    Behind a norm positions and samples cancel. Of 6 pictures whose terms are alike within each, behind a mean
    over the positions, torch 2.13's gradient of weights on the CPU is 10 times as far off as for terms in
    random order; that of a bias is a plain sum in float32, 8 times as far off in a network for styles.
    """
    *how, mask = rest
    partial: list[Any] = [None, None, None]
    if mask[2]:
        partial[2] = grad.transpose(0, 1).flatten(1).cumsum(1).abs().square_().sum(1)
    if len(grad) < 2 or not mask[1]:
        return partial
    length = grad[:1].numel() // max(grad.shape[1], 1)
    partial[1], start = 0.0, torch.zeros((), dtype=grad.dtype)
    for one, given in zip(grad, x, strict=True):
        own = _ATEN.convolution_backward.default(
            one[None], given[None], weight, *how, [False, True, False]
        )[1]
        # The partial sums go from `start` to `start + own` in equal steps.
        partial[1] += (start * start + start * own + own * own / 3).abs() * length
        start = start + own
    return partial


def _taps_of_convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias_sizes: Any, stride: Any,
    padding: Any, dilation: Any, transposed: bool, *_: Any, **__: Any,
) -> Sequence[int]:  # fmt: skip
    return [1 if transposed else weight[0, 0].numel(), 1, 1]


ACCUMULATIONS: dict[Any, Accumulation] = {
    _ATEN.mm.default: Accumulation(_length, squares=_squares_of_product, runs=_run_of_products),
    _ATEN.bmm.default: Accumulation(_length, squares=_squares_of_product, runs=_run_of_products),
    _ATEN.mv.default: Accumulation(_length),
    _ATEN.dot.default: Accumulation(_length),
    _ATEN.vdot.default: Accumulation(_length),
    _ATEN.cumsum.default: Accumulation(),
    _ATEN.convolution.default: Accumulation(_of_convolution, narrow_counts=_taps_of_convolution),
    _ATEN.convolution_backward.default: Accumulation(
        _of_convolution_backward,
        narrow_counts=_taps_of_convolution_backward,
        runs=_run_of_gradient,
        partial_sums=_partial_sums_of_convolution_backward,
    ),
    _ATEN.embedding_dense_backward.default: Accumulation(narrow=True, runs=_run_of_rows),
    _ATEN.index_add.default: Accumulation(narrow=True, runs=_run_of_source),
    # The gradient of `x[indices]`; its callers see to it that it adds.
    _ATEN.index_put.default: Accumulation(narrow=True, runs=_run_of_values),
    _ATEN.put.default: Accumulation(narrow=True),
    _ATEN._adaptive_avg_pool3d.default: Accumulation(
        _of_pool, narrow=True, squares=_squares_of_pool
    ),
    _ATEN.scatter_add.default: Accumulation(runs=_run_of_source),
    **{
        getattr(_ATEN, f"{name}{dims}d_backward").default: Accumulation(runs=_run_of_pixels)
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for dims in (1, 2, 3)
    },
    # Windows that overlap, and borders that are read again.
    **{
        getattr(_ATEN, name).default: Accumulation(narrow=True, runs=_run_of_pixels)
        for name in """
            col2im unfold_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward
            adaptive_max_pool2d_backward adaptive_max_pool3d_backward fractional_max_pool2d_backward
            fractional_max_pool3d_backward reflection_pad1d_backward reflection_pad2d_backward
            reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
            replication_pad3d_backward
        """.split()
    },
    _ATEN.avg_pool2d_backward.default: Accumulation(
        narrow=True, runs=_run_of_pixels, divisors=_elements_of_windows
    ),
    _ATEN.avg_pool3d_backward.default: Accumulation(
        narrow=True, runs=_run_of_pixels, divisors=_elements_of_windows
    ),
    _ATEN._adaptive_avg_pool2d_backward.default: Accumulation(
        narrow=True, runs=_run_of_pixels, divisors=_elements_of_adaptive_windows
    ),
    _ATEN._adaptive_avg_pool3d_backward.default: Accumulation(
        narrow=True, runs=_run_of_pixels, divisors=_elements_of_adaptive_windows
    ),
    _ATEN._embedding_bag_backward.default: Accumulation(
        narrow=True, runs=_run_of_bags, divisors=_elements_of_bags
    ),
    **{
        getattr(_ATEN, f"grid_sampler_{dims}d_backward").default: Accumulation(
            _of_grid, narrow=True, squares=_squares_of_grid, runs=_run_of_grid
        )
        for dims in (2, 3)
    },
}


def terms_of(x: torch.Tensor, dim: Any = None) -> tuple[torch.Tensor, list[int]]:
    """Return the terms of a sum, `(n, m)` for n terms of each of m results, and the shape of the results."""
    dims = sorted(d % max(x.dim(), 1) for d in _dims(dim, x.dim()))
    kept = [d for d in range(x.dim()) if d not in dims]
    shape = [x.shape[d] for d in kept]
    columns = int(np.prod(shape, dtype=np.int64))
    return x.detach().permute(*dims, *kept).reshape(-1, columns), shape


def _sum(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, lanes: int = LANES
) -> torch.Tensor:
    """Sum in float32, in lanes: of the orders that kernels take one with a large error."""
    if not x.dim() or not x.numel():
        return x.clone()
    if x.is_complex():
        parts = torch.view_as_real(x.resolve_conj()).unbind(-1)
        return torch.complex(*(_sum(each, dim, keepdim, lanes=lanes) for each in parts))
    terms, shape = terms_of(x, dim)
    with np.errstate(all="ignore"):
        total = _sum_rows(terms.to(torch.float32).contiguous().numpy(), lanes)
    if keepdim:
        dims = {d % x.dim() for d in _dims(dim, x.dim())}
        shape = [1 if d in dims else x.shape[d] for d in range(x.dim())]
    return torch.from_numpy(np.asarray(total, np.float64)).reshape(shape)


def _sum_rows(terms: Array, most_lanes: int) -> Array:
    """Sum the rows of `(n, m)` one after the other, each lane by itself, then the lanes."""
    lanes = min(most_lanes, len(terms))
    whole = len(terms) // lanes * lanes
    # Along the first of several dimensions NumPy adds row after row; a single column it sums pairwise.
    by_lane = terms[:whole].reshape(whole // lanes, -1)
    is_column = by_lane.shape[1] == 1
    by_lane = by_lane.cumsum(0, dtype=terms.dtype)[-1] if is_column else np.add.reduce(by_lane)
    total = by_lane.reshape(lanes, -1).cumsum(0, dtype=terms.dtype)[-1]
    for row in terms[whole:]:
        total = total + row
    return np.asarray(total)


def _mean(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, lanes: int = LANES
) -> torch.Tensor:
    count = 1
    for d in _dims(dim, x.dim()):
        count *= x.shape[d] if x.dim() else 1
    return _sum(x, dim, keepdim, lanes=lanes) / count


def _variance(
    x: torch.Tensor, dim: Sequence[int] | None, correction: float = 1.0, *, lanes: int
) -> torch.Tensor:
    """Return the sum of the squares of the differences from the mean, over their number less `correction`."""
    terms, shape = terms_of(x, dim)
    rest = terms - _mean(terms, 0, lanes=lanes)
    total = _sum(rest * rest, 0, lanes=lanes)
    return (total / max(len(terms) - correction, 0.0)).reshape(shape)


def _vector_norm(
    x: torch.Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, lanes: int
) -> torch.Tensor:
    """Return the root of the sum of squares, or the sum of the sizes, of numbers that are not empty.

    Small terms beside a large partial sum are lost, all in one direction. Torch's kernel on the CPU has lanes
    for squares along the last dimension alone (aten/src/ATen/native/cpu/ReduceOpsKernel.cpp).
    """
    sizes = x.abs()
    largest = float(sizes.max())
    scale = 2.0 ** math.frexp(largest)[1] if math.isfinite(largest) else 1.0
    is_last = x.dim() - 1 in {d % max(x.dim(), 1) for d in _dims(dim, x.dim())}
    lanes = lanes if ord == 2 and is_last else 1
    return _sum((sizes / scale) ** ord, dim, keepdim, lanes=lanes) ** (1.0 / ord) * scale


def _dims(dim: Any, count: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(count))
    return [dim] if isinstance(dim, int) else list(dim)


def is_of_rows(args: tuple[Any, ...]) -> bool:
    """Return whether a sum runs along the last dimension, as those of one row's statistics do."""
    dims = _dims(args[1] if len(args) > 1 else None, args[0].dim())
    return args[0].dim() > 1 and args[0].dim() - 1 in {d % args[0].dim() for d in dims}


SUMS: dict[Any, Callable[..., torch.Tensor]] = {
    _ATEN.sum.default: _sum,
    _ATEN.sum.dim_IntList: _sum,
    _ATEN.mean.default: _mean,
    _ATEN.mean.dim: _mean,
    NORM: _vector_norm,
}
if DECOMPOSITIONS:
    SUMS |= {VARIANCE: _variance, torch.ops.prims.sum.default: _sum}
