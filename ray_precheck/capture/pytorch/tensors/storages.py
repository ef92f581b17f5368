"""How sparse, quantized and nested tensors hold their values, as fields that msprobe ignores.

Comes in: such a tensor. Goes out: the values that it stores, and fields from which `dump.fields`
tells how to build one like it. Called by `text`.
"""

from typing import Any

import orjson
import torch

# Layouts by the indices that they compress.
_COMPRESSED = {
    torch.sparse_csr: torch.Tensor.crow_indices,
    torch.sparse_bsr: torch.Tensor.crow_indices,
    torch.sparse_csc: torch.Tensor.ccol_indices,
    torch.sparse_bsc: torch.Tensor.ccol_indices,
}
_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)


def values_in(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values that a sparse tensor stores."""
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def _text(name: str, fields: dict[str, Any]) -> str:
    return f', "{name}": {orjson.dumps(fields).decode()}'


def sparse_text(tensor: torch.Tensor) -> str:
    """Return the layout of a sparse tensor, and how many values it has where."""
    layout = f', "layout": "{tensor.layout}"'
    if tensor.is_meta or (
        tensor.layout not in _COMPRESSED and tensor.layout is not torch.sparse_coo
    ):
        return layout
    tensor = tensor.detach()
    values = values_in(tensor)
    if tensor.layout is torch.sparse_coo:
        places = tensor._indices()
        distinct = nnz = tensor._nnz()
        if not tensor.is_coalesced() and nnz:
            places = torch.unique(places, dim=1)
            distinct = places.shape[1]
        fields: dict[str, Any] = {"coalesced": tensor.is_coalesced(), "distinct": distinct}
        lines = tensor.shape[0] if tensor.sparse_dim() else 1
        first = places[0] if tensor.sparse_dim() else places.new_zeros(distinct)
        counts = torch.bincount(first, minlength=lines)
    else:
        compressed = _COMPRESSED[tensor.layout](tensor)
        nnz = tensor._nnz()
        counts = compressed.diff()
        fields = {}
        if tensor.layout in _BLOCKS:
            before = compressed.dim()
            fields["block"] = list(values.shape[before : before + 2])
    if counts.numel():
        fewest, most = counts.aminmax()
        fields |= {"fewest": int(fewest), "most": int(most)}
    told = {"nnz": nnz, "dense_dim": tensor.dense_dim(), **fields}
    return layout + _text("sparse", told)


def quantized_text(tensor: torch.Tensor) -> str:
    """Return the scale and the zero point of a quantized tensor, several with their axis."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        told: dict[str, Any] = {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    elif tensor.qscheme() not in (torch.per_channel_affine, torch.per_channel_symmetric):
        return ""
    else:
        told = {
            "scale": tensor.q_per_channel_scales().tolist(),
            "zero_point": tensor.q_per_channel_zero_points().tolist(),
            "axis": tensor.q_per_channel_axis(),
        }
    return f", {orjson.dumps(told).decode()[1:-1]}"


def nested_text(tensor: torch.Tensor) -> str:
    """Return of which sizes a nested tensor is."""
    if tensor.is_meta:
        return ""
    if tensor.layout is torch.strided:
        sizes = tensor._nested_tensor_size()
        return _text("nested", {"sizes": sizes.tolist()}) if tensor.is_contiguous() else ""
    inner: Any = tensor
    if inner._offsets.is_meta:
        return ""
    told = {"offsets": inner._offsets.tolist(), "ragged": inner._ragged_idx}
    if inner._lengths is not None:
        told["lengths"] = inner._lengths.tolist()
    return _text("nested", told)


def parts_of(packed: Any) -> dict[str, Any] | None:
    """Return the parts of packed weights of a quantized layer; None for another object."""
    kind = str(packed._type())
    if "quantized." not in kind or not packed._has_method("unpack"):
        return None
    weight, bias = packed.unpack()
    parts = {"weight": weight, "bias": bias}
    if "Conv" in kind:
        ways = ("stride", "padding", "dilation", "groups")
        parts |= {name: getattr(packed, name)() for name in ways}
    return parts
