"""The scheduler with bench workers: the device's half, the bench's half, and what goes wrong between."""

import copy

import pytest
from mock_pool import answer, answers, at_ratio, make_tasks, said
from scheduler_events import (
    break_at,
    crashes_of,
    dispatch_of,
    finish,
    forgotten,
    huge,
    indices,
    measure,
    recorded,
    scheduler,
    sending,
    sent_to,
    slots_of,
    staged,
    tiny,
)

from ray_precheck.runtime.scheduling.commands import (
    Command,
    Forget,
    GiveUpDevice,
    Record,
    SendBatch,
    Stage,
    StartWorker,
)
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.scheduling.slots import CRASHES_NEEDED, START_ATTEMPTS
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import BatchReport, Cause, MeasuredTask, Task, WorkerFailure

pytestmark = pytest.mark.unit


def transfers_made(made: Scheduler, count: int) -> tuple[list[SendBatch], list[SendBatch]]:
    """Have the first device do its half of so many batches; returns them, and the other half of
    those that the first bench worker has then: two at most, the others wait.
    """
    made.worker_ready("bench:0")
    batch = sending(made.worker_ready("cpu:0"))
    batches, benches = [], []
    for _ in range(count):
        assert batch.stage is Stage.DEVICE
        sent = sent_to(measure(made, batch))
        batches.append(batch)
        benches += [sent["bench:0"]] if "bench:0" in sent else []
        batch = sent.get("cpu:0", batch)
    assert len(benches) == min(count, 2)
    return batches, benches


def half_done(made: Scheduler) -> tuple[SendBatch, list[Command]]:
    """Have the first bench worker ready and the first device do its half of a batch."""
    made.worker_ready("bench:0")
    batch = sending(made.worker_ready("cpu:0"))
    assert batch.stage is Stage.DEVICE
    return batch, measure(made, batch)


