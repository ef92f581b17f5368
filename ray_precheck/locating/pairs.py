"""The search of dumps without files of tensors, from their pairs to what was found in each.

Comes in: the pairs of a search, its configuration and folder. Goes out: the `LocatedRows` of each pair, by
its label. Called by the session `locating`. The pairs are one job, whose journal is
`OUT/locate_dumps_{timestamp}.csv` and `OUT/locate_roots_{timestamp}.csv`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.config import JobOptions
from ray_precheck.errors import DumpError, StoppedError
from ray_precheck.jobs.location.dumps import DumpToLocate
from ray_precheck.jobs.location.pairs import DumpPairsJob, digest_of_pairs
from ray_precheck.jobs.location.rows import PAIR_TABLES, LocatedRows, read_located
from ray_precheck.options.files import ResumeOptions
from ray_precheck.runtime.driving import RunSetting, TaskPlan, drive
from ray_precheck.runtime.places.choice import Cluster, find_places
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.resume import (
    RunFiles,
    discard_run,
    hold_files,
    resume_run,
    run_files,
    start_run,
)

# Ray and its workers take so much longer to start than this process.
_START_OF_RAY_S = 10.0
_HEAD_BYTES, _FIRST_RECORDS_BYTES = 1 << 12, 1 << 18


@dataclass(frozen=True, slots=True)
class PairSearch:
    """What all pairs of a search share: `fingerprint` are the settings that another run must have to resume
    it, `is_exact` that calls are matched by name, `first_step` the step whose weights the runs began with."""

    config: JobOptions
    resume: ResumeOptions
    folder: Path
    stamp: str
    fingerprint: dict[str, str]
    cluster: Cluster
    stop_requested: Callable[[], bool]
    is_exact: bool
    first_step: str
    show: bool
    on_files: Callable[[Path], None]


def has_tensor_files(dump: Path) -> bool:
    """Return whether a dump has its tensors in files, as its head says or its first records show."""
    try:
        with dump.open("rb") as file:
            head = file.read(_FIRST_RECORDS_BYTES)
    except OSError:
        return False
    said = head[:_HEAD_BYTES].replace(b" ", b"")
    return b'"data_name"' in head or b'"task":"tensor"' in said


def search_pairs(
    pairs: Sequence[DumpToLocate], search: PairSearch
) -> dict[str, LocatedRows] | None:
    """Search pairs of dumps, or go on with that; returns None if it was stopped on request.

    Raises:
        DumpError: none of the pairs could be searched; a new run leaves no file.
        StoppedError: the run had to stop.
    """
    config = search.config
    job = DumpPairsJob(
        pairs,
        exact=search.is_exact,
        first_step=search.first_step,
        shared_fs=config.shared_fs,
    )
    fingerprint = {"pairs": digest_of_pairs(pairs)} | search.fingerprint
    with ExitStack() as held:
        files, done, is_new = _files(search, job, fingerprint, held)
        search.on_files(files.result)
        if not _drive(search, job, files, done, is_new=is_new):
            return None
        found = read_located(files.result, files.details)
        if not any(rows.known for rows in found.values()):
            if is_new:
                for path in (files.result, files.details, files.settings, files.timeline):
                    path.unlink(missing_ok=True)
            raise DumpError(next((rows.message for rows in found.values()), "no dump was searched"))
        return found


def _files(
    search: PairSearch, job: DumpPairsJob, fingerprint: dict[str, str], held: ExitStack
) -> tuple[RunFiles, set[str], bool]:
    """Return the files to write, which no other run can take until `held` is closed, what is done in them,
    and whether they are new."""
    resumed = search.folder / PAIR_TABLES.file("result", search.stamp)
    if search.resume.resume_csv is None or not resumed.exists():
        new = start_run(search.folder, search.stamp, fingerprint, PAIR_TABLES)
        return held.enter_context(hold_files(new)), set(), True
    files = held.enter_context(hold_files(run_files(resumed, PAIR_TABLES)))
    done = resume_run(
        files,
        set(job.names),
        fingerprint,
        force=search.resume.force,
        retry=search.resume.retry,
        tables=PAIR_TABLES,
    )
    return files, done, False


def _drive(
    search: PairSearch, job: DumpPairsJob, files: RunFiles, done: set[str], *, is_new: bool
) -> bool:
    config, tasks = search.config, job.tasks(done)
    places = None
    planned: Future[TaskPlan] = Future()
    if is_done_here(config, sum(task.cost_s for task in tasks)):
        planned.set_result(TaskPlan((), job.settled(tasks)))
    else:
        places = find_places(config, "pytorch", search.cluster, show=search.show, device_runs=False)
        planned.set_result(TaskPlan(tasks, ()))
    progress = Progress(len(job.names), len(done), show=search.show and len(job.names) > 1)
    setting = RunSetting(config, search.cluster, places, files, progress, search.stop_requested)
    completed, reason = False, ""
    try:
        completed = drive(job, planned, setting)
    except StoppedError as error:
        reason = str(error)
    finally:
        progress.close()
        is_discarded = is_new and not completed and discard_run(files)
    if reason or is_discarded:
        raise StoppedError(reason or "stopped on request before a row was written; start anew")
    return completed


def is_done_here(config: JobOptions, cost_s: float) -> bool:
    """Return whether work is done in this process: it is less than Ray and its workers take to start."""
    if config.address or isinstance(config.devices, str):
        return False
    return cost_s < _START_OF_RAY_S or len(config.devices) == 1
