"""torch.nn.functional of the stand-in."""

import math
from typing import Any

import numpy as np
from mindspore import Tensor, mint

_MINT: Any = mint.nn.functional
globals().update({name: getattr(_MINT, name) for name in dir(_MINT) if name.islower()})


def embedding(index: Tensor, weight: Tensor, *options: Any) -> Tensor:
    return weight[index]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    scores = mint.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(query.shape[-1])
    if is_causal:
        seen = Tensor(np.tri(query.shape[-2], key.shape[-2], dtype=np.bool_))
        scores = mint.where(seen, scores, scores * 0 - 1e30)
    return mint.matmul(mint.nn.functional.softmax(scores, -1), value)


def cross_entropy(logits: Tensor, target: Tensor, *options: Any, **more: Any) -> Tensor:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_sum = mint.log(mint.exp(shifted).sum(-1))
    taken = mint.gather(shifted, 1, target.reshape(-1, 1)).reshape(-1)
    return (log_sum - taken).mean()
