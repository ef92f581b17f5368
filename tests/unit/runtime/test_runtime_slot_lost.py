"""What becomes of the work of a slot whose machine is gone."""

import copy

import pytest
from mock_pool import answer, make_tasks
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
    slots_of,
    staged,
)

from ray_precheck.runtime.scheduling.commands import (
    Command,
    Forget,
    Prepare,
    SendBatch,
    Stage,
    StartWorker,
)
from ray_precheck.runtime.scheduling.slots import CRASHES_NEEDED
from ray_precheck.schema.task import Cause

pytestmark = pytest.mark.unit

GONE = "its node died"


def starts(commands: list[Command]) -> list[str]:
    """The slots on which commands start a worker."""
    return [command.slot for command in commands if isinstance(command, StartWorker)]


class TestItsBatch:
    def test_it_runs_elsewhere_one_by_one(self) -> None:
        made = scheduler(make_tasks([0.0] * 3), slots=2)
        batch = sending(made.worker_ready("cpu:0"))
        assert len(batch.tasks) == 3
        assert made.worker_ready("cpu:1") == []
        assert made.slot_lost("cpu:0", GONE) == []
        assert made.in_flight == 0
        commands = made.wake()
        for index in range(3):
            assert sending(commands).slot == "cpu:1"
            assert indices(commands) == [index]
            commands = finish(made, sending(commands))
        assert made.finished

    def test_one_record_alone_is_struck_once_and_runs_elsewhere(self) -> None:
        made = scheduler(huge(1), slots=2)
        sending(made.worker_ready("cpu:0"))
        made.worker_ready("cpu:1")
        assert made.slot_lost("cpu:0", GONE) == []
        assert crashes_of(made) == {(0, Cause.LOST): 1}
        assert CRASHES_NEEDED[Cause.LOST] > 1
        again = sending(made.wake())
        assert (again.slot, again.tasks[0].index) == ("cpu:1", 0)
        assert recorded(finish(made, again)) == [answer(again.tasks[0])]
        assert made.finished

    def test_what_it_still_answers_changes_nothing(self) -> None:
        made = scheduler(huge(2), slots=2)
        batch = sending(made.worker_ready("cpu:0"))
        made.slot_lost("cpu:0", GONE)
        before = copy.deepcopy(made)
        assert finish(made, batch) == []
        assert break_at(made, batch, 0) == []
        assert made.worker_lost("cpu:0", batch.ticket, "late") == []
        assert made.worker_lost("cpu:0", 0, "late") == []
        assert made.worker_ready("cpu:0") == []
        assert made.start_failed("cpu:0", "late") == []
        assert made == before

    def test_the_promise_of_a_half_is_withdrawn(self) -> None:
        made = staged(huge(2), slots=2, most_bytes=100)
        made.worker_ready("bench:0")
        batch = sending(made.worker_ready("cpu:0"))
        assert batch.stage is Stage.DEVICE
        assert not made.bench.is_empty
        made.slot_lost("cpu:0", GONE)
        assert made.bench.is_empty
        assert made.bench.room_bytes == 100
        assert measure(made, batch) == []
        assert made.bench.is_empty

    def test_while_draining_it_is_left_for_the_next_run(self) -> None:
        made = scheduler(huge(2))
        sending(made.worker_ready("cpu:0"))
        made.drain()
        assert made.slot_lost("cpu:0", GONE) == []
        assert made.finished
        assert [task.index for task in dispatch_of(made).queue.tasks] == [0, 1]


class TestWhatItKeeps:
    def test_a_quarantined_record_that_waits_for_its_start_goes_to_another(self) -> None:
        made = scheduler(huge(3), slots=3)
        first, second, third = (sending(made.worker_ready(f"cpu:{i}")) for i in range(3))
        break_at(made, first, 0)
        assert starts(finish(made, second)) == ["cpu:1"]
        assert slots_of(made)["cpu:1"].quarantined == first.tasks[0]
        made.slot_lost("cpu:1", GONE)
        assert not made.finished
        assert starts(finish(made, third)) == ["cpu:2"]
        assert indices(made.worker_ready("cpu:2")) == [0]

    def test_a_quarantined_record_stays_at_its_place_where_all_others_are_lost(self) -> None:
        made = scheduler(huge(2), slots=2)
        first, _ = (sending(made.worker_ready(f"cpu:{i}")) for i in range(2))
        made.slot_lost("cpu:1", GONE)
        assert starts(break_at(made, first, 0)) == ["cpu:0"]
        # Both are quarantined records, one of a crash and one of the loss, and there is one place left.
        commands, seen = made.worker_ready("cpu:0"), []
        for _ in range(2):
            seen += indices(commands)
            commands = finish(made, sending(commands))
            if starts(commands):
                commands = made.worker_ready("cpu:0")
        assert sorted(seen) == [0, 1]
        assert made.finished

    def test_a_batch_that_is_reserved_goes_back_and_its_files_are_forgotten(self) -> None:
        made = staged(huge(3), slots=2, benches=0, ahead=frozenset(["cpu:0"]))
        _, batch, reserved = made.worker_ready("cpu:0")
        assert isinstance(batch, SendBatch)
        assert isinstance(reserved, Prepare)
        assert made.slot_lost("cpu:0", GONE) == [Forget(reserved.ticket)]
        assert slots_of(made).kept == 0
        assert [task.index for task in dispatch_of(made).queue.tasks] == [1, 2]
        assert forgotten(made.slot_lost("cpu:0", GONE)) == []


class TestTheSlot:
    def test_nothing_is_started_there_until_it_is_revived(self) -> None:
        made = scheduler(huge(4), slots=2)
        batches = [sending(made.worker_ready(f"cpu:{i}")) for i in range(2)]
        commands = made.slot_lost("cpu:0", GONE)
        while made.busy_slots:
            commands += (more := finish(made, batches.pop()))
            commands += made.wake()
            batches += [each for each in more if isinstance(each, SendBatch)]
            if starts(more):
                batches.append(sending(made.worker_ready("cpu:1")))
        assert made.finished
        assert "cpu:0" not in starts(commands)
        assert made.has_devices

    def test_no_device_is_left_when_all_are_lost_and_revival_brings_one_back(self) -> None:
        made = scheduler(huge(3), slots=2)
        sending(made.worker_ready("cpu:0"))
        made.slot_lost("cpu:0", GONE)
        assert made.has_devices
        made.slot_lost("cpu:1", GONE)
        made.slot_lost("cpu:1", GONE)
        assert not made.has_devices
        assert made.wake() == []
        assert made.revive("cpu:1", "n9") == [StartWorker("cpu:1")]
        assert made.has_devices
        assert indices(made.worker_ready("cpu:1")) == [0]

    def test_one_that_has_nothing_is_lost_without_a_word(self) -> None:
        made = scheduler(huge(1), slots=2)
        sending(made.worker_ready("cpu:0"))
        made.worker_ready("cpu:1")
        assert made.slot_lost("cpu:1", GONE) == []
        assert made.slot_lost("nobody", GONE) == []
        assert slots_of(made).idle() == []
