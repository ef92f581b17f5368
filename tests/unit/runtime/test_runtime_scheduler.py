"""The scheduler: given these events, expect these commands."""

from collections.abc import Sequence
from random import Random

import pytest
from mock_pool import Pool, answer, make_tasks

from ray_precheck.runtime.scheduler import (
    ALONE_CRASHES,
    COST_SLACK,
    MAX_BATCH_RECORDS,
    START_ATTEMPTS,
    TARGET_BATCH_S,
    Command,
    GiveUpDevice,
    Report,
    Scheduler,
    SendBatch,
    StartWorker,
)
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Task

pytestmark = pytest.mark.unit

TIMEOUT_S = 30.0
TINY_S = 1e-6


def tiny(count: int) -> list[Task]:
    """Tasks that all fit into one batch by their cost."""
    return make_tasks([TINY_S] * count)


def scheduler(tasks: list[Task], slots: int = 1) -> Scheduler:
    """A scheduler that has been started."""
    made = Scheduler(tasks, [f"cpu:{i}" for i in range(slots)], TIMEOUT_S)
    made.start()
    return made


def sent(commands: Sequence[Command]) -> tuple[Task, ...]:
    """The tasks of the one batch among commands."""
    (batch,) = [command for command in commands if isinstance(command, SendBatch)]
    return batch.tasks


class TestStart:
    def test_a_worker_is_started_on_every_slot(self) -> None:
        made = Scheduler(tiny(5), ["npu:0", "npu:1"], TIMEOUT_S)
        assert made.start() == [StartWorker("npu:0"), StartWorker("npu:1")]

    def test_no_more_workers_are_started_than_there_are_records(self) -> None:
        made = Scheduler(tiny(2), ["npu:0", "npu:1", "npu:2"], TIMEOUT_S)
        assert made.start() == [StartWorker("npu:0"), StartWorker("npu:1")]

    def test_a_run_of_nothing_is_finished(self) -> None:
        assert scheduler([]).finished

    def test_a_run_of_something_is_not(self) -> None:
        made = scheduler(tiny(1))
        assert not made.finished
        assert made.in_flight == 0

    def test_a_start_that_fails_is_tried_again(self) -> None:
        made = scheduler(tiny(1))
        for _ in range(START_ATTEMPTS - 1):
            assert made.start_failed("cpu:0", "no driver") == [StartWorker("cpu:0")]
        assert made.has_devices

    def test_after_three_failed_starts_the_device_is_given_up(self) -> None:
        made = scheduler(tiny(1))
        commands = [made.start_failed("cpu:0", "no driver") for _ in range(3)][-1]
        assert commands == [GiveUpDevice("cpu:0", "no driver")]
        assert not made.has_devices
        assert not made.finished

    def test_the_other_devices_go_on(self) -> None:
        made = scheduler(tiny(2), slots=2)
        for _ in range(3):
            made.start_failed("cpu:0", "no driver")
        assert made.has_devices
        assert sent(made.worker_ready("cpu:1"))

    def test_only_starts_that_fail_in_a_row_count(self) -> None:
        made = scheduler(make_tasks([0.0] * 3))
        for _ in range(3):
            for _ in range(START_ATTEMPTS - 1):
                assert made.start_failed("cpu:0", "no driver") == [StartWorker("cpu:0")]
            made.worker_ready("cpu:0")
            made.worker_lost("cpu:0", "killed", Outcome.CRASHED)
        assert made.has_devices


