"""The forward and the backward check of one call.

Comes in: a `Job`. Goes out: a `DirectionCheck`. Called by the checker. Either the captured results
are tested (real mode) or the device's own; the bench is the same for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ray_precheck.bench.run import Bench
from ray_precheck.check.explain import explain_errors
from ray_precheck.check.job import DirectionCheck, Job
from ray_precheck.check.measured import Failure, cotangents_of
from ray_precheck.check.sides.attempt import attempt, attempt_gradients, describe
from ray_precheck.check.sides.captured import captured_gradients
from ray_precheck.check.sides.peers import Peers, Pick
from ray_precheck.compare.ambiguous import chosen_like
from ray_precheck.compare.comparison import no_peers
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Execution, Leaf
from ray_precheck.frameworks.known import find_framework
from ray_precheck.frameworks.pytorch.run import TorchExecution
from ray_precheck.operators.effects import SIZED_BY_VALUES
from ray_precheck.schema.dtypes import DTYPES, Array, saturated_like
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.uncompared import Uncompared
from ray_precheck.schema.values import HostCall, HostTensor, TensorSpec

_UNDERIVABLE = Uncompared(
    "torch has no derivative by this argument, although the dump asks for one"
)
PeersByPlace = Callable[[int, Leaf], Callable[[], Sequence[Array]]]


def check_forward(job: Job) -> DirectionCheck:
    """Compare the outputs.

    Raises:
        NotCheckable: neither side can be run, or only the bench fails.
    """
    result = DirectionCheck()
    tested = tested_outputs(job, result)
    if tested is None:
        return device_failed(job)
    bench = job.bench
    if bench.execution is None:
        raise NotCheckable(f"the bench raised: {describe(bench.error)}")
    expected = chosen_like(
        job.record.name, job.call, tested, bench.execution.outputs, job.sides.framework
    )
    if len(tested) != len(expected):
        return _wrong_count(job, len(tested), len(expected))
    peers = _peers(job, lambda peer, _: peer.outputs)
    for position, (mine, other) in enumerate(zip(tested, expected, strict=True)):
        name = f"{job.record.name}.forward.output.{position}"
        other = _overflowing_like(mine, other)
        result.compare(name, mine, other, job.judge("forward"), peers(position, mine))
    result.notes.extend(_length_note(job, result))
    explain_errors(job, result, lambda call, _: job.run_bench(call).outputs)
    return result


def _overflowing_like(tested: Leaf, bench: Leaf) -> Leaf:
    """Return the bench's leaf with what overflows the tested dtype as the tested one has it, where the
    format allows more than one way (fp8)."""
    tensors = isinstance(tested, HostTensor) and isinstance(bench, HostTensor)
    if not tensors or tested.shape != bench.shape or DTYPES[bench.dtype].kind != "float":
        return bench
    return replace(bench, data=saturated_like(bench.data, tested.data, tested.dtype))


def _length_note(job: Job, result: DirectionCheck) -> list[str]:
    """Say why shapes differ, where they depend on the values."""
    record = job.record
    if not SIZED_BY_VALUES.of(record.name.type_name, record.framework):
        return []
    if not any(check.metrics is None for check in result.failing):
        return []
    return ["the shape of its output depends on the values: an element counts on one side alone"]


def tested_outputs(job: Job, result: DirectionCheck) -> list[Leaf] | None:
    """Return the captured outputs, or the device's own; None where the device raised.

    Raises:
        NotCheckable: the dump holds none, and the device may not stand in.
    """
    tested = job.captured if job.sides.tests_dump else None
    if tested is not None:
        return tested
    if job.sides.tests_dump:
        result.notes.append(_stand_in(job, "outputs"))
    return job.measured.outputs


def _stand_in(job: Job, what: str) -> str:
    """Say that the device is tested because the dump lacks something; raise where it may not be."""
    if not job.sides.may_run_device:
        raise NotCheckable(f"the dump holds no {what} of this call; --tested device checks them")
    return f"the dump holds no {what} of this call, so this machine's {job.sides.device_label} was tested"


def device_failed(job: Job) -> DirectionCheck:
    """Judge an API that the device cannot run: an error only where the bench can.

    Raises:
        NotCheckable: the bench cannot either, or it is a kernel that the CPU lacks.
    """
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
    bench = job.sides.bench
    author = bench.origin(job.record.name) if isinstance(bench, Bench) else ""
    if author:
        theirs = "the dump holds" if job.sides.tests_dump else "the device returned"
        raise NotCheckable(f"{author} returned {expected} outputs where {theirs} {tested}")
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
    if job.captured is not None:
        _require_same_choice(job, job.captured, bench.outputs)
    cotangents = cotangents_of(job, bench.outputs)
    result = DirectionCheck()
    result.cotangents = cotangents
    grads, error = attempt(lambda: _bench_gradients(job, bench, cotangents))
    if grads is None:
        raise NotCheckable(f"backward: the bench raised: {describe(error)}")
    shapes = [None if grad is None else grad.shape for grad in grads]
    matched = captured_gradients(job.record, job.source, shapes)
    peers = _peers(job, lambda peer, moved: _bench_gradients(job, peer, moved), cotangents)
    for mine, (theirs, tested) in matched.items():
        name = f"{job.record.name}.backward.output.{theirs}"
        result.compare(name, tested, grads[mine], job.judge("backward"), peers(mine, tested))
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
    is_node = find_framework(job.sides.framework).node_gradients
    if is_node and isinstance(bench, TorchExecution):
        return bench.node_gradients(cotangents)
    return _by_input(job, bench.gradients(cotangents))


def _by_input(job: Job, grads: list[HostTensor | None]) -> list[HostTensor | None]:
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
    _require_same_choice(job, measured.outputs, bench.execution.outputs)
    cotangents = job.cotangents or cotangents_of(job, measured.outputs)
    grads, failure = measured.gradients, measured.gradient_error
    expected, bench_error = attempt_gradients(bench, cotangents)
    if expected is None:
        raise NotCheckable(_bench_failed(failure, bench_error))
    result = DirectionCheck()
    result.cotangents = cotangents
    if grads is None:
        assert failure is not None
        if failure.lacks_kernel:
            raise NotCheckable(f"backward: the CPU has no kernel for it: {failure.text}")
        result.ruled, result.outcome = Verdict.ERROR, Outcome.RAISED
        result.notes.append(f"backward: the device raised where the bench is fine: {failure.text}")
        return result
    peers = _peers(job, lambda peer, moved: peer.gradients(moved), cotangents)
    for position, (mine, other) in enumerate(zip(grads, expected, strict=True)):
        name = f"{job.record.name}.backward.output.{position}"
        wanted = _UNDERIVABLE if other is None else other
        result.compare(name, mine, wanted, job.judge("backward"), peers(position, mine))
    explain_errors(job, result, lambda call, incoming: job.run_bench(call).gradients(incoming))
    return result


def _require_same_choice(job: Job, tested: Sequence[Leaf], bench: Sequence[Leaf]) -> None:
    """Raise where the device took others of several right outputs: their gradients differ too."""
    chosen = chosen_like(job.record.name, job.call, tested, bench, job.sides.framework)
    for mine, other in zip(chosen, bench, strict=True):
        # Vectors are turned by factors that are 1 but for rounding where both took the same.
        if mine is not other and not np.allclose(mine.data, other.data, 1e-3, 1e-3, equal_nan=True):
            raise NotCheckable(
                "backward: of several right outputs (equal values, signs of vectors) the device took"
                " others than the bench, and their gradients differ"
            )


def _bench_failed(failure: Failure | None, bench_error: Exception | None) -> str:
    if failure is None:
        return f"backward: the bench raised: {describe(bench_error)}"
    return (
        f"backward: device and bench raised; device: {failure.text}; bench: {describe(bench_error)}"
    )


def _peers(job: Job, pick: Pick, cotangents: Sequence[HostTensor | None] = ()) -> PeersByPlace:
    """Return what gives the peers of a leaf by its position; nothing is run before they are read."""
    peers = Peers(
        job.sides.bench.resolve(job.record.name),
        job.call,
        job.plan,
        pick,
        tuple(cotangents),
        kernel_is_tested=job.sides.tests_own_kernel,
    )

    def of(position: int, tested: Leaf) -> Callable[[], Sequence[Array]]:
        return partial(peers.of, position, tested) if isinstance(tested, HostTensor) else no_peers

    return of
