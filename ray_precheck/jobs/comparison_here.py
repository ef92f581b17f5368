"""Comparing pieces on the machine of the command, without Ray: in its own process, or in forks of it.

Comes in: a job, its tasks and a runner. Goes out: finished pieces in the order of the tasks, one after the
other. Called by the session where Ray's start would take longer than the work, or one slot is asked for. A
fork shares the open captures and the pieces of its parent, and needs no start; nothing is scheduled: the
tasks are cut into runs that go round.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from ray_precheck.errors import StoppedError
from ray_precheck.jobs.comparison import ComparisonJob, ComparisonRunner
from ray_precheck.prctl import end_with_parent
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.schema.done import Done
from ray_precheck.schema.task import Task

# Below this work forks, which take 20 ms each, gain nothing.
_WORTH_FORKS_S = 1.0
# Pieces that a fork is given at a time: many, since most take less than a millisecond, but no more than take
# so many seconds, which a run that is killed loses.
_MOST_AT_A_TIME, _LONGEST_RUN_S = 128, 0.5
_MOST_FORKS = 8

# In a fork: the function that compares, alone.
_compare: list[Callable[[Task], Done]] = []


def cores_for_forks() -> int:
    """Return on how many cores this process may run, at most as many as comparisons are forked to."""
    return min(len(os.sched_getaffinity(0)), _MOST_FORKS)


def compared_here(
    job: ComparisonJob, tasks: Sequence[Task], runner: ComparisonRunner, cores: int
) -> Iterator[Done]:
    """Compare pieces as they are asked for, on so many cores.

    Raises:
        StoppedError: a fork was killed; the rows that were returned are good.
    """

    def compare(task: Task) -> Done:
        return runner.run(job.payload(task), Stage.DEVICE)

    if cores < 2 or sum(task.cost_s for task in tasks) < _WORTH_FORKS_S:
        yield from map(compare, tasks)
        return
    pool = ProcessPoolExecutor(cores, get_context("fork"), _begin, (compare, os.getpid()))
    try:
        for finished in pool.map(_compare_run, _runs(tasks)):
            yield from finished
    except BrokenProcessPool:
        raise StoppedError(
            "a process that compares was killed, perhaps for want of memory; -d 0 1 compares on workers that"
            " are started again"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(compare: Callable[[Task], Done], parent: int) -> None:
    """Prepare a fork: it ends with its parent, which alone looks at signals of the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent)
    _compare[:] = [compare]


def _compare_run(tasks: Sequence[Task]) -> list[Done]:
    (compare,) = _compare
    return [compare(task) for task in tasks]


def _runs(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Yield the tasks in runs of about the same length."""
    run: list[Task] = []
    took_s = 0.0
    for task in tasks:
        run.append(task)
        took_s += task.cost_s
        if len(run) >= _MOST_AT_A_TIME or took_s > _LONGEST_RUN_S:
            yield run
            run, took_s = [], 0.0
    if run:
        yield run
