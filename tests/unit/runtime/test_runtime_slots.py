"""What is known of the device slots, and the counts that are kept of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mock_pool import make_tasks

from ray_precheck.runtime.scheduling.commands import SendBatch, Stage
from ray_precheck.runtime.scheduling.slots import SlotState, SlotTable

pytestmark = pytest.mark.unit

PLACES = {"a": "n0", "b": "n0", "c": "n1"}


def batch(count: int = 1, ticket: int = 1) -> SendBatch:
    return SendBatch("a", ticket, tuple(make_tasks([1.0] * count)), (1.0,) * count, Stage.DEVICE)


def test_a_batch_that_is_given_is_taken_again() -> None:
    made = SlotTable(PLACES)
    made["a"].fresh = True
    made.give("a", batch())
    assert (made["a"].ticket, made["a"].stage, made.in_batches) == (1, Stage.DEVICE, 1)
    assert made.busy() == ["a"]
    assert list(made.take("a")) == [0]
    assert made.in_batches == 0
    assert made.take("a") == {}


@pytest.mark.parametrize(("fresh", "count"), [(True, 1), (True, 2), (False, 1)])
def test_only_a_fresh_worker_with_one_record_stays_fresh(fresh: bool, count: int) -> None:
    made = SlotTable(PLACES)
    made["a"].fresh = fresh
    made.give("a", batch(count))
    assert made["a"].fresh == (fresh and count == 1)


def test_what_slots_keep_is_counted() -> None:
    made = SlotTable(PLACES)
    (task,) = make_tasks([1.0])
    assert made.keep_quarantined("a", task) is None
    assert made.reserve("a", batch()) is None
    assert (made.kept, made.with_reserve()) == (2, "a")
    assert made.keep_quarantined("a", task) == task
    assert made.kept == 2
    assert made.reserve("a", None) == batch()
    assert made.keep_quarantined("a", None) == task
    assert (made.kept, made.with_reserve()) == (0, "")


def test_elsewhere_is_another_place_that_is_not_given_up() -> None:
    made = SlotTable(PLACES)
    assert made.is_elsewhere("n0")
    made.enter("c", SlotState.GIVEN_UP)
    assert not made.is_elsewhere("n0")
    assert made.is_elsewhere("n1")


def test_slots_that_are_left_out_do_not_live() -> None:
    made = SlotTable(PLACES)
    made.keep_only(["b"])
    made.enter("b", SlotState.GIVEN_UP)
    assert not made.has_living
    made.add("d", "n2")
    assert made.has_living
    assert list(made) == ["b", "d"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(list(SlotState)))))
def test_the_counts_are_those_of_the_states(changes: list[tuple[str, SlotState]]) -> None:
    made = SlotTable(PLACES)
    for name, state in changes:
        made.enter(name, state)
    states = {name: made[name].state for name in made}
    assert sorted(made.idle()) == sorted(n for n, s in states.items() if s is SlotState.IDLE)
    assert made.busy() == [n for n, s in states.items() if s is SlotState.BUSY]
    assert made.has_living == any(s is not SlotState.GIVEN_UP for s in states.values())


def test_a_worker_has_one_batch_until_another_one_follows() -> None:
    made = SlotTable(PLACES)
    assert not made.has_one_batch("nobody")
    assert not made.has_one_batch("a")
    made.give("a", batch())
    made.enter("a", SlotState.BUSY)
    assert made.has_one_batch("a")
    made["a"].following = batch(ticket=2)
    assert not made.has_one_batch("a")