class TestTwoStages:
    def test_bench_workers_are_started_too(self) -> None:
        made = scheduler(tiny(1))
        made.bench = staged(tiny(1), benches=2).bench
        assert made.start() == [StartWorker(name) for name in ("cpu:0", "bench:0", "bench:1")]

    def test_what_a_device_has_made_goes_to_a_bench_with_its_ticket(self) -> None:
        made = staged(huge(3))
        batch, commands = half_done(made)
        sent = sent_to(commands)
        assert (sent["bench:0"].stage, sent["bench:0"].transfer) == (Stage.BENCH, batch.ticket)
        assert sent["bench:0"].tasks == batch.tasks
        assert indices([sent["cpu:0"]]) == [1]
        assert not recorded(commands)
        assert made.in_flight == 2

    def test_its_answer_is_recorded_and_what_was_made_is_forgotten(self) -> None:
        made = staged(huge(1))
        batch, commands = half_done(made)
        assert not made.finished
        assert finish(made, sending(commands)) == [
            Record((answer(batch.tasks[0]),)),
            Forget(batch.ticket),
        ]
        assert made.finished

    def test_small_records_stay_fused(self) -> None:
        made = staged(tiny(3))
        made.worker_ready("bench:0")
        assert sending(made.worker_ready("cpu:0")).stage is Stage.CHECK

    def test_all_stay_fused_before_a_bench_worker_is_ready(self) -> None:
        assert sending(staged(huge(1)).worker_ready("cpu:0")).stage is Stage.CHECK

    @pytest.mark.parametrize(("benches", "split"), [(1, 3), (2, 6)])
    def test_and_while_the_benches_have_enough_to_do_for_longer(
        self, benches: int, split: int
    ) -> None:
        # The bench of one takes 6 s of its 10 s: three of them for each are enough.
        made = staged(huge(9), slots=8, benches=benches)
        for i in range(benches):
            made.worker_ready(f"bench:{i}")
        stages = [sending(made.worker_ready(f"cpu:{i}")).stage for i in range(8)]
        assert stages == [Stage.DEVICE] * split + [Stage.CHECK] * (8 - split)

    def test_few_transfers_are_not_enough_however_long(self) -> None:
        made = staged(huge(9))
        made.worker_ready("bench:0")
        made.bench.promise(98, (), 500.0)
        made.bench.promise(99, (), 500.0)
        assert sending(made.worker_ready("cpu:0")).stage is Stage.DEVICE

    def test_nor_are_many_short_ones(self) -> None:
        made = staged(huge(9))
        made.worker_ready("bench:0")
        for ticket in range(90, 95):
            made.bench.promise(ticket, (), 1.9)
        assert sending(made.worker_ready("cpu:0")).stage is Stage.DEVICE

    @pytest.mark.parametrize(("ratio", "count"), [(1.0, 4), (2.0, 2)])
    def test_a_batch_behind_one_begins_when_that_is_done(self, ratio: float, count: int) -> None:
        made = _with_backlog(3.35)
        made.model = dispatch_of(made).model = at_ratio(ratio)
        first, second = _two_batches(made)
        # Of 3.35 s the first batch takes 0.4 s: when the second begins they have not enough to do.
        assert (len(first.tasks), first.stage) == (count, Stage.CHECK)
        assert second.stage is Stage.DEVICE

    @pytest.mark.parametrize(("backlog_s", "stage"), [(2.95, Stage.CHECK), (2.90, Stage.DEVICE)])
    def test_one_of_which_the_device_does_its_half_is_done_sooner(
        self, backlog_s: float, stage: Stage
    ) -> None:
        made = _with_backlog(backlog_s)
        first, second = _two_batches(made)
        assert (len(first.tasks), first.stage) == (4, Stage.DEVICE)
        # Four of 0.1 s take the device 0.16 s, and give the benches 0.24 s more.
        assert made.bench.is_full
        assert second.stage is stage

    def test_a_device_says_what_its_half_has_taken(self) -> None:
        made = staged(huge(1))
        made.worker_ready("bench:0")
        batch = sending(made.worker_ready("cpu:0"))
        taken = MeasuredTask(0, 0, 0.0, 2 * batch.tasks[0].cost_s)
        made.batch_done("cpu:0", batch.ticket, BatchReport((), measured=(taken,)))
        assert made.model.device_ratio == pytest.approx(2.0)

    def test_what_a_device_answers_itself_is_recorded_at_once(self) -> None:
        made = staged(huge(1))
        made.worker_ready("bench:0")
        batch = sending(made.worker_ready("cpu:0"))
        commands = finish(made, batch)
        assert commands == [Record((answer(batch.tasks[0]),)), Forget(batch.ticket)]
        assert made.finished

    def test_a_device_that_is_lost_with_its_half_gives_its_room_back(self) -> None:
        made = staged(huge(2), most_bytes=100)
        made.worker_ready("bench:0")
        batch = sending(made.worker_ready("cpu:0"))
        made.worker_lost("cpu:0", batch.ticket, "died")
        assert made.bench.room_bytes == 100
        assert made.bench.is_empty

    def test_what_was_measured_before_a_crash_is_kept(self) -> None:
        made = staged(_small_but_worth(3))
        dispatch_of(made).queue.cost_left_s = 100.0
        made.worker_ready("bench:0")
        batch = sending(made.worker_ready("cpu:0"))
        assert len(batch.tasks) == 3
        crash = WorkerFailure(1, Cause.CRASHED, "broke")
        commands = made.batch_done(
            "cpu:0", batch.ticket, BatchReport((), crash, (MeasuredTask(0, 0),))
        )
        assert indices(commands) == [0]
        assert StartWorker("cpu:0") in commands
        alone = sending(made.worker_ready("cpu:0"))
        assert (alone.tasks, alone.stage) == (batch.tasks[1:2], Stage.CHECK)
        assert [task.index for task in dispatch_of(made).queue.tasks] == [2]

    def test_the_run_teaches_the_model(self) -> None:
        made = staged(huge(1))
        before = copy.deepcopy(made.model)
        finish(made, sending(half_done(made)[1]))
        assert made.model != before


def _small_but_worth(count: int) -> list[Task]:
    return make_tasks([0.02] * count)


def _with_backlog(bench_s: float) -> Scheduler:
    """A scheduler of records of 0.1 s; its one bench worker has something to do for some time."""
    made = staged(make_tasks([0.1] * 200))
    made.worker_ready("bench:0")
    for ticket, seconds in ((97, 0.0), (98, 0.0), (99, bench_s)):
        made.bench.promise(ticket, (), seconds)
    return made


def _two_batches(made: Scheduler) -> tuple[SendBatch, SendBatch]:
    commands = [*made.worker_ready("cpu:0"), *made.wake()]
    first, second = (c for c in commands if isinstance(c, SendBatch))
    return first, second


