"""Sparse, quantized and nested tensors of torch, from host tensors and back.

Comes in: a `HostTensor` with a storage, or such a tensor of torch. Goes out: the other. Called by `run`. The
indices are checked before any kernel reads them.
"""

import functools
import math
from typing import Any

import numpy as np
import torch

from ray_precheck import private_parts
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import COMPRESSED, HostTensor, Nested, Quantized, Sparse, Storage

_QUANTIZED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


def built(storage: Storage, values: torch.Tensor) -> torch.Tensor:
    """Return the tensor of a storage that has these values, on their device.

    Raises:
        NotCheckable: its indices or offsets are those of no tensor.
    """
    try:
        if isinstance(storage, Sparse):
            return _sparse(storage, values)
        return (
            _quantized(storage, values)
            if isinstance(storage, Quantized)
            else _nested(storage, values)
        )
    except (RuntimeError, ValueError) as error:
        line = str(error).split("\n", 1)[0]
        raise NotCheckable(f"this torch cannot build the tensor of the dump: {line}") from error


def _sparse(storage: Sparse, values: torch.Tensor) -> torch.Tensor:
    indices = [torch.tensor(each, device=values.device) for each in storage.indices]
    if storage.layout == "coo":
        (places,) = indices
        found = torch.sparse_coo_tensor(places, values, storage.shape, check_invariants=True)
        if not storage.coalesced:
            return found
        whole = found.coalesce()
        if whole._nnz() != storage.nnz:
            raise ValueError("places of a coalesced tensor come twice")
        return whole
    make: Any = torch.sparse_compressed_tensor
    layout = getattr(torch, f"sparse_{storage.layout}")
    return make(  # type: ignore[no-any-return]
        *indices, values, storage.shape, layout=layout, check_invariants=True
    )


def _quantized(storage: Quantized, values: torch.Tensor) -> torch.Tensor:
    if storage.axis is None:
        (scale,), (zero_point,) = storage.scale, storage.zero_point
        make = private_parts.demanded(private_parts.QUANTIZED)
        return make(values, scale, int(zero_point))  # type: ignore[no-any-return]
    scales, zero_points = (
        torch.tensor(each, dtype=dtype, device=values.device)
        for each, dtype in ((storage.scale, torch.float64), (storage.zero_point, torch.int64))
    )
    make = private_parts.demanded(private_parts.QUANTIZED_BY_CHANNEL)
    return make(values, scales, zero_points, storage.axis)  # type: ignore[no-any-return]


def _nested(storage: Nested, values: torch.Tensor) -> torch.Tensor:
    if storage.is_jagged:
        device = str(values.device)
        lengths = _whole(storage.lengths, device) if storage.lengths else None
        extents = storage.lengths or tuple(np.diff(storage.offsets).tolist())
        return torch.nested.nested_tensor_from_jagged(
            values,
            _whole(storage.offsets, device),
            lengths,
            jagged_dim=storage.ragged,
            min_seqlen=min(extents, default=0),
            max_seqlen=max(extents, default=0),
        )
    counts = [math.prod(sizes) for sizes in storage.sizes]
    parts = values.split(counts)  # type: ignore[no-untyped-call]
    pieces = zip(parts, storage.sizes, strict=True)
    return torch.nested.as_nested_tensor([piece.view(sizes) for piece, sizes in pieces])


@functools.lru_cache(64)
def _whole(numbers: tuple[int, ...], device: str) -> torch.Tensor:
    """Return numbers as a tensor, the same each time: jagged tensors of one call must share their offsets."""
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def taken_apart(tensor: torch.Tensor) -> tuple[torch.Tensor, Storage | None]:
    """Return the values that a quantized or nested tensor stores, and how; of a sparse one all elements."""
    if tensor.is_nested:
        return _of_nested(tensor)
    if tensor.layout is not torch.strided:
        return tensor.to_dense(), None
    if tensor.is_quantized:
        return tensor.int_repr(), _of_quantized(tensor)
    return tensor, None


def in_layout_of(output: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the incoming gradient of an output: of a sparse one what stands at its places."""
    if output.is_nested or output.layout is torch.strided:
        return gradient
    with torch.no_grad():
        places = output.detach()
        if output.layout is torch.sparse_coo:
            places = places.coalesce()
        return gradient.sparse_mask(places)


def _of_quantized(tensor: torch.Tensor) -> Quantized:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return Quantized((tensor.q_scale(),), (tensor.q_zero_point(),))
    return Quantized(
        tuple(tensor.q_per_channel_scales().tolist()),
        tuple(tensor.q_per_channel_zero_points().tolist()),
        tensor.q_per_channel_axis(),
    )


def _of_nested(tensor: torch.Tensor) -> tuple[torch.Tensor, Nested]:
    inner: Any = tensor
    if tensor.layout is torch.jagged:
        lengths = () if inner._lengths is None else tuple(inner._lengths.tolist())
        storage = Nested((), tuple(inner._offsets.tolist()), lengths, inner._ragged_idx)
        return inner._values, storage
    pieces = inner.unbind()
    flat = [piece.reshape(-1) for piece in pieces]
    values = torch.cat(flat) if flat else inner.values()
    return values, Nested(tuple(tuple(piece.shape) for piece in pieces))


def host_of(tensor: torch.Tensor, values: Array, dtype: str) -> HostTensor:
    """Return a sparse tensor that was read from a file, on the host.

    Raises:
        NotCheckable: its indices are those of no tensor.
    """
    name = str(tensor.layout).rpartition("_")[2]
    if name == "coo":
        indices: tuple[torch.Tensor, ...] = (tensor._indices(),)
        coalesced = tensor.is_coalesced()
    else:
        rows = COMPRESSED[name] == 0
        indices = (
            (tensor.crow_indices(), tensor.col_indices())
            if rows
            else (tensor.ccol_indices(), tensor.row_indices())
        )
        coalesced = True
    block = values.shape[indices[0].dim() :][:2] if name.startswith("b") else ()
    return HostTensor(
        dtype,
        values,
        storage=Sparse(
            name,
            tuple(tensor.shape),
            tensor._nnz(),
            tensor.dense_dim(),
            coalesced,
            block=tuple(block),
            indices=tuple(np.asarray(each.numpy()) for each in indices),
        ),
    )
