"""A worker has its next batch before it is done with one, and what becomes of that one."""

import pytest
from mock_pool import answers, broken, make_tasks
from scheduler_events import (
    TINY_S,
    break_at,
    dispatch_of,
    finish,
    forgotten,
    scheduler,
    slots_of,
    staged,
)

from ray_precheck.runtime.scheduling.commands import Command, SendBatch, Stage, StartWorker
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.schema.task import Cause

pytestmark = pytest.mark.unit

SLOT = "cpu:0"


def batches(commands: list[Command]) -> list[SendBatch]:
    return [command for command in commands if isinstance(command, SendBatch)]


def begun(made: Scheduler, slot: str = SLOT) -> list[SendBatch]:
    """What a worker is given that has started, until the end of the step."""
    return batches([*made.worker_ready(slot), *made.wake()])


def busy(costs: list[float], slots: int = 1) -> tuple[Scheduler, SendBatch, SendBatch]:
    """A scheduler whose first worker has two batches."""
    made = scheduler(make_tasks(costs), slots=slots)
    first, second = begun(made)
    return made, first, second


def waiting(made: Scheduler) -> list[int]:
    """The records of the queue."""
    return sorted(task.index for task in dispatch_of(made).queue.tasks)


def test_it_goes_on_with_the_next_and_gets_another() -> None:
    made, first, second = busy([0.1] * 40)
    assert made.in_flight == len(first.tasks) + len(second.tasks)
    (third,) = batches(finish(made, first))
    assert made.in_flight == len(second.tasks) + len(third.tasks)
    # What is behind is not awaited yet: an answer to it is none.
    assert made.batch_done(SLOT, third.ticket, answers(third.tasks)) == []
    assert batches(finish(made, second))


def test_the_batch_behind_one_that_breaks_its_worker_goes_back_first() -> None:
    made, first, second = busy([0.1] * 40)
    commands = break_at(made, first, 0)
    assert forgotten(commands) == [second.ticket]
    assert commands.index(StartWorker(SLOT)) > 0
    begun = {task.index for task in first.tasks[:1]}
    assert waiting(made) == sorted(set(range(40)) - begun)
    assert made.in_flight == 0


@pytest.mark.parametrize("how", ["worker", "machine"])
def test_nobody_is_blamed_for_what_a_lost_worker_had_not_begun(how: str) -> None:
    made = scheduler(make_tasks([0.3] * 20))
    (alone,) = batches(made.worker_ready(SLOT))
    first, second = batches([*finish(made, alone), *made.wake()])
    assert len(first.tasks) == len(second.tasks) == 1
    commands = (
        made.worker_lost(SLOT, first.ticket, "gone")
        if how == "worker"
        else made.slot_lost(SLOT, "gone")
    )
    assert forgotten(commands) == [second.ticket]
    assert waiting(made) == list(range(2, 20))
    kept = [
        *dispatch_of(made).crash_counts.quarantined,
        *filter(None, [slots_of(made)[SLOT].quarantined]),
    ]
    assert [task.index for task in kept] == [1]
    assert made.in_flight == 0


def test_a_loss_of_the_one_behind_is_none_while_the_first_is_in_work() -> None:
    made, _, second = busy([0.1] * 40)
    before = made.in_flight
    assert made.worker_lost(SLOT, second.ticket, "gone") == []
    assert made.in_flight == before


def test_of_workers_that_begin_at_once_each_has_one_before_any_has_two() -> None:
    made = scheduler(make_tasks([0.1] * 200), slots=2)
    first = [batches(made.worker_ready(f"cpu:{i}")) for i in range(2)]
    assert [len(each) for each in first] == [1, 1]
    assert [batch.slot for batch in batches(made.wake())] == ["cpu:0", "cpu:1"]
    assert batches(made.wake()) == []


def test_near_the_end_each_has_one_so_that_all_end_together() -> None:
    made = scheduler(make_tasks([0.01] * 70))
    assert len(begun(made)) == 1


def test_none_has_two_costly_records_while_another_waits_for_one() -> None:
    made = scheduler(make_tasks([3.0] * 8 + [TINY_S] * 100), slots=8)
    assert [len(begun(made, f"cpu:{i}")) for i in range(8)] == [1] * 8


def test_who_is_to_run_alone_does_not_wait_behind_more_than_one() -> None:
    made, first, second = busy([0.1] * 200, slots=2)
    (other, its_next) = begun(made, "cpu:1")
    made.worker_lost("cpu:1", other.ticket, "gone")
    assert dispatch_of(made).alone
    assert batches(finish(made, first)) == []
    (alone,) = batches(finish(made, second))
    assert len(alone.tasks) == 1
    assert alone.tasks[0] in other.tasks
    assert its_next.tasks[0].index in waiting(made)


def test_a_record_on_a_fresh_worker_of_its_own_has_none_behind_it() -> None:
    made = scheduler(make_tasks([0.5] * 20))
    assert len(begun(made)) == 1


def test_a_worker_that_moves_does_first_what_it_has() -> None:
    made, first, second = busy([0.1] * 200)
    assert made.revive(SLOT, "elsewhere") == []
    assert batches(finish(made, first)) == []
    assert finish(made, second)[-1:] == [StartWorker(SLOT)]


def test_a_worker_does_what_it_has_where_the_run_is_to_end() -> None:
    made, first, second = busy([0.1] * 40)
    made.drain()
    assert batches(finish(made, first)) == []
    assert not made.finished
    finish(made, second)
    assert made.finished


def test_it_does_not_where_the_first_broke_the_worker() -> None:
    made, first, second = busy([0.1] * 40)
    made.drain()
    assert forgotten(break_at(made, first, 0)) == [second.ticket]
    assert made.finished


def test_what_goes_back_is_promised_to_no_bench() -> None:
    made = staged(make_tasks([0.1] * 200), most_bytes=1000)
    made.worker_ready("bench:0")
    first, second = begun(made)
    assert (first.stage, second.stage) == (Stage.DEVICE, Stage.DEVICE)
    report = broken(first.tasks[0], Cause.CRASHED)
    made.batch_done(SLOT, first.ticket, report)
    assert made.bench.is_empty
