"""The whole search for the operator to blame, from its configuration to its report.

Comes in: a `LocationConfig`. Goes out: a `LocationReport`. Called by the command line, and by programs that
import the package. Each dump is searched by itself (`dump`), those without files of tensors together
(`pairs`); then collectives are recomputed from what all ranks brought (`exchanges`), and
`OUT/locate_{timestamp}.csv` ranks what all dumps have. Of a run of several ranks, these are checked against
each other first, as the command `ranks` does.

The search of one dump: its calls replayed where it has files of tensors, and the walk through it. The
replayed calls are a job of their own, whose journal is `OUT/{step}/{rank}/locate_calls_{timestamp}.csv` and
`locate_values_{timestamp}.csv`.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from ray_precheck.commands.locate.elsewhere import DumpPlace, told_by_ranks
from ray_precheck.commands.locate.exchange import Exchanged, exchanges_of, recompute_exchanges
from ray_precheck.commands.locate.job import LocationJob
from ray_precheck.commands.locate.options import LocationConfig
from ray_precheck.commands.locate.plan import (
    LOCATION_TABLES,
    LocationPlan,
    can_be_replayed,
    plan_location,
    read_measured,
    settings_of_replay,
)
from ray_precheck.commands.locate.search import (
    DumpToLocate,
    LocationReport,
    LocationSearch,
    PartEnd,
    dumps_to_locate,
    has_tensor_files,
    located_in,
    search_pairs,
)
from ray_precheck.commands.locate.table import LocatedRows, write_location
from ray_precheck.commands.locate.walk.collectives import Recomputed, joined_dumps
from ray_precheck.commands.locate.walk.places import DumpRoots, ranked
from ray_precheck.commands.ranks.job import RANK_TABLES
from ray_precheck.commands.ranks.options import RanksConfig
from ray_precheck.commands.ranks.run import RankChecks, run_rank_checks
from ray_precheck.errors import DumpError, ResumeError, StoppedError, UsageError
from ray_precheck.formats.conversion import find_captures
from ray_precheck.options.shared import MEGENGINE, CoreJobOptions
from ray_precheck.replay.loading import load_checker
from ray_precheck.running.run import (
    Feature,
    RunEnd,
    RunSession,
    Series,
    planned,
    results_folder,
    run_each,
    run_job,
    session_of_several,
)
from ray_precheck.runtime.driving import TaskPlan
from ray_precheck.runtime.places.choice import on_cores
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.resume import newest_there
from ray_precheck.store.settings import TENSOR_FOLDER, reads_of_dumps
from ray_precheck.store.tables import RunFiles
from ray_precheck.trace.side import CaptureSide, float32_note, open_side, without_collector


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the searches of single dumps gather beside their roots.

    By the label of a dump, `opened` has its dump.json and the golden one, `errors` its folder of saved
    tensors. `notes` are sentences about captures that were cut off, `exchanges` the collectives of all dumps.
    """

    notes: list[str] = field(default_factory=list)
    opened: dict[str, tuple[Path, Path | None]] = field(default_factory=dict)
    errors: dict[str, Path] = field(default_factory=dict)
    exchanges: list[Exchanged] = field(default_factory=list)


