"""The forward and the backward check of one call.

Comes in: a `Job`. Goes out: a `DirectionCheck`. Called by the checker. Either the captured results
are tested (real mode) or the device's own; the bench is the same for both.
"""

from ray_precheck.backends.base import Execution, Leaf
from ray_precheck.backends.torch_run import TorchExecution
from ray_precheck.check.captured import captured_gradients, captured_outputs
from ray_precheck.check.explain import explain_errors
from ray_precheck.check.job import DirectionCheck, Job
from ray_precheck.check.measured import Failure, cotangents_of
from ray_precheck.check.sides import attempt, attempt_gradients, describe
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.values import HostCall, HostTensor, TensorSpec


def check_forward(job: Job) -> DirectionCheck:
    """Compare the outputs.

    Raises:
        NotCheckable: neither side can be run, or only the bench fails.
    """
    result = DirectionCheck(Verdict.PASS)
    tested = captured_outputs(job.record, job.source) if job.sides.tests_dump else None
    if tested is None:
        if job.sides.tests_dump:
            result.notes.append(_stand_in(job, "outputs"))
        if job.measured.outputs is None:
            return _device_failed(job)
        tested = job.measured.outputs
    bench = job.bench
    if bench.execution is None:
        raise NotCheckable(f"the bench raised: {describe(bench.error)}")
    expected = bench.execution.outputs
    if len(tested) != len(expected):
        return _wrong_count(job, len(tested), len(expected))
    for position, (mine, other) in enumerate(zip(tested, expected, strict=True)):
        name = f"{job.record.name}.forward.output.{position}"
        result.compare(name, mine, other, job.sides.framework)
    explain_errors(job, result, lambda call, _: job.run_bench(call).outputs)
    return result


def _stand_in(job: Job, what: str) -> str:
    """Say that the device is tested because the dump lacks something; raise where it may not be."""
    if not job.sides.may_run_device:
        raise NotCheckable(f"the dump holds no {what} of this call; --tested device checks them")
    return f"the dump holds no {what} of this call, so this machine's {job.sides.device_label} was tested"


def _device_failed(job: Job) -> DirectionCheck:
    """Judge an API that the device cannot run: an error only where the bench can."""
    failure = job.measured.error
    assert failure is not None
    if job.bench.execution is None:
        raise NotCheckable(
            f"device and bench raised; device: {failure.text}; bench: {describe(job.bench.error)}"
        )
    if failure.lacks_kernel:
        raise NotCheckable(f"the CPU has no kernel for it: {failure.text}")
    result = DirectionCheck(Verdict.ERROR, Outcome.RAISED)
    result.notes.append(f"the device raised where the bench is fine: {failure.text}")
    return result


def _wrong_count(job: Job, tested: int, expected: int) -> DirectionCheck:
    if job.sides.tests_dump:
        raise NotCheckable(f"the dump holds {tested} outputs where the bench has {expected}")
    result = DirectionCheck(Verdict.ERROR)
    result.notes.append(f"{tested} outputs where the bench has {expected}")
    return result


def check_backward(job: Job) -> DirectionCheck:
    """Compare the gradients.

    Raises:
        NotCheckable: there is no gradient to compare, or only the bench fails.
    """
    if not job.plan.differentiable:
        raise NotCheckable("backward: no floating tensor among the inputs")
    if job.sides.tests_dump and job.bench.execution is not None:
        result = _against_captured(job)
        if result is not None:
            return result
        note = _stand_in(job, "gradients")
        result = _against_device(job)
        result.notes.append(note)
        return result
    return _against_device(job)


def _against_captured(job: Job) -> DirectionCheck | None:
    """Compare captured gradients; None where the dump holds none."""
    bench = job.bench.execution
    if not any(isinstance(spec, TensorSpec) for spec in job.record.grads_out or ()):
        return None
    if bench is None or job.bench.gradient_error is not None:
        raise NotCheckable(f"backward: the bench raised: {describe(job.bench.gradient_error)}")
    cotangents = cotangents_of(job, bench.outputs)
    result = DirectionCheck(Verdict.PASS)
    result.cotangents = cotangents
    grads, error = attempt(lambda: _bench_gradients(job, bench, cotangents))
    if grads is None:
        raise NotCheckable(f"backward: the bench raised: {describe(error)}")
    shapes = [None if grad is None else grad.shape for grad in grads]
    matched = captured_gradients(job.record, job.source, shapes)
    for mine, (theirs, tested) in matched.items():
        name = f"{job.record.name}.backward.output.{theirs}"
        result.compare(name, tested, grads[mine], job.sides.framework)
    order = list(matched)

    def recompute(call: HostCall, incoming: list[HostTensor | None]) -> list[Leaf]:
        again = _bench_gradients(job, job.run_bench(call), incoming)
        return [again[position] for position in order]

    explain_errors(job, result, recompute)
    return result


def _bench_gradients(
    job: Job, bench: Execution, cotangents: list[HostTensor | None]
) -> list[HostTensor | None]:
    """Return the bench's gradients in the order in which the framework's dumps list them."""
    if job.sides.framework == "pytorch" and isinstance(bench, TorchExecution):
        return bench.node_gradients(cotangents)
    return _by_input(job, bench.gradients(cotangents))


def _by_input(job: Job, grads: list[HostTensor]) -> list[HostTensor | None]:
    """Return one gradient for each tensor of the inputs, as MindSpore dumps list them."""
    spread: list[HostTensor | None] = [None] * sum(1 for _ in job.record.input_tensors())
    for position, grad in zip(job.plan.differentiable, grads, strict=True):
        spread[position] = grad
    return spread


def _against_device(job: Job) -> DirectionCheck:
    measured, bench = job.measured, job.bench
    if measured.outputs is None or bench.execution is None:
        raise NotCheckable("backward: the forward pass raised")
    if len(measured.outputs) != len(bench.execution.outputs):
        raise NotCheckable("backward: device and bench have different outputs")
    if measured.no_gradients:
        raise NotCheckable(measured.no_gradients)
    cotangents = job.cotangents or cotangents_of(job, measured.outputs)
    grads, failure = measured.gradients, measured.gradient_error
    expected, bench_error = attempt_gradients(bench, cotangents)
    if expected is None:
        raise NotCheckable(_bench_failed(failure, bench_error))
    result = DirectionCheck(Verdict.PASS)
    result.cotangents = cotangents
    if grads is None:
        assert failure is not None
        if failure.lacks_kernel:
            raise NotCheckable(f"backward: the CPU has no kernel for it: {failure.text}")
        result.verdict, result.outcome = Verdict.ERROR, Outcome.RAISED
        result.notes.append(f"backward: the device raised where the bench is fine: {failure.text}")
        return result
    for position, (mine, other) in enumerate(zip(grads, expected, strict=True)):
        name = f"{job.record.name}.backward.output.{position}"
        result.compare(name, mine, other, job.sides.framework)
    explain_errors(job, result, lambda call, incoming: job.run_bench(call).gradients(incoming))
    return result


def _bench_failed(failure: Failure | None, bench_error: Exception | None) -> str:
    if failure is None:
        return f"backward: the bench raised: {describe(bench_error)}"
    return (
        f"backward: device and bench raised; device: {failure.text}; bench: {describe(bench_error)}"
    )
