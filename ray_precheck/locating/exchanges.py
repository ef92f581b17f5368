"""The collectives of a search, from the records of all ranks to what is known of each.

Comes in: the job of the collectives, and the configuration and the folder of a search. Goes out: a
`Recomputed` for each rank's record that could be recomputed. Called by the session `locating`, when the calls
of all dumps are there. The journal is `OUT/locate_collectives_calls_{timestamp}.csv` and
`OUT/locate_collectives_ranks_{timestamp}.csv`.
"""

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ray_precheck.config import JobOptions
from ray_precheck.jobs.location.exchange import EXCHANGE_TABLES, ExchangeJob, read_recomputed
from ray_precheck.options.files import ResumeOptions
from ray_precheck.runtime.driving import RunSetting, TaskPlan, drive
from ray_precheck.runtime.places.choice import Cluster
from ray_precheck.runtime.progress import Progress
from ray_precheck.store.resume import (
    discard_run,
    hold_files,
    resume_run,
    run_files,
    start_run,
)
from ray_precheck.trace.locating.collectives import Recomputed


@dataclass(frozen=True, slots=True)
class ExchangeSearch:
    """What the collectives of a search share with its other parts."""

    config: JobOptions
    resume: ResumeOptions
    folder: Path
    stamp: str
    fingerprint: dict[str, str]
    cluster: Cluster
    stop_requested: Callable[[], bool]
    show: bool


def recompute_exchanges(
    job: ExchangeJob, search: ExchangeSearch
) -> dict[str, list[Recomputed]] | None:
    """Recompute the collectives of a job, or go on with that; returns None if it was stopped on request.

    Raises:
        StoppedError: the run had to stop.
    """
    if not job.names:
        return {}
    fingerprint = {"collectives": _digest(job)} | search.fingerprint
    resumed = search.folder / EXCHANGE_TABLES.file("result", search.stamp)
    is_new = search.resume.resume_csv is None or not resumed.exists()
    with ExitStack() as held:
        if is_new:
            new = start_run(search.folder, search.stamp, fingerprint, EXCHANGE_TABLES)
            files, done = held.enter_context(hold_files(new)), set[str]()
        else:
            files = held.enter_context(hold_files(run_files(resumed, EXCHANGE_TABLES)))
            done = resume_run(
                files,
                set(job.names),
                fingerprint,
                force=search.resume.force,
                retry=search.resume.retry,
                tables=EXCHANGE_TABLES,
            )
        progress = Progress(len(job.names), len(done), show=search.show)
        planned: Future[TaskPlan] = Future()
        planned.set_result(TaskPlan((), job.settled(job.tasks(done))))
        setting = RunSetting(
            search.config, search.cluster, None, files, progress, search.stop_requested
        )
        try:
            completed = drive(job, planned, setting)
        finally:
            progress.close()
        if not completed:
            if is_new:
                discard_run(files)
            return None
        return read_recomputed(files.details)


def _digest(job: ExchangeJob) -> str:
    """Return what tells these collectives from others: their names, and the records of all ranks."""
    state = hashlib.sha256()
    for task in job.tasks(set()):
        state.update(f"{task.name}\0".encode())
        for each in job.payload(task):
            state.update(each.raw)
    return state.hexdigest()[:32]