class TestBrokenBenches:
    @pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
    def test_a_record_whose_bench_breaks_is_checked_whole_and_blamed_only_there(
        self, cause: Cause
    ) -> None:
        made = staged(huge(1))
        batch, commands = half_done(made)
        commands = break_at(made, sending(commands), 0, cause)
        assert not recorded(commands)
        assert forgotten(commands) == [batch.ticket]
        assert StartWorker("bench:0") in commands
        whole = sending(made.wake())
        assert (whole.slot, whole.tasks, whole.stage) == ("cpu:0", batch.tasks, Stage.CHECK)
        assert crashes_of(made).total() == 0
        assert recorded(finish(made, whole)) == [answer(batch.tasks[0])]
        assert made.finished

    def test_a_bench_over_its_budget_is_a_skip_without_a_second_run(self) -> None:
        made = staged(huge(1))
        _, commands = half_done(made)
        commands = break_at(made, sending(commands), 0, Cause.OVER_BUDGET)
        (result,) = recorded(commands)
        assert (said(result), result.verdict) == ((Outcome.SKIPPED, "broke"), Verdict.SKIP)
        assert made.finished

    def test_what_the_bench_had_not_begun_is_checked_too(self) -> None:
        made = staged(_small_but_worth(3))
        dispatch_of(made).queue.cost_left_s = 100.0
        batch, commands = half_done(made)
        over = break_at(made, sending(commands), 1, Cause.OVER_BUDGET)
        assert [result.index for result in recorded(over)] == [0, 1]
        assert indices(made.wake()) == [2]
        assert len(batch.tasks) == 3

    def test_all_that_a_lost_worker_had_is_checked_again(self) -> None:
        made = staged(huge(2), slots=2, machines={"bench:0": "m1"})
        made.worker_ready("bench:0")
        first, second = (sending(made.worker_ready(f"cpu:{i}")) for i in range(2))
        sent = [sent_to(measure(made, batch))["bench:0"] for batch in (first, second)]
        commands = made.worker_lost("bench:0", sent[0].ticket, "died")
        assert {*forgotten(commands)} == {b.ticket for b in (first, second, *sent)}
        assert [task.index for task in dispatch_of(made).alone] == [0, 1]
        assert made.bench.is_empty

    def test_a_late_answer_of_a_bench_changes_nothing(self) -> None:
        made = staged(huge(3))
        bench = sent_to(half_done(made)[1])["bench:0"]
        made.worker_lost("bench:0", bench.ticket, "died")
        for _ in range(2):
            before = copy.deepcopy(made)
            assert finish(made, bench) == []
            assert break_at(made, bench, 0) == []
            assert made == before
            made.worker_ready("bench:0")

    def test_a_start_that_fails_after_the_worker_is_ready_changes_nothing(self) -> None:
        made = staged(huge(1))
        made.worker_ready("bench:0")
        before = copy.deepcopy(made)
        assert made.start_failed("bench:0", "late") == []
        assert made == before

    def test_a_bench_that_never_starts_is_given_up_and_the_device_goes_on(self) -> None:
        made = staged(huge(1))
        commands = [made.start_failed("bench:0", "no torch") for _ in range(START_ATTEMPTS)]
        assert commands == [*[[StartWorker("bench:0")]] * 2, [GiveUpDevice("bench:0", "no torch")]]
        assert recorded(finish(made, sending(made.worker_ready("cpu:0"))))
        assert made.finished

    def test_what_waits_for_benches_that_are_all_given_up_is_checked_whole(self) -> None:
        made = staged(huge(3))
        batches, (bench, _) = transfers_made(made, 3)
        made.worker_lost("bench:0", bench.ticket, "died")
        commands = [made.start_failed("bench:0", "no torch") for _ in range(START_ATTEMPTS)][-1]
        assert commands == [GiveUpDevice("bench:0", "no torch"), Forget(batches[2].ticket)]
        assert made.bench.is_empty
        commands = made.wake()
        for batch in batches:
            whole = sending(commands)
            assert (whole.tasks, whole.stage) == (batch.tasks, Stage.CHECK)
            commands = finish(made, whole)

    def test_no_bench_is_started_while_draining(self) -> None:
        made = staged(huge(2))
        bench = sent_to(half_done(made)[1])["bench:0"]
        made.drain()
        assert made.worker_lost("bench:0", bench.ticket, "died")  # what was made is forgotten
        assert made.start_failed("bench:0", "no torch") == []
        assert made.add_bench("bench:9", "m0") == []
        assert made.worker_ready("bench:0") == []


