"""What the parts of a search for the operator to blame share, their report, and the search by statistics.

Goes out: a `LocationSearch`, made by `run` for its own part, and those of `search_pairs` and `exchange`; and
a `LocationReport`, read by the command line, by a diagnosis, and by programs that import the package.

Also here: which dumps are searched, and with which golden ones; the walk through one pair of dumps, with
what was measured of them; and the search of dumps without files of tensors, by statistics or sketches:
there a piece of the job is a pair of dumps.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ray_precheck.commands.compare.layouts import DumpPair, whole_pairs, written_whole
from ray_precheck.commands.compare.pairing import in_words, paired_by_place
from ray_precheck.commands.locate.failing import failing_in
from ray_precheck.commands.locate.options import LocationConfig, SearchOptions
from ray_precheck.commands.locate.plan import (
    LocationPlan,
    MeasuredEvidence,
    RunRecords,
    can_be_replayed,
    drawing_calls,
    joined_records,
    plan_location,
    run_records_of,
)
from ray_precheck.commands.locate.table import (
    PAIR_TABLES,
    LocatedRows,
    encoded_located,
    looked_up,
    read_located,
)
from ray_precheck.commands.locate.walk.columns import columns_of
from ray_precheck.commands.locate.walk.estimate import EstimatedEvidence
from ray_precheck.commands.locate.walk.naming import Exchanges
from ray_precheck.commands.locate.walk.nouns import (
    INFINITE,
    INHERITED,
    UNCHECKED,
    Evidence,
    GoldenRun,
    Located,
    Root,
    RootKind,
    WalkState,
    Weights,
)
from ray_precheck.commands.locate.walk.places import DumpRoots, RootPlace
from ray_precheck.commands.locate.walk.screening import (
    ColumnFlow,
    ColumnSurroundings,
    LazyRecords,
    screen_of,
)
from ray_precheck.commands.locate.walk.walk import RootWalk
from ray_precheck.commands.locate.whole import roots_of_whole
from ray_precheck.commands.ranks.run import RankChecks
from ray_precheck.dump.folders import FoundDump
from ray_precheck.dump.tensors import SKETCHES
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.foreign import open_file
from ray_precheck.formats.conversion import find_captures
from ray_precheck.operators.effects import READS_NO_VALUES, UNINITIALISED
from ray_precheck.options.declared import group_of, settings_of
from ray_precheck.options.shared import MEGENGINE
from ray_precheck.running.dumps_job import DumpsJob, DumpWork, as_told, digest_of_dumps
from ray_precheck.running.run import Feature, RunEnd, RunSession, planned, run_job
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.environment import Environment, environment_to_dict
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.results import read_table
from ray_precheck.store.resume import remove_run
from ray_precheck.store.settings import note_environment, reads_of_dumps
from ray_precheck.store.tables import RunFiles, encode_name, encode_row, encode_text
from ray_precheck.trace.difference.measuring import reading_of
from ray_precheck.trace.flow import Flow, FlowRecord, flow_of, meetings_of, overwritten
from ray_precheck.trace.forms import FormedSide, open_formed
from ray_precheck.trace.overflow.births import follow
from ray_precheck.trace.overflow.rows import Birth
from ray_precheck.trace.side import (
    BACKWARD,
    FORWARD,
    CaptureSide,
    float32_note,
    open_side,
    without_collector,
)
from ray_precheck.trace.sources import CONSTRUCT_FILE, Modules

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

    def note_environment(self, files: RunFiles, framework: str, calls: int) -> None:
        """Note in the settings of a part which captures are searched, as the user named them."""
        golden = self.config.golden
        there = Environment(
            framework=framework,
            rule=self.config.standard,
            calls=calls,
            dump=str(self.config.target.absolute()),
            golden="" if golden is None else str(golden.absolute()),
        )
        note_environment(files.settings, environment_to_dict(there))

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
    `ranks` is what ranks tell of each other, None of a run with one. `unread` are the labels of dumps that
    could not be read, and were not searched.
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
    ranks: RankChecks | None = None
    unread: tuple[str, ...] = ()

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
    """A dump of the target, and its partner; `place` is the folder of its results. `is_whole`: both are put
    together of all ranks, because these are laid out in other ways."""

    target: Path
    golden: Path | None
    place: Path
    label: str
    step: str
    rank: str
    is_whole: bool = False


def dumps_to_locate(
    target: Path,
    golden: Path | None,
    results: Path,
    layouts: tuple[str, str] = ("", ""),
    *,
    is_made: bool = True,
) -> tuple[list[DumpToLocate], tuple[str, ...]]:
    """Return the dumps in the order of their steps and ranks, and the labels of those without a partner.

    Those of runs of other layouts are put together in the folder of the results, unless they are there;
    without `is_made` they have to be.

    Raises:
        UsageError: the folders have nothing in common, or a layout has another number of ranks.
    """
    ours = find_captures(target)
    if golden is None:
        found = [_found(each, None, is_many=ours.is_many) for each in ours.dumps]
        return found, ()
    theirs = find_captures(golden)
    if len(ours.dumps) == len(theirs.dumps) == 1:
        # Whatever their folders are called: proc4711 and proc4712, or a dump that was copied.
        return [_found(ours.dumps[0], theirs.dumps[0], is_many=False)], ()
    whole = whole_pairs(ours.dumps, theirs.dumps, layouts=layouts)
    if whole:
        return [_found_whole(pair, results, is_made=is_made) for pair in whole], ()
    pairs, without = paired_by_place(ours.dumps, theirs.dumps)
    if not pairs:
        raise UsageError(
            f"{target} has {in_words(ours.dumps)} and {golden} {in_words(theirs.dumps)}, of which no two are"
            " of the same step and rank; name two folders that correspond"
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


def _found_whole(pair: DumpPair, results: Path, *, is_made: bool) -> DumpToLocate:
    paths = written_whole(pair, results / pair.place, is_made=is_made)
    step = _digits(pair.place.name)
    return DumpToLocate(paths.target, paths.golden, pair.place, pair.label, step, "", is_whole=True)


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
        flow = cache(lambda: flow_of(theirs.records, contents))
        modules = Modules(golden.folder).of
        has_gradients = all(
            any(entry.direction == BACKWARD for entry in side.entries) for side in (target, golden)
        )
        run = GoldenRun(
            {**theirs.by_key, **joined_records(theirs, aligned.joined)},
            flow,
            plan.partners,
            same,
            aligned.alone,
            aligned.renamed,
            modules,
            # The first pass through a checkpoint computes without gradients.
            tells_gradients=same and has_gradients and not aligned.is_recomputed,
            exchanges=_exchanges(golden, theirs.by_key, flow, modules),
        )
    evidence: Evidence = estimated if measured is None else replace(measured, otherwise=estimated)
    framework = target.header.framework
    own_flow, own_modules = flow_of(ours.records, content), Modules(target.folder).of
    exchanges = Exchanges()
    if golden is not None:
        exchanges = _exchanges(target, ours.by_key, lambda: own_flow, own_modules)
    state = WalkState(
        own_flow,
        evidence,
        run,
        is_first_step,
        drawing_calls(target),
        lambda record: _meaningless(framework, record),
        meetings=exchanges.meetings,
        exchanges=exchanges,
        has_modules=target.header.level == "mix",
        module_of=own_modules,
        options=plan.options,
    )
    located = RootWalk(state).run(ours.records)
    located.roots += _births_that_nothing_checked(target, located, ours)
    if target.header.layout:
        located.roots = roots_of_whole(
            located.roots, ours, run, estimated, is_first_step=is_first_step
        )
    return located


def screened(
    target: CaptureSide,
    golden: CaptureSide,
    options: SearchOptions,
    most: int,
    *,
    is_first_step: bool,
) -> Located | None:
    """Return what `located_in` finds where nothing was replayed, without a look at the records at which
    nothing can begin: of those that pass an error on `most` at least are in it, the others are counted.
    None where the captures have not the same records, or sketches, come from two frameworks, or were put
    together of ranks of other layouts."""
    if not (isinstance(target, FormedSide) and isinstance(golden, FormedSide)):
        return None
    framework, reading = target.header.framework, reading_of(target, golden)
    evidence = EstimatedEvidence(reading.target, reading.golden)
    if framework != golden.header.framework or evidence.sees_elements:
        return None
    if target.header.layout or golden.header.layout:
        return None
    columns = columns_of(target, golden)
    if columns is None:
        return None
    weights, records = Weights(), LazyRecords(golden, columns.form.entries)
    modules, own_modules = Modules(golden.folder).of, Modules(target.folder).of
    golden_flow = cache(lambda: flow_of(run_records_of(golden).records))
    golden_exchanges = _exchanges(golden, records, golden_flow, modules)
    screen = screen_of(
        columns, target, weights, golden_exchanges.updated, is_first_step=is_first_step
    )
    run = GoldenRun(
        records,
        golden_flow,
        {entry.key: entry.key for entry in columns.form.entries},
        module_of=modules,
        tells_gradients=any(entry.direction == BACKWARD for entry in target.entries),
        exchanges=golden_exchanges,
    )
    flow = ColumnFlow(screen=screen)
    exchanges = _exchanges(target, screen.records, lambda: flow, own_modules)
    state = WalkState(
        flow,
        evidence,
        run,
        is_first_step,
        drawing_calls(target),
        lambda record: _meaningless(framework, record),
        meetings=exchanges.meetings,
        exchanges=exchanges,
        weights=weights,
        around=ColumnSurroundings(screen),
        has_modules=target.header.level == "mix",
        module_of=own_modules,
        options=options,
    )
    return RootWalk(state).run_screened(screen, most)


def _exchanges(
    side: CaptureSide,
    records: Mapping[str, FlowRecord],
    flow: Callable[[], Flow],
    module_of: Callable[[str], str],
) -> Exchanges:
    """Return the collectives of a run."""

    def raw(key: str) -> Mapping[str, Any]:
        return side.record(records[key].entry) if key in records else {}

    return Exchanges(flow, records, meetings_of(side), module_of, raw)


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


# A core walks through the records of this many bytes of both dumps in a second.
_BYTES_OF_A_SECOND = 16e6
# So many records of all dumps that only pass an error on have rows, and so many of one dump at least.
_MOST_PASSED, _FEWEST_PASSED = 20_000, 100
# The links of so many pairs have rows in any case: the report of a run whose captures are gone draws those of
# its first suspect. Of 1,000 pairs they are 100,000 rows, half of the time that the driver takes at the end.
MOST_LINKED = 200
# The files in the folder of a dump that are read with it.
_BESIDE = (CONSTRUCT_FILE, "stack.json", SKETCHES)


@pickled_by_position
@dataclass(frozen=True, slots=True)
class PairPayload:
    """A pair of dumps to search. `most` records that pass an error on, and as many of collectives, have
    rows, and so many `links`."""

    index: int
    name: str
    target: Path
    golden: Path
    options: SearchOptions
    is_first_step: bool
    most: int
    links: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """Both dumps."""
        return self.target, self.golden


def dump_pairs_job(
    pairs: Sequence[DumpToLocate],
    options: SearchOptions,
    *,
    first_step: str = "",
    shared_fs: bool = False,
) -> DumpsJob[PairPayload]:
    """Return pairs of dumps as a job. `shared_fs`: every machine sees them by the same paths."""
    work = DumpWork(PAIR_TABLES, search, _done, _BYTES_OF_A_SECOND, Verdict.SKIP, _BESIDE)
    most = max(_FEWEST_PASSED, _MOST_PASSED // max(1, len(pairs)))
    links = most if _has_links(pairs, options) else 0
    payloads = [
        PairPayload(
            index, each.label, each.target.absolute(), (each.golden or each.target).absolute(), options,
            each.step == first_step, most, links,
        )
        for index, each in enumerate(pairs)
    ]  # fmt: skip
    return DumpsJob(work, payloads, shared_fs=shared_fs)


def _has_links(pairs: Sequence[DumpToLocate], options: SearchOptions) -> bool:
    return options.graph or len(pairs) <= MOST_LINKED


def search(payload: PairPayload, paths: tuple[Path, ...]) -> Done:
    """Return the rows of a pair: where errors begin, and what passes them on.

    `paths` are where both stand on this machine. A pair that cannot be read is SKIP and has no number of
    records.
    """
    began_s, start = time.time(), time.perf_counter()
    try:
        with without_collector():  # Until nothing that was read is left.
            located, rows, notes = _searched(payload, paths)
    except (DumpError, UsageError, OSError) as error:
        return _done(payload, Verdict.SKIP, as_told(str(error), paths, payload.paths))
    said = as_told("; ".join(notes), paths, payload.paths)
    verdict = Verdict.ERROR if located.roots else Verdict.PASS
    return _done(payload, verdict, said, located, rows, began_s, start)


def _searched(
    payload: PairPayload, paths: tuple[Path, ...]
) -> tuple[Located, list[bytes], list[str]]:
    """Return what was found in a pair, the rows of that, and what is said of the captures."""
    with _opened(paths[0]) as target, _opened(paths[1]) as golden:
        located = _located(payload, target, golden)
        notes = [each for each in (target.note, golden.note, float32_note(target, golden)) if each]
        _shorten(located, payload.most, payload.links)
        return located, [*_rows(payload, located, target.path, golden.path)], notes


def _opened(path: Path) -> CaptureSide:
    return open_formed(path) or open_side(str(path))


def _located(payload: PairPayload, target: CaptureSide, golden: CaptureSide) -> Located:
    options, is_first_step = payload.options, payload.is_first_step
    if options.standard == MEGENGINE:
        return failing_in(target, golden, options)
    found = screened(target, golden, options, payload.most, is_first_step=is_first_step)
    if found is not None:
        return found
    plan = plan_location(target, golden, options)
    return located_in(target, golden, plan, None, is_first_step=is_first_step)


def _shorten(located: Located, most: int, links: int) -> None:
    """Leave out what only passes an error on, beyond so many records, and so many links; others always
    stay."""
    kept = 0
    passed = []
    for each in located.passed:
        kept += each.verdict == INHERITED
        if each.verdict != INHERITED or kept <= most:
            passed.append(each)
    located.left_out += len(located.passed) - len(passed)
    located.passed = passed
    located.shared_left_out = max(0, len(located.shared) - most)
    del located.shared[most:], located.edges[links:]


def _rows(payload: PairPayload, located: Located, path: Path, golden: Path) -> Iterator[bytes]:
    yield from encoded_located(payload.name, located, looked_up(located, path, golden))


def _done(
    payload: PairPayload,
    verdict: Verdict,
    message: str,
    located: Located | None = None,
    rows: Sequence[bytes] = (),
    began_s: float = 0.0,
    start: float = 0.0,
) -> Done:
    counts = [""] * 6
    if located is not None:
        roots = located.roots
        counts = [
            str(located.records), str(located.judged), str(located.compared), str(len(roots)),
            encode_name(roots[0].key) if roots else "", str(located.left_out),
        ]  # fmt: skip
    shared = str(located.shared_left_out) if located is not None else ""
    cells = [encode_name(payload.name), verdict.value, *counts, shared, encode_text(message)]
    took_s = time.perf_counter() - start if start else 0.0
    return Done(
        payload.index, payload.name, verdict, encode_row(cells), b"".join(rows), began_s,
        device_s=took_s,
    )  # fmt: skip


_FRAMEWORK = re.compile(rb'"framework":"([A-Za-z0-9_.-]{1,64})"')
_HEAD_BYTES, _FIRST_RECORDS_BYTES = 1 << 12, 1 << 18


def has_tensor_files(dump: Path) -> bool:
    """Return whether a dump has its tensors in files, as its head says or its first records show, and is of
    a framework whose calls can be run again."""
    try:
        with open_file(dump) as file:
            head = file.read(_FIRST_RECORDS_BYTES)
    except OSError:
        return False
    said = head[:_HEAD_BYTES].replace(b" ", b"")
    named = _FRAMEWORK.search(said)
    if named is not None and not can_be_replayed(named[1].decode()):
        return False
    return b'"data_name"' in head or b'"task":"tensor"' in said


def search_pairs(
    pairs: Sequence[DumpToLocate], search: LocationSearch
) -> PartEnd[dict[str, LocatedRows]]:
    """Search pairs of dumps, or resume that.

    Raises:
        DumpError: none of the pairs could be searched; a new run leaves no file.
        StoppedError: the run stopped before a row was written.
    """
    resumed = search.session.resumed(search.folder, PAIR_TABLES)
    feature = _Pairs(pairs, search)
    return run_job(feature, search.config, search.session, search.folder, resumed)


class _Pairs(Feature[DumpsJob[PairPayload], PartEnd[dict[str, LocatedRows]]]):
    """Pairs of dumps, each searched as a whole."""

    tables = PAIR_TABLES

    def __init__(self, pairs: Sequence[DumpToLocate], search: LocationSearch) -> None:
        self._search = search
        self._job = dump_pairs_job(
            pairs,
            search.options,
            first_step=search.first_step,
            shared_fs=search.config.shared_fs,
        )
        self.names = self._job.names
        labelled = [
            (pair.label, [each for each in (pair.target, pair.golden) if each]) for pair in pairs
        ]
        links = "on" if _has_links(pairs, search.options) else "off"
        self.fingerprint = search.fingerprint(pairs=digest_of_dumps(labelled), links=links)
        self.reads = reads_of_dumps(labelled, tensors=search.options.standard == MEGENGINE)
        cost_s = sum(task.cost_s for task in self._job.tasks(set()))
        self.places = search.session.cores_for(search.config, "pytorch", cost_s)

    @property
    def is_shown(self) -> bool:
        return len(self.names) > 1

    def job(self, files: RunFiles, done: set[str]) -> DumpsJob[PairPayload]:
        self._search.note_environment(files, "", len(self.names))
        return self._job

    def plan(self, job: DumpsJob[PairPayload], done: set[str], progress: Progress) -> TaskPlan:
        return planned(job, job.tasks(done), self.places)

    def report(self, files: RunFiles, end: RunEnd) -> PartEnd[dict[str, LocatedRows]]:
        if not end.completed:
            return PartEnd(None, False, end.stop_reason)
        found = read_located(files.result, files.details)
        if not any(rows.known for rows in found.values()):
            if end.is_new:
                remove_run(files)
            raise DumpError(next((rows.message for rows in found.values()), "no dump was searched"))
        return PartEnd(found)
