"""The walk through one pair of dumps, with what was measured of them.

Comes in: two open captures, their plan, and the table of the values. Goes out: a `Located`. Called by
`replayed_dump` when all calls of a dump are there, and by the job that searches dumps without files.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from ray_precheck.commands.locate.payload import MeasuredEvidence
from ray_precheck.commands.locate.plan import (
    LocationPlan,
    RunRecords,
    drawing_calls,
    run_records_of,
)
from ray_precheck.commands.locate.walk.estimated import EstimatedEvidence
from ray_precheck.commands.locate.walk.evidence import Evidence
from ray_precheck.commands.locate.walk.roots import INFINITE, UNCHECKED, Located, Root, RootKind
from ray_precheck.commands.locate.walk.seen import GoldenRun, WalkState
from ray_precheck.commands.locate.walk.walk import RootWalk
from ray_precheck.operators.effects import READS_NO_VALUES, UNINITIALISED
from ray_precheck.trace.difference.reading import reading_of
from ray_precheck.trace.flow.flow import FlowRecord, flow_of
from ray_precheck.trace.flow.meetings import meetings_of, overwritten
from ray_precheck.trace.overflow.births import follow
from ray_precheck.trace.overflow.finding import Birth
from ray_precheck.trace.overflow.modules import Modules
from ray_precheck.trace.side import BACKWARD, FORWARD, CaptureSide


def located_in(
    target: CaptureSide,
    golden: CaptureSide | None,
    plan: LocationPlan,
    measured: MeasuredEvidence | None,
    *,
    is_first_step: bool,
) -> Located:
    """Walk through a dump and return what was found in it; `measured` is None where nothing was replayed."""
    ours = run_records_of(target)
    content = measured.content if measured is not None else None
    run = None
    estimated = EstimatedEvidence()
    if golden is not None:
        reading = reading_of(target, golden)
        estimated = EstimatedEvidence(reading.target, reading.golden)
        theirs = run_records_of(golden)
        contents = _contents(measured, plan)
        same = golden.header.framework == target.header.framework
        aligned = plan.alignment
        has_gradients = all(
            any(entry.direction == BACKWARD for entry in side.entries) for side in (target, golden)
        )
        run = GoldenRun(
            theirs.by_key,
            cache(lambda: flow_of(theirs.records, contents)),
            plan.partners,
            same,
            aligned.alone,
            aligned.renamed,
            Modules(golden.folder).of,
            # The first pass through a checkpoint computes without gradients.
            tells_gradients=same and has_gradients and not aligned.is_recomputed,
        )
    evidence: Evidence = estimated if measured is None else replace(measured, otherwise=estimated)
    framework = target.header.framework
    state = WalkState(
        flow_of(ours.records, content),
        evidence,
        run,
        is_first_step,
        drawing_calls(target),
        lambda record: _meaningless(framework, record),
        meetings=meetings_of(target) if golden is not None else {},
        has_modules=target.header.level == "mix",
        module_of=Modules(target.folder).of,
        options=plan.options,
    )
    located = RootWalk(state).run(ours.records)
    located.roots += _births_that_nothing_checked(target, located, ours)
    return located


def _births_that_nothing_checked(
    target: CaptureSide, located: Located, ours: RunRecords
) -> list[Root]:
    """Return the records that could not be checked, and whose statistics say that they made NaN or infinities
    of finite values."""
    suspects = {
        each.key: each
        for each in located.passed
        if each.verdict == UNCHECKED
        and any(item.is_finite is False for item in ours.by_key[each.key].outputs)
    }
    if not suspects:
        return []
    born = (each for each in follow(target).alarms if each.birth in (Birth.BORN, Birth.CAST))
    found = {each.key: each for each in reversed(list(born)) if each.key in suspects}
    return [
        Root(
            RootKind.NON_FINITE, key, suspects[key].direction, suspects[key].place, each.tensor, INFINITE,
            message=f"{each.found.words} in {each.dtype}, {each.message}; {suspects[key].message}",
        )
        for key, each in found.items()
    ]  # fmt: skip


def _meaningless(framework: str, record: FlowRecord) -> Sequence[str]:
    """Return the values of a record that are whatever stood in memory: of `empty`, what `copy_` and the like
    write over, and what a collective does."""
    name = record.entry.call.rpartition(".")[0]
    if UNINITIALISED.of(name, framework):
        return [item.path for item in record.outputs]
    if READS_NO_VALUES.of(name, framework) and record.entry.direction == FORWARD:
        return [item.path for item in record.inputs[:1]]
    return overwritten(record)


def _contents(
    measured: MeasuredEvidence | None, plan: LocationPlan
) -> Callable[[str, str], str] | None:
    if measured is None:
        return None
    known = measured.golden_contents(plan.partners)
    return lambda key, path: known.get((key, path), "")
