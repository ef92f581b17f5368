"""Arguments of sample calls, written briefly: `at(f(3, 4), 2, dim=1)`."""

from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]
_draw = torch.Generator().manual_seed(3)


def f(*shape: int, low: float = 0.1, high: float = 0.9) -> torch.Tensor:
    """Floats that require a gradient."""
    values = low + (high - low) * torch.rand(shape, generator=_draw)
    return values.requires_grad_()


def p(*shape: int, low: float = 0.1, high: float = 0.9) -> torch.Tensor:
    """Floats that require none."""
    return f(*shape, low=low, high=high).detach()


def i(*values: Any) -> torch.Tensor:
    """A tensor of these numbers."""
    return torch.tensor(values)


def i32(*values: Any) -> torch.Tensor:
    """An int32 tensor of these numbers; many of MindSpore's kernels on the CPU want it."""
    return torch.tensor(values, dtype=torch.int32)


def at(*args: Any, **kwargs: Any) -> Call:
    """The arguments of a call."""
    return args, kwargs
