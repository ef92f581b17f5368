"""Births are searched from the command line to the files, in the command's own process."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.cli import main
from ray_precheck.commands.overflow import job as overflow
from ray_precheck.commands.overflow import run as overflowing
from ray_precheck.commands.overflow.options import OverflowConfig
from ray_precheck.commands.overflow.run import check_overflow
from ray_precheck.running import run

sys.path.append(str(Path(__file__).parents[1] / "trace"))
from tests.unit.trace.overflow_records import INF, NAN, forward, tensor, write_dump

pytestmark = pytest.mark.unit
BAD = tensor(INF, 0.0)
BORN = {"Torch.exp.0.forward": forward([tensor()], [BAD])}
FINITE = {"Torch.exp.0.forward": forward([tensor()], [tensor()])}
CAME_IN = {"Torch.neg.0.forward": forward([tensor(NAN, NAN)], [tensor(NAN, NAN)])}
UNKNOWN = {"Torch.exp.0.forward": forward([tensor(None, None)], [tensor(None, None)])}


def rows(folder: Path, kind: str = "check") -> list[dict[str, str]]:
    (path,) = folder.glob(f"overflow_{kind}_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("records", "code"), [(BORN, 1), (FINITE, 0), (CAME_IN, 1), (UNKNOWN, 4)])
def test_the_exit_code_says_what_was_found(tmp_path: Path, records: Any, code: int) -> None:
    dump = write_dump(tmp_path / "dump", records)
    assert main(["overflow_check", str(dump), "-o", str(tmp_path / "out")]) == code


def test_what_a_mask_takes_away_is_said_and_no_alarm(tmp_path: Path, capsys: Any) -> None:
    where = {"Torch.where.0.forward": forward([tensor(True, False, "torch.bool"), BAD], [tensor()])}
    dump = write_dump(tmp_path / "dump", BORN | where)
    assert main(["overflow_check", str(dump), "-o", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "No other NaN and no other infinity was born in 2 records of 1 dump"
    assert lines[1] == "Masks took 1 birth away again: no loss, gradient or state holds them"
    assert rows(tmp_path / "out")[0]["Birth"] == "taken away"


def test_msprobe_s_options_name_the_dump_and_the_folder(tmp_path: Path) -> None:
    write_dump(tmp_path / "dump", BORN)
    code = main(["overflow_check", "-i", str(tmp_path / "dump"), "-o", str(tmp_path / "out")])
    assert code == 1
    (row,) = rows(tmp_path / "out")
    assert list(row.values())[:7] == [
        "",
        "",
        "Torch.exp.0.forward",
        "output.0",
        "inf",
        "birth",
        "float32",
    ]
    assert row["Source"] == "/home/me/train.py:7, in forward: y = f(x)"


# The command, which takes some time for each dump and writes its row at once.
SLOW = """
import sys, time
from ray_precheck.cli import main
from ray_precheck.commands.overflow import job as overflow
from ray_precheck.runtime import driving
from ray_precheck.running import run

def slow(*arguments):
    time.sleep(0.1)
    return look(*arguments)

