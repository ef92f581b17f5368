"""Captures that were cut short are named before all else, and are no success."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.cli import main
from ray_precheck.dump.folders import KILLED, cut_note, end_of_log, find_dumps
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit

CALLS = [("Mint.mul.0.forward", [[1.0, 2.0]], [[2.0, 4.0]])]
FAULTY = [("Mint.mul.0.forward", [[1.0, 2.0]], [[2.0, float("nan")]])]
FULL = "the disk is full"


def cut(dump: Path, how: str) -> Path:
    """Cut a dump short: as a step that raised, a killed process, or a capture that stopped leaves it."""
    content = json.loads(dump.read_text())
    records = content.pop("data")
    if how == "raised":
        text = f'{json.dumps({**content, "data": records})[:-2]}\n}}, "cut_short": "{FULL}"}}\n'
        dump.write_text(text)
        return dump
    lines = [content, *({key: record} for key, record in records.items())]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    dump.unlink()
    log = dump.with_suffix(".jsonl")
    log.write_text(text + (end_of_log(FULL) if how == "stopped" else '{"Mint.ad'))
    return log


def words_of(command: str, target: Path, golden: Path, out: Path) -> list[str]:
    pair = ["-tp", str(target.parent), "-gp", str(golden.parent), "-o", str(out)]
    if command == "overflow_check":
        return [command, str(target.parent), "-o", str(out)]
    return [command, *pair]


@pytest.mark.parametrize("command", ["compare", "locate", "overflow_check"])
@pytest.mark.parametrize(("how", "why"), [("raised", FULL), ("killed", KILLED), ("stopped", FULL)])
def test_a_command_names_a_cut_capture_first_and_does_not_end_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, how: str, why: str
) -> None:
    whole = write_capture(tmp_path / "whole", CALLS)
    words = words_of(command, write_capture(tmp_path / "target", CALLS), whole, tmp_path / "out")
    assert main(words) == 0
    assert "cut short" not in "".join(capsys.readouterr())
    path = cut(tmp_path / "target/dump.json", how)
    words[-1] = str(tmp_path / "out2")
    assert main(words) == 4
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"warning: {path} was cut short: {why}; what it lacks")
    for noted in (tmp_path / "out2").rglob("*.run.json"):
        assert json.loads(noted.read_text())["cut_short"] == [cut_note(path)]


def test_an_error_in_a_cut_capture_stays_an_error(tmp_path: Path) -> None:
    whole = write_capture(tmp_path / "whole", CALLS)
    target = cut(write_capture(tmp_path / "target", FAULTY), "killed")
    assert main(words_of("compare", target, whole, tmp_path / "out")) == 1


def test_one_cut_rank_of_several_is_named(tmp_path: Path, capsys: Any) -> None:
    for side in ("target", "golden"):
        for rank in (0, 1):
            write_capture(tmp_path / side / f"step0/rank{rank}", CALLS)
    path = cut(tmp_path / "target/step0/rank1/dump.json", "killed")
    words = ["compare", "-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden")]
    assert main([*words, "-o", str(tmp_path / "out")]) == 4
    assert f"warning: {path} was cut short" in capsys.readouterr().err.splitlines()[0]
    assert len(find_dumps(tmp_path / "target").dumps) == 2


@pytest.mark.parametrize("end", ['}, "cut_short": "x"', "}}\n", '"cut_short": "a"}}\n'])
def test_other_dumps_say_nothing(tmp_path: Path, end: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text('{"data": {"Torch.add.0.forward": {"text": "cut_short"}' + end)
    assert cut_note(path) == ""


def test_a_finished_log_tells_why_it_ended(tmp_path: Path, capsys: Any) -> None:
    cut(write_capture(tmp_path / "target", CALLS), "stopped")
    assert main(["capture", "--finish", str(tmp_path / "target")]) == 0
    assert "was cut short: the disk is full; 1 records in dump.json" in capsys.readouterr().out
    assert FULL in cut_note(tmp_path / "target/dump.json")
