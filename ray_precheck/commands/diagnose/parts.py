"""The parts of a diagnosis, each with the files that it has alone, and resumed where these are there.

Comes in: the configuration of a diagnosis, its folder, and what its parts share. Goes out: their reports.
Called by the session.

The files of a diagnosis: its page, whose name has the stamp of all of its parts. The page is there from the
beginning, so that a diagnosis that was ended before any part had a row is found again.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ray_precheck.commands.compare.job import tables_of
from ray_precheck.commands.compare.options import ComparisonConfig
from ray_precheck.commands.compare.run import ComparisonReports, run_comparison
from ray_precheck.commands.diagnose.findings import Suspect, SuspectCheck
from ray_precheck.commands.diagnose.options import DiagnosisConfig
from ray_precheck.commands.locate.exchange import EXCHANGE_TABLES
from ray_precheck.commands.locate.options import LocationConfig
from ray_precheck.commands.locate.plan import LOCATION_TABLES
from ray_precheck.commands.locate.run import run_location
from ray_precheck.commands.locate.search import LocationReport
from ray_precheck.commands.locate.table import PAIR_TABLES
from ray_precheck.commands.overflow.job import OVERFLOW_TABLES
from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.commands.overflow.run import OverflowReport, check_overflow
from ray_precheck.commands.precheck.run import PrecheckReport, run
from ray_precheck.dump.folders import FoundDump
from ray_precheck.errors import ResumeError, StoppedError, UsageError
from ray_precheck.options.shared import DebugOptions, LimitOptions, PlaceOptions
from ray_precheck.replay.config import RunConfig
from ray_precheck.running.run import RunSession
from ray_precheck.store.results import ResultRow, parse_result_row, read_columns
from ray_precheck.store.resume import new_stamp, newest_of, result_of
from ray_precheck.store.tables import RESULT_COLUMNS, Tables, replace_file
from ray_precheck.trace.difference.rows import ComparisonMode

# Where results stand below the folder of all: `FoundDump.place`.
_PLACES = ("", "step*/", "step*/*/", "rank*/", "proc*/")
_BEGIN, _END = "diagnose_", ".txt"
# Those of the comparison have these names in every mode.
COMPARISON_TABLES = tables_of(ComparisonMode.REAL)
# A search replays calls, or looks at pairs of dumps without files, and recomputes collectives.
SEARCH_TABLES = (LOCATION_TABLES, PAIR_TABLES, EXCHANGE_TABLES)


def new_page(folder: Path) -> Path:
    """Make the page of a new diagnosis, whose stamp no file below the folder has.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"out path {folder} is a file; name a folder for the results")
    now, number = new_stamp(), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            page = folder / f"{_BEGIN}{now}{f'_{number}' if number else ''}{_END}"
            if not any(results_named(folder, f"*_{stamp_of(page)}.*")):
                with contextlib.suppress(FileExistsError):
                    page.touch(exist_ok=False)
                    return page
            number += 1
    except OSError as error:
        raise UsageError(
            f"cannot write to the out path {folder}: {error.strerror}; name another folder with -o"
        ) from None


