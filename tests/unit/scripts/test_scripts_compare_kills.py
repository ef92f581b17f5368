"""A comparison that is killed at any moment goes on to the bytes of an undisturbed one."""

from pathlib import Path

import pytest

from scripts import compare_kills

pytestmark = pytest.mark.unit


def test_killed_comparisons_end_with_the_same_bytes(tmp_path: Path) -> None:
    found = compare_kills.tell_stories(tmp_path, kills=4, seed=1, calls=60)
    assert found.kills >= 4
    assert found.different == []


def test_other_bytes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = compare_kills._files
    monkeypatch.setattr(
        compare_kills,
        "_files",
        lambda out: files(out) if out.name == "whole" else [*files(out)[:1], b"cut"],
    )
    found = compare_kills.tell_stories(tmp_path, kills=1, seed=1, calls=3)
    assert found.different
