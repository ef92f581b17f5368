"""A folder has dumps of one configuration."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from ray_precheck.capture.settings import capture_settings
from ray_precheck.capture.writing import claim as claim_module
from ray_precheck.capture.writing.claim import (
    CONFIGURATION,
    claim,
    earlier_dumps,
    new_folder,
    remove_earlier,
    require_own,
    size_of,
)
from ray_precheck.errors import UsageError

pytestmark = pytest.mark.unit


def test_the_same_settings_may_come_again_in_another_folder_and_with_other_limits(
    tmp_path: Path,
) -> None:
    claim(capture_settings(path=tmp_path, steps="0-2"), "pytorch")
    claim(capture_settings(path=tmp_path, steps=[0, 1, 2], keep_steps=2), "pytorch")
    assert json.loads((tmp_path / CONFIGURATION).read_text())["settings"]["steps"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"level": "mix"}, "level L1 there, mix here"),
        ({"steps": "5-7"}, "steps 0-2 there, 5-7 here"),
        ({"chosen": ["relu"]}, "chosen not given there, ['relu'] here"),
    ],
)
def test_other_settings_are_refused_with_the_difference(
    tmp_path: Path, other: dict[str, object], said: str
) -> None:
    claim(capture_settings(path=tmp_path, steps="0-2"), "pytorch")
    with pytest.raises(UsageError, match="another configuration") as caught:
        require_own(capture_settings(**{"path": tmp_path, "steps": "0-2", **other}))
    assert said in str(caught.value)


def test_another_framework_is_refused(tmp_path: Path) -> None:
    claim(capture_settings(path=tmp_path), "pytorch")
    with pytest.raises(UsageError, match="framework pytorch there, mindspore here"):
        claim(capture_settings(path=tmp_path), "mindspore")


def test_a_folder_that_another_process_claims_in_between_is_no_foreign_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, read = capture_settings(path=tmp_path), claim_module._read

    def before_it_was_claimed(path: Path) -> None:
        monkeypatch.setattr(claim_module, "_read", read)
        claim(settings, "pytorch")
        (path / "step0" / "rank1").mkdir(parents=True)

    monkeypatch.setattr(claim_module, "_read", before_it_was_claimed)
    require_own(settings, "pytorch")
    assert (tmp_path / CONFIGURATION).is_file()


def test_dumps_of_another_tool_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    for refuse in (require_own, claim):
        with pytest.raises(UsageError, match="that no capture of this package made"):
            refuse(capture_settings(path=tmp_path), "pytorch")
    assert [path.name for path in tmp_path.iterdir()] == ["step0"]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / CONFIGURATION).write_text("{")
    with pytest.raises(UsageError, match=r"capture\.json cannot be read"):
        require_own(capture_settings(path=tmp_path))


def test_many_ranks_may_claim_a_folder_at_once(tmp_path: Path) -> None:
    faults: list[Exception] = []

    def rank(number: int) -> None:
        try:
            claim(capture_settings(path=tmp_path), "pytorch")
            (tmp_path / "step0" / f"rank{number}").mkdir(parents=True)
        except (UsageError, OSError) as error:
            faults.append(error)

    threads = [Thread(target=rank, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [CONFIGURATION, "step0"]


def test_folders_that_are_older_than_a_run_are_found(tmp_path: Path) -> None:
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    (tmp_path / "stepx" / "rank0").mkdir(parents=True)
    changed = (tmp_path / "step0" / "rank0").stat().st_mtime
    assert earlier_dumps(tmp_path, changed) == []
    assert earlier_dumps(tmp_path, changed + 1) == [tmp_path / "step0" / "rank0"]


def test_the_folder_of_another_process_of_the_run_stays_while_that_lives(tmp_path: Path) -> None:
    """Two processes without a rank: the second begins when the first has its folder, and no log in it yet."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        folder = tmp_path / "step0" / f"proc{other.pid}"
        new_folder(folder)
        os.utime(folder, (0, 0))
        own = tmp_path / "step1" / f"proc{os.getpid()}"
        new_folder(own)
        os.utime(own, (0, 0))
        assert remove_earlier(tmp_path, own.name, time.time()) == 1
        assert folder.is_dir()
        assert not own.exists()
        other.kill()
    assert remove_earlier(tmp_path, own.name, time.time()) == 1
    assert not (tmp_path / "step0").exists()


def test_the_folder_of_a_step_may_be_removed_while_a_rank_makes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = [], Path.mkdir

    def mkdir(path: Path, *arguments: object, **named: object) -> None:
        if path.name == "rank1" and len(made) < 3:
            made.append(path)
            path.parent.rmdir()  # as rank 0 does that has just removed its earlier dump
        make(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    new_folder(tmp_path / "step0" / "rank1")
    assert (tmp_path / "step0" / "rank1").is_dir()
    assert len(made) == 3


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"x" * 100)
    (tmp_path / "b.pt").hardlink_to(tmp_path / "a.pt")
    assert size_of(tmp_path) == 100
