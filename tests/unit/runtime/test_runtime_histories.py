"""Simulated histories: none breaks a rule, and each of many planted faults is found by one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from bench_faults import (
    BENCH_FAULTS,
    let_the_quarantined_wait_behind_the_next_batch,
    send_what_a_lost_bench_waited_for,
    wait_for_benches_that_are_given_up,
)
from driver_faults import DRIVER_FAULTS
from history_faults import (
    FAULTS,
    begin_what_is_behind_a_crash,
    blame_while_draining,
    forget_the_rest,
    keep_the_promise_of_a_lost_slot,
    leave_the_order,
    reopen_without_repair,
    wait_for_a_lost_slot,
    write_the_result_first,
)

from scripts.histories import search as histories

pytestmark = pytest.mark.unit

# Faults that take thousands of histories to be found.
RARE = (
    begin_what_is_behind_a_crash,
    blame_while_draining,
    keep_the_promise_of_a_lost_slot,
    let_the_quarantined_wait_behind_the_next_batch,
    reopen_without_repair,
    send_what_a_lost_bench_waited_for,
    wait_for_a_lost_slot,
    wait_for_benches_that_are_given_up,
    write_the_result_first,
)
# A planted fault must be found within so many.
MOST_TO_FIND = 10_000


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.exhaustive)])
def test_hundreds_of_histories_break_no_rule(count: int) -> None:
    failures = histories.check_seeds(0, count)
    assert not failures, str(failures[0])


def test_every_prefix_of_a_few_histories_can_be_gone_on_with() -> None:
    failures = histories.check_seeds(1, 3, every_prefix_of=1)
    assert not failures, str(failures[0])


def test_a_seed_is_always_the_same_history() -> None:
    with histories.workplace() as (folder, disk):
        for seed in range(50):
            first, second = histories.Drawn(seed), histories.Drawn(seed)
            histories.run_history(first, folder, disk)
            histories.run_history(second, folder, disk)
            again = histories.Given(first.taken)
            histories.run_history(again, folder, disk)
            assert first.taken == second.taken == again.taken


def test_no_choices_at_all_are_a_history_too() -> None:
    with histories.workplace() as (folder, disk):
        assert histories.run_history(histories.Given([]), folder, disk) == ""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.exhaustive if fault in RARE else ())
        for fault in (*FAULTS, *BENCH_FAULTS, *DRIVER_FAULTS)
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_planted_fault_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    # To make a history smaller takes longer than to find it; that has a test below.
    monkeypatch.setattr(histories, "shrink", lambda choices, *_, **options: choices)
    (failure,) = histories.check_seeds(0, MOST_TO_FIND)
    assert failure.error
    assert f"--count 1 --seed {failure.seed}" in str(failure)


def test_a_failing_history_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_the_rest(monkeypatch)
    with histories.workplace() as (folder, disk):
        for seed in range(20):
            drawn = histories.Drawn(seed)
            if histories.run_history(drawn, folder, disk):
                smallest = histories.shrink(drawn.taken, folder, disk)
                assert histories.run_history(histories.Given(smallest), folder, disk)
                assert len(smallest) < 25
                assert sum(smallest) < 30
    (failure,) = histories.check_seeds(0, MOST_TO_FIND)
    # Nothing but a record that breaks its worker, and one after it.
    assert failure.error == "Broken: never settled: [1]"
    assert len(failure.trace) < 14


def test_the_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert histories.main(["--count", "30", "--seed", "5"]) == 0
    assert capsys.readouterr().out.startswith("30 histories from seed 5: no rule is broken (")


def test_and_fails_with_the_history(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "ProcessPoolExecutor", lambda jobs: ThreadPoolExecutor(jobs))
    leave_the_order(monkeypatch)
    assert histories.main(["--count", "50"]) == 1
    assert "the files are not in the order of the dump" in capsys.readouterr().out
