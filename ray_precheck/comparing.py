"""The comparison of two captures from its configuration to its report.

Comes in: a `ComparisonConfig`. Goes out: a `ComparisonReport`, one for each pair of dumps. Called by the
command line, and by programs that import the package. Folders of ranks and steps are paired by step and
rank; each pair is a run of its own, with the same file names in `OUT/{step}/{rank}/`.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_precheck.config import JobOptions
from ray_precheck.dump.folders import FoundDump, find_dumps
from ray_precheck.errors import StoppedError, UsageError
from ray_precheck.jobs.comparison import (
    ComparisonJob,
    ComparisonRunner,
    tables_of,
    tasks_of,
)
from ray_precheck.jobs.comparison_here import compared_here, cores_for_forks
from ray_precheck.jobs.comparison_plan import (
    ComparisonOptions,
    ComparisonPlan,
    plan_comparison,
)
from ray_precheck.options.compare import CapturePairOptions
from ray_precheck.options.declared import require_valid, settings_of
from ray_precheck.options.files import ResumeOptions
from ray_precheck.options.out_folder import OutFolderOptions
from ray_precheck.report.comparison import ComparisonSummary, summarise_comparison
from ray_precheck.report.frames import read_table
from ray_precheck.runtime.driving import RunSetting, TaskPlan, drive
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
from ray_precheck.store.stamps import new_stamp
from ray_precheck.trace.gathering import gather_ranks, ranks_of_layout
from ray_precheck.trace.side import CaptureSide, open_side

if TYPE_CHECKING:
    import pandas


# Tensors are compared on processor cores, whatever framework made them.
_ANY_FRAMEWORK = "pytorch"


@dataclass(frozen=True)
class ComparisonConfig(ComparisonOptions, OutFolderOptions, JobOptions, ResumeOptions):
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
) -> ComparisonReports:
    """Run what `config` asks for. `on_files` is called with the file or folder to go on with.

    Raises:
        PrecheckError: a wrong option, capture or device. A run that had to stop later on is reported
            as not completed, and can go on with `resume_csv`.
    """
    config.validate()
    config = replace(config, device_type="cpu")
    pairs, without = _pairs(config)
    is_many = len(pairs) > 1 or bool(pairs[0].place.parts)
    resume = config.resume_csv
    folder = config.out if resume is None else resume.parent if resume.is_file() else resume
    say = _sayer(show_progress)
    for label in without:
        say(f"warning: {label} has no partner on the other side and is left out")
    reports: list[ComparisonReport] = []
    reason, completed = "", False
    with ExitStack() as opened, stop_on_signal() as stop:
        shared = _Shared(Cluster(config, opened), _stamp(config, folder), stop.is_set)
        for number, pair in enumerate(pairs, 1):
            if stop.is_set():
                break
            if is_many:
                say(f"{pair.label} ({number} of {len(pairs)})")
            try:
                report = _compare_pair(config, pair, folder, shared, show_progress, on_files)
            except StoppedError as error:
                if not reports and resume is None:
                    raise
                reason = "" if stop.is_set() else str(error)
                break
            reports.append(report)
            if not report.completed:
                reason = report.stop_reason
                break
        else:
            completed = True
    return ComparisonReports(folder, tuple(reports), completed, reason, without)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two dumps that are compared, and the second golden run; `place` is the folder of their results.

    A side of several dumps is that of all ranks, whose parts of tensors are put together.
    """

    target: tuple[Path, ...]
    golden: tuple[Path, ...]
    noise: tuple[Path, ...]
    place: Path
    label: str


@dataclass(frozen=True, slots=True)
class _Shared:
    cluster: Cluster
    stamp: str
    stop_requested: Callable[[], bool]


