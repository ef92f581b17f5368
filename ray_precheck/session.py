"""One run from its configuration to its summary: parse, plan, drive, summarise.

Comes in: a `RunConfig`. Goes out: a `PrecheckReport`. Called by the command line, and by whoever
imports the package.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_precheck.bench.declared import bench_digest, load_declarations, read_bench_modules
from ray_precheck.check.settings import CheckSettings
from ray_precheck.compare.standards.base import added_headings
from ray_precheck.compare.standards.user_file import load_standard
from ray_precheck.config import RunConfig
from ray_precheck.dump.folders import find_dumps
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.errors import StoppedError, UsageError
from ray_precheck.frameworks.mindtorch.paths import prefer_native
from ray_precheck.frameworks.registry import require_framework
from ray_precheck.jobs.precheck import PrecheckJob, done_of
from ray_precheck.options.checks import CheckOptions
from ray_precheck.options.declared import group_of
from ray_precheck.plan.planner import Plan, plan_tasks
from ray_precheck.plan.selection import select_calls, selection_of
from ray_precheck.plan.subject import framework_of, tests_captured
from ray_precheck.report.frames import read_table
from ray_precheck.report.summary import Summary, summarise
from ray_precheck.runtime.places.choice import Cluster, Places, find_places
from ray_precheck.runtime.places.devices import local_node
from ray_precheck.runtime.places.placement import place_slots
from ray_precheck.runtime.places.probe import PACKAGE
from ray_precheck.runtime.places.scratch import sweep
from ray_precheck.runtime.progress import Progress, StageProgress
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.schema.environment import Environment, environment_from_dict, environment_to_dict
from ray_precheck.schema.result import TaskResult
from ray_precheck.store.columns import added_setting
from ray_precheck.store.done import count_verdicts
from ray_precheck.store.error_data import load_error_data
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import (
    RunFiles,
    discard_run,
    error_folder,
    hold_files,
    resume_run,
    run_files,
    start_run,
)
from ray_precheck.store.settings import load_settings, note_environment
from ray_precheck.store.stamps import new_stamp, newest_result

if TYPE_CHECKING:
    import pandas

# A plan that is made this quickly is waited for before Ray starts: it may be empty.
_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class PrecheckReport:
    """What a run found. `completed` is False where it stopped before its end, by itself
    (`stop_reason` says why) or on request."""

    summary: Summary
    completed: bool
    stop_reason: str = ""

    @property
    def files(self) -> RunFiles:
        """The files of the run."""
        return self.summary.files

    @property
    def results(self) -> "pandas.DataFrame":
        """The result CSV as a data frame, one row for each API call."""
        return read_table(self.files.result)

    @property
    def details(self) -> "pandas.DataFrame":
        """The details CSV as a data frame, one row for each output and gradient."""
        return read_table(self.files.details)


def precheck(
    dump: str | Path,
    *,
    framework: str = "",
    out: str | Path = "./",
    devices: Sequence[int] | str = (0,),
    show_progress: bool = False,
    **options: Any,
) -> PrecheckReport:
    """Check every API call of a dump and return the report, whose tables are pandas data frames.

    `devices` are ids of this machine, or what `--devices` takes: "all", "node-a:0-3,node-b:0".
    `options` are the other fields of `RunConfig`: `resume_csv`, `seed`, `timeout_s`, `tested`, ...

    Raises:
        PrecheckError: the dump, an option or a device is wrong.
    """
    ids = devices if isinstance(devices, str) else tuple(devices)
    config = RunConfig(dump=Path(dump), framework=framework, out=Path(out), devices=ids, **options)
    return run(config, show_progress=show_progress)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the runs over several dumps share: their cluster, the stamp of their files, and who is
    asked whether they are to stop. What was asked for by name has been looked up in all dumps."""

    cluster: Cluster
    stamp: str
    stop_requested: Callable[[], bool]


