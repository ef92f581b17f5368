"""The checker: from a task's payload to its result, always.

Comes in: a `TaskPayload`. Goes out: a `TaskResult`; a failure of one API is a value and never an
exception that leaves this module. Called by the worker actor and by `session.rerun`.
"""

import time
from dataclasses import replace

from ray_precheck.backends.base import Backend
from ray_precheck.backends.registry import open_backend
from ray_precheck.bench.run import Bench
from ray_precheck.check.directions import check_backward, check_forward
from ray_precheck.check.job import DirectionCheck, Job, Sides
from ray_precheck.check.memory import needed_bytes
from ray_precheck.check.settings import CheckSettings
from ray_precheck.check.sides import describe, is_out_of_memory
from ray_precheck.datagen.generate import GeneratedTensors, TensorSource, build_call
from ray_precheck.dump.decode import decode_record
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import BackendMissingError, NotCheckable
from ray_precheck.plan.select import skip_by_name, skip_by_record
from ray_precheck.schema.casualty import Cause
from ray_precheck.schema.record import ApiRecord
from ray_precheck.schema.result import Outcome, TaskResult, Verdict, failed, skipped
from ray_precheck.schema.task import TaskPayload
from ray_precheck.store.error_data import save_error_data


class Checker(Sides):
    """Checks one call after the other; holds the bench and, once it is needed, the device."""

    def __init__(self, settings: CheckSettings, kind: str) -> None:
        self._settings = settings
        self._kind = kind
        self._backend: Backend | None = None
        self.framework = settings.framework
        self.tests_dump = settings.tests_dump
        self.may_run_device = settings.may_run_device
        self.device_label = kind
        self._device_raised = False
        self._damage: Cause | None = None
        if not settings.tests_dump:
            self.device()
        self.bench = Bench(settings.framework)

    def device(self) -> Backend:
        """Return the framework under test, opened at the first call.

        Raises:
            NotCheckable: captured results are tested, and there is no framework to stand in.
            BackendMissingError: it is missing where it is what is to be tested.
        """
        if self._backend is None:
            try:
                self._backend = open_backend(self._settings.framework, self._kind)
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

    def prove(self) -> None:
        """Have the device, where there is one, compute 1 + 1.

        Raises:
            Exception: whatever it raises, or `DeviceError` where the sum is wrong.
        """
        if self._backend is not None:
            self._backend.prove()

    def damage(self) -> Cause | None:
        """Return what the last check has done to this process; None where it is as good as before."""
        return self._damage

    def check(self, payload: TaskPayload, source: TensorSource | None = None) -> TaskResult:
        """Check one call. `source` replaces the tensors that the settings ask for (a replay)."""
        begin = time.perf_counter()
        self._damage, self._device_raised = None, False
        try:
            result = self._examine(payload, source, begin)
        except NotCheckable as reason:
            result = _skipped(payload, str(reason), begin)
        except Exception as error:
            if is_out_of_memory(error):
                return self._out_of_memory(payload, error)
            # A fault of ours must neither be blamed on the API nor end the run.
            fault = f"ray_precheck failed on this record: {describe(error)}"
            result = _skipped(payload, fault, begin)
        return self._proven(result) if self._device_raised else result

    def _proven(self, result: TaskResult) -> TaskResult:
        """See whether an error left the device usable; add to the result that it did not."""
        try:
            self.prove()
        except Exception as error:
            self._damage = Cause.POISONED
            note = f"the device was unusable afterwards: {describe(error)}"
            return replace(result, message="; ".join(filter(None, [result.message, note])))
        return result

    def _out_of_memory(self, payload: TaskPayload, error: Exception) -> TaskResult:
        self._damage = Cause.OUT_OF_MEMORY
        limit = self._settings.memory_limit_bytes / 2**30
        allowed = f" (a worker may take {limit:.3g} GiB, --max-memory)" if limit else ""
        has_backward = payload.backward is not None
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        reason = f"ran out of memory: {describe(cause)}{allowed}"
        return failed(payload.index, payload.name, Outcome.CRASHED, reason, has_backward)

    def _examine(
        self, payload: TaskPayload, source: TensorSource | None, begin: float
    ) -> TaskResult:
        record = decode_record(payload.name, payload.forward, payload.backward)
        reason = skip_by_name(record.name, self.framework) or skip_by_record(record)
        if reason:
            raise NotCheckable(reason)
        self._require_memory(record)
        # First of all: the allow list of the bench also says what may be called on the device.
        self.bench.resolve(record.name)
        source = source or self._source(record)
        job = Job(record, build_call(record, source), source, self)
        forward = check_forward(job)
        backward = _backward(job, forward)
        notes = [*forward.messages, *backward.messages, *getattr(source, "notes", [])]
        if Verdict.ERROR in (forward.verdict, backward.verdict):
            notes.extend(self._save_evidence(payload, job, forward, backward))
        raised = Outcome.RAISED in (forward.outcome, backward.outcome)
        return TaskResult(
            index=payload.index,
            name=payload.name,
            outcome=Outcome.RAISED if raised else Outcome.COMPLETED,
            forward=forward.verdict,
            backward=backward.verdict,
            message="; ".join(notes),
            checks=(*forward.checks, *backward.checks),
            elapsed_s=time.perf_counter() - begin,
        )

    def _require_memory(self, record: ApiRecord) -> None:
        limit = self._settings.memory_limit_bytes
        needed = needed_bytes(record)
        if limit and needed > limit:
            raise NotCheckable(
                f"it needs about {needed / 2**30:.3g} GiB of memory, more than the"
                f" {limit / 2**30:.3g} GiB that a worker may take (--max-memory)"
            )

    def _save_evidence(
        self, payload: TaskPayload, job: Job, forward: DirectionCheck, backward: DirectionCheck
    ) -> list[str]:
        """Save the tensors of a failing call; returns what to say where that is not possible."""
        if self._settings.error_folder is None:
            return []
        try:
            save_error_data(
                self._settings.error_folder,
                payload,
                self.framework,
                job.call,
                backward.cotangents,
                {**forward.pairs, **backward.pairs},
                failing=[check.name for check in (*forward.failing, *backward.failing)],
                tested="dump" if self.tests_dump else "device",
            )
        except OSError as error:
            return [f"its tensors could not be saved: {error.strerror or error}"]
        return []

    def _source(self, record: ApiRecord) -> TensorSource:
        if self._settings.task == "tensor":
            return CapturedTensors(self._settings.data_folder)
        return GeneratedTensors(self._settings.seed, str(record.name))


def _backward(job: Job, forward: DirectionCheck) -> DirectionCheck:
    if not job.record.has_backward:
        return DirectionCheck(Verdict.NONE)
    try:
        if forward.outcome is Outcome.RAISED:
            raise NotCheckable("backward: the forward pass raised")
        return check_backward(job)
    except NotCheckable as reason:
        result = DirectionCheck(Verdict.SKIP)
        result.notes.append(str(reason))
        return result


def _skipped(payload: TaskPayload, reason: str, begin: float) -> TaskResult:
    result = skipped(payload.index, payload.name, reason, payload.backward is not None)
    return TaskResult(
        index=result.index,
        name=result.name,
        outcome=result.outcome,
        forward=result.forward,
        backward=result.backward,
        message=result.message,
        elapsed_s=time.perf_counter() - begin,
    )
