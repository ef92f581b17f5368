"""Whole runs of the scheduler with workers that crash, hang and forget."""

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from mock_pool import ALWAYS, JOB, PROVISIONAL, Pool, make_tasks, provisional, said

from ray_precheck.runtime.scheduling.queue import MAX_BATCH_RECORDS
from ray_precheck.runtime.scheduling.scheduler import Scheduler
from ray_precheck.runtime.scheduling.slots import CRASHES_NEEDED, MAX_RUNS, START_ATTEMPTS
from ray_precheck.schema.result import Outcome
from ray_precheck.schema.task import Cause

pytestmark = pytest.mark.unit

# How often a record may break its worker and yet be answered in the end, however it runs.
FORGIVEN = {
    Cause.OVER_BUDGET: 0,
    **{cause: crashes - 1 for cause, crashes in CRASHES_NEEDED.items()},
}


def pool(
    costs: list[float], behaviours: dict[int, tuple[Cause, int]], slots: int = 1, **more: object
) -> Pool:
    """A pool before its start; each slot has a place of its own."""
    labels = [f"npu:{i}" for i in range(slots)]
    scheduler = Scheduler(make_tasks(costs), {label: label for label in labels}, 30.0, JOB)
    return Pool(scheduler, Random(0), behaviours, **more)  # type: ignore[arg-type]


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """A pool before its start: some tasks, some slots, and what goes wrong."""
    costs = draw(
        st.lists(st.sampled_from([0.0, 1e-4, 0.01, 0.3, 5.0]), max_size=150).map(
            lambda costs: sorted(costs, reverse=True)
        )
    )
    slots = [f"npu:{i}" for i in range(draw(st.integers(1, 5)))]
    places = {slot: f"n{draw(st.integers(0, 2))}" for slot in slots}
    sudden_deaths = draw(st.integers(0, FORGIVEN[Cause.LOST]))
    forgiven = {**FORGIVEN, Cause.LOST: FORGIVEN[Cause.LOST] - sudden_deaths}
    how = st.sampled_from(list(Cause)).flatmap(
        lambda cause: st.tuples(st.just(cause), st.sampled_from([forgiven[cause], ALWAYS]))
    )
    wrong = draw(st.dictionaries(st.integers(0, max(0, len(costs) - 1)), how, max_size=20))
    failing = draw(
        st.dictionaries(st.sampled_from(slots), st.integers(0, START_ATTEMPTS), max_size=5)
    )
    scheduler = Scheduler(make_tasks(costs), places, timeout_s=30.0, rows=JOB)
    random = Random(draw(st.integers(0, 2**32)))
    behaviours = {index: how for index, how in wrong.items() if index < len(costs)}
    return Pool(scheduler, random, behaviours, failing, sudden_deaths)


def most_events(pool: Pool) -> int:
    """How many events a run may have: each run of a record and each start of a worker is one."""
    # A lost batch is up to 64 records that run alone; each bad record takes a few fresh workers.
    return 3 * pool_size(pool) + (64 + 2 * MAX_RUNS) * (len(pool.behaviours) + 2) + 40


def pool_size(pool: Pool) -> int:
    """The number of tasks of a pool that has not started."""
    return len(list(pool.scheduler.tasks))


@settings(max_examples=200, deadline=None)
@given(pools())
def test_every_record_is_recorded_once_and_only_the_guilty_are_blamed(pool: Pool) -> None:
    total = pool_size(pool)
    pool.run(most_events(pool))
    blamed = {i for i, r in pool.recorded.items() if said(r)[0] is not Outcome.COMPLETED}
    guilty = {index for index, (_, times) in pool.behaviours.items() if times == ALWAYS}
    if not pool.scheduler.has_devices:
        event("no device is left")
        assert blamed <= guilty
        return
    event("finished")
    assert blamed == guilty
    assert sorted(pool.recorded) == list(range(total))
    assert pool.scheduler.in_flight == 0


@settings(max_examples=100, deadline=None)
@given(pools(), st.integers(0, 30))
def test_a_run_that_drains_ends_soon_and_records_nothing_twice(pool: Pool, after: int) -> None:
    slots = len(pool.scheduler.places)
    pool.run(most_events(pool), drain_after=after)
    if pool.batches_at_drain >= 0:
        event("drained before its end")
        assert len(pool.batches) == pool.batches_at_drain
        # Of each what starts, or what it works on, what is behind that, and one event of its loss.
        assert pool.events - after <= 3 * slots
    assert pool.scheduler.in_flight == 0


def test_a_slow_device_does_not_hold_the_run() -> None:
    made = pool([0.01] * 400, {}, slots=2)
    made.carry_out(made.scheduler.start())
    for slot in ("npu:0", "npu:1"):
        made.carry_out(made.started(slot))
    made.carry_out(made.scheduler.wake())
    held = len(made.busy["npu:0"].tasks) + len(made.behind["npu:0"].tasks)
    # From here on device 0 does not answer, and device 1 does all the rest.
    while "npu:1" in made.busy:
        made.carry_out(made.worked("npu:1"))
    assert len(made.recorded) == 400 - held
    assert held <= 2 * MAX_BATCH_RECORDS


