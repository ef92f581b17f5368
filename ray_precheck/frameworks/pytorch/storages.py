"""Sparse, quantized and nested tensors of torch, from host tensors and back.

Comes in: a `HostTensor` with a storage, or such a tensor of torch. Goes out: the other. Called by `run`. The
indices are checked before any kernel reads them. What a bench computes with for a quantized tensor is
`Exact`; the operators of `torch.ops.quantized` get weights that are packed anew, as packed ones are recorded
by their parts.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ray_precheck import private_parts
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import flatten_outputs, map_leaves
from ray_precheck.schema.dtypes import QUANTIZED, Array
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import COMPRESSED, HostTensor, Nested, Quantized, Sparse, Storage

_QUANTIZED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
_PACKS = {
    **dict.fromkeys(
        ("linear", "linear_relu", "linear_dynamic", "linear_relu_dynamic"), "linear_prepack"
    ),
    **{f"conv{n}d{end}": f"conv{n}d_prepack" for n in (1, 2, 3) for end in ("", "_relu")},
}
OPERATORS = frozenset({*_PACKS, "add", "add_relu", "mul", "mul_relu", "cat"})


def built(storage: Storage, values: torch.Tensor) -> torch.Tensor:
    """Return the tensor of a storage that has these values, on their device.

    Raises:
        NotCheckable: its indices or offsets are those of no tensor.
    """
    try:
        if isinstance(storage, Sparse):
            return _sparse(storage, values)
        if isinstance(storage, Quantized):
            return _quantized(storage, values)
        return _nested(storage, values)
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
    elif COMPRESSED[name] == 0:
        indices = tensor.crow_indices(), tensor.col_indices()
    else:
        indices = tensor.ccol_indices(), tensor.row_indices()
    coalesced = name != "coo" or tensor.is_coalesced()
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


@dataclass(frozen=True, slots=True)
class Exact:
    """A quantized tensor of a bench: the numbers that it means, float64, not yet rounded to its steps.

    `stored` is the dtype of its whole numbers; `whole` are those of an input.
    """

    values: torch.Tensor
    storage: Quantized
    stored: str
    whole: torch.Tensor | None = None

    def host(self) -> HostTensor:
        """Return it in steps, float64, within the whole numbers of its dtype."""
        ends = np.iinfo(self.stored)
        steps = self.storage.steps(self.values.detach().numpy())
        return HostTensor(self.stored, np.clip(steps, ends.min, ends.max), storage=self.storage)


def exact_of(tensor: HostTensor) -> Exact:
    """Return a quantized input of a bench."""
    storage = tensor.storage
    assert isinstance(storage, Quantized)
    meant = torch.from_numpy(np.array(storage.meant(tensor.data)))
    return Exact(meant, storage, tensor.dtype, torch.tensor(tensor.data))


def is_leaf(value: Any) -> bool:
    """Return whether a result is a tensor of a bench or of a device."""
    return torch.is_tensor(value) or isinstance(value, Exact)


def rounded_to(values: torch.Tensor, storage: Quantized, dtype: torch.dtype | str) -> Exact:
    """Return the result of an operator that quantizes it, with a dtype such as `torch.qint8`."""
    name = str(dtype).removeprefix("torch.")
    if name not in {*QUANTIZED, *QUANTIZED.values()}:
        raise NotCheckable(f"a result of dtype {name} cannot be compared")
    return Exact(values, storage, QUANTIZED.get(name, name))


def on_meaning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a bench that computes with what quantized arguments mean, and quantizes as the first of them."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given: list[Exact] = []

        def meant(value: Any) -> Any:
            if not isinstance(value, Exact):
                return value
            given.append(value)
            return value.values

        plain = map_leaves(args, meant), map_leaves(kwargs, meant)
        result = function(*plain[0], **plain[1])
        return map_leaves(result, lambda leaf: _as(given[0], leaf)) if given else result

    return called


def _as(first: Exact, leaf: Any) -> Any:
    if not torch.is_tensor(leaf) or not leaf.is_floating_point():
        return leaf
    if first.storage.axis is not None and leaf.shape != first.values.shape:
        raise NotCheckable("several scales, in another shape than before, cannot be followed")
    return rounded_to(leaf, first.storage, first.stored)


def resolve_quantized(name: ApiName) -> Callable[..., Any]:
    """Return an operator of `torch.ops.quantized` that takes the parts of packed weights.

    Raises:
        NotCheckable: it is none of those that have a bench.
    """
    if name.api not in OPERATORS:
        raise NotCheckable(f"{name.type_name} is not a quantized operator that may be called")
    found: Any = getattr(torch.ops.quantized, name.api)
    pack = _PACKS.get(name.api)
    return found if pack is None else functools.partial(_packed, found, pack)


def _packed(operator: Any, pack: str, x: Any, parts: Any, *others: Any, **named: Any) -> Any:
    """Call an operator with weights that are packed from their recorded parts."""
    if not isinstance(parts, dict) or "weight" not in parts:
        raise NotCheckable("the dump does not describe the packed weights")
    ways = [list(parts[key]) for key in ("stride", "padding", "dilation") if key in parts]
    groups = [parts["groups"]] if "groups" in parts else []
    weight = getattr(torch.ops.quantized, pack)(parts["weight"], parts.get("bias"), *ways, *groups)
    return operator(x, weight, *others, **named)


def flattened(result: Any) -> list[Any]:
    """Return the leaves of a result."""
    return flatten_outputs(result, is_leaf)
