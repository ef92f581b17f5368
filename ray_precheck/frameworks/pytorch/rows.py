"""The table of references for torch's own functions that are not simply run in float64.

Named by the registry. Every other function of torch is its own reference.
"""

from typing import Any

import torch

from ray_precheck.frameworks.pytorch.signatures import Row, rows
from ray_precheck.schema.uncompared import Uncompared

_WORKSPACE = tuple(
    Uncompared(f"{what}, which the kernel keeps for its backward pass")
    for what in ("offset2bag", "bag_size", "max_indices")
)


def embedding_bag(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the sums, means or maxima of bags; the kernel's other outputs depend on the dtype."""
    return (torch.embedding_bag(*args, **kwargs)[0], *_WORKSPACE)


def unscale(
    gradients: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> list[torch.Tensor]:
    """Divide gradients by the loss scale in place; found_inf becomes 1 where one is not finite."""
    for gradient in gradients:
        if not bool(gradient.isfinite().all()):
            found_inf.fill_(1)
        gradient.mul_(inv_scale)
    return gradients


def update_scale(
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    """Let a loss scale grow in place after `interval` steps without infinity, or back off."""
    if bool(found_inf):
        tracker.zero_()
        return scale.mul_(backoff)
    tracker += 1
    if int(tracker) == interval:
        tracker.zero_()
        # The scale itself is of float32, and stays where it would become infinite.
        if bool((scale * growth).float().isfinite()):
            scale.mul_(growth)
    return scale


TORCH_ROWS: dict[str, tuple[Row, ...]] = {
    "Torch.embedding_bag": rows(
        embedding_bag,
        "weight indices offsets scale_grad_by_freq mode sparse per_sample_weights"
        " include_last_offset padding_idx",
    ),
    "Torch._amp_foreach_non_finite_check_and_unscale_": rows(
        unscale, "self>gradients found_inf inv_scale"
    ),
    "Torch._amp_update_scale_": rows(
        update_scale,
        "self>scale growth_tracker>tracker found_inf scale_growth_factor>growth"
        " scale_backoff_factor>backoff growth_interval>interval",
    ),
}
