"""One tensor as JSON: what it is, and what is said of its values.

Comes in: a tensor of any kind. Goes out: its JSON without the braces' end that the file of the task adds.
Called for each tensor of each call.

What is looked at is the memory that this process has: the local part of a DTensor, the values of a nested
or sparse tensor, what a transform of `torch.func` has wrapped. Meta and fake tensors have no values. How
sparse, quantized and nested tensors hold their values stands in fields that msprobe ignores, from which
`dump.fields` tells how to build one like it.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import torch

from ray_precheck import private_parts
from ray_precheck.capture.pytorch.tensors.memory import Glimpse, glimpse_of, is_freed
from ray_precheck.capture.recording.arguments import found_in
from ray_precheck.capture.writing.elements import NO_STATISTICS, quoted

# Layouts by the indices that they compress.
_COMPRESSED = {
    torch.sparse_csr: torch.Tensor.crow_indices,
    torch.sparse_bsr: torch.Tensor.crow_indices,
    torch.sparse_csc: torch.Tensor.ccol_indices,
    torch.sparse_bsc: torch.Tensor.ccol_indices,
}
_BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)
_DEEPEST = 10
# Torch's own classes.
TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_is_functional: Any = private_parts.find(private_parts.IS_FUNCTIONAL)
_sync: Any = private_parts.find(private_parts.FUNCTIONAL_SYNC)
_from_functional: Any = private_parts.find(private_parts.FROM_FUNCTIONAL)
is_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
# The types that msprobe writes, which are the full names of torch's classes.
_FAKE, UNDER_WAY, _NESTED = (
    f"torch.{name}"
    for name in (
        "_subclasses.fake_tensor.FakeTensor",
        "distributed._functional_collectives.AsyncCollectiveTensor",
        "nested._internal.nested_tensor.NestedTensor",
    )
)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested value in the order in which they are written."""
    if type(value) in TENSORS:  # what most calls give
        return [value]
    return found_in(value, torch.Tensor)


