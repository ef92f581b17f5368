"""The whole command on hostile files: rows, or one sentence and exit code 2; never a traceback."""

import codecs
import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.cli import NOTHING_CHECKED, UNUSABLE, main
from ray_precheck.store.results import read_results

pytestmark = pytest.mark.frameworks

RECORD = {"input_args": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]}]}
NO_CALL = b'{"data": {}}'
WHOLE = json.dumps(
    {"task": "statistics", "framework": "pytorch", "data": {"Torch.add.0.forward": RECORD}}
).encode()
FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1,1)", "\t=1", "'=1"]
ODD_NAMES = [
    *FORMULAS,
    'say "hi", twice',
    "a,b;c\td",
    "two\nlines",
    "two\r\nlines",
    "\r",
    "null\x00byte",
    "\ud800",
    "\u2028",
    "\\u000a",
    "\x1b[31mred",
    "%s{}$(x)`y`",
    "\U0001f600",
    "/etc/x",
]


def check(folder: Path, raw: bytes, *options: str) -> tuple[int, Path]:
    """Run the command on a dump; returns the exit code and the folder of the results."""
    (folder / "dump.json").write_bytes(raw)
    out = folder / "out"
    return main(["run_ut", "-api_info", str(folder / "dump.json"), "-o", str(out), *options]), out


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00" * 100,
        b"hello",
        b"[]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        NO_CALL,
        b'{"data": []}',
        WHOLE[:-1],
        WHOLE[: len(WHOLE) // 2],
        WHOLE + b"}",
        WHOLE[:-2] + b'"',
        WHOLE.replace(b"statistics", b"\\ud800"),
        WHOLE.replace(b"statistics", b"md5" * 10**6),
        WHOLE.replace(b'"statistics"', b"[" * 2000 + b"]" * 2000),
        WHOLE.replace(b'"statistics"', b"NaN"),
        WHOLE.replace(b'"pytorch"', b'{"a": 1}'),
        WHOLE.replace(b"pytorch", b"mindtorch"),
        WHOLE.replace(b"pytorch", b"\\u001b[31m"),
        WHOLE.replace(b"Torch.add.0.forward", b"Module.fc.Linear.forward.0"),
        WHOLE.replace(b'"data"', b'"\\u001b[31mdata"'),
        WHOLE.decode().encode("utf-16"),
        WHOLE.decode().encode("utf-16-le"),
        WHOLE.decode().encode("utf-32"),
        codecs.BOM_UTF8 + codecs.BOM_UTF8 + WHOLE,
        b'{"data": {' + b'"":0,' * 1_600_000 + b'"":0}}',
    ],
    ids=range(26),
)
def test_a_file_that_is_no_dump_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: bytes
) -> None:
    code, _ = check(tmp_path, raw)
    printed = capsys.readouterr()
    assert code == (NOTHING_CHECKED if raw == NO_CALL else UNUSABLE)
    assert printed.out == ""
    assert printed.err.startswith("ray-precheck: error: ")
    assert printed.err.count("\n") == 1
    assert printed.err.strip().isprintable()
    assert len(printed.err) < 1000 + len(str(tmp_path))
    assert files_in(tmp_path) == {"dump.json"}


def test_a_named_pipe_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "dump.json")
    assert main(["run_ut", "-api_info", str(tmp_path / "dump.json")]) == UNUSABLE
    assert "no regular file" in capsys.readouterr().err


def test_names_come_back_from_the_result_csv_and_no_spreadsheet_runs_them(tmp_path: Path) -> None:
    """Nothing here can be checked, so that no worker is started."""
    names = [f"{odd}.add.{i}" for i, odd in enumerate(ODD_NAMES)]
    data: dict[str, Any] = {f"{name}.forward": RECORD for name in names}
    data |= {odd: {} for odd in ODD_NAMES}
    code, out = check(tmp_path, json.dumps({"framework": "pytorch", "data": data}).encode())
    assert code == NOTHING_CHECKED
    [result] = out.glob("accuracy_checking_result_*.csv")
    assert [row.name for row in read_results(result)] == [*names, *ODD_NAMES]
    lines = result.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\r\n")
    assert len(lines) == 1 + 2 * len(ODD_NAMES) + 1
    for [cell, *_] in csv.reader(line.decode() for line in lines if line):
        assert not cell.startswith(("=", "+", "-", "@", "\t"))
    assert {path.split("/")[0] for path in files_in(tmp_path)} == {"dump.json", "out"}


def test_a_run_of_odd_names_can_be_resumed(tmp_path: Path) -> None:
    raw = json.dumps({"framework": "pytorch", "data": {odd: {} for odd in ODD_NAMES}}).encode()
    raw = raw.replace(b"}}", b', "Aten.add.0.forward": {}}}')
    _, out = check(tmp_path, raw)
    [result] = out.glob("accuracy_checking_result_*.csv")
    before = result.read_bytes()
    result.write_bytes(b"\r\n".join(before.split(b"\r\n")[:9]) + b"\r\n'=1,SK")
    assert check(tmp_path, raw, "-csv_path", str(result))[0] == NOTHING_CHECKED
    assert result.read_bytes() == before


def test_a_name_of_ten_million_characters_is_a_row(tmp_path: Path) -> None:
    name = "=" + "a" * 10**7
    code, out = check(tmp_path, json.dumps({"framework": "pytorch", "data": {name: {}}}).encode())
    assert code == NOTHING_CHECKED
    [result] = out.glob("accuracy_checking_result_*.csv")
    assert [row.name for row in read_results(result)] == [name]
