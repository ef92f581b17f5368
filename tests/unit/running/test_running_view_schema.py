"""The schema of --json is that of the nouns, and what commands write keeps to it."""

import json
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from ray_precheck.cli import main
from ray_precheck.running.view_data import views_data
from ray_precheck.schema import view as nouns
from ray_precheck.schema.view import (
    BlockMaxima,
    Card,
    Chart,
    ChartLine,
    ChartStep,
    FlowGraph,
    HeatMap,
    Histogram,
    LineChart,
    ModuleNode,
    ModuleTree,
    RowTable,
    StepChart,
    TimelineChart,
    Tone,
    View,
    ViewState,
)
from scripts.view_schema import SCHEMA, schema_text
from tests.unit.commands.small_captures import write_capture
from tests.unit.trace.overflow_records import INF, NAN, forward, tensor, write_dump

pytestmark = pytest.mark.unit
BAD = tensor(INF, 0.0)


def problems(data: Any) -> list[str]:
    """Return what the schema of the package finds wrong in some data."""
    text = (files("ray_precheck.running") / "view.schema.json").read_text("utf-8")
    found = Draft202012Validator(json.loads(text)).iter_errors(data)
    return [f"{each.json_path}: {each.message[:200]}" for each in found]


def test_the_schema_is_up_to_date_and_is_one() -> None:
    assert SCHEMA.read_text("utf-8") == schema_text(), "python -m scripts.view_schema --write"
    Draft202012Validator.check_schema(json.loads(schema_text()))


def test_every_noun_of_a_view_is_described() -> None:
    definitions = json.loads(schema_text())["$defs"]
    assert {kind.__name__ for kind in get_args(Chart)} < set(definitions)
    assert all(len(each["description"]) > 10 for each in definitions.values())
    assert definitions["Tone"]["enum"] == [tone.value for tone in nouns.Tone]


def charts() -> list[Any]:
    """Return a chart of each kind, with values that JSON has not."""
    odd = np.array([[NAN, INF], [1.0, -INF]])
    numbers = np.array([0, 1])
    none = np.zeros((0, 2), np.int64)
    flow = (np.array([0, 1], np.uint8), odd[0], odd[1], none, none, (0,))
    return [
        HeatMap("t", "u", ("a", "b"), ("c", "d"), odd, {(0, 1): "row"}),
        ModuleTree("t", (ModuleNode("m", -1, Tone.ERROR, 2, 1),)),
        FlowGraph("t", "u", ("a", "b"), *flow),
        TimelineChart("t", ("l",), numbers, odd[0], odd[1], ("n",), numbers, ("s",), numbers),
        LineChart("t", "x", "y", (ChartLine("l", odd[0], odd[1]),)),
        StepChart("t", "u", (ChartStep("s", NAN, Tone.SKIP),)),
        Histogram("t", "u", (0.0, 1.0), (3,)),
    ]


def test_charts_of_every_kind_and_numbers_that_json_lacks_keep_to_it() -> None:
    assert {type(chart) for chart in charts()} == set(get_args(Chart))
    blocks = BlockMaxima("t", "u", (2, 2), np.array([[NAN, 1.0]]))
    card = Card("n", Tone.ERROR, "why", times=math.inf, blocks=blocks)
    view = View(
        "c", "t", "s", Tone.ERROR, ViewState.RUNNING, cards=(card,), overview=tuple(charts()),
        tables=(RowTable("t", (), Path("a.csv")), RowTable("t", ())),
    )  # fmt: skip
    data = json.loads(json.dumps(views_data([view])))
    assert problems(data) == []
    assert data["views"][0]["cards"][0]["times"] is None
    assert data["views"][0]["overview"][0]["values"] == [[None, None], [1.0, None]]
    assert data["views"][0]["overview"][0]["links"] == [[0, 1, "row"]]


def test_what_is_wrong_is_found() -> None:
    view = views_data([View("c", "t", "s", Tone.ERROR, ViewState.RUNNING)])
    assert problems(view) == []
    for key, wrong in (("tone", "red"), ("exit_code", "1"), ("cards", [{}]), ("more", 1)):
        changed = {**view["views"][0], key: wrong}
        assert problems({**view, "views": [changed]}) != []
    assert problems({"format": 1, "views": []}) != []


def dump_of(folder: Path) -> str:
    exp, neg = forward([tensor()], [BAD]), forward([BAD], [tensor(0.0, -INF)])
    records = {"Torch.exp.0.forward": exp, "Torch.neg.0.forward": neg}
    modules = {"Torch.exp.0.forward": "Module.net.Net.forward.0", "Module.net.Net.forward.0": None}
    write_dump(folder / "dump" / "step0" / "rank0", records, modules)
    write_dump(folder / "dump" / "step0" / "rank1", records)
    return str(folder / "dump")


def pair_of(folder: Path) -> list[str]:
    """Write a capture, and another one that differs in one call; return the options that name them."""
    values = np.linspace(-1.0, 1.0, 32).reshape(4, 8)
    for name, factor in (("target", 1.01), ("golden", 1.0)):
        made = values * 2
        calls = [
            ("Mint.add.0.forward", [values, values], [made]),
            ("Mint.mul.0.forward", [made, values], [made * values * factor]),
        ]
        write_capture(folder / name, calls, files=False)
    return ["-tp", str(folder / "target"), "-gp", str(folder / "golden")]


COMMANDS = {
    "overflow_check": lambda folder: [dump_of(folder), "--headroom"],
    "bisect": lambda folder: ["run", "--switch", "env:A=1|0", "-d", "0"],
    "compare": lambda folder: [*pair_of(folder), "--standard", "auto"],
    "locate": pair_of,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_commands_write_keeps_to_it(command: str, tmp_path: Path) -> None:
    options: Sequence[str] = COMMANDS[command](tmp_path)
    places = ["-o", str(tmp_path / "out"), "--json", str(tmp_path / "found.json")]
    script = ["--", "sh", "-c", "[ $A = 0 ]"] if command == "bisect" else []
    assert main([command, *options, *places, *script]) == 1
    data = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert problems(data) == []
    (view,) = data["views"]
    assert (view["command"], view["exit_code"], view["tone"]) == (command, 1, "error")
    assert view["cards"]
    assert all(Path(file).exists() for file in view["files"])