def run(
    config: RunConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[RunFiles], None] = lambda files: None,
    shared: Shared | None = None,
) -> PrecheckReport:
    """Run what `config` asks for. `on_files` is told the files of the run once they are there.

    The dump may be a folder that holds a dump.json, and what is to be gone on with a folder of
    results: the newest of them. A run over one of several dumps has `shared` with the others.

    Raises:
        PrecheckError: a wrong option, dump or device. A run that had to stop later on is reported
            as not completed, and can go on with `resume_csv`.
    """
    config.validate()
    config = _with_files(config)
    selection = selection_of(config)
    standard = load_standard(config.standard)
    bench_modules = read_bench_modules(config.bench_modules)
    load_declarations(bench_modules)  # What is wrong with them is said before anything starts.
    with (
        ExitStack() as held,
        ThreadPoolExecutor(1) as background,
        open_dump(config.dump, _stage(f"opening {config.dump}", show_progress)) as dump,
        ExitStack() as joined,
    ):
        for warning in select_calls(dump, selection, None if shared else standard):
            if show_progress:
                print(f"warning: {warning}", file=sys.stderr, flush=True)
        cluster = shared.cluster if shared else Cluster(config, joined)
        framework = dump.framework = framework_of(config, dump)
        tests_dump = tests_captured(config, dump)
        require_framework(framework, device_runs=not tests_dump)
        # Before any file is made: what is wrong with the devices leaves nothing behind.
        places = find_places(
            config, framework, cluster, show=show_progress, device_runs=not tests_dump
        )
        fingerprint = config.fingerprint(
            dump.digest(), framework, places.request.kind, standard.name, selection.text
        ) | added_setting(added_headings(standard))
        # Runs from before this setting do not have it: a resume takes them for the same.
        fingerprint["benches"] = bench_digest(bench_modules)
        stamp = shared.stamp if shared else new_stamp()
        files, done = _prepare_files(config, dump, fingerprint, held, stamp)
        if len(done) < len(dump.calls):
            there = _environment(config, dump, places, framework, tests_dump=tests_dump)
            there = replace(there, caveats=_environment_of(files).caveats)  # of the rows that stay
            note_environment(files.settings, environment_to_dict(there))
        errors = error_folder(
            files, config.error_data_path, as_msprobe=config.error_data_as_msprobe
        )
        files = replace(files, errors=errors)
        on_files(files)
        names = {call.name for call in dump.calls}
        before = count_verdicts(files.result, names) if done and show_progress else Counter()
        progress = Progress(len(names), len(done & names), show=show_progress, counts=before)
        planning = background.submit(
            plan_tasks,
            dump,
            framework,
            done,
            filter_alike=config.filter_alike,
            on_progress=StageProgress(f"planning {len(dump.calls)} calls", progress.say),
        )
        settings = CheckSettings(
            framework=framework,
            task=dump.task,
            data_folder=dump.data_folder.absolute(),
            options=group_of(config, CheckOptions),
            tests_dump=tests_dump,
            error_folder=files.errors if config.save_error_data else None,
            memory_limit_bytes=config.memory_limit_bytes(
                os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), places.most_on_a_node
            ),
            standard=standard,
            bench_modules=bench_modules,
            device_type=places.request.kind,
        )
        job = PrecheckJob(dump, settings, shared_fs=config.shared_fs)
        completed, reason = False, ""
        try:
            completed = _drive(config, job, places, files, planning, progress, cluster, shared)
        except StoppedError as error:
            reason = str(error)
        finally:
            progress.close()
            is_discarded = config.resume_csv is None and not completed and discard_run(files)
        if is_discarded:
            raise StoppedError(reason or "stopped on request before a row was written; start anew")
        return PrecheckReport(summarise(files), completed, reason)


def _with_files(config: RunConfig) -> RunConfig:
    """Return the configuration with files where it names folders of one dump, of one run's results.

    Raises:
        UsageError: there are several dumps below the folder.
        DumpError: there is none.
    """
    found = find_dumps(config.dump)
    if found.is_many:
        raise UsageError(
            f"{config.dump} is a folder of {len(found.dumps)} dumps; name one of them, such as"
            f" {found.dumps[0].path}, or use run_ranks"
        )
    resume = config.resume_csv
    if resume is not None and resume.is_dir():
        resume = newest_result(resume)
    return replace(config, dump=found.dumps[0].path, resume_csv=resume)


def _stage(doing: str, show: bool) -> StageProgress:
    """Return what shows how far a step is before there is a bar."""

    def say(line: str) -> None:
        if show:
            print(line, file=sys.stderr, flush=True)

    return StageProgress(doing, say)


def _prepare_files(
    config: RunConfig, dump: Dump, fingerprint: dict[str, str], held: ExitStack, stamp: str
) -> tuple[RunFiles, set[str]]:
    """Return the files to write, whole and in agreement, and the names that are done already.

    No other run has the files until `held` is closed.
    """
    if config.resume_csv is None:
        new = start_run(config.out, stamp, fingerprint)
        return held.enter_context(hold_files(new)), set()
    files = held.enter_context(hold_files(run_files(config.resume_csv)))
    names = {call.name for call in dump.calls}
    return files, resume_run(files, names, fingerprint, force=config.force, retry=config.retry)