def search_dump(
    pair: DumpToLocate, search: LocationSearch, gathered: Gathered
) -> PartEnd[DumpRoots]:
    """Search a dump, or resume that.

    Raises:
        UsageError: nothing can be replayed, and there is no golden run.
        PrecheckError: a capture cannot be read, or the search stopped before a row was written.
    """
    with ExitStack() as held:
        target = held.enter_context(open_side(pair.target))
        golden = held.enter_context(open_side(pair.golden)) if pair.golden else None
        gathered.notes.extend(
            side.note for side in (target, golden) if side is not None and side.note
        )
        gathered.notes.extend(filter(None, [float32_note(target, golden)]))
        gathered.opened[pair.label] = target.path, golden.path if golden is not None else None
        plan = plan_location(target, golden, search.options)
        if not plan.is_replayed and golden is None:
            if not can_be_replayed(framework := target.header.framework):
                raise UsageError(
                    f"{target.path} is of {framework}, whose operators cannot be replayed here: name a golden"
                    " run with -gp (`overflow_check` finds where NaN and infinity were born)"
                )
            raise UsageError(
                f"{target.path} has no files of tensors, so that nothing can be replayed: name a golden"
                " run with -gp, or capture with --task tensor (`overflow_check` finds where NaN and"
                " infinity were born)"
            )
        measured = None
        if plan.is_replayed:
            feature, folder = (
                _Replay(pair, target, golden, plan, search),
                search.folder / pair.place,
            )
            resumed = search.session.resumed(folder, LOCATION_TABLES)
            files, end = run_job(feature, search.config, search.session, folder, resumed)
            if not end.completed:
                return PartEnd(None, False, end.stop_reason)
            gathered.errors[pair.label] = files.errors
            measured = read_measured(files.details)
            gathered.exchanges.extend(exchanges_of(target, pair.label, pair.step, pair.rank))
        is_first_step = pair.step == search.first_step
        located = located_in(target, golden, plan, measured, is_first_step=is_first_step)
        return PartEnd(DumpRoots(pair.step, pair.rank, pair.label, located))


class _Replay(Feature[LocationJob, tuple[RunFiles, RunEnd]]):
    """The calls of a dump, replayed from its files of tensors."""

    tables = LOCATION_TABLES

    def __init__(
        self,
        pair: DumpToLocate,
        target: CaptureSide,
        golden: CaptureSide | None,
        plan: LocationPlan,
        search: LocationSearch,
    ) -> None:
        self._pair, self._plan, self._search = pair, plan, search
        self._sides = target, golden
        self.places = search.session.cores_for(
            search.config, target.header.framework, sum(plan.costs_s)
        )
        # Before any file is made: an error about what is installed leaves nothing behind.
        settings_of_replay(target, golden, None, 1)
        frameworks = {side.header.framework for side in self._sides if side is not None}
        self.load = partial(load_checker, *sorted(frameworks))
        sides = {"target": target} | ({"golden": golden} if golden else {})
        self.names = list(dict.fromkeys(payload.name for payload in plan.payloads))
        self.fingerprint = search.fingerprint(
            **{label: side.digest() for label, side in sides.items()}
        )
        self.reads = reads_of_dumps((label, [side.path]) for label, side in sides.items())
        for label, side in sides.items():
            self.reads[f"{label}/{TENSOR_FOLDER}"] = side.data_folder

    def to_go_on_with(self, files: RunFiles) -> Path:
        return self._search.folder if self._pair.place.parts else files.result

    def job(self, files: RunFiles, done: set[str]) -> LocationJob:
        framework = self._sides[0].header.framework
        self._search.note_environment(files, framework, len(self.names))
        config = self._search.config
        slots = len(config.devices) if not isinstance(config.devices, str) else 1
        settings = settings_of_replay(*self._sides, files.errors.absolute(), slots)
        return LocationJob(self._plan.payloads, settings, shared_fs=config.shared_fs)

    def plan(self, job: LocationJob, done: set[str], progress: Progress) -> TaskPlan:
        return planned(job, self._plan.tasks(done), self.places)

    def report(self, files: RunFiles, end: RunEnd) -> tuple[RunFiles, RunEnd]:
        return files, end


_BEGIN = "locate_"
_ONLY_RANKS = (
    "there are no files of tensors and no golden run, so that calls were not judged by themselves: the ranks"
    " were checked against each other (name a golden run with -gp, or capture with --task tensor)"
)


def locate_captures(
    target: str | Path,
    golden: str | Path | None = None,
    *,
    out: str | Path = "./",
    show_progress: bool = False,
    **options: Any,
) -> LocationReport:
    """Find the operator to blame in a capture, perhaps with that of a golden run.

    `options` are the other fields of `LocationConfig`: `match`, `replay`, `graph`, `devices`, ...

    Raises:
        PrecheckError: a capture or an option is wrong.
    """
    other = Path(golden) if golden is not None else None
    config = LocationConfig(target=Path(target), golden=other, out=Path(out), **options)
    return run_location(config, show_progress=show_progress)


