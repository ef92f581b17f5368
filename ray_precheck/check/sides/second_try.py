"""The second try: safer inputs for a call whose generated inputs made both sides raise.

Comes in: `Inputs`. Goes out: `UnderTest`, with these inputs or safer ones. Called by the checker wherever
it runs the device, also for the device's half of a divided check: `Measured.safer` then tells the
bench's half to make safer inputs, too.
"""

from dataclasses import replace

from ray_precheck.bench.run import Bench
from ray_precheck.check.inputs import Inputs, safer_inputs
from ray_precheck.check.sides.bench import attempt_bench
from ray_precheck.check.sides.device import Device
from ray_precheck.check.sides.tested import UnderTest
from ray_precheck.inputs.generate import GeneratedTensors

IN_VAIN = "also with safer inputs"


def run_twice(device: Device, bench: Bench, inputs: Inputs) -> UnderTest:
    """Run the device; run it again with safer inputs if both sides raised with the first inputs.

    The results of the second try count only if they can be judged. The bench runs only if the device
    raised for another reason than a missing kernel. Captured and saved tensors are never replaced.
    Random calls have one try, because many of them have no bench. An error in backward alone is no
    reason for a second try.

    Raises:
        NotCheckable: the device or the bench does not have the API.
        OutOfMemory: an allocation failed.
        DeviceNeeded: this process has no device.
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
    """Return whether at least one side has run without an error."""
    return tried.outputs is not None or (
        tried.bench is not None and tried.bench.execution is not None
    )
