"""How what is left to send is cut into batches."""

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mock_pool import at_ratio

from ray_precheck.runtime.scheduling.queue import (
    MAX_BATCH_RECORDS,
    MESSAGE_S,
    TARGET_BATCH_S,
    CostModel,
    TaskQueue,
    target_batch_s,
)
from ray_precheck.schema.task import Task

pytestmark = pytest.mark.unit

LARGE = 1 << 40


def queue(*tasks: tuple[float, int]) -> TaskQueue:
    """A queue of tasks by cost in seconds and size in bytes."""
    return TaskQueue(deque(Task(i, f"Mint.a.{i}", *each) for i, each in enumerate(tasks)))


def test_a_batch_is_all_one_way() -> None:
    # Worth it, too small, and worth it again: three batches, though the budget has room for all.
    made = queue((0.02, 0), (1e-6, 0), (0.02, 0))
    made.cost_left_s = 100.0
    taken = [made.take(1, LARGE, CostModel()) for _ in range(3)]
    assert [([task.index for task in tasks], splits) for tasks, splits in taken] == [
        ([0], True),
        ([1], False),
        ([2], True),
    ]


def test_small_records_stay_fused() -> None:
    tasks, splits = queue(*[(1e-6, 0)] * 10).take(1, LARGE, CostModel())
    assert not splits
    assert len(tasks) > 1


def test_all_stay_fused_where_there_is_no_room() -> None:
    _, splits = queue((5.0, 0)).take(1, 0, CostModel())
    assert not splits


def test_so_does_one_that_is_larger_than_the_room() -> None:
    assert queue((5.0, 100)).take(1, 100, CostModel())[1]
    assert not queue((5.0, 101)).take(1, 100, CostModel())[1]


def test_a_batch_takes_no_more_bytes_than_there_is_room_for() -> None:
    made = queue(*[(0.02, 40)] * 5)
    made.cost_left_s = 100.0
    tasks, splits = made.take(1, 100, CostModel())
    assert (len(tasks), splits) == (2, True)


def test_one_is_done_whole_where_the_others_have_enough_to_do_until_the_next() -> None:
    # 5 s for this one, and 2 s for the device's side of the next.
    assert queue((5.0, 0)).take(1, LARGE, CostModel(), spare_s=7.0)[1]
    assert not queue((5.0, 0)).take(1, LARGE, CostModel(), spare_s=7.1)[1]


@pytest.mark.parametrize(("ratio", "splits"), [(0.5, False), (1.0, False), (2.0, True)])
def test_longer_than_records_take_here(ratio: float, splits: bool) -> None:
    assert queue((5.0, 0)).take(1, LARGE, at_ratio(ratio), spare_s=9.0)[1] is splits


def test_a_short_one_only_where_they_have_enough_for_a_while() -> None:
    def splits(spare_s: float) -> bool:
        made = queue((0.1, 0))
        made.cost_left_s = 100.0
        return made.take(1, LARGE, CostModel(), spare_s=spare_s)[1]

    assert splits(3.0)
    assert not splits(3.01)


@pytest.mark.parametrize(
    ("left_s", "devices", "ratio", "splits"),
    [(1.0, 1, 1.0, True), (0.7, 1, 1.0, False), (1.0, 2, 1.0, False), (0.7, 1, 2.0, True)],
)
def test_or_to_the_end_of_what_is_left_to_devices(
    left_s: float, devices: int, ratio: float, splits: bool
) -> None:
    # The devices' side is 0.4 of it.
    made = queue((0.1, 0))
    made.cost_left_s = left_s
    assert made.take(devices, LARGE, at_ratio(ratio), spare_s=0.3)[1] is splits


def test_no_longer_than_that_and_they_have_to_get_more() -> None:
    # The first three leave them 2.97 s: the fourth goes another way.
    made = queue(*[(0.05, 0)] * 5)
    made.cost_left_s = 100.0
    tasks, splits = made.take(1, LARGE, CostModel(), spare_s=3.12)
    assert (len(tasks), splits) == (3, False)


def test_where_they_would_run_dry_they_get_what_is_not_worth_it_else() -> None:
    record = (0.05, 5 << 20)
    model = CostModel()
    task = queue(record).tasks[0]
    assert not model.is_worth(task)
    assert model.is_worth(task, are_dry=True)
    assert queue(record).take(1, LARGE, model)[1]
    assert not queue(record).take(1, LARGE, model, spare_s=0.001)[1]


def test_a_batch_that_is_split_is_split_to_its_end() -> None:
    made = queue(*[(0.1, 0)] * 3)
    made.cost_left_s = 100.0
    tasks, splits = made.take(1, LARGE, CostModel(), spare_s=0.1)
    assert (len(tasks), splits) == (3, True)


