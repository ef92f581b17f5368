"""Activations: GELU in its three forms, SiLU, Mish, SwiGLU, and the scaled masked softmax.

Comes in: torch tensors. Goes out: a new tensor. Named by `table`.

Formulas: Ascend/op-plugin, docs/context, torch_npu-npu_gelu.md, torch_npu-npu_fast_gelu.md,
torch_npu-npu_swiglu.md, torch_npu-npu_scaled_masked_softmax.md; Misra, Mish (BMVC 2020); MindSpore,
mindspore.ops.fast_gelu and mindspore.ops.swiglu; the mask's value -10000: Ascend, ScaledMaskedSoftmax
operator guide.
"""

import math

import torch

from ray_precheck.errors import NotCheckable

Tensor = torch.Tensor
_MASKED = -10000.0


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return x Phi(x), Phi the normal distribution, or its approximation by tanh.

    Raises:
        NotCheckable: `approximate` is neither none nor tanh.
    """
    if approximate == "none":
        return x * 0.5 * torch.erfc(-x / math.sqrt(2.0))
    if approximate != "tanh":
        raise NotCheckable(f"approximate {approximate!r} is unknown; expected none or tanh")
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    # 0.5 (1 + tanh u) = sigmoid(2 u), without the cancellation where u is far below 0
    return x * torch.sigmoid(2.0 * inner)


def fast_gelu(x: Tensor) -> Tensor:
    """Return x / (1 + exp(-1.702 x)).

    The other form that is published, x exp(0.851 (x - |x|)) / (1 + exp(-1.702 |x|)), is the same.
    """
    return x * torch.sigmoid(1.702 * x)


def silu(x: Tensor) -> Tensor:
    """Return x / (1 + exp(-x))."""
    return x * torch.sigmoid(x)


def mish(x: Tensor) -> Tensor:
    """Return x tanh(log(1 + exp(x)))."""
    return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))


def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """Return silu(a) b, where a and b are the halves of x along a dimension."""
    gate, values = x.chunk(2, dim)
    return silu(gate) * values


def scaled_masked_softmax(
    x: Tensor, mask: Tensor, scale: float = 1.0, fixed_triu_mask: bool = False
) -> Tensor:
    """Return the softmax of scale x along the last dimension, with -10000 where `mask` is true.

    With `fixed_triu_mask` the elements above the diagonal are masked, and `mask` is not read.
    """
    hidden = torch.ones(mask.shape, dtype=torch.bool).triu(1) if fixed_triu_mask else mask.bool()
    return torch.softmax((x * scale).masked_fill(hidden, _MASKED), -1)
