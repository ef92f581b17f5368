"""Two runs never write the same files at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_results import encoded, passed

from ray_precheck.errors import ResumeError, StoppedError
from ray_precheck.store import claim
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import resume_run, start_run
from ray_precheck.store.settings import RunSettings

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim.lock_file, "__defaults__", (0.2,))


def test_a_second_journal_on_the_same_files_is_refused(tmp_path: Path) -> None:
    files = start_run(tmp_path, "20260101120000", RunSettings({}))
    first = Journal.open(files.result, files.details)
    with pytest.raises(StoppedError, match="another run is writing them"):
        Journal.open(files.result, files.details)
    first.append(encoded([passed(0, "Mint.a.0")]))
    first.close()
    Journal.open(files.result, files.details).close()


def test_a_resume_of_a_run_that_goes_on_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    files = start_run(tmp_path, "20260101120000", RunSettings({}))
    journal = Journal.open(files.result, files.details)
    journal.append(encoded([passed(0, "Mint.a.0")]))
    os.truncate(files.details, files.details.stat().st_size - 3)
    before = files.details.read_bytes()
    with pytest.raises(ResumeError, match=r"another run is writing .*stop it first"):
        resume_run(files, {"Mint.a.0"}, {})
    assert files.details.read_bytes() == before
    journal.close()
    assert resume_run(files, {"Mint.a.0"}, {}) == set()


def test_the_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    files = start_run(tmp_path, "20260101120000", RunSettings({}))
    source = (
        "import sys, time; from pathlib import Path; from ray_precheck.store.journal import Journal;"
        "journal = Journal.open(Path(sys.argv[1]), Path(sys.argv[2])); print('ready', flush=True);"
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", source, str(files.result), str(files.details)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoppedError, match="another run"):
            Journal.open(files.result, files.details)
        holder.kill()
    Journal.open(files.result, files.details).close()


def test_where_there_is_no_file_nothing_is_locked_and_nothing_closed(tmp_path: Path) -> None:
    before = os.fstat(1)
    with claim.locked(tmp_path / "none.csv"):
        assert list(tmp_path.iterdir()) == []
    assert os.path.samestat(os.fstat(1), before)


def test_a_lock_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    path.touch()
    for _ in range(2):
        with claim.locked(path), pytest.raises(BlockingIOError), claim.locked(path):
            pass