def test_what_is_put_back_comes_first_and_counts_again() -> None:
    made = queue(*[(0.25, 0)] * 4)
    first, _ = made.take(1, 0, CostModel())
    assert made.cost_left_s == pytest.approx(0.25 * (4 - len(first)))
    made.put_back(first)
    assert made.cost_left_s == pytest.approx(1.0)
    assert [task.index for task in made.tasks] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ratio", "count"), [(1.0, 40), (0.5, 80), (0.25, 128), (2.0, 20), (100.0, 1)]
)
def test_batches_are_as_long_as_records_take_here(ratio: float, count: int) -> None:
    made = queue(*[(TARGET_BATCH_S / 40 - 1e-9, 0)] * 10_000)
    tasks, _ = made.take(1, 0, at_ratio(ratio))
    assert len(tasks) == count


@pytest.mark.parametrize(("devices", "target_s"), [(1, 0.4), (200, 0.4), (400, 0.8), (1024, 2.048)])
def test_many_devices_have_longer_batches_so_that_the_driver_has_time(
    devices: int, target_s: float
) -> None:
    made = queue(*[(0.03, 0)] * 100)
    made.cost_left_s = 1e6
    assert target_batch_s(devices) == pytest.approx(target_s)
    tasks, _ = made.take(devices, 0, at_ratio(1.0))
    assert len(tasks) == int(target_s / 0.03)


@pytest.mark.parametrize("devices", [8, 100, 1024])
def test_none_is_so_short_that_the_driver_cannot_keep_up_with_its_devices(devices: int) -> None:
    made = queue(*[(1e-4, 0)] * 10_000)
    made.cost_left_s = 1e-4
    tasks, _ = made.take(devices, 0, at_ratio(1.0))
    assert len(tasks) == min(MAX_BATCH_RECORDS, int(devices * MESSAGE_S / 2 / 1e-4 - 1e-9))


@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
def test_and_the_last_ones_are_the_same_share_of_what_is_left(ratio: float) -> None:
    made = queue(*[(1e-3, 0)] * 40)
    tasks, _ = made.take(2, 0, at_ratio(ratio))
    assert len(tasks) == pytest.approx(10, abs=1)


def test_an_empty_queue_gives_nothing() -> None:
    assert queue().take(1, LARGE, CostModel()) == ((), False)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1e-6, 0.003, 0.01, 0.02, 0.3, 30.0]), st.integers(0, 1000)),
        max_size=150,
    ),
    st.integers(1, 8),
    st.integers(0, 3000),
    st.sampled_from([-1.0, 0.0, 0.02, 0.3, 1.0, 3.5, math.inf]),
)
def test_every_task_is_taken_once_in_order_and_within_bounds(
    tasks: list[tuple[float, int]], devices: int, room_bytes: int, spare_s: float
) -> None:
    made, model, taken = queue(*tasks), CostModel(), []
    while made:
        left_s = made.cost_left_s
        batch, splits = made.take(devices, room_bytes, model, spare_s)
        assert 1 <= len(batch) <= MAX_BATCH_RECORDS
        budget_s = max(min(TARGET_BATCH_S, left_s / (2 * devices)), devices * MESSAGE_S / 2)
        assert len(batch) == 1 or sum(task.cost_s for task in batch) <= budget_s
        first = batch[0]
        are_dry = spare_s <= 0
        fits = 0 < room_bytes >= first.nbytes and model.is_worth(first, are_dry=are_dry)
        enough_s = max(1.4 * first.cost_s, min(3.0, 0.4 * left_s / devices))
        assert splits is (fits and spare_s <= enough_s)
        if splits:
            assert sum(task.nbytes for task in batch) <= room_bytes
            assert all(model.is_worth(task, are_dry=True) for task in batch)
        taken += [task.index for task in batch]
    assert taken == list(range(len(tasks)))
    assert made.cost_left_s == pytest.approx(0.0, abs=1e-6)


# Half of what is left is a device's share: 100 s.
@pytest.mark.parametrize(("first", "is_ample"), [(99.0, True), (100.0, True), (101.0, False)])
def test_a_batch_may_come_early_whose_first_record_is_a_share_at_most(
    first: float, is_ample: bool
) -> None:
    made = queue((first, 0), (200.0 - first, 0))
    assert made.is_ample(1, CostModel()) is is_ample


def test_it_may_come_early_where_a_share_is_a_whole_batch() -> None:
    model = CostModel()
    enough_s = target_batch_s(1) / model.whole_ratio
    for share_s, is_ample in ((enough_s, True), (0.99 * enough_s, False)):
        assert queue((share_s, 0), (share_s, 0)).is_ample(1, model) is is_ample


def test_what_was_taken_before_is_not_left() -> None:
    # The devices' side is 0.4 of what is left: at first 0.32 s, behind a record of 0.1 s 0.28 s.
    made = queue((0.1, 0), (0.1, 0))
    made.cost_left_s = 0.8
    tasks, splits = made.take(1, LARGE, CostModel(), spare_s=0.41)
    assert (len(tasks), splits) == (2, False)
