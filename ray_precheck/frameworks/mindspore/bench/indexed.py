"""References in torch for MindSpore operators that read and write through indices and segments.

Comes in: torch tensors (float64 in place of floats) and MindSpore's arguments. Goes out: a new
tensor; the operators that end in one underscore change their first argument. Named by the tables.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ray_precheck.errors import NotCheckable

Tensor = torch.Tensor
_REDUCTIONS = {"add": "sum", "multiply": "prod", "mul": "prod", "max": "amax", "min": "amin"}


def take(tensor: Tensor, indices: Any, axis: int | None = None, mode: str = "clip") -> Tensor:
    """Take elements along an axis, of the flattened tensor where there is none."""
    values, axis = (tensor.flatten(), 0) if axis is None else (tensor, axis)
    size = values.shape[axis]
    index = torch.as_tensor(indices).long()
    # A negative index is legal in the overload take(index), and no index is clipped there.
    index = index % size if mode == "wrap" else torch.where(index < 0, index + size, index)
    return gather(values, index.clamp(max=size - 1) if mode == "clip" else index, axis)


def gather(tensor: Tensor, indices: Tensor, axis: int = 0, batch_dims: int = 0) -> Tensor:
    """Return slices along an axis: the axis is replaced by the dimensions of `indices`."""
    axis = axis + tensor.ndim if axis < 0 else axis
    batch_dims = batch_dims + indices.ndim if batch_dims < 0 else batch_dims
    if batch_dims:
        pairs = zip(tensor, indices, strict=True)
        return torch.stack(
            [gather(values, index, axis - 1, batch_dims - 1) for values, index in pairs]
        )
    flat = torch.index_select(tensor, axis, indices.reshape(-1))
    return flat.reshape(*tensor.shape[:axis], *indices.shape, *tensor.shape[axis + 1 :])


def gather_nd(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return the slices that the last dimension of `indices` addresses."""
    return tensor[tuple(indices.unbind(-1))]


def scatter(tensor: Tensor, dim: int, index: Tensor, src: Any, reduce: str = "none") -> Tensor:
    """Write elements along a dimension, or add or multiply them."""
    return scatter_(tensor.clone(), dim, index, src, reduce)


def scatter_(
    tensor: Tensor, dim: int, index: Tensor, src: Any, reduce: str | None = None
) -> Tensor:
    """Write elements along a dimension in place, or add or multiply them."""
    if reduce in (None, "none"):
        return tensor.scatter_(dim, index.long(), src)
    values = src if torch.is_tensor(src) else torch.full(index.shape, src, dtype=tensor.dtype)
    return tensor.scatter_reduce_(dim, index.long(), values, _REDUCTIONS[str(reduce)])


def index_put(
    tensor: Tensor, indices: Sequence[Tensor], values: Any, accumulate: Any = False
) -> Tensor:
    """Write values at tuples of indices."""
    return index_put_(tensor.clone(), indices, values, accumulate)


def index_put_(
    tensor: Tensor, indices: Sequence[Tensor], values: Any, accumulate: Any = False
) -> Tensor:
    """Write values at tuples of indices, in place."""
    index = tuple(part if part.dtype is torch.bool else part.long() for part in indices)
    return tensor.index_put_(index, values, bool(accumulate))