def test_a_record_that_crashes_costs_its_neighbours_nothing() -> None:
    made = pool([0.0] * 64, {10: (Cause.CRASHED, ALWAYS)})
    made.run(most_events=300)
    assert made.runs[10] == 2
    assert {made.runs[i] for i in range(64) if i != 10} == {1}
    assert {made.sent[i] for i in range(11, 64)} == {2}


def test_a_record_that_takes_its_worker_along_costs_its_neighbours_one_more_run() -> None:
    made = pool([0.0] * 64, {10: (Cause.LOST, ALWAYS)})
    made.run(most_events=300)
    assert said(made.recorded[10])[0] is Outcome.CRASHED
    assert max(made.sent[i] for i in range(64) if i != 10) == 2


def test_bad_records_of_one_batch_are_all_found() -> None:
    bad = dict.fromkeys((0, 3, 4, 9), (Cause.CRASHED, ALWAYS))
    made = pool([0.0] * 10, bad)
    made.run(most_events=100)
    assert {i for i, r in made.recorded.items() if said(r)[0] is Outcome.CRASHED} == set(bad)


def test_a_bench_that_takes_too_long_is_a_skip_after_one_run() -> None:
    made = pool([0.0] * 3, {1: (Cause.OVER_BUDGET, ALWAYS)})
    made.run(most_events=20)
    assert made.runs[1] == 1
    assert said(made.recorded[1])[0] is Outcome.SKIPPED
    assert [said(made.recorded[i])[0] for i in (0, 2)] == [Outcome.COMPLETED] * 2


@pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
def test_a_guilty_record_has_as_many_runs_as_its_cause_needs(cause: Cause) -> None:
    made = pool([0.0], {0: (cause, ALWAYS)})
    made.run(most_events=20)
    assert made.runs[0] == CRASHES_NEEDED[cause]
    expected = Outcome.RAISED if cause in PROVISIONAL else cause.outcome
    assert said(made.recorded[0])[0] is expected


@pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
def test_in_a_batch_it_has_one_or_two_more(cause: Cause) -> None:
    made = pool([0.0, 0.0, 0.0], {1: (cause, ALWAYS)})
    made.run(most_events=30)
    # The run in the batch is a crash where the worker says who it was; one on a used worker is none.
    assert CRASHES_NEEDED[cause] <= made.runs[1] <= CRASHES_NEEDED[cause] + 2
    assert {i for i, r in made.recorded.items() if said(r)[0] is not Outcome.COMPLETED} == {1}


@pytest.mark.parametrize("cause", PROVISIONAL)
def test_what_a_worker_said_of_a_guilty_record_is_recorded(cause: Cause) -> None:
    made = pool([0.0, 0.0], {1: (cause, ALWAYS)})
    made.run(most_events=20)
    assert made.recorded[1] == provisional(make_tasks([0.0, 0.0])[1])


@pytest.mark.parametrize("cause", PROVISIONAL)
def test_but_not_where_it_shared_its_worker(cause: Cause) -> None:
    made = pool([0.0, 0.0], {1: (cause, 1)})
    made.run(most_events=20)
    assert said(made.recorded[1])[0] is Outcome.COMPLETED


def test_a_forgotten_record_is_answered_when_it_runs_again() -> None:
    made = pool([0.0] * 5, {3: (Cause.SILENT, 1)})
    made.run(most_events=20)
    assert sorted(made.recorded) == list(range(5))
    assert made.sent[3] == 2


def test_records_that_are_forgotten_before_crashes_are_found_too() -> None:
    bad = {0: (Cause.SILENT, ALWAYS), **dict.fromkeys(range(3, 40, 3), (Cause.CRASHED, ALWAYS))}
    made = pool([0.0] * 40, bad)
    made.run(most_events=300)
    assert {i for i, r in made.recorded.items() if said(r)[0] is Outcome.CRASHED} == set(bad)
    assert made.runs[0] <= 1 + CRASHES_NEEDED[Cause.SILENT]


def test_a_device_that_never_starts_is_given_up_and_the_other_does_all() -> None:
    made = pool([0.0] * 5, {}, slots=2, failing_starts={"npu:0": 99})
    made.run(most_events=50)
    # The run may be over before the device has failed three times.
    assert made.given_up in ([], ["npu:0"])
    assert sorted(made.recorded) == list(range(5))


def test_no_device_that_starts_means_that_nothing_is_recorded() -> None:
    made = pool([0.0], {}, failing_starts={"npu:0": 99})
    made.run(most_events=START_ATTEMPTS)
    assert made.given_up == ["npu:0"]
    assert not made.recorded
