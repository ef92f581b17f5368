"""The runs over a folder of steps and ranks. No device is needed: every call is one of a collective,
which is skipped by its name, so that no Ray is started either."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml, TestSuite

import ray_precheck.commands.precheck.run
import ray_precheck.running.run
from ray_precheck.cli import NOTHING_CHECKED, STOPPED, UNUSABLE, main
from ray_precheck.commands.precheck.run import RanksReport, run_ranks
from ray_precheck.dump.folders import find_dumps
from ray_precheck.errors import DumpError, ResumeError, StoppedError, UsageError
from ray_precheck.replay.config import RunConfig
from ray_precheck.store.results import read_results

pytestmark = pytest.mark.unit

PLACES = ("step0/rank0", "step0/rank1", "step1/rank0")


def written(path: Path, *kinds: str) -> None:
    """A dump of one call of each of these collectives."""
    record = {"input_args": [], "input_kwargs": {}, "output": []}
    data = {f"Distributed.{kind}.0.forward": record for kind in kinds}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"task": "statistics", "framework": "pytorch", "data": data}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of two steps, of which one has two ranks."""
    for place in PLACES:
        written(tmp_path / "dumps" / place / "dump.json", "all_reduce", "broadcast")
    return tmp_path / "dumps"


def ran(root: Path, **settings: Any) -> RanksReport:
    """The report of the runs over all dumps below a folder."""
    config = RunConfig(root, out=root.parent / "out", device_type="cpu", **settings)
    return run_ranks(config, find_dumps(root), show_progress=False)


def results(folder: Path) -> dict[str, list[str]]:
    """The names that have rows, by the place of their result CSV."""
    return {
        path.parent.relative_to(folder).as_posix(): [row.name for row in read_results(path)]
        for path in sorted(folder.rglob("accuracy_checking_result_*.csv"))
    }


def test_every_dump_has_files_of_its_own_with_one_stamp(root: Path) -> None:
    report = ran(root)
    assert report.completed
    assert [rank.found.label for rank in report.ranks] == list(PLACES)
    names = ["Distributed.all_reduce.0", "Distributed.broadcast.0"]
    assert results(report.folder) == dict.fromkeys(PLACES, names)
    assert len({each.files.result.name for each in report.reports}) == 1
    assert {each.files.result.parent for each in report.reports} == {
        report.folder / place for place in PLACES
    }


def test_a_second_run_into_the_folder_leaves_the_first_one_alone(root: Path) -> None:
    first, second = ran(root), ran(root)
    stamps = {each.files.result.name for each in (*first.reports, *second.reports)}
    assert len(stamps) == 2


def test_it_goes_on_with_the_newest_run_of_all(root: Path) -> None:
    folder = ran(root).folder
    report = ran(root)
    kept, cut, gone = report.reports
    before = kept.files.result.stat().st_mtime_ns
    whole = cut.files.result.read_bytes()
    cut.files.result.write_bytes(whole[: whole.index(b"Distributed.broadcast")])
    for path in (gone.files.result, gone.files.details, gone.files.settings):
        path.unlink(missing_ok=True)
    again = ran(root, resume_csv=folder)
    assert again.completed
    assert [each.files.result for each in again.reports] == [
        each.files.result for each in report.reports
    ]
    assert cut.files.result.read_bytes() == gone.files.result.read_bytes() == whole
    assert kept.files.result.stat().st_mtime_ns == before
    assert len(list(folder.rglob("accuracy_checking_result_*.csv"))) == 6


def test_a_dump_whose_run_was_killed_before_its_first_row_keeps_the_stamp_of_all(
    root: Path,
) -> None:
    first = ran(root)
    names = {
        place: sorted(each.name for each in (first.folder / place).iterdir()) for place in PLACES
    }
    (result,) = (first.folder / PLACES[1]).glob("accuracy_checking_result_*.csv")
    for path in (result, *(first.folder / PLACES[1]).glob("accuracy_checking_details_*.csv")):
        path.unlink()
    again = ran(root, resume_csv=first.folder)
    assert again.completed
    assert names == {
        place: sorted(each.name for each in (again.folder / place).iterdir()) for place in PLACES
    }


def test_going_on_with_other_settings_is_refused(root: Path) -> None:
    folder = ran(root, keywords=("reduce",)).folder
    with pytest.raises(ResumeError, match="was made with selection"):
        ran(root, resume_csv=folder)
    assert ran(root, resume_csv=folder, force=True).completed


def test_one_result_csv_is_not_that_of_several_dumps(root: Path) -> None:
    result = ran(root).reports[0].files.result
    with pytest.raises(UsageError, match="is one file, but -api_info names 3 dumps"):
        ran(root, resume_csv=result)
    with pytest.raises(UsageError, match="does not exist, but -api_info names 3 dumps"):
        ran(root, resume_csv=root / "none")
    with pytest.raises(ResumeError, match=r"has no accuracy_checking_result_\*.csv to go on in"):
        ran(root, resume_csv=root)


