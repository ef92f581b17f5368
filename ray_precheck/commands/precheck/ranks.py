"""The dumps of several ranks and steps, prechecked one after the other in one Ray session.

Comes in: a `RunConfig` and the dumps of a folder. Goes out: a `RanksReport`. Called by the command
line, and by programs that import the package. Each dump is a run of its own, with the same two
files in `OUT/{step}/{rank}/`; all have the same stamp, by which `-csv_path OUT` finds them again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.commands.precheck.run import PrecheckReport, run
from ray_precheck.dump.folders import FoundDump, FoundDumps
from ray_precheck.dump.parse import open_dump
from ray_precheck.errors import DumpError, UsageError
from ray_precheck.replay.config import RunConfig
from ray_precheck.replay.selection import Demands, NothingSelected, selection_of
from ray_precheck.running.run import run_each
from ray_precheck.running.session import RunSession, Series, session_of_several
from ray_precheck.store.resume import RESULT_STEM
from ray_precheck.store.tables import API_TABLES


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
