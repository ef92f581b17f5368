"""From a dump to tasks."""

import json
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.dump.parse import open_dump
from ray_precheck.replay import planner
from ray_precheck.replay.planner import Plan, plan_tasks
from ray_precheck.schema.result import Outcome, Verdict

pytestmark = pytest.mark.unit


def forward(elements: int) -> dict[str, Any]:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [elements]}
    return {"input_args": [tensor], "input_kwargs": {}, "output": [tensor]}


def planned(folder: Path, data: dict[str, Any], done: Set[str] = frozenset()) -> Plan:
    path = folder / "dump.json"
    path.write_text(json.dumps({"task": "statistics", "framework": "pytorch", "data": data}))
    with open_dump(path) as dump:
        return plan_tasks(dump, "pytorch", done)


def test_costly_calls_come_first_and_ties_in_dump_order(tmp_path: Path) -> None:
    data = {
        "Torch.add.0.forward": forward(10),
        "Torch.mul.0.forward": forward(10**7),
        "Torch.sub.0.forward": forward(10),
        "Torch.div.0.forward": forward(10**6),
        "Torch.abs.0.forward": forward(10),
    }
    plan = planned(tmp_path, data)
    assert [task.name for task in plan.tasks] == [
        "Torch.mul.0",
        "Torch.div.0",
        "Torch.add.0",
        "Torch.sub.0",
        "Torch.abs.0",
    ]
    assert [task.index for task in plan.tasks] == [1, 3, 0, 2, 4]
    assert [task.cost_s for task in plan.tasks] == sorted(
        (task.cost_s for task in plan.tasks), reverse=True
    )
    assert plan.skipped == ()


def test_the_backward_record_counts_for_the_cost(tmp_path: Path) -> None:
    data = {
        "Torch.add.0.forward": forward(10),
        "Torch.mul.0.forward": forward(10),
        "Torch.mul.0.backward": {"input": [], "output": []},
    }
    assert [task.name for task in planned(tmp_path, data).tasks] == ["Torch.mul.0", "Torch.add.0"]


def test_calls_with_a_result_are_not_planned_again(tmp_path: Path) -> None:
    data = {f"Torch.add.{i}.forward": forward(10) for i in range(4)}
    data["Distributed.all_reduce.0.forward"] = forward(10)
    done = {"Torch.add.1", "Torch.add.3", "Distributed.all_reduce.0", "Torch.unknown.0"}
    plan = planned(tmp_path, data, done)
    assert [(task.index, task.name) for task in plan.tasks] == [
        (0, "Torch.add.0"),
        (2, "Torch.add.2"),
    ]
    assert plan.skipped == ()


def test_every_call_of_the_dump_is_a_task_or_skipped_with_a_reason(tmp_path: Path) -> None:
    data = {
        "Module.fc.Linear.forward.0": {},
        "Torch.add.0.forward": forward(10),
        "Distributed.all_reduce.0.forward": forward(10),
        "Mint.add.0.forward": forward(10),
        "Torch.mul.0.backward": {"input": [], "output": []},
        "strange": {},
        "Module.fc.parameters_grad": {},
    }
    plan = planned(tmp_path, data)
    assert [task.index for task in plan.tasks] == [0]
    assert [(skip.index, skip.name) for skip in plan.skipped] == [
        (1, "Distributed.all_reduce.0"),
        (2, "Mint.add.0"),
        (3, "Torch.mul.0"),
        (4, "strange"),
    ]
    says = ["other ranks", "prefix Mint", "no forward record", "does not end"]
    for skip, expected in zip(plan.skipped, says, strict=True):
        assert expected in skip.message
        assert (skip.outcome, skip.forward) == (Outcome.SKIPPED, Verdict.SKIP)


def test_a_skipped_call_has_a_backward_cell_where_it_has_a_backward_record(tmp_path: Path) -> None:
    data = {
        "Distributed.add.0.forward": forward(10),
        "Distributed.mul.0.forward": forward(10),
        "Distributed.mul.0.backward": {"input": []},
    }
    assert [skip.backward for skip in planned(tmp_path, data).skipped] == [
        Verdict.NONE,
        Verdict.SKIP,
    ]


def test_broken_records_are_planned_and_left_to_the_worker(tmp_path: Path) -> None:
    data: dict[str, Any] = {"Torch.add.0.forward": 5, "Torch.mul.0.forward": {"shape": [-1, "x"]}}
    assert len(planned(tmp_path, data).tasks) == 2


def test_progress_is_told_in_calls_done_ones_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "_CALLS_A_REPORT", 2)
    path = tmp_path / "dump.json"
    data = {f"Torch.add.{n}.forward": forward(10) for n in range(5)}
    path.write_text(json.dumps({"framework": "pytorch", "data": data}))
    told: list[tuple[int, int]] = []
    with open_dump(path) as dump:
        plan_tasks(dump, "pytorch", {"Torch.add.2"}, on_progress=lambda *now: told.append(now))
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]


def test_backward_records_in_reverse_order_are_those_of_their_calls(tmp_path: Path) -> None:
    data = {f"Torch.add.{n}.forward": forward(10) for n in range(3)}
    sizes = {0: 10**5, 1: 10**7, 2: 10**6}
    data |= {
        f"Torch.add.{n}.backward": {"input": forward(sizes[n])["output"], "output": []}
        for n in (2, 1, 0)
    }
    assert [task.index for task in planned(tmp_path, data).tasks] == [1, 2, 0]


@pytest.mark.parametrize(("room", "is_planned"), [(0, True), (-1, False)])
def test_a_record_may_be_as_large_as_is_read(
    tmp_path: Path, room: int, is_planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"Torch.add.0.forward": forward(10)}
    planned(tmp_path, data)
    with open_dump(tmp_path / "dump.json") as dump:
        span = dump.calls[0].forward
    assert span is not None
    monkeypatch.setattr(planner, "LARGEST_RECORD_BYTES", span.end - span.start + room)
    plan = planned(tmp_path, data)
    assert (len(plan.tasks), len(plan.skipped)) == (is_planned, not is_planned)
