"""Events for a scheduler, and what to look for among its commands."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mock_pool import JOB, answers, broken, make_tasks

from ray_precheck.runtime.scheduling.bench_stage import BenchStage
from ray_precheck.runtime.scheduling.commands import Command, Forget, Record, SendBatch
from ray_precheck.runtime.scheduling.scheduler import Dispatch, Scheduler
from ray_precheck.runtime.scheduling.slots import SlotTable
from ray_precheck.schema.task import BatchReport, Cause, Done, MeasuredTask, Task

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
    made = Scheduler(tasks, dict(zip(labels, places or labels, strict=True)), TIMEOUT_S, JOB)
    made.start()
    return made


def staged(
    tasks: list[Task],
    slots: int = 1,
    benches: int = 1,
    *,
    machines: Mapping[str, str] | None = None,
    most_bytes: int = 1 << 40,
    **more: Any,
) -> Scheduler:
    """A scheduler with bench workers that has been started; each slot is a place of its own.

    `machines` are those of slots and bench workers by their labels, `m0` where one is left out.
    """
    found = machines or {}
    labels = [f"cpu:{i}" for i in range(slots)]
    places = {f"bench:{i}": found.get(f"bench:{i}", "m0") for i in range(benches)}
    made = Scheduler(
        tasks,
        {label: label for label in labels},
        TIMEOUT_S,
        JOB,
        bench=BenchStage(places, most_bytes),
        machines={label: found.get(label, "m0") for label in labels},
        **more,
    )
    made.start()
    return made


def sending(commands: Sequence[Command]) -> SendBatch:
    """The one batch among commands, or the first of two for one worker."""
    batch, *others = [command for command in commands if isinstance(command, SendBatch)]
    assert [other.slot for other in others] in ([], [batch.slot])
    return batch


def sent_to(commands: Sequence[Command]) -> dict[str, SendBatch]:
    """The batches among commands by who gets them; each gets one."""
    batches = [command for command in commands if isinstance(command, SendBatch)]
    found = {batch.slot: batch for batch in batches}
    assert len(found) == len(batches)
    return found


def forgotten(commands: Sequence[Command]) -> list[int]:
    """The tickets of which commands say that they are not needed any more."""
    return [command.ticket for command in commands if isinstance(command, Forget)]


def indices(commands: Sequence[Command]) -> list[int]:
    """The records of the one batch among commands."""
    return [task.index for task in sending(commands).tasks]


def recorded(commands: Sequence[Command]) -> list[Done]:
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


def measure(made: Scheduler, batch: SendBatch, nbytes: int | None = None) -> list[Command]:
    """Have a device do its half of a batch; each record leaves what was expected, or `nbytes`."""
    tasks = tuple(
        MeasuredTask(task.index, task.nbytes if nbytes is None else nbytes) for task in batch.tasks
    )
    return made.batch_done(batch.slot, batch.ticket, BatchReport((), measured=tasks))


# What no command tells of before it matters: tests look at it here and nowhere else.


def dispatch_of(made: Scheduler) -> Dispatch:
    """Return what a scheduler has still to send."""
    return made._dispatch


def crashes_of(made: Scheduler) -> Counter[tuple[int, Cause]]:
    """Return the crashes that were counted, by the record and the cause."""
    return made._dispatch.crash_counts._crashes


def slots_of(made: Scheduler) -> SlotTable:
    """Return the slots."""
    return made._slots
