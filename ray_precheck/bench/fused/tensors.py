"""Linear maps, and operators that only move data: transpose with a reshape, sort.

Comes in: torch tensors. Goes out: a new tensor. Named by `table`.

Formulas: Ascend/op-plugin, docs/context, torch_npu-npu_linear.md, torch_npu-npu_confusion_transpose.md
and torch_npu-npu_sort_v2.md.
"""

from collections.abc import Sequence

import torch

Tensor = torch.Tensor


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
