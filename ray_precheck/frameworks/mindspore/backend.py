"""MindSpore under test, on the CPU or an Ascend NPU.

NPU: written after MindSpore's documentation and not run there; no NPU was at hand. ../ASCEND.md says which
of its releases have what is used here.

`MINDSPORE_SWITCHES` are its switches between fast kernels and slow, plain ones, loaded through the
descriptor. HF32 has no switch there: a process can set it once only, and the backend has set it. `jit_level`
changes graphs alone, and calls run in PyNative mode.
"""

from collections.abc import Callable
from contextlib import nullcontext
from operator import attrgetter
from types import FunctionType
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import mint, ops

from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import CallPlan, Execution, require_answer
from ray_precheck.frameworks.hf32 import differs, mindspore_compute_in
from ray_precheck.frameworks.mindspore.descriptor import FRAMEWORK
from ray_precheck.frameworks.mindspore.run import (
    MindSporeExecution,
    MindSporeFace,
    require_no_open_recording,
)
from ray_precheck.frameworks.pytorch.denormals import flushed_denormals
from ray_precheck.frameworks.switches import KernelSwitch
from ray_precheck.operators.refused import require_allowed
from ray_precheck.schema.dtypes import DTYPES, Float32
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
# Where primitives are that mindspore.ops does not export: Cells of mindspore.nn call them.
_HOMES_OF_PRIMITIVES = ("nn_ops", "_inner_ops", "math_ops", "array_ops", "_rl_inner_ops")
# The modules of operators that compute: others hold what loads a library (Custom), calls a Python function,
# prints, writes a file, or talks to other ranks.
_OPERATOR_MODULES = frozenset(
    f"mindspore.ops.{name}"
    for name in (
        "auto_generate.gen_ops_prim",
        "operations._inner_ops",
        "operations._rl_inner_ops",
        "operations.array_ops",
        "operations.image_ops",
        "operations.linalg_ops",
        "operations.manually_defined.ops_def",
        "operations.math_ops",
        "operations.nn_ops",
        "operations.random_ops",
    )
)
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
        self.caveat = ""
        # Set once the program's formats are known, because a process can set them once.
        self._float32: tuple[Float32, Float32] | None = None
        arithmetic = flushed_denormals if kind == "cpu" else nullcontext
        self._face = MindSporeFace(_to_mindspore, _constant, lambda leaf: leaf, arithmetic)

    def compute_in(self, wanted: Float32) -> Float32:
        """Let an NPU use HF32 where the program did, and nowhere else; return where it does."""
        if self._float32 is None or self._float32[0] != wanted:
            found = Float32()
            if self._kind == "npu":
                found, self.caveat = mindspore_compute_in(ms, wanted)
            elif wanted:
                self.caveat = differs(wanted, "CPU", found)
            self._float32 = wanted, found
        return self._float32[1]

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return MindSpore's function for an API of the dump."""
        if name.prefix not in FRAMEWORK.prefixes:
            known = ", ".join(FRAMEWORK.prefixes)
            raise NotCheckable(
                f"prefix {name.prefix} is not supported for MindSpore (supported: {known})"
            )
        require_allowed(name, "mindspore")
        function = _primitive(name.api) if name.prefix == "Primitive" else _lookup(name)
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
            return MindSporeExecution(function, call, plan, self._face)
        except (TypeError, ValueError, RuntimeError):
            if not any(isinstance(value, list) for value in (*call.args, *call.kwargs.values())):
                raise
        return MindSporeExecution(function, _with_tuples(call), plan, self._face)

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether the CPU has no kernel; on an NPU that is a finding, not a gap."""
        return self._kind == "cpu" and any(text in str(error) for text in _NO_KERNEL)

    def seed(self, seed: int) -> None:
        """Seed the generators of `mindspore.ops` and those of `mindspore.mint`."""
        ms.set_seed(seed)
        ms.manual_seed(seed)

    def prove(self) -> None:
        """Compute 1 + 1 on the device; reading the sum waits for it."""
        require_no_open_recording()
        one = ms.Tensor(np.ones(8, dtype=np.float32))
        require_answer(mint.add(one, one).asnumpy(), self._kind)


def _with_tuples(call: HostCall) -> HostCall:
    kwargs = {key: _as_tuple(value) for key, value in call.kwargs.items()}
    return HostCall(tuple(map(_as_tuple, call.args)), kwargs)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _lookup(name: ApiName) -> Callable[..., Any] | None:
    """Return an operator by its name, None for all other names, because a dump may hold any name.

    Only a few submodules are entered, and the object found there must be a function that MindSpore
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


def _primitive(name: str) -> Callable[..., Any] | None:
    """Return a function that makes a primitive from keyword arguments and calls it; None for other names.

    Found are MindSpore's own classes of operators, and what its functions call without a primitive.
    """
    homes = (ops, ops.operations, *map(_operations, _HOMES_OF_PRIMITIVES), ops.auto_generate)
    found = next((vars(home)[name] for home in homes if name in vars(home)), None)
    if name.endswith("_impl"):
        return found if callable(found) else None
    if not isinstance(found, type) or not issubclass(found, ops.Primitive):
        return None
    if found.__module__ not in _OPERATOR_MODULES:
        return None
    kind = found

    def call(*args: Any, **attributes: Any) -> Any:
        # A dump has a tuple as a list.
        return kind(**{key: _as_tuple(value) for key, value in attributes.items()})(*args)

    return call


def _operations(name: str) -> Any:
    return getattr(ops.operations, name, ops)


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


def _read() -> str:
    return str(ms.get_context("deterministic"))


def _write(value: str) -> None:
    # Its newer name, a function of its own, can be called once only in a process.
    ms.set_context(deterministic=value)


MINDSPORE_SWITCHES = (
    KernelSwitch(
        name="deterministic",
        title="kernels whose order of operations is free",
        advice='mindspore.set_context(deterministic="ON")',
        read=_read,
        write=_write,
        plain="ON",
    ),
)
