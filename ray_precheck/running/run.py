"""One run, from what a command gives to its report, and what the runs of one command share.

Comes in: a `Feature`, with the session and the folder of its files. Goes out: the report that it makes.
Called by every command that writes tables. The files are made or gone on with here, and held until the report
is made; the job runs on the cluster, or in this process where the feature has no places. A `RunSession` is
what several runs share: a cluster, and the stamp of their files, new or that of an earlier run.
"""

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from ray_precheck.errors import ResumeError, StoppedError
from ray_precheck.options.shared import CoreJobOptions, JobOptions
from ray_precheck.runtime.driving import RunSetting, TaskPlan, drive
from ray_precheck.runtime.job import Job, Pieces
from ray_precheck.runtime.places.choice import Cluster, Places, find_places, ray_is_running
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.runtime.workers.fork_server import ForkServers, Load, ServerAddress, kept_servers
from ray_precheck.schema.task import DeviceSlot, Done, Task
from ray_precheck.store.results import count_verdicts
from ray_precheck.store.resume import (
    NewFiles,
    discard_run,
    new_stamp,
    newest_of,
    newest_there,
    opened_run,
    release_stamp,
    reserved_stamp,
    stamp_in,
)
from ray_precheck.store.settings import Reads
from ray_precheck.store.tables import RunFiles, Tables

# Ray and its workers, which import the bench's framework, take so much longer to start than a process that
# is there: less work is done in the command's own process.
START_OF_RAY_S = 8.0


@dataclass(frozen=True, slots=True)
class RunSession:
    """What the runs of one command share: over several dumps, or of several jobs.

    `stamp` is in the names of their files; with `goes_on` it is that of an earlier part of them.
    `stop_requested` tells whether they have to stop; None: a run heeds signals while its job is driven.
    `on_files` is called with the file or the folder to go on with, once it is there. `show`: progress and
    warnings are printed on the standard error.
    """

    cluster: Cluster
    servers: ForkServers
    stamp: str
    stop_requested: Callable[[], bool] | None
    goes_on: bool
    show: bool
    on_files: Callable[[Path], None]

    @property
    def is_stopped(self) -> bool:
        """Whether the runs have been asked to stop."""
        return self.stop_requested is not None and self.stop_requested()

    def say(self, line: str) -> None:
        """Print a line for the user."""
        if self.show:
            print(line, file=sys.stderr, flush=True)

    def new_files(self, folder: Path) -> NewFiles:
        """Return where a run that has no files yet makes them."""
        return NewFiles(folder, self.stamp, self.goes_on)

    def fork_server(self, load: Load, config: JobOptions) -> ServerAddress | None:
        """Return a server that forks check processes which have run `load`; None where there is none of this
        process's: the cluster is another's, with an environment of its own."""
        if config.joins or ray_is_running():
            return None
        return self.servers.open(load, debug=config.debug)

    def cores_for(self, config: CoreJobOptions, framework: str, cost_s: float) -> Places | None:
        """Return processor cores for so much work, one for each id of `-d`; None where it is done by this
        process: it is less than Ray and its workers take to start, or a single core was asked for.

        Raises:
            DeviceError: see `find_places`.
        """
        is_local = not config.address and not isinstance(config.devices, str)
        if is_local and (cost_s < START_OF_RAY_S or len(config.devices) == 1):
            return None
        return find_places(config, framework, self.cluster, show=self.show, device_runs=False)

    def resumed(self, folder: Path, tables: Tables) -> Path | None:
        """Return the result table in `folder` to go on in, None where a run has to begin."""
        table = folder / tables.file("result", self.stamp)
        return table if self.goes_on and table.exists() else None


@dataclass(frozen=True, slots=True)
class Series:
    """The files of runs that share one stamp: in these `places` below `folder`.

    `begin` is how the names of their tables begin; `stem` is in the name of the file that keeps their stamp
    from other runs.
    """

    folder: Path
    places: Sequence[Path]
    stem: str
    begin: str

    def stamp_of(self, resumed: Path) -> str:
        """Return the stamp of the runs to go on with, named by their folder or by one of their tables.

        Raises:
            ResumeError: there are no such runs.
        """
        if not _is_table(resumed):
            stamp = newest_there(resumed, self.places, f"{self.begin}*.csv")
            if not stamp:
                raise ResumeError(f"-csv_path: {resumed} has no {self.begin}*.csv to go on in")
            return stamp
        stamp = stamp_in(resumed)
        if not (stamp and resumed.name.startswith(f"{self.stem}_")):
            raise ResumeError(
                f"-csv_path: {resumed} is no table of such a run; a name like"
                f" {self.begin}20260101120000.csv is expected, or the folder of the results"
            )
        if not resumed.exists():
            raise ResumeError(f"-csv_path: cannot read {resumed}: there is no such file")
        return stamp


