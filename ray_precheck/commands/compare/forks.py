"""Comparing pieces without Ray: in the process of the command, or in forks of it, of which one may be killed.

Comes in: a job, its tasks and how its pieces are read. Goes out: finished pieces in the order of the tasks,
one after the other. Called by `run` where Ray's start would take longer than the work, or one slot is asked
for. A fork shares the open captures and the pieces of its parent, and needs no start; nothing is scheduled:
the tasks are cut into runs that go round. Where a fork is killed (a file was cut while its pages were read:
SIGBUS; memory ran out: SIGKILL) the first run that is not finished is done again, each piece alone in a fresh
fork; a piece that kills that one, too, has failed. Then forks go on with the rest.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection

from ray_precheck.commands.compare.job import ComparisonJob, ComparisonRunner
from ray_precheck.commands.compare.payload import ComparisonSettings
from ray_precheck.commands.compare.rows import PieceReading
from ray_precheck.processes import end_with_parent
from ray_precheck.runtime.places.devices import usable_cores
from ray_precheck.runtime.scheduling.commands import Stage
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Done, Task

# Below this work forks, which take 20 ms each, gain nothing.
_WORTH_FORKS_S = 1.0
_MOST_FORKS = 8


def cores_for_forks(devices: Sequence[int] | str) -> int:
    """Return how many cores were named, each by an id, or else on how many this process may run, at most as
    many as comparisons are forked to."""
    named = 0 if isinstance(devices, str) else len(devices)
    return min(named or usable_cores(), _MOST_FORKS)


def compared_here(
    job: ComparisonJob,
    tasks: Sequence[Task],
    settings: ComparisonSettings,
    reading: PieceReading,
    cores: int,
) -> Iterator[Done]:
    """Compare pieces as they are asked for, on so many cores.

    This process reads files whole: a mapped one that another program cuts meanwhile would end it (SIGBUS). A
    fork maps them, because it may be killed.
    """
    is_forked = cores > 1 and sum(task.cost_s for task in tasks) >= _WORTH_FORKS_S
    runner = ComparisonRunner(settings, reading if is_forked else reading.read_whole())

    def compare(task: Task) -> Done:
        return runner.run(job.payload(task), Stage.DEVICE)

    def fail(task: Task, reason: str) -> Done:
        return job.failed(task, Outcome.CRASHED, reason)

    yield from (
        compared_in_forks(compare, fail, tasks, cores) if is_forked else map(compare, tasks)
    )


# Pieces that a fork is given at a time: many, since most take less than a millisecond, but no more than take
# so many seconds, which a run that is killed loses.
_MOST_AT_A_TIME, _LONGEST_RUN_S = 128, 0.5

Compare = Callable[[Task], Done]
# Makes the rows of a piece that failed, of the sentence that says why.
Fail = Callable[[Task, str], Done]
# In a fork: the function that compares, alone.
_compare: list[Compare] = []


def compared_in_forks(
    compare: Compare, fail: Fail, tasks: Sequence[Task], cores: int
) -> Iterator[Done]:
    """Compare pieces on so many cores, as they are asked for."""
    runs = list(_runs(tasks))
    finished = 0
    while finished < len(runs):
        try:
            for done in _pooled(compare, runs[finished:], cores):
                yield from done
                finished += 1
        except BrokenProcessPool:
            for task in runs[finished]:
                yield _compared_alone(compare, fail, task)
            finished += 1


def _pooled(compare: Compare, runs: Sequence[Sequence[Task]], cores: int) -> Iterator[list[Done]]:
    """Yield the finished pieces of each run; raises `BrokenProcessPool` where a fork was killed."""
    pool = ProcessPoolExecutor(cores, get_context("fork"), _begin, (compare, os.getpid()))
    try:
        yield from pool.map(_compare_run, runs)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(compare: Compare, parent: int) -> None:
    """Prepare a fork: it ends with its parent, which alone looks at signals of the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # By which the pool ends its forks where one of them was killed.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    end_with_parent(parent)
    _compare[:] = [compare]


def _compare_run(tasks: Sequence[Task]) -> list[Done]:
    (compare,) = _compare
    return [compare(task) for task in tasks]


def _compared_alone(compare: Compare, fail: Fail, task: Task) -> Done:
    """Compare a piece in a fork of its own; the rows of one that kills it say so."""
    context = get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    fork = context.Process(target=_answer, args=(sending, compare, task, os.getpid()))
    fork.start()
    sending.close()
    done: Done | None
    try:
        done = receiving.recv()
    except EOFError:
        done = None
    receiving.close()
    fork.join()
    if done is not None:
        return done
    code = fork.exitcode or 0
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    reason = f"the process that compared it ended with {how}, also where it compared nothing else"
    if code == -signal.SIGBUS:
        reason += "; a file that is cut while it is read does that"
    return fail(task, reason)


def _answer(sending: Connection, compare: Compare, task: Task, parent: int) -> None:
    _begin(compare, parent)
    # A signal to the whole process group is for the parent, and must not be held against the piece.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sending.send(compare(task))


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
