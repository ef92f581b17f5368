"""The station of the bench: it runs a call forward in float64.

Comes in: `UnderTest`. Goes out: `Benched`, of which the judge gets gradients, and which can run again on
other inputs; and what both sides have changed beside the outputs, as the judge compares it. Called by the
checker, and by `check.random.judge` where a device has raised.

A call may change a tensor and need not: statistics stay where a network is evaluated. So a tensor counts
where one side has changed it, and what neither has changed has no row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.bench.checkable import changed_tensors
from ray_precheck.bench.run import Bench
from ray_precheck.check.attempt import Attempt, attempt_forward
from ray_precheck.check.inputs import Inputs
from ray_precheck.check.tested import UnderTest, tensors_of
from ray_precheck.descriptors.known import find_framework
from ray_precheck.frameworks.base import Execution, changed_by
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.frameworks.pytorch.run import TorchExecution
from ray_precheck.operators.effects import CHANGES
from ray_precheck.schema.values import HostCall, HostTensor


@dataclass(frozen=True, slots=True)
class Benched:
    """A call whose results are tested, and the outcome of the bench's forward pass."""

    tested: UnderTest
    attempt: Attempt
    bench: Bench

    @property
    def function(self) -> Callable[..., Any]:
        """The torch callable that is the bench."""
        return self.bench.resolve(self.tested.inputs.record.name)

    @property
    def author(self) -> str:
        """The file and function of a user's own bench, "" for the benches of this package."""
        return self.bench.origin(self.tested.inputs.record.name)

    def run_again(self, call: HostCall) -> Execution:
        """Run the bench on other inputs of the same call; its exceptions are not caught."""
        return self.bench.forward(self.function, call, self.tested.inputs.plan)


def run_bench(bench: Bench, tested: UnderTest) -> Benched:
    """Run the bench forward, unless the second try has run it already.

    Raises:
        NotCheckable: there is no bench.
        OutOfMemory: an allocation failed.
    """
    return Benched(tested, tested.bench or attempt_bench(bench, tested.inputs), bench)


def attempt_bench(bench: Bench, inputs: Inputs) -> Attempt:
    """Return the outcome of the bench's forward pass; raises as `run_bench`."""
    return attempt_forward(bench, inputs.record.name, inputs.bench_call, inputs.plan)


def gradients_as_dumped(
    inputs: Inputs, framework: str, run: Execution, cotangents: list[HostTensor | None]
) -> list[HostTensor | None]:
    """Return gradients of a run in the order in which the framework's dumps list them.

    Where the dump says to which input each gradient belongs, there is one for each tensor of the inputs.
    """
    if inputs.record.gradient_of is not None:
        return _by_input(inputs, run.gradients(cotangents))
    if find_framework(framework).node_gradients and isinstance(run, TorchExecution):
        return run.node_gradients(cotangents)
    return _by_input(inputs, run.gradients(cotangents))


def _by_input(inputs: Inputs, grads: list[HostTensor | None]) -> list[HostTensor | None]:
    """Return a gradient or None for each tensor of the inputs, as MindSpore's dumps list them, too."""
    spread: list[HostTensor | None] = [None] * sum(1 for _ in inputs.record.input_tensors())
    for position, grad in zip(inputs.plan.differentiable, grads, strict=True):
        spread[position] = grad
    return spread


class ChangedPair(NamedTuple):
    """A tensor that a call has changed, after it on both sides; `number` is its place among those that
    the call may change."""

    number: int
    name: str
    tested: HostTensor
    bench: HostTensor


def changed_pairs(benched: Benched) -> tuple[list[ChangedPair], list[str]]:
    """Return what a call has changed, and notes about what cannot be compared; the bench has run."""
    tested, execution = benched.tested, benched.attempt.execution
    assert execution is not None
    inputs = tested.inputs
    if not inputs.plan.changed:
        return [], []
    given, bench_given = tensors_of(inputs.call), tensors_of(inputs.bench_call)
    pairs: list[ChangedPair] = []
    unknown: list[str] = []
    for number, (each, bench) in enumerate(
        zip(changed_tensors(inputs.record), changed_by(execution), strict=True)
    ):
        changes = not _is_same(bench_given[each.position], bench)
        if not tested.changed:
            unknown += [each.name] if changes else []
            continue
        mine = tested.changed[number]
        if changes or (_is_judge(benched) and not _is_same(given[each.position], mine)):
            mine = inputs.statistics_as_computed(mine)
            pairs.append(ChangedPair(number, each.name, mine, bench))
    lacks = "the dump does not hold" if tested.is_captured else "the backend does not give"
    notes = [f"{lacks} {', '.join(unknown)} after the call: not compared"] if unknown else []
    return pairs, notes


def _is_judge(benched: Benched) -> bool:
    """Return whether the bench changes what the tested function has to change: torch's own function of that
    name does, and the references of operators that are known to. Others may only return the outputs."""
    record = benched.tested.inputs.record
    if CHANGES.of(record.name.type_name, record.framework):
        return not benched.author
    is_torch = find_framework(record.framework or "pytorch").is_bench
    return is_torch and benched.function is resolve_torch(record.name)


def _is_same(before: HostTensor, after: HostTensor) -> bool:
    if before.shape != after.shape:
        return False
    return bool(np.array_equal(before.data.astype(after.data.dtype), after.data, equal_nan=True))
