"""Whole runs of the scheduler with workers that crash, hang and forget."""

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from mock_pool import BEHAVIOURS, CRASHES, FORGOTTEN, HANGS, Pool, make_tasks

from ray_precheck.runtime.scheduler import START_ATTEMPTS, Scheduler
from ray_precheck.schema.result import Outcome

pytestmark = pytest.mark.unit

GUILTY = {CRASHES: Outcome.CRASHED, HANGS: Outcome.TIMED_OUT}


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """A pool before its start: some tasks, some slots, and what goes wrong."""
    costs = draw(
        st.lists(st.sampled_from([0.0, 1e-4, 0.01, 0.3, 5.0]), max_size=150).map(
            lambda costs: sorted(costs, reverse=True)
        )
    )
    slots = [f"npu:{i}" for i in range(draw(st.integers(1, 5)))]
    wrong = draw(
        st.dictionaries(
            st.integers(0, max(0, len(costs) - 1)), st.sampled_from(BEHAVIOURS), max_size=20
        )
    )
    failing = draw(
        st.dictionaries(st.sampled_from(slots), st.integers(0, START_ATTEMPTS), max_size=5)
    )
    scheduler = Scheduler(make_tasks(costs), slots, timeout_s=30.0)
    random = Random(draw(st.integers(0, 2**32)))
    behaviours = {index: how for index, how in wrong.items() if index < len(costs)}
    return Pool(scheduler, random, behaviours, failing, draw(st.integers(0, 1)))


def most_events(pool: Pool) -> int:
    """How many events a run may have: a few for each record, the bad ones and the slots."""
    # A lost batch makes up to 64 suspects, each of which may cost a run and a start.
    return 3 * pool_size(pool) + 80 * (len(pool.behaviours) + 1) + 30


def pool_size(pool: Pool) -> int:
    """The number of tasks of a pool that has not started."""
    return len(list(pool.scheduler.tasks))


@settings(max_examples=200, deadline=None)
@given(pools())
def test_every_record_is_answered_once_and_only_the_guilty_are_reported(pool: Pool) -> None:
    total = pool_size(pool)
    pool.run(most_events(pool))
    if not pool.scheduler.has_devices:
        event("no device is left")
        # A run that lost its devices stops; what it has answered, it has answered once.
        assert not set(pool.answered) & set(pool.reported)
        assert max(pool.answered.values(), default=1) == 1
        return
    event("finished")
    guilty = {i: GUILTY[how] for i, how in pool.behaviours.items() if how in GUILTY}
    assert pool.reported == guilty
    assert dict(pool.answered) == {i: 1 for i in range(total) if i not in guilty}
    assert pool.scheduler.in_flight == 0


@settings(max_examples=100, deadline=None)
@given(pools(), st.integers(0, 30))
def test_a_run_that_drains_ends_soon_and_answers_nothing_twice(pool: Pool, after: int) -> None:
    slots = len(list(pool.scheduler.slots))
    pool.run(most_events(pool), drain_after=after)
    if pool.batches_at_drain >= 0:
        event("drained before its end")
        assert len(pool.batches) == pool.batches_at_drain
        assert pool.events - after <= slots * (1 + 2 * START_ATTEMPTS)
    assert pool.scheduler.in_flight == 0
    assert max(pool.answered.values(), default=1) == 1
    assert all(pool.behaviours[index] in GUILTY for index in pool.reported)


def test_a_slow_device_does_not_hold_the_run() -> None:
    scheduler = Scheduler(make_tasks([0.01] * 400), ["npu:0", "npu:1"], 30.0)
    pool = Pool(scheduler, Random(0), {})
    pool.carry_out(scheduler.start())
    for slot in ("npu:0", "npu:1"):
        pool.carry_out(pool.started(slot))
    held = len(pool.busy["npu:0"].tasks)
    # From here on device 0 does not answer, and device 1 does all the rest.
    while "npu:1" in pool.busy:
        pool.carry_out(pool.worked("npu:1"))
    assert len(pool.answered) == 400 - held
    assert held <= 64


def test_one_bad_record_costs_its_neighbours_one_more_run_and_no_more() -> None:
    pool = Pool(Scheduler(make_tasks([0.0] * 64), ["npu:0"], 30.0), Random(0), {10: CRASHES})
    pool.run(most_events=300)
    assert pool.sent[10] == 3
    assert {pool.sent[i] for i in range(64) if i != 10} == {2}


def test_a_forgotten_record_is_answered_when_it_runs_again() -> None:
    pool = Pool(Scheduler(make_tasks([0.0] * 5), ["npu:0"], 30.0), Random(0), {3: FORGOTTEN})
    pool.run(most_events=20)
    assert dict(pool.answered) == dict.fromkeys(range(5), 1)
    assert pool.sent[3] == 2


def test_a_device_that_never_starts_is_given_up_and_the_other_does_all() -> None:
    pool = Pool(
        Scheduler(make_tasks([0.0] * 5), ["npu:0", "npu:1"], 30.0), Random(0), {}, {"npu:0": 99}
    )
    pool.run(most_events=50)
    # The run may be over before the device has failed three times.
    assert pool.given_up in ([], ["npu:0"])
    assert dict(pool.answered) == dict.fromkeys(range(5), 1)


def test_no_device_that_starts_means_no_answer_and_no_report() -> None:
    pool = Pool(Scheduler(make_tasks([0.0]), ["npu:0"], 30.0), Random(0), {}, {"npu:0": 99})
    pool.run(most_events=START_ATTEMPTS)
    assert pool.given_up == ["npu:0"]
    assert not pool.answered
    assert not pool.reported
