"""The second try: other inputs for a call whose generated ones made both sides raise.

Comes in: `Inputs`. Goes out: `UnderTest`, of these inputs or of safer ones. Called by the checker in the
place of the device alone, also where only the device's half of a check is done: then the half of the
bench is told by `Measured.safer` that it must make safer inputs, too.
"""

from dataclasses import replace

from ray_precheck.bench.run import Bench
from ray_precheck.check.inputs import Inputs, safer_inputs
from ray_precheck.check.sides.bench import attempt_bench
from ray_precheck.check.sides.device import Device
from ray_precheck.check.sides.tested import UnderTest
from ray_precheck.datagen.generate import GeneratedTensors

IN_VAIN = "also with safer inputs"


def run_twice(device: Device, bench: Bench, inputs: Inputs) -> UnderTest:
    """Run the device, and once more with safer inputs where these can be judged and the first cannot.

    The bench runs only where the device raised, and not because it lacks a kernel. Captured and
    saved tensors are never replaced. Calls that draw have one try: many of them have no bench to ask,
    and none needs one. Of backward only the forward pass in it counts.

    Raises:
        NotCheckable: the device or the bench does not have the API.
        OutOfMemory: an allocation failed.
        DeviceNeeded: this process has none.
    """
    first = device.run(inputs)
    failure = None if first.measured is None else first.measured.error
    if failure is None or failure.lacks_kernel or not _may_be_safer(inputs):
        return first
    first = replace(first, bench=attempt_bench(bench, inputs))
    if _can_be_judged(first):
        return first
    second = device.run(safer_inputs(inputs, failure.text))
    if second.outputs is None:
        second = replace(second, bench=attempt_bench(bench, second.inputs))
    if _can_be_judged(second):
        return second.with_measured(safer=failure.text)
    return first.with_measured(error=replace(failure, text=f"{failure.text} ({IN_VAIN})"))


def _may_be_safer(inputs: Inputs) -> bool:
    source = inputs.source
    is_generated = isinstance(source, GeneratedTensors) and source.may_be_safer
    return is_generated and not inputs.is_random


def _can_be_judged(tried: UnderTest) -> bool:
    """Return whether one side has run at least."""
    return tried.outputs is not None or (
        tried.bench is not None and tried.bench.execution is not None
    )