def results_named(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files of results whose names fit, in the folder and in those of steps and ranks.

    The default folder is that where the command runs, so that nothing else below it is looked through.
    """
    for place in _PLACES:
        yield from folder.glob(f"{place}{pattern}")


def resumed_page(named: Path) -> Path:
    """Return the page of the diagnosis that -csv_path names, by its folder or itself.

    Raises:
        ResumeError: there is none.
    """
    if named.is_dir():
        newest = newest_of(map(stamp_of, named.glob(f"{_BEGIN}*{_END}")))
        if not newest:
            raise ResumeError(f"-csv_path: {named} has no {_BEGIN}*{_END} to go on with")
        return named / f"{_BEGIN}{newest}{_END}"
    if not (named.name.startswith(_BEGIN) and named.suffix == _END and named.exists()):
        raise ResumeError(
            f"-csv_path: {named} is no page of a diagnosis; name the folder of its results, which -o named"
        )
    return named


def stamp_of(page: Path) -> str:
    """Return the stamp of a diagnosis, which the files of its parts have, too."""
    return page.stem.removeprefix(_BEGIN)


def write_page(page: Path, text: str) -> None:
    """Put a text in the place of the page, atomically.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        replace_file(page, [text.encode(errors="surrogateescape")])
    except OSError as error:
        raise UsageError(f"cannot write {page}: {error.strerror}") from None


# Below the folder of results: inputs and outputs of calls that fail on the device of this machine, apart
# from those of the captured results.
HERE = "on_this_machine"


@dataclass(frozen=True, slots=True)
class DiagnosisParts:
    """The parts of one diagnosis; `folder` has the results of all.

    Each method does one part and returns its report. It raises StoppedError where the part came to no end,
    with the reason, "" where it was stopped on request, and PrecheckError where it cannot be done.
    """

    config: DiagnosisConfig
    folder: Path
    session: RunSession

    def compare(self) -> ComparisonReports:
        """Compare the target with the golden run."""
        config = self.config
        assert config.golden is not None
        asked = ComparisonConfig(
            target=config.target,
            golden=config.golden,
            noise=config.noise,
            match=config.match,
            standard=config.standard,
            layout=config.layout,
            golden_layout=config.golden_layout,
            **self._options([COMPARISON_TABLES], self.folder),
        )
        reports = run_comparison(asked, session=self.session)
        self._require_end(reports.completed, reports.stop_reason)
        return reports

    def check_overflow(self) -> OverflowReport:
        """Find the births of NaN and infinity in the target."""
        table = self.folder / OVERFLOW_TABLES.file("result", self.session.stamp)
        asked = OverflowConfig(dump=self.config.target, **self._options([OVERFLOW_TABLES], table))
        report = check_overflow(asked, session=self.session)
        self._require_end(report.completed, report.stop_reason)
        return report

    def locate(self) -> LocationReport:
        """Find the operator to blame."""
        config = self.config
        asked = LocationConfig(
            target=config.target,
            golden=config.golden,
            match=config.match,
            layout=config.layout,
            golden_layout=config.golden_layout,
            **self._options(SEARCH_TABLES, self.folder),
        )
        report = run_location(asked, session=self.session)
        self._require_end(report.completed, report.stop_reason)
        return report

    def precheck(self, dump: FoundDump, place: Path, suspects: Sequence[Suspect]) -> SuspectCheck:
        """Run the suspects of a dump, every call where there is none, on the device of this machine."""
        out = self.folder / place
        result = result_of(out, self.session.stamp)
        is_resumed = result.exists()
        asked = RunConfig(
            dump=dump.path,
            out=out,
            standard="auto",
            tested="device",
            save_error_data=True,
            error_data_path=out / HERE,
            calls=tuple(suspect.call for suspect in suspects),
            **self._job() | {"devices": self.config.devices or (0,)},
            **(self._resume(result) if is_resumed else {}),
        )
        report = run(asked, session=self.session)
        self._require_end(report.completed, report.stop_reason)
        rows = _rows(report)
        if suspects:
            order = {suspect.call: place for place, suspect in enumerate(suspects)}
            rows.sort(key=lambda row: order.get(row.name, len(order)))
        else:
            rows = [row for row in rows if row.is_error]
        return SuspectCheck(dump, report, tuple(rows), is_whole=not suspects)

    def _options(self, tables: Sequence[Tables], resumed: Path) -> dict[str, Any]:
        """Return the options that all parts have; `resumed` is what a part is resumed with."""
        stamp = self.session.stamp
        names = [each.file("result", stamp) for each in tables]
        is_resumed = any(any(results_named(self.folder, name)) for name in names)
        goes_on = self._resume(resumed) if is_resumed else {}
        return {"out": self.folder, **self._job(), **goes_on}

    def _job(self) -> dict[str, Any]:
        groups = (PlaceOptions, LimitOptions, DebugOptions)
        names = [each.name for group in groups for each in fields(group)]
        return {name: getattr(self.config, name) for name in names}

    def _resume(self, resumed: Path) -> dict[str, Any]:
        return {
            "resume_csv": resumed,
            "force": self.config.force,
            "retry": self.config.retry,
        }

    def _require_end(self, completed: bool, reason: str) -> None:
        if not completed:
            raise StoppedError("" if self.session.is_stopped else reason)


def _rows(report: PrecheckReport) -> list[ResultRow]:
    return list(map(parse_result_row, read_columns(report.files.result, tuple(RESULT_COLUMNS))))
