"""Normalisations: RMS norm, with an addition before it, layer norm, group norm with SiLU after it.

Comes in: torch tensors. Goes out: new tensors, in the order of the operator's outputs. Means and
reciprocal deviations are outputs for the backward pass only, so no gradient runs through them. Named
by `table`.

Formulas: Ascend/op-plugin, docs/context, torch_npu-npu_rms_norm.md, torch_npu-npu_add_rms_norm.md,
torch_npu-npu_layer_norm_eval.md and torch_npu-npu_group_norm_silu.md; MindSpore,
mindspore.ops.rms_norm and mindspore.ops.add_rms_norm.
"""

from collections.abc import Sequence

import torch

Tensor = torch.Tensor


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return x / sqrt(mean(x^2) + epsilon) * gamma, and the reciprocal root `(..., 1)`.

    The mean is over the last dimensions, as many as `gamma` has.
    """
    axes = list(range(x.ndim - gamma.ndim, x.ndim))
    rstd = torch.rsqrt(x.square().mean(axes, keepdim=True) + epsilon)
    return x * rstd * gamma, rstd.detach()


def add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the RMS norm of x1 + x2, its reciprocal root, and the sum."""
    total = x1 + x2
    return (*rms_norm(total, gamma, epsilon), total)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions."""
    axes = list(range(x.ndim - len(normalized_shape), x.ndim))
    centred = x - x.mean(axes, keepdim=True)
    result = centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def group_norm_silu(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return silu(group_norm(x)), and mean and reciprocal deviation of each group, `(N, group)`."""
    grouped = x.reshape(x.shape[0], group, -1)
    mean = grouped.mean(-1, keepdim=True)
    rstd = torch.rsqrt((grouped - mean).square().mean(-1, keepdim=True) + eps)
    result = ((grouped - mean) * rstd).reshape(x.shape)
    by_channel = (1, -1, *[1] * (x.ndim - 2))
    result = result if weight is None else result * weight.reshape(by_channel)
    result = result if bias is None else result + bias.reshape(by_channel)
    return result * torch.sigmoid(result), mean.squeeze(-1).detach(), rstd.squeeze(-1).detach()
