"""A capture as a comparison reads it: all its records, whatever they are of."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.errors import DumpError
from ray_precheck.trace.items import items_of
from ray_precheck.trace.side import API, GRADIENTS, MODULE, OTHER, open_side

pytestmark = pytest.mark.unit

TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 1.0, "Min": 0.0}


def written(folder: Path, data: dict[str, Any], **header: Any) -> Path:
    path = folder / "dump.json"
    text = json.dumps({"task": "statistics", "level": "mix", **header, "data": data})
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("key", "call", "direction", "kind"),
    [
        ("Torch.linalg.inv.0.forward", "Torch.linalg.inv.0", "forward", API),
        ("Tensor.__add__.3.backward", "Tensor.__add__.3", "backward", API),
        ("Module.fc.Linear.forward.1", "Module.fc.Linear.1", "forward", MODULE),
        ("Cell.fc.Dense.backward.0", "Cell.fc.Dense.0", "backward", MODULE),
        ("Module.fc.Linear.parameters_grad", "Module.fc.Linear.parameters_grad", "", GRADIENTS),
        ("Module.fc.Linear.parameters_grad.2", "Module.fc.Linear.parameters_grad.2", "", GRADIENTS),
        ("x.0.debug", "x.0.debug", "", OTHER),
    ],
)
def test_a_record_is_known_by_its_key(
    tmp_path: Path, key: str, call: str, direction: str, kind: str
) -> None:
    with open_side(written(tmp_path, {key: {"output": []}})) as side:
        (entry,) = side.entries
    assert (entry.call, entry.direction, entry.kind) == (call, direction, kind)


def test_values_have_msprobes_names(tmp_path: Path) -> None:
    record = {
        "input_args": [TENSOR, [TENSOR, {"type": "int", "value": 1}], None, {}],
        "input_kwargs": {"dim": {"type": "int", "value": 0}},
        "parameters": {"weight": TENSOR},
        "output": [{"logits": TENSOR}],
    }
    assert [item.path for item in items_of(record)] == [
        "input.0",
        "input.1.0",
        "input.1.1",
        "input.2",
        "input.dim",
        "parameters.weight",
        "output.0.logits",
    ]


def test_gradients_of_parameters_have_the_names_of_their_parameters() -> None:
    for key in ("Module.fc.Linear.parameters_grad", "Module.fc.Linear.parameters_grad.0"):
        items = items_of({"weight": [TENSOR], "bias": [None]}, key)
        assert [(item.path, item.part) for item in items] == [
            ("weight", "parameters_grad"),
            ("bias", "parameters_grad"),
        ]


def test_nan_and_infinity_are_numbers_however_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    element = (
        '{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1], "Max": %s, "Min": %s}'
    )
    bare, quoted = element % ("Infinity", "NaN"), element % ('"inf"', '"-Infinity"')
    path.write_text(f'{{"data": {{"Torch.exp.0.forward": {{"output": [{bare}, {quoted}]}}}}}}')
    with open_side(path) as side:
        first, second = side.items(side.entries[0])
    assert first.number("Max") == math.inf
    assert math.isnan(first.number("Min") or 0.0)
    assert (second.number("Max"), second.number("Min")) == (math.inf, -math.inf)
    assert (first.is_finite, first.number("Mean")) == (False, None)


def test_a_capture_that_was_cut_off_is_read_and_says_so(tmp_path: Path) -> None:
    lines = ['{"task": "statistics"}', '{"Torch.exp.0.forward": {"output": [null]}}', '{"Torch.ex']
    (tmp_path / "dump.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with open_side(tmp_path / "dump.json") as side:
        assert [entry.key for entry in side.entries] == ["Torch.exp.0.forward"]
        assert "was cut off: its 1 records are used" in side.note


def test_both_forms_of_stacks_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, {"Torch.exp.0.forward": {"output": []}})
    stacks = {"0": [["Torch.exp.0.forward", "Torch.exp.1.forward"], ["line 3"]], "Torch.a.0": ["4"]}
    (tmp_path / "stack.json").write_text(json.dumps(stacks), encoding="utf-8")
    with open_side(path) as side:
        assert side.stacks["Torch.exp.1.forward"] == ["line 3"]
        assert side.stacks["Torch.a.0"] == ["4"]


def test_tensors_are_sought_beside_a_dump_that_was_copied(tmp_path: Path) -> None:
    path = written(tmp_path, {"Torch.exp.0.forward": {"output": []}}, dump_data_dir="/gone/tensors")
    with open_side(path) as side:
        assert side.data_folder == tmp_path / "dump_tensor_data"


@pytest.mark.parametrize("text", ["", "[]", '{"data": {}}', '{"task": "statistics"}', "nonsense"])
def test_what_is_no_dump_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DumpError, match=r"dump\.json"):
        open_side(path)
    with pytest.raises(DumpError, match="cannot read the dump"):
        open_side(tmp_path / "other.json")


def test_records_are_read_in_any_order_by_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {
        f"Torch.add.{number}.forward": {"output": [TENSOR], "text": "x" * (number * 37 % 9000)}
        for number in range(200)
    }
    data["Torch.add.77.forward"]["text"] = "y" * 300_000
    with open_side(written(tmp_path, data)) as side:
        reads: list[int] = []
        whole = os.pread

        def read(file: int, length: int, place: int) -> bytes:
            reads.append(length)
            return whole(file, length, place)

        monkeypatch.setattr(os, "pread", read)
        assert [side.record(entry) for entry in side.entries] == [*data.values()]
        assert len(reads) < 40
        assert [side.record(entry) for entry in reversed(side.entries)] == [*data.values()][::-1]
