"""Steps of the composed implementation that torch's own decompositions take otherwise than its kernels do.

Comes in: the float64 arguments of an operator of torch's dispatcher. Goes out: `KERNELS_STEPS`, the operator
in the steps of torch's kernel, each of which the caller rounds; `TERM_BY_TERM`, the terms of a sum; and
`ERRORS`, the deviation of the error of a kernel that errs by more than one rounding. Called by
`bench.rounded`.

`tiled` is for fast kernels of convolutions: Winograd's minimal filtering on tiles of 8 by 8 in float32 (Lavin
and Gray, Fast Algorithms for Convolutional Neural Networks, 2016, section 4). It multiplies less, and is off
by more than a sum of products: NNPACK, which torch's CPU kernels call for 16 samples or more where there is
no oneDNN, and cuDNN use it for filters of 3 by 3. Of torch 2.13's conv2d with 3 channels the largest error is
36 times as large.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from ray_precheck.bench.rounded_sums import FLOAT32_UNIT

_ATEN = torch.ops.aten
# The points at which the polynomials are multiplied; the last one is infinity.
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
_TILE = len(_POINTS) + 1
_FILTERS = (3, 5)
_MODES = "linear1d bilinear2d trilinear3d bicubic2d".split()
_INTERPOLATIONS_BACK = frozenset(
    getattr(_ATEN, f"upsample_{mode}_backward").default for mode in _MODES
)
INTERPOLATIONS = _INTERPOLATIONS_BACK | {
    getattr(_ATEN, f"upsample_{mode}").default for mode in _MODES
}


def _of_polynomial(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of a kernel that evaluates a polynomial in the half type itself (torch 2.13's
    kernels for vectors on the CPU are up to 3 units off)."""
    return result.abs() * (unit if unit > FLOAT32_UNIT else 0.0)


