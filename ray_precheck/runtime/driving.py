"""Runs a job on Ray; writes its rows without Ray where no task is left to run.

Comes in: a job, the future of its tasks, and the places and files that the session has opened. Goes
out: rows on the disk. Called by the session.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from ray_precheck.errors import PrecheckError
from ray_precheck.options.shared import JobOptions
from ray_precheck.runtime.actors import Actors
from ray_precheck.runtime.crew import WorkerOptions
from ray_precheck.runtime.driver import DriveOptions, Driver
from ray_precheck.runtime.job import GrowingJob, Job, Pieces
from ray_precheck.runtime.local_actors import LocalActors
from ray_precheck.runtime.places.choice import Cluster, Places
from ray_precheck.runtime.places.devices import local_node
from ray_precheck.runtime.places.placement import place_slots
from ray_precheck.runtime.places.probe import PACKAGE
from ray_precheck.runtime.places.scratch import sweep
from ray_precheck.runtime.progress import Progress
from ray_precheck.runtime.stop_signal import stop_on_signal
from ray_precheck.runtime.workers.fork_server import Load, ServerAddress
from ray_precheck.schema.task import Done, Task
from ray_precheck.store.journal import Journal
from ray_precheck.store.settings import note_caveat
from ray_precheck.store.tables import RunFiles
from ray_precheck.store.timeline import Timeline

# A plan of so many pieces takes half a second, and says whether a Ray is needed. Where there are more,
# workers start before it is finished, unless that is soon.
_FEW_PIECES = 20_000
_PATIENCE_S = 0.5
# A run that is estimated at less, on one core, stays in this process: the start and the end of a Ray would be
# 4 % of it or more, and the calls take as long (scripts/README, "Speed and memory").
SMALL_S = 60.0
# Rows that need no worker are on the disk after this time at the latest.
_BATCH_S = 0.5


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The tasks of a job in the order to run them, and the rows of tasks that need no run."""

    tasks: Sequence[Task]
    settled: Iterable[Done]


@dataclass(frozen=True, slots=True)
class RunSetting:
    """The things that the session has opened for a run: its devices, its files and its progress bar.

    `places` is None where every row is written without a worker; `server` forks check processes here,
    which have run `load`.

    `stop_requested` is asked between two events whether the run has to stop; None for Ctrl-C and
    SIGTERM.
    """

    config: JobOptions
    cluster: Cluster
    places: Places | None
    files: RunFiles
    progress: Progress
    stop_requested: Callable[[], bool] | None = None
    server: ServerAddress | None = None
    load: Load | None = None


def drive(job: Pieces, planning: "Future[TaskPlan]", setting: RunSetting) -> bool:
    """Run a job; workers start while its tasks are still being planned.

    Returns True at the end, False where the run was stopped on request.

    Raises:
        StoppedError: the disk, the writer or every device is gone; rows on the disk stay.
        PrecheckError: planning failed, or no cluster answers.
    """
    plan = _soon(planning, None if len(job.names) <= _FEW_PIECES else _PATIENCE_S)
    sweep()
    if plan is not None and not plan.tasks:
        return write_rows(job, plan.settled, setting)
    with ExitStack() as opened:
        # What has tasks is a whole job.
        driver = _open_driver(cast("Job", job), plan, setting, opened)
        driver.launch()
        plan = planning.result()
        return driver.run(plan.tasks, plan.settled, setting.progress)


def _soon(planning: "Future[TaskPlan]", patience_s: float | None) -> TaskPlan | None:
    """Return the plan if it is finished in so many seconds, else None."""
    try:
        return planning.result(timeout=patience_s)
    except TimeoutError:
        return None


def write_rows(pieces: Pieces, settled: Iterable[Done], setting: RunSetting) -> bool:
    """Write rows that need no worker, as they come, so that a run that is killed keeps what it had.

    Returns True at the end, False where the run was stopped on request.
    """
    files = setting.files
    with ExitStack() as opened:
        stop_requested = setting.stop_requested or opened.enter_context(stop_on_signal()).is_set
        journal = Journal.open(files.result, files.details, files.token, pieces.tables)
        opened.callback(journal.close)
        for rows in _batches(settled):
            journal.append(rows)
            setting.progress.add(rows)
            if stop_requested():
                return False
        journal.complete(pieces.names)
    if files.timeline.exists():  # A run that was killed behind its last row left it open.
        with suppress(PrecheckError):
            Timeline.open(files.timeline).close()
    return True


def _batches(settled: Iterable[Done]) -> Iterator[list[Done]]:
    """Yield rows in batches that each took `_BATCH_S` to make."""
    batch: list[Done] = []
    began = time.monotonic()
    for done in settled:
        batch.append(done)
        if time.monotonic() - began > _BATCH_S:
            yield batch
            batch, began = [], time.monotonic()
    if batch:
        yield batch


def _open_driver(
    job: Job, plan: TaskPlan | None, setting: RunSetting, opened: ExitStack
) -> "Driver":
    """Open the cluster, or do without one, and return a driver that is closed with `opened`."""
    config, places = setting.config, setting.places
    if places is None:
        raise ValueError("a plan with tasks needs places")
    # Nobody knows how long a search takes; its trials run in processes of their own anyway.
    is_small = isinstance(job, GrowingJob) or (plan is not None and _is_small(plan.tasks))
    stays = setting.cluster.is_local and is_small
    actors: Actors = LocalActors() if stays else _ray_actors(setting, places)
    nodes = actors.nodes()
    stop_requested = setting.stop_requested or opened.enter_context(stop_on_signal()).is_set
    driver = Driver(
        job,
        actors,
        places.request,
        place_slots(places.request, nodes),
        setting.files,
        stop_requested,
        DriveOptions(
            config.timeout_s,
            config.bench_workers,
            WorkerOptions(config.bench_budget_s, config.debug, setting.server, setting.load),
            partial(note_caveat, setting.files.settings),
        ),
    )
    opened.callback(driver.close)
    return driver


def _is_small(tasks: Sequence[Task]) -> bool:
    return sum(task.cost_s for task in tasks) < SMALL_S


def _ray_actors(setting: RunSetting, places: Places) -> Actors:
    nodes = places.nodes if places.are_open else setting.cluster.nodes(show=False)
    # Imported here: Ray takes half a second that a wrong option should not cost.
    from ray_precheck.runtime.places.cluster import Roster
    from ray_precheck.runtime.ray_actors import RayActors

    version = local_node().versions.get(PACKAGE, "")
    return RayActors(Roster(nodes, version, setting.progress.say))
