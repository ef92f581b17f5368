"""What a comparison says of collectives and updates beside their values."""

import json
from typing import Any

import pytest

from ray_precheck.commands.compare.told import asked_of_both, of_one_run

pytestmark = pytest.mark.unit
REDUCE = "Distributed.all_reduce.7.forward"


def _raw(key: str, **fields: Any) -> tuple[tuple[str, bytes], ...]:
    record = {"input_args": [], "input_kwargs": {}, "output": [], **fields}
    return ((key, json.dumps(record).encode()),)


def _group(*ranks: int) -> dict[str, Any]:
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks)}


def _operation(name: str) -> dict[str, Any]:
    return {"op": {"type": "torch.distributed.ReduceOp", "value": f"RedOpType.{name}"}}


def test_a_collective_of_one_run_is_named_with_its_group_and_module() -> None:
    raw = _raw(REDUCE, group=_group(0, 1))
    assert of_one_run((), raw, "Module.module.layers.0.o.Linear.forward.0") == (
        "the golden run has Distributed.all_reduce.7 (group 0-1, in layers.0.o) here; the target has none"
    )
    assert of_one_run(raw, (), "").endswith("(group 0-1) here; the golden run has none")
    assert of_one_run((), _raw("Optimizer.AdamW.0.forward"), "") == (
        "the golden run has Optimizer.AdamW.0 here; the target has none"
    )
    assert of_one_run((), _raw("Torch.add.0.forward"), "") == ""


@pytest.mark.parametrize(
    ("mine", "other", "said"),
    [
        ({"group": _group(0, 2)}, {"group": _group(0, 1)}, "it ran in group 0,2 (golden: group 0-1)"),
        (
            {"input_kwargs": _operation("AVG")}, {},
            "it averages where that of the golden run sums (AVG for SUM)",
        ),
        ({"input_kwargs": _operation("SUM")}, {}, ""),
    ],
)  # fmt: skip
def test_what_two_collectives_were_asked_is_compared(
    mine: dict[str, Any], other: dict[str, Any], said: str
) -> None:
    group = {"group": _group(0, 1)}
    assert asked_of_both(_raw(REDUCE, **group | mine), _raw(REDUCE, **group | other)) == said


def test_a_message_to_another_rank_is_told() -> None:
    args = [[{"type": "T"}, {"type": "int", "value": rank}] for rank in (3, 2)]
    group = _group(0, 1, 2, 3)
    ours, theirs = (_raw("Distributed.send.0.forward", input_args=a, group=group) for a in args)
    assert asked_of_both(ours, theirs) == "it goes to rank 3 (golden: to rank 2)"
