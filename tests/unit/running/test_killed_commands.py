"""A run that is killed at any moment goes on to the bytes of an undisturbed one."""

import os
from collections.abc import Callable
from pathlib import Path

import killed_commands
import pytest
from killed_commands import Work, comparison, location, overflow_check

pytestmark = pytest.mark.unit
# How many commands of a kind are killed at least, and the seed of the moments.
KILLS, SEED = (int(os.environ.get(name, less)) for name, less in (("KILLS", 4), ("SEED", 1)))


@pytest.mark.parametrize(
    ("write", "pieces"),
    [
        (comparison, 60),
        # Killed once: tests/cluster/test_cluster_overflow.py, test_cluster_diagnose.py.
        pytest.param(overflow_check, 40, marks=pytest.mark.exhaustive),
        pytest.param(location, 40, marks=pytest.mark.exhaustive),
    ],
)
def test_killed_runs_end_with_the_same_bytes(
    tmp_path: Path, write: Callable[[Path, int], Work], pieces: int
) -> None:
    found = killed_commands.tell_stories(
        tmp_path, kills=KILLS, seed=SEED, work=write(tmp_path, pieces)
    )
    assert found.kills >= KILLS
    assert found.different == []


def test_other_bytes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = killed_commands._files
    monkeypatch.setattr(
        killed_commands,
        "_files",
        lambda out, work: files(out, work) if out.name == "whole" else [b"cut"],
    )
    found = killed_commands.tell_stories(tmp_path, kills=1, seed=1, work=comparison(tmp_path, 3))
    assert found.different
