"""Products and convolutions whose sums run in another order: honest golden runs.

Comes in: a call of a product. Goes out: its result with the inner dimension permuted, None where the call
is no product. Called by `runs`, which writes it in the place of the result.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Call = Callable[..., Any]


def _order(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(size))


def _linear(run: Call, given: Tensor, weight: Tensor, *more: Any, **named: Any) -> Tensor:
    order = _order(weight.shape[-1])
    return run(given[..., order], weight[..., order], *more, **named)


def _product(run: Call, one: Tensor, other: Tensor) -> Tensor:
    order = _order(one.shape[-1])
    return run(one[..., order], other[..., order, :] if other.dim() > 1 else other[order])


def _sum_of_product(run: Call, bias: Tensor, one: Tensor, other: Tensor, **named: Any) -> Tensor:
    order = _order(one.shape[-1])
    return run(bias, one[..., order], other[..., order, :], **named)


def _convolution(run: Call, given: Tensor, weight: Tensor, *more: Any, **named: Any) -> Tensor:
    order = _order(weight.shape[1])
    return run(given[:, order], weight[:, order], *more, **named)


_BY_FUNCTION: dict[Any, Call] = {
    functional.linear: _linear,
    torch.matmul: _product,
    torch.Tensor.matmul: _product,
    torch.bmm: _product,
    torch.Tensor.bmm: _product,
    torch.mm: _product,
    torch.addmm: _sum_of_product,
    torch.baddbmm: _sum_of_product,
    torch.conv2d: _convolution,
    functional.conv2d: _convolution,
}


def summed_otherwise(function: Call, args: Any, kwargs: Any) -> Tensor | None:
    """Return the result of a product with the terms of each sum in another order."""
    by = _BY_FUNCTION.get(function)
    is_grouped = by is _convolution and args[0].shape[1] != args[1].shape[1]
    if by is None or is_grouped or not isinstance(args[0], Tensor):
        return None
    found: Tensor = by(function, *args, **kwargs)
    return found
