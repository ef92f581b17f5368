"""A resume goes on only with the files of tensors that its rows were made of."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from store_results import encoded, open_journal, passed

from ray_precheck.errors import ResumeError
from ray_precheck.options.shared import ResumeOptions
from ray_precheck.store import settings
from ray_precheck.store.resume import NewFiles, opened_run
from ray_precheck.store.settings import load_settings

pytestmark = pytest.mark.unit

SETTINGS = {"dump": "d1", "seed": "0"}
NAMES = {"Mint.a.0", "Mint.b.0", "Mint.c.0"}
FILE, DEEP = "a.0.forward.input.0.npy", "deep/b.npy"


@pytest.fixture
def tensors(tmp_path: Path) -> Path:
    folder = tmp_path / "dump_tensor_data"
    (folder / "deep").mkdir(parents=True)
    for name in (FILE, DEEP):
        (folder / name).write_bytes(b"0123")
    return folder


def begun(tmp_path: Path, tensors: Path) -> Path:
    """A run with one row, of the files as they are now; returns its result CSV."""
    new = NewFiles(tmp_path / "out", "20260101120000")
    with opened_run(
        None, new, NAMES, SETTINGS, ResumeOptions(), reads={"dump_tensor_data": tensors}
    ) as opened:
        journal = open_journal(opened.files)
        journal.append(encoded([passed(0, "Mint.a.0"), passed(1, "Mint.c.0")]))
        journal.complete(sorted(NAMES))
        return opened.files.result


def gone_on(result: Path, tensors: Path, **options: object) -> set[str]:
    with opened_run(
        result,
        NewFiles(result.parent, "x"),
        NAMES,
        SETTINGS,
        ResumeOptions(resume_csv=result, **options),  # type: ignore[arg-type]
        reads={"dump_tensor_data": tensors},
    ) as opened:
        return opened.done


def later(path: Path) -> None:
    os.utime(path, (2e9, 2e9))


def rewritten(path: Path) -> None:
    path.write_bytes(b"0124")
    later(path)


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (rewritten, "has other content than it had"),
    (lambda path: path.write_bytes(b"01234"), "has 5 bytes, and had 4"),
    (Path.unlink, "is no longer there"),
]


@pytest.mark.parametrize("name", [FILE, DEEP])
@pytest.mark.parametrize(("change", "sentence"), CHANGES)
def test_a_file_that_has_changed_is_named(
    tmp_path: Path, tensors: Path, name: str, change: Callable[[Path], object], sentence: str
) -> None:
    result = begun(tmp_path, tensors)
    state = {path: path.read_bytes() for path in result.parent.iterdir()}
    change(tensors / name)
    with pytest.raises(ResumeError) as refused:
        gone_on(result, tensors)
    assert f"{tensors / name} {sentence} since rows of {result} were made" in str(refused.value)
    assert {path: path.read_bytes() for path in result.parent.iterdir()} == state
    assert gone_on(result, tensors, retry=("all",)) == set()


def test_force_goes_on_and_the_next_resume_needs_it_no_more(tmp_path: Path, tensors: Path) -> None:
    result = begun(tmp_path, tensors)
    rewritten(tensors / FILE)
    assert gone_on(result, tensors, force=True) == {"Mint.a.0", "Mint.c.0"}
    later(tensors / DEEP)
    assert gone_on(result, tensors) == {"Mint.a.0", "Mint.c.0"}


def test_the_same_bytes_at_another_time_or_place_and_new_files_go_on(
    tmp_path: Path, tensors: Path
) -> None:
    result = begun(tmp_path, tensors)
    later(tensors / FILE)
    (tensors / "new.npy").write_bytes(b"new")
    assert gone_on(result, tensors) == {"Mint.a.0", "Mint.c.0"}
    moved = tensors.rename(tmp_path / "moved")
    assert gone_on(result, moved) == {"Mint.a.0", "Mint.c.0"}


def test_many_files_are_not_read_and_one_that_was_written_again_is_named(
    tmp_path: Path, tensors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: object) -> None:
        raise AssertionError(f"{path} is read")

    monkeypatch.setattr(settings, "_DIGESTED_FILES", 1)
    monkeypatch.setattr(settings, "open_file", opened)
    result = begun(tmp_path, tensors)
    assert gone_on(result, tensors) == {"Mint.a.0", "Mint.c.0"}
    later(tensors / DEEP)
    with pytest.raises(ResumeError, match=r"deep/b\.npy has been written again since rows of"):
        gone_on(result, tensors)


def test_what_is_no_file_is_not_looked_at_and_links_in_circles_end(
    tmp_path: Path, tensors: Path
) -> None:
    os.mkfifo(tensors / "pipe.npy")
    (tensors / "deep" / "up").symlink_to(tensors, target_is_directory=True)
    result = begun(tmp_path, tensors)
    settings = load_settings(result.with_name("accuracy_checking_20260101120000.run.json"))
    assert settings is not None
    assert sorted(settings.reads) == [f"dump_tensor_data/{FILE}", f"dump_tensor_data/{DEEP}"]
