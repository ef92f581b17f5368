"""What each of the three hooks does with a call.

Comes in: a call of an operator, or the gradients that passed through one. Goes out: files. Called by the
sink of `register_hook`, and by the hooks where a script registers them at a module itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray_precheck.capture.pytorch.names import CallName, names_of


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands: its name ("Functional_linear_forward"), whether it is the backward pass of one,
    the layer that made it ("fc (Linear)"), and the lines of the program that led to it; the last two are
    empty where they are not known."""

    name: str
    is_backward: bool = False
    layer: str = ""
    stack: Callable[[], list[str]] = list


class Kind(ABC):
    """One of the three hooks, with its arguments."""

    def wants(self, name: CallName, got_tensor: bool) -> bool:
        """Return whether the calls of a function are looked at, given whether it got a tensor."""
        return name.name not in _MOVES if got_tensor else name.name in _MAKERS

    def ready(self, place: Place, in_model: bool) -> bool:
        """Return whether a call can be written."""
        return True

    @abstractmethod
    def before(self, args: Any) -> Any:
        """Take what must be taken before the call, because the call may change it."""

    @abstractmethod
    def after(self, place: Place, taken: Any, args: Any, output: Any) -> None:
        """Write a call; of a backward pass `args` are the gradients of the call's inputs, and `output` those
        that arrived at its outputs, as torch's hooks of modules have them."""

    def close(self) -> None:  # noqa: B027 (not all have something to finish)
        """Finish what is not written yet."""


# What moves, copies or converts a tensor, or fills one: it computes nothing that two devices could do
# differently. torch_npu.hooks had none of these either, so that a script may move its model and its data
# between two dumps.
_MOVES = names_of(
    """
    to cpu cuda npu xpu ipu clone contiguous copy_ zero_ uniform_ random_ element_size
    float double half bfloat16 int long short char byte bool cfloat cdouble chalf
    """
)
# Of the functions that make a tensor out of numbers those that torch_npu.hooks had; it had none of those
# that draw random numbers, which differ on each device.
_MAKERS = names_of(
    """
    arange bartlett_window blackman_window eye full hamming_window hann_window kaiser_window linspace
    logspace ones range scalar_tensor sparse_coo_tensor tril_indices triu_indices
    """
)
