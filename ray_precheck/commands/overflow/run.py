"""A search for the births of NaN and infinity, from its configuration to its report.

Comes in: an `OverflowConfig`. Goes out: an `OverflowReport`. Called by the command line, and by programs that
import the package. Each dump of the folder is a piece of the job `commands.overflow`; what ranks and steps
tell of each other is said at the end, from the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.commands.overflow.job import (
    OVERFLOW_TABLES,
    OverflowPayload,
    encoded,
    overflow_job,
)
from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.dump.folders import FoundDumps
from ray_precheck.formats.conversion import find_captures
from ray_precheck.running.dumps_run import DumpsFeature
from ray_precheck.running.run import RunEnd, RunSession, resumed_table, run_job, session_of_one
from ray_precheck.runtime.places.choice import on_cores
from ray_precheck.schema.result import Verdict, verdict_in
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.results import read_table
from ray_precheck.store.settings import (
    load_settings,
    mark_completed,
)
from ray_precheck.store.tables import (
    RunFiles,
    decode_name,
    encode_name,
    encode_row,
    header,
    replace_file,
)
from ray_precheck.trace.overflow.headroom import Headroom, Trend, trends
from ray_precheck.trace.overflow.rows import HEADROOM, OverflowRow, joined_rows

if TYPE_CHECKING:
    import pandas

TREND_COLUMNS = (
    "Rank",
    "API Name",
    "Tensor",
    "Dtype",
    "Steps",
    "Headroom",
    "Slope",
    "Limit In Step",
)


@dataclass(frozen=True, slots=True)
class DumpResult:
    """The row of a dump: how many births it has before ranks are joined, and the first alarm.

    `records` is None where the dump could not be read."""

    name: str
    verdict: Verdict
    records: int | None
    births: int
    first: str
    message: str


@dataclass(frozen=True, slots=True)
class OverflowReport:
    """The report of a search. `completed` is False if it stopped before its end, for the reason
    `stop_reason` or on request; then ranks and steps were not joined. `headroom` is the file of the trends,
    None where they were not asked for."""

    files: RunFiles
    dumps: tuple[DumpResult, ...]
    rows: tuple[OverflowRow, ...]
    completed: bool
    stop_reason: str = ""
    trends: tuple[Trend, ...] = ()
    headroom: Path | None = None
    without: tuple[Path, ...] = ()

    @property
    def findings(self) -> "pandas.DataFrame":
        """The rows of `overflow_check_{timestamp}.csv` as a data frame."""
        return read_table(self.files.details)


def check_overflow(
    config: OverflowConfig,
    *,
    show_progress: bool = True,
    on_files: Callable[[Path], None] = lambda path: None,
    session: RunSession | None = None,
) -> OverflowReport:
    """Find where NaN and infinity were born in the dumps that `config` names.

    A search that is a part of a larger run has the `session` of all parts.

    Raises:
        PrecheckError: a wrong option, no dump, or none that can be read. A search that had to stop is
            reported as not completed, and is resumed with `resume_csv`.
    """
    config.validate()
    config = on_cores(config)
    found = find_captures(config.dump)
    resumed = resumed_table(config.resume_csv, OVERFLOW_TABLES)
    with session_of_one(config, session, show=show_progress, on_files=on_files) as session:
        return run_job(_Search(config, found, session), config, session, config.out, resumed)


class _Search(DumpsFeature[OverflowPayload, OverflowReport]):
    """The dumps of a folder, each looked through, and their rows joined over ranks and steps."""

    def __init__(self, config: OverflowConfig, found: FoundDumps, session: RunSession) -> None:
        job = overflow_job(found.dumps, with_headroom=config.headroom, shared_fs=config.shared_fs)
        super().__init__(config, config.dump, found, job, session)
        self._config = config

    def report(self, files: RunFiles, end: RunEnd) -> OverflowReport:
        """Join the rows over ranks and steps.

        Raises:
            DumpError: none of the dumps could be read; a new run leaves no file.
        """
        dumps = tuple(_dump_results(files.result))
        self.require_one(files, end, dumps)
        rows = tuple(_rows(files.details))
        near: tuple[Trend, ...] = ()
        headroom: Path | None = None
        if end.completed:
            rows = tuple(joined_rows(rows))
            lines = [header(OVERFLOW_TABLES.details), *map(encoded, rows)]
            replace_file(files.details, lines)
            mark_completed(files.settings, files.result, files.details)
            if self._config.headroom:
                near, headroom = _write_trends(files, rows)
        return OverflowReport(
            files, dumps, rows, end.completed, end.stop_reason, near, headroom, self._found.without
        )


def read_search(files: RunFiles) -> OverflowReport:
    """Return the report of a search from its files, as far as they go; folders without a dump are not in
    them.

    Raises:
        ResumeError: a file has other columns.
        OSError: a file cannot be read.
    """
    settings = load_settings(files.settings)
    path = _headroom_file(files)
    found: tuple[Trend, ...] = ()
    if path.exists():
        found = tuple(map(_trend_of, decoded_rows(path, TREND_COLUMNS)))
    return OverflowReport(
        files,
        tuple(_dump_results(files.result)) if files.result.exists() else (),
        tuple(_rows(files.details)),
        settings is None or settings.completed is not None,
        trends=found,
        headroom=path if path.exists() else None,
    )


def _headroom_file(files: RunFiles) -> Path:
    return files.details.with_name(files.details.name.replace("_check_", "_headroom_", 1))


def _trend_of(cells: Sequence[str]) -> Trend:
    rank, key, tensor, dtype, steps, bits, slope, reached = cells
    return Trend(
        decode_name(rank),
        decode_name(key),
        decode_name(tensor),
        dtype,
        int(steps),
        float(bits),
        float(slope),
        float(reached) if reached else None,
    )


def _dump_results(path: Path) -> Iterator[DumpResult]:
    for cells in decoded_rows(path, OVERFLOW_TABLES.result):
        name, verdict, records, births, first, message = cells
        yield DumpResult(
            decode_name(name),
            verdict_in(verdict),
            int(records) if records.isdigit() else None,
            int(births) if births.isdigit() else 0,
            decode_name(first),
            message,
        )


def _rows(path: Path) -> Iterator[OverflowRow]:
    for cells in decoded_rows(path, OVERFLOW_TABLES.details):
        row = OverflowRow(*cells)
        yield row._replace(
            rank=decode_name(row.rank),
            api=decode_name(row.api),
            tensor=decode_name(row.tensor),
            module=decode_name(row.module),
            dump=decode_name(row.dump),
        )


def _write_trends(files: RunFiles, rows: Sequence[OverflowRow]) -> tuple[tuple[Trend, ...], Path]:
    """Write `overflow_headroom_{timestamp}.csv`; steps without a number count as step 0."""
    measured = (
        (
            row.rank,
            int(row.step) if row.step.isdigit() else 0,
            Headroom(row.api, row.tensor, row.dtype, float(row.kind), None, None),
        )
        for row in rows
        if row.birth == HEADROOM
    )
    found = tuple(trends(measured))
    path = _headroom_file(files)
    lines = [
        encode_row(
            [
                *map(encode_name, (each.rank, each.key, each.tensor, each.dtype)),
                str(each.steps),
                f"{each.bits:.2f}",
                f"{each.slope:.3f}",
                "" if each.reached is None else f"{each.reached:.1f}",
            ]
        )
        for each in found
    ]
    replace_file(path, [header(TREND_COLUMNS), *lines])
    return found, path