def _of_series(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of a polygamma function, the sum of n! / (x + k)^(n + 1) over k, whose terms on
    both sides of the nearest pole cancel."""
    order, x = args
    pole = (x - x.round().clamp(max=0.0)).abs()
    term: torch.Tensor = math.factorial(order) * pole ** -(order + 1)
    return term * min(unit, FLOAT32_UNIT)


def _of_factors(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of a reduction at indices by products, each rounded; 0 of other reductions."""
    if args[4] != "prod":
        return torch.zeros_like(result)
    own, dim, index = args[:3]
    extent = own.shape[dim] if own.dim() else 1
    count = (
        1.0 + index.shape[dim if index.dim() > 1 else -1] / max(extent, 1) if index.dim() else 2.0
    )
    return result.abs() * unit * math.sqrt(count / 3)


def _of_corners(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of an interpolation that rounds to a half type after each dimension."""
    sizes: torch.Tensor = _ATEN.upsample_trilinear3d.default(args[0].abs(), *args[1:])
    return sizes * (unit if unit > FLOAT32_UNIT else 0.0)


def _of_sparse_softmax(args: tuple[Any, ...], result: torch.Tensor, unit: float) -> torch.Tensor:
    """Return the deviation of the gradient y (g - sum(g y)), whose terms may cancel; torch has no composition
    of the sparse one."""
    grad, y, dim = args[0].to_dense(), args[1].to_dense(), args[2]
    total = (grad * y).abs().sum(dim, keepdim=True)
    deviation: torch.Tensor = y * (grad.abs() + total) * unit
    return deviation


def _of_sparse_log_softmax(
    args: tuple[Any, ...], result: torch.Tensor, unit: float
) -> torch.Tensor:
    """Return the deviation of the gradient g - exp(y) sum(g) of a sparse tensor."""
    grad, y, dim = args[0].to_dense(), args[1].to_dense(), args[2]
    deviation: torch.Tensor = grad.abs() + y.exp() * grad.abs().sum(dim, keepdim=True)
    return deviation * unit


# Steps whose kernels err by more than one rounding, with the deviation of their errors.
ERRORS: dict[Any, Callable[[tuple[Any, ...], torch.Tensor, float], torch.Tensor]] = {
    _ATEN.special_i0e.default: _of_polynomial,
    _ATEN.polygamma.default: _of_series,
    _ATEN.upsample_trilinear3d.default: _of_corners,
    _ATEN.index_reduce.default: _of_factors,
    _ATEN._sparse_softmax_backward_data.default: _of_sparse_softmax,
    _ATEN._sparse_log_softmax_backward_data.default: _of_sparse_log_softmax,
    _ATEN.scatter_reduce.two: _of_factors,
}


def _counts(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """Count as torch's histc does, which computes the place of a bin in the dtype of the tensor
    (aten/src/ATen/native/cpu/HistogramKernel.cpp)."""
    low, high = (x.min(), x.max()) if min == max else (x.new_tensor(min), x.new_tensor(max))
    inside = x[(x >= low) & (x <= high)]
    place = ((inside - low) * bins / (high - low)).long().clamp(max=bins - 1)
    return torch.bincount(place, minlength=bins).to(x.dtype)


def _floor_divided(dividend: Any, divisor: Any) -> torch.Tensor:
    """Divide and round down in the steps of torch's kernels (c10/util/BFloat16-math.h, generic_math.h)."""
    rest = torch.fmod(dividend, divisor)
    quotient = (dividend - rest) / divisor
    quotient = torch.where((rest != 0) & ((divisor < 0) != (rest < 0)), quotient - 1.0, quotient)
    floor = quotient.floor()
    return torch.where(quotient - floor > 0.5, floor + 1.0, floor)


def _soft_margin_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """Return the gradient in the order of torch's kernel, in which z may overflow
    (aten/src/ATen/native/Loss.cpp)."""
    z = (-target * x).exp()
    share = 1.0 / x.numel() if reduction == 1 else 1.0
    return target * z * -share / (1.0 + z) * grad


def _norms(
    tensors: Sequence[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    return [_ATEN.linalg_vector_norm.default(each, ord, dtype=dtype) for each in tensors]


KERNELS_STEPS: dict[Any, Callable[..., Any]] = {
    _ATEN._foreach_norm.Scalar: _norms,
    _ATEN.floor_divide.default: _floor_divided,
    _ATEN.soft_margin_loss_backward.default: _soft_margin_backward,
    _ATEN.histc.default: _counts,
}


def _terms_of_addbmm(
    given: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Iterator[torch.Tensor]:
    """Yield what `addbmm` adds up: the given matrix, then one product after the other."""
    shape = (left.shape[1], right.shape[2])
    yield (given * beta if beta else torch.zeros_like(given)).expand(shape)
    for one, other in zip(left, right, strict=True):
        yield one @ other * alpha


def _terms_of_trilinear(
    one: torch.Tensor, two: torch.Tensor, three: torch.Tensor, expand1: Sequence[int],
    expand2: Sequence[int], expand3: Sequence[int], summed: Sequence[int], unrolled: int = 1,
) -> Iterator[torch.Tensor]:  # fmt: skip
    """Yield the products of which `_trilinear` (`bilinear` and its gradients) makes its sum, or its result:
    one for each place along the dimension that its kernel unrolls."""
    dims = range(one.dim() + len(expand1))
    axes = [[d for d in dims if d not in missing] for missing in (expand1, expand2, expand3)]
    length = max(
        t.shape[a.index(unrolled)]
        for t, a in zip((one, two, three), axes, strict=True)
        if unrolled in a
    )
    kept = [[d for d in a if d != unrolled] for a in axes]
    pair = [d for d in dims if d in kept[0] + kept[1] and (d in kept[2] or d not in summed)]
    left = [d for d in dims if d != unrolled and d not in summed]
    for at in range(length):
        first, second, third = (
            t.select(a.index(unrolled), at) if unrolled in a else t
            for t, a in zip((one, two, three), axes, strict=True)
        )
        product = torch.einsum(first, kept[0], second, kept[1], pair)
        yield torch.einsum(product, pair, third, kept[2], left)


# Operators whose kernels on the CPU add up products in the dtype of the tensors, one after the other
# (addbmm_impl_ in aten/src/ATen/native/LinearAlgebra.cpp, _trilinear in Linear.cpp).
TERM_BY_TERM: dict[Any, Callable[..., Iterator[torch.Tensor]]] = {
    _ATEN.addbmm.default: _terms_of_addbmm,
    _ATEN._trilinear.default: _terms_of_trilinear,
}


def is_tiled(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a call is a convolution that kernels may compute by tiles."""
    if func is _ATEN.convolution.default:
        x, weight, how = args[0], args[1], args[3:]
    elif func is _ATEN.convolution_backward.default:
        x, weight, how = args[1], args[2], args[4:]
    else:
        return False
    stride, padding, dilation, transposed = how[:4]
    size = weight.shape[-1]
    return (
        x.dim() == 4
        and x.dtype == torch.float64
        and tuple(weight.shape[2:]) == (size, size)
        and size in _FILTERS
        and x.numel() > 0
        and all(each < size for each in padding)
        and (*stride, *dilation) == (1,) * (len(stride) + len(dilation))
        and not transposed
    )


def tiled(func: Any, args: tuple[Any, ...], exact: Any) -> Any:
    """Return the result of a convolution, or of its backward pass, computed by tiles in float32.

    `exact` is the result otherwise: float64 `(N, K, H, W)`, or the gradients of the input, the weight and the
    bias, of which those of the bias, and what is not asked for, stay as they are.
    """
    if func is _ATEN.convolution.default:
        x, weight, bias, _, padding = args[:5]
        found = _correlated(x, weight, args[8], *_pair(padding))
        return found if bias is None else found + bias[:, None, None]
    grad, x, weight, _, _, padding = args[:6]
    groups, size = args[9], weight.shape[-1]
    gradients = list(exact)
    if gradients[0] is not None:
        back = _grouped(weight, 0, groups).transpose(1, 2).flatten(0, 1).flip(2, 3)
        padding_back = (size - 1 - each for each in _pair(padding))
        gradients[0] = _correlated(grad, back, groups, *padding_back)
    if gradients[1] is not None:
        gradients[1] = _gradient_of_weight(grad, x, size, groups, *_pair(padding))
    return tuple(gradients)


def _pair(padding: Any) -> tuple[int, int]:
    return int(padding[0]), int(padding[-1])


def _correlated(
    x: torch.Tensor, weight: torch.Tensor, groups: int, high: int, wide: int
) -> torch.Tensor:
    """Return sum over c of x[n, c] * weight[k, c] in each group as float64 `(N, K, H, W)`."""
    size = weight.shape[-1]
    step = _TILE - size + 1
    back, filters, given = _matrices(step, size)
    tiles, (rows, columns) = _tiles(x, size, step, high, wide)
    values = torch.einsum("ia,ncstab,jb->ncstij", given, tiles, given)
    values = _grouped(values, 1, groups)
    kernels = torch.einsum("ia,kcab,jb->kcij", filters, weight.float(), filters)
    kernels = _grouped(kernels, 0, groups)
    products = torch.einsum("ngcstij,gkcij->ngkstij", values, kernels).flatten(1, 2)
    found = torch.einsum("ai,nkstij,bj->nksatb", back, products, back)
    count, channels, down, _, across, _ = found.shape
    whole = found.reshape(count, channels, down * step, across * step)
    return whole[:, :, :rows, :columns].double()


def _gradient_of_weight(
    grad: torch.Tensor, x: torch.Tensor, size: int, groups: int, high: int, wide: int
) -> torch.Tensor:
    """Return sum over n of x[n, c] * grad[n, k] in each group as float64 `(K, C / groups, size, size)`."""
    step = _TILE - size + 1
    back, filters, given = _matrices(size, step)
    tiles, _ = _tiles(x, size, step, high, wide)
    down, across = tiles.shape[2:4]
    padded = torch.nn.functional.pad(
        grad.float(), (0, across * step - grad.shape[3], 0, down * step - grad.shape[2])
    )
    parts = padded.unfold(2, step, step).unfold(3, step, step)
    values = torch.einsum("ia,ncstab,jb->ncstij", given, tiles, given)
    values = _grouped(values, 1, groups)
    kernels = torch.einsum("ia,nkstab,jb->nkstij", filters, parts, filters)
    kernels = _grouped(kernels, 1, groups)
    products = torch.einsum("ngcstij,ngkstij->gkcij", values, kernels).flatten(0, 1)
    return torch.einsum("ai,kcij,bj->kcab", back, products, back).double()


def _grouped(x: torch.Tensor, dim: int, groups: int) -> torch.Tensor:
    return x.reshape(*x.shape[:dim], groups, -1, *x.shape[dim + 1 :])


def _tiles(
    x: torch.Tensor, size: int, step: int, high: int, wide: int
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return overlapping tiles `(N, C, down, across, 8, 8)`, and the size of the result."""
    rows, columns = x.shape[2] + 2 * high - size + 1, x.shape[3] + 2 * wide - size + 1
    down, across = -(-rows // step), -(-columns // step)
    below = (down - 1) * step + _TILE - x.shape[2] - high
    right = (across - 1) * step + _TILE - x.shape[3] - wide
    padded = torch.nn.functional.pad(x.float(), (wide, right, high, below))
    return padded.unfold(2, _TILE, step).unfold(3, _TILE, step), (rows, columns)


@cache
def _matrices(results: int, taps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the transforms of products, of a filter and of a tile, in float32, of the Toom-Cook algorithm
    for so many results of a filter with so many taps: `(results, 8)`, `(8, taps)`, `(8, 8)`."""
    points = np.array(_POINTS)
    back = np.zeros((results, _TILE))
    back[:, :-1] = points[None] ** np.arange(results)[:, None]
    back[-1, -1] = 1.0
    filters, given = np.zeros((_TILE, taps)), np.zeros((_TILE, _TILE))
    for row, point in enumerate(points):
        others = np.delete(points, row)
        filters[row] = point ** np.arange(taps) / np.prod(point - others)
        given[row, :-1] = np.poly(others)[::-1]
    filters[-1, -1] = 1.0
    given[-1] = np.poly(points)[::-1]
    return tuple(torch.from_numpy(each).float() for each in (back, filters, given))  # type: ignore[return-value]


def moved_places(func: Any, args: tuple[Any, ...]) -> torch.Tensor:
    """Return what an interpolation with aligned corners changes by where places are two roundings of float32
    off: the same interpolation at any place is that of a grid."""
    back = func in _INTERPOLATIONS_BACK
    x = torch.zeros(args[2], dtype=args[0].dtype) if back else args[0]
    grad = args[0]
    if x.dim() == 3:  # a row is an image
        x, grad = x.unsqueeze(2), grad.unsqueeze(2)
    extents = x.shape[2:]
    sizes = [1] * (len(extents) - len(args[1])) + list(args[1])
    mode, border = (2 if "bicubic" in func.overloadpacket.__name__ else 0), 1
    sampler = "grid_sampler_2d" if x.dim() == 4 else "grid_sampler_3d"

    def sampled(share: float) -> torch.Tensor:
        axes = [torch.linspace(0.0, 2.0, out, dtype=x.dtype) * share - 1.0 for out in sizes]
        axes = [
            axis if extent > 1 else 0 * axis for axis, extent in zip(axes, extents, strict=True)
        ]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], -1)
        grid = grid.expand(len(x), *grid.shape)
        if not back:
            return getattr(_ATEN, sampler)(x, grid, mode, border, True)  # type: ignore[no-any-return]
        backward = getattr(_ATEN, f"{sampler}_backward")
        return backward(grad, x, grid, mode, border, True, [True, False])[0]  # type: ignore[no-any-return]

    found = sampled(1.0 + 2.0 * FLOAT32_UNIT) - sampled(1.0)
    return found.reshape(args[2] if back else (*args[0].shape[:2], *args[1]))


def has_aligned_corners(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether an interpolation, of `INTERPOLATIONS`, has aligned corners: it takes no scales then."""
    return bool(args[_corners_at(func)])


def _corners_at(func: Any) -> int:
    return 3 if func in _INTERPOLATIONS_BACK else 2


def at_rounded_places(func: Any, args: tuple[Any, ...], unit: float) -> tuple[Any, ...]:
    """Return the arguments of an interpolation, of `INTERPOLATIONS`, whose places are off.

    Kernels of the CPU round the scale, and its product with the place, to float32; those of a GPU err as much
    again (area_pixel_compute_source_index in aten/src/ATen/native/cuda/UpSample.cuh: at pixel 264 places are
    off by 3e-5 pixels, H200, torch 2.11), with roundings of `unit`.
    """
    if has_aligned_corners(func, args):
        return args
    at = _corners_at(func)
    given = (args[2] if func in _INTERPOLATIONS_BACK else args[0].shape)[2:]
    asked = zip([*args[at + 1 :], *[None] * len(given)], args[1], given, strict=False)
    off = 1.0 + 2.0 * unit, 1.0 + 2.0 * FLOAT32_UNIT
    return (
        *args[: at + 1],
        *((scale or out / size) * off[0] * off[1] for scale, out, size in asked),
    )
