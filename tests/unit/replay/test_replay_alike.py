"""Which calls are alike, so that one of them is checked for all."""

import json
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_precheck.dump.parse import open_dump
from ray_precheck.replay import planner
from ray_precheck.replay.planner import AlikeCalls, Plan, plan_tasks
from ray_precheck.schema.result import Outcome, Verdict

pytestmark = pytest.mark.unit

TENSOR = {
    "type": "torch.Tensor",
    "dtype": "torch.float32",
    "shape": [2, 3],
    "Max": 1.5,
    "Min": -1.5,
    "Mean": 0.25,
    "Norm": 2.0,
    "requires_grad": True,
    "md5": "0a1b2c3d",
    "data_name": "Torch.cat.0.forward.input.0.pt",
}
FORWARD: dict[str, Any] = {
    "input_args": [[TENSOR, TENSOR], {"type": "int", "value": 1}, None, {"a": [TENSOR, 7]}],
    "input_kwargs": {"dim": {"type": "float", "value": 0.5}, "out": TENSOR},
    "output": [TENSOR],
}
BACKWARD: dict[str, Any] = {"input": [TENSOR], "output": [TENSOR, None]}
FIRST = "Torch.cat.0"


def changed(record: dict[str, Any], *path: str | int, to: Any) -> dict[str, Any]:
    """Return a copy of a record with another value at a path; a new key is added."""
    copy: dict[str, Any] = json.loads(json.dumps(record))
    place: Any = copy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return copy


def raw(record: Any, indent: int | None = None) -> bytes:
    return json.dumps(record, indent=indent).encode()


def are_alike(
    forward: dict[str, Any],
    backward: dict[str, Any] | None = BACKWARD,
    name: str = "Torch.cat.1",
    indent: int | None = None,
) -> bool:
    """Return whether a call with these records is alike the first one."""
    calls = AlikeCalls()
    assert calls.reason(FIRST, raw(FORWARD, indent), raw(BACKWARD, indent)) == ""
    behind = None if backward is None else raw(backward, indent)
    return bool(calls.reason(name, raw(forward, indent), behind))


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Max", 9.0),
        ("Max", float("inf")),
        ("Min", float("-inf")),
        ("Mean", float("nan")),
        ("Mean", None),
        ("Norm", 1e-30),
        ("md5", "ffffffff"),
        ("data_name", "Torch.cat.1.forward.input.0.pt"),
        ("data_name", 'odd "name".pt'),
        ("Max_except_inf_nan", 3.0),
    ],
)
def test_what_a_tensor_held_does_not_tell_calls_apart(
    key: str, value: Any, indent: int | None
) -> None:
    for path in [("input_args", 0, 1), ("input_args", 3, "a", 0), ("input_kwargs", "out")]:
        assert are_alike(changed(FORWARD, *path, key, to=value), indent=indent)
    assert are_alike(FORWARD, changed(BACKWARD, "output", 0, key, to=value), indent=indent)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "place",
    [
        {"stack": "3"},
        {"parent": "Module.layers.0.Block.forward.0"},
        {"stack": "3", "parent": 'Module."é".forward.0'},
        {"recompute": "Torch.cat.0.forward", "stack": "12", "parent": "Module.a.forward.0"},
    ],
)
def test_where_a_call_was_made_does_not_tell_calls_apart(
    place: dict[str, Any], indent: int | None
) -> None:
    assert are_alike(FORWARD | place, BACKWARD | place, indent=indent)


@pytest.mark.parametrize("key", ["stack", "parent", "recompute"])
def test_an_argument_that_is_named_like_a_place_is_a_value(key: str) -> None:
    assert not are_alike(changed(FORWARD, "input_kwargs", key, to={"type": "int", "value": 1}))
    assert not are_alike(changed(FORWARD, "input_args", 3, key, to=1))


def test_records_of_many_places_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    whole = planner._digest_of_values

    def counted(record: bytes) -> bytes | None:
        decoded.append(record)
        return whole(record)

    monkeypatch.setattr(planner, "_digest_of_values", counted)
    calls = AlikeCalls()
    for number in range(100):
        place = {"stack": str(number), "parent": f"Module.layers.{number}.Block.forward.0"}
        calls.reason(f"Torch.cat.{number}", raw(FORWARD | place), None)
    assert len(decoded) == 1


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "torch.float16"),
        ("shape", [3, 2]),
        ("shape", []),
        ("type", "torch.nn.parameter.Parameter"),
        ("requires_grad", False),
    ],
)
def test_what_a_tensor_is_tells_calls_apart(key: str, value: Any, indent: int | None) -> None:
    for path in [("input_args", 0, 1), ("input_args", 3, "a", 0), ("input_kwargs", "out")]:
        assert not are_alike(changed(FORWARD, *path, key, to=value), indent=indent)
    assert not are_alike(FORWARD, changed(BACKWARD, "output", 0, key, to=value), indent=indent)


