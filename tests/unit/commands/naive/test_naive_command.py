"""The command naive: bad input is one sentence, and what it prints names calls, switches and what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.cli import main
from ray_precheck.commands.naive.job import NAIVE_TABLES
from ray_precheck.commands.naive.report import naive_exit_code, naive_lines
from ray_precheck.commands.naive.run import NaiveReport, NaiveRow
from ray_precheck.schema.result import Verdict
from ray_precheck.store.tables import run_files

pytestmark = pytest.mark.unit
RECORD = {"input_args": [], "input_kwargs": {}, "output": []}


def write(folder: Path, **data: Any) -> Path:
    path = folder / "dump.json"
    folder.mkdir(parents=True, exist_ok=True)
    header = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    path.write_text(json.dumps({**header, "data": data}))
    return path


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one sentence that the command says of bad input."""
    assert main(["naive", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("ray-precheck: error: ")
    return line


def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = write(tmp_path / "one", **{"Torch.load.0.forward": RECORD})
    assert "the dump is missing" in said(capsys)
    assert "nowhere" in said(capsys, "nowhere")
    assert "--runs 1" in said(capsys, dump, "--runs", "1")
    assert "is no result CSV" in said(capsys, dump, "-csv_path", dump)
    assert "has no naive_*.csv to go on in" in said(capsys, dump, "-csv_path", tmp_path)
    for rank in ("rank0", "rank1"):
        write(tmp_path / "many" / "step0" / rank, **{"Torch.load.0.forward": RECORD})
    assert "is a folder of 2 dumps; name one" in said(capsys, tmp_path / "many")
    (tmp_path / "one" / "dump.json").write_text("{")
    assert "is cut off" in said(capsys, dump)


def test_a_dump_of_which_nothing_can_be_run_has_its_rows_and_exit_code_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write(tmp_path, **{"Torch.load.0.forward": RECORD, "Torch.nothing.0.forward": RECORD})
    assert main(["naive", str(dump), "-o", str(tmp_path / "out"), "-k", "load"]) == 4
    (path,) = (tmp_path / "out").glob("naive_2*.csv")
    _, row = path.read_text("utf-8-sig").splitlines()
    assert row.startswith("Torch.load.0,SKIP,")
    out = capsys.readouterr().out
    assert "1 calls: 0 pass, 0 error, 1 could not be run" in out
    assert main(["naive", str(dump), "-csv_path", str(tmp_path / "out"), "-k", "load"]) == 4


def test_a_log_that_was_cut_off_is_used_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = write(tmp_path, **{"Torch.load.0.forward": RECORD})
    content = json.loads(dump.read_text())
    dump.unlink()
    records = content.pop("data")
    lines = [content, *({key: record} for key, record in records.items())]
    text = "\n".join(map(json.dumps, lines)) + '\n{"Torch.add.0.forw'
    (tmp_path / "dump.jsonl").write_text(text)
    assert main(["naive", str(tmp_path), "-o", str(tmp_path / "out")]) == 4
    assert "was cut off after 1 records" in capsys.readouterr().err


def row(name: str, verdict: Verdict, **cells: str) -> NaiveRow:
    empty = dict.fromkeys(NaiveRow._fields[2:], "")
    return NaiveRow(**{**empty, "reproducible": "yes", **cells, "name": name, "verdict": verdict})


def report(*rows: NaiveRow, completed: bool = True) -> NaiveReport:
    files = run_files(Path("naive_20260101000000.csv"), NAIVE_TABLES)
    return NaiveReport(files, rows, completed)


GUILTY = row(
    "Torch.mm.0", Verdict.ERROR, wrong="default", switch="onednn", default_error="950", naive_error="1",
    difference="949", output="forward.output.0", at="[1, 2]", message="the default kernels are wrong",
)  # fmt: skip
UNLIKE = row("Torch.put.0", Verdict.ERROR, reproducible="no", message="3 equal runs differ")
RIGHT = row("Torch.add.0", Verdict.PASS)


def test_the_first_calls_the_switch_and_the_next_step_are_printed() -> None:
    lines = list(naive_lines(report(RIGHT, GUILTY, UNLIKE)))
    assert lines[:4] == [
        "Torch.mm.0: the default kernels are wrong",
        "  error at forward.output.0 [1, 2], in units of what rounding explains: default 950, plain 1,"
        " difference 949",
        "  switch: onednn",
        "  the default kernels are wrong",
    ]
    assert "Torch.put.0: equal runs differ" in lines
    assert "3 calls: 1 pass, 2 error (1 not reproducible), 0 could not be run" in lines
    assert "Switch onednn: 1 of 2 calls in error" in lines
    assert [line for line in lines if "run the model with the switch" in line]
    assert [line for line in lines if "bit for bit" in line]
    assert not [line for line in lines if "run_ut" in line]


def test_calls_without_a_switch_are_sent_to_the_precheck() -> None:
    lines = list(
        naive_lines(report(row("Torch.a.0", Verdict.ERROR, wrong="both", message="x" * 600)))
    )
    assert [line for line in lines if "run_ut --standard auto" in line]
    assert max(map(len, lines)) < 520


def test_only_the_first_calls_are_shown() -> None:
    many = [row(f"Torch.a.{number}", Verdict.ERROR, wrong="default") for number in range(8)]
    lines = list(naive_lines(report(*many)))
    assert "  and 3 more" in lines
    assert not [line for line in lines if line.startswith("Torch.a.5")]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (report(RIGHT), 0),
        (report(RIGHT, row("Torch.b.0", Verdict.SKIP)), 0),
        (report(RIGHT, GUILTY), 1),
        (report(row("Torch.b.0", Verdict.SKIP)), 4),
        (report(), 4),
        (report(GUILTY, completed=False), 3),
    ],
)
def test_the_exit_code_says_what_was_found(found: NaiveReport, code: int) -> None:
    assert naive_exit_code(found) == code
