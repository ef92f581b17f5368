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
    uneven_ends,
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


def test_messages_with_numbers_meet_by_these_and_one_without_meets_nobody(tmp_path: Path) -> None:
    peer = {"type": "int", "value": 1}
    records = {f"Distributed.send.{n}.forward": _sent(_group(0, 1), peer) for n in range(3)}
    records["Distributed.send.0.forward"]["sequence"] = 7
    records["Distributed.send.2.forward"]["sequence"] = 9
    found = list(_meetings(tmp_path, records).values())
    assert [each.name_on(0) for each in found] == [
        "from 0 to 1#7",
        "from 0 to 1#0, known on rank 0 alone",
        "from 0 to 1#9",
    ]
    assert [each.unpaired for each in found] == [False, True, False]


def test_messages_without_numbers_that_are_not_as_many_at_both_ends_do_not_meet() -> None:
    first, second = Meeting("send", "0-1", 0, 1), Meeting("isend", "0-1", 1, 1)
    got = Meeting("recv", "0-1", 0, 0)
    assert uneven_ends([(0, first), (1, got)]) == frozenset()
    assert uneven_ends([(0, first), (0, second), (1, got)]) == {((0, 1), "0-1")}
    assert uneven_ends([(0, first._replace(from_start=True))]) == frozenset()


def test_functional_collectives_are_counted_apart_from_those_of_their_names(tmp_path: Path) -> None:
    found = _meetings(
        tmp_path,
        {
            "Distributed.all_reduce.0.forward": _sent(_group(0, 1)),
            "Distributed.functional.all_reduce.0.forward": _sent(_group(0, 1)),
        },
    )
    assert [each.name_on(0) for each in found.values()] == [
        "all_reduce#0 in 0-1",
        "functional.all_reduce#0 in 0-1",
    ]


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


def test_what_a_broadcast_of_several_tensors_writes_over_is_told_of_each() -> None:
    got, gave = [[tensor(1.0), tensor(2.0)]], [[tensor(3.0), tensor(2.0)]]
    assert overwritten(record("Distributed.ddp_broadcast.0.forward", got, gave)) == ("input.0.0",)


def test_ranks_are_named_as_ranges() -> None:
    assert ranges_of([7, 0, 1, 2, 9]) == "0-2,7,9"
    assert ranks_in("0-2,7,9") == (0, 1, 2, 7, 9)
    assert ranks_in("tp_group") == ()
