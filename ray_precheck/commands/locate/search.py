"""What the parts of a search for the operator to blame share, and the report of all of them.

Goes out: a `LocationSearch`, made by `run` for its own part, and those of `pairs` and `exchange`; and a
`LocationReport`, read by the command line, by a diagnosis, and by programs that import the package.

Also here: which dumps are searched, and with which golden ones; the walk through one pair of dumps, with
what was measured of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from ray_precheck.commands.compare.pairing import in_words, paired_by_place
from ray_precheck.commands.locate.options import LocationConfig, SearchOptions
from ray_precheck.commands.locate.plan import (
    LocationPlan,
    MeasuredEvidence,
    RunRecords,
    drawing_calls,
    run_records_of,
)
from ray_precheck.commands.locate.walk.estimate import EstimatedEvidence
from ray_precheck.commands.locate.walk.nouns import (
    INFINITE,
    UNCHECKED,
    Evidence,
    GoldenRun,
    Located,
    Root,
    RootKind,
    WalkState,
)
from ray_precheck.commands.locate.walk.places import DumpRoots, RootPlace
from ray_precheck.commands.locate.walk.walk import RootWalk
from ray_precheck.dump.folders import FoundDump, find_existing_dumps
from ray_precheck.errors import UsageError
from ray_precheck.operators.effects import READS_NO_VALUES, UNINITIALISED
from ray_precheck.options.declared import group_of, settings_of
from ray_precheck.running.session import RunSession
from ray_precheck.store.results import read_table
from ray_precheck.trace.difference.measuring import reading_of
from ray_precheck.trace.flow import FlowRecord, flow_of, meetings_of, overwritten
from ray_precheck.trace.overflow.births import follow
from ray_precheck.trace.overflow.rows import Birth
from ray_precheck.trace.side import BACKWARD, FORWARD, CaptureSide
from ray_precheck.trace.sources import Modules

if TYPE_CHECKING:
    import pandas

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class LocationSearch:
    """What the parts of a search share. `folder` has the results; `first_step` is the step whose weights the
    runs began with."""

    config: LocationConfig
    folder: Path
    session: RunSession
    first_step: str

    @property
    def options(self) -> SearchOptions:
        """The options that the parts carry."""
        return group_of(self.config, SearchOptions)

    def fingerprint(self, **inputs: str) -> dict[str, str]:
        """Return the settings that another run must have to resume a part that has these inputs."""
        return inputs | settings_of(self.config)


@dataclass(frozen=True, slots=True)
class PartEnd(Generic[Found]):
    """What a part of a search has found, None where it stopped before its end, and why it did."""

    found: Found | None
    completed: bool = True
    stop_reason: str = ""


@dataclass(frozen=True, slots=True)
class LocationReport:
    """The report of a search. `completed` is False if it stopped before its end: `table` was not written.

    `places` has the roots, the likeliest culprit first. `notes` are sentences about captures that were cut
    off and dumps without a partner. `errors` has the folder of saved tensors for each dump, by its label.
    """

    folder: Path
    table: Path
    places: tuple[RootPlace, ...]
    dumps: tuple[DumpRoots, ...]
    completed: bool
    stop_reason: str = ""
    notes: tuple[str, ...] = ()
    errors: dict[str, Path] | None = None
    graphs: tuple[Path, ...] = ()
    is_compared: bool = False

    @property
    def located(self) -> "pandas.DataFrame":
        """`locate_{timestamp}.csv` as a data frame."""
        return read_table(self.table)

    @property
    def judged(self) -> int:
        """How many records have an own error, replayed or estimated."""
        return sum(dump.located.judged for dump in self.dumps)

    @property
    def compared(self) -> int:
        """How many records have a partner in the golden run."""
        return sum(dump.located.compared for dump in self.dumps)


@dataclass(frozen=True, slots=True)
class DumpToLocate:
    """A dump of the target, and its partner; `place` is the folder of its results."""

    target: Path
    golden: Path | None
    place: Path
    label: str
    step: str
    rank: str


def dumps_to_locate(
    target: Path, golden: Path | None
) -> tuple[list[DumpToLocate], tuple[str, ...]]:
    """Return the dumps in the order of their steps and ranks, and the labels of those without a partner.

    Raises:
        UsageError: the folders have nothing in common, or other numbers of ranks.
    """
    ours = find_existing_dumps(target)
    if golden is None:
        found = [_found(each, None, is_many=ours.is_many) for each in ours.dumps]
        return found, ()
    theirs = find_existing_dumps(golden)
    if len(ours.dumps) == len(theirs.dumps) == 1:
        # Whatever their folders are called: proc4711 and proc4712, or a dump that was copied.
        return [_found(ours.dumps[0], theirs.dumps[0], is_many=False)], ()
    pairs, without = paired_by_place(ours.dumps, theirs.dumps)
    if not pairs:
        raise UsageError(
            f"{target} has {in_words(ours.dumps)} and {golden} {in_words(theirs.dumps)}, of which no two are"
            " of the same step and rank; name two folders that correspond (`compare` knows runs with another"
            " number of ranks)"
        )
    return [_found(*pair, is_many=True) for pair in pairs.values()], without


def _found(each: FoundDump, golden: FoundDump | None, *, is_many: bool) -> DumpToLocate:
    return DumpToLocate(
        each.path,
        golden.path if golden is not None else None,
        each.place if is_many else Path(),
        each.label,
        _digits(each.step),
        _digits(each.rank),
    )


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


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
