"""Runs one call on MindSpore: for MindSpore itself, and for MSAdapter, whose tensors are
MindSpore's.

Comes in: a function, a `HostCall` and a `MindSporeFace`. Goes out: a `MindSporeExecution`. Called by
`mindspore_backend`, and by `mindtorch_device` in the process in which MSAdapter is `torch`. Gradients
come from MindSpore's `vjp`, in which one forward pass serves both checks, so that
nothing depends on how MSAdapter does its own autograd.

`mindspore.vjp` of older versions (2.5 and 2.7, not 2.10) runs the function once for its outputs and once
more for its gradients: a random function then draws other numbers, and its gradients are not those of its
outputs. There MindSpore's executor records the only run, as 2.10 does.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from weakref import WeakMethod

import mindspore as ms
import numpy as np

from ray_precheck import private_parts
from ray_precheck.errors import DeviceError, NotCheckable
from ray_precheck.frameworks.base import CallPlan, Leaf, flatten_outputs, map_leaves
from ray_precheck.schema.dtypes import DTYPES, canonical_dtype, is_differentiable
from ray_precheck.schema.values import HostCall, HostTensor

# Not empty where a recording of this process goes on for good.
_left_open: list[bool] = []


@dataclass(frozen=True, slots=True)
class MindSporeFace:
    """How values go to and from the functions that are called: MindSpore's, or MSAdapter's.

    `to_device` makes the tensor of a host tensor, `constant` the argument for every other value,
    `plain` the output leaf for values that are no tensors. `arithmetic` is entered wherever
    MindSpore computes.
    """

    to_device: Callable[[HostTensor], ms.Tensor]
    constant: Callable[[Any], Any]
    plain: Callable[[Any], Leaf]
    arithmetic: Callable[[], AbstractContextManager[None]]


class MindSporeExecution:
    """A call that has run forward; `outputs` are its flattened outputs on the host."""

    def __init__(
        self, function: Callable[..., Any], call: HostCall, plan: CallPlan, face: MindSporeFace
    ) -> None:
        self._function = function
        self._call = call
        self._plan = plan
        self._face = face
        self._tensors: list[ms.Tensor] = []
        self._memory: dict[int, ms.Tensor] = {}
        self._results: list[Any] = []
        self._kept: list[ms.Tensor] = []
        self._pull_back: Callable[..., Any] | None = None
        map_leaves((call.args, call.kwargs), self._collect)
        leaves = [self._tensors[i] for i in plan.differentiable]
        with face.arithmetic():
            if leaves:
                with _ending_recording():
                    _, self._pull_back = vjp(_weak(self._run_leaves), *leaves)
            else:
                self._results = self._run(self._tensors)
            self.outputs: list[Leaf] = [self._to_host(leaf) for leaf in self._results]
            self.changed = [_tensor_to_host(tensor) for tensor in self._kept]

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor | None]:
        """Return the gradients of the differentiable inputs; None stands for zero cotangents."""
        incoming = [
            self._cotangent(cotangent, leaf)
            for leaf, cotangent in zip(self._results, cotangents, strict=True)
            if _is_differentiable(leaf)
        ]
        if not incoming or self._pull_back is None:
            raise NotCheckable("no output depends on an input that requires a gradient")
        # The pull-back refers to this object: without this, the tensors of the record would stay
        # until Python looks for cycles.
        pull_back, self._pull_back = self._pull_back, None
        results = self._results
        with self._face.arithmetic(), _ending_recording():
            grads = pull_back(tuple(incoming))
            if self._results is not results:
                _require_same(results, self._results)
            grads = grads if isinstance(grads, tuple | list) else (grads,)
            return [_tensor_to_host(grad) for grad in grads]

    def _collect(self, value: Any) -> Any:
        if isinstance(value, HostTensor):
            self._tensors.append(self._placed(value))
        return value

    def _placed(self, tensor: HostTensor) -> ms.Tensor:
        """Return a tensor of the device with its layout, where this MindSpore has tensors with one."""
        layout = tensor.layout
        as_strided = private_parts.find(private_parts.MINDSPORE_STRIDES) if layout else None
        if layout is None or as_strided is None:
            return self._face.to_device(tensor)
        key = id(layout.buffer)
        if key not in self._memory:
            self._memory[key] = self._face.to_device(HostTensor(tensor.dtype, layout.buffer))
        found: ms.Tensor = as_strided(self._memory[key], tensor.shape, layout.stride, layout.offset)
        return found

    def _run_leaves(self, *leaves: ms.Tensor) -> Any:
        tensors = list(self._tensors)
        for position, leaf in zip(self._plan.differentiable, leaves, strict=True):
            tensors[position] = _copy(leaf) if self._plan.in_place else leaf
        self._results = self._run(tensors)
        return tuple(leaf for leaf in self._results if _is_differentiable(leaf))

    def _run(self, tensors: list[ms.Tensor]) -> list[Any]:
        self._kept = [tensors[position] for position in self._plan.changed]
        supply = iter(self._cast(tensors))

        def argument(value: Any) -> Any:
            return next(supply) if isinstance(value, HostTensor) else self._face.constant(value)

        args, kwargs = map_leaves((self._call.args, self._call.kwargs), argument)
        result = self._function(*args, **kwargs)
        if result is None and self._plan.in_place:
            result = args[0]
        return flatten_outputs(result, _is_tensor)

    def _cast(self, tensors: list[ms.Tensor]) -> list[ms.Tensor]:
        """Cast what MindSpore cast for the call: all floats, but for what the call writes into."""
        if not self._plan.autocast:
            return tensors
        dtype = getattr(ms, self._plan.autocast)
        return [
            ms.ops.cast(tensor, dtype)
            if tensor.is_floating_point() and position not in self._plan.uncast
            else tensor
            for position, tensor in enumerate(tensors)
        ]

    def _cotangent(self, cotangent: HostTensor | None, leaf: ms.Tensor) -> ms.Tensor:
        if cotangent is not None:
            return self._placed(cotangent)
        return ms.Tensor(np.zeros(leaf.shape, dtype=np.float32), dtype=leaf.dtype)

    def _to_host(self, leaf: Any) -> Leaf:
        return _tensor_to_host(leaf) if _is_tensor(leaf) else self._face.plain(leaf)


def _copy(leaf: ms.Tensor) -> ms.Tensor:
    """Return a copy of an input of vjp, which cannot be changed in place, with its order of dimensions.

    Multiplying by 1 copies it, but for the denormals that are flushed anyway (Tensor.clone has no kernel on
    the CPU).
    """
    order = sorted(range(leaf.ndim), key=lambda axis: -leaf.stride()[axis])
    if order == list(range(leaf.ndim)):
        return leaf * 1
    back = tuple(order.index(axis) for axis in range(leaf.ndim))
    return ms.mint.permute(ms.mint.permute(leaf, tuple(order)) * 1, back)


def _weak(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method and does not keep its object.

    GradOperation of MindSpore 2.8 and older keeps the function that it differentiates in a cycle,
    and the tensors of a record must not wait until Python looks for cycles.
    """
    held = WeakMethod(method)

    def called(*leaves: Any) -> Any:
        alive = held()
        assert alive is not None, "a gradient is asked for while its execution is there"
        return alive(*leaves)

    return called


