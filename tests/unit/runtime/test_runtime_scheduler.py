"""The scheduler: given these events, expect these commands."""

import copy
from random import Random

import pytest
from mock_pool import JOB, Pool, answer, answers, broken, make_tasks
from scheduler_events import (
    TIMEOUT_S,
    TINY_S,
    break_at,
    crashes_of,
    dispatch_of,
    finish,
    huge,
    indices,
    recorded,
    scheduler,
    sending,
    tiny,
)

from ray_precheck.runtime.scheduling.commands import GiveUpDevice, Record, SendBatch, StartWorker
from ray_precheck.runtime.scheduling.queue import MAX_BATCH_RECORDS, TARGET_BATCH_S
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.scheduling.slots import COST_SLACK, START_ATTEMPTS
from ray_precheck.schema.task import BatchReport, Cause, WorkerFailure

pytestmark = pytest.mark.unit


class TestStart:
    def test_a_worker_is_started_on_every_slot(self) -> None:
        made = Scheduler(tiny(5), {"npu:0": "npu:0", "npu:1": "npu:1"}, TIMEOUT_S, JOB)
        assert made.start() == [StartWorker("npu:0"), StartWorker("npu:1")]

    def test_no_more_workers_are_started_than_there_are_records(self) -> None:
        made = Scheduler(tiny(2), dict.fromkeys(["npu:0", "npu:1", "npu:2"], "n0"), TIMEOUT_S, JOB)
        assert made.start() == [StartWorker("npu:0"), StartWorker("npu:1")]

    def test_but_on_a_second_place_where_there_is_one(self) -> None:
        places = {"npu:0": "n0", "npu:1": "n0", "npu:2": "n1", "npu:3": "n2"}
        made = Scheduler(tiny(2), places, TIMEOUT_S, JOB)
        assert made.start() == [StartWorker(f"npu:{i}") for i in range(3)]

    def test_the_last_record_is_not_guilty_of_a_bad_device(self) -> None:
        made = scheduler(tiny(1), slots=2)
        assert recorded(break_at(made, sending(made.worker_ready("cpu:0")), 0)) == []
        made.worker_ready("cpu:0")
        assert recorded(finish(made, sending(made.worker_ready("cpu:1")))) == [answer(tiny(1)[0])]

    def test_the_last_record_runs_where_the_first_device_does_not_start(self) -> None:
        made = scheduler(tiny(1), slots=2)
        for _ in range(START_ATTEMPTS):
            made.start_failed("cpu:0", "no driver")
        assert made.has_devices
        assert indices(made.worker_ready("cpu:1")) == [0]

    def test_where_nothing_is_left_one_worker_will_do(self) -> None:
        made = Scheduler([], {"npu:0": "n0", "npu:1": "n1"}, TIMEOUT_S, JOB)
        assert made.start() == [StartWorker("npu:0")]

    def test_what_is_said_of_a_slot_that_is_not_needed_changes_nothing(self) -> None:
        made = scheduler(tiny(1), slots=2, places=["n0", "n0"])
        assert made.worker_ready("cpu:1") == []
        assert made.start_failed("cpu:1", "no driver") == []
        assert made.revive("cpu:1", "n1") == []
        assert made.worker_lost("cpu:1", 0, "died") == []
        assert made.batch_done("cpu:1", 1, answers(tiny(1))) == []

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

    def test_a_device_that_was_given_up_is_asked_no_more(self) -> None:
        made = scheduler(tiny(1))
        for _ in range(3):
            made.start_failed("cpu:0", "no driver")
        assert made.start_failed("cpu:0", "no driver") == []
        assert made.worker_ready("cpu:0") == []
        assert made.worker_lost("cpu:0", 0, "died") == []
        assert made.wake() == []

    def test_the_other_devices_go_on(self) -> None:
        made = scheduler(tiny(2), slots=2)
        for _ in range(3):
            made.start_failed("cpu:0", "no driver")
        assert made.has_devices
        assert indices(made.worker_ready("cpu:1"))

    def test_only_starts_that_fail_in_a_row_count(self) -> None:
        made = scheduler(huge(4))
        for _ in range(3):
            for _ in range(START_ATTEMPTS - 1):
                assert made.start_failed("cpu:0", "no driver") == [StartWorker("cpu:0")]
            break_at(made, sending(made.worker_ready("cpu:0")), 0)
        assert made.has_devices

    def test_a_worker_that_is_ready_twice_gets_one_batch(self) -> None:
        made = scheduler(huge(2))
        made.worker_ready("cpu:0")
        assert made.worker_ready("cpu:0") == []
        assert made.start_failed("cpu:0", "no driver") == []
        assert made.in_flight == 1

    def test_an_idle_worker_that_is_ready_once_more_is_not_fresh_again(self) -> None:
        made = scheduler(huge(2), slots=2)
        first = sending(made.worker_ready("cpu:0"))
        second = sending(made.worker_ready("cpu:1"))
        finish(made, first)
        assert made.worker_ready("cpu:0") == []
        break_at(made, second, 0)
        assert made.wake() == [StartWorker("cpu:0")]