def _environment(
    config: RunConfig, dump: Dump, places: Places, framework: str, *, tests_dump: bool
) -> Environment:
    """Return what the closing lines say of where the run ran."""
    return places.environment(
        framework=framework,
        rule=config.standard,
        calls=len(dump.calls),
        dump=str(dump.path.absolute()),
        tests_dump=tests_dump,
    )


def _environment_of(files: RunFiles) -> Environment:
    """Return what is noted of where a run has run; an empty one where nothing is."""
    settings = load_settings(files.settings)
    return Environment() if settings is None else environment_from_dict(settings.environment)


def note_caveat(files: RunFiles, caveat: str) -> None:
    """Note what limits the precision of a device that was opened for a run, "" for nothing."""
    there = _environment_of(files)
    if caveat and caveat not in there.caveats:
        there = replace(there, caveats=(*there.caveats, caveat))
        note_environment(files.settings, environment_to_dict(there))


def _drive(
    config: RunConfig,
    job: PrecheckJob,
    places: Places,
    files: RunFiles,
    planning: "Future[Plan]",
    progress: Progress,
    cluster: Cluster,
    shared: Shared | None,
) -> bool:
    """Run the plan on Ray, or without it where nothing is left to run."""
    try:
        plan = planning.result(timeout=_PATIENCE_S)
    except TimeoutError:
        plan = None
    sweep()
    if plan is not None and not plan.tasks:
        return _write_without_workers(job, files, plan.skipped, progress)
    with ExitStack() as opened:
        nodes = places.nodes if places.are_open else cluster.nodes(show=False)
        stop_requested = (
            shared.stop_requested if shared else opened.enter_context(stop_on_signal()).is_set
        )
        # Imported here: Ray takes half a second that a wrong option should not cost.
        from ray_precheck.runtime.crew import WorkerOptions
        from ray_precheck.runtime.driver import DriveOptions, Driver
        from ray_precheck.runtime.places.cluster import Roster
        from ray_precheck.runtime.ray_actors import RayActors

        version = local_node().versions.get(PACKAGE, "")
        driver = Driver(
            job,
            RayActors(Roster(nodes, version, progress.say)),
            places.request,
            place_slots(places.request, nodes),
            files,
            stop_requested,
            DriveOptions(
                config.timeout_s,
                config.bench_workers,
                WorkerOptions(config.spares, config.bench_budget_s, config.debug),
                partial(note_caveat, files),
            ),
        )
        opened.callback(driver.close)
        driver.launch()
        plan = planning.result()
        return driver.run(plan.tasks, map(done_of, plan.skipped), progress)


def _write_without_workers(
    job: PrecheckJob, files: RunFiles, results: Sequence[TaskResult], progress: Progress
) -> bool:
    journal = Journal.open(files.result, files.details, files.token, job.tables)
    finished = [done_of(result) for result in results]
    journal.append(finished)
    progress.add(finished)
    journal.complete(job.names)
    return True


def rerun(
    saved: str | Path,
    *,
    device_type: str = "cpu",
    standard: str = "msprobe",
    bench_modules: Sequence[str | Path] = (),
) -> TaskResult:
    """Load one API that `-save_error_data` saved and check it again, in this process.

    `saved` is its JSON, `error_data/{timestamp}/{api}.json`; `standard` is what `--standard` takes,
    `bench_modules` what `--bench-module` does.

    Raises:
        PrecheckError: the file is no such JSON, there is no such standard, or the framework is not
            installed.
    """
    prefer_native()
    from ray_precheck.check.checker import Checker

    data = load_error_data(Path(saved))
    require_framework(data.framework)
    settings = CheckSettings(
        data.framework,
        "statistics",
        Path(saved).parent,
        CheckOptions(seed=data.seed, standard=standard, bench_modules=tuple(bench_modules)),
        standard=load_standard(standard),
        bench_modules=read_bench_modules(bench_modules),
    )
    result = Checker(settings, device_type).check(data.payload, data.source)
    if data.tested == "device":
        return result
    note = f"the run tested captured results, this is the {device_type}'s own"
    return replace(result, message="; ".join(filter(None, [result.message, note])))
