"""Running one call on MSAdapter, whose tensors are MindSpore's.

Comes in: a function and a `HostCall`. Goes out: a `MindTorchExecution`. Called by `mindtorch_device`
in the process in which MSAdapter is `torch`. Gradients come from MindSpore's `vjp`, in which one
forward pass serves both checks, so that nothing depends on how MSAdapter does its own autograd.
"""

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np

from ray_precheck.backends.base import CallPlan, Leaf, flatten_outputs, map_leaves
from ray_precheck.backends.mindtorch_denormals import flushed_denormals
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.dtypes import DTYPES, canonical_dtype, is_differentiable
from ray_precheck.schema.values import HostCall, HostTensor, Symbol

torch: Any = importlib.import_module("torch")
_DEVICE_TEXT = re.compile(r"(cpu|cuda|npu|gpu)(:\d+)?")
_PLAIN = (bool, int, float, complex, str, type(None))


class MindTorchExecution:
    """A call that has run forward; `outputs` are its flattened outputs on the host."""

    def __init__(
        self, function: Callable[..., Any], call: HostCall, plan: CallPlan, device: str
    ) -> None:
        self._function = function
        self._call = call
        self._plan = plan
        self._device = device
        self._tensors: list[Any] = []
        self._results: list[Any] = []
        self._pull_back: Callable[..., Any] | None = None
        map_leaves((call.args, call.kwargs), self._collect)
        leaves = [self._tensors[i] for i in plan.differentiable]
        with flushed_denormals():
            if leaves:
                _, self._pull_back = ms.vjp(self._run_leaves, *leaves)
            else:
                self._results = self._run(self._tensors)
            self.outputs: list[Leaf] = [_to_host(leaf) for leaf in self._results]

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor]:
        """Return the gradients of the differentiable inputs; None stands for zero cotangents."""
        incoming = [
            _cotangent(cotangent, leaf)
            for leaf, cotangent in zip(self._results, cotangents, strict=True)
            if _is_differentiable(leaf)
        ]
        if not incoming or self._pull_back is None:
            raise NotCheckable("no output depends on an input that requires a gradient")
        # The pull-back refers to this object: without this, the tensors of the record would stay
        # until Python looks for cycles.
        pull_back, self._pull_back = self._pull_back, None
        with flushed_denormals():
            grads = pull_back(tuple(incoming))
            grads = grads if isinstance(grads, tuple | list) else (grads,)
            return [_tensor_to_host(grad) for grad in grads]

    def _collect(self, value: Any) -> Any:
        if isinstance(value, HostTensor):
            self._tensors.append(_to_device(value))
        return value

    def _run_leaves(self, *leaves: Any) -> Any:
        tensors = list(self._tensors)
        for position, leaf in zip(self._plan.differentiable, leaves, strict=True):
            # An input of vjp cannot be changed in place; multiplying by 1 copies it.
            tensors[position] = leaf * 1 if self._plan.in_place else leaf
        self._results = self._run(tensors)
        return tuple(leaf for leaf in self._results if _is_differentiable(leaf))

    def _run(self, tensors: list[Any]) -> list[Any]:
        supply = iter(tensors)

        def argument(value: Any) -> Any:
            return next(supply) if isinstance(value, HostTensor) else self._constant(value)

        args, kwargs = map_leaves((self._call.args, self._call.kwargs), argument)
        result = self._function(*args, **kwargs)
        if result is None and self._plan.in_place:
            result = args[0]
        return flatten_outputs(result, _is_tensor)

    def _constant(self, value: Any) -> Any:
        """Return a symbol, or a text that names a device, as MSAdapter's own object."""
        if isinstance(value, str) and _DEVICE_TEXT.fullmatch(value):
            return self._device
        if not isinstance(value, Symbol):
            return value
        if value.kind == "device":
            return self._device
        found = getattr(torch, value.value, None)
        if found is None:
            raise NotCheckable(f"MSAdapter has no {value.kind} {value.value}")
        return found


def with_tuples(value: Any) -> Any:
    """Return arguments with tuples for lists of whole numbers.

    A dump writes both alike. torch takes either, but for an index; MindSpore's primitives below
    MSAdapter take shapes, paddings and dims as tuples alone.
    """
    if isinstance(value, dict):
        return {key: with_tuples(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(with_tuples(item) for item in value)
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    return [with_tuples(item) for item in value] if isinstance(value, list) else value


def _to_device(tensor: HostTensor) -> Any:
    dtype = getattr(torch, tensor.dtype, None)
    if dtype is None:
        raise NotCheckable(f"MSAdapter has no dtype {tensor.dtype}")
    made = torch.from_numpy(np.ascontiguousarray(tensor.data).reshape(tensor.data.shape))
    return made if DTYPES[tensor.dtype].carrier == tensor.dtype else made.to(dtype)


def _cotangent(cotangent: HostTensor | None, leaf: Any) -> Any:
    if cotangent is not None:
        return _to_device(cotangent)
    return ms.Tensor(np.zeros(leaf.shape, dtype=np.float32), dtype=leaf.dtype)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, ms.Tensor)


def _is_differentiable(leaf: Any) -> bool:
    name = canonical_dtype(str(leaf.dtype)) if _is_tensor(leaf) else None
    return name is not None and is_differentiable(name)


def _to_host(leaf: Any) -> Leaf:
    return _tensor_to_host(leaf) if _is_tensor(leaf) else _plain(leaf)


def _plain(leaf: Any) -> Leaf:
    """Return a leaf that is no tensor as a Python value: nothing of MSAdapter leaves its process."""
    if isinstance(leaf, np.generic):
        return leaf.item()
    if isinstance(leaf, list | tuple):
        return [_plain(item) for item in leaf]
    if type(leaf) in _PLAIN:
        return leaf
    raise NotCheckable(f"an output of type {type(leaf).__name__} cannot be compared")


def _tensor_to_host(tensor: Any) -> HostTensor:
    """Return a tensor's values on the host; raises what an asynchronous device still has to raise."""
    name = canonical_dtype(str(tensor.dtype))
    if name is None:
        raise NotCheckable(f"an output of dtype {tensor.dtype} cannot be compared")
    if DTYPES[name].carrier != name:
        # MindSpore's own cast: MSAdapter's methods may want what a gradient of vjp has not.
        tensor = ms.ops.cast(tensor, ms.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return HostTensor(name, np.array(tensor.asnumpy()))
