"""Operators that are one formula each: activations, gating, rotary embedding, norms, moves of data, a loss,
steps of optimizers, and special functions.

Comes in: torch tensors. Goes out: new tensors, in the order of the operator's outputs; the arguments stay as
they are. Named by `table`. Where no other source is named a formula is that of Ascend/op-plugin,
docs/context, in the file of the operator's name, such as torch_npu-npu_gelu.md; those of MindSpore are in the
documentation of mindspore.ops.

Functions of Bessel and Airy are here because torch's own float64 is good to seven digits: torch.special's
bessel_j0, j1, y0 and y1 are off by up to 9e-7 beyond 5, airy_ai by 3e-6 below -2 (torch 2.13, found by
`tests/frameworks/test_references.py`): more than the rounding of float32, so a right device would be accused.
mpmath, which torch brings with sympy, computes them to the last bit, at some 20 us for each different number.
They have no derivative, as in torch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.schema.result import Uncompared

Tensor = torch.Tensor
_MASKED = -10000.0


# Activations. Mish: Misra, BMVC 2020; the value -10000 of masked scores: Ascend, ScaledMaskedSoftmax operator
# guide.
# Rotary position embedding: Su et al., RoFormer, arXiv 2104.09864. The modes of
# mindspore.ops.rotary_position_embedding are 0 for halves and 1 for interleaved.
_MODES = {"half": 0, "interleave": 1, 0: 0, 1: 1}
# The cross entropy that keeps its log-probabilities: CANN, aclnnCrossEntropyLoss. A reduced loss has
# shape [1], only the loss has a gradient, and zloss is not enabled.
_DISABLED = "zloss is not enabled in this operator"


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


# Gating of a mixture of experts: CANN, aclnnMoeGatingTopKSoftmax.


def top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k largest of softmax(x), their experts, and the number of each place, by columns.

    Finished rows name an expert that does not exist, with the number of experts as its index. Of
    equal experts the first comes first.
    """
    experts = x.shape[-1]
    shares = torch.softmax(x, -1)
    chosen = torch.argsort(shares, dim=-1, descending=True, stable=True)[..., :k]
    largest = torch.gather(shares, -1, chosen)
    if finished is not None:
        chosen = torch.where(finished.bool().unsqueeze(-1), experts, chosen)
    rows = largest[..., 0].numel()
    places = torch.arange(rows * k).reshape(k, rows).transpose(0, 1).reshape(largest.shape)
    return largest, chosen.to(torch.int32), places.to(torch.int32)


def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor, mode: str | int = "half") -> Tensor:
    """Return x cos + rotate(x) sin; pairs are i and i + D/2, or neighbours (`interleave`, 1).

    Raises:
        NotCheckable: the mode is unknown.
    """
    if mode not in _MODES:
        raise NotCheckable(f"rotary mode {mode!r} is unknown; expected half or interleave")
    rotate = _rotate_neighbours if _MODES[mode] else _rotate_halves
    return x * cos + rotate(x) * sin


def _rotate_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _rotate_neighbours(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


# Norms. Means and reciprocal deviations are outputs for the backward pass only, so no gradient runs through
# them.


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


# Linear maps, and operators that only move data.


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias."""
    result = x @ weight.transpose(-1, -2)
    return result if bias is None else result + bias


def confusion_transpose(
    x: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> Tensor:
    """Return x transposed and then reshaped, or reshaped and then transposed."""
    if transpose_first:
        return x.permute(list(perm)).reshape(list(shape))
    return x.reshape(list(shape)).permute(list(perm))


def sort_values(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Return the sorted values, without their places."""
    return torch.sort(x, dim=dim, descending=descending).values


def cross_entropy_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Any, ...]:
    """Return the loss of `(N, C)` logits, `(N,)` or `(1,)`, the log-probabilities, and two outputs
    that are not compared.

    Raises:
        NotCheckable: zloss is asked for, or the reduction is unknown.
    """
    if lse_square_scale_for_zloss or return_zloss:
        raise NotCheckable(_DISABLED)
    log_prob = x - torch.logsumexp(x, -1, keepdim=True)
    of_class = torch.ones(x.shape[-1], dtype=x.dtype) if weight is None else weight.to(x.dtype)
    kept = target != ignore_index
    index = target.where(kept, torch.zeros_like(target)).long()
    weights = of_class[index] * kept
    chosen = -log_prob.gather(-1, index.unsqueeze(-1)).squeeze(-1) * weights
    spread = -(log_prob * of_class).sum(-1) * kept / x.shape[-1]
    losses = (1.0 - label_smoothing) * chosen + label_smoothing * spread
    loss = _reduced(losses, weights, reduction)
    return loss, log_prob.detach(), Uncompared(_DISABLED), Uncompared(_DISABLED)


