"""Running one call on torch: the tested side of PyTorch dumps, and every bench.

Comes in: a function and a `HostCall`. Goes out: a `TorchExecution`. Called by the torch backend
(in the recorded dtypes, on its device) and by the bench (widened to float64, on the CPU).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Leaf, map_leaves
from ray_precheck.frameworks.pytorch import storages
from ray_precheck.schema.dtypes import DTYPES, Array
from ray_precheck.schema.values import HostCall, HostTensor, Quantized, Symbol

_DEVICE_TEXT = re.compile(r"(cpu|cuda|npu|gpu)(:\d+)?")
# How torch says that it has no derivative by an argument: before it computes (the weight of a loss), or
# backward (the first argument of igamma).
_UNDERIVABLE = re.compile(
    r"is not differentiable with respect to argument|the derivative for '.*' is not implemented"
)
_WIDE = {"float": torch.float64, "complex": torch.complex128}


@dataclass(frozen=True, slots=True)
class TorchPlace:
    """Where and in which precision a call runs. `widen` turns floats to float64 (the bench)."""

    device: str = "cpu"
    widen: bool = False

    def dtype(self, name: str) -> torch.dtype:
        """Return torch's dtype for a canonical one, widened where asked."""
        kind = DTYPES[name].kind
        if self.widen and kind in _WIDE:
            return _WIDE[kind]
        return _of_torch(name)  # type: ignore[no-any-return]

    def to_torch(
        self, tensor: HostTensor, memory: dict[int, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return a copy of a host tensor: in-place APIs must not change the host's array.

        It has the host tensor's layout; of incoming gradients a bench has copies that are contiguous.
        `memory` holds the buffers of a call, which arguments share.
        """
        if tensor.storage is not None:
            return storages.built(tensor.storage, self._copy(tensor.data, tensor.dtype))
        layout = tensor.layout
        if tensor.lazy and not self.widen:
            return _lazily(self.to_torch(replace(tensor, lazy=""), memory), tensor.lazy)
        if layout is None or (memory is None and self.widen):
            return self._copy(tensor.data, tensor.dtype)
        buffers = {} if memory is None else memory
        buffer = buffers.get(id(layout.buffer))
        if buffer is None:
            buffer = buffers[id(layout.buffer)] = self._copy(layout.buffer, tensor.dtype)
        # For autograd no view, so that it can be a leaf and can be changed in place.
        return buffer.as_strided(tensor.shape, layout.stride, layout.offset).detach()

    def _copy(self, data: Array, dtype: str) -> torch.Tensor:
        # torch warns of arrays that may not be written to, although it copies them here.
        host = torch.from_numpy(data) if data.flags.writeable else torch.tensor(data)
        return host.to(
            device=self.device,
            dtype=self.dtype(dtype),
            copy=data.flags.writeable,
            memory_format=torch.contiguous_format,
        )

    @contextmanager
    def default_dtype(self) -> Iterator[None]:
        """Make float64 torch's default dtype where asked: for integers in, floats out. What the call itself
        sets does not stay."""
        before = torch.get_default_dtype()
        if self.widen:
            torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            if torch.get_default_dtype() is not before:
                torch.set_default_dtype(before)

    def autocast(self, dtype: str) -> AbstractContextManager[Any]:
        """Let operators compute in a dtype, as in the captured program; not where floats are widened."""
        if not dtype or self.widen:
            return nullcontext()
        kind = self.device.partition(":")[0]
        return torch.autocast(kind, dtype=self.dtype(dtype), cache_enabled=False)

    def constant(self, value: Any) -> Any:
        """Return a symbol, or a text that names a device, as torch's own object."""
        if isinstance(value, Symbol):
            if value.kind == "dtype":
                return self.dtype(value.value) if value.value in DTYPES else _of_torch(value.value)
            if value.kind == "device":
                return torch.device(self.device)
            return _of_torch(value.value)
        if isinstance(value, str) and _DEVICE_TEXT.fullmatch(value):
            return self.device
        return value


def _of_torch(name: str) -> Any:
    """Return a dtype or the like; raise `NotCheckable` where the installed torch lacks it."""
    found = getattr(torch, name, None)
    if found is None:
        raise NotCheckable(f"torch {torch.__version__} has no torch.{name}")
    return found


class TorchExecution:
    """A call that has run forward on torch; `outputs` are its flattened outputs on the host."""

    def __init__(
        self, function: Callable[..., Any], call: HostCall, plan: CallPlan, place: TorchPlace
    ) -> None:
        self._place = place
        self._plan = plan
        self._open = plan.differentiable
        self._leaves: list[torch.Tensor] = []
        self._kept: list[torch.Tensor] = []
        self._memory: dict[int, torch.Tensor] = {}
        self._seen = 0
        try:
            result = self._called(function, call)
        except RuntimeError as error:
            if not _UNDERIVABLE.search(str(error)):
                raise
            self._open = self._derivable(function, call)
            result = self._called(function, call)
        # No bound method: with a cycle, the tensors would wait for Python's collector.
        self._function, self._call = function, call
        self._results = storages.flattened(result)
        self.outputs: list[Leaf] = [_to_host(leaf) for leaf in self._results]
        self.changed = [_tensor_to_host(tensor) for tensor in self._kept]

    def _called(self, function: Callable[..., Any], call: HostCall) -> Any:
        """Call the function with new tensors, of which those at `_open` require a gradient."""
        self._leaves, self._kept, self._memory, self._seen = [], [], {}, 0
        args = map_leaves(call.args, self._argument)
        kwargs = map_leaves(call.kwargs, self._argument)
        grads = torch.set_grad_enabled(bool(self._open))
        with grads, self._place.default_dtype(), self._place.autocast(self._plan.autocast):
            result = function(*args, **kwargs)
        if result is None and self._plan.in_place:
            result = args[0]
        return kwargs.get("out") if result is None else result

    def _derivable(self, function: Callable[..., Any], call: HostCall) -> tuple[int, ...]:
        """Return the inputs by which torch can derive the function: each is tried alone."""
        found = []
        for position in self._plan.differentiable:
            self._open = (position,)
            try:
                self._called(function, call)
            except RuntimeError as error:
                if not _UNDERIVABLE.search(str(error)):
                    raise
            else:
                found.append(position)
        return tuple(found)

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, HostTensor):
            return self._place.constant(value)
        position, self._seen = self._seen, self._seen + 1
        if self._place.widen and isinstance(value.storage, Quantized):
            return storages.exact_of(value)
        tensor = self._place.to_torch(value, self._memory)
        if position in self._open:
            tensor = self._open_tensor(tensor, has_layout=value.layout is not None)
        if position in self._plan.changed:
            self._kept.append(tensor)
        return tensor

    def _open_tensor(self, tensor: torch.Tensor, *, has_layout: bool) -> torch.Tensor:
        """Return an argument with gradients. A leaf with them cannot be changed in place, and a clone may
        have another layout."""
        is_placed = self._plan.in_place and has_layout
        leaf = (tensor.clone() if is_placed else tensor).requires_grad_()
        self._leaves.append(leaf)
        if is_placed:
            return _InPlaceOf.apply(leaf, [tensor])  # type: ignore[no-any-return,no-untyped-call]
        return leaf.clone() if self._plan.in_place else leaf

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor | None]:
        """Return the gradients of the differentiable inputs, zeros where an input has no part and None
        where torch has no derivative by it."""
        outputs, incoming = self._differentiated(cotangents)
        grads = _derived(outputs, self._leaves, incoming)
        if grads is None:
            grads = self._one_by_one(cotangents)
        hosts = [None if grad is None else _tensor_to_host(grad) for grad in grads]
        by_position = dict(zip(self._open, hosts, strict=True))
        return [by_position.get(position) for position in self._plan.differentiable]

    def _one_by_one(self, cotangents: list[HostTensor | None]) -> Sequence[torch.Tensor | None]:
        """Return the gradient of each leaf, None where torch has none (the first argument of igamma).

        The graph is made anew, because the call that raised may have freed parts of it.
        """
        self._results = storages.flattened(self._called(self._function, self._call))
        outputs, incoming = self._differentiated(cotangents)
        found = (_derived(outputs, [leaf], incoming, keeps=True) for leaf in self._leaves)
        return [None if grads is None else grads[0] for grads in found]

    def node_gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor | None]:
        """Return the gradients that the autograd node of the first output passes on, as msprobe
        captures them.

        msprobe hooks the `grad_fn` of an API's first output. For a composite API that is its last
        step (a view, an AddmmBackward), so that neither number nor shapes need to be those of the
        API's arguments; the same hook on the bench's own graph gives the same list.
        """
        first = next(leaf for leaf in self._results if torch.is_tensor(leaf))
        if first.grad_fn is None:
            raise NotCheckable("the bench's output depends on no input that requires a gradient")
        seen: list[tuple[torch.Tensor | None, ...]] = []
        handle = first.grad_fn.register_hook(lambda passed_on, _: seen.append(tuple(passed_on)))
        try:
            self.gradients(cotangents)
        finally:
            handle.remove()
        if not seen:
            raise NotCheckable("torch has no derivative by one of the inputs")
        return [None if grad is None else _tensor_to_host(grad) for grad in seen[0]]

    def _differentiated(
        self, cotangents: list[HostTensor | None]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        outputs, incoming = [], []
        for leaf, cotangent in zip(self._results, cotangents, strict=True):
            if cotangent is None or not torch.is_tensor(leaf) or not leaf.requires_grad:
                continue
            arrived = self._place.to_torch(cotangent)
            # MindSpore has complex outputs where torch has real ones (abs); the record's gradient of
            # them is real.
            arrived = arrived if leaf.is_complex() or not arrived.is_complex() else arrived.real
            outputs.append(leaf)
            incoming.append(storages.in_layout_of(leaf, arrived.to(leaf.dtype)))
        if not outputs:
            raise NotCheckable("no output depends on an input that requires a gradient")
        return outputs, incoming


def _derived(
    outputs: list[torch.Tensor],
    leaves: list[torch.Tensor],
    incoming: list[torch.Tensor],
    *,
    keeps: bool = False,
) -> Sequence[torch.Tensor | None] | None:
    """Return the gradients of leaves, None where torch has no derivative by one; `keeps` keeps the graph."""
    try:
        return torch.autograd.grad(
            outputs, leaves, incoming, keeps, allow_unused=True, materialize_grads=True
        )
    except RuntimeError as error:
        if not _UNDERIVABLE.search(str(error)):
            raise
        return None


class _InPlaceOf(torch.autograd.Function):
    """Gives a tensor that has the values of a leaf, and gradients pass from it to the leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: list[torch.Tensor]) -> torch.Tensor:
        """Return the only tensor of a list, in which autograd does not see it."""
        return tensor[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Pass the gradient on."""
        return gradients[0], None


def _lazily(tensor: torch.Tensor, lazy: str) -> torch.Tensor:
    """Return a tensor with the same values, of which the memory holds the conjugates or the negatives.

    torch gives the latter for the imaginary part of a conjugate alone, and has none for half types.
    """
    if lazy == "conj":
        return tensor.conj_physical().conj() if tensor.is_complex() else tensor
    if tensor.dtype not in (torch.float32, torch.float64):
        return tensor
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


def _to_host(leaf: Any) -> Leaf:
    if isinstance(leaf, storages.Exact):
        return leaf.host()
    return _tensor_to_host(leaf) if torch.is_tensor(leaf) else leaf


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor_to_host(tensor: torch.Tensor) -> HostTensor:
    """Return a tensor's values on the host; raises the pending error of an asynchronous device."""
    values, storage = storages.taken_apart(tensor.detach())
    if values._is_zerotensor():  # the gradient of sgn; it has no memory, and numpy() refuses it
        values = values.clone()
    name = _name_of(values.dtype)
    if name not in DTYPES:
        raise NotCheckable(f"an output of dtype {values.dtype} cannot be compared")
    if DTYPES[name].carrier != name:
        values = values.to(torch.float32)
    data = np.asarray(values.cpu().resolve_conj().resolve_neg().numpy())
    return HostTensor(name, data, storage=storage)
