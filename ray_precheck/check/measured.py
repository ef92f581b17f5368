"""What the device made of a call: what goes from the device's half of a check to the bench's.

Made by `check.sides.device`. Host arrays and text only, so that the bench may judge it in another
process or on another machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ray_precheck.frameworks.base import Leaf
from ray_precheck.schema.values import HostTensor


@dataclass(frozen=True, slots=True)
class Failure:
    """What a device raised, as one line, and whether that means that it has no kernel."""

    text: str
    lacks_kernel: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """Outputs and gradients of the device, or what it raised instead of them.

    `outputs` is None where forward raised `error`. `gradients`, of the differentiable inputs in
    order (None for one that cannot be had), is None where none were asked for, where backward raised `gradient_error`, and where there
    is nothing to differentiate, for the reason `no_gradients`. `safer` is what the device raised with
    the first inputs, where all this is of a second try with safer ones; "" of a first try. `inputs`
    are generated inputs and cotangents by argument path, where the bench need not draw them again;
    `notes` are what drawing them had to say, for the Message. `caveat` is what limits the precision of
    float32 on this device, "" for nothing.
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

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        leaves = [*(self.outputs or ()), *(self.gradients or ()), *self.inputs.values()]
        return sum(leaf.data.nbytes for leaf in leaves if isinstance(leaf, HostTensor))
