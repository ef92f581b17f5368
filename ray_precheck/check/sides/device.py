"""The station of the device: it runs a call, forward and backward.

Comes in: `Inputs`. Goes out: `UnderTest`. Called by the checker and by `check.sides.again`. Holds
the framework under test, which is opened once, where it is first needed.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from ray_precheck.bench.drawing import seed_of
from ray_precheck.bench.registry import References
from ray_precheck.bench.run import computing_threads
from ray_precheck.check.inputs import Inputs, cotangents_of
from ray_precheck.check.measured import Failure, Measured
from ray_precheck.check.phases import PhaseClock
from ray_precheck.check.settings import CheckSettings
from ray_precheck.check.sides.attempt import attempt_forward, attempt_gradients, describe
from ray_precheck.check.sides.captured import has_captured_gradients
from ray_precheck.check.sides.tested import UnderTest
from ray_precheck.errors import BackendMissingError, NotCheckable
from ray_precheck.frameworks.base import Backend, Leaf, Precise, changed_by
from ray_precheck.frameworks.registry import open_backend
from ray_precheck.schema.dtypes import Float32
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


class DeviceNeeded(Exception):
    """A call needs a device, and this process has none."""


@runtime_checkable
class Seeded(Protocol):
    """A backend whose generators can be seeded."""

    def seed(self, seed: int) -> None:
        """Seed every generator of the framework and its device."""


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
