"""The scheduler: given these events, expect these commands."""

import copy
from collections import deque
from collections.abc import Sequence
from random import Random

import pytest
from mock_pool import PROVISIONAL, Pool, answer, answers, broken, make_tasks, provisional

from ray_precheck.runtime.scheduler import (
    COST_SLACK,
    MAX_BATCH_RECORDS,
    MAX_RUNS,
    START_ATTEMPTS,
    STRIKES,
    TARGET_BATCH_S,
    Command,
    GiveUpDevice,
    Record,
    Scheduler,
    SendBatch,
    StartWorker,
)
from ray_precheck.schema.casualty import BatchReport, Casualty, Cause
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.schema.task import Task

pytestmark = pytest.mark.unit

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


class TestStart:
    def test_a_worker_is_started_on_every_slot(self) -> None:
        made = Scheduler(tiny(5), {"npu:0": "npu:0", "npu:1": "npu:1"}, TIMEOUT_S)
        assert made.start() == [StartWorker("npu:0"), StartWorker("npu:1")]

    def test_no_more_workers_are_started_than_there_are_records(self) -> None:
        made = Scheduler(tiny(2), dict.fromkeys(["npu:0", "npu:1", "npu:2"], "n0"), TIMEOUT_S)
        assert made.start() == [StartWorker("npu:0"), StartWorker("npu:1")]

    def test_but_on_a_second_place_where_there_is_one(self) -> None:
        places = {"npu:0": "n0", "npu:1": "n0", "npu:2": "n1", "npu:3": "n2"}
        made = Scheduler(tiny(2), places, TIMEOUT_S)
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
        made = Scheduler([], {"npu:0": "n0", "npu:1": "n1"}, TIMEOUT_S)
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
        made._cost_left_s = 100.0
        limits = sending(made.worker_ready("cpu:0")).limits_s
        assert limits == (TIMEOUT_S + COST_SLACK * 0.0625, TIMEOUT_S + COST_SLACK * 0.03125)

    def test_every_batch_has_another_ticket(self) -> None:
        made = scheduler(huge(4), slots=2)
        first, second = (sending(made.worker_ready(f"cpu:{i}")) for i in range(2))
        third = sending(finish(made, first))
        assert first.ticket < second.ticket < third.ticket
        assert first.ticket > 0

    def test_a_batch_has_no_more_than_64_records(self) -> None:
        made = scheduler(make_tasks([0.0] * 200))
        assert MAX_BATCH_RECORDS == 64
        assert len(indices(made.worker_ready("cpu:0"))) == 64

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
        assert max(sizes) == sizes[0] == 64
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

    def test_a_casualty_that_has_a_result_is_no_suspect(self) -> None:
        made = scheduler(huge(2))
        batch = sending(made.worker_ready("cpu:0"))
        report = broken(batch.tasks[0], Cause.CRASHED, batch.tasks)
        commands = made.batch_done("cpu:0", batch.ticket, report)
        assert commands == [Record((answer(batch.tasks[0]),)), StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [1]

    def test_a_casualty_of_another_batch_blames_nobody_of_it(self) -> None:
        made = scheduler(huge(2))
        batch = sending(made.worker_ready("cpu:0"))
        foreign = BatchReport((), Casualty(99, Cause.TIMED_OUT, "no answer"))
        assert made.batch_done("cpu:0", batch.ticket, foreign) == [StartWorker("cpu:0")]


class TestMissingAnswers:
    def test_a_record_that_is_missing_from_a_reply_runs_again_alone(self) -> None:
        tasks = make_tasks([0.0] * 80)
        made = scheduler(tasks)
        batch = sending(made.worker_ready("cpu:0"))
        left = [task for task in batch.tasks if task.index != 2]
        # It is suspect, so that it wants a fresh worker.
        again = made.batch_done("cpu:0", batch.ticket, answers(left))
        assert again[1:] == [StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [2]

    def test_where_several_are_missing_none_of_them_is_suspect(self) -> None:
        made = scheduler(make_tasks([0.0] * 4))
        batch = sending(made.worker_ready("cpu:0"))
        commands = made.batch_done("cpu:0", batch.ticket, answers(batch.tasks[2:]))
        assert indices(commands) == [0]
        assert indices(finish(made, sending(commands))) == [1]

    def test_a_record_that_is_always_missing_is_found_guilty_in_the_end(self) -> None:
        made = scheduler(tiny(1))
        for _ in range(STRIKES[Cause.SILENT] - 1):
            batch = sending(made.worker_ready("cpu:0"))
            assert made.batch_done("cpu:0", batch.ticket, BatchReport(())) == [StartWorker("cpu:0")]
        batch = sending(made.worker_ready("cpu:0"))
        (result,) = recorded(made.batch_done("cpu:0", batch.ticket, BatchReport(())))
        assert result.message == "its worker gave no result for it"
        assert made.finished

    def test_what_is_missing_before_a_casualty_was_run_and_does_not_go_back_to_the_queue(
        self,
    ) -> None:
        made = scheduler(make_tasks([0.0] * 6))
        batch = sending(made.worker_ready("cpu:0"))
        report = broken(batch.tasks[3], Cause.CRASHED, [batch.tasks[1]])
        made.batch_done("cpu:0", batch.ticket, report)
        assert indices(suspect := made.worker_ready("cpu:0")) == [3]
        assert indices(first := finish(made, sending(suspect))) == [0]
        assert indices(second := finish(made, sending(first))) == [2]
        assert indices(finish(made, sending(second))) == [4, 5]


class TestCasualties:
    def test_what_was_finished_is_recorded_and_the_rest_goes_back_to_the_head(self) -> None:
        made = scheduler(make_tasks([0.0] * 80))
        batch = sending(made.worker_ready("cpu:0"))
        commands = break_at(made, batch, 10)
        assert commands == [Record(answers(batch.tasks[:10]).results), StartWorker("cpu:0")]
        alone = made.worker_ready("cpu:0")
        assert indices(alone) == [10]
        assert indices(finish(made, sending(alone))) == list(range(11, 75))

    def test_the_cost_of_the_rest_counts_again(self) -> None:
        made = scheduler(make_tasks([0.001] * 80))
        batch = sending(made.worker_ready("cpu:0"))
        sent = len(batch.tasks)
        break_at(made, batch, 0)
        assert made._cost_left_s == pytest.approx(0.001 * 79)
        assert sent > 1

    def test_it_runs_alone_on_a_fresh_worker_before_what_has_not_run(self) -> None:
        made = scheduler(make_tasks([0.0] * 70))
        break_at(made, sending(made.worker_ready("cpu:0")), 0)
        assert indices(made.worker_ready("cpu:0")) == [0]

    def test_its_worker_is_not_fresh_for_the_next_one(self) -> None:
        made = scheduler([*tiny(2), Task(2, "Mint.a.2", 10.0)], slots=2)
        first = sending(made.worker_ready("cpu:0"))
        second = sending(made.worker_ready("cpu:1"))
        break_at(made, second, 0)
        # The worker of cpu:0 has run something, so that it is replaced before the suspect.
        commands = finish(made, first)
        assert commands[1:] == [StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [second.tasks[0].index]

    @pytest.mark.parametrize("cause", list(Cause))
    def test_nothing_that_happens_in_a_batch_is_a_verdict(self, cause: Cause) -> None:
        made = scheduler(make_tasks([0.0] * 2))
        batch = sending(made.worker_ready("cpu:0"))
        assert recorded(break_at(made, batch, 0, cause)) == []

    @pytest.mark.parametrize("cause", list(Cause))
    def test_nor_is_what_happens_alone_on_a_used_worker(self, cause: Cause) -> None:
        made = scheduler(huge(2))
        second = sending(finish(made, sending(made.worker_ready("cpu:0"))))
        assert recorded(break_at(made, second, 0, cause)) == []
        assert indices(made.worker_ready("cpu:0")) == [1]

    @pytest.mark.parametrize("cause", list(Cause))
    def test_alone_and_fresh_it_takes_as_many_strikes_as_the_cause_needs(
        self, cause: Cause
    ) -> None:
        made = scheduler(tiny(1))
        for _ in range(STRIKES[cause] - 1):
            commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
            assert commands == [StartWorker("cpu:0")]
        commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
        assert len(recorded(commands)) == 1
        assert made.finished

    @pytest.mark.parametrize("cause", list(Cause))
    def test_strikes_of_a_batch_count_but_the_last_must_be_alone(self, cause: Cause) -> None:
        made = scheduler(huge(2))
        used = sending(finish(made, sending(made.worker_ready("cpu:0"))))
        assert recorded(break_at(made, used, 0, cause)) == []
        for _ in range(max(0, STRIKES[cause] - 2)):
            assert not recorded(break_at(made, sending(made.worker_ready("cpu:0")), 0, cause))
        assert recorded(break_at(made, sending(made.worker_ready("cpu:0")), 0, cause))

    def test_a_crash_is_confirmed_by_one_retry_and_what_may_come_from_outside_by_two(self) -> None:
        assert STRIKES[Cause.CRASHED] == 2
        assert [STRIKES[c] for c in (Cause.KILLED, Cause.LOST, Cause.SILENT)] == [3, 3, 3]
        assert [STRIKES[c] for c in (Cause.TIMED_OUT, *PROVISIONAL)] == [1, 1, 1]
        assert set(STRIKES) == set(Cause)

    def test_strikes_of_different_causes_do_not_add_up(self) -> None:
        made = scheduler(tiny(1))
        for cause in (Cause.CRASHED, Cause.KILLED, Cause.LOST, Cause.SILENT):
            commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
            assert commands == [StartWorker("cpu:0")]

    def test_a_record_runs_no_more_often_than_the_bound_and_may_need_all_of_it(self) -> None:
        made = scheduler(make_tasks([0.0, 0.0]))
        batch = sending(made.worker_ready("cpu:0"))
        made.worker_lost("cpu:0", batch.ticket, "died")
        used = sending(finish(made, sending(made.worker_ready("cpu:0"))))
        commands, runs = break_at(made, used, 0, Cause.TIMED_OUT), 2
        short = [c for c, strikes in STRIKES.items() for _ in range(strikes - 1)]
        for cause in [*short, Cause.TIMED_OUT]:
            assert recorded(commands) == []
            commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
            runs += 1
        assert len(recorded(commands)) == 1
        assert runs == MAX_RUNS == 10

    def test_a_guilty_record_is_an_error_with_the_reason(self) -> None:
        made = scheduler(tiny(1))
        (result,) = recorded(
            break_at(made, sending(made.worker_ready("cpu:0")), 0, Cause.TIMED_OUT)
        )
        assert (result.index, result.name) == (0, "Mint.a.0")
        assert result.outcome is Outcome.TIMED_OUT
        assert result.forward is Verdict.ERROR
        assert result.backward is Verdict.NONE
        assert result.message == "broke"

    def test_a_guilty_call_with_a_backward_record_skips_its_backward_check(self) -> None:
        made = Scheduler(tiny(1), {"cpu:0": "n0"}, TIMEOUT_S, frozenset([0]))
        made.start()
        (result,) = recorded(
            break_at(made, sending(made.worker_ready("cpu:0")), 0, Cause.TIMED_OUT)
        )
        assert result.backward is Verdict.SKIP

    @pytest.mark.parametrize("cause", PROVISIONAL)
    def test_what_it_gave_before_counts_where_it_was_alone_and_fresh(self, cause: Cause) -> None:
        made = scheduler(tiny(1))
        commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
        assert recorded(commands) == [provisional(tiny(1)[0])]

    @pytest.mark.parametrize("cause", PROVISIONAL)
    def test_and_elsewhere_it_runs_again(self, cause: Cause) -> None:
        made = scheduler(make_tasks([0.0, 0.0]))
        assert break_at(made, sending(made.worker_ready("cpu:0")), 0, cause) == [
            StartWorker("cpu:0")
        ]
        again = sending(made.worker_ready("cpu:0"))
        assert recorded(finish(made, again)) == [answer(again.tasks[0])]

    def test_a_worker_is_started_anew_while_records_wait(self) -> None:
        made = scheduler(make_tasks([10.0, 1.0]))
        record, start = break_at(made, sending(made.worker_ready("cpu:0")), 0, Cause.TIMED_OUT)
        assert isinstance(record, Record)
        assert start == StartWorker("cpu:0")

    def test_and_not_where_none_are_left(self) -> None:
        made = scheduler(huge(1))
        (record,) = break_at(made, sending(made.worker_ready("cpu:0")), 0, Cause.TIMED_OUT)
        assert isinstance(record, Record)


class TestLostWorkers:
    def test_the_records_of_a_batch_run_again_one_by_one(self) -> None:
        made = scheduler(make_tasks([0.0] * 3))
        batch = sending(made.worker_ready("cpu:0"))
        assert made.worker_lost("cpu:0", batch.ticket, "died") == [StartWorker("cpu:0")]
        commands = made.worker_ready("cpu:0")
        for index in range(3):
            assert indices(commands) == [index]
            commands = finish(made, sending(commands))
        assert made.finished

    def test_they_go_before_what_has_not_run(self) -> None:
        made = scheduler(make_tasks([0.0] * 70))
        batch = sending(made.worker_ready("cpu:0"))
        made.worker_lost("cpu:0", batch.ticket, "died")
        assert indices(made.worker_ready("cpu:0")) == [0]

    def test_another_idle_worker_takes_them_on(self) -> None:
        made = scheduler(make_tasks([0.0] * 2), slots=2)
        batch = sending(made.worker_ready("cpu:0"))
        assert made.worker_ready("cpu:1") == []
        made.worker_lost("cpu:0", batch.ticket, "died")
        (command,) = made.wake()
        assert isinstance(command, SendBatch)
        assert command.slot == "cpu:1"
        assert len(command.tasks) == 1

    def test_a_record_that_was_lost_alone_is_a_suspect(self) -> None:
        made = scheduler(huge(2))
        made.worker_lost("cpu:0", sending(made.worker_ready("cpu:0")).ticket, "died")
        assert indices(made.worker_ready("cpu:0")) == [0]

    def test_it_is_guilty_when_it_is_lost_with_every_worker(self) -> None:
        made = scheduler(tiny(1))
        for _ in range(STRIKES[Cause.LOST] - 1):
            batch = sending(made.worker_ready("cpu:0"))
            assert made.worker_lost("cpu:0", batch.ticket, "died") == [StartWorker("cpu:0")]
        batch = sending(made.worker_ready("cpu:0"))
        (result,) = recorded(made.worker_lost("cpu:0", batch.ticket, "died"))
        assert (result.outcome, result.message) == (Outcome.CRASHED, "died")
        assert made.finished

    def test_the_cause_may_be_another(self) -> None:
        made = scheduler(tiny(1))
        batch = sending(made.worker_ready("cpu:0"))
        commands = made.worker_lost("cpu:0", batch.ticket, "no memory", Cause.OUT_OF_MEMORY)
        (result,) = recorded(commands)
        assert result.message == "no memory"

    def test_an_idle_worker_that_is_lost_gets_nothing_before_it_is_ready_again(self) -> None:
        made = scheduler(make_tasks([0.0] * 2), slots=2)
        batch = sending(made.worker_ready("cpu:0"))
        made.worker_ready("cpu:1")
        assert made.worker_lost("cpu:1", 0, "died") == [StartWorker("cpu:1")]
        made.worker_lost("cpu:0", batch.ticket, "died")
        assert made.wake() == []
        assert len(indices(made.worker_ready("cpu:1"))) == 1

    def test_nobody_is_blamed_for_an_idle_worker(self) -> None:
        made = scheduler(huge(2), slots=2)
        first = sending(made.worker_ready("cpu:0"))
        made.worker_ready("cpu:1")
        finish(made, first)
        commands = made.worker_lost("cpu:0", 0, "died")
        assert commands == [StartWorker("cpu:0")]
        assert made._strikes.total() == 0

    def test_a_worker_that_starts_is_not_lost_but_fails_to_start(self) -> None:
        assert scheduler(tiny(1)).worker_lost("cpu:0", 0, "died") == []

    def test_a_busy_worker_is_not_lost_without_its_ticket(self) -> None:
        made = scheduler(huge(1))
        made.worker_ready("cpu:0")
        assert made.worker_lost("cpu:0", 0, "died") == []
        assert made.in_flight == 1


class TestPlaces:
    def test_a_suspect_does_not_go_where_it_broke_a_worker(self) -> None:
        made = scheduler(huge(3), slots=2)
        first = sending(made.worker_ready("cpu:0"))
        second = sending(made.worker_ready("cpu:1"))
        assert break_at(made, first, 0) == [StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [2]
        assert finish(made, second)[1:] == [StartWorker("cpu:1")]
        assert indices(made.worker_ready("cpu:1")) == [0]

    def test_an_idle_worker_elsewhere_is_replaced_for_it(self) -> None:
        made = scheduler(huge(2), slots=2)
        first = sending(made.worker_ready("cpu:0"))
        finish(made, sending(made.worker_ready("cpu:1")))
        break_at(made, first, 0)
        assert made.wake() == [StartWorker("cpu:1")]
        assert made.wake() == []
        assert indices(made.worker_ready("cpu:1")) == [0]

    def test_another_slot_of_the_same_place_is_not_elsewhere(self) -> None:
        made = scheduler(huge(3), slots=3, places=["n0", "n0", "n1"])
        first, second, third = (sending(made.worker_ready(f"cpu:{i}")) for i in range(3))
        break_at(made, first, 0)
        assert finish(made, second)[1:] == []
        assert finish(made, third)[1:] == [StartWorker("cpu:2")]

    def test_it_stays_where_all_slots_have_one_place(self) -> None:
        made = scheduler(huge(2), slots=2, places=["n0", "n0"])
        first = sending(made.worker_ready("cpu:0"))
        made.worker_ready("cpu:1")
        break_at(made, first, 0)
        assert indices(made.worker_ready("cpu:0")) == [0]

    def test_and_where_the_other_places_are_given_up(self) -> None:
        made = scheduler(huge(2), slots=2)
        first = sending(made.worker_ready("cpu:0"))
        break_at(made, first, 0)
        second = sending(made.worker_ready("cpu:0"))
        for _ in range(START_ATTEMPTS):
            made.start_failed("cpu:1", "no driver")
        assert finish(made, second)[1:] == [StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [0]

    def test_a_device_that_breaks_every_worker_makes_nobody_guilty(self) -> None:
        made = scheduler(huge(6), slots=2)
        commands: deque[Command] = deque([StartWorker("cpu:0"), StartWorker("cpu:1")])
        written: list[TaskResult] = []
        while commands:
            match commands.popleft():
                case StartWorker(slot):
                    commands += made.worker_ready(slot)
                case SendBatch("cpu:0") as batch:
                    commands += break_at(made, batch, 0)
                case SendBatch() as batch:
                    commands += finish(made, batch)
                case Record(results):
                    written += results
            commands += made.wake()
        assert made.finished
        assert sorted(result.index for result in written) == list(range(6))
        assert {result.outcome for result in written} == {Outcome.COMPLETED}

    def test_the_suspect_of_a_device_that_does_not_start_goes_to_another(self) -> None:
        made = scheduler(huge(2), slots=2)
        first = sending(made.worker_ready("cpu:0"))
        finish(made, sending(made.worker_ready("cpu:1")))
        break_at(made, first, 0)
        assert made.wake() == [StartWorker("cpu:1")]
        for _ in range(START_ATTEMPTS):
            made.start_failed("cpu:1", "no driver")
        assert indices(made.worker_ready("cpu:0")) == [0]


class TestRevival:
    def test_an_idle_slot_is_started_at_its_new_place(self) -> None:
        made = scheduler(huge(2), slots=2)
        first, _ = (sending(made.worker_ready(f"cpu:{i}")) for i in range(2))
        finish(made, first)
        assert made.revive("cpu:0", "n1") == [StartWorker("cpu:0")]

    def test_a_slot_that_starts_is_started_anew_with_all_attempts(self) -> None:
        made = scheduler(huge(1))
        for _ in range(START_ATTEMPTS - 1):
            made.start_failed("cpu:0", "no driver")
        assert made.revive("cpu:0", "n1") == [StartWorker("cpu:0")]
        for _ in range(START_ATTEMPTS - 1):
            assert made.start_failed("cpu:0", "no driver") == [StartWorker("cpu:0")]

    def test_a_busy_slot_finishes_first(self) -> None:
        made = scheduler(huge(3))
        batch = sending(made.worker_ready("cpu:0"))
        assert made.revive("cpu:0", "n1") == []
        assert finish(made, batch) == [Record((answer(batch.tasks[0]),)), StartWorker("cpu:0")]
        again = sending(made.worker_ready("cpu:0"))
        assert isinstance(finish(made, again)[1], SendBatch)

    def test_a_busy_slot_that_is_lost_is_started_once(self) -> None:
        made = scheduler(huge(3))
        batch = sending(made.worker_ready("cpu:0"))
        made.revive("cpu:0", "n1")
        assert made.worker_lost("cpu:0", batch.ticket, "died") == [StartWorker("cpu:0")]
        assert isinstance(finish(made, sending(made.worker_ready("cpu:0")))[1], SendBatch)

    def test_what_breaks_a_busy_slot_breaks_it_at_its_old_place(self) -> None:
        made = scheduler(huge(3), slots=2, places=["n0", "n1"])
        batch = sending(made.worker_ready("cpu:0"))
        made.revive("cpu:0", "n2")
        # n2 is elsewhere, and there the slot is now.
        assert break_at(made, batch, 0) == [StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [0]

    def test_a_suspect_does_not_follow_its_slot_to_where_it_broke_a_worker(self) -> None:
        made = scheduler(huge(4), slots=3, places=["n0", "n1", "n2"])
        first, second, _ = (sending(made.worker_ready(f"cpu:{i}")) for i in range(3))
        break_at(made, first, 0)
        assert finish(made, second)[1:] == [StartWorker("cpu:1")]
        made.revive("cpu:1", "n0")
        assert indices(made.worker_ready("cpu:1")) == [3]

    def test_a_device_that_was_given_up_works_again(self) -> None:
        made = scheduler(huge(1))
        for _ in range(START_ATTEMPTS):
            made.start_failed("cpu:0", "no driver")
        assert made.revive("cpu:0", "n1") == [StartWorker("cpu:0")]
        assert made.has_devices
        assert made.start_failed("cpu:0", "no driver") == [StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [0]


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

    def test_a_suspect_stays_one_for_the_next_run(self) -> None:
        made = scheduler(huge(3))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        assert break_at(made, batch, 0) == []
        assert made.finished

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_batch_that_was_ended_makes_nobody_suspect(self, count: int) -> None:
        made = scheduler(make_tasks([0.0] * count))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        halted = answers(batch.tasks[: count - 1])
        commands = made.batch_done("cpu:0", batch.ticket, halted)
        assert recorded(commands) == list(halted.results)
        assert made._strikes.total() == 0
        assert made.finished

    def test_nor_does_a_worker_that_was_lost(self) -> None:
        made = scheduler(huge(1))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        assert made.worker_lost("cpu:0", batch.ticket, "no answer", Cause.OUT_OF_MEMORY) == []
        assert made._strikes.total() == 0

    def test_a_verdict_that_is_due_is_recorded(self) -> None:
        made = scheduler(huge(2))
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        assert len(recorded(break_at(made, batch, 0, Cause.TIMED_OUT))) == 1
