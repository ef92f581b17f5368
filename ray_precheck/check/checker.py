"""The checker: makes a `TaskResult` of every `TaskPayload`.

Comes in: a `TaskPayload`. Goes out: a `TaskResult`; an API that fails gives a result and never an
exception. Called by the check process and by `session.rerun`. The checker walks the stations that the
docstring of the package lists. Every exception on the way becomes a result that says why the call could not
be checked. A check can be divided: `measure` runs the device, and `check` with what `measure` returned does
the rest, in this process or another.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ray_precheck.bench.run import Bench, References, computing_threads
from ray_precheck.check.attempt import Measured, describe, is_out_of_memory
from ray_precheck.check.bench import Benched, run_bench
from ray_precheck.check.decode import decode
from ray_precheck.check.device import (
    Device,
    DeviceNeeded,
    PhaseClock,
    layout_notes,
    run_transposed,
    run_twice,
)
from ray_precheck.check.inputs import (
    Inputs,
    make_inputs,
    source_as_measured,
    source_of,
    transposed_inputs,
)
from ray_precheck.check.judge import (
    DirectionCheck,
    Judged,
    backward_transposed,
    forward_transposed,
    judge_backward,
    judge_forward,
)
from ray_precheck.check.options import EXACT, SAMPLED
from ray_precheck.check.random.judge import (
    judge_identity_backward,
    judge_random_backward,
    judge_random_forward,
    quiet_dropout,
    require_rule,
)
from ray_precheck.check.row import make_row, with_explanations
from ray_precheck.check.sampled.judge import judge_sampled
from ray_precheck.check.settings import CheckSettings
from ray_precheck.check.tested import UnderTest, handed_over, held_by_dump, measured_elsewhere
from ray_precheck.errors import NotCheckable
from ray_precheck.foreign import caught
from ray_precheck.frameworks.base import Backend
from ray_precheck.inputs.generate import TensorSource
from ray_precheck.schema.result import Outcome, TaskResult, Verdict, failed, skipped
from ray_precheck.schema.task import BENCH, Cause, Phase, TaskPayload

if TYPE_CHECKING:
    from ray_precheck.dump.tensors import TensorFiles


T = TypeVar("T")
Gradients = Callable[[], DirectionCheck]


class Checker:
    """Checks one call after the other; holds the bench and, once it is needed, the device.

    `kind` is the kind of the device, or `BENCH` where there is none. `tell` is called at every change of
    phase.
    """

    def __init__(
        self, settings: CheckSettings, kind: str, tell: Callable[[Phase], None] = lambda phase: None
    ) -> None:
        self._settings = settings
        self._kind = kind
        self._clock = PhaseClock(tell)
        self.framework = settings.framework
        self.terms = settings.terms(kind)
        references = References(settings.framework, settings.bench_modules)
        self._device = Device(settings, kind, references, self._clock)
        if not settings.tests_dump and kind != BENCH:
            self._device.backend()
        self.bench = Bench(settings.framework, references)
        self._damage: Cause | None = None

    def device(self) -> Backend:
        """Return the framework under test, opened at the first call; raises as `Device.backend`."""
        return self._device.backend()

    @property
    def caveat(self) -> str:
        """What limits the precision of float32 on the open device, "" for nothing."""
        return self._device.caveat

    def prove(self) -> None:
        """Let the bench compute a small operator, and the device, where there is one, 1 + 1.

        Raises:
            DeviceError: the device's answer has another shape or dtype.
            Exception: any exception of the frameworks.
        """
        self.bench.warm_up()
        self._device.prove()

    def damage(self) -> Cause | None:
        """Return how the last check has damaged this process, None if it has not."""
        return self._damage

    def check(
        self,
        payload: TaskPayload,
        source: TensorSource | None = None,
        *,
        measured: Measured | None = None,
        files: "TensorFiles | None" = None,
        bench_threads: int = 1,
    ) -> TaskResult:
        """Check one call.

        `source` replaces the source of tensors that the settings name (for a replay). `files` are the
        captured tensors, where the dump's folder cannot be read on this machine. `measured` is what
        the device of another process made of the call. `bench_threads` is the number of threads of
        the bench.

        Raises:
            DeviceNeeded: the call needs a device; this process has none, and `measured` is None.
        """

        def walk() -> TaskResult:
            inputs = self._inputs(payload, source, files, measured)
            return self._row(self.judge(inputs, measured))

        with computing_threads(bench_threads):
            result = self._timed(payload, walk)
        seconds = self._clock.seconds
        return replace(
            result,
            inputs_s=seconds[Phase.INPUTS],
            device_s=seconds[Phase.DEVICE],
            bench_s=seconds[Phase.BENCH],
        )

    def examine(
        self, payload: TaskPayload, source: TensorSource | None = None
    ) -> tuple[TaskResult, Judged | None]:
        """Check one call, with the tensors of a source where one is given; return its result and the leaves
        that it compares.

        The leaves are None where the call could not be judged.
        """
        found: list[Judged] = []

        def walk() -> TaskResult:
            judged = self.judge(self._inputs(payload, source), is_whole=True)
            found.append(judged)
            return self._row(judged)

        with computing_threads(1):
            result = self._timed(payload, walk)
        return result, found[0] if found else None

    def _row(self, judged: Judged) -> TaskResult:
        tested = self._settings.device_type if self._kind == BENCH else self._kind
        return make_row(judged, self._settings, tested)

    def measure(
        self,
        payload: TaskPayload,
        files: "TensorFiles | None" = None,
        *,
        with_inputs: bool = False,
    ) -> TaskResult | Measured:
        """Run a call on the device alone; return what it measured, or a result if the call is skipped or
        fails before it can be judged.

        `with_inputs` adds the generated inputs, for a bench that gets them sooner than it draws them.
        """

        def walk() -> Measured:
            inputs = self._inputs(payload, files=files, keeps=with_inputs)
            with self._clock.during(Phase.BENCH):
                tested = self._run(inputs)
            return handed_over(tested)

        return self._timed(payload, walk)

    def walk_over(
        self,
        payload: TaskPayload,
        walk: Callable[[Inputs, str], T],
        files: "TensorFiles | None" = None,
    ) -> tuple[T | TaskResult, float, float]:
        """Make the inputs of a call, safer ones where both sides raise with the first, and pass them to a
        walk, with the reason for safer ones ("" for none).

        Returns what the walk returns, or the result of a call that could not be checked; and the seconds of
        the device and of the bench.
        """

        def walk_all() -> T:
            inputs = self._inputs(payload, files=files)
            with self._clock.during(Phase.BENCH):
                tested = run_twice(self._device, self.bench, inputs)
                safer = "" if tested.measured is None else tested.measured.safer
                return walk(tested.inputs, safer)

        found = self._timed(payload, walk_all)
        return found, self._clock.seconds[Phase.DEVICE], self._clock.seconds[Phase.BENCH]

    def inputs(
        self, payload: TaskPayload, files: "TensorFiles | None" = None, safer: str = ""
    ) -> Inputs:
        """Make the inputs of a call as another process did; `safer` is its reason for safer ones.

        Raises:
            NotCheckable: the call cannot be checked.
        """
        return self._inputs(payload, files=files, measured=Measured(None, safer=safer))

    def run(self, inputs: Inputs) -> Measured:
        """Run a call on the device once, with the threads and all other settings that the process has."""
        measured = self._device.run(inputs, threads=None).measured
        assert measured is not None
        return measured

    def on_device(self) -> AbstractContextManager[None]:
        """Return a context whose seconds, and whose limit, are the device's."""
        return self._clock.during(Phase.DEVICE)

    def _timed(self, payload: TaskPayload, walk: Callable[[], T]) -> T | TaskResult:
        """Walk the stations, and count the seconds of each phase."""
        self._clock.start()
        try:
            return self._guarded(payload, walk)
        finally:
            self._clock.enter(Phase.INPUTS)

    def _guarded(self, payload: TaskPayload, walk: Callable[[], T]) -> T | TaskResult:
        """Return what a walk returns, or the result of a call that could not be checked.

        After an error of the device it must prove itself, and the damage is noted.

        Raises:
            DeviceNeeded: this process has no device and the check needs one.
        """
        self._damage, self._device.has_raised = None, False
        # A bug of this program must neither be blamed on the API nor end the run.
        value, error = caught(walk, DeviceNeeded)
        if error is None:
            found: T | TaskResult = value  # type: ignore[assignment]
        elif isinstance(error, NotCheckable):
            found = _skipped_row(payload, str(error))
        elif is_out_of_memory(error):
            self._damage = Cause.OUT_OF_MEMORY
            return _out_of_memory_row(payload, error, self._settings.memory_limit_bytes)
        else:
            found = _skipped_row(payload, f"ray_precheck failed on this record: {describe(error)}")
        why = self._unusable() if self._device.has_raised else ""
        return _with_note(found, why) if why and isinstance(found, TaskResult) else found

    def _unusable(self) -> str:
        """Let the device prove itself; return the reason if it fails, "" if it works."""
        # The proof uses APIs of the framework, which may raise anything.
        _, error = caught(self.prove)
        if error is None:
            return ""
        self._damage = Cause.POISONED
        return describe(error)

    def _inputs(
        self,
        payload: TaskPayload,
        source: TensorSource | None = None,
        files: "TensorFiles | None" = None,
        measured: Measured | None = None,
        *,
        keeps: bool = False,
    ) -> Inputs:
        """Decode a call and make its inputs: the same as the device had, if it has run elsewhere."""
        decoded = decode(payload, self._settings, self.bench)
        source = source or source_of(decoded.record, self._settings, files, keeps=keeps)
        if measured is not None:
            source = source_as_measured(source, decoded.record, measured)
        return make_inputs(decoded, source)

    def _tested(self, inputs: Inputs, measured: Measured | None) -> UnderTest:
        """Return the outputs to test: the dump's, or those of a device elsewhere, or of this device."""
        tested = held_by_dump(inputs, measured) if self.terms.tests_dump else None
        if tested is not None:
            return tested
        if inputs.is_random:
            require_rule(inputs.record, self.framework)
        note = self._device.stands_in("outputs") if self.terms.tests_dump else ""
        if measured is not None:
            return measured_elsewhere(inputs, measured, note)
        ran = self._run(inputs)
        return replace(ran, note=note) if note else ran

    def _run(self, inputs: Inputs) -> UnderTest:
        """Run the device, again with safer inputs and with transposed ones where these are wanted."""
        tested = run_twice(self._device, self.bench, inputs)
        return run_transposed(self._device, tested, self._settings)

    def judge(
        self, inputs: Inputs, measured: Measured | None = None, *, is_whole: bool = False
    ) -> Judged:
        """Run both sides, judge and explain: forward, then backward. `is_whole`: the rows have the whole
        bench beside them, whatever `--bench` says.

        Raises:
            NotCheckable: the outputs cannot be judged.
            DeviceNeeded: the call needs a device; this process has none, and `measured` is None.
        """
        with self._clock.during(Phase.BENCH):
            tested = self._tested(inputs, measured)
            sampled = None if is_whole else self._sampled(tested)
            forward, backward = sampled or self._whole(tested)
            forward = _with_caveat(forward, tested)
            added = layout_notes(tested, self._settings)
            if added:
                forward = replace(forward, notes=(*forward.notes, *added))
            judged = Judged(tested.inputs, forward, backward)
            if not (forward.is_transposed or backward.is_transposed):
                return judged
            return replace(judged, inputs=transposed_inputs(tested.inputs) or tested.inputs)

    def _sampled(self, tested: UnderTest) -> tuple[DirectionCheck, DirectionCheck] | None:
        """Return the checks of a large call that parts of the bench show to be right, else None."""
        wanted = self._settings.options.bench
        if tested.inputs.is_random:
            return None
        run = self._device.run_gradients
        of = {"samples": wanted != EXACT, "is_final": wanted == SAMPLED}
        try:
            return judge_sampled(self.bench, tested, self.terms, run, **of)
        except NotCheckable:
            return None  # The whole bench says why.

    def _whole(self, tested: UnderTest) -> tuple[DirectionCheck, DirectionCheck]:
        """Return the checks of both directions by the whole bench."""
        walk = self._random_outputs if tested.inputs.is_random else self._outputs
        forward, gradients = walk(tested)
        return forward, _backward(tested.inputs, forward, gradients)

    def _outputs(self, tested: UnderTest) -> tuple[DirectionCheck, Gradients]:
        """Return the check of the outputs, and a function that checks the gradients."""
        benched = run_bench(self.bench, tested)
        forward = judge_forward(benched, self.terms)
        forward = forward_transposed(benched, self.terms, forward)
        explained = with_explanations(tested.inputs, forward, self.terms.standard)
        return explained, lambda: self._gradients(benched)

    def _random_outputs(self, tested: UnderTest) -> tuple[DirectionCheck, Gradients]:
        quiet = quiet_dropout(tested, self.bench, self.terms)
        if quiet is None:
            forward = judge_random_forward(tested, self.bench, self.terms)
            return forward, lambda: judge_random_backward(tested, self.terms)
        benched = quiet.benched
        if benched is None:
            return quiet.forward, lambda: judge_identity_backward(tested, self.terms)
        return quiet.forward, lambda: self._gradients(benched)

    def _gradients(self, benched: Benched) -> DirectionCheck:
        tested = self._device.run_gradients(benched.tested)
        if tested is not benched.tested:
            benched = replace(benched, tested=tested)
        judged = judge_backward(benched, self.terms)
        judged = backward_transposed(benched, self.terms, judged)
        explained = with_explanations(tested.inputs, judged, self.terms.standard)
        return _with_caveat(explained, tested)


