"""What a result row says of its call."""

import pytest

from ray_precheck.schema.result import MACHINE_REASONS, Verdict
from ray_precheck.store.done import ResultRow

pytestmark = pytest.mark.unit

PASS, ERROR, SKIP = Verdict.PASS, Verdict.ERROR, Verdict.SKIP
RAISED = "the device raised where the bench is fine: RuntimeError"
WRONG = "forward.output.0: 3 of 8 elements differ"


@pytest.mark.parametrize(
    ("forward", "backward", "message", "forward_broke", "backward_broke", "broke"),
    [
        (PASS, PASS, "", False, False, False),
        (PASS, SKIP, RAISED, False, False, False),
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