class TestBatches:
    def test_a_worker_that_is_ready_gets_a_batch(self) -> None:
        tasks = make_tasks([0.25])
        commands = scheduler(tasks).worker_ready("cpu:0")
        assert commands == [SendBatch("cpu:0", 1, tuple(tasks), (TIMEOUT_S + COST_SLACK * 0.25,))]

    def test_every_record_of_a_batch_has_a_limit_of_its_own(self) -> None:
        made = scheduler(make_tasks([0.0625, 0.03125]))
        dispatch_of(made).queue.cost_left_s = 100.0
        limits = sending(made.worker_ready("cpu:0")).limits_s
        assert limits == (TIMEOUT_S + COST_SLACK * 0.0625, TIMEOUT_S + COST_SLACK * 0.03125)

    def test_every_batch_has_another_ticket(self) -> None:
        made = scheduler(huge(4), slots=2)
        first, second = (sending(made.worker_ready(f"cpu:{i}")) for i in range(2))
        third = sending(finish(made, first))
        assert first.ticket < second.ticket < third.ticket
        assert first.ticket > 0

    def test_a_batch_has_no_more_than_128_records(self) -> None:
        made = scheduler(make_tasks([0.0] * 200))
        assert MAX_BATCH_RECORDS == 128
        assert len(indices(made.worker_ready("cpu:0"))) == 128

    def test_a_batch_has_no_more_work_than_its_target(self) -> None:
        made = scheduler(make_tasks([0.0625] * 200))
        assert 0.375 <= TARGET_BATCH_S < 0.4375
        assert len(indices(made.worker_ready("cpu:0"))) == 6

    def test_a_huge_record_goes_alone(self) -> None:
        made = scheduler(make_tasks([100.0, *[TINY_S] * 70]), slots=2)
        assert indices(made.worker_ready("cpu:0")) == [0]
        assert len(indices(made.worker_ready("cpu:1"))) > 1

    def test_records_go_in_the_order_of_the_plan(self) -> None:
        made = scheduler(make_tasks([5.0, 4.0, 3.0]))
        order = []
        commands = made.worker_ready("cpu:0")
        while not made.finished:
            order += indices(commands)
            commands = finish(made, sending(commands))
        assert order == [0, 1, 2]

    def test_batches_get_smaller_towards_the_end(self) -> None:
        pool = Pool(scheduler(make_tasks([0.001] * 1500), slots=4), Random(0), {})
        pool.run(most_events=2000)
        sizes = [len(batch.tasks) for batch in pool.batches]
        assert max(sizes) == sizes[0] == MAX_BATCH_RECORDS
        assert sizes[-8:] == sorted(sizes[-8:], reverse=True)
        assert sizes[-1] == 1

    def test_no_worker_gets_a_second_batch_while_it_has_one(self) -> None:
        made = scheduler(huge(3))
        assert indices(made.worker_ready("cpu:0"))
        assert made.wake() == []
        assert made.in_flight == 1
        assert made.busy_slots == ["cpu:0"]

    def test_a_worker_waits_where_nothing_is_left(self) -> None:
        made = scheduler(huge(2), slots=2)
        first = sending(made.worker_ready("cpu:0"))
        made.worker_ready("cpu:1")
        assert finish(made, first) == [Record((answer(first.tasks[0]),))]
        assert made.busy_slots == ["cpu:1"]
        assert not made.finished


