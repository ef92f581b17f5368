"""What is known of roots of a run that was put together of its ranks."""

from types import SimpleNamespace
from typing import Any

import pytest

from ray_precheck.commands.locate.plan import RunRecords
from ray_precheck.commands.locate.walk.nouns import Root, RootKind
from ray_precheck.commands.locate.whole import roots_of_whole
from ray_precheck.trace.items import UNORDERED
from ray_precheck.trace.side import FORWARD
from tests.unit.commands.locate.run_records import record, tensor, weight

pytestmark = pytest.mark.unit
MUL, LINEAR = "Tensor.__mul__.0.forward", "Functional.linear.0.forward"


def left(gathered: str, *, is_first_step: bool = True, moved: float = 0.0) -> list[Root]:
    """Return what is left of an estimate of a product that is off by 1e-3, where a weight has moved."""
    ours = [
        record(LINEAR, [tensor(1.0), {**weight(2.0), "parameter": "up.weight"}], [tensor(3.0)]),
        record(MUL, [tensor(4.0, gathered=gathered), tensor(5.0)], [tensor(6.0)]),
    ]
    by_key = {each.entry.key: each for each in ours}
    far = {(MUL, "output.0"): 1e-3, (LINEAR, "input.1"): moved}
    estimated: Any = SimpleNamespace(
        value=lambda key, item, _: SimpleNamespace(difference=far.get((key, item.path), 0.0))
    )
    run: Any = SimpleNamespace(records=by_key, partners={key: key for key in by_key})
    root = Root(RootKind.ESTIMATE, MUL, FORWARD, 1, "output.0", message="output.0 differs")
    return roots_of_whole(
        [root], RunRecords(ours, by_key), run, estimated, is_first_step=is_first_step
    )


def test_a_call_whose_inputs_show_no_order_may_be_right() -> None:
    assert "tokens that another call has put into another order" in left(UNORDERED)[0].message
    assert left("put together of ranks 0, 1")[0].message == "output.0 differs"


@pytest.mark.parametrize(
    ("gathered", "moved", "stays"),
    [("put together of ranks 0, 1", 1e-2, False), ("put together", 1e-4, True), ("", 1e-2, True)],
)
def test_an_estimate_from_parts_is_not_told_of_what_updates_have_moved(
    gathered: str, moved: float, stays: bool
) -> None:
    assert left(gathered, moved=moved)
    assert bool(left(gathered, is_first_step=False, moved=moved)) is stays
