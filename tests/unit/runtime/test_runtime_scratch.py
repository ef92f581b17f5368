"""The private folder of an own cluster goes with its run, however that ends."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ray_precheck.runtime.places.scratch import scratch_folder

pytestmark = pytest.mark.unit


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def hold(temporary: Path) -> "subprocess.Popen[str]":
    """Start a process that holds a folder until it is killed."""
    source = (
        "import time; from ray_precheck.runtime.places.scratch import scratch_folder\n"
        "with scratch_folder() as folder: print(folder, flush=True); time.sleep(600)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", source],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_it_is_readable_by_its_owner_alone_and_gone_afterwards(temporary: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent == temporary
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "token").write_text("secret")
    assert list(temporary.iterdir()) == []


def wait_until_gone(folder: Path) -> None:
    until = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_it_is_gone_soon_after_its_process_was_killed(temporary: Path) -> None:
    process = hold(temporary)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    process.kill()
    process.communicate()
    wait_until_gone(folder)


def test_it_is_gone_soon_where_a_process_still_wrote_into_it_as_it_was_removed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children_of(os.getpid())
    with scratch_folder() as folder:
        monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
        (watcher,) = set(children_of(os.getpid())) - set(before)
        until = time.monotonic() + 60
        while not ignored_by(watcher) & 1 << (signal.SIGHUP - 1):
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(watcher, signal.SIGHUP)
    assert folder.is_dir()
    wait_until_gone(folder)
    assert list(temporary.iterdir()) == []


def test_the_next_run_removes_what_a_killed_tree_left_and_nothing_else(temporary: Path) -> None:
    dead, alive = hold(temporary), hold(temporary)
    assert dead.stdout is not None
    assert alive.stdout is not None
    left, used = (Path(p.stdout.readline().strip()) for p in (dead, alive))
    (temporary / "rpc-notes").mkdir()
    for pid in [*children_of(dead.pid), dead.pid]:
        os.kill(pid, signal.SIGKILL)
    dead.communicate()
    assert left.is_dir()
    with scratch_folder() as mine:
        assert sorted(temporary.iterdir()) == sorted([mine, used, temporary / "rpc-notes"])
    alive.kill()
    alive.communicate()


def ignored_by(pid: int) -> int:
    """Return the mask of the signals that a process ignores (proc_pid_status(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("SigIgn:")), 16)


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
