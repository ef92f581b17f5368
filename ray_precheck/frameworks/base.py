"""What a framework must offer to be tested.

Called by `check`. A backend is opened once in its worker; then for each call `resolve` finds the
API, `forward` runs it, and the returned `Execution` gives outputs and gradients as host arrays.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ray_precheck.errors import DeviceError
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

# An output leaf: a tensor, or a Python value that is compared by equality.
Leaf = HostTensor | Any


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How a call is to be run, the same for the device and for the bench.

    `differentiable` are the positions, among the tensors of the inputs in order, whose gradients
    are wanted; empty where there is no backward check. `in_place` says that the API changes its
    first argument.
    """

    differentiable: tuple[int, ...] = ()
    in_place: bool = False


class Execution(Protocol):
    """A call that has run forward."""

    outputs: list[Leaf]

    def gradients(self, cotangents: list[HostTensor | None]) -> list[HostTensor | None]:
        """Return the gradients of the differentiable inputs, None for an input by which the framework
        cannot derive this operator; of the cotangents None stands for zeros."""


class Backend(Protocol):
    """A framework on one device."""

    framework: str

    def resolve(self, name: ApiName) -> Callable[..., Any]:
        """Return the API's function; raise `NotCheckable` where it may not or cannot be called."""

    def forward(self, function: Callable[..., Any], call: HostCall, plan: CallPlan) -> Execution:
        """Run the API; whatever it raises is its own."""

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether an error says that the device has no kernel for the API or its dtype."""

    def prove(self) -> None:
        """Compute 1 + 1 on the device; raise where it gives no answer, whatever that is.

        A wrong sum is no dead device: its `add` is what the run has to find.
        """


def require_answer(answer: Any, place: str) -> None:
    """See that a device has answered 1 + 1 for 8 float32 elements with an array like that.

    Raises:
        DeviceError: it is none; `place` names the device.
    """
    shape, dtype = getattr(answer, "shape", None), getattr(answer, "dtype", None)
    if shape != (8,) or str(dtype) != "float32":
        raise DeviceError(
            f"{place} answers 1 + 1 of 8 float32 elements with shape {shape} and dtype {dtype}"
        )


def flatten_outputs(value: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """Return the leaves of an API's return value.

    Sequences and dicts are opened only where there is a tensor inside: a `torch.Size` is one leaf.
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
    if isinstance(value, list | tuple):
        return type(value)(map_leaves(item, convert) for item in value)
    if isinstance(value, dict):
        return {key: map_leaves(item, convert) for key, item in value.items()}
    return convert(value)
