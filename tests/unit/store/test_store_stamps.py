"""The stamps of runs: new ones that name no run, and the newest."""

from pathlib import Path

import pytest

from ray_precheck.errors import UsageError
from ray_precheck.store import resume
from ray_precheck.store.resume import (
    newest_there,
    release_stamp,
    reserved_stamp,
    result_of,
    stamp_in,
)

pytestmark = pytest.mark.unit


def result(folder: Path, stamp: str) -> Path:
    """An empty result CSV with this stamp."""
    folder.mkdir(exist_ok=True)
    path = result_of(folder, stamp)
    path.touch()
    return path


def test_the_newest_run_has_the_last_stamp(tmp_path: Path) -> None:
    for stamp in ("20260102030405_2", "20260102030405", "20260102030405_10", "20250102030405"):
        result(tmp_path / "a", stamp)
    result(tmp_path / "b", "20260102030405_1")
    places, pattern = [Path("a"), Path("b")], "accuracy_checking_result_*.csv"
    assert newest_there(tmp_path, places, pattern) == "20260102030405_10"


def test_runs_of_the_same_second_reserve_other_stamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume.time, "strftime", lambda form: "20260102030405")
    with reserved_stamp(tmp_path, "locate") as first, reserved_stamp(tmp_path, "locate") as second:
        assert (first, second) == ("20260102030405", "20260102030405_1")
    assert list(tmp_path.iterdir()) == []
    # A file of a run that has ended keeps its stamp, in the folder and in its places.
    (tmp_path / "step0").mkdir()
    (tmp_path / "step0" / "locate_calls_20260102030405.csv").touch()
    with reserved_stamp(tmp_path, "locate", [Path("step0"), Path("step1")]) as third:
        assert third == "20260102030405_1"
    # What is elsewhere below the folder is nobody's concern: it may be somebody's home.
    with reserved_stamp(tmp_path, "locate", [Path("step1")]) as fourth:
        assert fourth == "20260102030405"


def test_a_folder_that_was_made_and_is_empty_in_the_end_is_removed(tmp_path: Path) -> None:
    with reserved_stamp(tmp_path / "a" / "b", "compare"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    with reserved_stamp(tmp_path / "a" / "b", "compare"):
        (tmp_path / "a" / "b" / "rows.csv").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["rows.csv"]
    (tmp_path / "mine").mkdir()
    with reserved_stamp(tmp_path / "mine", "compare"):
        pass
    assert (tmp_path / "mine").is_dir()


def test_what_a_killed_run_left_of_its_reservation_is_removed(tmp_path: Path) -> None:
    (tmp_path / "compare_20260102030405.reserved").touch()
    release_stamp(tmp_path, "compare", "20260102030405")
    release_stamp(tmp_path, "compare", "20260102030405")
    assert list(tmp_path.iterdir()) == []


def test_the_newest_stamp_is_looked_for_in_the_places_alone(tmp_path: Path) -> None:
    for place, stamp in (("step0", "20260102030405"), ("other", "20270102030405")):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"compare_calls_{stamp}.csv").touch()
    assert newest_there(tmp_path, [Path("step0")], "compare_calls_*.csv") == "20260102030405"
    assert newest_there(tmp_path, [], "compare_calls_*.csv") == ""


def test_a_stamp_is_not_reserved_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with (
        pytest.raises(UsageError, match="out is a file; name a folder for the results"),
        reserved_stamp(tmp_path / "out", "locate"),
    ):
        pytest.fail("the block ran")


@pytest.mark.parametrize(
    ("name", "stamp"),
    [
        ("locate_calls_20260102030405.csv", "20260102030405"),
        ("locate_20260102030405_12.csv", "20260102030405_12"),
        ("compare_result.csv", ""),
        ("locate_2026.csv", ""),
    ],
)
def test_the_name_of_a_file_has_the_stamp_of_its_run(name: str, stamp: str) -> None:
    assert stamp_in(Path(name)) == stamp
