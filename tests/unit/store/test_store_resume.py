"""New files, what is done, and whether a run may be gone on with."""

import json
import os
from pathlib import Path

import pytest
from store_results import RESULT_HEADER, files_in, open_journal, passed

from ray_precheck.errors import PrecheckError, ResumeError, UsageError
from ray_precheck.store.columns import BOM
from ray_precheck.store.resume import (
    RunFiles,
    load_done,
    new_run_files,
    repair,
    require_same_settings,
    run_files,
    save_settings,
)

pytestmark = pytest.mark.unit

STAMP = "20260101120000"
SETTINGS = {"dump": "d1", "framework": "mindspore", "seed": "0", "tested": "auto"}


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return files_in(tmp_path)


class TestNewFiles:
    def test_the_folder_is_made(self, tmp_path: Path) -> None:
        files = new_run_files(tmp_path / "a" / "b", STAMP)
        assert files.result == tmp_path / "a" / "b" / f"accuracy_checking_result_{STAMP}.csv"
        assert files.result.read_bytes() == b""

    def test_a_second_run_in_the_same_second_writes_over_nothing(self, tmp_path: Path) -> None:
        first = new_run_files(tmp_path, STAMP)
        first.result.write_bytes(b"rows")
        second = new_run_files(tmp_path, STAMP)
        third = new_run_files(tmp_path, STAMP)
        assert len({first.result, second.result, third.result}) == 3
        assert len({first.details, second.details, third.details}) == 3
        assert len({first.settings, second.settings, third.settings}) == 3
        assert first.result.read_bytes() == b"rows"

    @pytest.mark.parametrize("which", ["details", "settings"])
    def test_files_beside_a_removed_result_csv_are_not_used_again(
        self, tmp_path: Path, which: str
    ) -> None:
        older = getattr(files_in(tmp_path, STAMP), which)
        older.write_bytes(b"of an older run")
        assert getattr(new_run_files(tmp_path, STAMP), which) != older

    def test_an_out_path_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"mine")
        with pytest.raises(UsageError, match="is a file; name a folder"):
            new_run_files(path, STAMP)
        assert path.read_bytes() == b"mine"

    def test_an_out_path_below_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"mine")
        with pytest.raises(UsageError, match="is a file"):
            new_run_files(tmp_path / "file" / "out", STAMP)

    def test_an_out_path_that_is_not_writable_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(UsageError, match="not writable; name another folder with -o"):
            new_run_files(tmp_path, STAMP)
        assert list(tmp_path.iterdir()) == []

    def test_an_out_path_that_cannot_be_made_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def deny(path: Path, *args: object, **kwargs: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "mkdir", deny)
        with pytest.raises(UsageError, match=r"cannot make the out path .*Permission denied"):
            new_run_files(tmp_path / "out", STAMP)

    def test_a_full_disk_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(UsageError, match="No space left on device"):
            new_run_files(tmp_path, STAMP)


class TestFilesOfAResultCsv:
    def test_they_have_its_stamp(self, tmp_path: Path) -> None:
        files = run_files(tmp_path / f"accuracy_checking_result_{STAMP}.csv")
        assert files.details == tmp_path / f"accuracy_checking_details_{STAMP}.csv"
        assert files.settings.parent == tmp_path
        assert STAMP in files.settings.name

    @pytest.mark.parametrize(
        "name",
        ["results.csv", "accuracy_checking_details_1.csv", "accuracy_checking_result_1.xlsx"],
    )
    def test_another_name_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ResumeError, match="is no result CSV"):
            run_files(tmp_path / name)


