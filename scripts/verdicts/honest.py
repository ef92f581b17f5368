"""Honest other implementations of the calls of `verdicts_cases.py`, in the recorded dtypes.

Comes in: the torch function of a call. Goes out: functions of the same arguments that compute the
same thing in another order, layout or composition, and contexts in which torch's own kernels take
another way. None of them may be called an error. Called by `verdicts_subject.py`.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional

from scripts.torch_ways import onednn, threads

Function = Callable[..., Any]
Context = Callable[[], AbstractContextManager[Any]]

_SPLITS = 4
_BLOCK = 32


def honest_functions(type_name: str, native: Function) -> dict[str, tuple[Function, Context]]:
    """Return the honest implementations of an API in torch, by name."""
    found: dict[str, tuple[Function, Context]] = {
        "two threads": (native, lambda: threads(2)),
        "oneDNN off": (native, lambda: onednn(False)),
        "other layout": (_on_each_tensor(native, _relaid), nullcontext),
        "channels last": (_on_each_tensor(native, _channels_last), nullcontext),
        "in float32": (_in_float32(native), nullcontext),
    }
    found |= {name: (own, nullcontext) for name, own in OWN.get(type_name, {}).items()}
    return found


def _on_each_tensor(function: Function, change: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*map_tensors(args, change), **map_tensors(kwargs, change))

    return run


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested arguments with every tensor changed."""
    if torch.is_tensor(value):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value


