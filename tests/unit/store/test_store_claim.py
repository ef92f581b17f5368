"""A run has its files alone, from the first look to the last rename, and no longer than it lives."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from store_results import contents, encoded, names_in, passed

from ray_precheck.errors import ResumeError, StoppedError
from ray_precheck.store import claim, journal
from ray_precheck.store.claim import ClaimedError, claimed, locked
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import discard_run, hold_files, start_run
from ray_precheck.store.settings import RunSettings

pytestmark = pytest.mark.unit

STAMP = "20260101120000"
_HOLDER = (
    "import sys, time; from pathlib import Path; from ray_precheck.store.claim import claimed;"
    "held = claimed(Path(sys.argv[1])); held.__enter__(); print('ready', flush=True);"
    "time.sleep(600)"
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(claim, "_RENEWED_WITHIN_S", 0.4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.lock"


def left_by(path: Path, **changes: object) -> None:
    """Leave a lock file as a run would that nobody removed it for."""
    holder = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": claim._started(os.getpid()),
        "since": "2026-01-01 12:00:00",
        "token": "0",
    }
    path.write_text(json.dumps(holder | changes))


def test_a_second_run_is_told_who_has_the_files(path: Path) -> None:
    with claimed(path), pytest.raises(ClaimedError) as refused, claimed(path):
        pass
    assert f"process {os.getpid()} on {socket.gethostname()} (since 2" in refused.value.holder


def test_the_lock_file_is_gone_at_the_end_and_the_files_are_free(path: Path) -> None:
    for _ in range(2):
        with claimed(path):
            assert path.exists()
        assert not path.exists()


def test_the_refused_run_leaves_the_claim_of_the_other_as_it_is(path: Path) -> None:
    with claimed(path):
        before = path.read_bytes()
        for _ in range(2):
            with pytest.raises(ClaimedError), claimed(path):
                pass
        assert path.read_bytes() == before


def test_a_killed_run_blocks_nobody(path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ClaimedError, match=f"process {holder.pid}"), claimed(path):
            pass
        holder.send_signal(signal.SIGKILL)
    assert path.exists()
    with claimed(path):
        pass
    assert not path.exists()


def holder_pid(path: Path) -> int:
    """The process that the lock file names."""
    return int(json.loads(path.read_bytes())["pid"])


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": 1}'])
def test_a_lock_file_that_says_nothing_blocks_nobody(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with claimed(path):
        assert holder_pid(path) == os.getpid()


class TestWhereTheFileSystemHasNoLocks:
    @pytest.fixture(autouse=True)
    def _no_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(handle: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)

    def test_a_living_process_of_this_machine_has_the_files(self, path: Path) -> None:
        with claimed(path), pytest.raises(ClaimedError), claimed(path):
            pass

    @pytest.mark.parametrize("changes", [{"pid": 2**22 + 1}, {"started": "1"}, {"started": ""}])
    def test_one_that_has_ended_has_not_also_where_its_number_is_used_again(
        self, path: Path, changes: dict[str, object]
    ) -> None:
        left_by(path, **changes)
        with claimed(path):
            assert holder_pid(path) == os.getpid()


class TestARunOnAnotherMachine:
    def test_has_the_files_while_it_renews_its_claim(self, path: Path) -> None:
        left_by(path, host="node-b")
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(0.1):
                os.utime(path)

        thread = threading.Thread(target=renew)
        thread.start()
        try:
            with pytest.raises(ClaimedError, match="on node-b"), claimed(path):
                pass
        finally:
            ended.set()
            thread.join()

    def test_has_them_no_longer_once_it_does_not(self, path: Path) -> None:
        left_by(path, host="node-b")
        with claimed(path):
            assert holder_pid(path) == os.getpid()

    def test_renews_its_claim(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claim, "_RENEWAL_S", 0.05)
        with claimed(path):
            assert claim._lives(claim._Holder("node-b", 1, "", "", ""), path, sees_locks=True)


def test_files_that_are_freed_while_a_run_waits_are_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_PATIENCE_S", 60.0)
    held = claimed(path)
    held.__enter__()
    free = threading.Timer(0.3, held.__exit__, (None, None, None))
    free.start()
    try:
        with claimed(path):
            assert holder_pid(path) == os.getpid()
    finally:
        free.join()


def test_a_run_of_this_machine_is_seen_by_its_process_and_another_by_its_renewals(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "_RENEWED_WITHIN_S", 600.0)
    assert claim.running(path) == ""
    for changes, age_s, lives in (
        ({}, 3600.0, True),
        ({"started": "0"}, 0.0, False),
        ({"host": "elsewhere"}, 0.0, True),
        ({"host": "elsewhere"}, 3600.0, False),
    ):
        left_by(path, **changes)
        os.utime(path, times=(time.time() - age_s,) * 2)
        assert bool(claim.running(path)) is lives, (changes, age_s)


def test_files_of_a_run_that_goes_on_are_not_looked_at(tmp_path: Path) -> None:
    files = start_run(tmp_path, STAMP, RunSettings({}))
    with (
        hold_files(files),
        pytest.raises(ResumeError, match=r"another run has .*_20260101120000\.csv: process \d+ on"),
        hold_files(files),
    ):
        pass


def test_runs_of_the_same_second_take_turns_at_names(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from ray_precheck.store.resume import hold_files, start_run;"
        "from ray_precheck.store.settings import RunSettings;"
        "files = start_run(Path(sys.argv[1]), '1', RunSettings({})); held = hold_files(files);"
        "held.__enter__(); print(files.result.name, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    names = [run.stdout.readline().strip() for run in runs if run.stdout is not None]
    for run in runs:
        run.communicate()
    stamps = sorted(name.removeprefix("accuracy_checking_result_") for name in names)
    assert stamps == ["1.csv", "1_1.csv", "1_2.csv", "1_3.csv"]
    assert not list(tmp_path.glob("*.lock"))


def test_a_claim_that_is_left_to_the_end_of_the_process_waits_for_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, waits = tmp_path / "run.lock", []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", lambda *_: waits.append("for a thread"))
        patched.setattr(sys, "is_finalizing", lambda: True)
        with claimed(path):
            assert path.exists()
    assert (waits, path.exists()) == ([], False)


def test_the_writer_of_a_run_that_was_killed_appends_nothing_to_the_next_one(
    tmp_path: Path,
) -> None:
    files = start_run(tmp_path, STAMP, RunSettings({}))
    with hold_files(files) as first:
        late = Journal.open(files.result, files.details, first.token)
        late.append(encoded([passed(0, "Mint.a.0")]))
    with hold_files(files):
        before = contents(files)
        for act in (lambda: late.append([passed(1, "Mint.b.0")]), lambda: late.complete([])):
            with pytest.raises(StoppedError, match=r"another run has taken over .*process \d+"):
                act()
        assert contents(files) == before
        late.close()
        for make in (Journal.open, Journal.reopen):
            with pytest.raises(StoppedError, match="taken over"):
                make(files.result, files.details, first.token)
        assert contents(files) == before


def test_the_result_csv_is_locked_until_a_completion_is_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = start_run(tmp_path, STAMP, RunSettings({}))
    journal_ = Journal.open(files.result, files.details)
    journal_.append(encoded([passed(0, "Mint.a.0"), passed(1, "Mint.b.0")]))
    before = files.result.stat().st_ino
    seen: list[str] = []

    def look(*paths: Path) -> None:
        handle = os.open(files.result, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append("free")
        except BlockingIOError:
            seen.append("locked")
        finally:
            os.close(handle)

    monkeypatch.setattr(journal, "mark_completed", look)
    journal_.complete(["Mint.b.0", "Mint.a.0"])
    assert files.result.stat().st_ino != before
    assert seen == ["locked"]
    with locked(files.result):
        assert names_in(files.result.read_bytes()) == ["Mint.b.0", "Mint.a.0"]


def test_a_lock_that_was_waited_for_is_that_of_the_file_that_is_there_then(
    tmp_path: Path,
) -> None:
    files = start_run(tmp_path, STAMP, RunSettings({}))
    journal_ = Journal.open(files.result, files.details)
    journal_.append(encoded([passed(0, "Mint.a.0"), passed(1, "Mint.b.0")]))
    timer = threading.Timer(0.3, lambda: journal_.complete(["Mint.b.0", "Mint.a.0"]))
    timer.start()
    with locked(files.result):
        handle = os.open(files.result, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
    timer.join()


def test_a_run_without_a_row_leaves_nothing(tmp_path: Path) -> None:
    files = start_run(tmp_path, STAMP, RunSettings({"seed": "0"}))
    with hold_files(files):
        Journal.open(files.result, files.details).close()
        assert discard_run(files)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_killed_before_it_had_a_csv_is_cleared_away_by_the_next(
    tmp_path: Path,
) -> None:
    def killed(stamp: str, done: str) -> None:
        code = (
            "import os, signal, sys; from pathlib import Path;"
            "from ray_precheck.store.journal import Journal;"
            "from ray_precheck.store.resume import hold_files, start_run;"
            "from ray_precheck.store.settings import RunSettings;"
            "files = start_run(Path(sys.argv[1]), sys.argv[2], RunSettings({}));"
            f"held = hold_files(files); held.__enter__(); {done}; os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path), stamp], check=False)

    killed("20260101000001", "Journal.open(files.result, files.details).close()")
    with hold_files(start_run(tmp_path, "20260101000002", RunSettings({}))) as alive:
        killed("20260101000003", "pass")
        assert (tmp_path / "accuracy_checking_20260101000003.run.json").exists()
        start_run(tmp_path, "20260101000004", RunSettings({}))
        assert alive.lock.exists()
    assert sorted({re.sub(r"\D", "", path.name) for path in tmp_path.iterdir()}) == [
        "20260101000001",
        "20260101000002",
        "20260101000004",
    ]


def test_files_that_cannot_be_looked_into_are_left(tmp_path: Path) -> None:
    files = start_run(tmp_path, STAMP, RunSettings({"seed": "0"}))
    files.result.mkdir()
    assert not discard_run(files)
    assert files.settings.exists()