def test_a_dump_that_cannot_be_read_leaves_the_others(root: Path) -> None:
    (root / "step0/rank1/dump.json").write_text("{")
    report = ran(root)
    assert report.completed
    assert [rank.is_unreadable for rank in report.ranks] == [False, True, False]
    assert "cut off" in report.ranks[1].problem
    assert len(results(report.folder)) == 2


def test_dumps_of_which_none_can_be_read_are_an_error(root: Path) -> None:
    for place in PLACES:
        (root / place / "dump.json").write_text("{")
    with pytest.raises(DumpError, match=r"step0/rank0/dump\.json is cut off"):
        ran(root)


def test_what_is_asked_for_by_name_must_be_in_one_of_the_dumps(root: Path) -> None:
    written(root / "step1/rank0/dump.json", "all_gather")
    report = ran(root, keywords=("gather",))
    assert [rank.report is None for rank in report.ranks] == [True, True, False]
    assert not report.ranks[0].is_unreadable
    assert results(report.folder) == {"step1/rank0": ["Distributed.all_gather.0"]}
    with pytest.raises(UsageError, match=r"-k 'scatter' fits no call of .*dumps;"):
        ran(root, keywords=("scatter",))


def test_a_signal_between_two_dumps_ends_it_resumably(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    @contextmanager
    def stop_on_signal() -> Iterator[threading.Event]:
        yield stop

    run = ray_precheck.commands.precheck.run.run

    def run_and_be_told(*arguments: Any, **options: Any) -> Any:
        report = run(*arguments, **options)
        stop.set()
        return report

    with monkeypatch.context() as patched:
        patched.setattr(ray_precheck.running.run, "stop_on_signal", stop_on_signal)
        patched.setattr(ray_precheck.commands.precheck.run, "run", run_and_be_told)
        report = ran(root)
    assert (report.completed, len(report.ranks), report.total) == (False, 1, 3)
    assert ran(root, resume_csv=report.folder).completed
    assert set(results(report.folder)) == set(PLACES)


@pytest.mark.parametrize("raises", [True, False])
def test_a_run_that_stops_ends_all_of_them(
    root: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    run = ray_precheck.commands.precheck.run.run

    def stopped(config: RunConfig, **options: Any) -> Any:
        report = run(config, **options)
        if config.dump.parent.name != "rank1":
            return report
        if raises:
            raise StoppedError("the disk is full")
        return replace(report, completed=False, stop_reason="the disk is full")

    monkeypatch.setattr(ray_precheck.commands.precheck.run, "run", stopped)
    report = ran(root)
    assert (report.completed, report.stop_reason) == (False, "the disk is full")
    assert len(report.ranks) == (1 if raises else 2)


def test_a_stop_before_the_first_row_leaves_nothing_to_go_on_with(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(config: RunConfig, **options: Any) -> Any:
        raise StoppedError("stopped before a row was written")

    monkeypatch.setattr(ray_precheck.commands.precheck.run, "run", stopped)
    with pytest.raises(StoppedError, match="before a row was written"):
        ran(root)


LINE = ["run_ut", "--device-type", "cpu", "-api_info"]


def test_the_command_takes_a_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(root.parent / "out")
    assert main([*LINE, str(root), "-o", out]) == NOTHING_CHECKED
    printed = capsys.readouterr()
    assert printed.out.startswith("3 of 3 dumps:\n")
    assert "\nAll together:\n6 APIs: 0 pass, 0 error, 6 SKIP\n" in printed.out
    assert "\n  step0/rank1  2 APIs: 0 pass, 0 error, 2 SKIP\n" in printed.out
    assert "step1/rank0 (3 of 3)" in printed.err
    main([*LINE, str(root / "step0" / "rank0"), "-o", out])
    assert "2 APIs: 0 pass, 0 error, 2 SKIP\n" in capsys.readouterr().out


def ci_files(root: Path, *arguments: str) -> tuple[int, dict[str, TestSuite], JUnitXml, Any]:
    """Run the command; return its exit code, the suites of --junit by name, that file, and --json."""
    folder = root.parent / "ci"
    folder.mkdir()
    files = ["--junit", str(folder / "r.xml"), "--json", str(folder / "r.json")]
    code = main([*LINE, str(root), "-o", str(root.parent / "out"), *files, *arguments])
    assert sorted(path.name for path in folder.iterdir()) == ["r.json", "r.xml"]
    xml = JUnitXml.fromfile(str(folder / "r.xml"))
    (machine,) = json.loads((folder / "r.json").read_text())["views"]
    return code, {suite.name: suite for suite in xml}, xml, machine


def test_one_file_for_ci_has_a_suite_or_an_entry_for_each_dump(root: Path) -> None:
    code, suites, xml, machine = ci_files(root)
    assert list(suites) == list(PLACES)
    assert (xml.tests, xml.skipped, xml.errors, xml.failures) == (6, 6, 0, 0)
    assert {(suite.tests, suite.skipped) for suite in suites.values()} == {(2, 2)}
    assert [(case.classname, case.name) for case in suites["step0/rank1"]] == [
        ("step0.rank1.Distributed.all_reduce", "Distributed.all_reduce.0"),
        ("step0.rank1.Distributed.broadcast", "Distributed.broadcast.0"),
    ]
    properties = {each.name: each.value for each in suites["step1/rank0"].properties()}
    assert properties["dump"] == str(root / "step1/rank0/dump.json")
    assert (machine["state"], machine["exit_code"], code) == ("finished", code, NOTHING_CHECKED)
    counts = {each["name"]: each["number"] for each in machine["counts"]}
    assert (counts["pass"], counts["error"], counts["SKIP"]) == (0, 0, 6)
    facts = {each["name"]: each["value"] for each in machine["facts"]}
    assert [facts[place] for place in PLACES] == ["2 calls: 0 pass, 0 error, 2 SKIP"] * 3
    calls = [each["file"] for each in machine["tables"] if each["title"] == "Calls"]
    assert [Path(each).parent for each in calls] == [root.parent / "out" / each for each in PLACES]


def test_the_file_for_ci_names_what_was_not_checked_and_not_begun(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "step0/rank0/dump.json").write_text("{")
    run = ray_precheck.commands.precheck.run.run

    def stopped(config: RunConfig, **options: Any) -> Any:
        report = run(config, **options)
        return replace(report, completed=False, stop_reason="the disk is full")

    monkeypatch.setattr(ray_precheck.commands.precheck.run, "run", stopped)
    code, suites, xml, machine = ci_files(root)
    assert code == machine["exit_code"] == STOPPED
    assert (xml.tests, xml.skipped, xml.errors) == (5, 2, 3)
    said = {name: [each.message for each in list(suites[name])[-1].result] for name in PLACES}
    assert "is cut off" in said["step0/rank0"][0]
    assert said["step0/rank1"] == ["stopped before the end, 2 of 2 calls done: the disk is full"]
    assert said["step1/rank0"] == ["not begun: the run stopped before"]
    assert {(s.tests, s.errors) for s in suites.values()} == {(1, 1), (3, 1)}
    assert machine["state"] == "stopped"
    assert machine["sentence"].startswith("Stopped before its end")
    assert "It stopped: the disk is full." in machine["notes"]
    cut, not_begun = machine["reasons"][:2]
    assert "is cut off" in cut["text"]
    assert cut["names"] == ["step0/rank0"]
    assert (not_begun["text"], not_begun["names"]) == (
        "not begun: the run stopped before",
        ["step1/rank0"],
    )


def test_a_dump_of_which_no_call_was_selected_is_skipped_in_the_file_for_ci(root: Path) -> None:
    written(root / "step1/rank0/dump.json", "all_gather")
    _, suites, xml, machine = ci_files(root, "-k", "all_gather")
    assert (xml.tests, xml.skipped, xml.errors) == (3, 3, 0)
    assert [suite.skipped for suite in suites.values()] == [1, 1, 1]
    assert [each["names"] for each in machine["reasons"][:2]] == [[each] for each in PLACES[:2]]


def test_a_dump_that_cannot_be_read_is_exit_code_2_at_the_end(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "step0/rank1/dump.json").write_text("{")
    assert main([*LINE, str(root), "-o", str(root.parent / "out")]) == UNUSABLE
    assert "  step0/rank1  not checked: " in capsys.readouterr().out


def test_a_folder_without_a_dump_is_exit_code_2_and_one_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*LINE, str(root.parent / "out")]) == UNUSABLE
    assert main([*LINE, str(root.parent)]) == UNUSABLE
    assert "holds no dump; looked for dump.json and dump.jsonl in it" in capsys.readouterr().err


def test_what_was_stopped_prints_the_command_that_goes_on_with_all(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ray_precheck.commands.precheck.run.run

    def stopped(*arguments: Any, **options: Any) -> Any:
        return replace(run(*arguments, **options), completed=False)

    out = root.parent / "out"
    with monkeypatch.context() as patched:
        patched.setattr(ray_precheck.commands.precheck.run, "run", stopped)
        assert main([*LINE, str(root), "-o", str(out)]) == STOPPED
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"-o {out} -csv_path {out}")
    assert main(last.split()[1:]) != STOPPED
    assert set(results(out)) == set(PLACES)
