"""Who is found guilty, who is skipped, and where a quarantined record runs next."""

import pytest
from mock_pool import JOB, make_tasks, provisional, said

from ray_precheck.runtime.scheduling.slots import CRASHES_NEEDED, CrashCounts
from ray_precheck.schema.result import Outcome, Verdict
from ray_precheck.schema.task import Cause, WorkerFailure

pytestmark = pytest.mark.unit

FIRST, SECOND = make_tasks([1.0, 1.0])


def failure(cause: Cause, index: int = 0) -> WorkerFailure:
    return WorkerFailure(index, cause, "broke")


@pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
def test_no_number_of_crashes_convicts_on_a_used_worker(cause: Cause) -> None:
    crash_counts = CrashCounts(JOB)
    for _ in range(CRASHES_NEEDED[cause] + 3):
        assert crash_counts.count_crash(FIRST, failure(cause), "n0", fresh=False) is None
        assert crash_counts.take_quarantined("n0", elsewhere=False) == FIRST


@pytest.mark.parametrize("cause", list(CRASHES_NEEDED))
def test_the_last_crash_on_a_fresh_worker_convicts(cause: Cause) -> None:
    crash_counts = CrashCounts(JOB)
    found = [
        crash_counts.count_crash(FIRST, failure(cause), "n0", fresh=True)
        for _ in range(CRASHES_NEEDED[cause])
    ]
    assert found[:-1] == [None] * (CRASHES_NEEDED[cause] - 1)
    assert found[-1] is not None
    assert (said(found[-1]), found[-1].verdict) == ((cause.outcome, "broke"), Verdict.ERROR)


def test_what_it_gave_before_is_its_result() -> None:
    crash_counts, result = CrashCounts(JOB), provisional(FIRST)
    broke = WorkerFailure(0, Cause.OUT_OF_MEMORY, "broke", result)
    assert crash_counts.count_crash(FIRST, broke, "n0", fresh=True) is result


@pytest.mark.parametrize("fresh", [False, True])
def test_a_bench_over_its_budget_is_a_skip_wherever_it_ran(fresh: bool) -> None:
    crash_counts = CrashCounts(JOB)
    result = crash_counts.count_crash(FIRST, failure(Cause.OVER_BUDGET), "n0", fresh=fresh)
    assert result is not None
    assert (said(result), result.verdict) == ((Outcome.SKIPPED, "broke"), Verdict.SKIP)
    assert not crash_counts.quarantined


def test_a_quarantined_record_is_not_taken_where_it_broke_a_worker_so_long_as_there_is_elsewhere() -> (
    None
):
    crash_counts = CrashCounts(JOB)
    crash_counts.count_crash(FIRST, failure(Cause.CRASHED), "n0", fresh=True)
    assert crash_counts.take_quarantined("n0", elsewhere=True) is None
    assert crash_counts.take_quarantined("n1", elsewhere=True) == FIRST
    assert crash_counts.take_quarantined("n1", elsewhere=True) is None


def test_another_quarantined_record_is_taken_instead() -> None:
    crash_counts = CrashCounts(JOB)
    crash_counts.count_crash(FIRST, failure(Cause.CRASHED), "n0", fresh=True)
    crash_counts.count_crash(SECOND, failure(Cause.CRASHED, 1), "n1", fresh=True)
    assert crash_counts.take_quarantined("n0", elsewhere=True) == SECOND


def test_where_it_broke_one_last_is_what_counts() -> None:
    crash_counts = CrashCounts(JOB)
    for place in ("n0", "n1"):
        crash_counts.count_crash(FIRST, failure(Cause.CRASHED), place, fresh=False)
        crash_counts.quarantined.clear()
    crash_counts.quarantined.append(FIRST)
    assert crash_counts.take_quarantined("n1", elsewhere=True) is None
    assert crash_counts.take_quarantined("n0", elsewhere=True) == FIRST