@contextmanager
def session_of_one(
    config: JobOptions,
    of_all: RunSession | None = None,
    *,
    show: bool,
    on_files: Callable[[Path], None],
) -> Iterator[RunSession]:
    """Open the session of a single run, which makes its own files or names those to go on in; a run that is a
    part of a larger one has the open session `of_all` parts."""
    if of_all is not None:
        yield of_all
        return
    with ExitStack() as opened:
        shared = Cluster(config, opened), opened.enter_context(kept_servers())
        yield RunSession(*shared, new_stamp(), None, False, show, on_files)


@contextmanager
def session_of_several(
    config: JobOptions,
    series: Series,
    resumed: Path | None,
    of_all: RunSession | None = None,
    *,
    show: bool,
    on_files: Callable[[Path], None],
) -> Iterator[RunSession]:
    """Open the session of runs that share one stamp: a new one, or that of the runs `resumed`. Runs that are
    parts of a larger one have the open session `of_all` parts.

    Raises:
        ResumeError: there are no such runs.
        UsageError: the folder cannot be made or written.
    """
    if of_all is not None:
        yield of_all
        return
    with ExitStack() as opened:
        stop = opened.enter_context(stop_on_signal())
        if resumed is None:
            stamp = opened.enter_context(reserved_stamp(series.folder, series.stem, series.places))
        else:
            stamp = series.stamp_of(resumed)
            release_stamp(series.folder, series.stem, stamp)
        shared = Cluster(config, opened), opened.enter_context(kept_servers())
        yield RunSession(*shared, stamp, stop.is_set, resumed is not None, show, on_files)


def resumed_table(resumed: Path | None, tables: Tables) -> Path | None:
    """Return the result table of a single run to go on with: named itself, by its details, or by its folder,
    of which the newest counts.

    Raises:
        ResumeError: there is none in the folder.
    """
    if resumed is None:
        return None
    begin, other = (tables.file(kind, "").removesuffix(".csv") for kind in ("result", "details"))
    if not resumed.is_dir():
        if resumed.name.startswith(begin) and begin.startswith(other):
            return resumed  # The name of the details is how that of the results begins.
        return resumed.with_name(resumed.name.replace(other, begin, 1))
    # Where the result table has no word of its own, the names of the details begin like its name.
    stamps = (
        stamp_in(path)
        for path in resumed.glob(f"{begin}*.csv")
        if path.name == f"{begin}{stamp_in(path)}.csv"
    )
    newest = newest_of(stamps)
    if not newest:
        raise ResumeError(f"-csv_path: {resumed} has no {begin}*.csv to go on in")
    return resumed / tables.file("result", newest)


def results_folder(out: Path, resumed: Path | None) -> Path:
    """Return the folder of the results of several runs: `out`, or that of the runs to go on with, which are
    named by their folder or by one of their tables."""
    if resumed is None:
        return out
    return resumed.parent if _is_table(resumed) else resumed


def _is_table(resumed: Path) -> bool:
    return resumed.suffix == ".csv" and not resumed.is_dir()


