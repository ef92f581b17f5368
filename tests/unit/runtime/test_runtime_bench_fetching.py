"""Which busy bench workers are sent a second transfer, and what is in flight when one is gone."""

import pytest
from mock_pool import make_tasks
from test_runtime_bench_stage import LONG_S, SHORT_S, hand_out, stage, transfer

pytestmark = pytest.mark.unit


# Less than 0.2 s is short. Both transfers must be, where all workers are on the transfer's machine.
@pytest.mark.parametrize(
    ("first_s", "second_s", "is_sent"),
    [
        (0.19, 0.19, True),
        (0.2, 0.19, False),
        (0.19, 0.2, False),
        (LONG_S, SHORT_S, False),
        (SHORT_S, LONG_S, False),
    ],
)
def test_a_short_transfer_is_sent_behind_a_short_one(
    first_s: float, second_s: float, is_sent: bool
) -> None:
    made = stage(["m0", "m0"])
    busy = [transfer(ticket, bench_s=first_s) for ticket in (1, 2)]
    assert hand_out(made, *busy) == ["b0", "b1"]
    assert hand_out(made, transfer(3, bench_s=second_s)) == (["b0"] if is_sent else [])


def test_a_transfer_is_fetched_from_another_machine_meanwhile_also_when_workers_are_gone() -> None:
    made = stage(["m0", "m0", "m1"])
    made.remove("b0")
    assert hand_out(made, transfer(1), transfer(2)) == ["b1", "b2"]
    # A long one, which b1 could not begin sooner: it is on the transfer's machine.
    assert hand_out(made, transfer(3)) == ["b2"]


def test_records_of_a_worker_that_is_gone_are_not_in_flight() -> None:
    made = stage(["m0"])
    hand_out(made, transfer(1, tasks=tuple(make_tasks([1.0] * 3))))
    assert made.in_flight == 3
    assert [len(lost.tasks) for lost in made.lose("b0").values()] == [3]
    assert made.in_flight == 0
