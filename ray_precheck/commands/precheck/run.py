"""A precheck from its configuration to its summary.

Comes in: a `RunConfig`. Goes out: a `PrecheckReport`. Called by the command line, and by
programs that import the package.

The dumps of several ranks and steps, prechecked one after the other in one Ray session. Each dump is a run
of its own, with the same two files in `OUT/{step}/{rank}/`; all have the same stamp, by which `-csv_path
OUT` finds them again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.bench.declared import read_bench_modules
from ray_precheck.check.options import CheckOptions
from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.precheck.distribution import add_distributions
from ray_precheck.commands.precheck.summary import Summary, summarise
from ray_precheck.dump.folders import FoundDump, FoundDumps, one_dump
from ray_precheck.dump.parse import open_dump
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.frameworks.base import require_framework
from ray_precheck.frameworks.mindtorch.paths import prefer_native
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.job import PrecheckJob
from ray_precheck.replay.selected import CallsFeature, find_selected, read_options
from ray_precheck.replay.selection import Demands, NothingSelected, selection_of
from ray_precheck.running.run import (
    RunEnd,
    RunSession,
    Series,
    resumed_table,
    run_each,
    run_job,
    session_of_one,
    session_of_several,
)
from ray_precheck.runtime.progress import StageProgress
from ray_precheck.schema.environment import environment_to_dict
from ray_precheck.schema.result import TaskResult
from ray_precheck.store.error_data import load_error_data
from ray_precheck.store.results import read_table
from ray_precheck.store.settings import note_environment, noted_environment
from ray_precheck.store.tables import API_TABLES, RESULT_STEM, RunFiles, run_files

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
    session: RunSession | None = None,
) -> PrecheckReport:
    """Run what `config` asks for. `on_files` is called with the files of the run once they exist.

    `config.dump` may be a folder that holds a dump.json, and `config.resume_csv` a folder of results:
    the newest ones are continued. A run over one of several dumps has their `session`; names that the
    user asked for have been looked up in all of them.

    Raises:
        PrecheckError: a wrong option, dump or device. A run that had to stop later on is reported
            as not completed, and can be resumed with `resume_csv`.
    """
    config.validate()
    path = one_dump(config.dump, "or use run_ranks")
    resumed = resumed_table(config.resume_csv, API_TABLES)
    asked = read_options(config)
    is_alone = session is None
    opened = session_of_one(
        config, session, show=show_progress, on_files=lambda path: on_files(run_files(path))
    )
    with opened as session, open_dump(path, StageProgress(f"opening {path}", session.say)) as dump:
        # Before any file is made: an error about the devices leaves nothing behind.
        selected = find_selected(asked, dump, session, is_alone=is_alone)
        return run_job(Precheck(selected), config, session, config.out, resumed)


class Precheck(CallsFeature[PrecheckJob, PrecheckReport]):
    """The calls of a dump, checked."""

    def job(self, files: RunFiles, done: set[str]) -> PrecheckJob:
        """Return the job; the files of a run with calls left get the facts about this machine."""
        selected, config = self.selected, self.selected.asked.config
        if len(done) < len(self.names):
            # The caveats are those of the rows that stay.
            caveats = noted_environment(files.settings).caveats
            there = replace(selected.environment, caveats=caveats)
            note_environment(files.settings, environment_to_dict(there))
        settings = selected.check_settings(files)
        return PrecheckJob(selected.dump, settings, shared_fs=config.shared_fs)

    def report(self, files: RunFiles, end: RunEnd) -> PrecheckReport:
        """Sum up the rows, with those of distributions where all calls are done."""
        if end.completed:
            add_distributions(files)
        files = replace(files, errors=self.selected.error_folder(files))
        return PrecheckReport(summarise(files), end.completed, end.stop_reason)


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


@dataclass(frozen=True, slots=True)
class RankReport:
    """The outcome of one dump: the report of its run, or the reason why there is none.

    `is_unreadable`: its dump.json cannot be read; otherwise no call of it was selected.
    """

    found: FoundDump
    report: PrecheckReport | None
    problem: str = ""
    is_unreadable: bool = False

    @property
    def completed(self) -> bool:
        """Whether there is no run that stopped before its end."""
        return self.report is None or self.report.completed

    @property
    def stop_reason(self) -> str:
        """Why its run stopped, "" for none and for on request."""
        return self.report.stop_reason if self.report is not None else ""


@dataclass(frozen=True, slots=True)
class RanksReport:
    """The findings of the runs over several dumps. `folder` has all results. `completed` is False
    where they stopped before the end, by themselves (`stop_reason` says why) or on request; dumps
    that were not begun are not among `ranks`, of `total` ones."""

    folder: Path
    ranks: tuple[RankReport, ...]
    total: int
    completed: bool
    stop_reason: str = ""

    @property
    def reports(self) -> list[PrecheckReport]:
        """The reports of the dumps that were run."""
        return [rank.report for rank in self.ranks if rank.report is not None]


def run_ranks(
    config: RunConfig,
    found: FoundDumps,
    *,
    show_progress: bool = True,
    on_folder: Callable[[Path], None] = lambda folder: None,
) -> RanksReport:
    """Run what `config` asks for over each of these dumps, which `find_dumps` has found.

    `on_folder` is called with the folder of the results once the first files exist. A dump that cannot
    be read does not keep the others from being run.

    Raises:
        PrecheckError: a wrong option or device, or no dump can be read.
    """
    config.validate()
    folder = config.resume_csv or config.out
    if config.resume_csv is not None and not folder.is_dir():
        what = "is one file" if folder.exists() else "does not exist"
        raise UsageError(
            f"-csv_path {folder} {what}, but -api_info names {len(found.dumps)} dumps; name the"
            " folder of their results, which -o named"
        )
    series = Series(folder, [each.place for each in found.dumps], API_TABLES.stem, RESULT_STEM)
    with session_of_several(
        config,
        series,
        config.resume_csv,
        show=show_progress,
        on_files=lambda path: on_folder(folder),
    ) as session:
        for missing in found.without:
            session.say(f"warning: {missing} has no dump.json and is left out")
        for warning in _require_demands(config, found):
            session.say(f"warning: {warning}")
        one = partial(_run_one, config, folder, session)
        ends = run_each(found.dumps, one, session, [each.label for each in found.dumps])
    ranks = ends.reports
    if ranks and all(rank.is_unreadable for rank in ranks) and ends.completed:
        raise DumpError(ranks[0].problem)
    return RanksReport(folder, ranks, len(found.dumps), ends.completed, ends.stop_reason)


def _run_one(config: RunConfig, folder: Path, session: RunSession, found: FoundDump) -> RankReport:
    """Begin or resume the run over one dump."""
    out = folder / found.place
    resumed = session.resumed(out, API_TABLES)
    own = replace(
        config,
        dump=found.path,
        out=out,
        # All dumps have the same stamp, so what fails in them is kept apart by their places.
        error_data_path=config.error_data_path and config.error_data_path / found.place,
        resume_csv=resumed,
        retry=config.retry if resumed else (),
        force=config.force and resumed is not None,
    )
    try:
        return RankReport(found, run(own, session=session))
    except DumpError as error:
        return RankReport(found, None, str(error), is_unreadable=True)
    except NothingSelected as error:
        return RankReport(found, None, str(error))


def _require_demands(config: RunConfig, found: FoundDumps) -> list[str]:
    """Raise if a name that was asked for is in none of the dumps; return warnings.

    Dumps are opened one after the other until everything is found: mostly the first suffices.
    """
    demands = Demands(selection_of(config), load_standard(config.standard))
    readable = False
    for each in found.dumps:
        if demands.are_met:
            return []
        try:
            with open_dump(each.path) as dump:
                demands.show(dump.calls)
                readable = True
        except DumpError:
            continue  # Reported when it is its turn.
    return demands.require(str(config.dump)) if readable else []