def _relaid(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with the memory of the last two dimensions transposed."""
    return tensor if tensor.dim() < 2 else tensor.mT.contiguous().mT


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() != 4:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)


def _in_float32(function: Function) -> Function:
    """Compute in float32 and round once at the end, as fused kernels of half types do."""

    def run(*args: Any, **kwargs: Any) -> Any:
        halves = {torch.float16, torch.bfloat16}
        own = [t.dtype for t in _tensors((args, kwargs)) if t.dtype in halves]
        if not own:
            return function(*args, **kwargs)
        up = lambda t: t.float() if t.dtype in halves else t  # noqa: E731
        result = function(*map_tensors(args, up), **map_tensors(kwargs, up))
        return map_tensors(result, lambda t: t.to(own[0]) if t.dtype == torch.float32 else t)

    return run


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def _order(count: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(1))


# Sums ------------------------------------------------------------------------------------------


def _permuted_sum(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    if dim is None:
        return x.reshape(-1)[_order(x.numel())].sum()
    return x.index_select(dim, _order(x.shape[dim])).sum(dim)


def _blocked_sum(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Sum blocks one after the other into a float32 accumulator."""
    flat, axis = (x.reshape(-1), 0) if dim is None else (x, dim)
    total = torch.zeros((), dtype=torch.float32)
    for block in flat.split(_BLOCK, axis):
        total = total + block.float().sum(axis)
    return total.to(x.dtype)


def _by_matmul_sum(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    if dim is None:
        return torch.dot(x.reshape(-1), torch.ones(x.numel(), dtype=x.dtype))
    return x.movedim(dim, -1) @ torch.ones(x.shape[dim], dtype=x.dtype)


def _mean_of(total: Function) -> Function:
    def mean(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        count = x.numel() if dim is None else x.shape[dim]
        return (total(x.float(), dim) / count).to(x.dtype)

    return mean


def _composed_var(x: torch.Tensor, dim: int) -> torch.Tensor:
    apart = x - x.mean(dim, keepdim=True)
    return (apart * apart).sum(dim) / (x.shape[dim] - 1)


def _composed_logsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    top = x.amax(dim, keepdim=True).detach()
    return (x - top).exp().sum(dim).log() + top.squeeze(dim)


def _composed_norm(x: torch.Tensor, p: int, dim: int) -> torch.Tensor:
    squares = (x.float() * x.float()).sum(dim)
    # Where all is 0 the root has no gradient, and torch gives 0.
    return torch.where(squares > 0, squares.clamp(min=1e-38).sqrt(), 0.0).to(x.dtype)


# Contractions ------------------------------------------------------------------------------------


def _wide_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply with float32 accumulation and no rounding on the way."""
    return a.float() @ b.float()


def _permuted_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    order = _order(a.shape[-1])
    rows = -1 if b.dim() == 1 else -2
    return a.index_select(-1, order) @ b.index_select(rows, order)


def _split_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Split the contraction in parts whose float32 results are added (split-K)."""
    return _sum_of_parts(a, b, max(1, a.shape[-1] // _SPLITS))


def _blocked_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _sum_of_parts(a, b, _BLOCK)


def _sum_of_parts(a: torch.Tensor, b: torch.Tensor, size: int) -> torch.Tensor:
    rows = -1 if b.dim() == 1 else -2
    parts = zip(a.split(size, -1), b.split(size, rows), strict=True)
    total = torch.zeros((), dtype=torch.float32)
    for left, right in parts:
        total = total + _wide_product(left, right)
    return total.to(a.dtype)


def _elementwise_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply elements and sum them, both in float32."""
    right = b if b.dim() == 1 else b.mT.unsqueeze(-3)
    left = a if b.dim() == 1 else a.unsqueeze(-2)
    return (left.float() * right.float()).sum(-1).to(a.dtype)


MATMULS: dict[str, Function] = {
    "permuted": _permuted_matmul,
    "split-K": _split_matmul,
    "blocked": _blocked_matmul,
    "multiply and sum": _elementwise_matmul,
}


def _with_bias(matmul: Function) -> Function:
    return lambda bias, a, b: (matmul(a.float(), b.float()) + bias.float()).to(a.dtype)


def _linear(matmul: Function) -> Function:
    return lambda x, weight, bias: (matmul(x, weight.mT) + bias).to(x.dtype)


def _unfolded_conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int
) -> torch.Tensor:
    columns = functional.unfold(x.float(), weight.shape[2:], padding=padding, stride=stride)
    out = weight.float().flatten(1) @ columns + bias.float()[:, None]
    return out.unflatten(-1, (x.shape[2], x.shape[3])).to(x.dtype)


def _unfolded_conv1d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    windows = x.float().unfold(-1, weight.shape[-1], 1).transpose(1, 2).flatten(2)
    return (windows @ weight.float().flatten(1).T + bias.float()).transpose(1, 2).to(x.dtype)


# Composed ----------------------------------------------------------------------------------------


def _softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    powers = (x - x.amax(dim, keepdim=True).detach()).exp()
    return powers / powers.sum(dim, keepdim=True)


def _log_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    apart = x - x.amax(dim, keepdim=True).detach()
    return apart - apart.exp().sum(dim, keepdim=True).log()


def _layer_norm(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    apart = x - x.mean(-1, keepdim=True)
    scale = ((apart * apart).mean(-1, keepdim=True) + 1e-5).rsqrt()
    return apart * scale * weight + bias


def _rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor) -> torch.Tensor:
    # torch adds the epsilon of its accumulation's dtype, which is nothing beside the mean here.
    return x * (x * x).mean(-1, keepdim=True).rsqrt() * weight


def _group_norm(
    x: torch.Tensor, groups: int, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    rows = x.reshape(x.shape[0], groups, -1)
    apart = rows - rows.mean(-1, keepdim=True)
    scaled = apart / ((apart * apart).mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled.reshape(x.shape) * weight[:, None, None] + bias[:, None, None]


def _batch_norm(
    x: torch.Tensor, _mean: None, _var: None, weight: torch.Tensor, bias: torch.Tensor, _: bool
) -> torch.Tensor:
    apart = x - x.mean((0, 2, 3), keepdim=True)
    scaled = apart * ((apart * apart).mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt()
    return scaled * weight[:, None, None] + bias[:, None, None]


def _normalize(x: torch.Tensor) -> torch.Tensor:
    return x / (x * x).sum(1, keepdim=True).sqrt()


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + inner.tanh())
    return 0.5 * x * (1 + (x / math.sqrt(2)).erf())


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT * (1 / math.sqrt(q.shape[-1])), -1) @ v


def _attention_in_float32(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _attention(q.float(), k.float(), v.float()).to(q.dtype)


def _cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -_log_softmax(x, -1).gather(1, target[:, None]).mean()


def _bce_with_logits(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (x.clamp(min=0) - x * target + (-x.abs()).exp().log1p()).mean()


def _smooth_l1(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    apart = (x - y).abs()
    return torch.where(apart < 1, 0.5 * apart * apart, apart - 0.5).mean()


def _kl_div(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (target * (target.log() - x)).mean()


OWN: dict[str, dict[str, Function]] = {
    "Torch.sum": {
        "permuted": _permuted_sum,
        "blocked": _blocked_sum,
        "by matmul": _by_matmul_sum,
    },
    "Torch.mean": {
        "permuted": _mean_of(_permuted_sum),
        "blocked": _mean_of(_blocked_sum),
        "by matmul": _mean_of(_by_matmul_sum),
    },
    "Torch.var": {"composed": _composed_var},
    "Torch.std": {"composed": lambda x, dim: _composed_var(x, dim).sqrt()},
    "Torch.logsumexp": {"composed": _composed_logsumexp},
    "Torch.norm": {"composed": _composed_norm},
    "Torch.matmul": MATMULS,
    "Torch.mm": MATMULS,
    "Torch.bmm": MATMULS,
    "Torch.mv": MATMULS,
    "Torch.dot": MATMULS,
    "Torch.addmm": {name: _with_bias(own) for name, own in MATMULS.items()},
    "Torch.baddbmm": {name: _with_bias(own) for name, own in MATMULS.items()},
    "Functional.linear": {name: _linear(own) for name, own in MATMULS.items()},
    "Torch.einsum": {
        name: lambda _, pair, own=own: own(*pair)  # type: ignore[misc]
        for name, own in MATMULS.items()
    },
    "Functional.conv1d": {"unfolded": _unfolded_conv1d},
    "Functional.conv2d": {"unfolded": _unfolded_conv2d},
    "Functional.softmax": {"composed": _softmax},
    "Functional.log_softmax": {"composed": _log_softmax},
    "Functional.layer_norm": {"composed": _layer_norm},
    "Functional.rms_norm": {"composed": _rms_norm},
    "Functional.group_norm": {"composed": _group_norm},
    "Functional.batch_norm": {"composed": _batch_norm},
    "Functional.normalize": {"composed": _normalize},
    "Functional.gelu": {"composed": _gelu},
    "Functional.silu": {"composed": lambda x: x * torch.sigmoid(x)},
    "Functional.softplus": {
        "composed": lambda x: (1 + x.exp()).log() if x.dtype == torch.float64 else x.exp().log1p()
    },
    "Functional.mish": {"composed": lambda x: x * functional.softplus(x).tanh()},
    "Functional.logsigmoid": {"composed": lambda x: -functional.softplus(-x)},
    "Functional.hardswish": {"composed": lambda x: x * (x + 3).clamp(0, 6) / 6},
    "Torch.sigmoid": {"composed": lambda x: 1 / (1 + (-x).exp())},
    "Torch.rsqrt": {"composed": lambda x: 1 / x.sqrt()},
    "Torch.div": {"composed": lambda x, y: x * (1 / y)},
    "Functional.scaled_dot_product_attention": {
        "composed": _attention,
        "composed in float32": _attention_in_float32,
    },
    "Functional.cross_entropy": {"composed": _cross_entropy},
    "Functional.mse_loss": {"composed": lambda x, y: ((x - y) * (x - y)).mean()},
    "Functional.l1_loss": {"composed": lambda x, y: (x - y).abs().mean()},
    "Functional.smooth_l1_loss": {"composed": _smooth_l1},
    "Functional.huber_loss": {"composed": _smooth_l1},
    "Functional.kl_div": {"composed": _kl_div},
    "Functional.binary_cross_entropy_with_logits": {"composed": _bce_with_logits},
}
