"""The runs of a call on the device: one, and another one with safer inputs, or with transposed ones.

Comes in: `Inputs`. Goes out: `UnderTest`. Called by the checker wherever it runs the device, also for the
device's half of a divided check.

Safer inputs are for a call whose generated inputs made both sides raise: `Measured.safer` then tells the
bench's half to make them, too. Transposed inputs find kernels that are wrong for some strides alone. Their
values are the same, and so is the bench: what is judged again are outputs and gradients of which a bit
differs.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ray_precheck.bench.run import Bench
from ray_precheck.check.inputs import Inputs, safer_inputs, transposed_inputs
from ray_precheck.check.options import ALWAYS, NEVER
from ray_precheck.check.settings import CheckSettings
from ray_precheck.check.sides.bench import attempt_bench
from ray_precheck.check.sides.device import Device
from ray_precheck.check.sides.tested import UnderTest
from ray_precheck.frameworks.base import Leaf
from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.operators.effects import ONLY_LAYOUT
from ray_precheck.schema.values import HostTensor

IN_VAIN = "also with safer inputs"
_AUTO = "auto"
_NOT_EXERCISED = "layout not exercised"
# Calls with more elements in their inputs are costly.
_CHEAP_ELEMENTS = 1 << 20
# Of the calls of an operator `auto` runs the first one again, and those with these numbers: all of them took
# 1.2 (PyTorch) to 2.5 times (MindSpore) of a run's time.
_AGAIN = frozenset({0, *(4**power for power in range(1, 16))})


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


def run_transposed(device: Device, tested: UnderTest, settings: CheckSettings) -> UnderTest:
    """Run a call again with transposed inputs, where the options ask for it.

    A call that raises with them has one run: many kernels refuse such inputs, and rightly so.

    Raises:
        OutOfMemory: an allocation failed.
    """
    measured, inputs = tested.measured, tested.inputs
    if measured is None or measured.outputs is None or not _is_wanted(inputs, settings):
        return tested
    other = transposed_inputs(inputs)
    again = None if other is None else device.run(other).measured
    if again is None or again.outputs is None or again.gradient_error is not None:
        return tested
    differs = not _same(measured.outputs, again.outputs)
    differs = differs or not _same(measured.changed, again.changed)
    differs = differs or not _same(measured.gradients or (), again.gradients or ())
    return tested.with_measured(transposed=again if differs else None, is_transposed_too=True)


def _is_wanted(inputs: Inputs, settings: CheckSettings) -> bool:
    choice = settings.options.layouts
    if choice == NEVER or inputs.is_random or inputs.plan.reads_layout or inputs.is_transposed:
        return False
    if choice == ALWAYS:
        return True
    if settings.standard.name != _AUTO or settings.knows_layouts:
        return False
    elements = sum(spec.size for _, spec in inputs.record.input_tensors())
    return inputs.record.name.number in _AGAIN and elements <= _CHEAP_ELEMENTS


def _same(ones: Sequence[Leaf], others: Sequence[Leaf]) -> bool:
    return len(ones) == len(others) and all(map(_is_same, ones, others))


def _is_same(one: Leaf, other: Leaf) -> bool:
    if not isinstance(one, HostTensor) or not isinstance(other, HostTensor):
        return type(one) is type(other) and bool(one == other)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    is_float = one.data.dtype.kind in "fc"
    return np.array_equal(one.data, other.data, equal_nan=is_float)


def layout_notes(tested: UnderTest, settings: CheckSettings) -> list[str]:
    """Return what the Message says of a call whose inputs were contiguous here, though perhaps not in the
    captured program."""
    inputs = tested.inputs
    is_transposed_too = tested.measured is not None and tested.measured.is_transposed_too
    if tested.is_captured or is_transposed_too or inputs.is_transposed:
        return []
    if inputs.unplaced:
        named = ", ".join(inputs.unplaced)
        return [
            f"{_NOT_EXERCISED}: {named} cannot lie in memory as the dump says, and was contiguous"
        ]
    record = inputs.record
    specs = [spec for _, spec in record.input_tensors()]
    is_known = settings.knows_layouts or any(spec.stride is not None for spec in specs)
    has_work = ONLY_LAYOUT.of(record.name.type_name, record.framework) and specs
    if is_known or not has_work or specs[0].size <= 1:
        return []
    return [
        f"{_NOT_EXERCISED}: the dump does not say it, and the inputs were contiguous; see --layouts"
    ]
