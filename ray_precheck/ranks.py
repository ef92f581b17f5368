"""The dumps of several ranks and steps, prechecked one after the other in one Ray session.

Comes in: a `RunConfig` and the dumps of a folder. Goes out: a `RanksReport`. Called by the command
line, and by programs that import the package. Each dump is a run of its own, with the same two
files in `OUT/{step}/{rank}/`; all have the same stamp, by which `-csv_path OUT` finds them again.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ray_precheck.compare.standards.user_file import load_standard
from ray_precheck.config import RunConfig
from ray_precheck.dump.folders import FoundDump, FoundDumps
from ray_precheck.dump.parse import open_dump
from ray_precheck.errors import DumpError, ResumeError, StoppedError, UsageError
from ray_precheck.plan.selection import Demands, NothingSelected, selection_of
from ray_precheck.runtime.driving import SharedRun
from ray_precheck.runtime.places.choice import Cluster
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.session import PrecheckReport, run
from ray_precheck.store.stamps import newest_stamp, release_stamp, reserved_stamp, result_of
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
    goes_on = config.resume_csv is not None
    folder = config.resume_csv or config.out

    def say(line: str) -> None:
        if show_progress:
            print(line, file=sys.stderr, flush=True)

    ranks: list[RankReport] = []
    reason, completed = "", False
    with (
        _stamp(config, found, folder) as stamp,
        ExitStack() as opened,
        stop_on_signal() as stop,
    ):
        for missing in found.without:
            say(f"warning: {missing} has no dump.json and is left out")
        for warning in _require_demands(config, found):
            say(f"warning: {warning}")
        shared = SharedRun(Cluster(config, opened), stamp, stop.is_set, goes_on)
        for number, each in enumerate(found.dumps, 1):
            if stop.is_set():
                break
            say(f"{each.label} ({number} of {len(found.dumps)})")
            try:
                rank = _run_one(config, each, folder, shared, show_progress, on_folder)
            except StoppedError as error:
                if not ranks and not goes_on:
                    raise  # There is nothing to resume.
                reason = "" if stop.is_set() else str(error)
                break
            ranks.append(rank)
            if rank.report is not None and not rank.report.completed:
                reason = rank.report.stop_reason
                break
        else:
            completed = True
    if ranks and all(rank.is_unreadable for rank in ranks) and completed:
        raise DumpError(ranks[0].problem)
    return RanksReport(folder, tuple(ranks), len(found.dumps), completed, reason)


def _run_one(
    config: RunConfig,
    found: FoundDump,
    folder: Path,
    shared: SharedRun,
    show_progress: bool,
    on_folder: Callable[[Path], None],
) -> RankReport:
    """Begin or go on with the run over one dump."""
    out = folder / found.place
    result = result_of(out, shared.stamp)
    goes_on = config.resume_csv is not None and result.exists()
    own = replace(
        config,
        dump=found.path,
        out=out,
        # All dumps have the same stamp, so what fails in them is kept apart by their places.
        error_data_path=config.error_data_path and config.error_data_path / found.place,
        resume_csv=result if goes_on else None,
        retry=config.retry if goes_on else (),
        force=config.force and goes_on,
    )
    try:
        report = run(
            own,
            show_progress=show_progress,
            on_files=lambda files: on_folder(folder),
            shared=shared,
        )
    except DumpError as error:
        return RankReport(found, None, str(error), is_unreadable=True)
    except NothingSelected as error:
        return RankReport(found, None, str(error))
    return RankReport(found, report)


@contextmanager
def _stamp(config: RunConfig, found: FoundDumps, folder: Path) -> Iterator[str]:
    """Hold the stamp of the files: that of the newest run of these dumps, or a new one.

    Raises:
        UsageError: one result CSV is to be gone on in, for several dumps.
        ResumeError: the folder has no results of these dumps.
    """
    places = [each.place for each in found.dumps]
    if config.resume_csv is None:
        with reserved_stamp(folder, API_TABLES.stem, places) as stamp:
            yield stamp
        return
    folders = [folder / place for place in places]
    if not folder.is_dir():
        what = "is one file" if folder.exists() else "does not exist"
        raise UsageError(
            f"-csv_path {folder} {what}, but -api_info names {len(found.dumps)} dumps; name the"
            " folder of their results, which -o named"
        )
    stamp = newest_stamp(folders)
    if not stamp:
        raise ResumeError(
            f"-csv_path {folder} has no results to go on in; looked for"
            f" {result_of(folders[0], '*').relative_to(folder)} and the like"
        )
    release_stamp(folder, API_TABLES.stem, stamp)
    yield stamp


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