@contextmanager
def _ending_recording() -> Iterator[None]:
    """End MindSpore's recording for gradients after it raised: it goes on recording by itself, and
    then operators of later calls fail, although 1 + 1 is 2.
    """
    with ExitStack() as failed:
        failed.callback(_end_recording)
        yield
        failed.pop_all()


def _end_recording() -> None:
    # No public call ends it: another vjp or grad, which were tried, leave it as it is.
    executor = private_parts.find(private_parts.MINDSPORE_EXECUTOR)
    if executor is None:
        _left_open.append(True)
    else:
        executor.clear_res()


def require_no_open_recording() -> None:
    """Require that no recording for gradients goes on in this process.

    Raises:
        DeviceError: an operator raised while it was recorded, and this MindSpore cannot end that.
    """
    if _left_open:
        raise DeviceError("this MindSpore cannot end the recording for gradients of what raised")


def _require_same(results: list[Any], again: list[Any]) -> None:
    """Require that a function that ran once more for its gradients gave the same outputs.

    Raises:
        NotCheckable: it did not; its gradients are not those of the outputs that are checked.
    """
    for one, other in zip(results, again, strict=True):
        if _is_tensor(one) and not np.array_equal(
            _tensor_to_host(one).data, _tensor_to_host(other).data, equal_nan=True
        ):
            raise NotCheckable(
                f"MindSpore {ms.__version__} runs a function anew for its gradients, and it gave other"
                " outputs then"
            )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, ms.Tensor)


def _is_differentiable(leaf: Any) -> bool:
    name = canonical_dtype(str(leaf.dtype)) if _is_tensor(leaf) else None
    return name is not None and is_differentiable(name)


def _tensor_to_host(tensor: ms.Tensor) -> HostTensor:
    """Return a tensor's values on the host; raises the pending error of an asynchronous device."""
    name = canonical_dtype(str(tensor.dtype))
    if name is None:
        raise NotCheckable(f"an output of dtype {tensor.dtype} cannot be compared")
    if DTYPES[name].carrier != name:
        # MindSpore's own cast, because MSAdapter's methods may need attributes that a gradient of
        # vjp lacks.
        tensor = ms.ops.cast(tensor, ms.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return HostTensor(name, np.asarray(tensor.asnumpy()))


def vjp(function: Callable[..., Any], *inputs: ms.Tensor) -> tuple[Any, Callable[..., Any]]:
    """Run a function that returns a tuple of tensors; return them and their pull-back.

    The pull-back takes a tuple with a cotangent for each output and returns the gradient of each input;
    it may be called once. On a version whose `vjp` runs the function twice, and which lacks the executor,
    it runs the function again.
    """
    executor = None if _runs_once() else private_parts.find(private_parts.MINDSPORE_RECORDER)
    if executor is None:
        outputs, pull_back = ms.vjp(function, *inputs)
        return outputs, pull_back
    executor.set_grad_flag(True)
    executor.new_graph(function, *inputs)
    outputs = function(*inputs)
    executor.end_graph(function, outputs, *inputs)
    return outputs, partial(_pulled_back, function, inputs)


def _pulled_back(
    function: Callable[..., Any], inputs: tuple[ms.Tensor, ...], cotangents: tuple[ms.Tensor, ...]
) -> Any:
    """Return the gradients. The executor knows the function and its inputs, and does not run it again."""
    return ms.ops.GradOperation(get_all=True, sens_param=True)(function)(*inputs, cotangents)


@cache
def _runs_once() -> bool:
    """Return whether `mindspore.vjp` runs the function once, by a trial."""
    runs: list[None] = []

    def doubled(value: ms.Tensor) -> ms.Tensor:
        runs.append(None)
        return value + value

    one = ms.Tensor(np.ones(1, np.float32))
    _, pull_back = ms.vjp(doubled, one)
    pull_back(one)
    return len(runs) == 1
