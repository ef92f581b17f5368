"""Captured results: bench workers do whole records, and files are sent one batch ahead."""

import pytest
from mock_pool import broken
from scheduler_events import (
    break_at,
    dispatch_of,
    finish,
    forgotten,
    huge,
    indices,
    sending,
    slots_of,
    staged,
)

from ray_precheck.runtime.scheduling.commands import (
    Forget,
    GiveUpDevice,
    Prepare,
    SendBatch,
    Stage,
    StartWorker,
)
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.scheduling.slots import START_ATTEMPTS
from ray_precheck.schema.task import BatchReport, Cause

pytestmark = pytest.mark.unit


class TestCapturedResults:
    """With captured results bench workers do whole records."""

    def test_bench_workers_take_whole_records_from_the_queue(self) -> None:
        made = staged(huge(3), bench_suffices=True)
        batch = sending(made.worker_ready("bench:0"))
        assert (batch.slot, batch.stage, batch.transfer) == ("bench:0", Stage.CHECK, 0)
        assert sending(made.worker_ready("cpu:0")).stage is Stage.CHECK
        assert indices(finish(made, batch)) == [2]

    def test_what_needs_a_device_is_given_to_one(self) -> None:
        made = staged(huge(1), bench_suffices=True)
        batch = sending(made.worker_ready("bench:0"))
        made.worker_ready("cpu:0")
        report = BatchReport((), needs_device=(0,))
        assert made.batch_done("bench:0", batch.ticket, report) == []
        assert made.in_flight == 0
        whole = sending(made.wake())
        assert (whole.slot, whole.tasks) == ("cpu:0", batch.tasks)

    def test_so_is_what_breaks_one_without(self) -> None:
        made = staged(huge(1), bench_suffices=True)
        batch = sending(made.worker_ready("bench:0"))
        commands = made.batch_done(
            "bench:0", batch.ticket, broken(batch.tasks[0], Cause.OUT_OF_MEMORY)
        )
        assert commands == [StartWorker("bench:0")]
        assert sending(made.worker_ready("cpu:0")).tasks == batch.tasks


class TestFilesAhead:
    """Captured files are sent to other machines one batch ahead."""

    def ahead(self, count: int, slots: int = 1) -> Scheduler:
        names = frozenset(f"cpu:{i}" for i in range(slots))
        return staged(huge(count), slots, benches=0, ahead=names)

    def test_a_batch_is_prepared_before_it_is_sent_and_the_next_one_with_it(self) -> None:
        made = self.ahead(3)
        first, batch, second = made.worker_ready("cpu:0")
        assert isinstance(batch, SendBatch)
        assert first == Prepare("cpu:0", batch.ticket, batch.tasks)
        assert isinstance(second, Prepare)
        _, again, third = finish(made, batch)
        assert isinstance(again, SendBatch)
        assert (again.ticket, again.tasks) == (second.ticket, second.tasks)
        assert isinstance(third, Prepare)

    def test_an_idle_slot_takes_back_what_is_reserved_for_a_busy_one(self) -> None:
        made = self.ahead(2, slots=2)
        reserved = made.worker_ready("cpu:0")[-1]
        assert isinstance(reserved, Prepare)
        commands = made.worker_ready("cpu:1")
        assert commands[0] == Forget(reserved.ticket)
        assert sending(commands).tasks == reserved.tasks
        assert sending(commands).slot == "cpu:1"

    def test_but_not_while_the_queue_has_others(self) -> None:
        made = self.ahead(9, slots=2)
        made.worker_ready("cpu:0")
        assert not forgotten(made.worker_ready("cpu:1"))

    def test_what_is_reserved_for_a_device_that_is_given_up_goes_back(self) -> None:
        made = self.ahead(3)
        _, batch, reserved = made.worker_ready("cpu:0")
        assert isinstance(batch, SendBatch)
        assert isinstance(reserved, Prepare)
        made.worker_lost("cpu:0", batch.ticket, "died")
        commands = [made.start_failed("cpu:0", "no driver") for _ in range(START_ATTEMPTS)][-1]
        assert commands == [Forget(reserved.ticket), GiveUpDevice("cpu:0", "no driver")]
        assert [task.index for task in dispatch_of(made).queue.tasks] == [1, 2]
        assert slots_of(made).kept == 0

    def test_a_quarantined_record_does_not_wait_behind_the_files_of_the_next_batch(self) -> None:
        made = self.ahead(3)
        _, batch, reserved = made.worker_ready("cpu:0")
        assert isinstance(batch, SendBatch)
        assert isinstance(reserved, Prepare)
        break_at(made, batch, 0)
        commands = made.worker_ready("cpu:0")
        assert commands[0] == Forget(reserved.ticket)
        assert indices(commands) == [0]
        assert [c.tasks for c in commands[3:] if isinstance(c, Prepare)] == [reserved.tasks]

    def test_a_run_is_not_finished_while_something_is_reserved(self) -> None:
        made = self.ahead(2)
        batch = sending(made.worker_ready("cpu:0"))
        made.worker_lost("cpu:0", batch.ticket, "died")
        assert not dispatch_of(made).queue
        assert not made.finished

    def test_a_bench_elsewhere_is_sent_its_files_and_gets_one_batch_ahead(self) -> None:
        made = staged(huge(4), bench_suffices=True, ahead=frozenset(["bench:0"]))
        commands = made.worker_ready("bench:0")
        assert [type(c) for c in commands] == [Prepare, SendBatch]
        assert [type(c) for c in made.wake()] == [Prepare, SendBatch]
        assert made.wake() == []