@pytest.mark.parametrize(
    "forward",
    [
        changed(FORWARD, "input_args", 1, "value", to=2),
        changed(FORWARD, "input_args", 1, "value", to=1.0),
        changed(FORWARD, "input_args", 1, "value", to=True),
        changed(FORWARD, "input_args", 1, "type", to="numpy.int64"),
        changed(FORWARD, "input_args", 2, to=0),
        changed(FORWARD, "input_args", 3, "a", 1, to=8),
        changed(FORWARD, "input_args", 3, "b", to=None),
        changed(FORWARD, "input_args", 0, to=[TENSOR]),
        changed(FORWARD, "input_kwargs", "dim", "value", to=float("nan")),
        changed(FORWARD, "input_kwargs", "axis", to=None),
        changed(FORWARD, "input_kwargs", to={"axis": FORWARD["input_kwargs"]["dim"]}),
        changed(FORWARD, "output", to=[TENSOR, TENSOR]),
    ],
)
def test_scalars_nested_ones_too_and_keywords_tell_calls_apart(forward: dict[str, Any]) -> None:
    assert not are_alike(forward)


def test_a_keyword_that_is_named_like_a_statistic_is_a_value() -> None:
    def call(value: Any) -> bytes:
        return raw(changed(FORWARD, "input_args", 3, to={"Max": value, "Norm": 2.0}))

    calls = AlikeCalls()
    assert calls.reason(FIRST, call(1.0), None) == ""
    assert calls.reason("Torch.cat.1", call(2.0), None) == ""
    assert calls.reason("Torch.cat.2", call(2.0), None) != ""


def test_a_text_that_looks_like_a_tensor_is_a_value() -> None:
    def call(largest: float) -> bytes:
        text = json.dumps({**TENSOR, "Max": largest})
        return raw(changed(FORWARD, "input_args", 1, to={"type": "str", "value": text}))

    calls = AlikeCalls()
    assert calls.reason(FIRST, call(1.0), None) == ""
    assert calls.reason("Torch.cat.1", call(2.0), None) == ""


def test_with_and_without_a_backward_record_calls_are_not_alike() -> None:
    assert are_alike(FORWARD, BACKWARD)
    assert not are_alike(FORWARD, None)


def test_calls_of_another_api_are_not_alike() -> None:
    assert not are_alike(FORWARD, name="Torch.concat.1")
    assert not are_alike(FORWARD, name="Tensor.cat.1")


def test_members_in_another_order_are_alike() -> None:
    tensor = dict(reversed(TENSOR.items()))
    assert are_alike(changed(FORWARD, "output", 0, to={**tensor, "Max": 7.0}))


def test_arguments_by_keyword_may_be_in_another_order() -> None:
    keywords = dict(reversed(FORWARD["input_kwargs"].items()))
    assert are_alike(changed(FORWARD, "input_kwargs", to=keywords))


@pytest.mark.parametrize("record", [b"{", b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"nan"])
def test_what_is_no_json_is_like_no_other(record: bytes) -> None:
    calls = AlikeCalls()
    assert calls.reason(FIRST, record, None) == ""
    assert calls.reason("Torch.cat.1", record, None) == ""
    assert calls.reason("Torch.cat.2", raw(FORWARD), record) == ""
    assert calls.reason("Torch.cat.3", raw(FORWARD), record) == ""


@given(
    st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(
                    st.sampled_from(["type", "dtype", "shape", "Max", "\ud800", "value"]), inner
                ),
            ),
        ).map(raw),
    )
)
@settings(max_examples=300, deadline=None)
def test_any_record_is_alike_itself_or_none(record: bytes) -> None:
    calls = AlikeCalls()
    assert calls.reason(FIRST, record, record) == ""
    is_json = True
    try:
        json.loads(record)
    except ValueError:
        is_json = False
    assert bool(calls.reason("Torch.cat.1", record, record)) == is_json


def test_a_record_of_megabytes_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_LARGEST_BYTES", len(raw(FORWARD)))
    assert are_alike(FORWARD)
    monkeypatch.setattr(planner, "_LARGEST_BYTES", len(raw(FORWARD)) - 1)
    assert not are_alike(FORWARD)


def test_a_forgotten_record_is_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_MOST_RECORDS", 1)
    assert are_alike(changed(FORWARD, "output", 0, "Max", to=3.0))


