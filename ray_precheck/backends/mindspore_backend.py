"""MindSpore under test, on the CPU or an Ascend NPU.

NPU: written after MindSpore's documentation and not run there; no NPU was at hand.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import attrgetter
from types import FunctionType
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import mint, ops
from mindspore.graph.api import _pynative_executor

from ray_precheck.backends.base import CallPlan, Execution, Leaf, flatten_outputs, map_leaves
from ray_precheck.backends.denied import denial
from ray_precheck.backends.torch_denormals import flushed_denormals
from ray_precheck.errors import DeviceError, NotCheckable
from ray_precheck.schema.dtypes import DTYPES, canonical_dtype
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor, Symbol

_ROOTS: dict[str, Any] = {
    "Mint": mint,
    "MintFunctional": mint.nn.functional,
    "Tensor": ms.Tensor,
    "Functional": ops,
}
_FUNCTION_TYPES = (FunctionType, ops.Primitive, ops.MultitypeFuncGraph)
# Where operators are that mindspore.ops does not export (mindspore.ops.auto_generate).
_ALSO = {"Functional": ops.auto_generate}
_SUBMODULES = {"Mint": ("", "linalg", "special", "nn.functional")}
_NO_KERNEL = (
    "only supports Ascend",
    "Create kernelmod for op",
    "Not implement exception",
    "is not supported on this device",
    "not support for complex type",
    "unregistered",
    "Unsupported op [",
    "Select CPU operator",
    "Select CPU kernel",
    "not support on CPU",
    "Not found op",
    "should not come here for",
    "There is no branch to go",
    "support Ascend only",
)


class MindSporeBackend:
    """MindSpore on one device; the process sees only this one, so it is number 0."""

    framework = "mindspore"

    def __init__(self, kind: str) -> None:
        # Errors are asynchronous by default: a missing kernel can be reported by the next, valid op.
        ms.runtime.launch_blocking()
        ms.set_context(mode=ms.PYNATIVE_MODE)
        ms.set_device("Ascend" if kind == "npu" else "CPU")
        self._kind = kind
        self._arithmetic = flushed_denormals if kind == "cpu" else nullcontext

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return MindSpore's function for an API of the dump."""
        if name.prefix not in _ROOTS:
            known = ", ".join(_ROOTS)
            raise NotCheckable(
                f"prefix {name.prefix} is not supported for MindSpore (supported: {known})"
            )
        reason = denial(name.api)
        if reason:
            raise NotCheckable(f"{name.type_name} is refused: {reason}")
        function = _lookup(name)
        if function is None:
            raise NotCheckable(
                f"{name.type_name} is not an operator of MindSpore {ms.__version__} that may be called"
            )
        return function

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Execution:
        """Run the API in the recorded dtypes on this device.

        A dump has a tuple as a list, and some functions (permute, normal) take no list: where lists
        fail, tuples are tried. After a failure MindSpore wants a new pull-back.
        """
        try:
            return _MindSporeExecution(function, call, plan, self._arithmetic)
        except (TypeError, ValueError, RuntimeError):
            if not any(isinstance(value, list) for value in (*call.args, *call.kwargs.values())):
                raise
        return _MindSporeExecution(function, _with_tuples(call), plan, self._arithmetic)

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether the CPU has no kernel; on an NPU that is a finding, not a gap."""
        return self._kind == "cpu" and any(text in str(error) for text in _NO_KERNEL)

    def seed(self, seed: int) -> None:
        """Seed the generators of `mindspore.ops` and those of `mindspore.mint`."""
        ms.set_seed(seed)
        ms.manual_seed(seed)

    def prove(self) -> None:
        """Compute 1 + 1 on the device; reading the sum waits for it."""
        one = ms.Tensor(np.ones(8, dtype=np.float32))
        total = mint.add(one, one).asnumpy().tolist()
        if total != [2.0] * 8:
            raise DeviceError(f"{self._kind} computes 1 + 1 = {total[0]:g}")


def _with_tuples(call: HostCall) -> HostCall:
    kwargs = {key: _as_tuple(value) for key, value in call.kwargs.items()}
    return HostCall(tuple(map(_as_tuple, call.args)), kwargs)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _lookup(name: ApiName) -> Callable[..., Any] | None:
    """Return an operator, None for any other name: a dump's names may not lead anywhere else.

    Only a few submodules are entered by name, and what is found must be a function that MindSpore
    itself defines, or a method that its Tensor defines.
    """
    module, _, last = name.api.rpartition(".")
    if module not in _SUBMODULES.get(name.prefix, ("",)):
        return None
    root = attrgetter(module)(_ROOTS[name.prefix]) if module else _ROOTS[name.prefix]
    if name.prefix == "Tensor":
        own_classes = ms.Tensor.__mro__[:-1]
        return getattr(root, last) if any(last in vars(c) for c in own_classes) else None
    found = getattr(root, last, None)
    if found is None and not module:
        found = getattr(_ALSO.get(name.prefix), last, None)
    if last.startswith("_") or not isinstance(found, _FUNCTION_TYPES):
        return None
    home = getattr(found, "__module__", None) or ""
    return found if home.split(".")[0] in ("mindspore", "_c_expression") else None


class _MindSporeExecution:
    """A call that has run forward on MindSpore; one forward pass serves both checks (`ms.vjp`)."""

    def __init__(
        self,
        function: Callable[..., Any],
        call: HostCall,
        plan: CallPlan,
        arithmetic: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._function = function
        self._call = call
        self._plan = plan
        self._arithmetic = arithmetic
        self._tensors = _collect_tensors(call)
        self._pull_back: Callable[..., Any] | None = None
        self._results: list[Any] = []
        leaves = [self._tensors[i] for i in plan.differentiable]
        with arithmetic():
            if leaves:
                with _ending_recording():
                    _, self._pull_back = ms.vjp(self._run_leaves, *leaves)
            else:
                self._results = self._run(self._tensors)
            self.outputs: list[Leaf] = [_to_host(leaf) for leaf in self._results]

    def _run_leaves(self, *leaves: ms.Tensor) -> Any:
        tensors = list(self._tensors)
        for position, leaf in zip(self._plan.differentiable, leaves, strict=True):
            # An input of vjp cannot be changed in place; multiplying by 1 copies it, but for the
            # denormals that are flushed anyway (Tensor.clone has no kernel on the CPU).
            tensors[position] = leaf * 1 if self._plan.in_place else leaf
        self._results = self._run(tensors)
        return tuple(leaf for leaf in self._results if _is_differentiable(leaf))

    def _run(self, tensors: list[ms.Tensor]) -> list[Any]:
        supply = iter(tensors)

        def argument(value: Any) -> Any:
            return next(supply) if isinstance(value, HostTensor) else _constant(value)

        args = map_leaves(self._call.args, argument)
        kwargs = map_leaves(self._call.kwargs, argument)
        result = self._function(*args, **kwargs)
        if result is None and self._plan.in_place:
            result = args[0]
        return flatten_outputs(result, _is_tensor)

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
        with self._arithmetic(), _ending_recording():
            grads = pull_back(tuple(incoming))
            grads = grads if isinstance(grads, tuple | list) else (grads,)
            return [_tensor_to_host(grad) for grad in grads]


@contextmanager
def _ending_recording() -> Iterator[None]:
    """End what MindSpore records for gradients where it raises: it goes on recording by itself, and
    then operators of later calls fail, although 1 + 1 is 2.
    """
    with ExitStack() as failed:
        failed.callback(_pynative_executor.clear_res)
        yield
        failed.pop_all()


def _collect_tensors(call: HostCall) -> list[ms.Tensor]:
    """Return every tensor of the call on the device, in call order."""
    found: list[ms.Tensor] = []

    def collect(value: Any) -> Any:
        if isinstance(value, HostTensor):
            found.append(_to_mindspore(value))
        return value

    map_leaves(call.args, collect)
    map_leaves(call.kwargs, collect)
    return found


def _to_mindspore(tensor: HostTensor) -> ms.Tensor:
    if DTYPES[tensor.dtype].carrier != tensor.dtype:
        return ms.Tensor(tensor.data, dtype=_dtype(tensor.dtype))
    return ms.Tensor(tensor.data)


def _dtype(name: str) -> Any:
    dtype = getattr(ms, "bool_" if name == "bool" else name, None)
    if dtype is None:
        raise NotCheckable(f"MindSpore {ms.__version__} has no dtype {name}")
    return dtype


def _constant(value: Any) -> Any:
    if not isinstance(value, Symbol):
        return value
    if value.kind == "dtype":
        return _dtype(value.value)
    raise NotCheckable(f"a {value.kind} ({value.value}) is no argument of MindSpore")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, ms.Tensor)


def _is_differentiable(leaf: Any) -> bool:
    if not _is_tensor(leaf):
        return False
    name = canonical_dtype(str(leaf.dtype))
    return name is not None and DTYPES[name].kind in ("float", "complex")


def _cotangent(cotangent: HostTensor | None, leaf: ms.Tensor) -> ms.Tensor:
    if cotangent is not None:
        return _to_mindspore(cotangent)
    zeros = np.zeros(leaf.shape, dtype=np.float32)
    return ms.Tensor(zeros, dtype=leaf.dtype)


def _to_host(leaf: Any) -> Leaf:
    return _tensor_to_host(leaf) if _is_tensor(leaf) else leaf


def _tensor_to_host(tensor: ms.Tensor) -> HostTensor:
    """Return a tensor's values on the host; raises what an asynchronous device still has to raise."""
    name = canonical_dtype(str(tensor.dtype))
    if name is None:
        raise NotCheckable(f"an output of dtype {tensor.dtype} cannot be compared")
    if DTYPES[name].carrier != name:
        tensor = tensor.astype(ms.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return HostTensor(name, np.asarray(tensor.asnumpy()))
