"""The results of a call that are tested: those in the dump, or those of the device.

Made by `check.sides.device`, by `held_by_dump` for captured results (real mode), and by
`measured_elsewhere` where another process has run the device. The next station is the bench.
"""

from dataclasses import dataclass, replace
from typing import Any

from ray_precheck.check.attempt import Attempt, Measured
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.sides.captured import captured_changes, captured_outputs
from ray_precheck.frameworks.base import Leaf
from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.schema.values import HostTensor


@dataclass(frozen=True, slots=True)
class UnderTest:
    """A call with the outputs that are tested; `outputs` is None where the device raised.

    `measured` are the results of the device, None where it has not run. `cotangents` are the incoming
    gradients of a device that has run in this process. `is_captured`: the outputs are the dump's.
    `bench` is the outcome of the bench's forward pass, if the second try has run it. `note` is the
    sentence that the device was tested because the dump lacks a result, "" if it was not. `changed` are the
    tensors of `CallPlan.changed` after the call, None where the dump does not have them.
    """

    inputs: Inputs
    outputs: list[Leaf] | None
    measured: Measured | None = None
    cotangents: list[HostTensor | None] | None = None
    is_captured: bool = False
    bench: Attempt | None = None
    note: str = ""
    changed: tuple[HostTensor, ...] | None = None

    @property
    def caveat(self) -> str:
        """A sentence about a limit of the device's precision that may explain errors of float32, "" for
        none."""
        tensors = [spec for _, spec in self.inputs.record.input_tensors()]
        is_single = any(spec.dtype == "float32" for spec in tensors)
        return self.measured.caveat if self.measured is not None and is_single else ""

    def with_measured(self, **changes: Any) -> "UnderTest":
        """Return the call with changed fields of `measured`."""
        assert self.measured is not None
        return replace(self, measured=replace(self.measured, **changes))


def held_by_dump(inputs: Inputs, measured: Measured | None) -> UnderTest | None:
    """Return the captured results of a call; None where the dump holds none.

    Raises:
        NotCheckable: a file cannot be used, or the dump does not describe an output.
    """
    outputs = captured_outputs(inputs.record, inputs.source)
    if outputs is None:
        return None
    changed = captured_changes(inputs.record, inputs.source, inputs.call, inputs.plan)
    return UnderTest(inputs, outputs, measured, is_captured=True, changed=changed)


def measured_elsewhere(inputs: Inputs, measured: Measured, note: str) -> UnderTest:
    """Return a call with the results of a device in another process."""
    return UnderTest(inputs, measured.outputs, measured, note=note, changed=measured.changed)


def handed_over(tested: UnderTest) -> Measured:
    """Return the results of the device for a bench in another process, with the generated inputs if
    their source has kept them."""
    assert tested.measured is not None
    source = tested.inputs.source
    if not isinstance(source, GeneratedTensors):
        return tested.measured
    return replace(tested.measured, inputs=source.drawn, notes=tuple(source.notes))