def _values_in(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values that a sparse tensor stores."""
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def _text(name: str, fields: dict[str, Any]) -> str:
    return f', "{name}": {orjson.dumps(fields).decode()}'


def _sparse_text(tensor: torch.Tensor) -> str:
    """Return the layout of a sparse tensor, and how many values it has where."""
    layout = f', "layout": "{tensor.layout}"'
    if tensor.is_meta or (
        tensor.layout not in _COMPRESSED and tensor.layout is not torch.sparse_coo
    ):
        return layout
    tensor = tensor.detach()
    values = _values_in(tensor)
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


def _quantized_text(tensor: torch.Tensor) -> str:
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


def _nested_text(tensor: torch.Tensor) -> str:
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


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor of torch's own class lies in; 0 for others."""
    if type(tensor) in TENSORS and tensor.layout is torch.strided:
        try:
            return tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            pass  # a transform of torch.func has wrapped it
    return 0


def needs_text(tensor: torch.Tensor) -> str:
    """Return the field that says whether a tensor requires a gradient."""
    return '"requires_grad": true' if tensor.requires_grad else '"requires_grad": false'


def _layout(tensor: torch.Tensor) -> str:
    """Return the fields that say how a dense tensor lies in its memory; "" for a contiguous one at the
    beginning of its own."""
    text = "" if tensor.is_contiguous() else f', "stride": {list(tensor.stride())}'
    offset = tensor.storage_offset()
    if offset:
        text = f'{text}, "offset": {offset}'
    if tensor.is_conj():
        return f'{text}, "lazy": "conj"'
    return f'{text}, "lazy": "neg"' if tensor.is_neg() else text


class TensorTexts:
    """Writes tensors; `values_text` says what is known of the values of a dense one."""

    def __init__(
        self,
        values_text: Callable[[torch.Tensor], str],
        glimpse: Callable[[torch.Tensor], Glimpse] = glimpse_of,
    ) -> None:
        self._values_text = values_text
        self._glimpse = glimpse
        self._headers: dict[tuple[torch.dtype, torch.Size], str] = {}
        # By the identity of a tensor: itself, its state, its glimpse and its text.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], object, Glimpse, str]] = {}

    def fields(self, tensor: torch.Tensor) -> str:
        """Return the fields of a tensor, from its type to whether it requires a gradient."""
        if (
            type(tensor) in TENSORS
            and not is_wrapped(tensor)
            and tensor.layout is torch.strided
            and not tensor.is_meta
        ):
            try:
                return self._dense_fields(tensor)
            except (RuntimeError, NotImplementedError, TypeError):
                pass  # it has no memory, or its values are quantized
        return self._unusual(tensor, needs_text(tensor))

    def _dense_fields(self, tensor: torch.Tensor) -> str:
        """Return the fields of a dense tensor, which are remembered.

        All in one piece: each tensor of each call comes here, and with a function for each part it took half
        as long again.
        """
        if tensor.is_inference():  # which has no version
            end = f"{needs_text(tensor)}{_layout(tensor)}"
            return f"{self._header(tensor)}, {self._values_text(tensor)}, {end}"
        # What a tensor object would not keep if it were given other values.
        state = (
            tensor._version,
            tensor.data_ptr(),
            tensor.requires_grad,
            tensor.shape,
            tensor.dtype,
            tensor.stride(),
        )
        known = self._known.get(id(tensor))
        if known is not None:
            holder, before, (read, seen), text = known
            if holder() is tensor and before == state and read(tensor) == seen:
                return text
        values = self._values_text(tensor)
        text = f"{self._header(tensor)}, {values}, {needs_text(tensor)}{_layout(tensor)}"
        self._known[id(tensor)] = weakref.ref(tensor), state, self._glimpse(tensor), text
        return text

    def forget_all(self) -> None:
        """Forget the tensors that were written before, because a call changes values without a version."""
        self._known.clear()

    def dense(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the dense tensor whose values are looked at, None where there are none."""
        kind = type(tensor)
        if tensor.is_quantized:
            return None  # its values stand in it as integers
        usual = kind is torch.Tensor or kind is torch.nn.Parameter
        if not usual or tensor.layout is not torch.strided or tensor.is_nested:
            _, found, _ = _kind_of(tensor)
            tensor = found if found is not None else torch.empty(0, device="meta")
        if is_wrapped(tensor):
            shape, tensor = tensor.shape, unwrapped(tensor)
            if tensor.shape != shape:  # `vmap` calls the function once, with all that it maps over
                return None
        if tensor.is_meta or tensor.layout is not torch.strided:
            return None
        if tensor.is_cpu and is_freed(tensor):
            return tensor.clone() if tensor._is_zerotensor() else None
        return tensor

    def saved(self, tensor: torch.Tensor, dense: torch.Tensor | None) -> torch.Tensor | None:
        """Return the tensor that is saved: a sparse one whole, of a quantized one the whole numbers."""
        kind = type(tensor)
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or tensor.is_meta:
            return dense
        if tensor.is_quantized:
            return tensor.int_repr()
        return tensor if tensor.layout is not torch.strided else dense

    def _header(self, tensor: torch.Tensor) -> str:
        key = (tensor.dtype, tensor.shape)
        header = self._headers.get(key)
        if header is None:
            header = self._headers[key] = header_text("torch.Tensor", tensor)
        return header

    def _unusual(self, tensor: torch.Tensor, needs: str) -> str:
        kind, dense, more = _kind_of(tensor)
        header = header_text(kind, tensor if dense is None else dense)
        has_own_values = tensor.layout is torch.strided and not tensor.is_quantized
        if not tensor.is_nested and (not has_own_values or is_wrapped(tensor)):
            header = header_text(kind, tensor)
        elif dense is not None and not dense.is_meta:
            more += _layout(dense)
        values = NO_STATISTICS
        if dense is not None and not dense.is_meta and dense.layout is torch.strided:
            try:
                values = self._values_text(dense)
            except (RuntimeError, NotImplementedError):
                values = NO_STATISTICS
        return f"{header}, {values}, {needs}{more}"


def header_text(kind: str, tensor: torch.Tensor) -> str:
    """Return the fields of the type, the dtype and the shape of a tensor."""
    return (
        f'"type": "{kind}", "dtype": "{tensor.dtype}",'
        f' "shape": {[_size(size) for size in tensor.shape]}'
    )


def _size(size: Any) -> int:
    """Return a size, -1 of a symbol: to ask one for its value would fix it in the program that is made."""
    return -1 if isinstance(size, torch.SymInt) else int(size)


def _kind_of(tensor: torch.Tensor) -> tuple[str, torch.Tensor | None, str]:
    """Return the name of a tensor's kind in a dump, the dense tensor in it, and further fields."""
    kind = type(tensor).__name__
    if kind == "DTensor":
        return "torch.distributed.tensor.DTensor", *_local(tensor)
    if kind == "FakeTensor":
        return _FAKE, None, ""
    if kind == "AsyncCollectiveTensor":
        if getattr(tensor, "completed", False):
            return "torch.Tensor", tensor.elem, ""  # type: ignore[attr-defined]
        return UNDER_WAY, None, ""
    if kind == "FunctionalTensor":
        return "torch.Tensor", unwrapped(tensor.elem), ""  # type: ignore[attr-defined]
    if tensor.is_nested:
        return _NESTED, tensor.values(), _nested_text(tensor)
    if tensor.layout is not torch.strided:
        return "torch.Tensor", _values_in(tensor), _sparse_text(tensor)
    if tensor.is_quantized:
        return "torch.Tensor", tensor.dequantize(), _quantized_text(tensor)
    if tensor.is_meta:
        return "torch.Tensor", None, ""
    inner = unwrapped(tensor)
    if inner.shape == tensor.shape:
        return "torch.Tensor", inner, ""
    # `vmap` calls the function once, with all that it maps over.
    return "torch.Tensor", inner, f', "vmapped": {inner.numel() // max(tensor.numel(), 1)}'


def _local(tensor: Any) -> tuple[torch.Tensor, str]:
    """Return the local part of a DTensor, which may not have arrived, and the fields of where it lies."""
    with torch.no_grad():  # else it is a view that has not arrived
        local, fields = tensor.to_local(), _placement(tensor)
    if type(local).__name__ != "AsyncCollectiveTensor":
        return local, fields
    if local.completed:
        return local.elem, fields
    return local, f'{fields}, "under_way": "{UNDER_WAY}"'


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that transforms of `torch.func` have wrapped, or a subclass holds."""
    for _ in range(_DEEPEST):
        if _is_functional is not None and _is_functional(tensor):
            _sync(tensor)  # changes wait in it
            tensor = _from_functional(tensor)
        elif is_wrapped(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        else:
            break
    return tensor.clone() if tensor._is_zerotensor() else tensor


def placements_text(placements: Iterable[Any]) -> str:
    """Return as JSON what each dimension of a mesh does with a DTensor."""
    told = []
    for placement in placements:
        if placement.is_shard():
            told.append(f'{{"Shard": {{"dim": {placement.dim}}}}}')
        elif placement.is_replicate():
            told.append('{"Replicate": {}}')
        else:
            reduce_op = quoted(str(getattr(placement, "reduce_op", "")))
            told.append(f'{{"Partial": {{"reduce_op": {reduce_op}}}}}')
    return f"[{', '.join(told)}]"


def _placement(tensor: Any) -> str:
    """Return where the local part of a DTensor lies: its mesh and what each dimension of it does."""
    mesh = tensor.device_mesh.mesh.tolist()
    return (
        f', "device_mesh": {mesh}, "placements": {placements_text(tensor.placements)},'
        f' "global_shape": {list(tensor.shape)}'
    )