def _pairs(config: ComparisonConfig) -> tuple[list[_Pair], tuple[str, ...]]:
    """Return the pairs of dumps, and the labels of dumps without a partner.

    Raises:
        UsageError: the folders have nothing in common.
    """
    target, golden = find_dumps(config.target), find_dumps(config.golden)
    noise = find_dumps(config.noise).dumps if config.noise is not None else ()
    if len(target.dumps) == 1 and len(golden.dumps) == 1:
        # Whatever their folders are called: proc4711 and proc4712, or a dump that was copied.
        one, two = target.dumps[0], golden.dumps[0]
        third = tuple(each.path for each in noise[:1])
        return [_Pair((one.path,), (two.path,), third, Path(), one.label)], ()
    whole = _other_layouts(target.dumps, golden.dumps, noise)
    if whole:
        return whole, ()
    theirs, others = _by_place(golden.dumps), _by_place(noise)
    found, without = [], []
    for place, each in _by_place(target.dumps).items():
        partner = theirs.pop(place, None)
        if partner is None:
            without.append(f"{each.label} of the target")
            continue
        third = (others[place].path,) if place in others else ()
        found.append(_Pair((each.path,), (partner.path,), third, each.place, each.label))
    without += [f"{each.label} of the golden side" for each in theirs.values()]
    if not found:
        raise UsageError(
            f"{config.target} has {_count(target.dumps)} and {config.golden} {_count(golden.dumps)}, of"
            " which no two are of the same step and rank, and no layout says how tensors are distributed"
            " over ranks (captures of DTensors do); name two folders that correspond"
        )
    return found, tuple(without)


def _other_layouts(
    target: Sequence[FoundDump], golden: Sequence[FoundDump], noise: Sequence[FoundDump]
) -> list[_Pair]:
    """Return a pair for each step, with all ranks of both sides, where the sides have other numbers of ranks
    and say how their tensors are distributed over these; [] otherwise."""
    sides = [_by_step(each) for each in (target, golden, noise)]
    if len(sides[0]) == len(sides[1]) == 1:  # Whatever the steps are called.
        sides = [{"": next(iter(each.values()), [])} for each in sides]
    found = []
    for step, ours in sides[0].items():
        theirs, others = sides[1].get(step, []), sides[2].get(step, [])
        if not theirs or len(ours) == len(theirs):
            return []
        for ranks in (ours, theirs, others):
            if len(ranks) > 1 and not _is_distributed(ranks):
                return []
        paths = [tuple(each.path for each in ranks) for ranks in (ours, theirs, others)]
        label = f"{step or ours[0].step or 'dumps'}, {len(ours)} ranks against {len(theirs)}"
        found.append(_Pair(paths[0], paths[1], paths[2], Path(step), label))
    return found


def _is_distributed(ranks: Sequence[FoundDump]) -> bool:
    with open_side(ranks[0].path) as side:
        return 0 < ranks_of_layout(side) <= len(ranks)


def _by_step(dumps: Sequence[FoundDump]) -> dict[str, list[FoundDump]]:
    found: dict[str, list[FoundDump]] = {}
    for each in dumps:
        found.setdefault(each.step, []).append(each)
    return found


def _count(dumps: Sequence[FoundDump]) -> str:
    named = ", ".join(each.label for each in dumps[:3])
    return f"{len(dumps)} dump{'s' if len(dumps) > 1 else ''} ({named}{', ...' if len(dumps) > 3 else ''})"


def _by_place(dumps: Sequence[FoundDump]) -> dict[str, FoundDump]:
    """Return the dumps by step and rank; the number of a process that is alone in its step says nothing."""
    alone = Counter(each.step for each in dumps)
    return {
        each.step
        if alone[each.step] == 1 and each.rank.startswith("proc")
        else str(each.place): each
        for each in dumps
    }


def _stamp(config: ComparisonConfig, folder: Path) -> str:
    """Return the stamp of the files: a new one, or that of the run that is gone on with.

    Raises:
        UsageError: there is no such run.
    """
    resume = config.resume_csv
    if resume is None:
        return new_stamp()
    if resume.suffix == ".csv":
        return resume.stem.rpartition("_result_")[2].rpartition("_calls_")[2]
    stamps = sorted(
        path.stem.removeprefix("compare_calls_") for path in folder.rglob("compare_calls_*.csv")
    )
    if not stamps:
        raise UsageError(f"{folder} has no compare_calls_*.csv of a run to go on with")
    return stamps[-1]