class TestAnswers:
    def test_a_batch_is_recorded_in_one_command(self) -> None:
        made = scheduler(make_tasks([0.0] * 3))
        batch = sending(made.worker_ready("cpu:0"))
        assert finish(made, batch) == [Record(answers(batch.tasks).results)]
        assert made.finished

    def test_nothing_is_recorded_where_nothing_was_finished(self) -> None:
        made = scheduler(make_tasks([0.0] * 3))
        batch = sending(made.worker_ready("cpu:0"))
        assert break_at(made, batch, 0) == [StartWorker("cpu:0")]

    def test_a_second_answer_changes_nothing(self) -> None:
        made = scheduler(huge(3))
        batch = sending(made.worker_ready("cpu:0"))
        finish(made, batch)
        before = copy.deepcopy(made)
        assert finish(made, batch) == []
        assert break_at(made, batch, 0) == []
        assert made.worker_lost("cpu:0", batch.ticket, "died") == []
        assert made == before

    def test_nor_does_one_that_comes_after_its_worker_was_lost(self) -> None:
        made = scheduler(huge(3))
        batch = sending(made.worker_ready("cpu:0"))
        made.worker_lost("cpu:0", batch.ticket, "no answer")
        for _ in range(2):
            before = copy.deepcopy(made)
            assert finish(made, batch) == []
            assert made.worker_lost("cpu:0", batch.ticket, "died") == []
            assert made == before
            made.worker_ready("cpu:0")

    def test_nor_does_an_answer_to_a_batch_of_another_slot(self) -> None:
        made = scheduler(huge(3), slots=2)
        first = sending(made.worker_ready("cpu:0"))
        made.worker_ready("cpu:1")
        before = copy.deepcopy(made)
        assert made.batch_done("cpu:1", first.ticket, answers(first.tasks)) == []
        assert made == before

    def test_results_of_records_that_were_not_in_the_batch_are_left_out(self) -> None:
        made = scheduler(huge(2))
        batch = sending(made.worker_ready("cpu:0"))
        report = BatchReport((*answers(batch.tasks).results, answer(huge(2)[1])))
        assert recorded(made.batch_done("cpu:0", batch.ticket, report)) == [answer(batch.tasks[0])]
        assert not made.finished

    def test_a_result_that_is_there_twice_is_recorded_once(self) -> None:
        made = scheduler(huge(1))
        batch = sending(made.worker_ready("cpu:0"))
        report = BatchReport(answers(batch.tasks).results * 2)
        assert recorded(made.batch_done("cpu:0", batch.ticket, report)) == [answer(batch.tasks[0])]

    def test_a_failure_that_has_a_result_is_no_quarantined_record(self) -> None:
        made = scheduler(huge(2))
        batch = sending(made.worker_ready("cpu:0"))
        report = broken(batch.tasks[0], Cause.CRASHED, batch.tasks)
        commands = made.batch_done("cpu:0", batch.ticket, report)
        assert commands == [Record((answer(batch.tasks[0]),)), StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [1]

    def test_a_failure_of_another_batch_blames_nobody_of_it(self) -> None:
        made = scheduler(huge(2))
        batch = sending(made.worker_ready("cpu:0"))
        foreign = BatchReport((), WorkerFailure(99, Cause.TIMED_OUT, "no answer"))
        assert made.batch_done("cpu:0", batch.ticket, foreign) == [StartWorker("cpu:0")]


class TestDraining:
    def test_nothing_more_is_sent(self) -> None:
        made = scheduler(huge(3))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        assert not made.finished
        assert finish(made, batch) == [Record((answer(batch.tasks[0]),))]
        assert made.wake() == []
        assert made.finished

    def test_a_worker_that_becomes_ready_gets_nothing(self) -> None:
        made = scheduler(tiny(3))
        made.drain()
        assert made.worker_ready("cpu:0") == []
        assert made.finished

    def test_no_worker_is_started_any_more(self) -> None:
        made = scheduler(huge(4), slots=3)
        first, second = (sending(made.worker_ready(f"cpu:{i}")) for i in range(2))
        made.revive("cpu:1", "n1")
        made.drain()
        assert made.worker_lost("cpu:0", first.ticket, "died") == []
        assert not any(isinstance(c, StartWorker) for c in finish(made, second))
        assert made.start_failed("cpu:2", "no driver") == []
        assert made.revive("cpu:2", "n1") == []
        assert made.finished

    def test_a_quarantined_record_stays_one_for_the_next_run(self) -> None:
        made = scheduler(huge(3))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        assert break_at(made, batch, 0) == []
        assert made.finished

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_batch_that_was_ended_makes_nobody_quarantined_record(self, count: int) -> None:
        made = scheduler(make_tasks([0.0] * count))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        halted = answers(batch.tasks[: count - 1])
        commands = made.batch_done("cpu:0", batch.ticket, halted)
        assert recorded(commands) == list(halted.results)
        assert crashes_of(made).total() == 0
        assert made.finished

    def test_nor_does_a_worker_that_was_lost(self) -> None:
        made = scheduler(huge(1))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        assert made.worker_lost("cpu:0", batch.ticket, "no answer") == []
        assert crashes_of(made).total() == 0

    def test_a_verdict_that_is_due_is_recorded(self) -> None:
        made = scheduler(huge(2))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        assert len(recorded(break_at(made, batch, 0, Cause.TIMED_OUT))) == 1