class TestBatches:
    def test_a_worker_that_is_ready_gets_a_batch(self) -> None:
        tasks = make_tasks([0.25])
        commands = scheduler(tasks).worker_ready("cpu:0")
        deadline_s = TIMEOUT_S + COST_SLACK * 0.25
        assert commands == [SendBatch("cpu:0", tuple(tasks), deadline_s)]

    def test_a_batch_has_no_more_than_64_records(self) -> None:
        made = scheduler(make_tasks([0.0] * 200))
        assert MAX_BATCH_RECORDS == 64
        assert len(sent(made.worker_ready("cpu:0"))) == 64

    def test_a_batch_has_no_more_work_than_its_target(self) -> None:
        made = scheduler(make_tasks([0.0625] * 200))
        assert 0.375 <= TARGET_BATCH_S < 0.4375
        assert len(sent(made.worker_ready("cpu:0"))) == 6

    def test_a_huge_record_goes_alone(self) -> None:
        made = scheduler(make_tasks([100.0, *[TINY_S] * 70]), slots=2)
        assert [task.index for task in sent(made.worker_ready("cpu:0"))] == [0]
        assert len(sent(made.worker_ready("cpu:1"))) > 1

    def test_records_go_in_the_order_of_the_plan(self) -> None:
        made = scheduler(make_tasks([5.0, 4.0, 3.0]))
        order = []
        commands = made.worker_ready("cpu:0")
        while commands:
            tasks = sent(commands)
            order += [task.index for task in tasks]
            commands = made.batch_done("cpu:0", [answer(task) for task in tasks])
        assert order == [0, 1, 2]
        assert made.finished

    def test_batches_get_smaller_towards_the_end(self) -> None:
        pool = Pool(scheduler(make_tasks([0.001] * 1500), slots=4), Random(0), {})
        pool.run(most_events=2000)
        sizes = [len(batch.tasks) for batch in pool.batches]
        assert max(sizes) == sizes[0] == 64
        assert sizes[-8:] == sorted(sizes[-8:], reverse=True)
        assert sizes[-1] == 1

    def test_no_worker_gets_a_second_batch_while_it_has_one(self) -> None:
        made = scheduler(make_tasks([10.0] * 3))
        assert sent(made.worker_ready("cpu:0"))
        assert made.wake() == []
        assert made.in_flight == 1

    def test_a_worker_waits_where_nothing_is_left(self) -> None:
        made = scheduler(make_tasks([10.0, 10.0]), slots=2)
        tasks = sent(made.worker_ready("cpu:0"))
        made.worker_ready("cpu:1")
        assert made.batch_done("cpu:0", [answer(task) for task in tasks]) == []
        assert not made.finished


class TestMissingAnswers:
    def test_a_record_that_is_missing_from_a_reply_runs_again_alone(self) -> None:
        tasks = make_tasks([0.0] * 80)
        made = scheduler(tasks)
        batch = sent(made.worker_ready("cpu:0"))
        again = made.batch_done("cpu:0", [answer(task) for task in batch if task.index != 2])
        assert len(batch) == 64
        assert sent(again) == (tasks[2],)

    def test_a_record_that_is_always_missing_is_reported_in_the_end(self) -> None:
        made = scheduler(tiny(1))
        commands = made.worker_ready("cpu:0")
        for _ in range(10):
            commands = made.batch_done("cpu:0", [])
            if any(isinstance(command, Report) for command in commands):
                break
        assert made.finished


