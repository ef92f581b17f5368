"""References in torch for MindSpore operators that have no namesake of the same meaning.

Comes in: torch tensors (float64 in place of floats) and MindSpore's arguments. Goes out: the results
according to MindSpore's documentation of the operator. Named by the tables in `rows`, `rows_ops` and
`rows_rare`, of which the last one has what models rarely call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import DTYPES, canonical_dtype

Tensor = torch.Tensor
Dims = Any  # an int, a sequence of ints, or None
# clip_by_norm adds it to the norm before it divides by it.
_NORM_FLOOR = 1e-6


def cast(tensor: Tensor, dtype: Any, *_: Any, **__: Any) -> Tensor:
    """Convert to a dtype, also one given by name; a float stays in the bench's precision."""
    if not isinstance(dtype, str):
        return tensor.to(dtype)
    name = canonical_dtype(dtype)
    if name is None:
        raise NotCheckable(f"the bench knows no dtype {dtype!r}")
    is_float = DTYPES[name].kind == "float"
    return tensor.to(torch.float64 if is_float else getattr(torch, name))


def to(tensor: Tensor, target: torch.dtype | Tensor | None = None) -> Tensor:
    """Convert to a dtype, or to the dtype of a tensor."""
    if target is None:
        return tensor.clone()
    return tensor.to(target.dtype if isinstance(target, Tensor) else target)


def to_float(tensor: Tensor) -> Tensor:
    """Convert to float64, the only float of the bench, for every dtype of floats."""
    return tensor.to(torch.float64)


def transpose(tensor: Tensor, axes: Sequence[int] | tuple[None] = ()) -> Tensor:
    """Permute the dimensions; without an order, reverse them."""
    if len(axes) == 0 or axes[0] is None:
        return tensor.permute(*range(tensor.ndim - 1, -1, -1))
    return tensor.permute(*axes)


def getitem(tensor: Tensor, index: Any) -> Tensor:
    """Index a tensor; numbers beside tensors are refused where NumPy and torch disagree."""
    parts = index if isinstance(index, tuple) else (index,)
    has_list = any(isinstance(part, Tensor | list) for part in parts)
    has_number = any(isinstance(part, int) and not isinstance(part, bool) for part in parts)
    if has_list and has_number and any(isinstance(part, slice) for part in parts):
        raise NotCheckable(
            "numbers, tensors and slices in one index: NumPy's and torch's order differ"
        )
    return tensor[index]


def flatten_fortran(
    tensor: Tensor, order: str = "C", start_dim: int = 0, end_dim: int = -1
) -> Tensor:
    """Flatten as `mindspore.Tensor.flatten(order)`: all dimensions where the order is "F"."""
    if order == "C":
        return tensor.flatten(start_dim, end_dim)
    return tensor.permute(*range(tensor.ndim - 1, -1, -1)).flatten()


def flatten_batch(
    tensor: Tensor, order: str = "C", start_dim: int = 1, end_dim: int = -1
) -> Tensor:
    """Flatten as `mindspore.ops.flatten`: all but the first dimension, row-major only."""
    if order != "C":
        raise NotCheckable("flattening in column-major order has no bench")
    return tensor.flatten(min(start_dim, tensor.ndim - 1), end_dim)


def diag(tensor: Tensor, diagonal: int | None = None) -> Tensor:
    """Build a matrix from a diagonal, or read one; refused where MindSpore's overloads disagree."""
    if diagonal is None and tensor.ndim != 1:
        raise NotCheckable(
            "diag of a matrix without `diagonal` differs between MindSpore's devices"
        )
    return torch.diag(tensor, diagonal or 0)


def trace(
    tensor: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None
) -> Tensor:
    """Sum a diagonal."""
    return torch.diagonal(tensor, offset, axis1, axis2).sum(-1, dtype=dtype)


