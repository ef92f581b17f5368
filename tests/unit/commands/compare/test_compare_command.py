"""The command compare: exit codes, and what its JSON, its tables and its closing lines say alike."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.cli import main

pytestmark = pytest.mark.unit


def tensor(top: float) -> dict[str, Any]:
    values = {"Max": top, "Min": -1.0, "Mean": 0.25, "Norm": 2.0 * top}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 2], **values}


def write(folder: Path, tops: dict[str, float], given: dict[str, float] | None = None) -> Path:
    """Write a dump of a call for each name: the maximum of its output, and of its input, by default 1."""
    data = {
        f"Torch.{name}.0.forward": {
            "input_args": [tensor((given or {}).get(name, 1.0))],
            "input_kwargs": {},
            "output": [tensor(top)],
        }
        for name, top in tops.items()
    }
    folder.mkdir(parents=True)
    header = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**header, "data": data}))
    return folder


def run(*words: object) -> int:
    return main(["compare", *map(str, words)])


def test_strict_counts_a_dump_that_only_one_side_has(tmp_path: Path) -> None:
    for name, steps in (("target", ("step0",)), ("golden", ("step0", "step1"))):
        for step in steps:
            write(tmp_path / name / step, {"neg": 1.0})
    sides = ("-tp", tmp_path / "target", "-gp", tmp_path / "golden", "-o", tmp_path / "out")
    assert run(*sides) == 0
    assert run(*sides, "--strict") == 1


def test_a_json_file_that_cannot_be_written_is_told_before_anything_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one", {"neg": 1.0})
    out, found = tmp_path / "out", tmp_path / "none" / "found.json"
    assert run("-tp", one, "-gp", one, "-o", out, "--json", found) == 2
    assert (
        f"--json: the folder {found.parent} of found.json is not there" in capsys.readouterr().err
    )
    assert not out.exists()


def test_a_file_that_is_no_table_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write(tmp_path / "one", {"neg": 1.0})
    assert run("-tp", dump, "-gp", dump, "-csv_path", tmp_path / "rows.csv") == 2
    said = capsys.readouterr().err
    assert "is no table of such a run; a name like compare_calls_" in said
    assert "compare_calls_.csv" not in said


def test_the_closing_lines_the_tables_and_the_json_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = write(tmp_path / "target", {"neg": 1.0, "exp": 3.0, "sin": 1.0})
    golden = write(tmp_path / "golden", {"neg": 1.0, "exp": 1.0, "cos": 1.0})
    out, found = tmp_path / "out", tmp_path / "found.json"
    words = ("-tp", target, "-gp", golden, "-o", out, "--match", "exact", "--json", found)
    assert run(*words, "--standard", "auto") == 1
    assert "4 of 4 pairs of records, 8 rows: 1 pass, 0 warning, 1 error, 2 unmatched" in (
        capsys.readouterr().out
    )
    (said,) = json.loads(found.read_text())["views"]
    counts = {each["name"]: each["number"] for each in said["counts"]}
    assert counts == {"pass": 1, "error": 1, "unmatched": 2, "warning": 0}
    assert [each["name"] for each in said["cards"]] == ["Torch.exp.0.forward"]
    assert said["exit_code"] == 1
    tables = {
        stem: list(csv.DictReader(path.read_text("utf-8-sig").splitlines()))
        for stem in ("calls", "result")
        for path in out.glob(f"compare_{stem}_*.csv")
    }
    assert len(tables["result"]) == 8 == sum(int(x["Rows"]) for x in tables["calls"])
    assert {"kind": "Fact", "name": "Rows", "value": "8"} in said["facts"]
    assert sorted(x["Result"] for x in tables["calls"]) == [
        "error",
        "pass",
        "unmatched",
        "unmatched",
    ]


def test_calls_whose_inputs_are_in_no_error_stand_before_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands before the culprit in the run and has got its error another way does not hide it."""
    names = [f"op{number}" for number in range(7)]
    golden = write(tmp_path / "golden", dict.fromkeys([*names, "exp"], 1.0))
    tops = dict.fromkeys([*names, "exp"], 3.0)
    target = write(tmp_path / "target", tops, given=dict.fromkeys(names, 5.0))
    found = tmp_path / "found.json"
    words = ("-tp", target, "-gp", golden, "-o", tmp_path / "out", "--json", found)
    assert run(*words, "--standard", "auto") == 1
    (said,) = json.loads(found.read_text())["views"]
    assert [each["name"] for each in said["cards"]] == [
        "Torch.op0.0.forward",
        "Torch.exp.0.forward",
        *(f"Torch.op{number}.0.forward" for number in range(1, 7)),
    ]
    printed = capsys.readouterr().out
    assert "then calls whose inputs are in no error, then others:\n  Torch.op0.0" in printed
    assert "... and 3 more" in printed


def test_values_that_only_one_side_of_a_pair_has_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write(tmp_path / "whole", {"neg": 1.0, "exp": 2.0})
    inputs = write(tmp_path / "inputs", {"neg": 1.0, "exp": 2.0}) / "dump.json"
    content = json.loads(inputs.read_text())
    for record in content["data"].values():
        del record["output"]
    inputs.write_text(json.dumps(content))
    found = tmp_path / "found.json"
    words = ("-tp", inputs, "-gp", dump, "-o", tmp_path / "out", "--json", found)
    assert run(*words) == 0
    assert "2 rows of these pairs are unmatched, too" in capsys.readouterr().out
    (said,) = json.loads(found.read_text())["views"]
    told = {each["text"]: each["count"] for each in said["reasons"]}
    assert told == {"values of pairs that only one side has": 2}
    assert run(*words, "--strict") == 1


@pytest.mark.parametrize("name", ["b\ud800", "a\nb", "a\x1b[31m"])
def test_names_that_a_terminal_obeys_or_cannot_have_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    target = write(tmp_path / "target", {"neg": 1.0, name: 3.0})
    golden = write(tmp_path / "golden", {"neg": 1.0, name: 1.0})
    assert run("-tp", target, "-gp", golden, "-o", tmp_path / "out", "--standard", "auto") == 1
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "relative L2" in line)
    assert said.isprintable()
    assert "\\" in said


def test_a_birth_under_such_a_name_is_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write(tmp_path / "dump", {"b\ud800": float("inf")})
    assert main(["overflow_check", str(dump), "-o", str(tmp_path / "out")]) == 1
    assert "Torch.b\\ud800.0.forward.output.0: inf in float32" in capsys.readouterr().out