class TestLostWorkers:
    def test_the_records_of_a_batch_run_again_one_by_one(self) -> None:
        made = scheduler(make_tasks([0.0] * 3))
        assert len(sent(made.worker_ready("cpu:0"))) == 3
        assert made.worker_lost("cpu:0", "died", Outcome.CRASHED) == [StartWorker("cpu:0")]
        commands = made.worker_ready("cpu:0")
        for index in range(3):
            (task,) = sent(commands)
            assert task.index == index
            commands = made.batch_done("cpu:0", [answer(task)])
        assert made.finished

    def test_suspects_go_before_what_has_not_run(self) -> None:
        made = scheduler(make_tasks([0.0] * 70))
        first = sent(made.worker_ready("cpu:0"))
        made.worker_lost("cpu:0", "died", Outcome.CRASHED)
        assert sent(made.worker_ready("cpu:0")) == first[:1]

    def test_another_idle_worker_takes_suspects_on(self) -> None:
        made = scheduler(make_tasks([0.0] * 2), slots=2)
        made.worker_ready("cpu:0")
        assert made.worker_ready("cpu:1") == []
        made.worker_lost("cpu:0", "died", Outcome.CRASHED)
        (command,) = made.wake()
        assert isinstance(command, SendBatch)
        assert command.slot == "cpu:1"
        assert len(command.tasks) == 1

    def test_an_idle_worker_that_is_lost_gets_nothing_before_it_is_ready_again(self) -> None:
        made = scheduler(make_tasks([0.0] * 2), slots=2)
        made.worker_ready("cpu:0")
        made.worker_ready("cpu:1")
        assert made.worker_lost("cpu:1", "died", Outcome.CRASHED) == [StartWorker("cpu:1")]
        made.worker_lost("cpu:0", "died", Outcome.CRASHED)
        assert made.wake() == []
        assert len(sent(made.worker_ready("cpu:1"))) == 1

    def test_a_record_that_kills_alone_twice_is_guilty(self) -> None:
        made = scheduler(tiny(1))
        assert ALONE_CRASHES == 2
        made.worker_ready("cpu:0")
        assert made.worker_lost("cpu:0", "killed", Outcome.CRASHED) == [StartWorker("cpu:0")]
        made.worker_ready("cpu:0")
        (report,) = made.worker_lost("cpu:0", "killed", Outcome.CRASHED)
        assert isinstance(report, Report)
        assert (report.result.index, report.result.name) == (0, "Mint.a.0")
        assert report.result.outcome is Outcome.CRASHED
        assert report.result.forward is Verdict.ERROR
        assert report.result.backward is Verdict.NONE
        assert report.result.message == "killed"
        assert made.finished

    def test_a_record_that_gives_no_answer_alone_is_guilty_at_once(self) -> None:
        made = scheduler(tiny(1))
        made.worker_ready("cpu:0")
        (report,) = made.worker_lost("cpu:0", "no answer", Outcome.TIMED_OUT)
        assert isinstance(report, Report)
        assert report.result.outcome is Outcome.TIMED_OUT
        assert made.finished

    def test_a_guilty_call_with_a_backward_record_skips_its_backward_check(self) -> None:
        made = Scheduler(tiny(1), ["cpu:0"], TIMEOUT_S, frozenset([0]))
        made.start()
        made.worker_ready("cpu:0")
        (report,) = made.worker_lost("cpu:0", "no answer", Outcome.TIMED_OUT)
        assert isinstance(report, Report)
        assert report.result.backward is Verdict.SKIP

    def test_a_worker_is_started_anew_while_records_wait(self) -> None:
        made = scheduler(make_tasks([10.0, 1.0]))
        made.worker_ready("cpu:0")
        report, start = made.worker_lost("cpu:0", "no answer", Outcome.TIMED_OUT)
        assert isinstance(report, Report)
        assert start == StartWorker("cpu:0")


class TestDraining:
    def test_nothing_more_is_sent(self) -> None:
        made = scheduler(make_tasks([10.0] * 3))
        (task,) = sent(made.worker_ready("cpu:0"))
        made.drain()
        assert not made.finished
        assert made.batch_done("cpu:0", [answer(task)]) == []
        assert made.wake() == []
        assert made.finished

    def test_a_worker_that_becomes_ready_gets_nothing(self) -> None:
        made = scheduler(tiny(3))
        made.drain()
        assert made.worker_ready("cpu:0") == []
        assert made.finished

    def test_the_last_worker_that_is_lost_is_not_started_anew(self) -> None:
        made = scheduler(make_tasks([0.0] * 3))
        made.worker_ready("cpu:0")
        made.drain()
        assert made.worker_lost("cpu:0", "died", Outcome.CRASHED) == []
        assert made.finished

    def test_no_lost_worker_is_started_anew(self) -> None:
        made = scheduler(make_tasks([10.0] * 3), slots=2)
        made.worker_ready("cpu:0")
        made.worker_ready("cpu:1")
        made.drain()
        assert made.worker_lost("cpu:0", "died", Outcome.CRASHED) == []
