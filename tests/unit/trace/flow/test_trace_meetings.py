"""Which records of several ranks are one collective."""

import json
from pathlib import Path
from typing import Any

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.flow import (
    Meeting,
    meetings_of,
    overwritten,
    ranks_in,
)
from ray_precheck.trace.side import open_side
from tests.unit.commands.locate.run_records import record, tensor


def _group(*ranks: int) -> dict[str, Any]:
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": "x"}


def _meetings(folder: Path, records: dict[str, Any]) -> dict[str, Meeting]:
    (folder / "dump.json").write_text(json.dumps({"framework": "pytorch", "data": records}))
    with open_side(folder / "dump.json") as side:
        return meetings_of(side)


def _sent(group: dict[str, Any], *more: Any) -> dict[str, Any]:
    args = [tensor(1.0), *more]
    return {"input_args": args, "input_kwargs": {}, "output": args, "group": group}


def test_calls_are_counted_for_each_operation_in_each_group(tmp_path: Path) -> None:
    found = _meetings(
        tmp_path,
        {
            "Distributed.all_reduce.0.forward": _sent(_group(0, 1, 2, 3)),
            "Distributed.all_reduce.1.forward": _sent(_group(0, 2)),
            "Torch.add.0.forward": _sent(_group(0)),
            "Distributed.all_reduce.2.forward": _sent(_group(0, 1, 2, 3)),
        },
    )
    assert [(each.group, each.number) for each in found.values()] == [
        ("0-3", 0),
        ("0,2", 0),
        ("0-3", 1),
    ]
    assert found["Distributed.all_reduce.1.forward"].ranks == (0, 2)


def test_a_send_and_its_receive_have_one_name(tmp_path: Path) -> None:
    to = {"type": "int", "value": 3}
    sent = _meetings(tmp_path, {"Distributed.isend.0.forward": _sent(_group(1, 3), to)})
    sender = {"type": "int", "value": 1}
    received = _meetings(tmp_path, {"Distributed.recv.0.forward": _sent(_group(1, 3), sender)})
    (one,), (other,) = sent.values(), received.values()
    assert one.name_on(1) == other.name_on(3) == "from 1 to 3#0"


def test_a_group_of_mindspore_is_known_by_its_name(tmp_path: Path) -> None:
    named = {"group": {"type": "str", "value": "hccl_tp"}}
    raw = {"input_args": [tensor(1.0)], "input_kwargs": named, "output": [tensor(2.0)]}
    (found,) = _meetings(tmp_path, {"MintDistributed.all_reduce.0.forward": raw}).values()
    assert (found.group, found.ranks) == ("hccl_tp", ())


def test_what_a_broadcast_writes_over_means_nothing() -> None:
    key = "Distributed.broadcast.0.forward"
    assert overwritten(record(key, [tensor(1.0)], [tensor(2.0)])) == ("input.0",)
    assert overwritten(record(key, [tensor(2.0)], [tensor(2.0)])) == ()
    assert overwritten(record("Torch.relu.0.forward", [tensor(1.0)], [tensor(2.0)])) == ()


def test_ranks_are_named_as_ranges() -> None:
    assert ranges_of([7, 0, 1, 2, 9]) == "0-2,7,9"
    assert ranks_in("0-2,7,9") == (0, 1, 2, 7, 9)
    assert ranks_in("tp_group") == ()
