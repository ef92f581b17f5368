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


TORCH_ROWS: dict[str, tuple[Row, ...]] = {
    "Torch.embedding_bag": rows(
        embedding_bag,
        "weight indices offsets scale_grad_by_freq mode sparse per_sample_weights"
        " include_last_offset padding_idx",
    ),
}
