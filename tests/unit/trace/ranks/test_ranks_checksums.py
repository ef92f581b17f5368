"""The checksums of records do not depend on how the dump was read, nor on what honest ranks differ in."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.trace.forms import open_formed
from ray_precheck.trace.ranks.checksums import RecordSums, record_sums
from ray_precheck.trace.side import open_side
from scripts.measuring import CAPTURES

pytestmark = pytest.mark.unit


def tensor(high: float, **more: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": high,
        "Min": 0.5,
        **more,
    }


def one_record() -> dict[str, Any]:
    return {
        "input_args": [tensor(1.5, data_name="a.pt", sketch=0), {"type": "float", "value": 0.25}],
        "input_kwargs": {"device": {"type": "torch.device", "value": "cuda:0"}},
        "generator": "12ab",
        "output": [tensor(2.5, device="npu:1")],
        "stack": "3",
    }  # fmt: skip


def sums_of(path: Path, *, by_form: bool = True) -> RecordSums:
    side = open_formed(path) if by_form else open_side(path)
    assert side is not None
    with side:
        return record_sums(side, lambda entry, raw: False, lambda number: number + 7)


def told(sums: RecordSums) -> list[list[int]]:
    return [array.tolist() for array in sums[:3]]


def record_told(folder: Path, record: Any) -> tuple[int, ...]:
    path = folder / "dump.json"
    path.write_text(json.dumps({"data": {"Functional.f.0.forward": record}}), encoding="utf-8")
    both = (told(sums_of(path)), told(sums_of(path, by_form=False)))
    assert both[0] == both[1]
    return tuple(value for (value,) in both[0])


def test_what_honest_ranks_differ_in_is_left_out(tmp_path: Path) -> None:
    other = one_record()
    other["input_args"][0]["data_name"] = "longer.pt"
    other["input_kwargs"]["device"]["value"] = "cuda:13"
    other["output"][0]["device"] = "npu:0"
    other |= {"generator": "ff", "stack": "17"}
    assert record_told(tmp_path, other) == record_told(tmp_path, one_record())


@pytest.mark.parametrize(
    ("path", "value", "changed"),
    [
        (("input_args", 0, "Max"), 1.5000000000000002, (True, False, False)),
        (("input_args", 0, "Max"), 0.5, (True, False, False)),
        (("input_args", 0, "Max"), None, (True, False, False)),
        (("input_args", 0, "sketch"), 1, (True, False, False)),
        (("input_args", 0, "shape"), [3], (True, False, False)),
        (("input_args", 1, "value"), 0.5, (True, False, True)),
        (("input_kwargs", "device", "value"), "cpu", (True, False, False)),
        (("output", 0, "Min"), 2.5, (False, True, False)),
        (("output", 0, "dtype"), "torch.float16", (False, True, False)),
    ],
)
def test_what_counts_changes_the_part_that_it_stands_in(
    tmp_path: Path, path: tuple[Any, ...], value: Any, changed: tuple[bool, ...]
) -> None:
    before, other = record_told(tmp_path, one_record()), one_record()
    *way, last = path
    inner: Any = other
    for each in way:
        inner = inner[each]
    inner[last] = value
    after = record_told(tmp_path, other)
    assert tuple(one != two for one, two in zip(before, after, strict=True)) == changed


def test_values_that_changed_places_are_others(tmp_path: Path) -> None:
    one, other = one_record(), one_record()
    element = other["input_args"][0]
    element["Max"], element["Min"] = element["Min"], element["Max"]
    assert record_told(tmp_path, one)[0] != record_told(tmp_path, other)[0]


@pytest.mark.parametrize("name", ["torch_llm", "torch_cnn", "mindspore_llm_fp16"])
def test_records_of_a_log_have_the_checksums_of_a_dump(tmp_path: Path, name: str) -> None:
    path = CAPTURES / name / "dump.json"
    whole = sums_of(path)
    assert told(whole) == told(sums_of(path, by_form=False))
    assert [*whole.looked_at] == [*sums_of(path, by_form=False).looked_at]
    # The last record has no comma behind it, and the first one no record before it.
    dump = json.loads(path.read_bytes())
    key, *others = dump["data"]
    moved = copy.copy(dump)
    moved["data"] = {each: dump["data"][each] for each in (*others, key)}
    other = tmp_path / "dump.json"
    other.write_text(json.dumps(moved), encoding="utf-8")
    again = tmp_path / "again.json"
    again.write_text(json.dumps(dump), encoding="utf-8")
    got, gave, _ = told(sums_of(again))
    assert told(sums_of(other))[:2] == [[*got[1:], got[0]], [*gave[1:], gave[0]]]


def test_a_broken_record_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    record = json.dumps(one_record())
    keys = [f"Functional.f.{number}.forward" for number in range(5)]
    for name, odd in (("right", record), ("wrong", '{"Max": 1.2.3, "output": []}')):
        texts = [f'"{key}": {odd if number == 2 else record}' for number, key in enumerate(keys)]
        (tmp_path / name).write_text(f'{{"data": {{{", ".join(texts)}}}}}', encoding="utf-8")
    assert open_formed(tmp_path / "wrong") is None
    right, wrong = (told(sums_of(tmp_path / each, by_form=False)) for each in ("right", "wrong"))
    assert [place for place in range(5) if right[0][place] != wrong[0][place]] == [2]
