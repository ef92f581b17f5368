"""One run from its configuration to its summary: parse, plan, drive, summarise.

Comes in: a `RunConfig`. Goes out: a `PrecheckReport`. Called by the command line, and by
programs that import the package.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_precheck.bench.declared import read_bench_modules
from ray_precheck.check.settings import CheckSettings
from ray_precheck.compare.standards.user_file import load_standard
from ray_precheck.config import RunConfig
from ray_precheck.dump.folders import find_dumps
from ray_precheck.dump.parse import Dump, open_dump
from ray_precheck.errors import UsageError
from ray_precheck.frameworks.mindtorch.paths import prefer_native
from ray_precheck.frameworks.registry import require_framework
from ray_precheck.jobs.precheck.distribution import add_distributions
from ray_precheck.jobs.precheck.job import PrecheckJob
from ray_precheck.jobs.precheck.subject import Subject, find_subject, read_options
from ray_precheck.options.checks import CheckOptions
from ray_precheck.report.frames import read_table
from ray_precheck.report.summary import Summary, summarise
from ray_precheck.runtime.driving import RunSetting, SharedRun, TaskPlan, drive_to_end
from ray_precheck.runtime.places.choice import Cluster
from ray_precheck.runtime.progress import Progress, StageProgress
from ray_precheck.schema.environment import environment_to_dict
from ray_precheck.schema.result import TaskResult
from ray_precheck.store.done import count_verdicts
from ray_precheck.store.error_data import load_error_data
from ray_precheck.store.opening import NewFiles, opened_run
from ray_precheck.store.resume import RunFiles, error_folder
from ray_precheck.store.settings import note_environment, noted_environment
from ray_precheck.store.stamps import new_stamp, newest_result

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class PrecheckReport:
    """The report of a run. `completed` is False if it stopped before its end: by itself, for the
    reason `stop_reason`, or on request."""

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


def run(
    config: RunConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[RunFiles], None] = lambda files: None,
    shared: SharedRun | None = None,
) -> PrecheckReport:
    """Run what `config` asks for. `on_files` is called with the files of the run once they exist.

    `config.dump` may be a folder that holds a dump.json, and `config.resume_csv` a folder of results:
    the newest ones are continued. A run over one of several dumps has `shared` with the others; names
    that the user asked for have been looked up in all of them.

    Raises:
        PrecheckError: a wrong option, dump or device. A run that had to stop later on is reported
            as not completed, and can go on with `resume_csv`.
    """
    config.validate()
    config = _with_files(config)
    asked = read_options(config)
    with (
        ExitStack() as held,
        ThreadPoolExecutor(1) as background,
        open_dump(config.dump, _stage(f"opening {config.dump}", show_progress)) as dump,
        ExitStack() as joined,
    ):
        cluster = shared.cluster if shared else Cluster(config, joined)
        # Before any file is made: an error about the devices leaves nothing behind.
        subject = find_subject(asked, dump, cluster, is_alone=shared is None, show=show_progress)
        new = shared.new_files(config.out) if shared else NewFiles(config.out, new_stamp())
        files, done = _prepare_files(subject, held, new)
        on_files(files)
        progress = _progress(dump, files, done, show=show_progress)
        planning = background.submit(subject.plan, done, progress)
        job = PrecheckJob(dump, subject.check_settings(files), shared_fs=config.shared_fs)
        stop_requested = shared.stop_requested if shared else None
        setting = RunSetting(config, cluster, subject.places, files, progress, stop_requested)
        return _drive_to_the_report(job, planning, setting, is_new=config.resume_csv is None)


def _with_files(config: RunConfig) -> RunConfig:
    """Return the configuration with files in the place of folders: of a dump, and of a run's results.

    Raises:
        UsageError: there are several dumps below the folder.
        DumpError: there is no dump below the folder.
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
    """Return the progress of a step that comes before the progress bar."""

    def say(line: str) -> None:
        if show:
            print(line, file=sys.stderr, flush=True)

    return StageProgress(doing, say)


def _prepare_files(subject: Subject, held: ExitStack, new: NewFiles) -> tuple[RunFiles, set[str]]:
    """Return the files to write, complete and consistent, and the names that have rows already.

    No other run can take the files until `held` is closed.
    """
    config, dump = subject.asked.config, subject.dump
    names = {call.name for call in dump.calls}
    opened = held.enter_context(
        opened_run(
            config.resume_csv, new, names, subject.fingerprint(), config, reads=subject.reads
        )
    )
    files, done = opened.files, opened.done
    if len(done) < len(dump.calls):
        # The caveats are those of the rows that stay.
        there = replace(subject.environment, caveats=noted_environment(files.settings).caveats)
        note_environment(files.settings, environment_to_dict(there))
    errors = error_folder(files, config.error_data_path, as_msprobe=config.error_data_as_msprobe)
    return replace(files, errors=errors), done


def _progress(dump: Dump, files: RunFiles, done: set[str], *, show: bool) -> Progress:
    """Return the progress of a run, of which the calls `done` have rows from an earlier part."""
    names = {call.name for call in dump.calls}
    before = count_verdicts(files.result, names) if done and show else Counter()
    return Progress(len(names), len(done & names), show=show, counts=before)


def _drive_to_the_report(
    job: PrecheckJob, planning: "Future[TaskPlan]", setting: RunSetting, *, is_new: bool
) -> PrecheckReport:
    """Run the job, and report on its files; files of a new run that has no row yet are removed.

    Raises:
        StoppedError: the run stopped before a row was written.
        PrecheckError: see `drive`.
    """
    end = drive_to_end(job, planning, setting, is_new=is_new)
    end.require_rows()
    if end.completed:
        add_distributions(setting.files)
    return PrecheckReport(summarise(setting.files), end.completed, end.reason)


def rerun(
    saved: str | Path,
    *,
    device_type: str = "cpu",
    standard: str = "msprobe",
    bench_modules: Sequence[str | Path] = (),
) -> TaskResult:
    """Load one API that `-save_error_data` saved and check it again, in this process.

    `saved` is the path of its JSON, `error_data/{timestamp}/{api}.json`; `device_type` is npu, gpu or
    cpu; `standard` and `bench_modules` have the values of `--standard` and `--bench-module`.

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
        float32=data.replay.float32,
    )
    result = Checker(settings, device_type).check(data.payload, data.source)
    if data.tested == "device":
        return result
    note = f"the run tested captured results; this is the result of the {device_type}"
    return replace(result, message="; ".join(filter(None, [result.message, note])))