def test_a_record_that_never_becomes_a_tensor_is_gone_through_once() -> None:
    # Quadratic in any of these, the test would run for hours and be ended.
    for filler in (
        b'"Max": 1, ',
        b'{"type": "t", ',
        b" ",
        b'{"type":"t","dtype":"d","shape":[',
        b"{",
    ):
        record = b'{"type": "t", "dtype": "d", "shape": [1], ' + filler * (2**19 // len(filler))
        assert AlikeCalls().reason(FIRST, record, None) == ""


def planned(folder: Path, data: dict[str, Any], done: Set[str] = frozenset()) -> Plan:
    """Return the plan of a dump with alike calls filtered."""
    path = folder / "dump.json"
    path.write_text(json.dumps({"task": "tensor", "framework": "pytorch", "data": data}))
    with open_dump(path) as dump:
        return plan_tasks(dump, "pytorch", done, filter_alike=True)


def five(*numbers: int) -> dict[str, Any]:
    """Return a dump of five alike calls, and calls with these numbers that differ."""
    other = changed(FORWARD, "output", 0, "shape", to=[9])
    return {f"Torch.cat.{n}.forward": other if n in numbers else FORWARD for n in range(5)}


def test_the_first_call_is_planned_and_the_others_name_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, five(1, 3) | {"Torch.cat.4.backward": BACKWARD})
    assert sorted(task.name for task in plan.tasks) == ["Torch.cat.0", "Torch.cat.1", "Torch.cat.4"]
    assert [(skip.index, skip.name, skip.message) for skip in plan.skipped] == [
        (2, "Torch.cat.2", message("Torch.cat.0")),
        (3, "Torch.cat.3", message("Torch.cat.1")),
    ]
    assert {(skip.outcome, skip.forward, skip.backward) for skip in plan.skipped} == {
        (Outcome.SKIPPED, Verdict.SKIP, Verdict.NONE)
    }


def message(first: str) -> str:
    return (
        f"not run: {first}, alike in name, shapes, dtypes and scalars, was checked (--filter_api)"
    )


def test_a_skipped_call_with_a_backward_record_has_a_backward_cell(tmp_path: Path) -> None:
    data = {f"Torch.cat.{n}.forward": FORWARD for n in range(2)}
    data |= {f"Torch.cat.{n}.backward": BACKWARD for n in range(2)}
    assert [skip.backward for skip in planned(tmp_path, data).skipped] == [Verdict.SKIP]


def test_a_done_call_is_not_run_again_and_still_stands_for_the_others(tmp_path: Path) -> None:
    plan = planned(tmp_path, five(), done={"Torch.cat.0", "Torch.cat.3"})
    assert plan.tasks == ()
    assert [(skip.name, skip.message) for skip in plan.skipped] == [
        (name, message("Torch.cat.0")) for name in ("Torch.cat.1", "Torch.cat.2", "Torch.cat.4")
    ]


def test_a_done_call_that_is_not_the_first_leaves_the_first_to_be_checked(tmp_path: Path) -> None:
    plan = planned(tmp_path, five(), done={"Torch.cat.2"})
    assert [task.name for task in plan.tasks] == ["Torch.cat.0"]
    assert [skip.name for skip in plan.skipped] == ["Torch.cat.1", "Torch.cat.3", "Torch.cat.4"]


def test_calls_that_are_skipped_by_name_stand_for_no_other(tmp_path: Path) -> None:
    data = {f"Distributed.all_reduce.{n}.forward": FORWARD for n in range(2)}
    plan = planned(tmp_path, data, done={"Distributed.all_reduce.0"})
    assert [(skip.name, "other ranks" in skip.message) for skip in plan.skipped] == [
        ("Distributed.all_reduce.1", True)
    ]


def test_without_the_choice_every_call_is_planned(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"task": "statistics", "framework": "pytorch", "data": five()}))
    with open_dump(path) as dump:
        assert len(plan_tasks(dump, "pytorch", frozenset()).tasks) == 5


def test_records_are_decoded_once_and_so_many_are_kept_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []
    whole = planner._digest_of_values

    def counted(record: bytes) -> bytes | None:
        decoded.append(record)
        return whole(record)

    monkeypatch.setattr(planner, "_digest_of_values", counted)
    monkeypatch.setattr(planner, "_MOST_RECORDS", 3)
    calls = AlikeCalls()
    records = [b'{"n": %d}' % number for number in range(4)]
    for number in (0, 1, 2, 0, 1, 2, 3):
        calls.reason(f"Torch.add.{number}", records[number], None)
    assert decoded == records
    calls.reason("Torch.add.8", records[0], None)
    assert len(decoded) == 5