def _with_caveat(found: DirectionCheck, tested: UnderTest) -> DirectionCheck:
    caveat = tested.caveat
    return replace(found, caveat=caveat) if caveat else found


def _backward(inputs: Inputs, forward: DirectionCheck, gradients: Gradients) -> DirectionCheck:
    """Check the gradients; verdict NONE without a backward record, SKIP if they cannot be checked."""
    if not inputs.record.has_backward:
        return DirectionCheck(ruled=Verdict.NONE)
    try:
        if forward.outcome is Outcome.RAISED:
            raise NotCheckable("backward: the forward pass raised")
        return gradients()
    except NotCheckable as reason:
        return DirectionCheck(ruled=Verdict.SKIP, notes=(str(reason),))


def _with_note(result: TaskResult, why: str) -> TaskResult:
    note = f"the device was unusable afterwards: {why}"
    return replace(result, message="; ".join(filter(None, [result.message, note])))


def _skipped_row(payload: TaskPayload, reason: str) -> TaskResult:
    """Return the result of a call that cannot be checked."""
    return skipped(payload.index, payload.name, reason, payload.backward is not None)


def _out_of_memory_row(payload: TaskPayload, error: Exception, limit_bytes: int) -> TaskResult:
    """Return the result of a call for which there was not enough memory.

    `limit_bytes` is the limit of the worker, which the reason names; 0 for no limit.
    """
    limit = limit_bytes / 2**30
    allowed = f" (a worker may take {limit:.3g} GiB, --max-memory)" if limit else ""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    reason = f"ran out of memory: {describe(cause)}{allowed}"
    has_backward = payload.backward is not None
    return failed(payload.index, payload.name, Outcome.CRASHED, reason, has_backward)
