"""What a call changed beside its outputs, on both sides: running statistics, the states of an optimizer.

Comes in: `Benched`. Goes out: the pairs that the judge compares, as it does outputs, and what is to be said
where there is nothing to compare. Called by `check.judge`.

A call may change a tensor and need not: statistics stay where a network is evaluated. So a tensor counts
where one side has changed it, and what neither has changed has no row.
"""

from typing import NamedTuple

import numpy as np

from ray_precheck.bench.changes import changed_tensors
from ray_precheck.check.sides.bench import Benched
from ray_precheck.check.sides.captured import tensors_of
from ray_precheck.descriptors.known import find_framework
from ray_precheck.frameworks.base import changed_by
from ray_precheck.frameworks.pytorch.names import resolve_torch
from ray_precheck.operators.effects import CHANGES
from ray_precheck.schema.values import HostTensor


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
