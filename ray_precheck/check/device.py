"""The station of the device: it runs a call, forward and backward, and where it helps a second time.

Comes in: `Inputs`. Goes out: `UnderTest`. Called by the checker, also for the device's half of a divided
check. Holds the framework under test, which is opened once, where it is first needed.

Safer inputs are for a call whose generated inputs made both sides raise: `Measured.safer` then tells the
bench's half to make them, too. Transposed inputs find kernels that are wrong for some strides alone. Their
values are the same, and so is the bench: what is judged again are outputs and gradients of which a bit
differs.

Every change of phase is told to the worker that watches the process, because the device and the bench have
limits of their own: a device that gives no answer is an error, a bench that takes too long is a SKIP.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from ray_precheck.bench.checkable import seed_of
from ray_precheck.bench.run import Bench, References, computing_threads
from ray_precheck.check.attempt import (
    Failure,
    Measured,
    attempt_forward,
    attempt_gradients,
    describe,
)
from ray_precheck.check.bench import attempt_bench
from ray_precheck.check.inputs import Inputs, cotangents_of, safer_inputs, transposed_inputs
from ray_precheck.check.options import ALWAYS, NEVER
from ray_precheck.check.settings import CheckSettings
from ray_precheck.check.tested import UnderTest, has_captured_gradients
from ray_precheck.errors import BackendMissingError, NotCheckable
from ray_precheck.frameworks.base import Backend, Leaf, Precise, changed_by, open_backend
from ray_precheck.inputs.generate import GeneratedTensors
from ray_precheck.operators.effects import ONLY_LAYOUT
from ray_precheck.schema.dtypes import FULL_FLOAT32, Float32
from ray_precheck.schema.task import BENCH, Phase
from ray_precheck.schema.values import HostTensor

Cotangents = list[HostTensor | None]
# A random call of so many elements at most draws three times: more elements tell enough by themselves. A
# standard deviation of 1.01 is found in 125,000 recorded elements in 67 of 100 runs by one draw of each, in
# 99 by two, in all by three.
_DRAWN_AGAIN = 1 << 18
# Larger ones draw twice, up to so many elements, to see whether another seed gives other draws.
_COMPARED = 1 << 24
# Stand behind the name by which further draws are seeded.
AGAIN = ("\0again", "\0once more")
IN_VAIN = "also with safer inputs"
_AUTO = "auto"
_NOT_EXERCISED = "layout not exercised"
# Calls with more elements in their inputs are costly.
_CHEAP_ELEMENTS = 1 << 20
# Of the calls of an operator `auto` runs the first one again, and those with these numbers: all of them took
# 1.2 (PyTorch) to 2.5 times (MindSpore) of a run's time.
_AGAIN = frozenset({0, *(4**power for power in range(1, 16))})


class DeviceNeeded(Exception):
    """A call needs a device, and this process has none."""


@runtime_checkable
class Seeded(Protocol):
    """A backend whose generators can be seeded."""

    def seed(self, seed: int) -> None:
        """Seed every generator of the framework and its device."""


class PhaseClock:
    """Counts the seconds of each phase of one check; calls `tell` at every change of phase."""

    def __init__(self, tell: Callable[[Phase], None] = lambda phase: None) -> None:
        self._tell = tell
        self._phase = Phase.INPUTS
        self._since = time.perf_counter()
        self.seconds = [0.0] * len(Phase)  # by phase, which is a number

    def start(self) -> None:
        """Begin a check, in the phase of its inputs, with all seconds at 0."""
        self.enter(Phase.INPUTS)
        self.seconds = [0.0] * len(Phase)

    def enter(self, phase: Phase) -> Phase:
        """Begin a phase; return the phase before."""
        now = time.perf_counter()
        before = self._phase
        self.seconds[before] += now - self._since
        self._phase, self._since = phase, now
        if phase is not before:
            self._tell(phase)
        return before

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Count the seconds of a block as this phase; afterwards the phase before goes on."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)


class Device:
    """The framework under test on a device of a kind; no device where the kind is `BENCH`.

    Every error of a call sets `has_raised`, which the guard clears before each check: after an error
    the device must prove itself before the next record.
    """

    def __init__(
        self, settings: CheckSettings, kind: str, references: References, clock: PhaseClock
    ) -> None:
        self._settings = settings
        self._kind = kind
        self._references = references
        self._clock = clock
        self._opened: Backend | None = None
        self._backend: Backend | None = None
        self._precise: Precise | None = None
        self._float32 = Float32()
        self.has_raised = False

    def backend(self) -> Backend:
        """Return the framework under test, opened at the first call.

        Raises:
            NotCheckable: captured results are tested, the dump lacks this one, and the framework that
                could compute it is not installed.
            BackendMissingError: the framework is not installed, and its results are tested.
            DeviceNeeded: this process has no device.
        """
        if self._kind == BENCH:
            raise DeviceNeeded
        if self._backend is None:
            try:
                self._opened = open_backend(self._settings.framework, self._kind)
            except BackendMissingError as error:
                if self._settings.tests_dump:
                    raise NotCheckable(f"the dump holds no result of it, and {error}") from None
                raise
            # Looking a protocol up takes as long as computing in it.
            self._precise = self._opened if isinstance(self._opened, Precise) else None
            self._backend = self._references.finds_tested(self._opened)
            self._set_float32()
        return self._backend

    def _set_float32(self) -> None:
        """Compute as the program did, and not as another checker of this process has left it."""
        if self._precise is not None:
            self._float32 = self._precise.compute_in(self._settings.float32)

    @property
    def caveat(self) -> str:
        """A sentence about a limit of float32's precision on the open device, "" for none."""
        return getattr(self._opened, "caveat", "")

    def prove(self) -> None:
        """Compute 1 + 1 on the device, if it is open; raises as `Backend.prove`."""
        if self._backend is not None:
            self._backend.prove()

    def run(self, inputs: Inputs, *, threads: int | None = 1) -> UnderTest:
        """Run a call on the device, on a CPU with this number of threads (None: with as many as are set).

        Raises:
            NotCheckable: the device does not have the API, or see `backend`.
            OutOfMemory: an allocation failed.
            DeviceNeeded: this process has no device.
        """
        with self._running(threads):
            if inputs.is_random:
                self._seed(inputs)
            backend = self.backend()
            if threads is not None:  # else the settings are those of `naive`
                self._set_float32()
            measured, cotangents = _measure(backend, inputs)
            if inputs.is_random and threads is not None:
                measured = self._drawn_again(inputs, measured)
        self.has_raised |= measured.error is not None or measured.gradient_error is not None
        if self.caveat or self._float32 != FULL_FLOAT32:
            measured = replace(measured, caveat=self.caveat, float32=self._float32)
        return UnderTest(inputs, measured.outputs, measured, cotangents, changed=measured.changed)

    def run_gradients(self, tested: UnderTest) -> UnderTest:
        """Return a call with the gradients that are tested: the device computes them if the dump has
        none.

        Raises:
            NotCheckable: no input is differentiable, or `--tested dump` asks for captured gradients
                alone, or see `run`.
        """
        if not tested.inputs.plan.differentiable:
            raise NotCheckable("backward: no floating tensor among the inputs")
        if not self._settings.tests_dump or has_captured_gradients(tested.inputs.record):
            return tested
        note = self.stands_in("gradients")
        if tested.measured is not None:
            return replace(tested, note=note)
        ran = self.run(tested.inputs)
        return replace(tested, measured=ran.measured, cotangents=ran.cotangents, note=note)

    def stands_in(self, what: str) -> str:
        """Return the note that the device is tested because the dump lacks the outputs or gradients.

        Raises:
            NotCheckable: `--tested dump` asks for captured results alone.
        """
        if self._settings.options.tested == "dump":
            raise NotCheckable(
                f"the dump holds no {what} of this call; --tested device checks them"
            )
        return f"the dump holds no {what} of this call, so this machine's {self._kind} was tested"

    @contextmanager
    def _running(self, threads: int | None) -> Iterator[None]:
        """Count the seconds of a block for the device, which computes with so many threads on a CPU."""
        setting = nullcontext() if threads is None else computing_threads(threads)
        with self._clock.during(Phase.DEVICE), setting:
            yield

    def _drawn_again(self, inputs: Inputs, measured: Measured) -> Measured:
        """Return the results of a random call with those of further draws under other seeds, if it has
        drawn: of a small call so that the statistics over all calls of its operator have more draws."""
        first = measured.outputs[0] if measured.outputs else None
        if not isinstance(first, HostTensor) or not 0 < first.data.size <= _COMPARED:
            return measured
        is_small = first.data.size <= _DRAWN_AGAIN
        drawn: list[Leaf] = []
        for which in AGAIN if is_small else AGAIN[:1]:
            self._seed(inputs, which)
            tried = attempt_forward(self.backend(), inputs.record.name, inputs.call, inputs.plan)
            drawn += () if tried.execution is None else tried.execution.outputs[:1]
        repeats = any(
            isinstance(leaf, HostTensor) and np.array_equal(leaf.data, first.data) for leaf in drawn
        )
        return replace(measured, again=tuple(drawn) if is_small else (), repeats_itself=repeats)

    def _seed(self, inputs: Inputs, which: str = "") -> None:
        """Seed the device's generators, so that a call draws the same numbers on every worker."""
        self.backend()
        if isinstance(self._opened, Seeded):
            name = f"{inputs.record.name}{which}"
            self._opened.seed(seed_of(self._settings.options.seed, name))


def _measure(backend: Backend, inputs: Inputs) -> tuple[Measured, Cotangents | None]:
    """Run a device forward and, where the call has a backward record, backward.

    Returns its results, and the incoming gradients, None if backward was not reached.

    Raises:
        NotCheckable: the device does not have the API.
        OutOfMemory: an allocation failed.
    """
    tried = attempt_forward(backend, inputs.record.name, inputs.call, inputs.plan)
    if tried.execution is None:
        return Measured(None, _failure(backend, tried.error)), None
    outputs, changed = tried.execution.outputs, changed_by(tried.execution)
    if not inputs.plan.differentiable:
        return Measured(outputs, changed=changed), None
    cotangents: Cotangents | None = None
    try:
        cotangents = cotangents_of(inputs, outputs)
        gradients, error = attempt_gradients(tried, cotangents)
    except NotCheckable as reason:
        return Measured(outputs, no_gradients=str(reason), changed=changed), cotangents
    failure = None if error is None else _failure(backend, error)
    return Measured(outputs, None, gradients, failure, changed=changed), cotangents


def _failure(backend: Backend, error: Exception | None) -> Failure:
    lacks_kernel = error is not None and backend.lacks_kernel(error)
    return Failure(describe(error), lacks_kernel)


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
