"""References in torch for operators of `mindspore.ops` that models rarely call.

Comes in: torch tensors (float64 in place of floats) and MindSpore's arguments. Goes out: the results
according to MindSpore's documentation of the operator. Named by the table in `rows_rare`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.mindspore.bench.references import conv

Tensor = torch.Tensor
# clip_by_norm adds it to the norm before it divides by it.
_NORM_FLOOR = 1e-6


def shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape as a tuple of ints."""
    return tuple(tensor.shape)


def filled(dtype: torch.dtype, shape: Sequence[int], value: Any) -> Tensor:
    """Return a tensor of one value."""
    return torch.full(tuple(shape), value, dtype=dtype)


def overwrite(variable: Tensor, value: Any) -> Tensor:
    """Return the value in the shape and dtype of the variable that it is assigned to."""
    return torch.as_tensor(value).to(variable.dtype).expand_as(variable).clone()


def dot(tensor: Tensor, other: Tensor) -> Tensor:
    """Sum products over the last dimension and the last but one, as `numpy.dot`."""
    product: Tensor = torch.tensordot(tensor, other, ([-1], [-1 if other.ndim == 1 else -2]))
    return product


def hsplit(tensor: Tensor, indices_or_sections: Any) -> Any:
    """Split along dimension 1; torch takes the number or the indices by position alone."""
    return torch.hsplit(tensor, indices_or_sections)


def vsplit(tensor: Tensor, indices_or_sections: Any) -> Any:
    """Split along dimension 0."""
    return torch.vsplit(tensor, indices_or_sections)


def dsplit(tensor: Tensor, indices_or_sections: Any) -> Any:
    """Split along dimension 2."""
    return torch.dsplit(tensor, indices_or_sections)


def tensor_split(tensor: Tensor, indices_or_sections: Any, axis: int = 0) -> Any:
    """Split along an axis."""
    return torch.tensor_split(tensor, indices_or_sections, axis)


def bucketize(tensor: Tensor, boundaries: Any, right: bool = False) -> Tensor:
    """Return each value's bucket; the boundaries are a list of numbers."""
    edges = torch.as_tensor(boundaries, dtype=tensor.dtype)
    return torch.bucketize(tensor, edges, right=right)


def expand(tensor: Tensor, size: Any) -> Tensor:
    """Broadcast to a shape, which may be a tensor."""
    return torch.broadcast_to(tensor, size.tolist() if torch.is_tensor(size) else size)


def std_by_dim(_: Tensor, **__: Any) -> Tensor:
    """Refuse: without `correction` the CPU divides by N, the documentation by N - 1."""
    raise NotCheckable("Tensor.std(dim=...) without correction differs between MindSpore's devices")


def bartlett_window(window_length: Any, periodic: bool = True, dtype: Any = None) -> Tensor:
    """Return a Bartlett window; its length may be a tensor."""
    return torch.bartlett_window(int(window_length), periodic, dtype=dtype)


def blackman_window(window_length: Any, periodic: bool = True, dtype: Any = None) -> Tensor:
    """Return a Blackman window; its length may be a tensor."""
    return torch.blackman_window(int(window_length), periodic, dtype=dtype)


