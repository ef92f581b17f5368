"""Suspects go elsewhere, and slots move."""

from collections import deque

import pytest
from mock_pool import answer
from scheduler_events import (
    break_at,
    finish,
    huge,
    indices,
    scheduler,
    sending,
)

from ray_precheck.runtime.blame import START_ATTEMPTS
from ray_precheck.runtime.commands import Command, Record, SendBatch, StartWorker
from ray_precheck.schema.result import Outcome, TaskResult

pytestmark = pytest.mark.unit


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