def run_location(
    config: LocationConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[Path], None] = lambda path: None,
    session: RunSession | None = None,
) -> LocationReport:
    """Run what `config` asks for. `on_files` is called with the file or folder that resumes it.

    A search that is a part of a larger run has the `session` of all parts.

    Raises:
        PrecheckError: a wrong option, capture or device. A run that had to stop later on is reported as not
            completed, and can be resumed with `resume_csv`.
    """
    config.validate()
    config = on_cores(config)
    folder = results_folder(config.out, config.resume_csv)
    layouts = config.layout, config.golden_layout
    pairs, without = dumps_to_locate(config.target, config.golden, folder, layouts)
    first_step = min((pair.step for pair in pairs), key=_number_in)
    places = [Path(), *(pair.place for pair in pairs)]
    begun = _BEGIN
    is_folder = config.resume_csv is not None and config.resume_csv.is_dir()
    if is_folder and not newest_there(folder, places, f"{_BEGIN}*.csv"):
        begun = RANK_TABLES.file("result", "").removesuffix(".csv")  # It stopped in its first part.
    series = Series(folder, places, _BEGIN.removesuffix("_"), begun)
    with session_of_several(
        config, series, config.resume_csv, session, show=show_progress, on_files=on_files
    ) as session:
        if config.resume_csv is not None and not config.force:
            _require_own_files(folder, session.stamp, pairs)
        whole = _WholeSearch(LocationSearch(config, folder, session, first_step), pairs)
        whole.gathered.notes.extend(
            f"{label} has no partner on the other side and is left out" for label in without
        )
        ranks = None
        try:
            ranks = _checked_ranks(config, folder, session)
        except (
            DumpError
        ) as error:  # Sketches that were cut, for instance: calls can be searched without.
            whole.gathered.notes.append(f"ranks were not checked against each other: {error}")
        if ranks is not None and not ranks.completed:
            return whole.report(PartEnd(None, False, ranks.stop_reason), ranks)
        recomputed = whole.search_all(only_ranks=ranks is not None)
    return whole.report(recomputed, ranks)


def _checked_ranks(config: LocationConfig, folder: Path, session: RunSession) -> RankChecks | None:
    """Check the ranks of the target against each other; returns None where it has one, or processes without
    ranks, or where the standard of another tool is asked for.

    Raises:
        DumpError: none of the dumps can be summarized.
    """
    if config.standard == MEGENGINE:
        return None
    ranks = {each.rank for each in find_captures(config.target).dumps if _rank_folder(each.rank)}
    if len(ranks) < 2:
        return None
    session.say("ranks against each other:")
    same = {each.name: getattr(config, each.name) for each in fields(CoreJobOptions)}
    same["resume_csv"] = session.resumed(folder, RANK_TABLES)
    asked = RanksConfig(dump=config.target, layout=config.layout, out=folder, **same)
    quiet = replace(session, on_files=lambda path: None)  # What goes on is the whole search.
    return run_rank_checks(asked, session=quiet)


def _rank_folder(folder: str) -> str:
    """Return the folder of a rank, "" for that of a process without one (`proc4711`)."""
    return "" if folder.startswith("proc") else folder


