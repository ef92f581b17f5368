"""New files, what is done, and whether a run may be gone on with."""

import os
from pathlib import Path

import pytest
from store_results import RESULT_HEADER, encoded, files_in, open_journal, passed

from ray_precheck.errors import ResumeError, UsageError
from ray_precheck.schema.result import Verdict
from ray_precheck.store.results import count_verdicts
from ray_precheck.store.resume import discard_run, error_folder, load_done, new_run_files, start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import BOM, RunFiles, run_files

pytestmark = pytest.mark.unit

STAMP = "20260101120000"


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return files_in(tmp_path)


class TestNewFiles:
    def test_the_folder_is_made(self, tmp_path: Path) -> None:
        files = new_run_files(tmp_path / "a" / "b", STAMP)
        assert files.result == tmp_path / "a" / "b" / f"accuracy_checking_result_{STAMP}.csv"
        assert [path.name for path in files.result.parent.iterdir()] == [files.settings.name]

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

    def test_a_disk_without_room_for_the_settings_is_left_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(UsageError, match=r"cannot write to the out path .*No space left"):
            start_run(tmp_path, STAMP, RunSettings({"seed": "0"}))
        assert list(tmp_path.iterdir()) == []

    def test_files_that_nothing_was_written_to_can_be_discarded(self, tmp_path: Path) -> None:
        discard_run(start_run(tmp_path, STAMP, RunSettings({"seed": "0"})))
        assert list(tmp_path.iterdir()) == []

    def test_files_with_rows_are_not_discarded(self, tmp_path: Path) -> None:
        files = start_run(tmp_path, STAMP, RunSettings({"seed": "0"}))
        open_journal(files).append(encoded([passed(0, "Mint.a.0")]))
        discard_run(files)
        assert len(list(tmp_path.iterdir())) == 3


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
        open_journal(files).append(encoded([passed(0, "Mint.a.0"), passed(1, "=Mint.b\n.0")]))
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

    def test_a_missing_file_is_refused(self, files: RunFiles) -> None:
        with pytest.raises(ResumeError, match=r"cannot read .*No such file"):
            load_done(files, set())

    def test_a_folder_is_refused(self, files: RunFiles) -> None:
        files.result.mkdir()
        with pytest.raises(ResumeError, match=r"cannot read .*Is a directory"):
            load_done(files, set())


def test_the_rows_that_are_there_are_counted_by_the_verdict_of_their_call(files: RunFiles) -> None:
    rows = ["a.0,pass,,", "b.0,pass,SKIP,", "c.0,pass,error,", "a.0,error,,", "other.0,pass,,"]
    files.result.write_bytes(RESULT_HEADER + "".join(f"{row}\r\n" for row in rows).encode())
    counts = count_verdicts(files.result, {"a.0", "b.0", "c.0"})
    assert counts == {Verdict.PASS: 1, Verdict.SKIP: 1, Verdict.ERROR: 1}


class TestTheFolderOfWhatFails:
    def test_every_run_has_its_own(self, tmp_path: Path) -> None:
        files = [run_files(tmp_path / f"accuracy_checking_result_{n}.csv") for n in (1, 2)]
        found = [error_folder(each, None, as_msprobe=False) for each in files]
        assert found == [tmp_path / "error_data" / "1", tmp_path / "error_data" / "2"]

    def test_it_is_below_the_folder_that_is_named_and_has_msprobes_name_where_asked(
        self, files: RunFiles, tmp_path: Path
    ) -> None:
        name = f"ut_error_data{STAMP}"
        assert error_folder(files, None, as_msprobe=True) == tmp_path / name
        named = error_folder(files, tmp_path / "x", as_msprobe=False)
        assert named == tmp_path / "x" / "error_data" / STAMP

    @pytest.mark.parametrize("used", ["error_data/20260101120000", "ut_error_data20260101120000"])
    @pytest.mark.parametrize("as_msprobe", [False, True])
    def test_a_resumed_run_goes_on_in_the_one_that_it_had(
        self, files: RunFiles, tmp_path: Path, used: str, *, as_msprobe: bool
    ) -> None:
        (tmp_path / used).mkdir(parents=True)
        assert error_folder(files, None, as_msprobe=as_msprobe) == tmp_path / used
