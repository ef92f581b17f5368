"""The checker: from a task's payload to its result, always.

Comes in: a `TaskPayload`. Goes out: a `TaskResult`; a failure of one API is a value and never an
exception that leaves this module. Called by the check process and by `session.rerun`. A check may be
cut in two: `measure` runs the device, and `check` with what that gave does the rest, anywhere.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from ray_precheck.bench.registry import References
from ray_precheck.bench.run import Bench
from ray_precheck.check.job import DirectionCheck, Job, Sides
from ray_precheck.check.judge import check_backward, check_forward
from ray_precheck.check.measured import Measured
from ray_precheck.check.memory import needed_bytes
from ray_precheck.check.phases import Phase, PhaseClock
from ray_precheck.check.random.judge import (
    Seeded,
    check_random_backward,
    check_random_forward,
)
from ray_precheck.check.random.quiet_dropout import quiet_dropout
from ray_precheck.check.settings import CheckSettings
from ray_precheck.check.sides.attempt import describe, is_out_of_memory
from ray_precheck.check.sides.second_try import with_safer_inputs
from ray_precheck.datagen.generate import (
    GeneratedTensors,
    TensorSource,
    build_call,
    generated_tensors,
)
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import BackendMissingError, NotCheckable
from ray_precheck.frameworks.base import Backend
from ray_precheck.frameworks.registry import open_backend
from ray_precheck.plan.drawing import is_random, seed_of
from ray_precheck.plan.select import skip_by_name, skip_by_record
from ray_precheck.schema.casualty import Cause
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.result import Outcome, TaskResult, Verdict, failed, skipped
from ray_precheck.schema.task import BENCH, TaskPayload
from ray_precheck.store.error_data import Replay, save_error_data

if TYPE_CHECKING:
    from ray_precheck.dump.tensors import TensorFiles

T = TypeVar("T")


class DeviceNeeded(Exception):
    """The captured results do not suffice, and this process has no device."""


class Checker(Sides):
    """Checks one call after the other; holds the bench and, once it is needed, the device.

    `kind` is that of the device, or `BENCH` where there is none.
    """

    def __init__(self, settings: CheckSettings, kind: str, clock: PhaseClock | None = None) -> None:
        self._settings = settings
        self._kind = kind
        self._backend: Backend | None = None
        self._generators: Seeded | None = None
        self._clock = clock or PhaseClock()
        self.framework = settings.framework
        self.tests_dump = settings.tests_dump
        self.tests_own_kernel = settings.tests_own_kernel(kind)
        self.standard = settings.standard
        self.may_run_device = settings.may_run_device
        self.device_label = kind
        self.caveat = ""
        self._device_raised = False
        self._damage: Cause | None = None
        references = self._references = References(settings.framework, settings.bench_modules)
        if not settings.tests_dump and kind != BENCH:
            self.device()
        self.bench = Bench(settings.framework, references)

    def device(self) -> Backend:
        """Return the framework under test, opened at the first call.

        Raises:
            NotCheckable: captured results are tested, and there is no framework to stand in.
            BackendMissingError: it is missing where it is what is to be tested.
            DeviceNeeded: this process has none.
        """
        if self._kind == BENCH:
            raise DeviceNeeded
        if self._backend is None:
            try:
                backend = open_backend(self._settings.framework, self._kind)
                self._backend = self._references.finds_tested(backend)
                self._generators = backend if isinstance(backend, Seeded) else None
                self.caveat = getattr(backend, "caveat", "")
            except BackendMissingError as error:
                if self.tests_dump:
                    raise NotCheckable(f"the dump holds no result of it, and {error}") from None
                raise
        return self._backend

    def lacks_kernel(self, error: Exception) -> bool:
        """Return whether an error of the device means that it has no kernel."""
        return self.device().lacks_kernel(error)

    def note_device_error(self) -> None:
        """Remember that the device raised: it must prove itself before the next record."""
        self._device_raised = True

    def seed_device(self, record: ApiRecord) -> None:
        """Seed the device's generators, so that a call draws the same numbers wherever it runs."""
        self.device()
        if self._generators is not None:
            self._generators.seed(seed_of(self._settings.seed, str(record.name)))

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Be on the device for a while; it computes with one thread whatever the bench may."""
        with self._clock.during(Phase.DEVICE), self.bench.threads(1):
            yield

    def prove(self) -> None:
        """Have the bench compute something, and the device, where there is one, 1 + 1.

        Raises:
            Exception: whatever it raises, or `DeviceError` where the answer is no sum at all.
        """
        self.bench.warm_up()
        if self._backend is not None:
            self._backend.prove()

    def damage(self) -> Cause | None:
        """Return what the last check has done to this process; None where it is as good as before."""
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
        """Check one call. `source` replaces the tensors that the settings ask for (a replay), `files`
        are captured ones that cannot be read from the dump's folder here; `measured` is what the
        device made of the call elsewhere.

        Raises:
            DeviceNeeded: this process has no device and none has measured the call.
        """
        with self.bench.threads(bench_threads):
            result = self._guarded(
                payload, lambda: self._judge(self._tried(payload, source, files, measured))
            )
        seconds = self._clock.seconds
        return replace(
            result,
            inputs_s=seconds[Phase.INPUTS],
            device_s=seconds[Phase.DEVICE],
            bench_s=seconds[Phase.BENCH],
        )

    def measure(
        self,
        payload: TaskPayload,
        files: "TensorFiles | None" = None,
        *,
        with_inputs: bool = False,
    ) -> TaskResult | Measured:
        """Run the device alone; a result where it comes to nothing that could be judged.

        `with_inputs` hands generated inputs on, for a bench to which that is cheaper than to draw them.
        """

        def examine() -> Measured:
            job = self._tried(payload, files=files, keeps=with_inputs)
            measured = job.measured  # It draws cotangents.
            if not isinstance(job.source, GeneratedTensors):
                return measured
            return replace(measured, inputs=job.source.drawn, notes=tuple(job.source.notes))

        return self._guarded(payload, examine)

    def _guarded(self, payload: TaskPayload, examine: Callable[[], T]) -> T | TaskResult:
        """Turn what goes wrong into a result, and see whether it broke this process."""
        self._clock.start()
        self._damage, self._device_raised = None, False
        found: T | TaskResult
        try:
            found = examine()
        except DeviceNeeded:
            raise
        except NotCheckable as reason:
            found = _skipped(payload, str(reason))
        except Exception as error:
            if is_out_of_memory(error):
                return self._out_of_memory(payload, error)
            # A fault of ours must neither be blamed on the API nor end the run.
            found = _skipped(payload, f"ray_precheck failed on this record: {describe(error)}")
        finally:
            self._clock.enter(Phase.INPUTS)
        if self._device_raised and isinstance(found, TaskResult):
            return self._proven(found)
        if self._device_raised:
            self._prove_or_damage()
        return found

    def _proven(self, result: TaskResult) -> TaskResult:
        """See whether an error left the device usable; add to the result that it did not."""
        why = self._prove_or_damage()
        if not why:
            return result
        note = f"the device was unusable afterwards: {why}"
        return replace(result, message="; ".join(filter(None, [result.message, note])))

    def _prove_or_damage(self) -> str:
        """Have the device prove itself; return why it cannot, "" where it can."""
        try:
            self.prove()
        except Exception as error:
            # It is proven with APIs of its framework, which may raise anything.
            self._damage = Cause.POISONED
            return describe(error)
        return ""

    def _out_of_memory(self, payload: TaskPayload, error: Exception) -> TaskResult:
        self._damage = Cause.OUT_OF_MEMORY
        limit = self._settings.memory_limit_bytes / 2**30
        allowed = f" (a worker may take {limit:.3g} GiB, --max-memory)" if limit else ""
        has_backward = payload.backward is not None
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        reason = f"ran out of memory: {describe(cause)}{allowed}"
        return failed(payload.index, payload.name, Outcome.CRASHED, reason, has_backward)

    def _tried(
        self,
        payload: TaskPayload,
        source: TensorSource | None = None,
        files: "TensorFiles | None" = None,
        measured: Measured | None = None,
        *,
        keeps: bool = False,
    ) -> Job:
        """Return the job of a call, with safer inputs where the first ones make both sides raise.

        Raises:
            NotCheckable: with the reason.
        """
        job = self._job(payload, source, files, measured, keeps=keeps)
        # Who has measured it elsewhere has made the second try there.
        if measured is not None or not isinstance(job.source, GeneratedTensors):
            return job
        # Many of them have no bench to ask, and none needs one.
        if is_random(job.record):
            return job
        with self._clock.during(Phase.BENCH):
            return with_safer_inputs(job)

    def _job(
        self,
        payload: TaskPayload,
        source: TensorSource | None = None,
        files: "TensorFiles | None" = None,
        measured: Measured | None = None,
        *,
        keeps: bool = False,
    ) -> Job:
        """Decode a call and make its inputs.

        Raises:
            NotCheckable: with the reason.
        """
        record = decode_record(payload.name, payload.forward, payload.backward, self.framework)
        reason = skip_by_name(record.name, self.framework) or skip_by_record(record)
        if reason:
            raise NotCheckable(reason)
        self._require_memory(record)
        # First of all: the allow list of the bench also says what may be called on the device.
        if not is_random(record):
            self.bench.resolve(record.name)
        source = source or self._source(record, files, keeps=keeps)
        if measured is not None and isinstance(source, GeneratedTensors):
            source = source.safer(record, measured.safer) if measured.safer else source
            source.take(measured.inputs, measured.notes)
        return Job(payload, record, build_call(record, source), source, self, measured)

    def _judge(self, job: Job) -> TaskResult:
        payload = job.payload
        with self._clock.during(Phase.BENCH):
            forward, backward = self._directions(job)
        # Cotangents may be drawn for the device and for the bench, each with its notes.
        drawn = dict.fromkeys(getattr(job.source, "notes", []))
        notes = [*forward.messages, *backward.messages, *drawn]
        if job.caveat and Verdict.ERROR in (forward.verdict, backward.verdict):
            notes.append(job.caveat)
        evidence: tuple[tuple[str, bytes], ...] = ()
        if Verdict.ERROR in (forward.verdict, backward.verdict) and self._settings.error_folder:
            try:
                evidence = self._save_evidence(job, forward, backward, "; ".join(notes))
            except OSError as error:
                notes.append(f"its tensors could not be saved: {error.strerror or error}")
        raised = Outcome.RAISED in (forward.outcome, backward.outcome)
        return TaskResult(
            index=payload.index,
            name=payload.name,
            outcome=Outcome.RAISED if raised else Outcome.COMPLETED,
            forward=forward.verdict,
            backward=backward.verdict,
            message="; ".join(notes),
            checks=(*forward.checks, *backward.checks),
            evidence=evidence,
        )

    def _directions(self, job: Job) -> tuple[DirectionCheck, DirectionCheck]:
        if not is_random(job.record):
            forward = check_forward(job)
            return forward, _backward(job, forward, check_backward)
        quiet = quiet_dropout(job)
        if quiet is not None:
            return quiet.forward, _backward(job, quiet.forward, quiet.backward)
        seed = self._settings.seed
        forward = check_random_forward(job, seed)
        return forward, _backward(job, forward, lambda job: check_random_backward(job, seed))

    def _require_memory(self, record: ApiRecord) -> None:
        limit = self._settings.memory_limit_bytes
        needed = needed_bytes(record, with_peers=self.standard.name != "msprobe")
        if limit and needed > limit:
            raise NotCheckable(
                f"it needs about {needed / 2**30:.3g} GiB of memory, more than the"
                f" {limit / 2**30:.3g} GiB that a worker may take (--max-memory)"
            )

    def _save_evidence(
        self, job: Job, forward: DirectionCheck, backward: DirectionCheck, message: str
    ) -> tuple[tuple[str, bytes], ...]:
        """Save the tensors of a failing call, or return them as files where their folder is on
        another machine.

        Raises:
            OSError: the folder cannot be written.
        """
        with ExitStack() as stack:
            folder = self._settings.error_folder
            if folder is None or self._settings.sends_evidence:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="ray-precheck-")))
            save_error_data(
                folder,
                job.payload,
                self.framework,
                job.call,
                backward.cotangents,
                {**forward.pairs, **backward.pairs},
                failing=[check.name for check in (*forward.failing, *backward.failing)],
                tested="dump" if self.tests_dump else "device",
                seed=self._settings.seed,
                replay=Replay(
                    job.plan.differentiable if job.record.has_backward else (),
                    job.plan.in_place,
                    self.standard.name,
                    message,
                    self._settings.device_type if self._kind == BENCH else self._kind,
                ),
            )
            if not self._settings.sends_evidence:
                return ()
            return tuple((file.name, file.read_bytes()) for file in sorted(folder.iterdir()))

    def _source(
        self, record: ApiRecord, files: "TensorFiles | None", *, keeps: bool
    ) -> TensorSource:
        if files is not None:
            return CapturedTensors(files)
        if self._settings.task == "tensor":
            return CapturedTensors(self._settings.data_folder)
        seed, distribution = self._settings.seed, self._settings.distribution
        return generated_tensors(seed, record, distribution, keeps=keeps)


def _backward(
    job: Job, forward: DirectionCheck, check: Callable[[Job], DirectionCheck]
) -> DirectionCheck:
    if not job.record.has_backward:
        return DirectionCheck(Verdict.NONE)
    try:
        if forward.outcome is Outcome.RAISED:
            raise NotCheckable("backward: the forward pass raised")
        return check(job)
    except NotCheckable as reason:
        result = DirectionCheck(Verdict.SKIP)
        result.notes.append(str(reason))
        return result


def _skipped(payload: TaskPayload, reason: str) -> TaskResult:
    return skipped(payload.index, payload.name, reason, payload.backward is not None)
