"""Events for a scheduler, and what to look for among its commands."""

from collections.abc import Sequence

from mock_pool import answers, broken, make_tasks

from ray_precheck.runtime.commands import Command, Record, SendBatch
from ray_precheck.runtime.scheduler import Scheduler
from ray_precheck.schema.casualty import Cause
from ray_precheck.schema.result import TaskResult
from ray_precheck.schema.task import Task

TIMEOUT_S = 30.0
TINY_S = 1e-6


def tiny(count: int) -> list[Task]:
    """Tasks that all fit into one batch by their cost."""
    return make_tasks([TINY_S] * count)


def huge(count: int) -> list[Task]:
    """Tasks each of which is a batch of its own."""
    return make_tasks([10.0] * count)


def scheduler(tasks: list[Task], slots: int = 1, places: Sequence[str] = ()) -> Scheduler:
    """A scheduler that has been started; without `places` each slot is a place of its own."""
    labels = [f"cpu:{i}" for i in range(slots)]
    made = Scheduler(tasks, dict(zip(labels, places or labels, strict=True)), TIMEOUT_S)
    made.start()
    return made


def sending(commands: Sequence[Command]) -> SendBatch:
    """The one batch among commands."""
    (batch,) = [command for command in commands if isinstance(command, SendBatch)]
    return batch


def indices(commands: Sequence[Command]) -> list[int]:
    """The records of the one batch among commands."""
    return [task.index for task in sending(commands).tasks]


def recorded(commands: Sequence[Command]) -> list[TaskResult]:
    """All results that commands have written."""
    return [result for c in commands if isinstance(c, Record) for result in c.results]


def break_at(
    made: Scheduler, batch: SendBatch, index: int, cause: Cause = Cause.CRASHED
) -> list[Command]:
    """Have the record at a position of a batch break its worker, after those before it."""
    return made.batch_done(
        batch.slot, batch.ticket, broken(batch.tasks[index], cause, batch.tasks[:index])
    )


def finish(made: Scheduler, batch: SendBatch) -> list[Command]:
    """Have a batch answered."""
    return made.batch_done(batch.slot, batch.ticket, answers(batch.tasks))
