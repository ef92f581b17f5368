"""The operator to blame among the ranks of a run, whose captures have statistics alone."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from ray_precheck.commands.locate import search as location_pairs
from ray_precheck.commands.locate.run import locate_captures
from ray_precheck.commands.locate.search import LocationReport, has_tensor_files
from ray_precheck.commands.locate.table import PAIR_TABLES
from ray_precheck.errors import DumpError
from scripts.speed.locate_scale import faulty_call, make_runs, operators

pytestmark = pytest.mark.unit
RANKS, CALLS, VARIANTS = 6, 303, 3
NUMBER = operators(CALLS)[: faulty_call(CALLS)].count("linear")
CULPRIT = f"Functional.linear.{NUMBER}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder, RANKS, CALLS, VARIANTS)
    return folder


def rows_of(report: LocationReport) -> list[dict[str, str]]:
    with report.table.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def located(runs: Path, out: Path, **more: object) -> LocationReport:
    return locate_captures(runs / "target", runs / "golden", out=out, **more)


def test_one_rank_is_to_blame_and_the_others_inherit_through_the_sum(
    runs: Path, tmp_path: Path
) -> None:
    report = located(runs, tmp_path)
    first, *rest = rows_of(report)
    assert (first["Rank"], first["API Name"]) == ("3", CULPRIT)
    assert first["Message"].endswith("; on rank 3 alone of 6")
    assert {row["Verdict"] for row in rest} == {"inherited"}
    (sum_row,) = [row for row in rest if row["Message"].startswith("inherited from rank 3")]
    assert (sum_row["Rank"], sum_row["API Name"]) == ("0-2,4-5", "Distributed.all_reduce.1")
    assert sum_row["Message"] == f"inherited from rank 3 ({CULPRIT}.forward)"


def test_what_all_ranks_pass_on_has_one_row(runs: Path, tmp_path: Path) -> None:
    after = [row for row in rows_of(located(runs, tmp_path)) if row["Rank"] == "0-5"]
    names = [row["API Name"] for row in after]
    assert len(names) == len(set(names)) == CALLS - operators(CALLS).index("all_reduce", 150) - 1


def test_honest_ranks_have_no_root(runs: Path, tmp_path: Path) -> None:
    report = locate_captures(runs / "golden", runs / "golden", out=tmp_path)
    assert (report.places, rows_of(report)) == ((), [])
    assert report.compared == RANKS * CALLS


def test_rows_of_what_passes_an_error_on_are_limited_and_the_rest_is_counted(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location_pairs, "_MOST_PASSED", 0)
    monkeypatch.setattr(location_pairs, "_FEWEST_PASSED", 5)
    report = located(runs, tmp_path)
    *rows, last = rows_of(report)
    assert sum(row["Verdict"] == "inherited" for row in rows) < 30
    assert (last["API Name"], last["Verdict"]) == ("", "inherited")
    assert last["Message"].endswith(
        "more records of 6 dumps only pass an error on, further down, and have no row"
    )
    assert (rows[0]["Rank"], rows[0]["API Name"]) == ("3", CULPRIT)
    left_out = sum(dump.located.left_out for dump in report.dumps)
    assert last["Message"].startswith(f"{left_out} more records")


def test_links_of_many_pairs_are_noted_where_a_graph_is_asked_for(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def links(name: str, *, graph: bool) -> int:
        located(runs, tmp_path / name, graph=graph)
        (file,) = (tmp_path / name).glob("locate_roots_*.csv")
        return file.read_text(encoding="utf-8-sig").count("\nlink,")

    assert links("few", graph=False) > 0
    monkeypatch.setattr(location_pairs, "MOST_LINKED", RANKS - 1)
    assert links("many", graph=False) == 0
    assert links("drawn", graph=True) > 0


def test_a_search_that_was_killed_goes_on_and_makes_the_same_bytes(
    runs: Path, tmp_path: Path
) -> None:
    whole = located(runs, tmp_path / "whole")
    out = tmp_path / "killed"
    stamp = located(runs, out).table.stem.rpartition("_")[2]
    for kind in ("result", "details"):
        path = out / PAIR_TABLES.file(kind, stamp)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    run = out / f"locate_{stamp}.run.json"
    settings = json.loads(run.read_text())
    settings.pop("completed", None)
    run.write_text(json.dumps(settings))
    (out / f"locate_{stamp}.csv").unlink()
    again = located(runs, out, resume_csv=out)
    assert again.table.read_bytes() == whole.table.read_bytes()
    for kind in ("result", "details"):
        theirs = PAIR_TABLES.file(kind, whole.table.stem.rpartition("_")[2])
        assert (out / PAIR_TABLES.file(kind, stamp)).read_bytes() == (
            whole.folder / theirs
        ).read_bytes()


def test_pairs_that_are_done_are_not_searched_again(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    located(runs, tmp_path)
    monkeypatch.setattr(
        location_pairs, "search", lambda payload, paths: pytest.fail("searched again")
    )
    assert located(runs, tmp_path, resume_csv=tmp_path).completed


def _copied(runs: Path, folder: Path, broken: int) -> Path:
    for side in ("target", "golden"):
        for rank in range(2):
            place = folder / side / "step0" / f"rank{rank}"
            place.mkdir(parents=True)
            source = runs / side / "step0" / f"rank{rank}" / "dump.json"
            (place / "dump.json").write_bytes(b"{" if rank < broken else source.read_bytes())
    return folder


def test_a_dump_that_cannot_be_read_is_named_and_the_others_are_searched(
    runs: Path, tmp_path: Path
) -> None:
    report = located(_copied(runs, tmp_path / "runs", broken=1), tmp_path / "out")
    assert any(note.startswith("step0/rank0: ") and "cut off" in note for note in report.notes)
    assert [dump.located.records for dump in report.dumps] == [0, CALLS]


def test_dumps_that_cannot_be_read_at_all_are_an_error_and_leave_no_file(
    runs: Path, tmp_path: Path
) -> None:
    with pytest.raises(DumpError, match="cut off"):
        located(_copied(runs, tmp_path / "runs", broken=2), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.csv"))


@pytest.mark.parametrize(
    ("content", "has"),
    [
        ('{"task": "tensor", "data": {}}', True),
        ('{"task": "statistics", "data": {"Torch.add.0.forward": {}}}', False),
        ('{"data": {"Torch.add.0.forward": {"input_args": [{"data_name": "a.pt"}]}}}', True),
    ],
)
def test_whether_tensors_are_in_files_is_told_by_the_head_of_a_dump(
    tmp_path: Path, content: str, has: bool
) -> None:
    (tmp_path / "dump.json").write_text(content)
    assert has_tensor_files(tmp_path / "dump.json") is has


def test_processes_without_ranks_are_searched_and_not_checked_against_each_other(
    runs: Path, tmp_path: Path
) -> None:
    for side in ("target", "golden"):
        for rank in range(2):
            source = runs / side / f"step0/rank{rank}/dump.json"
            path = tmp_path / side / f"step0/proc{100 + rank}/dump.json"
            path.parent.mkdir(parents=True)
            path.write_bytes(source.read_bytes())
    report = located(tmp_path, tmp_path / "out")
    assert report.completed
    assert report.ranks is None
    assert len(report.dumps) == 2


def test_ranks_that_cannot_be_summarized_are_searched_all_the_same(
    runs: Path, tmp_path: Path
) -> None:
    for rank in range(2):
        for side in ("target", "golden"):
            dump = json.loads((runs / side / f"step0/rank{rank}/dump.json").read_text())
            call = dump["data"]["Functional.linear.0.forward"]
            call["output"][0]["sketch"] = 7
            path = tmp_path / side / f"step0/rank{rank}/dump.json"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(dump))
            np.save(path.with_name("sketches.npy"), np.zeros((1, 64), "<f4"))  # It was cut.
    report = located(tmp_path, tmp_path / "out")
    assert report.completed
    assert report.ranks is None
    assert [each for each in report.notes if "ranks were not checked against each other" in each]
