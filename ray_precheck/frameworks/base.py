"""The protocol of a framework under test: `Backend`, how one is opened, and helpers that every backend needs.

Called by `check`. A check process opens a backend once; then for each call `resolve` finds the API,
`forward` runs it, and the returned `Execution` has outputs and gradients as host arrays. A framework is
imported on demand; where it is missing, the error says how to install it.
"""

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ray_precheck.descriptors.descriptor import (
    BENCH_PACKAGE,
    Framework,
    built_in_frameworks,
    find_framework,
    framework_names,
    is_framework,
    load_part,
)
from ray_precheck.errors import BackendMissingError, DeviceError
from ray_precheck.schema.dtypes import Float32
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

# An output leaf: a tensor, or a Python value that is compared by equality.
Leaf = HostTensor | Any
_SEQUENCES = (list, tuple)


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How device and bench run a call.

    `differentiable` are the tensors whose gradients are compared, by their positions among all input
    tensors in order; empty where backward is not checked. `in_place`: the API changes its first
    argument. `autocast`: the dtype in which PyTorch's autocast lets the device compute, "" without it; the
    bench gets inputs that are cast already. `changed` are further tensors that the call may change, by
    their positions, in order. `reads_layout`: the API's results depend on how its inputs lie in memory, so
    that the bench gets them with their layouts. `uncast` are the tensors that keep their dtype where
    MindSpore casts the others to that of `autocast`: what the call writes into.
    """

    differentiable: tuple[int, ...] = ()
    in_place: bool = False
    autocast: str = ""
    changed: tuple[int, ...] = ()
    reads_layout: bool = False
    uncast: tuple[int, ...] = ()


class Execution(Protocol):
    """A call that has run forward; see `changed_by` for an attribute that it may have, too."""

    outputs: list[Leaf]

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor | None]:
        """Return the gradients of the differentiable inputs, None for an input with respect to which the
        framework has no derivative of this operator.

        `cotangents` are the incoming gradients, one for each output; None stands for zeros.
        """


def changed_by(execution: Execution) -> tuple[HostTensor, ...]:
    """Return the tensors of `CallPlan.changed` as the call left them, `execution.changed`; () if the backend
    does not tell."""
    return tuple(getattr(execution, "changed", ()))


class Backend(Protocol):
    """A framework on one device."""

    framework: str

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return the API's function.

        Raises:
            NotCheckable: the framework has no such API, or it may not be called.
        """

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Execution:
        """Run the API forward; its exceptions are not caught."""

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether an exception means that the device has no kernel for the API or its dtype."""

    def prove(self) -> None:
        """Compute 1 + 1 on the device; raise any exception if the device does not answer.

        A wrong sum is no reason to raise: the run has to report that the device's `add` is wrong.
        """


@runtime_checkable
class Precise(Protocol):
    """A backend that can round the operands of float32 products as the program's device did."""

    def compute_in(self, wanted: Float32) -> Float32:
        """Set the formats; return those that the device has. `caveat` says where they are others."""


def require_answer(answer: Any, place: str) -> None:
    """Require that the answer of a device to 1 + 1 is an array of 8 float32 elements.

    Raises:
        DeviceError: the answer has another shape or dtype; the text names the device (`place`).
    """
    shape, dtype = getattr(answer, "shape", None), getattr(answer, "dtype", None)
    if shape != (8,) or str(dtype) != "float32":
        raise DeviceError(
            f"{place} answers 1 + 1 of 8 float32 elements with shape {shape} and dtype {dtype}"
        )


def flatten_outputs(value: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """Return the leaves of an API's return value.

    A sequence or dict without a tensor inside is one leaf, such as a `torch.Size`.
    """
    if isinstance(value, dict):
        children: Iterable[Any] = list(value.values())
    elif isinstance(value, list | tuple):
        children = value
    else:
        return [value]
    leaves = [leaf for child in children for leaf in flatten_outputs(child, is_tensor)]
    return leaves if any(is_tensor(leaf) for leaf in leaves) else [value]


def map_leaves(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return nested lists, tuples and dicts with every leaf converted, tensors in call order."""
    # A union is made anew each time that it is written in a function.
    if isinstance(value, _SEQUENCES):
        return type(value)([map_leaves(item, convert) for item in value])
    if isinstance(value, dict):
        return {key: map_leaves(item, convert) for key, item in value.items()}
    return convert(value)


def mapped_call(call: HostCall, convert: Callable[[Any], Any]) -> HostCall:
    """Return a call with every leaf of its arguments converted."""
    return HostCall(map_leaves(call.args, convert), map_leaves(call.kwargs, convert))


def tensors_of(call: HostCall) -> list[HostTensor]:
    """Return the tensors of a call in the order of its arguments."""
    found: list[HostTensor] = []
    map_leaves(
        (call.args, call.kwargs),
        lambda leaf: found.append(leaf) if isinstance(leaf, HostTensor) else None,
    )
    return found


def require_framework(framework: str, *, device_runs: bool = True) -> None:
    """Require that the packages that a dump needs are installed; imports nothing.

    torch is always needed, to compute the bench. The framework itself is needed if the device runs,
    not if only captured outputs are tested. The descriptor's `require` checks for further needs.

    Raises:
        BackendMissingError: names the package and what to do.
    """
    if not is_framework(framework):
        raise BackendMissingError(
            f"{framework} dumps cannot be checked yet; supported are {', '.join(framework_names())}"
        )
    own = find_framework(framework)
    for name in (BENCH_PACKAGE, *(own.modules if device_runs else ())):
        if importlib.util.find_spec(name) is None:
            is_bench = name == BENCH_PACKAGE
            use = "the bench" if is_bench else f"a {framework} dump"
            install = _bench_framework().how_to_install if is_bench else own.how_to_install
            raise BackendMissingError(
                f"{use} needs {name}, which is not installed here; install it with: {install}"
            )
    if own.require:
        load_part(own.require)(device_runs=device_runs)


def _bench_framework() -> Framework:
    return next(each for each in built_in_frameworks() if each.package == BENCH_PACKAGE)


def open_backend(framework: str, kind: str) -> Backend:
    """Import a framework and open it on the one device that this process sees.

    `kind` is npu, gpu or cpu.

    Raises:
        BackendMissingError: the framework is not installed.
    """
    require_framework(framework)
    return load_part(find_framework(framework).backend)(kind)  # type: ignore[no-any-return]