def _reduced(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum().reshape(1)
    if reduction == "mean":
        return (losses.sum() / weights.sum()).reshape(1)
    raise NotCheckable(f"reduction {reduction!r} is unknown; expected mean, sum or none")


# Steps of optimizers. Adam: CANN, ApplyAdam (that of Kingma and Ba, arXiv 1412.6980, section 2, last
# paragraph: epsilon stands beside the uncorrected root). AdamW: op-plugin, test_npu_apply_adam_w.py.


def adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    out: Sequence[Tensor],
    use_nesterov: bool | None = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return variable, m and v after a step; the powers are those of this step (beta to the t)."""
    variable, m, v = out
    m = m + (grad - m) * (1.0 - beta1)
    v = v + (grad.square() - v) * (1.0 - beta2)
    rate = lr * (1.0 - beta2_power) ** 0.5 / (1.0 - beta1_power)
    ahead = m * beta1 + (1.0 - beta1) * grad if use_nesterov else m
    return variable - rate * ahead / (v.sqrt() + epsilon), m, v


def adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    out: Sequence[Tensor],
    max_grad_norm: Tensor | None = None,
    amsgrad: bool | None = False,
    maximize: bool | None = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return variable, m and v after a step; the powers are those of the step before.

    With `amsgrad` the largest v so far, `max_grad_norm`, takes the place of v in the denominator.
    """
    variable, m, v = out
    gradient = -grad if maximize else grad
    m = m * beta1 + (1.0 - beta1) * gradient
    v = v * beta2 + (1.0 - beta2) * gradient.square()
    largest = torch.maximum(max_grad_norm, v) if amsgrad and max_grad_norm is not None else v
    denominator = (largest / (1.0 - beta2_power * beta2)).sqrt() + epsilon
    step = lr * m / (1.0 - beta1_power * beta1) / denominator
    return variable * (1.0 - lr * weight_decay) - step, m, v


def _bench(name: str, *order: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def bench(input: torch.Tensor) -> torch.Tensor:
        try:
            import mpmath  # type: ignore[import-untyped]
        except ImportError:
            raise NotCheckable("its bench needs mpmath, which comes with torch's sympy") from None
        function: Any = getattr(mpmath, name)
        values, places = np.unique(input.detach().double().numpy(), return_inverse=True)
        found = np.array([_real(function, order, value) for value in values])
        return torch.from_numpy(found[places].reshape(tuple(input.shape)))

    return bench


def _real(function: Any, order: tuple[int, ...], value: float) -> float:
    """Return a value of a function; NaN where it is not real, as below 0 for those of the second kind."""
    if np.isnan(value):
        return np.nan
    try:
        found = complex(function(*order, value))
    except (ValueError, ZeroDivisionError):  # a pole
        return -np.inf
    return found.real if abs(found.imag) <= abs(found.real) * 1e-15 else np.nan


j0, j1 = (_bench("besselj", order) for order in (0, 1))
y0, y1 = (_bench("bessely", order) for order in (0, 1))
airy_ai = _bench("airyai")