class TestDraining:
    def test_what_waits_for_a_bench_is_neither_recorded_nor_in_flight(self) -> None:
        made = staged(huge(4), slots=2)
        batches, benches = transfers_made(made, 3)
        made.drain()
        assert made.wake() == []
        busy = slots_of(made)["cpu:0"]
        made.batch_done("cpu:0", busy.ticket, answers(list(busy.batch.values())))
        assert made.busy_slots == ["bench:0"]
        for batch, bench in zip(batches[:2], benches, strict=True):
            assert not made.finished
            assert recorded(finish(made, bench)) == [answer(batch.tasks[0])]
        assert made.in_flight == 0
        assert made.finished

    def test_what_a_device_makes_then_is_forgotten(self) -> None:
        made = staged(huge(1))
        made.worker_ready("bench:0")
        batch = sending(made.worker_ready("cpu:0"))
        made.drain()
        assert measure(made, batch) == [Forget(batch.ticket)]
        assert made.finished


class TestPlaces:
    def test_what_lies_on_a_lost_machine_is_checked_again(self) -> None:
        made = staged(huge(4), slots=2, machines={"cpu:1": "m1", "bench:0": "m1"})
        made.worker_ready("bench:0")
        first, second = (sending(made.worker_ready(f"cpu:{i}")) for i in range(2))
        sent = [sent_to(measure(made, batch)) for batch in (first, second)]
        assert [each["bench:0"].transfer for each in sent] == [first.ticket, second.ticket]
        third, fourth = sent[0]["cpu:0"], sent[1]["cpu:1"]
        assert not sent_to([*measure(made, third), *measure(made, fourth)])
        commands = made.place_lost("m1", [])
        assert forgotten(commands) == [fourth.ticket]
        assert [task.index for task in dispatch_of(made).alone] == [3]
        assert made.bench.busy() == ["bench:0"]
        assert made.bench.in_flight == 2

    def test_its_bench_workers_are_gone_with_what_they_had(self) -> None:
        made = staged(huge(2), benches=2, machines={"bench:0": "m1"})
        made.worker_ready("bench:0")
        batch, commands = half_done(made)
        bench = sent_to(commands)["bench:0"]
        assert {*forgotten(made.place_lost("m1", ["bench:0"]))} == {batch.ticket, bench.ticket}
        assert made.bench.names == ["bench:1"]
        assert made.worker_ready("bench:0") == []
        assert finish(made, bench) == []

    def test_what_waits_for_the_last_bench_is_not_left_behind(self) -> None:
        made = staged(huge(2), slots=2, machines={"bench:0": "m1"})
        made.worker_ready("bench:0")
        batches = [sending(made.worker_ready(f"cpu:{i}")) for i in range(2)]
        made.bench.lose("bench:0")
        for batch in batches:
            assert not sent_to(measure(made, batch))
        assert made.in_flight == 0
        assert not made.finished
        commands = made.place_lost("m1", ["bench:0"])
        assert forgotten(commands) == [batch.ticket for batch in batches]
        assert sorted(task.index for task in dispatch_of(made).alone) == [0, 1]
        assert made.bench.is_empty

    def test_a_core_that_joins_is_started_and_used(self) -> None:
        made = staged(huge(2), benches=0)
        assert made.add_bench("bench:7", "m0") == [StartWorker("bench:7")]
        assert made.add_bench("bench:7", "m0") == []
        made.worker_ready("bench:7")
        assert sending(made.worker_ready("cpu:0")).stage is Stage.DEVICE

    def test_a_device_that_joins_is_started_and_used(self) -> None:
        made = scheduler(huge(2))
        assert made.add_slot("npu:9", "npu:9") == [StartWorker("npu:9")]
        assert made.add_slot("npu:9", "npu:9") == []
        assert indices(made.worker_ready("npu:9")) == [0]
        for _ in range(START_ATTEMPTS):
            made.start_failed("cpu:0", "no driver")
        assert made.has_devices

    def test_nobody_joins_while_draining(self) -> None:
        made = scheduler(huge(2))
        made.drain()
        assert made.add_slot("npu:9", "npu:9") == []
        assert "npu:9" not in slots_of(made)


class TestCopies:
    def test_a_copy_in_the_middle_of_a_run_is_equal_and_goes_its_own_way(self) -> None:
        made = staged(huge(5), slots=2, ahead=frozenset(["cpu:0"]))
        bench = sent_to(half_done(made)[1])["bench:0"]
        other = copy.deepcopy(made)
        assert other == made
        assert finish(other, bench)
        assert other != made
        assert finish(made, bench)
        assert other == made
