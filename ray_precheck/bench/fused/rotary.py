"""Rotary position embedding.

Comes in: torch tensors. Goes out: a new tensor. Named by `table`.

Formulas: Ascend/op-plugin, docs/context/torch_npu-npu_rotary_mul.md; MindSpore,
mindspore.ops.rotary_position_embedding (mode 0: halves, mode 1: interleaved); Su et al., RoFormer,
arXiv 2104.09864.
"""

import torch

from ray_precheck.errors import NotCheckable

Tensor = torch.Tensor
_MODES = {"half": 0, "interleave": 1, 0: 0, 1: 1}


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
