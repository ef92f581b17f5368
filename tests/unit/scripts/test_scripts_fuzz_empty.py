"""What the fuzzer clears away is its own: where a link leads, nothing is removed."""

from pathlib import Path

import pytest

from scripts.fuzz.target import empty

pytestmark = pytest.mark.unit


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "inner"
    kept.mkdir(parents=True)
    (kept / "file").touch()
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").touch()
    for name, goal in (
        ("a", tmp_path / "kept"),
        ("sub/b", kept),
        ("c", kept / "file"),
        ("d", folder),
    ):
        (folder / name).symlink_to(goal)
    empty(folder)
    assert list(folder.iterdir()) == []
    assert (kept / "file").exists()
