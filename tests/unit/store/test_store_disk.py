"""Disks that really refuse: permissions, immutable files, a full and a read-only file system."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_results import contents, encoded, files_in, names_in, open_journal, passed

from ray_precheck.errors import PrecheckError
from ray_precheck.store.journal import Journal
from ray_precheck.store.resume import hold_files, resume_run, start_run
from ray_precheck.store.settings import RunSettings, save_settings
from ray_precheck.store.tables import RunFiles

pytestmark = pytest.mark.unit

NOBODY = 65534
SETTINGS = {"dump": "d1", "seed": "0"}
NAMES = {"Mint.a.0", "Mint.b.0", "Mint.c.0"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody can get at, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


@pytest.fixture
def files(folder: Path) -> RunFiles:
    """The files of an interrupted run: three calls are done, the last row is torn."""
    files = files_in(folder)
    save_settings(files.settings, RunSettings(SETTINGS))
    journal = open_journal(files)
    journal.append(encoded([passed(i, name) for i, name in enumerate(sorted(NAMES))]))
    journal.close()
    os.truncate(files.result, files.result.stat().st_size - 3)
    for path in folder.iterdir():
        path.chmod(0o666)
    return files


def refused(act: Callable[[], object]) -> tuple[int, str]:
    """Act without the rights of root; returns the exit code and the sentence of its error."""
    if os.geteuid() != 0:
        with pytest.raises(PrecheckError) as error:
            act()
        return error.value.exit_code, str(error.value)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = b"0 nothing was refused"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
        except PrecheckError as error:
            text = f"{error.exit_code} {error}".encode()
        except BaseException as error:
            text = f"-1 {error!r}".encode()
        finally:
            os.write(writer, text)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        code, _, sentence = pipe.read().decode().partition(" ")
    os.waitpid(child, 0)
    return int(code), sentence


@contextmanager
def command(*undo: str, do: list[str]) -> Iterator[None]:
    """Have a command done, and undone afterwards; skip the test where it is not allowed."""
    done = subprocess.run(do, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(do[:2])} is not possible here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(undo, check=True)


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    with command("chattr", "-i", str(path), do=["chattr", "+i", str(path)]):
        yield


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[Path]:
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    with command("umount", str(path), do=mount):
        yield path


@pytest.mark.parametrize("which", ["result", "details"])
def test_a_read_only_file_is_refused_before_anything_is_begun(files: RunFiles, which: str) -> None:
    path = getattr(files, which)
    path.chmod(0o444)
    before = contents(files)
    code, sentence = refused(lambda: resume_run(files, NAMES, SETTINGS))
    assert (code, sentence) == (2, f"cannot go on in {path}: Permission denied")
    assert contents(files) == before


def test_a_read_only_folder_is_refused_before_anything_is_begun(files: RunFiles) -> None:
    folder = files.result.parent
    folder.chmod(0o555)
    before = contents(files)
    code, sentence = refused(lambda: resume_run(files, NAMES, SETTINGS))
    assert (code, sentence) == (
        2,
        f"cannot go on in {files.result}: its folder {folder} is not writable",
    )
    assert contents(files) == before


@pytest.mark.parametrize("which", ["result", "details", "settings"])
def test_a_file_that_may_not_be_read_is_refused(files: RunFiles, which: str) -> None:
    path = getattr(files, which)
    path.chmod(0)
    code, sentence = refused(lambda: resume_run(files, NAMES, SETTINGS))
    assert code == 2
    assert f"cannot read {path}" in sentence
    assert "Permission denied" in sentence


def test_an_out_path_that_is_not_writable_is_refused(folder: Path) -> None:
    folder.chmod(0o555)
    code, sentence = refused(lambda: start_run(folder, "1", RunSettings(SETTINGS)))
    assert code == 2
    assert "not writable; name another folder with -o" in sentence
    code, sentence = refused(lambda: start_run(folder / "new", "1", RunSettings(SETTINGS)))
    assert (code, sentence) == (2, f"cannot make the out path {folder / 'new'}: Permission denied")


def test_a_file_that_becomes_read_only_before_it_is_opened_stops_the_run(files: RunFiles) -> None:
    files.details.chmod(0o444)
    code, sentence = refused(lambda: Journal.open(files.result, files.details))
    assert code == 3
    assert "Permission denied; all acknowledged rows are on disk" in sentence


@pytest.mark.parametrize("which", ["result", "details"])
def test_a_file_that_becomes_immutable_stops_the_run_and_keeps_its_rows(
    folder: Path, which: str
) -> None:
    files = files_in(folder)
    journal = open_journal(files)
    journal.append(encoded([passed(0, "Mint.a.0")]))
    with immutable(getattr(files, which)), pytest.raises(PrecheckError) as stopped:
        journal.append(encoded([passed(1, "Mint.b.0")]))
    assert stopped.value.exit_code == 3
    assert "Operation not permitted; all acknowledged rows are on disk" in str(stopped.value)
    assert names_in(files.result.read_bytes()) == ["Mint.a.0"]
    assert names_in(files.details.read_bytes()) == ["Mint.a.0.forward.output.0"]


def test_an_immutable_result_csv_is_refused_even_for_root(files: RunFiles) -> None:
    before = contents(files)
    with immutable(files.result), pytest.raises(PrecheckError) as stopped:
        resume_run(files, NAMES, SETTINGS)
    assert stopped.value.exit_code == 2
    assert "Operation not permitted" in str(stopped.value)
    assert contents(files) == before


def test_a_read_only_file_system_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=16k,ro") as disk:
        for out in (disk, disk / "new"):
            with pytest.raises(PrecheckError) as stopped:
                start_run(out, "1", RunSettings(SETTINGS))
            assert stopped.value.exit_code == 2
            assert str(out) in str(stopped.value)


def test_a_file_system_that_is_read_only_by_now_cannot_be_resumed_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        files = start_run(disk, "1", RunSettings(SETTINGS))
        open_journal(files).close()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(PrecheckError) as stopped:
            resume_run(files, NAMES, SETTINGS)
        assert stopped.value.exit_code == 2
        assert str(stopped.value) == f"cannot go on in {files.result}: Read-only file system"
        with pytest.raises(PrecheckError, match="Read-only file system") as stopped:
            hold_files(files).__enter__()
        assert stopped.value.exit_code == 2


def test_on_a_full_disk_a_repair_cuts_and_a_completion_keeps_all_rows(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        files = start_run(disk, "1", RunSettings(SETTINGS))
        journal = open_journal(files)
        names = [f"Mint.a.{number}" for number in range(60)]
        journal.append(
            encoded([passed(i, name, outputs=3) for i, name in enumerate(reversed(names))])
        )
        os.truncate(files.details, files.details.stat().st_size - 3)
        (disk / "filler").write_bytes(bytes(_room(disk)))
        with pytest.raises(PrecheckError, match="No space left") as stopped:
            journal.complete(names)
        assert stopped.value.exit_code == 3
        assert len(names_in(files.result.read_bytes())) == 60
        assert sorted(path.name for path in disk.iterdir()) == sorted(
            ["filler", files.result.name, files.details.name, files.settings.name]
        )
        # What is torn lies at the end, so its repair needs no room.
        assert resume_run(files, set(names), SETTINGS) == set(names) - {names[0]}


def _room(disk: Path) -> int:
    state = os.statvfs(disk)
    return state.f_bavail * state.f_frsize
