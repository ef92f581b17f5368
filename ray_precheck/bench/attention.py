"""Sums of the columns of attention and of its gradients, without the results themselves.

Comes in: queries, keys, values and the incoming gradient, and signs for their columns. Goes out: the sums of
the columns of the output and of the three gradients, which a caller compares with those of other results.
Called by `check.sampled`.

With P = softmax(scale Q K^T), O = P V, and G the incoming gradient, by Dao et al., FlashAttention (2022),
appendix B.2: dV = P^T G, dS = P * (G V^T - rowsum(P * (G V^T))), dQ = scale dS K, dK = scale dS^T Q. Each is
linear in its last factor, so that sums of the columns of V, G, K and Q give those of the results: of the six
products only Q K^T and G V^T are computed whole. Rows are taken in tiles that stay in the core's cache, and
of a causal mask only the part below the diagonal.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ray_precheck.bench.products import sums_of_rows
from ray_precheck.schema.dtypes import Array

# Rows of a tile: 128 of 1,024 scores of float32 are 512 KiB.
_TILE = 128


def sums_of_attention(
    operands: Sequence[Array],
    incoming: Array | None,
    signs: Sequence[Array],
    *,
    is_causal: bool,
    scale: float | None,
) -> tuple[Array, tuple[Array, ...]]:
    """Return the sums of the columns of the output, and of the gradients of queries, keys and values (()
    without an incoming gradient), in the dtype of the signs.

    `operands` are queries `(..., T, e)`, keys `(..., S, e)` and values `(..., S, d)`; `signs`, `(g, B)` each,
    are those of e and of d columns (see `sums_of_rows`). A causal mask lets row i see the columns up to i.
    """
    dtype = signs[0].dtype
    leading = operands[0].shape[:-2]
    query, key, value = (_flat(each, dtype) for each in operands)
    width, depth = signs
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    few = [torch.from_numpy(sums_of_rows(each.numpy(), 2, width)) for each in (query, key)]
    few.append(torch.from_numpy(sums_of_rows(value.numpy(), 2, depth)))
    output = torch.empty((*query.shape[:2], depth.shape[1]), dtype=query.dtype)
    grads: tuple[torch.Tensor, ...] = ()
    flow = few_flow = None
    if incoming is not None:
        flow = _flat(incoming, dtype)
        few_flow = torch.from_numpy(sums_of_rows(flow.numpy(), 2, depth))
        grads = tuple(map(torch.zeros_like, few))
    behind = torch.ones((_TILE, _TILE), dtype=torch.bool).triu(1)
    for head in range(len(query)):
        for first in range(0, query.shape[1], _TILE):
            rows = slice(first, min(first + _TILE, query.shape[1]))
            seen = slice(0, min(rows.stop, key.shape[1]) if is_causal else key.shape[1])
            scores = (query[head, rows] * factor) @ key[head, seen].T
            if is_causal:  # Only the last columns are partly behind the diagonal.
                last = scores[:, rows.start :]
                last.masked_fill_(behind[: last.shape[0], : last.shape[1]], -math.inf)
            shares = torch.softmax(scores, -1)
            output[head, rows] = shares @ few[2][head, seen]
            if flow is None or few_flow is None:
                continue
            steps = flow[head, rows] @ value[head, seen].T
            steps -= (shares * steps).sum(-1, keepdim=True)
            steps.mul_(shares).mul_(factor)
            grads[0][head, rows] = steps @ few[1][head, seen]
            grads[1][head, seen] += steps.T @ few[0][head, rows]
            grads[2][head, seen] += shares.T @ few_flow[head, rows]

    def shaped(each: torch.Tensor) -> Array:
        return np.asarray(each.numpy().reshape(*leading, *each.shape[1:]))

    return shaped(output), tuple(map(shaped, grads))


def _flat(array: Array, dtype: np.dtype[Any]) -> torch.Tensor:
    """Return an array as `(heads, rows, columns)`."""
    found = np.ascontiguousarray(array, dtype)
    return torch.from_numpy(found.reshape(-1, *found.shape[-2:]))