def cumsum_flat(tensor: Tensor, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Sum up along an axis, over the flattened tensor where there is none."""
    if axis is None:
        return torch.cumsum(tensor.flatten(), 0, dtype=dtype)
    return torch.cumsum(tensor, axis, dtype=dtype)


def count_nonzero(
    tensor: Tensor, axis: Dims = (), keep_dims: bool = False, dtype: Any = None
) -> Tensor:
    """Count the elements that are not 0."""
    dims = None if axis is None or axis == () or axis == [] else axis
    return torch.sum(tensor != 0, dim=dims, keepdim=keep_dims, dtype=dtype)


def prod(
    tensor: Tensor, dim: int | None = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """Multiply along a dimension, or all elements."""
    if dim is not None:
        return torch.prod(tensor, dim, keepdim, dtype=dtype)
    result = torch.prod(tensor, dtype=dtype)
    return result.reshape([1] * tensor.ndim) if keepdim else result


def with_index(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives extremes and their indices; without an axis the extreme of all and index 0."""

    def found(tensor: Tensor, axis: Any = None, keepdims: bool = False) -> Any:
        if axis is None:
            return function(tensor), torch.zeros((), dtype=torch.int64)
        return function(tensor, axis, keepdims)

    return found


max_with_index, min_with_index = with_index(torch.max), with_index(torch.min)


def extreme(values: Callable[..., Tensor], indexed: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives the extreme along an axis, with its indices only where they are asked for."""

    def found(
        tensor: Tensor, axis: Dims = None, keepdims: bool = False, return_indices: bool = False
    ) -> Any:
        if return_indices:
            return indexed(tensor, axis, keepdims)
        return values(tensor, () if axis is None else axis, keepdims)

    return found


def median_of_all(_: Tensor) -> Tensor:
    """Refuse: Tensor.median() is over the last dimension on one device, over all on another."""
    raise NotCheckable("Tensor.median() without a dimension differs between MindSpore's devices")


def peak_to_peak(tensor: Tensor, axis: Dims = None, keepdims: bool = False) -> Tensor:
    """Return maximum minus minimum."""
    dims = () if axis is None else axis
    return torch.amax(tensor, dims, keepdims) - torch.amin(tensor, dims, keepdims)


def reverse(tensor: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Reverse the order along dimensions."""
    return torch.flip(tensor, [axis] if isinstance(axis, int) else list(axis))


def repeat_interleave(
    tensor: Tensor, repeats: Any, axis: int | None = None, output_size: int | None = None
) -> Tensor:
    """Repeat elements; `repeats` is a number, a sequence or a tensor."""
    if isinstance(repeats, list | tuple):
        repeats = torch.tensor(repeats) if len(repeats) > 1 else repeats[0]
    return torch.repeat_interleave(tensor, repeats, axis, output_size=output_size)


def linear_combination(
    tensor: Tensor, left: Tensor, right: Tensor, value: float | Tensor = 1
) -> Tensor:
    """Return tensor + value * left * right; `value` may be a tensor."""
    return tensor + value * left * right


def linear_quotient(
    tensor: Tensor, left: Tensor, right: Tensor, value: float | Tensor = 1
) -> Tensor:
    """Return tensor + value * left / right; `value` may be a tensor."""
    return tensor + value * (left / right)


def approximate_equal(tensor: Tensor, other: Tensor, tolerance: float = 1e-5) -> Tensor:
    """Return where two tensors differ by less than a tolerance."""
    return (tensor - other).abs() < tolerance


def xdivy(tensor: Any, other: Any) -> Tensor:
    """Divide, with 0 where the dividend is 0."""
    left, right = torch.as_tensor(tensor), torch.as_tensor(other)
    return torch.where(left == 0, torch.zeros_like(left / right), left / right)


def contains(tensor: Tensor, element: Any) -> bool:
    """Return whether any element equals a value."""
    return bool((tensor == element).any())


def searchsorted(
    tensor: Tensor, v: Any, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Find where values belong in a sorted sequence."""
    return torch.searchsorted(tensor, v, side=side, sorter=sorter)


def singular_values(tensor: Tensor, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """Return the singular values, and the vectors as (s, u, v); these are unique but for their sign,
    in pairs, which is the tested side's choice."""
    if not compute_uv:
        return torch.linalg.svdvals(tensor)
    if full_matrices and tensor.shape[-1] != tensor.shape[-2]:
        raise NotCheckable("the vectors beyond the singular values are not unique")
    u, s, vh = torch.linalg.svd(tensor, full_matrices=full_matrices)
    return s, u, vh.mH


def fill_diagonal(tensor: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Return a copy with another diagonal."""
    return tensor.clone().fill_diagonal_(fill_value, wrap)


def batch_norm_stats(tensor: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return each channel's mean and 1 / sqrt(variance + eps)."""
    dims = [dim for dim in range(tensor.ndim) if dim != 1]
    var, mean = torch.var_mean(tensor, dims, correction=0)
    return mean, torch.rsqrt(var + eps)


def batch_norm_elemt(
    tensor: Tensor,
    weight: Any = None,
    bias: Any = None,
    mean: Any = 0,
    invstd: Any = 1,
    eps: float = 0,
) -> Tensor:
    """Normalise each channel with a given mean and 1 / standard deviation."""

    def channel(value: Any) -> Any:
        return value.reshape(-1, *[1] * (tensor.ndim - 2)) if torch.is_tensor(value) else value

    scaled: Tensor = (tensor - channel(mean)) * channel(invstd)
    scaled = scaled if weight is None else scaled * channel(weight)
    return scaled if bias is None else scaled + channel(bias)


def one_hot(
    tensor: Tensor, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1
) -> Tensor:
    """Return `on_value` at each index along a new axis; an index out of range has none."""
    kinds = (torch.as_tensor(on_value), torch.as_tensor(off_value))
    on, off = (kind.to(torch.result_type(*kinds)) for kind in kinds)
    return torch.where(tensor.unsqueeze(-1) == torch.arange(depth), on, off).movedim(-1, axis)


def add_all(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of a list of tensors."""
    return torch.stack(list(tensors)).sum(0)


def bias_add(tensor: Tensor, bias: Tensor, data_format: str = "NCHW") -> Tensor:
    """Add a bias along the dimension of the channels."""
    if data_format == "NHWC":
        return tensor + bias
    return tensor + bias.reshape(-1, *[1] * (tensor.ndim - 2))


def clip_by_value(tensor: Any, clip_value_min: Any = None, clip_value_max: Any = None) -> Any:
    """Clamp a tensor, or each tensor of a list."""
    if isinstance(tensor, list | tuple):
        return [torch.clamp(part, clip_value_min, clip_value_max) for part in tensor]
    return torch.clamp(tensor, clip_value_min, clip_value_max)


def band_part(tensor: Tensor, lower: int, upper: int) -> Tensor:
    """Keep the diagonals from `lower` below to `upper` above; a negative number keeps all."""
    rows, columns = tensor.shape[-2:]
    distance = torch.arange(columns) - torch.arange(rows).unsqueeze(-1)
    keep = torch.ones(rows, columns, dtype=torch.bool)
    keep = keep if lower < 0 else keep & (distance >= -lower)
    keep = keep if upper < 0 else keep & (distance <= upper)
    return tensor * keep


def conv(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a convolution with MindSpore's `pad_mode`: padding counts only where it is "pad"."""

    def convolve(
        tensor: Tensor, weight: Tensor, pad_mode: str = "valid", padding: Any = 0, **options: Any
    ) -> Tensor:
        if pad_mode not in ("valid", "pad"):
            raise NotCheckable(f"a convolution with pad_mode={pad_mode!r} has no bench")
        padding = padding if pad_mode == "pad" else 0
        return function(tensor, weight, padding=padding, **options)

    return convolve


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


def col2im(tensor: Tensor, output_size: Any, kernel_size: Any, **options: Any) -> Tensor:
    """Fold `(N, C, kernel elements, L)` into `(N, C, H, W)`."""
    return fold(tensor.flatten(1, 2), output_size, kernel_size, **options)


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


def mirror_pad(tensor: Tensor, paddings: Any, mode: str = "REFLECT") -> Tensor:
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


def inplace_add(x: Tensor, v: Tensor, indices: Any, alpha: int = 1) -> Tensor:
    """Add slices to rows, or subtract them."""
    return x.index_add(0, _rows(indices), v, alpha=alpha)


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
