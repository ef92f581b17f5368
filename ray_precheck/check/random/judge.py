"""The forward and the backward check of a call whose output is random.

Comes in: a `Job`. Goes out: a `DirectionCheck`. Called by the checker in the place of
`check.judge`. There is no bench to compare with: what comes out is judged by facts that hold
whatever was drawn, and by statistics whose limits an honest generator leaves once in a million calls.
"""

from typing import Protocol, runtime_checkable

import numpy as np

from ray_precheck.check.job import DirectionCheck, Job
from ray_precheck.check.judge import device_failed, tested_outputs
from ray_precheck.check.measured import cotangents_of
from ray_precheck.check.random.arguments import RandomCall, bind
from ray_precheck.check.random.rules import RandomRule, is_seeded, rule_of
from ray_precheck.check.sides.captured import captured_gradients
from ray_precheck.compare.random.bounds import FALSE_ALARM_RATE
from ray_precheck.compare.random.outputs import check_random_output
from ray_precheck.errors import NotCheckable
from ray_precheck.frameworks.base import Leaf
from ray_precheck.plan.drawing import is_dropping, seed_of
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.values import HostTensor

_JUDGED = "its output is random: judged by statistics"


@runtime_checkable
class Seeded(Protocol):
    """A backend whose generators can be seeded."""

    def seed(self, seed: int) -> None:
        """Seed every generator of the framework and its device."""


def check_random_forward(job: Job, seed: int) -> DirectionCheck:
    """Judge the outputs of a random call.

    Raises:
        NotCheckable: the call cannot be run, or nothing is known of what it should draw.
    """
    rule = _rule(job)
    result = DirectionCheck()
    outputs = tested_outputs(job, result)
    if outputs is None:
        return _device_failed(job)
    call = _random_call(job, rule, outputs, seed)
    # Of no element there is no statistic; the row says so.
    looks = [[] if _is_empty(outputs[0]) else rule.looks(call)] if outputs else []
    if rule.others is not None and len(outputs) > 1:
        looks.append(rule.others(call))
    for position, (tested, its_looks) in enumerate(zip(outputs, looks, strict=False)):
        recorded = job.record.outputs[position] if position < len(job.record.outputs) else None
        check = check_random_output(
            f"{job.record.name}.forward.output.{position}",
            tested,
            its_looks,
            job.sides.framework,
            chance=FALSE_ALARM_RATE / len(looks),
            recorded=recorded,
            repeatable=job.sides.tests_dump or is_seeded(job.record.name, job.sides.framework),
        )
        result.add(check, tested)
    if result.verdict is not Verdict.SKIP:
        result.notes.append(_JUDGED)
    return result


def _is_empty(leaf: Leaf) -> bool:
    return isinstance(leaf, HostTensor) and not leaf.data.size


def _device_failed(job: Job) -> DirectionCheck:
    """Judge an API that the device cannot run: an error only where torch can on the CPU.

    Raises:
        NotCheckable: torch cannot either, or does not have it, or the CPU lacks a kernel.
    """
    failure = job.measured.error
    assert failure is not None
    if failure.lacks_kernel:
        raise NotCheckable(f"the CPU has no kernel for it: {failure.text}")
    try:
        return device_failed(job)
    except NotCheckable as reason:
        text = str(reason)
        if failure.text in text:
            raise
        raise NotCheckable(f"the device raised: {failure.text}; bench: {text}") from None


def _rule(job: Job) -> RandomRule:
    rule = rule_of(job.record.name, job.sides.framework)
    if rule is None and is_dropping(job.record):
        raise NotCheckable(
            "it drops at random between its steps, which does not show in its output"
        )
    if rule is None:
        raise NotCheckable("its output is random, and no statistic of it is known")
    return rule


def _random_call(job: Job, rule: RandomRule, outputs: list[Leaf], seed: int) -> RandomCall:
    name = f"{job.record.name}\0spread"
    spread = np.random.Generator(np.random.Philox(key=seed_of(seed, name)))
    return RandomCall(bind(rule.signature, job.call), job.call, outputs, spread)


def check_random_backward(job: Job, seed: int) -> DirectionCheck:
    """Judge the gradient of a random call by the draws that its output shows.

    Raises:
        NotCheckable: there is no gradient, or what it should be does not show in the output.
    """
    rule = _rule(job)
    if not job.plan.differentiable:
        raise NotCheckable("backward: no floating tensor among the inputs")
    if rule.gradient is None or len(job.plan.differentiable) != 1:
        raise NotCheckable(
            "backward: its output is random and does not show what the gradient depends on"
        )
    result = DirectionCheck()
    outputs = tested_outputs(job, result)
    if outputs is None:
        raise NotCheckable("backward: the forward pass raised")
    result.notes.clear()  # the forward check has said it
    call = _random_call(job, rule, outputs, seed)
    result.cotangents = job.cotangents or cotangents_of(job, outputs)
    for position, grad in _tested_gradients(job, result).items():
        looks = [] if _is_empty(grad) else rule.gradient(call, result.cotangents[0], grad)
        name = f"{job.record.name}.backward.output.{position}"
        result.add(check_random_output(name, grad, looks, job.sides.framework), grad)
    return result


def _tested_gradients(job: Job, result: DirectionCheck) -> dict[int, HostTensor]:
    """Return the captured gradient, or the device's, by its place; {} where the device raised.

    Raises:
        NotCheckable: there is none, or the CPU has no kernel.
    """
    if job.sides.tests_dump:
        shapes: list[tuple[int, ...] | None] = [
            spec.shape for _, spec in job.record.input_tensors()
        ]
        captured = captured_gradients(job.record, job.source, shapes[:1])
        if captured:
            return dict(captured.values())
        if job.captured is not None:
            raise NotCheckable(
                "backward: the dump holds no gradient of this call; the device's own would be of other"
                " draws than the captured output's"
            )
    measured = job.measured
    if measured.no_gradients:
        raise NotCheckable(measured.no_gradients)
    if measured.gradients is not None:
        return {i: grad for i, grad in enumerate(measured.gradients) if grad is not None}
    failure = measured.gradient_error
    if failure is None or failure.lacks_kernel:
        text = "the forward pass raised" if failure is None else failure.text
        raise NotCheckable(f"backward: the CPU has no kernel for it: {text}")
    result.ruled, result.outcome = Verdict.ERROR, Outcome.RAISED
    result.notes.append(f"backward: the device raised: {failure.text}")
    return {}
