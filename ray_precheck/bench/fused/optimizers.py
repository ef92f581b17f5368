"""One step of Adam and of AdamW.

Comes in: torch tensors, and the powers of the betas. Goes out: the new variable, first and second
moment; the arguments stay as they are. Named by `table`.

Formulas: Adam: CANN, ApplyAdam (that of Kingma and Ba, arXiv 1412.6980, section 2, last paragraph:
epsilon stands beside the uncorrected root); Ascend/op-plugin, docs/context/torch_npu-npu_apply_adam.md.
AdamW: Ascend/op-plugin, test/test_custom_ops/test_npu_apply_adam_w.py.
"""

from collections.abc import Sequence

import torch

Tensor = torch.Tensor


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
