"""A run that is killed at any moment goes on to the bytes of an undisturbed one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.chaos import comparisons
from scripts.chaos.comparisons import Work, comparison, location, overflow_check

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("write", "pieces"), [(comparison, 60), (overflow_check, 40), (location, 40)]
)
def test_killed_runs_end_with_the_same_bytes(
    tmp_path: Path, write: Callable[[Path, int], Work], pieces: int
) -> None:
    found = comparisons.tell_stories(tmp_path, kills=4, seed=1, work=write(tmp_path, pieces))
    assert found.kills >= 4
    assert found.different == []


def test_other_bytes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = comparisons._files
    monkeypatch.setattr(
        comparisons,
        "_files",
        lambda out, work: files(out, work) if out.name == "whole" else [b"cut"],
    )
    found = comparisons.tell_stories(tmp_path, kills=1, seed=1, work=comparison(tmp_path, 3))
    assert found.different
