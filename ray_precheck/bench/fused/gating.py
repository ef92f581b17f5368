"""Gating of a mixture of experts.

Comes in: torch tensors. Goes out: new tensors, in the order of the operator's outputs. Named by
`table`.

Formula: CANN, aclnnMoeGatingTopKSoftmax; Ascend/op-plugin,
docs/context/torch_npu-npu_moe_gating_top_k_softmax.md.
"""

import torch

Tensor = torch.Tensor


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
