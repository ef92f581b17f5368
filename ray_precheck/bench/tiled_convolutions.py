"""Convolutions by tiles, as fast kernels compute them in float32.

Comes in: the arguments of torch's `convolution` and `convolution_backward`. Goes out: results with the errors
of Winograd's minimal filtering on tiles of 8 by 8 (Lavin and Gray, Fast Algorithms for Convolutional Neural
Networks, 2016, section 4). Called by `rounded`. It multiplies less, and is off by more than a sum of
products: NNPACK, which torch's CPU kernels call for 16 samples or more where there is no oneDNN, and cuDNN
use it for filters of 3 by 3. Of torch 2.13's conv2d with 3 channels the largest error is 36 times as large.
"""

from functools import cache
from typing import Any

import numpy as np
import torch

_ATEN = torch.ops.aten
# The points at which the polynomials are multiplied; the last one is infinity.
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
_TILE = len(_POINTS) + 1
_FILTERS = (3, 5)


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