def _number_in(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _require_own_files(folder: Path, stamp: str, pairs: Sequence[DumpToLocate]) -> None:
    """Require that the files of a search that is resumed lie where its dumps have theirs: what another
    search found would be written over.

    Raises:
        ResumeError: a file is of a dump that is not searched.
    """
    places = {folder / pair.place for pair in pairs}
    for path in sorted(folder.rglob(LOCATION_TABLES.file("result", stamp))):
        if path.parent not in places:
            raise ResumeError(
                f"-csv_path: {path} is of another search than that of {pairs[0].target}; name the captures"
                " that it was begun with, start a new run, or add --force to go on all the same"
            )


@dataclass(frozen=True, slots=True)
class _WholeSearch:
    """A search of all dumps. Its results grow while it goes on: `found` has the roots of each dump that was
    searched, `together` the rows of the pairs that are one job, by their labels."""

    search: LocationSearch
    pairs: Sequence[DumpToLocate]
    found: list[DumpRoots] = field(default_factory=list)
    gathered: Gathered = field(default_factory=Gathered)
    together: dict[str, LocatedRows] = field(default_factory=dict)

    def search_all(self, *, only_ranks: bool) -> PartEnd[dict[str, list[Recomputed]]]:
        """Search the dumps, then the collectives between them; returns what is known of the collectives of
        each dump, by its label. `only_ranks`: it is enough that ranks were checked against each other, where
        nothing can be replayed and there is no golden run."""
        config = self.search.config
        is_judged = config.golden is not None or config.replay
        if only_ranks and not (is_judged or any(has_tensor_files(p.target) for p in self.pairs)):
            self.gathered.notes.append(_ONLY_RANKS)
            return PartEnd({})
        one_job = _without_files(self.search.config, self.pairs)
        is_many, session = len(self.pairs) > 1, self.search.session
        labels = [pair.label if is_many and pair not in one_job else "" for pair in self.pairs]
        search = partial(self._search_dump, one_job)
        ends = run_each(self.pairs, search, session, labels)
        self.found.extend(each.found for each in ends.reports if each.found is not None)
        if not ends.completed:
            return PartEnd(None, False, ends.stop_reason)
        try:
            return recompute_exchanges(self.gathered.exchanges, self.search)
        except StoppedError as error:  # The search can be resumed: its dumps have their rows.
            return PartEnd(None, False, "" if session.is_stopped else str(error))

    def report(
        self, end: PartEnd[dict[str, list[Recomputed]]], ranks: RankChecks | None
    ) -> LocationReport:
        """Rank what was found, and write the table; where the search came to no end, only report it."""
        search, notes, errors = self.search, tuple(self.gathered.notes), self.gathered.errors
        folder, config = search.folder, search.config
        table = folder / f"{_BEGIN}{search.session.stamp}.csv"
        if end.found is None:
            return LocationReport(
                folder, table, (), tuple(self.found), False, end.stop_reason, notes, errors,
                ranks=ranks,
            )  # fmt: skip
        places = {
            pair.label: DumpPlace(pair.target, pair.golden)
            for pair in self.pairs
            if pair.golden is not None
        }
        with without_collector():
            found = joined_dumps(told_by_ranks(self.found, places), end.found)
            in_order = tuple(ranked(found))
            known = {label: rows.looked for label, rows in self.together.items()}
            opened = self.gathered.opened
            graphs = write_location(table, found, in_order, opened, known, with_graph=config.graph)
        return LocationReport(
            folder, table, in_order, tuple(found), True, "", notes, errors, graphs,
            config.golden is not None, ranks,
            tuple(label for label, rows in self.together.items() if not rows.known),
        )  # fmt: skip

    def _search_dump(
        self, one_job: Sequence[DumpToLocate], pair: DumpToLocate
    ) -> PartEnd[DumpRoots]:
        """Search a dump; all of those that are one job, if it is the first of them."""
        if pair not in one_job:
            return search_dump(pair, self.search, self.gathered)
        if not self.together:
            end = search_pairs(one_job, self.search)
            if end.found is None:
                return PartEnd(None, False, end.stop_reason)
            self.together.update(end.found)
        rows = self.together[pair.label]
        if rows.message:
            self.gathered.notes.append(
                rows.message if rows.known else f"{pair.label}: {rows.message}"
            )
        return PartEnd(DumpRoots(pair.step, pair.rank, pair.label, rows.located))


def _without_files(config: LocationConfig, pairs: Sequence[DumpToLocate]) -> Sequence[DumpToLocate]:
    """Return the pairs that are one job, because nothing can be replayed in them.

    Raises:
        UsageError: calls of whole tensors, which no rank computed with, are to be replayed.
    """
    if config.replay and any(pair.is_whole for pair in pairs):
        raise UsageError(
            f"--replay: {pairs[0].label} are compared by whole tensors, which no rank computed with; leave"
            " --replay out, or name the dump of one rank"
        )
    if config.golden is None or config.replay:
        return ()  # What is wrong with them is said where they are opened.
    if config.standard == MEGENGINE:
        return pairs
    return [pair for pair in pairs if pair.is_whole or not has_tensor_files(pair.target)]
