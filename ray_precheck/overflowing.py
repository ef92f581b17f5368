"""A search for the births of NaN and infinity, from its configuration to its report.

Comes in: an `OverflowConfig`. Goes out: an `OverflowReport`. Called by the command line, and by programs that
import the package. Each dump of the folder is a piece of the job `jobs.overflow`; what ranks and steps
tell of each other is said at the end, from the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ray_precheck.config import OverflowConfig
from ray_precheck.dump.folders import FoundDumps, find_dumps
from ray_precheck.errors import DumpError, ResumeError
from ray_precheck.foreign import open_file
from ray_precheck.jobs.dumps.job import DumpsJob, digest_of_dumps
from ray_precheck.jobs.overflow.job import OVERFLOW_TABLES, OverflowPayload, encoded, overflow_job
from ray_precheck.options.declared import settings_of
from ray_precheck.report.frames import read_table
from ray_precheck.runtime.driving import RunSetting, SharedRun, drive_to_end, planned
from ray_precheck.runtime.places.choice import Cluster, Places, find_places, on_cores
from ray_precheck.runtime.places.placement import DeviceRequest
from ray_precheck.runtime.progress import Progress
from ray_precheck.schema.result import Verdict, verdict_in
from ray_precheck.store.columns import decode_name, decode_row, encode_row, header
from ray_precheck.store.opening import NewFiles, opened_run
from ray_precheck.store.reads import reads_of_dumps
from ray_precheck.store.repair import rows_below
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.rows import replace_file
from ray_precheck.store.settings import mark_completed
from ray_precheck.store.stamps import new_stamp
from ray_precheck.trace.overflow.headroom import Headroom, Trend, trends
from ray_precheck.trace.overflow.rows import HEADROOM, OverflowRow, joined_rows

if TYPE_CHECKING:
    import pandas

# Less than this is looked at in the command's own process: Ray and its workers take 10 s to start, in which
# one core follows the records of about so many bytes.
OWN_PROCESS_BYTES = 250_000_000
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
    on_files: Callable[[RunFiles], None] = lambda files: None,
    shared: SharedRun | None = None,
) -> OverflowReport:
    """Find where NaN and infinity were born in the dumps that `config` names.

    A search that is a part of a larger run has `shared` with the other parts.

    Raises:
        PrecheckError: a wrong option, no dump, or none that can be read. A search that had to stop is
            reported as not completed, and goes on with `resume_csv`.
    """
    config.validate()
    found = find_dumps(config.dump)
    job = overflow_job(found.dumps, with_headroom=config.headroom, shared_fs=config.shared_fs)
    digest = digest_of_dumps((each.label, [each.path]) for each in found.dumps)
    fingerprint = {"dump": digest} | settings_of(config)
    resumed = None if config.resume_csv is None else _resumed(config.resume_csv)
    new = shared.new_files(config.out) if shared else NewFiles(config.out, new_stamp())
    names = set(job.names)
    reads = reads_of_dumps(((each.label, [each.path]) for each in found.dumps), tensors=False)
    with (
        opened_run(resumed, new, names, fingerprint, config, OVERFLOW_TABLES, reads) as opened,
        ExitStack() as joined,
    ):
        files = opened.files
        on_files(files)
        tasks = job.tasks(opened.done)
        needs_workers = len(tasks) > 1 and sum(job.sizes) > OWN_PROCESS_BYTES
        if shared is None:
            cluster, stop_requested = Cluster(on_cores(config), joined), None
        else:
            cluster, stop_requested = shared.cluster, shared.stop_requested
        setting = _setting(
            config, cluster, files, job, opened.done, stop_requested, is_alone=not needs_workers
        )
        planning = planned(tasks) if needs_workers else planned((), job.settled(tasks))
        end = drive_to_end(job, planning, setting, is_new=opened.is_new)
        end.require_rows()
        return _report(config, found, files, completed=end.completed, reason=end.reason)


def _resumed(path: Path) -> Path:
    """Return the table of the dumps of a run: named itself, by its findings, or the newest in a folder.

    Raises:
        ResumeError: there is none in the folder.
    """
    begin, other = (OVERFLOW_TABLES.file(kind, "") for kind in ("result", "details"))
    begin, other = begin.removesuffix(".csv"), other.removesuffix(".csv")
    if path.is_dir():
        newest = max(path.glob(f"{begin}*.csv"), default=None, key=lambda each: each.name)
        if newest is None:
            raise ResumeError(f"-csv_path: {path} has no {begin}*.csv to go on in")
        return newest
    return path.with_name(path.name.replace(other, begin, 1))


def _setting(
    config: OverflowConfig,
    cluster: Cluster,
    files: RunFiles,
    job: DumpsJob[OverflowPayload],
    done: set[str],
    stop_requested: Callable[[], bool] | None,
    *,
    is_alone: bool,
) -> RunSetting:
    """Return where the job runs."""
    progress = Progress(len(job.names), len(done), show=not is_alone, unit=job.tables.unit)
    config = on_cores(config)
    if is_alone:
        places = Places(DeviceRequest.of(config, "cpu"), [], None, (), False)
    else:
        places = find_places(config, "pytorch", cluster, show=True, device_runs=False)
    return RunSetting(config, cluster, places, files, progress, stop_requested)


def _report(
    config: OverflowConfig, found: FoundDumps, files: RunFiles, *, completed: bool, reason: str
) -> OverflowReport:
    """Join the rows over ranks and steps, and return the report.

    Raises:
        DumpError: none of the dumps could be read; a new run leaves no file.
    """
    dumps = tuple(_dump_results(files.result))
    if completed and dumps and all(each.records is None for each in dumps):
        if config.resume_csv is None:
            for path in (files.result, files.details, files.settings, files.timeline):
                path.unlink(missing_ok=True)
        raise DumpError(dumps[0].message)
    rows = tuple(_rows(files.details))
    near: tuple[Trend, ...] = ()
    headroom: Path | None = None
    if completed:
        rows = tuple(joined_rows(rows))
        lines = [header(OVERFLOW_TABLES.details), *map(encoded, rows)]
        replace_file(files.details, lines)
        mark_completed(files.settings, files.result, files.details)
        if config.headroom:
            near, headroom = _write_trends(files, rows)
    return OverflowReport(files, dumps, rows, completed, reason, near, headroom, found.without)


def _dump_results(path: Path) -> Iterator[DumpResult]:
    with open_file(path) as file:
        for line in rows_below(file, OVERFLOW_TABLES.result):
            name, verdict, records, births, first, message = decode_row(line)
            known = int(records) if records.isdigit() else None
            yield DumpResult(
                decode_name(name),
                verdict_in(verdict),
                known,
                int(births) if births.isdigit() else 0,
                decode_name(first),
                message,
            )


def _rows(path: Path) -> Iterator[OverflowRow]:
    with open_file(path) as file:
        for line in rows_below(file, OVERFLOW_TABLES.details):
            row = OverflowRow(*decode_row(line))
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
    path = files.details.with_name(files.details.name.replace("_check_", "_headroom_", 1))
    lines = [
        encode_row(
            [
                *(each.rank, each.key, each.tensor, each.dtype, str(each.steps)),
                f"{each.bits:.2f}",
                f"{each.slope:.3f}",
                "" if each.reached is None else f"{each.reached:.1f}",
            ]
        )
        for each in found
    ]
    replace_file(path, [header(TREND_COLUMNS), *lines])
    return found, path
