"""What is tested of a call: the results that the dump holds, or those of the device.

Made by `check.sides.device`, by `held_by_dump` for captured results (real mode), and by
`measured_elsewhere` where another process has run the device. Goes to the bench.
"""

from dataclasses import dataclass, replace
from typing import Any

from ray_precheck.check.inputs import Inputs
from ray_precheck.check.measured import Measured
from ray_precheck.check.sides.attempt import Attempt
from ray_precheck.check.sides.captured import captured_outputs
from ray_precheck.datagen.generate import GeneratedTensors
from ray_precheck.frameworks.base import Leaf
from ray_precheck.schema.values import HostTensor


@dataclass(frozen=True, slots=True)
class UnderTest:
    """A call with the outputs that are tested; None where the device raised.

    `measured` is what the device made of the call, None where it has not run. `cotangents` are what
    its gradients were made of, where it has run in this process. `is_captured`: the outputs are the
    dump's. `bench` is what became of the bench's forward pass, where the second try has run it.
    `note` says that the device stands in for what the dump lacks.
    """

    inputs: Inputs
    outputs: list[Leaf] | None
    measured: Measured | None = None
    cotangents: list[HostTensor | None] | None = None
    is_captured: bool = False
    bench: Attempt | None = None
    note: str = ""

    @property
    def caveat(self) -> str:
        """What may be why float32 is off on the device that has run this call; "" for nothing."""
        tensors = [spec for _, spec in self.inputs.record.input_tensors()]
        is_single = any(spec.dtype == "float32" for spec in tensors)
        return self.measured.caveat if self.measured is not None and is_single else ""

    def with_measured(self, **changes: Any) -> "UnderTest":
        """Return this with other fields of what the device made of the call."""
        assert self.measured is not None
        return replace(self, measured=replace(self.measured, **changes))


def held_by_dump(inputs: Inputs, measured: Measured | None) -> UnderTest | None:
    """Return the captured results of a call; None where the dump holds none.

    Raises:
        NotCheckable: a file cannot be used, or the dump does not describe an output.
    """
    outputs = captured_outputs(inputs.record, inputs.source)
    return None if outputs is None else UnderTest(inputs, outputs, measured, is_captured=True)


def measured_elsewhere(inputs: Inputs, measured: Measured, note: str) -> UnderTest:
    """Return what the device of another process made of a call."""
    return UnderTest(inputs, measured.outputs, measured, note=note)


def handed_over(tested: UnderTest) -> Measured:
    """Return what the device made of a call, for a bench elsewhere: with what was drawn for it, where
    its source keeps that."""
    assert tested.measured is not None
    source = tested.inputs.source
    if not isinstance(source, GeneratedTensors):
        return tested.measured
    return replace(tested.measured, inputs=source.drawn, notes=tuple(source.notes))
