"""What a result row says of its call."""

from pathlib import Path

import pytest

from ray_precheck.schema.result import MACHINE_REASONS, Verdict
from ray_precheck.store.results import ResultRow, count_verdicts, read_done
from ray_precheck.store.tables import RESULT_COLUMNS, header, remove_leftover

pytestmark = pytest.mark.unit

PASS, ERROR, SKIP = Verdict.PASS, Verdict.ERROR, Verdict.SKIP
RAISED = "the device raised where the bench is fine: RuntimeError"
WRONG = "forward.output.0: 3 of 8 elements differ"


@pytest.mark.parametrize(
    ("forward", "backward", "message", "forward_broke", "backward_broke", "broke"),
    [
        (PASS, PASS, "", False, False, False),
        (PASS, SKIP, RAISED, False, False, False),
        (PASS, PASS, f"backward: {RAISED}", False, False, False),
        (ERROR, SKIP, RAISED, True, False, True),
        (ERROR, SKIP, f"{MACHINE_REASONS[0]} of 1 attempt", True, False, True),
        (ERROR, SKIP, WRONG, False, False, False),
        (PASS, ERROR, f"backward: {RAISED}", False, True, True),
        (ERROR, ERROR, f"{WRONG}; backward: {RAISED}", False, True, False),
    ],
)
def test_a_direction_broke_where_it_is_in_error_and_nothing_was_compared(
    forward: Verdict,
    backward: Verdict,
    message: str,
    forward_broke: bool,
    backward_broke: bool,
    broke: bool,
) -> None:
    row = ResultRow("Torch.add.0", forward, backward, message)
    found = (row.forward_broke, row.backward_broke, row.broke)
    assert found == (forward_broke, backward_broke, broke)


def test_a_row_may_have_less_cells_and_a_row_of_blanks_is_none(tmp_path: Path) -> None:
    result = tmp_path / "result.csv"
    whole = b"Torch.mul.0,error,skip,"
    result.write_bytes(header(RESULT_COLUMNS) + b"Torch.add.0,pass\n\n,\n" + whole + b"\n")
    names = {"", "Torch.add.0", "Torch.mul.0"}
    assert read_done(result, names) == ({"Torch.add.0", "Torch.mul.0"}, {"Torch.add.0"})
    assert count_verdicts(result, names) == {PASS: 1, ERROR: 1}


def test_there_need_not_be_anything_left_over(tmp_path: Path) -> None:
    result = tmp_path / "result.csv"
    leftover = tmp_path / ".result.csv.tmp"
    leftover.touch()
    for _ in range(2):
        remove_leftover(result)
        assert not leftover.exists()
