"""The operator to blame is located in captures without files, from the command line to the table."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_precheck.cli import main
from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.locate.search import LocationReport
from ray_precheck.errors import PrecheckError
from ray_precheck.store import resume
from tests.unit.commands.small_captures import write_capture

pytestmark = pytest.mark.unit
RNG = np.random.default_rng(0)
A, B, C = (RNG.standard_normal((4, 8)).astype(np.float32) for _ in range(3))
SUM, PRODUCT = A + B, (A + B) * C
CALLS = [
    ("Mint.add.0.forward", [A, B], [SUM]),
    ("Mint.mul.0.forward", [SUM, C], [PRODUCT]),
    ("Mint.exp.0.forward", [PRODUCT], [np.exp(PRODUCT)]),
]
STACKS = {"Mint.mul.0.forward": ["File /home/me/net.py, line 7, in forward, \n return x * c"]}


def with_fault() -> list[Any]:
    """The calls where the product is a tenth too large, and so is what is made of it."""
    wrong = PRODUCT * 1.1
    return [
        CALLS[0],
        (CALLS[1][0], CALLS[1][1], [wrong]),
        (CALLS[2][0], [wrong], [np.exp(wrong)]),
    ]


def rows_of(report: LocationReport) -> list[dict[str, str]]:
    with report.table.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def located(
    folder: Path, target: Sequence[Any], golden: Sequence[Any], **more: Any
) -> LocationReport:
    one = write_capture(folder / "target", target, files=False, stacks=STACKS)
    two = write_capture(folder / "golden", golden, files=False)
    return locate_captures(one, two, out=folder / "out", **more)


def test_statistics_name_the_operator_and_say_that_it_is_an_estimate(tmp_path: Path) -> None:
    report = located(tmp_path, with_fault(), CALLS)
    first, second = rows_of(report)
    assert (first["Place"], first["API Name"], first["Direction"]) == ("1", "Mint.mul.0", "forward")
    assert first["Verdict"] == "own error (estimate)"
    assert first["Source"] == "/home/me/net.py:7, in forward: return x * c"
    assert "an estimate, as it was not replayed" in first["Message"]
    assert (second["Place"], second["API Name"], second["Verdict"]) == (
        "",
        "Mint.exp.0",
        "inherited",
    )


def test_equal_runs_have_nobody_to_blame(tmp_path: Path) -> None:
    report = located(tmp_path, CALLS, CALLS)
    assert rows_of(report) == []
    assert (report.judged, report.compared) == (3, 3)


def test_the_command_says_what_it_found_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_capture(tmp_path / "target", with_fault(), files=False, stacks=STACKS)
    two = write_capture(tmp_path / "golden", CALLS, files=False)
    words = ["locate", "-tp", str(one), "-gp", str(two), "-o", str(tmp_path / "out")]
    assert main([*words, "--graph"]) == 1
    said = capsys.readouterr().out
    assert "one operator is to blame:" in said
    assert "1. Mint.mul.0.forward: own error (estimate)" in said
    assert "/home/me/net.py:7, in forward: return x * c" in said
    assert "it reached 1 more record" in said
    (graph,) = (tmp_path / "out").glob("locate_graph_*.json")
    assert ["Mint.mul.0.forward", "Mint.exp.0.forward"] in json.loads(graph.read_text())[
        "dump.json"
    ]["links"]
    assert main(["locate", "-tp", str(two), "-gp", str(two), "-o", str(tmp_path / "same")]) == 0
    assert (
        "no operator is to blame: nothing but rounding separates the runs"
        in capsys.readouterr().out
    )


def test_ranks_and_steps_share_one_table(tmp_path: Path) -> None:
    for step in (0, 1):
        for rank in (0, 1):
            calls = with_fault() if (step, rank) == (1, 1) else CALLS
            write_capture(tmp_path / f"target/step{step}/rank{rank}", calls, files=False)
            write_capture(tmp_path / f"golden/step{step}/rank{rank}", CALLS, files=False)
    report = locate_captures(tmp_path / "target", tmp_path / "golden", out=tmp_path / "out")
    (first, *_) = rows_of(report)
    assert (first["Step"], first["Rank"], first["API Name"]) == ("1", "1", "Mint.mul.0")
    stamp = report.table.stem.rpartition("_")[2]
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.csv")) == [
        report.table.name,
        f"locate_dumps_{stamp}.csv",
        f"locate_roots_{stamp}.csv",
        f"ranks_{stamp}.csv",
        f"ranks_dumps_{stamp}.csv",
        f"ranks_layout_{stamp}.csv",
    ]


def refused(folder: Path, target: Path, golden: Path | None = None, **more: Any) -> str:
    with pytest.raises(PrecheckError) as caught:
        locate_captures(target, golden, out=folder / "out", **more)
    assert not list(folder.glob("out/**/*.csv"))
    return str(caught.value)


def test_statistics_alone_need_a_golden_run(tmp_path: Path) -> None:
    one = write_capture(tmp_path / "target", CALLS, files=False)
    said = refused(tmp_path, one)
    assert "has no files of tensors" in said
    assert "-gp" in said


def test_a_replay_that_is_insisted_on_needs_captured_inputs(tmp_path: Path) -> None:
    one = write_capture(tmp_path / "target", CALLS, files=False)
    assert "--replay needs captured inputs" in refused(tmp_path, one, one, replay=True)


def test_captures_without_a_common_call_are_refused(tmp_path: Path) -> None:
    one = write_capture(tmp_path / "target", CALLS[:1], files=False)
    other = np.ones((3, 5, 2), np.float32)
    two = write_capture(
        tmp_path / "golden", [("Mint.conv2d.0.forward", [other], [other])], files=False
    )
    assert "have no call in common" in refused(tmp_path, one, two)


def test_the_update_of_an_optimizer_alone_makes_no_common_call(tmp_path: Path) -> None:
    update = ("Optimizer.SGD.0.forward", [A], [B])
    other = np.ones((3, 5, 2), np.float32)
    one = write_capture(tmp_path / "target", [CALLS[0], update], files=False)
    two = write_capture(
        tmp_path / "golden", [("Mint.conv2d.0.forward", [other], [other]), update], files=False
    )
    assert "have no call in common" in refused(tmp_path, one, two)
    three = write_capture(tmp_path / "updates", [update], files=False)
    assert locate_captures(three, two, out=tmp_path / "both").compared == 1


def test_folders_without_a_common_rank_are_refused(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_capture(tmp_path / f"target/step0/rank{rank}", CALLS, files=False)
        write_capture(tmp_path / f"golden/step5/rank{rank}", CALLS, files=False)
    said = refused(tmp_path, tmp_path / "target", tmp_path / "golden")
    assert "no two are of the same step and rank" in said


def test_a_file_that_is_none_of_a_search_is_no_run_to_go_on_with(tmp_path: Path) -> None:
    one = write_capture(tmp_path / "target", CALLS, files=False)
    other = tmp_path / "compare_calls_20260101000000.csv"
    other.write_text("Call\n")
    with pytest.raises(PrecheckError, match="is no table of such a run; a name like locate_"):
        locate_captures(one, one, resume_csv=other)


def test_two_searches_of_the_same_second_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume.time, "strftime", lambda form: "20260102030405")
    wrong = write_capture(tmp_path / "target", with_fault(), files=False)
    right = write_capture(tmp_path / "golden", CALLS, files=False)
    out = tmp_path / "out"
    first = locate_captures(wrong, right, out=out)
    found = rows_of(first)
    second = locate_captures(right, right, out=out)
    names = ("locate_20260102030405.csv", "locate_20260102030405_1.csv")
    assert (first.table.name, second.table.name) == names
    assert found
    assert rows_of(first) == found
    assert rows_of(second) == []
    # Each is gone on with by its own name, and the folder stands for the newest.
    for resumed in (out, out / "locate_dumps_20260102030405_1.csv"):
        again = locate_captures(right, right, out=out, resume_csv=resumed)
        assert (again.table.name, rows_of(again)) == (names[1], [])
    assert list(out.glob("*.reserved")) == []


def test_a_capture_that_was_cut_off_is_used_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write_capture(tmp_path / "target", with_fault(), files=False)
    two = write_capture(tmp_path / "golden", CALLS, files=False)
    content = json.loads(one.read_text())
    header = {key: value for key, value in content.items() if key != "data"}
    lines = [json.dumps({**header, "log": 1})]
    lines += [json.dumps({key: record}) for key, record in content["data"].items()]
    one.unlink()
    (one.parent / "dump.jsonl").write_text("\n".join(lines) + '\n{"Mint.to', encoding="utf-8")
    code = main(["locate", "-tp", str(one.parent), "-gp", str(two), "-o", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert code == 1
    assert "is the log of a capture that was cut off" in said.err
    assert "1. Mint.mul.0.forward" in said.out


def test_a_rank_whose_dump_cannot_be_read_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("target", "golden"):
        for rank in range(2):
            write_capture(tmp_path / side / "step0" / f"rank{rank}", CALLS, files=False)
    torn = tmp_path / "golden" / "step0" / "rank1" / "dump.json"
    torn.write_text(torn.read_text()[:-90])
    words = ["-tp", str(tmp_path / "target"), "-gp", str(tmp_path / "golden")]
    view = tmp_path / "view.json"
    assert main(["locate", *words, "-o", str(tmp_path / "out"), "--json", str(view)]) == 2
    said = capsys.readouterr().out
    assert "1 of 2 dumps could not be read, and nothing is said of them: step0/rank1" in said
    assert json.loads(view.read_text())["views"][0]["exit_code"] == 2


def test_modules_alone_are_estimated_and_cannot_be_replayed(tmp_path: Path) -> None:
    def modules(calls: Sequence[Any]) -> list[Any]:
        return [(f"Cell.{key.split('.')[1]}.Net.forward.0", *values) for key, *values in calls]

    report = located(tmp_path, modules(with_fault()), modules(CALLS))
    assert report.places[0].root.key == "Cell.mul.Net.forward.0"
    one = write_capture(tmp_path / "real", modules(CALLS))
    with pytest.raises(PrecheckError, match="holds modules alone"):
        locate_captures(one, one, out=tmp_path / "no", replay=True)


def test_both_neighbours_of_a_gap_have_their_source_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = SUM * 3
    wrong = hidden * 1.1
    stacks = {
        "Mint.add.0.forward": ["File /home/me/net.py, line 3, in forward, \n x + y"],
        "Mint.mul.0.forward": ["File /home/me/net.py, line 7, in forward, \n return x * c"],
    }
    calls = [CALLS[0], ("Mint.mul.0.forward", [wrong, C], [wrong * C])]
    golden = [CALLS[0], ("Mint.mul.0.forward", [hidden, C], [hidden * C])]
    one = write_capture(tmp_path / "target", calls, files=False, stacks=stacks)
    two = write_capture(tmp_path / "golden", golden, files=False)
    assert main(["locate", "-tp", str(one), "-gp", str(two), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "between Mint.add.0.forward and Mint.mul.0.forward was not captured" in said
    assert "Mint.add.0.forward is at /home/me/net.py:3, in forward: x + y" in said
    assert "   /home/me/net.py:7, in forward: return x * c" in said
