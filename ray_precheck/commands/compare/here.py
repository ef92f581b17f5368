"""Comparing pieces on the machine of the command, without Ray: in its own process, or in forks of it.

Comes in: a job, its tasks and how its pieces are read. Goes out: finished pieces in the order of the tasks,
one after the other. Called by the session where Ray's start would take longer than the work, or one slot is
asked for.
"""

from collections.abc import Iterator, Sequence

from ray_precheck.commands.compare.forks import compared_in_forks
from ray_precheck.commands.compare.job import ComparisonJob, ComparisonRunner
from ray_precheck.commands.compare.payload import ComparisonSettings
from ray_precheck.commands.compare.rows import PieceReading
from ray_precheck.runtime.places.devices import usable_cores
from ray_precheck.runtime.scheduling.stage import Stage
from ray_precheck.schema.done import Done
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Task

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
