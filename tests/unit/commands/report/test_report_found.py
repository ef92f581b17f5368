"""Which runs a folder has results of."""

from pathlib import Path

import pytest

from ray_precheck.commands.report.found import VIEWERS, find_groups
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit
STAMP, LATER = "20260101120000", "20260101120001_2"


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def found(out: Path) -> list[tuple[str, str, list[str]]]:
    return [
        (group.viewer.room, group.place, [run.label for run in group.runs])
        for group in find_groups(out)
    ]


def test_runs_of_all_commands_are_found(tmp_path: Path) -> None:
    touch(tmp_path, *(viewer.name.replace("*", STAMP) for viewer in VIEWERS))
    touch(tmp_path, f"compare_result_{STAMP}.csv", f"locate_dumps_{STAMP}.csv", "locate_x.csv")
    assert [room for room, _, _ in found(tmp_path)] == [viewer.room for viewer in VIEWERS]
    for viewer in VIEWERS:
        assert found(tmp_path / viewer.name.replace("*", STAMP)) == [(viewer.room, "", [""])]


def test_ranks_and_steps_are_one_run_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for place in ("step0/rank10", "step0/rank2", "step1/proc7"):
        touch(tmp_path / place, f"accuracy_checking_result_{STAMP}.csv")
    touch(tmp_path / "suspects" / "rank0", f"accuracy_checking_result_{STAMP}.csv")
    touch(tmp_path / "error_data", f"naive_{STAMP}.csv")
    assert found(tmp_path) == [
        ("precheck", "", ["step0/rank2", "step0/rank10", "step1/proc7"]),
        ("precheck", "suspects", ["rank0"]),
    ]


def test_files_of_two_runs_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, f"naive_{STAMP}.csv", f"naive_{LATER}.csv")
    with pytest.raises(UsageError) as raised:
        find_groups(tmp_path)
    assert str(raised.value) == (
        f"report: {tmp_path} has the results of 2 runs (naive_{STAMP}.csv, naive_{LATER}.csv); name one of"
        f" them: ray-precheck report {tmp_path}/naive_{LATER}.csv"
    )
    assert found(tmp_path / f"naive_{STAMP}.csv") == [("naive", "", [""])]


def test_a_folder_without_results_says_what_was_looked_for(tmp_path: Path) -> None:
    touch(tmp_path, "dump.json")
    with pytest.raises(UsageError, match=r"has no result files; looked for diagnose_\*\.txt, "):
        find_groups(tmp_path)
    with pytest.raises(UsageError, match=r"there is no folder .*/none; name that of the results"):
        find_groups(tmp_path / "none")
    with pytest.raises(UsageError, match=r"dump\.json is no result file; expected one of"):
        find_groups(tmp_path / "dump.json")


def test_a_search_is_found_before_its_table_is_written(tmp_path: Path) -> None:
    touch(tmp_path / "step0" / "rank1", f"locate_calls_{STAMP}.csv")
    (group,) = find_groups(tmp_path)
    assert (group.viewer.room, [run.main for run in group.runs]) == (
        "locate",
        [tmp_path / f"locate_{STAMP}.csv"],
    )
    touch(tmp_path, f"locate_{STAMP}.csv")
    (group,) = find_groups(tmp_path)
    assert [run.main for run in group.runs] == [tmp_path / f"locate_{STAMP}.csv"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    touch(tmp_path / "out", f"naive_{STAMP}.csv")
    (tmp_path / "out" / "again").symlink_to(tmp_path / "out")
    assert found(tmp_path / "out") == [("naive", "", [""])]
