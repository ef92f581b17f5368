"""The comparison of two captures from its configuration to its report.

Comes in: a `ComparisonConfig`. Goes out: a `ComparisonReport`, one for each pair of dumps. Called by the
command line, and by programs that import the package. Folders of ranks and steps are paired by step and
rank; each pair is a run of its own, with the same file names in `OUT/{step}/{rank}/`.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_precheck.config import CoreJobOptions
from ray_precheck.errors import StoppedError, UsageError
from ray_precheck.foreign import read_file
from ray_precheck.jobs.comparison.dumps import DumpPair, pair_dumps
from ray_precheck.jobs.comparison.here import compared_here, cores_for_forks
from ray_precheck.jobs.comparison.job import (
    ComparisonJob,
    tables_of,
    tasks_of,
)
from ray_precheck.jobs.comparison.memory import out_of_collector, without_collector
from ray_precheck.jobs.comparison.plan import (
    ComparisonOptions,
    ComparisonPlan,
    plan_comparison,
)
from ray_precheck.jobs.comparison.sides import opened_side
from ray_precheck.options.compare import CapturePairOptions
from ray_precheck.options.declared import require_valid, settings_of
from ray_precheck.options.files import ResumeOptions
from ray_precheck.options.out_folder import OutFolderOptions
from ray_precheck.report.comparison import ComparisonSummary, summarise_comparison
from ray_precheck.report.frames import read_table
from ray_precheck.runtime.driving import (
    RunSetting,
    SharedRun,
    TaskPlan,
    drive_to_end,
    planned,
)
from ray_precheck.runtime.places.choice import Cluster, find_places, on_cores
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.store.opening import opened_run, results_folder
from ray_precheck.store.reads import TENSOR_FOLDER, reads_of_dumps
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.stamps import newest_there, release_stamp, reserved_stamp, stamp_in
from ray_precheck.trace.side import CaptureSide, float32_note

if TYPE_CHECKING:
    import pandas


_STEM = "compare"
# Tensors are compared on processor cores, whatever framework made them.
_ANY_FRAMEWORK = "pytorch"


@dataclass(frozen=True)
class ComparisonConfig(ComparisonOptions, OutFolderOptions, CoreJobOptions, ResumeOptions):
    """The settings of a comparison."""

    section = CapturePairOptions.section

    def validate(self) -> None:
        """Check the values that can be checked without the captures.

        Raises:
            UsageError: names the option, its value and the value that is expected.
        """
        require_valid(self)


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """The report of the comparison of two dumps. `completed` is False if it stopped before its end."""

    label: str
    files: RunFiles
    summary: ComparisonSummary
    completed: bool
    stop_reason: str = ""

    @property
    def results(self) -> "pandas.DataFrame":
        """`compare_result_*.csv` as a data frame, one row for each tensor of both sides."""
        return read_table(self.files.details)

    @property
    def calls(self) -> "pandas.DataFrame":
        """`compare_calls_*.csv` as a data frame, one row for each pair of records."""
        return read_table(self.files.result)


@dataclass(frozen=True, slots=True)
class ComparisonReports:
    """The reports of all pairs of dumps. `without` names dumps of one side that the other lacks."""

    folder: Path
    reports: tuple[ComparisonReport, ...]
    completed: bool
    stop_reason: str = ""
    without: tuple[str, ...] = ()


def compare_captures(
    target: str | Path,
    golden: str | Path,
    *,
    out: str | Path = "./",
    show_progress: bool = False,
    **options: Any,
) -> ComparisonReports:
    """Compare two captures; the tables of each report are pandas data frames.

    `options` are the other fields of `ComparisonConfig`: `standard`, `match`, `noise`, `devices`, ...

    Raises:
        PrecheckError: a capture or an option is wrong.
    """
    config = ComparisonConfig(target=Path(target), golden=Path(golden), out=Path(out), **options)
    return run_comparison(config, show_progress=show_progress)


def run_comparison(
    config: ComparisonConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[Path], None] = lambda path: None,
    shared: SharedRun | None = None,
) -> ComparisonReports:
    """Run what `config` asks for. `on_files` is called with the file or folder to go on with.

    A comparison that is a part of a larger run has `shared` with the other parts.

    Raises:
        PrecheckError: a wrong option, capture or device. A run that had to stop later on is reported
            as not completed, and can go on with `resume_csv`.
    """
    config.validate()
    config = replace(config, device_type="cpu")
    pairs, without = pair_dumps(config)
    is_many = len(pairs) > 1 or bool(pairs[0].place.parts)
    resume = config.resume_csv
    folder = results_folder(config.out, resume)
    say = _sayer(show_progress)
    for label in without:
        say(f"warning: {label} has no partner on the other side and is left out")
    reports: list[ComparisonReport] = []
    reason, completed = "", False
    with ExitStack() as opened:
        if shared is None:
            stop = opened.enter_context(stop_on_signal())
            stamp = opened.enter_context(_stamp(config, folder, [pair.place for pair in pairs]))
            cluster = Cluster(config, opened)
            shared = SharedRun(cluster, stamp, stop.is_set, resume is not None)
        for number, pair in enumerate(pairs, 1):
            if shared.stop_requested():
                break
            if is_many:
                say(f"{pair.label} ({number} of {len(pairs)})")
            try:
                report = _compare_pair(config, pair, folder, shared, show_progress, on_files)
            except StoppedError as error:
                if not reports and resume is None:
                    raise
                reason = "" if shared.stop_requested() else str(error)
                break
            reports.append(report)
            if not report.completed:
                reason = report.stop_reason
                break
        else:
            completed = True
    return ComparisonReports(folder, tuple(reports), completed, reason, without)


@contextmanager
def _stamp(config: ComparisonConfig, folder: Path, places: Sequence[Path]) -> Iterator[str]:
    """Hold the stamp of the files: a new one, or that of the run that is gone on with.

    Raises:
        UsageError: there is no such run.
    """
    resume = config.resume_csv
    if resume is None:
        with reserved_stamp(folder, _STEM, places) as stamp:
            yield stamp
        return
    if resume.suffix == ".csv":
        stamp = stamp_in(resume)
        if not stamp:
            raise UsageError(
                f"-csv_path {resume} names no run to go on with; compare_result_{{timestamp}}.csv or"
                " compare_calls_{timestamp}.csv of it is expected, or its folder"
            )
    else:
        stamp = newest_there(folder, places, f"{_STEM}_calls_*.csv")
        if not stamp:
            raise UsageError(f"{folder} has no {_STEM}_calls_*.csv of a run to go on with")
    release_stamp(folder, _STEM, stamp)
    yield stamp


def _compare_pair(
    config: ComparisonConfig,
    pair: DumpPair,
    folder: Path,
    shared: SharedRun,
    show: bool,
    on_files: Callable[[Path], None],
) -> ComparisonReport:
    """Compare two dumps, or go on with their comparison."""
    with ExitStack() as held:
        own = folder / pair.place
        with without_collector():
            target, golden = (opened_side(paths, own, held) for paths in (pair.target, pair.golden))
            noise = opened_side(pair.noise, own, held) if pair.noise else None
            say = _sayer(show)
            for note in filter(None, (target.note, golden.note)):
                say(f"warning: {note}")
            plan = plan_comparison(target, golden, noise, config)
        held.enter_context(out_of_collector())
        # Before any file is made: an error about the devices leaves nothing behind.
        places = None
        if not plan.is_done_here(config):
            framework = target.header.framework or _ANY_FRAMEWORK
            asked = on_cores(config)
            places = find_places(asked, framework, shared.cluster, show=show, device_runs=False)
        tables = tables_of(plan.settings.mode)
        resumed = _resumed(config, own / tables.file("result", shared.stamp))
        fingerprint = _fingerprint(config, target, golden, noise, plan)
        new, names = shared.new_files(own), set(plan.names)
        sides = {"target": (pair.target, target), "golden": (pair.golden, golden)}
        if noise is not None:
            sides["noise"] = (pair.noise, noise)
        reads = reads_of_dumps((label, paths) for label, (paths, _) in sides.items())
        for label, (paths, side) in sides.items():
            if len(paths) == 1:
                reads[f"{label}/{TENSOR_FOLDER}"] = side.data_folder
        opened = held.enter_context(
            opened_run(resumed, new, names, fingerprint, config, tables, reads)
        )
        files = opened.files
        on_files(folder if pair.place.parts else files.details)
        job = ComparisonJob(
            target,
            golden,
            plan.pieces,
            plan.settings,
            noise=noise,
            noise_of=plan.noise_of,
            shared_fs=config.shared_fs,
        )
        before = len(opened.done & names)
        progress = Progress(len(names), before, show=show, unit=tables.unit)
        cores = cores_for_forks(config.devices) if places is None else None
        planning = _planned(job, plan, opened.done, cores)
        setting = RunSetting(config, shared.cluster, places, files, progress, shared.stop_requested)
        end = drive_to_end(job, planning, setting, is_new=opened.is_new)
        end.require_rows()
        summary = summarise_comparison(files.result, files.details, tables, len(job.names))
        summary = replace(summary, note=float32_note(target, golden))
        return ComparisonReport(pair.label, files, summary, end.completed, end.reason)


def _resumed(config: ComparisonConfig, table: Path) -> Path | None:
    """Return the table of a pair to go on in, None where its comparison has to begin.

    Raises:
        UsageError: `-csv_path` names the table of a run, which is not there.
    """
    resume = config.resume_csv
    if resume is None:
        return None
    if table.exists():
        return table
    if resume.suffix == ".csv":
        raise UsageError(f"{resume} names no run to go on with: {table} is not there")
    return None


def _fingerprint(
    config: ComparisonConfig,
    target: CaptureSide,
    golden: CaptureSide,
    noise: CaptureSide | None,
    plan: ComparisonPlan,
) -> dict[str, str]:
    """Return the settings that another run must have to go on with this one."""
    found = {"target": target.digest(), "golden": golden.digest(), "mode": plan.settings.mode.value}
    if noise is not None:
        found["noise"] = noise.digest()
    for name in ("api_mapping", "cell_mapping", "data_mapping"):
        path = getattr(config, name)
        if path is not None:
            found[name] = hashlib.sha256(read_file(path)).hexdigest()
    return found | settings_of(config)


def _planned(
    job: ComparisonJob, plan: ComparisonPlan, done: set[str], cores: int | None
) -> "Future[TaskPlan]":
    """Return the tasks that are not done, the longest first; or their rows as this machine makes them on so
    many `cores`."""
    tasks = tasks_of(job, done, plan.costs_s)
    if cores is not None:
        return planned((), compared_here(job, tasks, plan.settings, plan.reading, cores))
    return planned(sorted(tasks, key=lambda task: -task.cost_s))


def _sayer(show: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if show:
            print(line, file=sys.stderr, flush=True)

    return say
