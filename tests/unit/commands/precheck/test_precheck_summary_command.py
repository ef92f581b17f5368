"""The command summary: finished, stopped and running files, and its exit codes."""

import json
import os
from pathlib import Path

import pytest

from ray_precheck.cli import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED, UNUSABLE, main
from ray_precheck.replay.job import done_of
from ray_precheck.running import plot
from ray_precheck.schema.environment import Environment, environment_to_dict
from ray_precheck.schema.result import Outcome, TaskResult, Verdict, skipped
from ray_precheck.store.claim import claimed
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import start_run
from ray_precheck.store.settings import RunSettings, note_environment
from ray_precheck.store.tables import RunFiles

pytestmark = pytest.mark.unit

PASS = TaskResult(0, "Mint.a.0", Outcome.COMPLETED, Verdict.PASS, Verdict.NONE)
WRONG = TaskResult(
    1, "Mint.b.0", Outcome.COMPLETED, Verdict.ERROR, Verdict.NONE, "forward.output.0: large"
)
LEFT_OUT = skipped(2, "Mint.c.0", "not supported", False)


def run_of(folder: Path, *results: TaskResult, complete: bool = True) -> RunFiles:
    """The files of a run with these results, of three calls."""
    files = start_run(folder, "20260101120000", RunSettings({"seed": "7", "standard": "msprobe"}))
    there = Environment(kind="npu", devices=4, calls=3, framework="mindspore")
    note_environment(files.settings, environment_to_dict(there))
    journal = Journal.open(files.result, files.details)
    journal.append([done_of(result) for result in results])
    if complete:
        journal.complete([result.name for result in results])
    else:
        journal.close()
    return files


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ((PASS, LEFT_OUT), PASSED),
        ((PASS, WRONG), IN_ERROR),
        ((LEFT_OUT,), NOTHING_CHECKED),
        ((), NOTHING_CHECKED),
    ],
)
def test_a_finished_run_has_its_own_exit_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    results: tuple[TaskResult, ...],
    code: int,
) -> None:
    files = run_of(tmp_path, *results)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["summary", str(files.result)]) == code
    out = capsys.readouterr().out
    assert out.startswith(f"{files.result.name}: finished\n{len(results)} APIs: ")
    assert "on 4 npu" in out
    assert "With:     standard msprobe, seed 7" in out
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_that_stopped_says_so_whatever_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = run_of(tmp_path, PASS, WRONG, complete=False)
    assert main(["summary", str(files.result)]) == STOPPED
    assert ": stopped before the end, 2 of 3 calls done\n" in capsys.readouterr().out


def test_a_run_that_is_running_says_so_and_its_torn_line_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = run_of(tmp_path, PASS, complete=False)
    with claimed(files.lock):
        journal = Journal.open(files.result, files.details)
        journal.append([done_of(WRONG)])
        with files.result.open("ab") as file:
            file.write(b"Mint.c.0,pa")
        assert main(["summary", str(files.result)]) == STOPPED
        journal.close()
    out = capsys.readouterr().out
    assert f": still running in process {os.getpid()} on " in out
    assert ", 2 of 3 calls done\n2 APIs: 1 pass, 1 error, 0 SKIP\n" in out
    assert main(["summary", str(files.result)]) == STOPPED
    assert ": stopped before the end, " in capsys.readouterr().out


def test_a_run_that_has_no_row_yet_is_summed_up_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = start_run(tmp_path, "20260101120000", RunSettings({}))
    files.result.unlink(missing_ok=True)
    assert main(["summary", str(files.result)]) == STOPPED
    assert ": stopped before the end, 0 calls done\n0 APIs: " in capsys.readouterr().out


def test_files_without_settings_as_msprobe_writes_them_count_as_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = run_of(tmp_path, PASS)
    files.settings.unlink()
    assert main(["summary", str(files.result)]) == PASSED
    out = capsys.readouterr().out
    assert ": finished\n1 APIs: 1 pass" in out
    assert "Tested:" not in out


def test_the_files_for_ci_are_written_from_the_files_of_the_run(tmp_path: Path) -> None:
    files = run_of(tmp_path / "run", PASS, WRONG, LEFT_OUT)
    junit, machine = tmp_path / "j.xml", tmp_path / "j.json"
    code = main(["summary", str(files.result), "--junit", str(junit), "--json", str(machine)])
    assert code == IN_ERROR
    assert json.loads(machine.read_text())["views"][0]["exit_code"] == IN_ERROR
    assert b'tests="3" failures="1" errors="0" skipped="1"' in junit.read_bytes()


def test_the_view_is_all_that_is_printed_where_json_names_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = run_of(tmp_path / "run", PASS, WRONG, LEFT_OUT)
    assert main(["summary", str(files.result), "--json", "-", "--plot"]) == IN_ERROR
    printed = capsys.readouterr()
    (view,) = json.loads(printed.out)["views"]
    assert view["sentence"].startswith("1 operator is in error: ")
    assert "3 APIs: 1 pass, 1 error, 1 SKIP" in printed.err
    assert "there is nothing to draw" in printed.err


def test_a_package_that_is_missing_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    for line in (["summary", str(tmp_path / "accuracy_checking_result_1.csv")], RUN):
        assert main([*line, "--plot"]) == UNUSABLE
        assert capsys.readouterr().err == (
            "ray-precheck: error: --plot draws with the package rich, which is missing: pip install rich\n"
        )


RUN = ["run_ut", "-api_info", "none.json"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("result.csv", b"", "is no result CSV: a name like"),
        ("accuracy_checking_details_1.csv", b"", "is no result CSV: a name like"),
        ("accuracy_checking_result_1.csv", None, "cannot read"),
        ("accuracy_checking_result_1.csv", b"a,b\r\n", "its first line must be API Name, Forward"),
    ],
)
def test_what_is_no_result_csv_is_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes | None,
    message: str,
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert main(["summary", str(path)]) == UNUSABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_a_result_csv_that_is_a_folder_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "accuracy_checking_result_1.csv").mkdir()
    assert main(["summary", str(tmp_path / "accuracy_checking_result_1.csv")]) == UNUSABLE
    assert "cannot read" in capsys.readouterr().err