look, overflow.look, driving._BATCH_S = overflow.look, slow, 0.0
sys.exit(main(sys.argv[1:]))
"""


def test_a_search_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    for rank in range(40):
        write_dump(tmp_path / "dumps" / "step1" / f"rank{rank}", BORN if rank % 2 else CAME_IN)
    whole = check_overflow(OverflowConfig(dump=tmp_path / "dumps", out=tmp_path / "whole"))
    out = tmp_path / "out"
    words = ["overflow_check", str(tmp_path / "dumps"), "-o", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *words], start_new_session=True, stderr=subprocess.DEVNULL
    )
    while not (out.is_dir() and any(out.glob("overflow_dumps_*")) and len(rows(out, "dumps")) > 2):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 2 < len(rows(out, "dumps")) < 40
    again = check_overflow(OverflowConfig(dump=tmp_path / "dumps", resume_csv=out))
    assert again.completed
    assert again.files.result.read_bytes() == whole.files.result.read_bytes()
    assert again.files.details.read_bytes() == whole.files.details.read_bytes()


@pytest.mark.parametrize("name", ["replace_file", "mark_completed"])
def test_a_search_that_was_killed_while_ranks_are_joined_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    group = {"group_ranks": [0, 1]}
    for rank, given in ((0, FINITE), (1, BORN)):
        brought = {"Distributed.all_reduce.0.forward": forward([tensor()], [BAD], group=group)}
        write_dump(tmp_path / "dumps" / "step1" / f"rank{rank}", given | brought)
    whole = check_overflow(OverflowConfig(dump=tmp_path / "dumps", out=tmp_path / "whole"))

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(overflowing, name, killed)
        with pytest.raises(KeyboardInterrupt):
            check_overflow(OverflowConfig(dump=tmp_path / "dumps", out=tmp_path / "out"))
    again = check_overflow(OverflowConfig(dump=tmp_path / "dumps", resume_csv=tmp_path / "out"))
    assert again.files.details.read_bytes() == whole.files.details.read_bytes()
    assert "born in the collective" in again.files.details.read_text(encoding="utf-8")


def test_progress_counts_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, units = run.Progress, []

    def progress(*arguments: Any, unit: str, **others: Any) -> Any:
        units.append(unit)
        return whole(*arguments, unit=unit, **others)

    monkeypatch.setattr(run, "Progress", progress)
    write_dump(tmp_path / "dump", BORN)
    check_overflow(OverflowConfig(dump=tmp_path / "dump", out=tmp_path / "out"))
    assert units == ["dumps"]


def test_births_come_first_on_the_screen(tmp_path: Path, capsys: Any) -> None:
    write_dump(tmp_path / "step1" / "rank0", CAME_IN)
    module = "Module.a.Net.forward.0"
    construct = {"Torch.exp.0.forward": module, module: None}
    write_dump(tmp_path / "step1" / "rank1", BORN, construct)
    assert main(["overflow_check", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NaN or infinity was born in 1 place, 1 of 2 dumps"
    assert lines[1] == "  step 1, rank 1: Torch.exp.0.forward.output.0: inf in float32 (birth)"
    assert lines[3:5] == [f"    in {module}", "    /home/me/train.py:7, in forward: y = f(x)"]
    assert lines[5].startswith("step 1, rank 0: NaN came in at Torch.neg.0.forward.input.0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a dump"),
        ("[1, 2", "is not a dump"),
        ('{"task": "statistics", "data": {}}', "holds no record"),
        ('{"task": "statistics"}', "holds no record"),
    ],
)
def test_an_unreadable_dump_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: Any, text: str, said: str
) -> None:
    (tmp_path / "dump.json").write_text(text)
    assert main(["overflow_check", str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("ray-precheck: error: ")
    assert said in line
    assert list((tmp_path / "out").glob("*")) == []


@pytest.mark.parametrize("words", [[], ["a", "-i", "b"], ["nowhere"]])
def test_wrong_words_are_one_sentence(tmp_path: Path, capsys: Any, words: list[str]) -> None:
    assert main(["overflow_check", *words, "-o", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_one_unreadable_dump_of_several_is_said_and_the_others_are_searched(
    tmp_path: Path, capsys: Any
) -> None:
    write_dump(tmp_path / "rank0", FINITE)
    (tmp_path / "rank1").mkdir()
    (tmp_path / "rank1" / "dump.json").write_text("{")
    assert main(["overflow_check", str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    assert "rank1 cannot be read: " in capsys.readouterr().out
    assert [each["Overflow Check"] for each in rows(tmp_path / "out", "dumps")] == ["pass", "SKIP"]


def test_records_that_cannot_be_read_are_counted(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray_precheck.trace.side.LARGEST_RECORD_BYTES", 10_000)
    huge = forward([tensor()] * 100, [BAD])
    dump = write_dump(
        tmp_path, {**FINITE, "Torch.cat.0.forward": huge, "Torch.x.0.forward": ["NaN"]}
    )
    assert main(["overflow_check", str(dump), "-o", str(tmp_path / "out")]) == 0
    assert (
        "2 records are no JSON objects or too large, and were not read" in capsys.readouterr().out
    )


def test_a_capture_that_was_cut_off_is_used_and_said(tmp_path: Path, capsys: Any) -> None:
    header = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    lines = [header, *({key: record} for key, record in BORN.items())]
    text = "".join(f"{json.dumps(each)}\n" for each in lines)
    (tmp_path / "dump.jsonl").write_text(text + '{"Torch.neg.0.forward": {"inp')
    assert main(["overflow_check", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    assert "was cut off: its 1 records are used" in capsys.readouterr().out


def test_a_search_that_stopped_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        write_dump(tmp_path / "dumps" / f"step{number}" / "rank0", BORN if number % 2 else CAME_IN)
    whole = check_overflow(OverflowConfig(dump=tmp_path / "dumps", out=tmp_path / "whole"))
    asked = iter([False, False, True])
    monkeypatch.setattr(run, "RunSetting", _stopping(asked))
    monkeypatch.setattr("ray_precheck.runtime.driving._BATCH_S", 0.0)
    half = check_overflow(OverflowConfig(dump=tmp_path / "dumps", out=tmp_path / "half"))
    assert not half.completed
    assert 0 < len(half.dumps) < 6
    monkeypatch.undo()
    seen: list[int] = []
    look = overflow.look
    monkeypatch.setattr(
        overflow, "look", lambda each, paths: (seen.append(each.index), look(each, paths))[1]
    )
    again = OverflowConfig(dump=tmp_path / "dumps", resume_csv=half.files.result)
    assert check_overflow(again).completed
    done = {int(each.name[4]) for each in half.dumps}
    # Of files that were not completed the last dump is looked at again.
    assert set(range(6)) - done <= set(seen)
    assert len(seen) <= 1 + 6 - len(done)
    for kind in ("result", "details"):
        ours, theirs = getattr(half.files, kind), getattr(whole.files, kind)
        assert ours.read_bytes() == theirs.read_bytes()


def _stopping(asked: Any) -> Any:
    """Return a `RunSetting` that asks an iterator whether to stop."""
    original = run.RunSetting
    return lambda *args: original(*args[:5], stop_requested=lambda: next(asked, True))


def test_the_findings_file_and_a_folder_name_a_run_to_go_on_with(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", BORN)
    report = check_overflow(OverflowConfig(dump=dump, out=tmp_path / "out"))
    before = report.files.details.read_bytes()
    for named in (report.files.details, tmp_path / "out"):
        assert main(["overflow_check", str(dump), "-csv_path", str(named)]) == 1
        assert report.files.details.read_bytes() == before


def test_another_dump_is_not_gone_on_with(tmp_path: Path, capsys: Any) -> None:
    dump = write_dump(tmp_path / "dump", BORN)
    report = check_overflow(OverflowConfig(dump=dump, out=tmp_path / "out"))
    write_dump(tmp_path / "dump", {**BORN, **FINITE, "Torch.neg.7.forward": forward([], [])})
    assert main(["overflow_check", str(dump), "-csv_path", str(report.files.result)]) == 2
    assert "is of another dump" in capsys.readouterr().err


def test_headroom_of_several_steps_is_a_file_and_lines(tmp_path: Path, capsys: Any) -> None:
    for step, top in enumerate((1000.0, 4000.0, 16000.0)):
        record = forward([tensor()], [tensor(top, 0.0, "torch.float16")])
        write_dump(tmp_path / f"step{step}" / "rank0", {"Torch.mul.0.forward": record})
    out = tmp_path / "out"
    assert main(["overflow_check", str(tmp_path), "-o", str(out), "--headroom"]) == 0
    (row,) = rows(out, "headroom")
    assert (row["Rank"], row["API Name"], row["Steps"]) == ("0", "Torch.mul.0.forward", "3")
    assert (row["Headroom"], row["Slope"], row["Limit In Step"]) == ("2.03", "-2.000", "3.0")
    assert "reaches in step 3" in capsys.readouterr().out


def test_ranks_are_joined_in_the_file(tmp_path: Path) -> None:
    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1]}
    reduced = "Distributed.all_reduce.0.forward"
    write_dump(tmp_path / "rank0", {reduced: forward([tensor()], [BAD], group=group)})
    write_dump(tmp_path / "rank1", {**BORN, reduced: forward([BAD], [BAD], group=group)})
    assert main(["overflow_check", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    found = rows(tmp_path / "out")
    assert [(each["Rank"], each["Birth"]) for each in found] == [
        ("0", "passed on"),
        ("1", "birth"),
        ("1", "passed on"),
    ]
    assert "rank 1 brought it, from Torch.exp.0.forward.output.0" in found[0]["Message"]
