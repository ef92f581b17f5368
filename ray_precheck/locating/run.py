"""The search for the operator to blame, from its configuration to its report.

Comes in: a `LocationConfig`. Goes out: a `LocationReport`. Called by the command line, and by programs that
import the package. The calls of each dump are a job of their own, with journals in `OUT/{step}/{rank}/`; when
all are there, the walk through each dump finds where errors begin, and `OUT/locate_{timestamp}.csv` ranks
what all dumps have.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_precheck.config import JobOptions
from ray_precheck.errors import ResumeError, StoppedError, UsageError
from ray_precheck.jobs.location.dumps import DumpToLocate, dumps_to_locate
from ray_precheck.jobs.location.exchange import Exchanged, ExchangeJob, exchanges_of
from ray_precheck.jobs.location.job import LocationJob, open_runner
from ray_precheck.jobs.location.payload import LOCATION_TABLES, read_measured
from ray_precheck.jobs.location.plan import LocationPlan, plan_location, settings_of_replay
from ray_precheck.jobs.location.rows import LocatedRows
from ray_precheck.jobs.location.walk import located_in
from ray_precheck.locating_exchanges import ExchangeSearch, recompute_exchanges
from ray_precheck.locating_pairs import PairSearch, has_tensor_files, search_pairs
from ray_precheck.options.declared import require_valid, settings_of
from ray_precheck.options.files import ResumeOptions
from ray_precheck.options.locate import LocateOptions
from ray_precheck.options.out_folder import OutFolderOptions
from ray_precheck.report.frames import read_table
from ray_precheck.report.location import write_location
from ray_precheck.runtime.driving import RunSetting, SharedRun, TaskPlan, drive
from ray_precheck.runtime.places.choice import Cluster, Places, find_places
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.store.resume import (
    RunFiles,
    discard_run,
    hold_files,
    resume_run,
    run_files,
    start_run,
)
from ray_precheck.store.stamps import newest_of, reserved_stamp, stamp_in
from ray_precheck.trace.locating.collectives import Recomputed, joined_dumps
from ray_precheck.trace.locating.places import DumpRoots, RootPlace, ranked
from ray_precheck.trace.side import CaptureSide, open_side

if TYPE_CHECKING:
    import pandas

# Ray and its workers, which import the bench's framework, take so much longer to start than this process.
_START_OF_RAY_S = 10.0
_BEGIN = "locate_"


@dataclass(frozen=True)
class LocationConfig(LocateOptions, OutFolderOptions, JobOptions, ResumeOptions):
    """The settings of a search for the operator to blame."""

    section = LocateOptions.section

    def validate(self) -> None:
        """Check the values that can be checked without the captures.

        Raises:
            UsageError: names the option, its value and the value that is expected.
        """
        require_valid(self)


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
    shared: SharedRun | None = None,
) -> LocationReport:
    """Run what `config` asks for. `on_files` is called with the file or folder to go on with.

    A search that is a part of a larger run has `shared` with the other parts.

    Raises:
        PrecheckError: a wrong option, capture or device. A run that had to stop later on is reported as not
            completed, and can go on with `resume_csv`.
    """
    config.validate()
    if config.devices == (0,):
        config = replace(config, devices=tuple(range(len(os.sched_getaffinity(0)))))
    config = replace(config, device_type="cpu", bench_workers=0)
    pairs, without = dumps_to_locate(config.target, config.golden)
    resume = config.resume_csv
    folder = config.out if resume is None else resume.parent if resume.is_file() else resume
    notes = [f"{label} has no partner on the other side and is left out" for label in without]
    found: list[DumpRoots] = []
    errors: dict[str, Path] = {}
    with ExitStack() as opened:
        if shared is None:
            stop = opened.enter_context(stop_on_signal())
            stamp = opened.enter_context(_stamp(config, folder))
            shared = SharedRun(Cluster(config, opened), stamp, stop.is_set)
        stopped = shared.stop_requested
        run = _Run(
            config,
            folder,
            shared,
            show_progress,
            on_files,
            min((pair.step for pair in pairs), key=_number_in),
        )
        table = folder / f"{_BEGIN}{run.stamp}.csv"
        searched: dict[str, LocatedRows] = {}
        walked = _without_files(config, pairs)
        for number, pair in enumerate(pairs, 1):
            if len(pairs) > 1 and pair not in walked and show_progress:
                print(f"{pair.label} ({number} of {len(pairs)})", file=sys.stderr, flush=True)
            reason = ""
            try:
                if pair in walked and not searched:
                    searched = run.search(walked)
                roots = None if stopped() else run.locate(pair, notes, errors, searched)
            except StoppedError as error:
                if not found and resume is None:
                    raise
                roots, reason = None, "" if stopped() else str(error)
            if roots is None:
                return LocationReport(
                    folder, table, (), tuple(found), False, reason, tuple(notes), errors
                )
            found.append(roots)
        recomputed = run.recompute()
        if recomputed is None:
            return LocationReport(folder, table, (), tuple(found), False, "", tuple(notes), errors)
    found = joined_dumps(found, recomputed)
    places = tuple(ranked(found))
    known = {label: rows.looked for label, rows in searched.items()}
    graphs = write_location(table, found, places, run.dumps, known, with_graph=config.graph)
    return LocationReport(
        folder, table, places, tuple(found), True, "", tuple(notes), errors, graphs,
        config.golden is not None,
    )  # fmt: skip


def _without_files(config: LocationConfig, pairs: Sequence[DumpToLocate]) -> Sequence[DumpToLocate]:
    """Return the pairs that are one job, because nothing can be replayed in them."""
    if config.golden is None or config.replay:
        return ()  # What is wrong with them is said where they are opened.
    return [pair for pair in pairs if not has_tensor_files(pair.target)]


def _number_in(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _stamp(config: LocationConfig, folder: Path) -> AbstractContextManager[str]:
    """Return the stamp of the files: a new one, or that of the run that is gone on with.

    Raises:
        ResumeError: there is no such run.
    """
    resume = config.resume_csv
    if resume is None:
        return reserved_stamp(folder, _BEGIN.removesuffix("_"))
    if resume.is_dir():
        newest = newest_of(map(stamp_in, folder.rglob(f"{_BEGIN}*.csv")))
        if newest:
            return nullcontext(newest)
        raise ResumeError(f"-csv_path: {folder} has no {_BEGIN}*.csv to go on in")
    stamp = stamp_in(resume)
    if not (resume.name.startswith(_BEGIN) and resume.suffix == ".csv" and stamp):
        raise ResumeError(
            f"-csv_path: {resume} is none of the files of a search; a name like"
            f" {_BEGIN}calls_20260101120000.csv is expected, or the folder of the results"
        )
    if not resume.exists():
        raise ResumeError(f"-csv_path: cannot read {resume}: there is no such file")
    return nullcontext(stamp)


class _Run:
    """One search: what all of its dumps share."""

    def __init__(
        self,
        config: LocationConfig,
        folder: Path,
        shared: SharedRun,
        show: bool,
        on_files: Callable[[Path], None],
        first_step: str,
    ) -> None:
        self.config, self.folder, self.stamp = config, folder, shared.stamp
        self.cluster, self.stop_requested = shared.cluster, shared.stop_requested
        self.show, self.on_files, self.first_step = show, on_files, first_step
        self.dumps: dict[str, Path] = {}
        self.exchanges: list[Exchanged] = []

    def search(self, pairs: Sequence[DumpToLocate]) -> dict[str, LocatedRows]:
        """Search the dumps in which nothing can be replayed; returns {} if it was stopped on request."""
        search = PairSearch(
            self.config, self.config, self.folder, self.stamp, settings_of(self.config), self.cluster,
            self.stop_requested, self.config.match == "exact", self.first_step, self.show, self.on_files,
        )  # fmt: skip
        return search_pairs(pairs, search) or {}

    def locate(
        self,
        pair: DumpToLocate,
        notes: list[str],
        errors: dict[str, Path],
        searched: Mapping[str, LocatedRows],
    ) -> DumpRoots | None:
        """Search one dump, unless that was done; returns None if it was stopped on request."""
        if pair.label in searched:
            rows = searched[pair.label]
            if rows.message:
                notes.append(rows.message if rows.known else f"{pair.label}: {rows.message}")
            return DumpRoots(pair.step, pair.rank, pair.label, rows.located)
        with ExitStack() as held:
            target = held.enter_context(open_side(pair.target))
            golden = held.enter_context(open_side(pair.golden)) if pair.golden else None
            notes += [side.note for side in (target, golden) if side is not None and side.note]
            self.dumps[pair.label] = target.path
            exact = self.config.match == "exact"
            plan = plan_location(target, golden, exact=exact, must_replay=self.config.replay)
            if not plan.is_replayed and golden is None:
                raise UsageError(
                    f"{target.path} has no files of tensors, so that nothing can be replayed: name a golden"
                    " run with -gp, or capture with --task tensor (`overflow_check` finds where NaN and"
                    " infinity were born)"
                )
            measured = None
            if plan.is_replayed:
                files = self._replay(pair, target, golden, plan, held)
                if files is None:
                    return None
                errors[pair.label] = files.errors
                measured = read_measured(files.details)
                self.exchanges += exchanges_of(target, pair.label, pair.step, pair.rank)
            located = located_in(
                target,
                golden,
                plan,
                measured,
                is_first_step=pair.step == self.first_step,
            )
            return DumpRoots(pair.step, pair.rank, pair.label, located)

    def recompute(self) -> dict[str, list[Recomputed]] | None:
        """Recompute the collectives whose ranks are all there; returns None if it was stopped on request."""
        return recompute_exchanges(
            ExchangeJob(self.exchanges),
            ExchangeSearch(
                self.config, self.config, self.folder, self.stamp, settings_of(self.config), self.cluster,
                self.stop_requested, self.show,
            ),
        )  # fmt: skip

    def _replay(
        self,
        pair: DumpToLocate,
        target: CaptureSide,
        golden: CaptureSide | None,
        plan: LocationPlan,
        held: ExitStack,
    ) -> RunFiles | None:
        """Replay the calls of a dump, or go on with that; returns its files, None if it was stopped."""
        config = self.config
        places = None
        if not self._is_done_here(plan):
            framework = target.header.framework
            places = find_places(config, framework, self.cluster, show=self.show, device_runs=False)
        fingerprint = {"target": target.digest()} | settings_of(config)
        if golden is not None:
            fingerprint["golden"] = golden.digest()
        out = self.folder / pair.place
        resumed = out / LOCATION_TABLES.file("result", self.stamp)
        # Before any file is made: an error about what is installed leaves nothing behind.
        settings_of_replay(target, golden, None, 1)
        is_new = config.resume_csv is None or not resumed.exists()
        if is_new:
            new = start_run(out, self.stamp, fingerprint, LOCATION_TABLES)
            files, done = held.enter_context(hold_files(new)), set[str]()
        else:
            files = held.enter_context(hold_files(run_files(resumed, LOCATION_TABLES)))
            done = resume_run(
                files,
                {payload.name for payload in plan.payloads},
                fingerprint,
                force=config.force,
                retry=config.retry,
                tables=LOCATION_TABLES,
            )
        self.on_files(self.folder if pair.place.parts else files.result)
        slots = len(config.devices) if not isinstance(config.devices, str) else 1
        settings = settings_of_replay(target, golden, files.errors.absolute(), slots)
        job = LocationJob(plan.payloads, settings, shared_fs=config.shared_fs)
        return files if self._drive(job, plan, done, files, places, is_new) else None

    def _is_done_here(self, plan: LocationPlan) -> bool:
        if self.config.address or isinstance(self.config.devices, str):
            return False
        return sum(plan.costs_s) < _START_OF_RAY_S or len(self.config.devices) == 1

    def _drive(
        self,
        job: LocationJob,
        plan: LocationPlan,
        done: set[str],
        files: RunFiles,
        places: Places | None,
        is_new: bool,
    ) -> bool:
        tasks = plan.tasks(done)
        progress = Progress(len(job.names), len(done), show=self.show)
        planning: Future[TaskPlan] = Future()
        if places is None:
            planning.set_result(TaskPlan((), _here(job, tasks)))
        else:
            planning.set_result(TaskPlan(sorted(tasks, key=lambda task: -task.cost_s), ()))
        setting = RunSetting(
            self.config, self.cluster, places, files, progress, self.stop_requested
        )
        completed, reason = False, ""
        try:
            completed = drive(job, planning, setting)
        except StoppedError as error:
            reason = str(error)
        finally:
            progress.close()
            is_discarded = is_new and not completed and discard_run(files)
        if reason or is_discarded:
            raise StoppedError(reason or "stopped on request before a row was written; start anew")
        return completed


def _here(job: LocationJob, tasks: Sequence[Any]) -> Any:
    """Yield the rows of calls that are replayed in this process."""
    if not tasks:
        return
    runner = open_runner(job.settings)
    for task in tasks:
        yield runner.run(job.payload(task))
