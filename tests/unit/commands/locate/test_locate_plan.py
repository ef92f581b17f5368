"""What a search knows of a call before it walks: whether its arguments let it draw random numbers."""

import sys
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.plan import drawing_calls, plan_location
from ray_precheck.commands.locate.search import located_in
from ray_precheck.commands.locate.walk.nouns import RootKind
from ray_precheck.trace.side import open_side

sys.path.append(str(Path(__file__).parents[2] / "trace"))
from tests.unit.trace.overflow_records import backward, forward, number, tensor, write_dump

pytestmark = pytest.mark.unit
ATTENTION = "Functional.scaled_dot_product_attention.0"


def attended(dropout: float, top: float = 2.0) -> dict[str, Any]:
    """Return the record of an attention whose output has this largest value."""
    queries = [tensor(shape=(1, 2, 4, 8))] * 3
    return forward(
        queries, [tensor(top, shape=(1, 2, 4, 8))], input_kwargs={"dropout_p": number(dropout)}
    )


@pytest.mark.parametrize(("dropout", "draws"), [(0.0, False), (0.1, True)])
def test_attention_draws_where_its_dropout_says_so(
    tmp_path: Path, dropout: float, draws: bool
) -> None:
    records = {
        f"{ATTENTION}.forward": attended(dropout),
        f"{ATTENTION}.backward": backward([tensor()], [tensor()]),
        "Functional.dropout.1.backward": backward([tensor()], [tensor()]),
        "Torch.rand.2.forward": forward([], [tensor()]),
        "Torch.add.3.forward": forward([tensor()], [tensor()]),
        "Functional.dropout.4.forward": forward([{"type": "torch.Tensor", "shape": 3}], [tensor()]),
    }
    with open_side(write_dump(tmp_path, records)) as side:
        found = drawing_calls(side)
        assert found(ATTENTION) == draws
        # Its forward record is not there, or cannot be read: it may draw.
        assert found("Functional.dropout.1")
        assert found("Functional.dropout.4")
        assert found("Torch.rand.2")
        assert not found("Torch.add.3")
        assert not found("Torch.no_such_operator.5")


@pytest.mark.parametrize(("dropout", "kind"), [(0.0, RootKind.ESTIMATE), (0.1, RootKind.MASK)])
def test_an_attention_without_dropout_is_not_excused_by_another_mask(
    tmp_path: Path, dropout: float, kind: RootKind
) -> None:
    target, golden = (
        write_dump(tmp_path / side, {f"{ATTENTION}.forward": attended(dropout, top)})
        for side, top in (("target", 3.0), ("golden", 2.0))
    )
    with open_side(target) as ours, open_side(golden) as theirs:
        plan = plan_location(ours, theirs, SearchOptions())
        located = located_in(ours, theirs, plan, None, is_first_step=True)
    assert [(root.kind, root.key) for root in located.roots] == [(kind, f"{ATTENTION}.forward")]