def _compare_pair(
    config: ComparisonConfig,
    pair: _Pair,
    folder: Path,
    shared: _Shared,
    show: bool,
    on_files: Callable[[Path], None],
) -> ComparisonReport:
    """Compare two dumps, or go on with their comparison."""
    with ExitStack() as held:
        own = folder / pair.place
        target, golden = (
            _opened(paths, own / f"gathered_{name}", held)
            for name, paths in (("target", pair.target), ("golden", pair.golden))
        )
        noise = _opened(pair.noise, own / "gathered_noise", held) if pair.noise else None
        say = _sayer(show)
        for note in filter(None, (target.note, golden.note)):
            say(f"warning: {note}")
        plan = plan_comparison(target, golden, noise, config)
        # Before any file is made: an error about the devices leaves nothing behind.
        places = None
        if not plan.is_done_here(config):
            framework = target.header.framework or _ANY_FRAMEWORK
            places = find_places(config, framework, shared.cluster, show=show, device_runs=False)
        tables = tables_of(plan.settings.mode)
        out = folder / pair.place
        resumed = out / tables.file("result", shared.stamp)
        fingerprint = _fingerprint(config, target, golden, noise, plan)
        if config.resume_csv is not None and resumed.exists():
            files = held.enter_context(hold_files(run_files(resumed, tables)))
            done = resume_run(
                files,
                set(plan.names),
                fingerprint,
                force=config.force,
                retry=config.retry,
                tables=tables,
            )
            is_new = False
        elif config.resume_csv is not None and config.resume_csv.suffix == ".csv":
            raise UsageError(
                f"{config.resume_csv} names no run to go on with: {resumed} is not there"
            )
        else:
            files = held.enter_context(
                hold_files(start_run(out, shared.stamp, fingerprint, tables))
            )
            done, is_new = set(), True
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
        return _drive(config, pair, job, plan, done, files, places, shared, show, is_new)


def _opened(paths: Sequence[Path], folder: Path, held: ExitStack) -> CaptureSide:
    """Open a dump, or that of all ranks, which is written into a folder beside the results."""
    if len(paths) == 1:
        return held.enter_context(open_side(paths[0]))
    with ExitStack() as ranks:
        sides = [ranks.enter_context(open_side(path)) for path in paths]
        whole = gather_ranks(sides, folder)
    return held.enter_context(open_side(whole))


def _drive(
    config: ComparisonConfig,
    pair: _Pair,
    job: ComparisonJob,
    plan: ComparisonPlan,
    done: set[str],
    files: RunFiles,
    places: Places | None,
    shared: _Shared,
    show: bool,
    is_new: bool,
) -> ComparisonReport:
    tasks = tasks_of(job, done, plan.costs_s)
    progress = Progress(len(job.names), len(done & set(job.names)), show=show)
    planning: Future[TaskPlan] = Future()
    if places is None:
        runner = ComparisonRunner(plan.settings, plan.reading)
        planning.set_result(TaskPlan((), compared_here(job, tasks, runner, cores_for_forks())))
    else:
        order = sorted(tasks, key=lambda task: -task.cost_s)
        planning.set_result(TaskPlan(order, ()))
    setting = RunSetting(config, shared.cluster, places, files, progress, shared.stop_requested)
    completed, reason = False, ""
    try:
        completed = drive(job, planning, setting)
    except StoppedError as error:
        reason = str(error)
    finally:
        progress.close()
        is_discarded = is_new and not completed and discard_run(files)
    if is_discarded:
        raise StoppedError(reason or "stopped on request before a row was written; start anew")
    summary = summarise_comparison(files.result, files.details, job.tables, len(job.names))
    return ComparisonReport(pair.label, files, summary, completed, reason)


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
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found | settings_of(config)


def _sayer(show: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if show:
            print(line, file=sys.stderr, flush=True)

    return say
