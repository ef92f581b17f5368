"""The verdict of a whole call, and the verdict that a cell holds."""

from itertools import product

import pytest

from ray_precheck.schema.result import Verdict, call_verdict, verdict_in

pytestmark = pytest.mark.unit

PASS, ERROR, SKIP, NONE = Verdict.PASS, Verdict.ERROR, Verdict.SKIP, Verdict.NONE


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        (PASS, NONE, PASS),
        (PASS, PASS, PASS),
        (PASS, SKIP, SKIP),
        (SKIP, PASS, SKIP),
        (SKIP, SKIP, SKIP),
        (SKIP, NONE, SKIP),
        (NONE, PASS, PASS),
        (NONE, NONE, SKIP),
    ],
)
def test_a_call_passes_where_something_was_compared_and_nothing_was_left_out(
    forward: Verdict, backward: Verdict, expected: Verdict
) -> None:
    assert call_verdict(forward, backward) is expected


@pytest.mark.parametrize("other", Verdict)
def test_a_call_is_in_error_where_either_direction_is(other: Verdict) -> None:
    assert call_verdict(ERROR, other) is ERROR
    assert call_verdict(other, ERROR) is ERROR


def test_every_pair_has_one_of_three_verdicts() -> None:
    found = {call_verdict(*pair) for pair in product(Verdict, repeat=2)}
    assert found == {PASS, ERROR, SKIP}


@pytest.mark.parametrize(
    ("cell", "expected"),
    [("pass", PASS), (" Error ", ERROR), ("skip", SKIP), ("SKIP", SKIP), ("Warning", PASS)],
)
def test_a_cell_is_read_whatever_its_case(cell: str, expected: Verdict) -> None:
    assert verdict_in(cell) is expected


@pytest.mark.parametrize("cell", ["", " ", "maybe"])
def test_an_empty_or_unknown_cell_holds_no_verdict(cell: str) -> None:
    assert verdict_in(cell) is NONE