def scatter_nd_update(tensor: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Write slices at the places that the last dimension of `indices` addresses."""
    return tensor.index_put(tuple(indices.long().unbind(-1)), updates)


def scatter_nd_add(tensor: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Add slices at the places that the last dimension of `indices` addresses."""
    return tensor.index_put(tuple(indices.long().unbind(-1)), updates, accumulate=True)


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Add slices into a tensor of zeros."""
    return scatter_nd_add(torch.zeros(list(shape), dtype=updates.dtype), indices, updates)


def _scatter_nd_reduce(tensor: Tensor, indices: Tensor, updates: Tensor, how: str) -> Tensor:
    depth = indices.shape[-1]
    rows = tensor.reshape(-1, *tensor.shape[depth:])
    row = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for position, size in zip(indices.long().unbind(-1), tensor.shape, strict=False):
        row = row * size + position
    values = updates.reshape(-1, *tensor.shape[depth:])
    return rows.index_reduce(0, row.reshape(-1), values, how).reshape(tensor.shape)


SCATTER_ND: dict[str, Callable[..., Tensor]] = {
    "update": scatter_nd_update,
    "add": scatter_nd_add,
    "sub": lambda x, indices, updates: scatter_nd_add(x, indices, -updates),
    "mul": lambda x, indices, updates: _scatter_nd_reduce(x, indices, updates, "prod"),
    "div": lambda x, indices, updates: _scatter_nd_reduce(x, indices, 1 / updates, "prod"),
    "max": lambda x, indices, updates: _scatter_nd_reduce(x, indices, updates, "amax"),
    "min": lambda x, indices, updates: _scatter_nd_reduce(x, indices, updates, "amin"),
}
"""What is done with slices at the places that the last dimension of `indices` addresses."""


def of_rows(scatter_nd: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what does the same with rows at indices; of one index, its last row stays."""
    return lambda tensor, indices, updates: scatter_nd(tensor, indices.unsqueeze(-1), updates)


def segment_sum(tensor: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
    """Sum the rows of each segment; rows with a negative id are left out."""
    return _segments(tensor, segment_ids, num_segments, 0.0, "sum")


def segment_prod(tensor: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
    """Multiply the rows of each segment; 1 for an empty one."""
    return _segments(tensor, segment_ids, num_segments, 1.0, "prod")


def segment_max(tensor: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
    """Return the largest of each segment's rows."""
    return _extremes(tensor, segment_ids, num_segments, "amax")


def segment_min(tensor: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
    """Return the smallest of each segment's rows."""
    return _extremes(tensor, segment_ids, num_segments, "amin")


def _extremes(tensor: Tensor, segment_ids: Tensor, num_segments: int, how: str) -> Tensor:
    """Return the extremes of segments; refused where one is empty.

    MindSpore fills it with the extreme of the tested dtype, which the bench does not know.
    """
    if len(torch.unique(segment_ids[segment_ids >= 0])) < int(num_segments):
        raise NotCheckable("a segment is empty: it holds the extreme of the dtype, not of values")
    start = -torch.inf if how == "amax" else torch.inf
    if not tensor.is_floating_point():
        limits = torch.iinfo(tensor.dtype)
        start = limits.min if how == "amax" else limits.max
    return _segments(tensor, segment_ids, num_segments, start, how)


def _segments(
    tensor: Tensor, segment_ids: Tensor, num_segments: int, start: float, how: str
) -> Tensor:
    inner = tensor.shape[segment_ids.ndim :]
    ids = segment_ids.reshape(-1).long()
    rows = tensor.reshape(-1, *inner)[ids >= 0]
    result = torch.full((int(num_segments), *inner), start, dtype=tensor.dtype)
    if how == "sum":
        return result.index_add(0, ids[ids >= 0], rows)
    return result.index_reduce(0, ids[ids >= 0], rows, how)


def reverse_sequence(
    tensor: Tensor, seq_lengths: Tensor, seq_dim: int = 0, batch_dim: int = 0
) -> Tensor:
    """Reverse the first `seq_lengths` elements of each batch entry along a dimension."""
    moved = tensor.movedim((batch_dim, seq_dim), (0, 1))
    parts = [
        torch.cat([row[:length].flip(0), row[length:]])
        for row, length in zip(moved, seq_lengths.tolist(), strict=True)
    ]
    return torch.stack(parts).movedim((0, 1), (batch_dim, seq_dim))


def slice_of(tensor: Tensor, begin: Sequence[int], size: Sequence[int]) -> Tensor:
    """Return `size` elements from `begin` on in each dimension; a size of -1 is the rest."""
    ends = [
        extent if count == -1 else first + count
        for first, count, extent in zip(begin, size, tensor.shape, strict=True)
    ]
    return tensor[tuple(slice(first, end) for first, end in zip(begin, ends, strict=True))]


def strided_slice(
    tensor: Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
) -> Tensor:
    """Return a slice with positive strides, without masks."""
    if any(stride < 1 for stride in strides):
        raise NotCheckable("a strided slice with a negative stride has no bench")
    return tensor[tuple(slice(*bounds) for bounds in zip(begin, end, strides, strict=True))]


def sequence_mask(lengths: Tensor, maxlen: int | None = None) -> Tensor:
    """Return True for the first `lengths` places of a new last dimension."""
    size = int(lengths.max()) if maxlen is None else int(maxlen)
    return torch.arange(size) < lengths.unsqueeze(-1)
