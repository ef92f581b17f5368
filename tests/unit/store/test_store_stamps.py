"""The stamps of runs: new ones that name no run, and the newest."""

from pathlib import Path

import pytest

from ray_precheck.errors import ResumeError
from ray_precheck.store import stamps
from ray_precheck.store.stamps import new_stamp, newest_result, newest_stamp, result_of

pytestmark = pytest.mark.unit


def result(folder: Path, stamp: str) -> Path:
    """An empty result CSV with this stamp."""
    folder.mkdir(exist_ok=True)
    path = result_of(folder, stamp)
    path.touch()
    return path


def test_a_new_stamp_names_no_run_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps.time, "strftime", lambda form: "20260102030405")
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "missing"]
    assert new_stamp(folders) == "20260102030405"
    result(folders[0], "20260102030405")
    result(folders[1], "20260102030405_1")
    assert new_stamp(folders) == "20260102030405_2"


def test_the_newest_run_has_the_last_stamp(tmp_path: Path) -> None:
    for stamp in ("20260102030405_2", "20260102030405", "20260102030405_10", "20250102030405"):
        result(tmp_path / "a", stamp)
    newest = result(tmp_path / "b", "20260102030405_10")
    assert newest_stamp([tmp_path / "a", tmp_path / "b"]) == "20260102030405_10"
    assert newest_result(tmp_path / "b") == newest == result_of(tmp_path / "b", "20260102030405_10")


def test_a_folder_without_results_is_said(tmp_path: Path) -> None:
    assert newest_stamp([tmp_path]) == ""
    with pytest.raises(ResumeError, match=r"has no accuracy_checking_result_\*.csv to go on in"):
        newest_result(tmp_path)
