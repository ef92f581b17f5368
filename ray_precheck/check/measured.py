"""What the device made of a call: the first half of a check, which the second judges.

Comes in: a `Job`. Goes out: `Measured`, host arrays and text only, so that the bench may judge it in
another process or on another machine. Called by `check.job` and by the checker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ray_precheck.check.sides.attempt import attempt_forward, attempt_gradients, describe
from ray_precheck.datagen.cotangents import assign_cotangents
from ray_precheck.datagen.generate import GeneratedTensors
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.schema.values import HostTensor
from ray_precheck.store.error_data import SavedTensors

if TYPE_CHECKING:
    from ray_precheck.check.job import Job


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


def measure(job: "Job") -> Measured:
    """Run the device forward and, where the call has a backward record, backward.

    Raises:
        NotCheckable: the device does not have the API.
        OutOfMemory: an allocation failed.
    """
    tried = attempt_forward(job.sides.device(), job.record.name, job.call, job.plan)
    if tried.execution is None:
        return Measured(None, _failure(job, tried.error))
    outputs = tried.execution.outputs
    if not job.plan.differentiable:
        return Measured(outputs)
    try:
        job.cotangents = cotangents_of(job, outputs)
        gradients, error = attempt_gradients(tried, job.cotangents)
    except NotCheckable as reason:
        return Measured(outputs, no_gradients=str(reason))
    return Measured(outputs, None, gradients, None if error is None else _failure(job, error))


def _failure(job: "Job", error: Exception | None) -> Failure:
    job.sides.note_device_error()
    lacks_kernel = error is not None and job.sides.lacks_kernel(error)
    return Failure(describe(error), lacks_kernel)


def cotangents_of(job: "Job", outputs: list[Leaf]) -> list[HostTensor | None]:
    """Return the gradients that come in, one for each output.

    Raises:
        NotCheckable: those that the dump has do not fit.
    """
    if isinstance(job.source, SavedTensors):
        return job.source.cotangents(len(outputs))
    tensors = [leaf if isinstance(leaf, HostTensor) else None for leaf in outputs]
    generated = isinstance(job.source, GeneratedTensors)
    return assign_cotangents(job.record, tensors, job.source, may_reshape=generated)