class TestDone:
    def test_names_with_a_result_row_are_done(self, files: RunFiles) -> None:
        open_journal(files).append([passed(0, "Mint.a.0"), passed(1, "=Mint.b\n.0")])
        assert load_done(files, {"Mint.a.0", "=Mint.b\n.0", "Mint.c.0"}) == {
            "Mint.a.0",
            "=Mint.b\n.0",
        }

    @pytest.mark.parametrize("data", [b"", RESULT_HEADER, BOM + RESULT_HEADER[3:-2] + b"\n"])
    def test_a_file_without_rows_has_nothing_done(self, files: RunFiles, data: bytes) -> None:
        files.result.write_bytes(data)
        assert load_done(files, {"Mint.a.0"}) == set()

    def test_a_torn_last_row_is_not_done(self, files: RunFiles) -> None:
        files.result.write_bytes(RESULT_HEADER + b"Mint.a.0,pass,,\r\nMint.b.0,pass,pass,m")
        assert load_done(files, {"Mint.a.0", "Mint.b.0"}) == {"Mint.a.0"}

    def test_looking_changes_nothing(self, files: RunFiles) -> None:
        data = RESULT_HEADER + b"Mint.a.0,pass,,\r\nMint.b.0,pa"
        files.result.write_bytes(data)
        load_done(files, {"Mint.a.0"})
        assert files.result.read_bytes() == data

    @pytest.mark.parametrize("heading", [b"API name", b"API Name", b"Api Name "])
    @pytest.mark.parametrize("mark", [b"", BOM])
    @pytest.mark.parametrize("end", [b"\n", b"\r\n"])
    def test_files_of_msprobe_are_read(
        self, files: RunFiles, heading: bytes, mark: bytes, end: bytes
    ) -> None:
        head = mark + heading + b",Forward Test Success,Backward Test Success,Message" + end
        rows = b"Torch.a.0,pass, , " + end + b'Torch.b.1,error,pass,"two' + end + b'lines"' + end
        files.result.write_bytes(head + rows)
        assert load_done(files, {"Torch.a.0", "Torch.b.1"}) == {"Torch.a.0", "Torch.b.1"}

    @pytest.mark.parametrize("data", [b"{}\n", b"name,age\r\nx,3\r\n", b"\x89PNG\r\n\x1a\n", b"\n"])
    def test_a_foreign_file_is_refused(self, files: RunFiles, data: bytes) -> None:
        files.result.write_bytes(data)
        with pytest.raises(ResumeError, match="its first line must be API Name, Forward"):
            load_done(files, set())

    @pytest.mark.parametrize("data", [b'say "hi\nthere"\n', b"{" + b"x" * 200_000 + b"}\n"])
    def test_a_foreign_file_that_is_no_csv_is_refused(self, files: RunFiles, data: bytes) -> None:
        files.result.write_bytes(data)
        with pytest.raises(ResumeError):
            load_done(files, set())

    def test_the_file_of_another_dump_is_refused(self, files: RunFiles) -> None:
        files.result.write_bytes(RESULT_HEADER + b"Mint.a.0,pass,,\r\nMint.z.9,pass,,\r\n")
        with pytest.raises(ResumeError, match=r"of another dump: it has a row for Mint\.z\.9"):
            load_done(files, {"Mint.a.0"})

    def test_a_missing_file_is_refused(self, files: RunFiles) -> None:
        with pytest.raises(ResumeError, match=r"cannot read .*No such file"):
            load_done(files, set())

    def test_a_folder_is_refused(self, files: RunFiles) -> None:
        files.result.mkdir()
        with pytest.raises(ResumeError, match=r"cannot read .*Is a directory"):
            load_done(files, set())


class TestSettings:
    def test_the_same_settings_may_go_on(self, files: RunFiles) -> None:
        save_settings(files, SETTINGS)
        require_same_settings(files, dict(SETTINGS))
        assert json.loads(files.settings.read_bytes()) == SETTINGS

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("seed", "7", "made with seed 0, not 7"),
            ("framework", "pytorch", "made with framework mindspore, not pytorch"),
            ("dump", "d2", "of another dump"),
        ],
    )
    def test_what_differs_is_named(
        self, files: RunFiles, key: str, value: str, message: str
    ) -> None:
        save_settings(files, SETTINGS)
        with pytest.raises(ResumeError, match=message):
            require_same_settings(files, {**SETTINGS, key: value})

    def test_a_file_of_msprobe_without_settings_is_taken_as_it_is(self, files: RunFiles) -> None:
        require_same_settings(files, SETTINGS)
        assert not files.settings.exists()

    def test_a_setting_that_an_older_version_did_not_know_may_be_anything(
        self, files: RunFiles
    ) -> None:
        save_settings(files, {"seed": "0"})
        require_same_settings(files, {"seed": "0", "new": "x"})
        with pytest.raises(ResumeError, match="seed"):
            require_same_settings(files, {"seed": "1", "new": "x"})

    @pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe{}"])
    def test_unreadable_settings_are_named(self, files: RunFiles, data: bytes) -> None:
        files.settings.write_bytes(data)
        with pytest.raises(ResumeError, match="remove it to go on nevertheless"):
            require_same_settings(files, SETTINGS)


def disk_full(fd: int) -> None:
    """An `os.fsync` of a full disk."""
    raise OSError(28, "No space left on device")


def test_settings_that_cannot_be_written_are_reported(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(PrecheckError, match="No space left"):
        save_settings(files, SETTINGS)


def test_a_repair_that_cannot_be_written_is_reported(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.result.write_bytes(RESULT_HEADER + b"Mint.a.0,pa")
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(PrecheckError, match="No space left"):
        repair(files, set())