def unique(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unique values in the order in which they come, and each element's place."""
    flat = tensor.flatten()
    values, places = torch.unique(flat, return_inverse=True)
    first = torch.full((len(values),), len(flat), dtype=torch.int64)
    first = first.scatter_reduce(0, places, torch.arange(len(flat)), "amin")
    order = torch.argsort(first)
    return values[order], torch.argsort(order)[places].reshape(tensor.shape)


def choose(tensor: Tensor, choices: Sequence[Tensor] | Tensor, mode: str = "clip") -> Tensor:
    """Take each element from the choice that an index names."""
    if mode != "clip":
        raise NotCheckable(f"choose with mode={mode!r} has no bench")
    given = [torch.as_tensor(choice) for choice in choices]
    shape = np.broadcast_shapes(tensor.shape, *(choice.shape for choice in given))
    index = tensor.clamp(0, len(given) - 1).long().expand(shape)
    stacked = torch.stack([choice.expand(shape) for choice in given])
    return stacked.gather(0, index.unsqueeze(0)).squeeze(0)


def index_by(tensor: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Index by a list of tensors, one a dimension."""
    return tensor[tuple(part if part.dtype is torch.bool else part.long() for part in indices)]


def batch_dot(x1: Tensor, x2: Tensor, axes: Any = None) -> Tensor:
    """Sum products along one axis of each, for each entry of the batch."""
    if x1.ndim < 2 or x2.ndim < 2 or isinstance(axes, int):
        raise NotCheckable("batch_dot of vectors, or with one number as axes, has no bench")
    first, second = axes or (x1.ndim - 1, x2.ndim - 2 if x2.ndim > 2 else 1)
    left = x1.movedim(first, -1).flatten(1, -2) if x1.ndim > 2 else x1.unsqueeze(1)
    right = x2.movedim(second, 1).flatten(2) if x2.ndim > 2 else x2.unsqueeze(2)
    kept = [n for d, n in enumerate(x1.shape) if d not in (0, first % x1.ndim)]
    kept += [n for d, n in enumerate(x2.shape) if d not in (0, second % x2.ndim)]
    product = torch.bmm(left, right)
    return product.reshape(x1.shape[0], *(kept or [1]))


def batch_to_space_nd(tensor: Tensor, block_shape: Any, crops: Sequence[Sequence[int]]) -> Tensor:
    """Move blocks of the batch into the spatial dimensions, then crop these."""
    blocks = _blocks(block_shape, len(crops))
    batch, depth = tensor.shape[0], len(blocks)
    for block in blocks:
        batch //= block
    split = tensor.reshape(*blocks, batch, *tensor.shape[1:])
    first = 1 + tensor.ndim - 1 - depth  # dimensions before the spatial ones
    order = list(range(depth, depth + first))
    for place in range(depth):
        order += [depth + first + place, place]
    merged = [n * block for n, block in zip(tensor.shape[first:], blocks, strict=True)]
    result = split.permute(order).reshape(batch, *tensor.shape[1:first], *merged)
    for place, (low, high) in enumerate(crops):
        dim = first + place
        result = result.narrow(dim, low, result.shape[dim] - low - high)
    return result


def space_to_batch_nd(tensor: Tensor, block_size: Any, paddings: Sequence[Sequence[int]]) -> Tensor:
    """Pad the spatial dimensions, then move blocks of them into the batch."""
    blocks = _blocks(block_size, len(paddings))
    depth = len(blocks)
    flat = [int(n) for low_high in reversed(list(paddings)) for n in low_high]
    padded = functional.pad(tensor, flat)
    first = padded.ndim - depth
    shape: list[int] = list(padded.shape[:first])
    for n, block in zip(padded.shape[first:], blocks, strict=True):
        shape += [n // block, block]
    split = padded.reshape(shape)
    order = [first + 2 * place + 1 for place in range(depth)]
    order += [*range(first), *(first + 2 * place for place in range(depth))]
    return split.permute(order).reshape(-1, *padded.shape[1:first], *shape[first::2])


def _blocks(block: Any, count: int) -> list[int]:
    return [int(block)] * count if isinstance(block, int) else [int(n) for n in block]


def clip_by_norm(
    x: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Any:
    """Scale a tensor, or a list of tensors together, down to a norm."""
    tensors = list(x) if isinstance(x, list | tuple) else [x]
    norms = torch.stack([torch.linalg.vector_norm(tensor, norm_type) for tensor in tensors])
    scale = max_norm / (torch.linalg.vector_norm(norms, norm_type) + _NORM_FLOOR)
    scaled = [tensor * scale.clamp(max=1.0) for tensor in tensors]
    return scaled if isinstance(x, list | tuple) else scaled[0]


def clip_by_global_norm(
    x: Sequence[Tensor], clip_norm: float = 1.0, use_norm: Any = None
) -> list[Tensor]:
    """Scale a list of tensors together to a norm, where theirs is larger."""
    if use_norm is not None:
        raise NotCheckable("clip_by_global_norm with use_norm has no bench")
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in x]))
    return [tensor * clip_norm / norm.clamp(min=clip_norm) for tensor in x]


def fold(tensor: Tensor, output_size: Any, kernel_size: Any, **options: Any) -> Tensor:
    """Fold `(N, C * kernel elements, L)` into `(N, C, H, W)`; the size may be a tensor."""
    size: Any = output_size.tolist() if torch.is_tensor(output_size) else output_size
    return functional.fold(tensor, size, kernel_size, **options)


def col2im(
    tensor: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding_value: Any,
    stride: Any,
) -> Tensor:
    """Fold `(N, C, kernel elements, L)` into `(N, C, H, W)`."""
    size: Any = output_size.tolist() if torch.is_tensor(output_size) else output_size
    return functional.fold(tensor.flatten(1, 2), size, kernel_size, dilation, padding_value, stride)


def conv3d_transpose(
    tensor: Tensor, weight: Tensor, pad_mode: str = "valid", **options: Any
) -> Tensor:
    """Convolve transposed over three dimensions."""
    return conv(functional.conv_transpose3d, tensor, weight, options, pad_mode)


def local_response_norm(
    tensor: Tensor,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    norm_region: str = "ACROSS_CHANNELS",
) -> Tensor:
    """Divide by (bias + alpha * sum of squares over the neighbouring channels) ** beta."""
    padded = functional.pad(tensor.square(), (0, 0, 0, 0, depth_radius, depth_radius))
    total = padded.unfold(1, 2 * depth_radius + 1, 1).sum(-1)
    return tensor / (bias + alpha * total) ** beta


def mirror_pad(tensor: Tensor, paddings: Any, mode: str) -> Tensor:
    """Pad by mirrored values, with the edge ("SYMMETRIC") or without it ("REFLECT")."""
    edge = 0 if mode.upper() == "REFLECT" else 1
    pairs = paddings.tolist() if torch.is_tensor(paddings) else paddings
    for dim, (low, high) in enumerate(pairs):
        size = tensor.shape[dim]
        before = torch.arange(low, 0, -1) - edge
        after = size - 2 + edge - torch.arange(high)
        index = torch.cat([before, torch.arange(size), after])
        tensor = tensor.index_select(dim, index)
    return tensor


def pad_last(tensor: Tensor, pad_dim_size: int = 8) -> Tensor:
    """Extend the last dimension from 1 to a size by zeros."""
    return functional.pad(tensor, (0, pad_dim_size - 1))


def matrix_diag(tensor: Tensor, **options: Any) -> Tensor:
    """Build matrices from their main diagonals."""
    plain = {"k": 0, "num_rows": -1, "num_cols": -1, "padding_value": 0, "align": "RIGHT_LEFT"}
    if any(value != plain[name] for name, value in options.items()):
        raise NotCheckable("matrix_diag with other than the main diagonal has no bench")
    return torch.diag_embed(tensor)


def polygamma(order: Any, tensor: Tensor) -> Tensor:
    """Return a derivative of the digamma function; its order may be a tensor of one element."""
    return torch.polygamma(int(order), tensor)


def population_count(tensor: Tensor) -> Tensor:
    """Count the bits that are set, in two's complement; uint8."""
    bits = torch.iinfo(tensor.dtype).bits
    shifts = torch.arange(bits)
    return ((tensor.long().unsqueeze(-1) >> shifts) & 1).sum(-1).to(torch.uint8)


def in_top_k(logits: Tensor, targets: Tensor, k: int) -> Tensor:
    """Return whether each target is among its row's `k` largest."""
    own = logits.gather(1, targets.long().unsqueeze(1))
    return (logits > own).sum(1) < k


def unique_with_pad(tensor: Tensor, pad_num: Any) -> tuple[Tensor, Tensor]:
    """Return `unique`, its values padded to the input's length."""
    values, places = unique(tensor)
    padded = torch.full_like(tensor, int(pad_num))
    padded[: len(values)] = values
    return padded, places


def inplace_add(x: Tensor, v: Tensor, indices: Any) -> Tensor:
    """Add slices to rows."""
    return x.index_add(0, _rows(indices), v)


def inplace_sub(x: Tensor, v: Tensor, indices: Any) -> Tensor:
    """Subtract slices from rows."""
    return x.index_add(0, _rows(indices), -v)


def inplace_update(x: Tensor, v: Tensor, indices: Any) -> Tensor:
    """Write slices into rows."""
    return x.index_copy(0, _rows(indices), v)


def _rows(indices: Any) -> Tensor:
    return torch.as_tensor([indices] if isinstance(indices, int) else indices).long()


def stft(tensor: Tensor, n_fft: int, pad_mode: str = "REFLECT", **options: Any) -> Tensor:
    """Return the short-time Fourier transform; complex unless it is asked for as pairs."""
    complex_out = options.pop("return_complex", None) is not False
    found = torch.stft(tensor, n_fft, pad_mode=pad_mode.lower(), return_complex=True, **options)
    return found if complex_out else torch.view_as_real(found)


def lstsq(tensor: Tensor, a: Tensor) -> Tensor:
    """Solve `tensor @ y = a` for full-rank matrices, by least squares or with the least norm; a vector
    `a` counts as one column."""
    columns = a if a.ndim == 2 else a.unsqueeze(-1)
    solution: Tensor = torch.linalg.lstsq(tensor, columns).solution
    return solution