JobType = TypeVar("JobType", bound=Pieces)
Report = TypeVar("Report")
_THIS_PROCESS = DeviceSlot("cpu", 0, "", "", "")


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: at its end (`completed`), for the reason `stop_reason`, or on request. `is_new`: its
    files were made by it, not gone on with."""

    completed: bool
    stop_reason: str
    is_new: bool


class Feature(ABC, Generic[JobType, Report]):
    """What one run of a command does.

    `names` are all its pieces, `fingerprint` the settings that another run must have to go on with this one,
    `reads` the files that must be the same, `places` the devices, which were found before any file was made;
    None where every row is made in this process: then the job need be no more than its `Pieces`. With
    `plans_long` the plan is made while workers start. `load` imports what their processes need.
    """

    tables: Tables
    names: Sequence[str]
    fingerprint: dict[str, str]
    reads: Reads = MappingProxyType({})
    places: Places | None = None
    plans_long = False
    load: Load | None = None

    @abstractmethod
    def job(self, files: RunFiles, done: set[str]) -> JobType:
        """Return the job; `done` are the names that have rows already."""

    @abstractmethod
    def plan(self, job: JobType, done: set[str], progress: Progress) -> TaskPlan:
        """Return the tasks that are not done, and the rows that need no worker; see `planned`."""

    @abstractmethod
    def report(self, files: RunFiles, end: RunEnd) -> Report:
        """Return the report of a run that has rows; this process still holds the files."""

    def to_go_on_with(self, files: RunFiles) -> Path:
        """Return the file or folder that `-csv_path` names to go on with the run."""
        return files.result

    @property
    def is_shown(self) -> bool:
        """Whether there is a progress bar, if the session shows any."""
        return True


def run_job(
    feature: Feature[JobType, Report],
    config: JobOptions,
    session: RunSession,
    folder: Path,
    resumed: Path | None,
) -> Report:
    """Run what a command gives to its end, or until it is stopped. `resumed` is the result table to go on in,
    None for new files in `folder`.

    Raises:
        StoppedError: the run stopped before a row was written; a new run leaves no files.
        ResumeError: the files cannot be gone on with, or another run has them.
        PrecheckError: the files cannot be made, planning failed, or no cluster answers.
    """
    names = set(feature.names)
    new = session.new_files(folder)
    with (
        ExitStack() as held,
        opened_run(
            resumed, new, names, feature.fingerprint, config, feature.tables, feature.reads
        ) as opened,
    ):
        files, done = opened.files, opened.done & names
        session.on_files(feature.to_go_on_with(files))
        # First of all, because nothing takes as long as its imports.
        server = None
        if feature.load is not None and feature.places is not None and done < names:
            server = session.fork_server(feature.load, config)
        show = session.show and feature.is_shown
        before = count_verdicts(files.result, done, feature.tables) if done and show else Counter()
        job = feature.job(files, opened.done)
        progress = Progress(
            len(names), len(done), show=show, counts=before, unit=feature.tables.unit
        )
        planning = _planning(feature, job, opened.done, progress, held)
        setting = RunSetting(
            config,
            session.cluster,
            feature.places,
            files,
            progress,
            session.stop_requested,
            server,
            feature.load,
        )
        end = drive_to_end(job, planning, setting, is_new=opened.is_new)
        return feature.report(files, end)


def planned(job: Job, tasks: Iterable[Task], places: Places | None) -> TaskPlan:
    """Return a plan of these tasks, the longest first; without places this process makes their rows."""
    ordered = sorted(tasks, key=lambda task: -task.cost_s)
    return TaskPlan((), made_here(job, ordered)) if places is None else TaskPlan(ordered, ())


def made_here(job: Job, tasks: Sequence[Task]) -> Iterator[Done]:
    """Yield the rows of tasks that this process does, each when it is asked for."""
    if tasks:
        runner = job.opener(is_home=True).open(_THIS_PROCESS, lambda phase: None)
        for task in tasks:
            yield runner.run(job.payload(task), Stage.DEVICE)


def _planning(
    feature: Feature[JobType, Report],
    job: JobType,
    done: set[str],
    progress: Progress,
    held: ExitStack,
) -> "Future[TaskPlan]":
    if feature.plans_long:
        background = held.enter_context(ThreadPoolExecutor(1))
        return background.submit(feature.plan, job, done, progress)
    # No thread stands beside the forks that a plan may make its rows in.
    planning: Future[TaskPlan] = Future()
    planning.set_result(feature.plan(job, done, progress))
    return planning


def drive_to_end(
    job: Pieces, planning: "Future[TaskPlan]", setting: RunSetting, *, is_new: bool
) -> RunEnd:
    """Run a job to its end, close its progress bar, and remove the files of a new run without a row.

    Raises:
        StoppedError: the run stopped before a row was written.
        PrecheckError: planning failed, or no cluster answers.
    """
    completed, is_discarded, reason = False, False, ""
    try:
        completed = drive(job, planning, setting)
    except StoppedError as error:
        reason = str(error)
    finally:
        setting.progress.close()
        is_discarded = is_new and not completed and discard_run(setting.files)
    if is_discarded:
        raise StoppedError(reason or "stopped on request before a row was written; start anew")
    return RunEnd(completed, reason, is_new)


class Ended(Protocol):
    """The report of a run that may have stopped before its end."""

    @property
    def completed(self) -> bool:
        """Whether it came to its end."""

    @property
    def stop_reason(self) -> str:
        """Why it did not, "" where it was stopped on request."""


Piece = TypeVar("Piece")
EndedReport = TypeVar("EndedReport", bound=Ended)


@dataclass(frozen=True, slots=True)
class SeveralEnds(Generic[EndedReport]):
    """The reports of several runs. `completed` is False where not all came to their ends."""

    reports: tuple[EndedReport, ...]
    completed: bool
    stop_reason: str = ""


def run_each(
    pieces: Sequence[Piece],
    run_one: Callable[[Piece], EndedReport],
    session: RunSession,
    labels: Iterable[str] | None = None,
) -> SeveralEnds[EndedReport]:
    """Run one piece after the other until one stops; `labels` are printed before each.

    Raises:
        StoppedError: the first run stopped before a row was written, so that there is nothing to go on with.
    """
    reports: list[EndedReport] = []
    titles = list(labels or ())
    for number, piece in enumerate(pieces, 1):
        if session.is_stopped:
            return SeveralEnds(tuple(reports), False)
        if titles and titles[number - 1]:
            session.say(f"{titles[number - 1]} ({number} of {len(pieces)})")
        try:
            report = run_one(piece)
        except StoppedError as error:
            if not reports and not session.goes_on:
                raise
            return SeveralEnds(tuple(reports), False, "" if session.is_stopped else str(error))
        reports.append(report)
        if not report.completed:
            return SeveralEnds(tuple(reports), False, report.stop_reason)
    return SeveralEnds(tuple(reports), True)
