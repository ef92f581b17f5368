"""The cross entropy that keeps its log-probabilities.

Comes in: torch tensors. Goes out: new tensors, in the order of the operator's outputs. Named by
`table`.

Formula: Ascend/op-plugin, docs/context/torch_npu-npu_cross_entropy_loss.md (a reduced loss has shape
[1]; only the loss has a gradient; zloss is not enabled); CANN, aclnnCrossEntropyLoss.
"""

from typing import Any

import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.schema.uncompared import Uncompared

Tensor = torch.Tensor
_DISABLED = "zloss is not enabled in this operator"


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
