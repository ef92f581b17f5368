"""Who is found guilty, who is skipped, and where a suspect runs next."""

import pytest
from mock_pool import JOB, make_tasks, provisional, said

from ray_precheck.runtime.scheduling.blame import STRIKES, Blame
from ray_precheck.schema.casualty import Casualty, Cause
from ray_precheck.schema.result import Outcome, Verdict

pytestmark = pytest.mark.unit

FIRST, SECOND = make_tasks([1.0, 1.0])


def casualty(cause: Cause, index: int = 0) -> Casualty:
    return Casualty(index, cause, "broke")


@pytest.mark.parametrize("cause", list(STRIKES))
def test_no_number_of_strikes_convicts_on_a_used_worker(cause: Cause) -> None:
    blame = Blame(JOB)
    for _ in range(STRIKES[cause] + 3):
        assert blame.strike(FIRST, casualty(cause), "n0", fresh=False) is None
        assert blame.take_suspect("n0", elsewhere=False) == FIRST


@pytest.mark.parametrize("cause", list(STRIKES))
def test_the_last_strike_on_a_fresh_worker_convicts(cause: Cause) -> None:
    blame = Blame(JOB)
    found = [blame.strike(FIRST, casualty(cause), "n0", fresh=True) for _ in range(STRIKES[cause])]
    assert found[:-1] == [None] * (STRIKES[cause] - 1)
    assert found[-1] is not None
    assert (said(found[-1]), found[-1].verdict) == ((cause.outcome, "broke"), Verdict.ERROR)


def test_what_it_gave_before_is_its_result() -> None:
    blame, result = Blame(JOB), provisional(FIRST)
    broke = Casualty(0, Cause.OUT_OF_MEMORY, "broke", result)
    assert blame.strike(FIRST, broke, "n0", fresh=True) is result


@pytest.mark.parametrize("fresh", [False, True])
def test_a_bench_over_its_budget_is_a_skip_wherever_it_ran(fresh: bool) -> None:
    blame = Blame(JOB)
    result = blame.strike(FIRST, casualty(Cause.OVER_BUDGET), "n0", fresh=fresh)
    assert result is not None
    assert (said(result), result.verdict) == ((Outcome.SKIPPED, "broke"), Verdict.SKIP)
    assert not blame.suspects


def test_a_suspect_is_not_taken_where_it_broke_a_worker_so_long_as_there_is_elsewhere() -> None:
    blame = Blame(JOB)
    blame.strike(FIRST, casualty(Cause.CRASHED), "n0", fresh=True)
    assert blame.take_suspect("n0", elsewhere=True) is None
    assert blame.take_suspect("n1", elsewhere=True) == FIRST
    assert blame.take_suspect("n1", elsewhere=True) is None


def test_another_suspect_is_taken_instead() -> None:
    blame = Blame(JOB)
    blame.strike(FIRST, casualty(Cause.CRASHED), "n0", fresh=True)
    blame.strike(SECOND, casualty(Cause.CRASHED, 1), "n1", fresh=True)
    assert blame.take_suspect("n0", elsewhere=True) == SECOND


def test_where_it_broke_one_last_is_what_counts() -> None:
    blame = Blame(JOB)
    for place in ("n0", "n1"):
        blame.strike(FIRST, casualty(Cause.CRASHED), place, fresh=False)
        blame.suspects.clear()
    blame.suspects.append(FIRST)
    assert blame.take_suspect("n1", elsewhere=True) is None
    assert blame.take_suspect("n0", elsewhere=True) == FIRST
