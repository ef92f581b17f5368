"""What becomes of records that break their worker, or have no answer."""

import pytest
from mock_pool import PROVISIONAL, answer, answers, broken, make_tasks, provisional, said
from scheduler_events import (
    break_at,
    crashes_of,
    dispatch_of,
    finish,
    huge,
    indices,
    measure,
    recorded,
    scheduler,
    sending,
    staged,
    tiny,
)

from ray_precheck.runtime.scheduling.commands import Record, SendBatch, StartWorker
from ray_precheck.runtime.scheduling.queue import MAX_BATCH_RECORDS
from ray_precheck.runtime.scheduling.slots import CRASHES_NEEDED, MAX_RUNS
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import BatchReport, Cause, Task

pytestmark = pytest.mark.unit


class TestMissingAnswers:
    def test_a_record_that_is_missing_from_a_reply_runs_again_alone(self) -> None:
        tasks = make_tasks([0.0] * 80)
        made = scheduler(tasks)
        batch = sending(made.worker_ready("cpu:0"))
        left = [task for task in batch.tasks if task.index != 2]
        # It is quarantined record, so that it wants a fresh worker.
        again = made.batch_done("cpu:0", batch.ticket, answers(left))
        assert again[1:] == [StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [2]

    def test_where_several_are_missing_none_of_them_is_quarantined_record(self) -> None:
        made = scheduler(make_tasks([0.0] * 4))
        batch = sending(made.worker_ready("cpu:0"))
        commands = made.batch_done("cpu:0", batch.ticket, answers(batch.tasks[2:]))
        assert indices(commands) == [0]
        assert indices(finish(made, sending(commands))) == [1]

    def test_a_record_that_is_always_missing_is_found_guilty_in_the_end(self) -> None:
        made = scheduler(tiny(1))
        for _ in range(CRASHES_NEEDED[Cause.SILENT] - 1):
            batch = sending(made.worker_ready("cpu:0"))
            assert made.batch_done("cpu:0", batch.ticket, BatchReport(())) == [StartWorker("cpu:0")]
        batch = sending(made.worker_ready("cpu:0"))
        (result,) = recorded(made.batch_done("cpu:0", batch.ticket, BatchReport(())))
        assert said(result) == (Outcome.CRASHED, "its worker gave no result for it")
        assert made.finished

    def test_what_is_missing_before_a_failure_was_run_and_does_not_go_back_to_the_queue(
        self,
    ) -> None:
        made = scheduler(make_tasks([0.0] * 6))
        batch = sending(made.worker_ready("cpu:0"))
        report = broken(batch.tasks[3], Cause.CRASHED, [batch.tasks[1]])
        made.batch_done("cpu:0", batch.ticket, report)
        assert indices(quarantined := made.worker_ready("cpu:0")) == [3]
        assert indices(first := finish(made, sending(quarantined))) == [0]
        assert indices(second := finish(made, sending(first))) == [2]
        assert indices(finish(made, sending(second))) == [4, 5]


class TestFailures:
    def test_what_was_finished_is_recorded_and_the_rest_goes_back_to_the_head(self) -> None:
        made = scheduler(make_tasks([0.0] * 200))
        batch = sending(made.worker_ready("cpu:0"))
        commands = break_at(made, batch, 10)
        assert commands == [Record(answers(batch.tasks[:10]).results), StartWorker("cpu:0")]
        alone = made.worker_ready("cpu:0")
        assert indices(alone) == [10]
        assert indices(finish(made, sending(alone))) == list(range(11, 11 + MAX_BATCH_RECORDS))

    def test_the_cost_of_the_rest_counts_again(self) -> None:
        made = scheduler(make_tasks([0.001] * 80))
        batch = sending(made.worker_ready("cpu:0"))
        sent = len(batch.tasks)
        break_at(made, batch, 0)
        assert dispatch_of(made).queue.cost_left_s == pytest.approx(0.001 * 79)
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
        # The worker of cpu:0 has run something, so that it is replaced before the quarantined record.
        commands = finish(made, first)
        assert commands[1:] == [StartWorker("cpu:0")]
        assert indices(made.worker_ready("cpu:0")) == [second.tasks[0].index]

    @pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
    def test_nothing_that_happens_in_a_batch_is_a_verdict(self, cause: Cause) -> None:
        made = scheduler(make_tasks([0.0] * 2))
        batch = sending(made.worker_ready("cpu:0"))
        assert recorded(break_at(made, batch, 0, cause)) == []

    @pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
    def test_nor_is_what_happens_alone_on_a_used_worker(self, cause: Cause) -> None:
        made = scheduler(huge(2))
        second = sending(finish(made, sending(made.worker_ready("cpu:0"))))
        assert recorded(break_at(made, second, 0, cause)) == []
        assert indices(made.worker_ready("cpu:0")) == [1]

    @pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
    def test_alone_and_fresh_it_takes_as_many_crashes_as_the_cause_needs(
        self, cause: Cause
    ) -> None:
        made = scheduler(tiny(1))
        for _ in range(CRASHES_NEEDED[cause] - 1):
            commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
            assert commands == [StartWorker("cpu:0")]
        commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
        assert len(recorded(commands)) == 1
        assert made.finished

    @pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
    def test_crashes_of_a_batch_count_but_the_last_must_be_alone(self, cause: Cause) -> None:
        made = scheduler(huge(2))
        used = sending(finish(made, sending(made.worker_ready("cpu:0"))))
        assert recorded(break_at(made, used, 0, cause)) == []
        for _ in range(max(0, CRASHES_NEEDED[cause] - 2)):
            assert not recorded(break_at(made, sending(made.worker_ready("cpu:0")), 0, cause))
        assert recorded(break_at(made, sending(made.worker_ready("cpu:0")), 0, cause))

    def test_a_crash_is_confirmed_by_one_retry_and_what_may_come_from_outside_by_two(self) -> None:
        assert CRASHES_NEEDED[Cause.CRASHED] == 2
        assert [CRASHES_NEEDED[c] for c in (Cause.KILLED, Cause.LOST, Cause.SILENT)] == [3, 3, 3]
        assert [CRASHES_NEEDED[c] for c in (Cause.TIMED_OUT, *PROVISIONAL)] == [1, 1, 1]
        assert set(CRASHES_NEEDED) == set(Cause) - {Cause.OVER_BUDGET}

    def test_and_a_bench_that_takes_too_long_needs_none(self) -> None:
        made = scheduler(tiny(2))
        batch = sending(made.worker_ready("cpu:0"))
        (result,) = recorded(break_at(made, batch, 0, Cause.OVER_BUDGET))
        assert (said(result), result.verdict) == ((Outcome.SKIPPED, "broke"), Verdict.SKIP)
        assert not dispatch_of(made).crash_counts.quarantined

    def test_crashes_of_different_causes_do_not_add_up(self) -> None:
        made = scheduler(tiny(1))
        for cause in (Cause.CRASHED, Cause.KILLED, Cause.LOST, Cause.SILENT):
            commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
            assert commands == [StartWorker("cpu:0")]

    def test_a_record_runs_no_more_often_than_the_bound_and_may_need_all_of_it(self) -> None:
        made = staged(huge(1))
        made.worker_ready("bench:0")
        batch = sending(made.worker_ready("cpu:0"))
        break_at(made, sending(measure(made, batch)), 0)
        used = sending(made.wake())
        commands, runs = break_at(made, used, 0, Cause.TIMED_OUT), 3
        short = [c for c, crashes in CRASHES_NEEDED.items() for _ in range(crashes - 1)]
        for cause in [*short, Cause.TIMED_OUT]:
            assert recorded(commands) == []
            commands = break_at(made, sending(made.worker_ready("cpu:0")), 0, cause)
            runs += 1
        assert len(recorded(commands)) == 1
        assert runs == MAX_RUNS == 11

    def test_a_guilty_record_is_an_error_with_the_reason(self) -> None:
        made = scheduler(tiny(1))
        (result,) = recorded(
            break_at(made, sending(made.worker_ready("cpu:0")), 0, Cause.TIMED_OUT)
        )
        assert (result.index, result.name) == (0, "Mint.a.0")
        assert (said(result), result.verdict) == ((Outcome.TIMED_OUT, "broke"), Verdict.ERROR)

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

    def test_a_record_that_was_lost_alone_is_a_quarantined_record(self) -> None:
        made = scheduler(huge(2))
        made.worker_lost("cpu:0", sending(made.worker_ready("cpu:0")).ticket, "died")
        assert indices(made.worker_ready("cpu:0")) == [0]

    def test_it_is_guilty_when_it_is_lost_with_every_worker(self) -> None:
        made = scheduler(tiny(1))
        for _ in range(CRASHES_NEEDED[Cause.LOST] - 1):
            batch = sending(made.worker_ready("cpu:0"))
            assert made.worker_lost("cpu:0", batch.ticket, "died") == [StartWorker("cpu:0")]
        batch = sending(made.worker_ready("cpu:0"))
        (result,) = recorded(made.worker_lost("cpu:0", batch.ticket, "died"))
        assert said(result) == (Outcome.CRASHED, "died")
        assert made.finished

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
        assert crashes_of(made).total() == 0

    def test_a_worker_that_starts_is_not_lost_but_fails_to_start(self) -> None:
        assert scheduler(tiny(1)).worker_lost("cpu:0", 0, "died") == []

    def test_a_busy_worker_is_not_lost_without_its_ticket(self) -> None:
        made = scheduler(huge(1))
        made.worker_ready("cpu:0")
        assert made.worker_lost("cpu:0", 0, "died") == []
        assert made.in_flight == 1
