"""The results of a device: `Measured` goes from the device's half of a check to the bench's half.

Made by `check.sides.device`. It has host arrays and text only, so that the bench's half can run in
another process or on another machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ray_precheck.frameworks.base import Leaf
from ray_precheck.schema.dtypes import FULL_FLOAT32, Float32
from ray_precheck.schema.values import HostTensor


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a device as one line. `lacks_kernel`: it means that the device has no kernel."""

    text: str
    lacks_kernel: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """Outputs and gradients of the device, or the errors that it raised instead.

    `outputs` is None where forward raised `error`. `gradients` are those of the differentiable inputs
    in order, with None for an input without a derivative. They are None where no gradient was asked
    for, where backward raised `gradient_error`, and where nothing can be differentiated; then
    `no_gradients` is the reason. `safer` is the text of the device's error with the first inputs, if
    these are the results of a second try with safer inputs; "" for a first try. `inputs` are the
    generated inputs and cotangents by argument path, if the bench gets them instead of drawing them
    again; `notes` are the sentences about them for the Message. `caveat` is a sentence about a limit
    of float32's precision on this device, "" for none, `float32` the formats of the operands of its
    products. `changed` are the tensors that the call may have
    changed, as they were after it. `is_transposed_too`: the device has run a second time with transposed
    inputs; `transposed` are the results of that run, if they differ. `again` are the first outputs of a
    small random call that drew again and again, each time with another seed; `repeats_itself`: a random
    call has then given the same.
    """

    outputs: list[Leaf] | None
    error: Failure | None = None
    gradients: list[HostTensor | None] | None = None
    gradient_error: Failure | None = None
    no_gradients: str = ""
    safer: str = ""
    inputs: Mapping[str, HostTensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    caveat: str = ""
    float32: Float32 = FULL_FLOAT32
    changed: tuple[HostTensor, ...] = ()
    is_transposed_too: bool = False
    transposed: "Measured | None" = None
    again: tuple[Leaf, ...] = ()
    repeats_itself: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        leaves = [*(self.outputs or ()), *(self.gradients or ()), *self.inputs.values()]
        leaves += [*self.changed, *self.again]
        own = sum(leaf.data.nbytes for leaf in leaves if isinstance(leaf, HostTensor))
        return own + (0 if self.transposed is None else self.transposed.nbytes)
