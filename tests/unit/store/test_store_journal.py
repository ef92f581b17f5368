"""Appending to the two CSV files: the order of writes, full disks, and the end of a run."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from store_results import (
    DETAIL_HEADER,
    RESULT_HEADER,
    contents,
    encoded,
    files_in,
    names_in,
    open_journal,
    passed,
    split_rows,
)

from ray_precheck.errors import StoppedError
from ray_precheck.schema.result import skipped
from ray_precheck.store.journal import Journal
from ray_precheck.store.settings import RunSettings, load_settings, save_settings
from ray_precheck.store.tables import RunFiles, detail_rows, replace_file, result_row

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return files_in(tmp_path)


def written_through(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The chunks that are written from now on, in their order; empty ones left out."""
    chunks: list[bytes] = []
    genuine = os.write

    def write(fd: int, data: bytes) -> int:
        chunks.append(bytes(data))
        return genuine(fd, data)

    monkeypatch.setattr(os, "write", write)
    return chunks


def disk_full_after(room: int) -> Callable[[int, bytes], int]:
    """An `os.write` of a disk that has room for so many bytes: a partial write, then ENOSPC."""
    genuine = os.write
    left = room

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = genuine(fd, data[:left])
        left -= count
        return count

    return write


def test_opening_writes_the_headers(files: RunFiles) -> None:
    open_journal(files).close()
    assert contents(files) == (RESULT_HEADER, DETAIL_HEADER)


def test_opening_again_writes_no_second_header(files: RunFiles) -> None:
    open_journal(files).close()
    open_journal(files).close()
    assert contents(files) == (RESULT_HEADER, DETAIL_HEADER)


def test_opening_goes_on_behind_the_rows_that_are_there(files: RunFiles) -> None:
    for name in ("Mint.a.0", "Mint.b.0"):
        journal = open_journal(files)
        journal.append(encoded([passed(0, name)]))
        journal.close()
    rows = b"".join(result_row(passed(0, name)) for name in ("Mint.a.0", "Mint.b.0"))
    assert files.result.read_bytes() == RESULT_HEADER + rows


def test_a_folder_that_is_gone_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match="cannot write the results"):
        open_journal(files_in(tmp_path / "gone"))


def test_details_are_written_before_their_result_rows(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(files)
    chunks = written_through(monkeypatch)
    batch = [passed(0, "Mint.a.0", outputs=2), passed(1, "Mint.b.0")]
    journal.append(encoded(batch))
    assert chunks == [
        b"".join(detail_rows(result) for result in batch),
        b"".join(result_row(result) for result in batch),
    ]


def test_each_file_is_synced_after_its_rows(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(files)
    steps: list[str] = []
    genuine_write, genuine_sync = os.write, os.fsync

    def write(fd: int, data: bytes) -> int:
        steps.append("write")
        return genuine_write(fd, data)

    def sync(fd: int) -> None:
        steps.append("sync")
        genuine_sync(fd)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", sync)
    journal.append(encoded([passed(0, "Mint.a.0")]))
    assert steps == ["write", "sync", "write", "sync"]


def test_a_result_without_outputs_has_no_detail_rows(files: RunFiles) -> None:
    journal = open_journal(files)
    journal.append(encoded([skipped(0, "Mint.a.0", "not supported", False)]))
    assert files.details.read_bytes() == DETAIL_HEADER
    assert files.result.read_bytes() == RESULT_HEADER + b"Mint.a.0,SKIP,,not supported\r\n"


def test_short_writes_are_continued(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(files)
    genuine = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: genuine(fd, data[:7]))
    journal.append(encoded([passed(0, "Mint.a.0")]))
    assert files.result.read_bytes() == RESULT_HEADER + result_row(passed(0, "Mint.a.0"))


BATCH = [passed(1, "Mint.b.0", outputs=2), passed(2, "Mint.c.0")]
DETAILS_SIZE = sum(len(detail_rows(result)) for result in BATCH)


@pytest.mark.parametrize(
    "room", [0, 1, DETAILS_SIZE - 1, DETAILS_SIZE, DETAILS_SIZE + 1, DETAILS_SIZE + 30]
)
def test_a_full_disk_leaves_no_part_of_the_batch(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    journal = open_journal(files)
    journal.append(encoded([passed(0, "Mint.a.0")]))
    before = contents(files)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full_after(room))
        with pytest.raises(StoppedError, match="No space left on device"):
            journal.append(encoded(BATCH))
    assert contents(files) == before


def test_the_batch_can_be_written_once_there_is_room_again(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(files)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full_after(DETAILS_SIZE + 5))
        with pytest.raises(StoppedError):
            journal.append(encoded(BATCH))
    journal.append(encoded(BATCH))
    assert contents(files) == (
        RESULT_HEADER + b"".join(result_row(result) for result in BATCH),
        DETAIL_HEADER + b"".join(detail_rows(result) for result in BATCH),
    )


@pytest.mark.parametrize("room", [5, len(DETAIL_HEADER) + 5])
def test_a_disk_that_is_full_at_the_start_leaves_no_part_of_a_header(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full_after(room))
        with pytest.raises(StoppedError, match="No space left on device"):
            open_journal(files)
    open_journal(files)
    assert contents(files) == (RESULT_HEADER, DETAIL_HEADER)


def test_a_failed_sync_leaves_no_part_of_the_batch(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(files)
    before = contents(files)
    with monkeypatch.context() as patch:

        def fail(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoppedError, match="Input/output error"):
            journal.append(encoded(BATCH))
    assert contents(files) == before


@pytest.mark.parametrize("which", ["result", "details"])
def test_a_file_that_was_removed_stops_the_run(files: RunFiles, which: str) -> None:
    journal = open_journal(files)
    getattr(files, which).unlink()
    with pytest.raises(StoppedError, match="the file was removed"):
        journal.append(encoded([passed(0, "Mint.a.0")]))
    left = files.details if which == "result" else files.result
    assert b"Mint.a.0" not in left.read_bytes()


def test_completing_puts_both_files_in_dump_order(files: RunFiles) -> None:
    order = ["Mint.a.0", "Mint.b.0", "=evil.c.0"]
    results = [passed(i, name, outputs=2) for i, name in enumerate(order)]
    journal = open_journal(files)
    journal.append(encoded([results[2], results[1]]))
    journal.append(encoded([results[0]]))
    journal.complete(order)
    assert contents(files) == (
        RESULT_HEADER + b"".join(result_row(result) for result in results),
        DETAIL_HEADER + b"".join(detail_rows(result) for result in results),
    )


def test_names_that_the_order_lacks_come_last_as_they_were(files: RunFiles) -> None:
    journal = open_journal(files)
    journal.append(encoded([passed(9, "Mint.z.0"), passed(8, "Mint.y.0"), passed(0, "Mint.a.0")]))
    journal.complete(["Mint.a.0"])
    assert names_in(files.result.read_bytes()) == ["Mint.a.0", "Mint.z.0", "Mint.y.0"]


def test_completing_keeps_all_rows_where_the_disk_is_full(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(files)
    journal.append(encoded([passed(1, "Mint.b.0"), passed(0, "Mint.a.0")]))
    before = contents(files)

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoppedError, match="No space left"):
        journal.complete(["Mint.a.0", "Mint.b.0"])
    assert contents(files) == before
    assert sorted(files.result.parent.iterdir()) == sorted([files.result, files.details])


def test_a_replaced_file_is_never_seen_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"old")
    seen: list[bytes] = []
    genuine = Path.replace

    def replace(self: Path, target: Path) -> Path:
        seen.extend([path.read_bytes(), self.read_bytes()])
        return genuine(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    replace_file(path, [b"new ", b"rows"])
    assert seen == [b"old", b"new rows"]
    assert path.read_bytes() == b"new rows"


def test_rows_of_msprobe_with_quoted_line_breaks_survive(files: RunFiles) -> None:
    quoted = b'Mint.b.0,error,,"first line\r\nsecond, ""line"""\r\n'
    plain = b"Mint.a.0,pass,,\r\n"
    files.result.write_bytes(RESULT_HEADER + quoted + plain)
    open_journal(files).complete(["Mint.a.0", "Mint.b.0"])
    assert files.result.read_bytes() == RESULT_HEADER + plain + quoted


def test_a_row_ends_where_its_quotes_are_closed_and_a_torn_one_is_none() -> None:
    data = b'a,"x\ny\n"",z"\nb,c\nd,"torn'
    assert split_rows(data) == [b'a,"x\ny\n"",z"\n', b"b,c\n"]
    assert split_rows(data.removesuffix(b'd,"torn') + b"torn,") == split_rows(data)
    assert split_rows(b"") == []


def test_closing_twice_is_fine(files: RunFiles) -> None:
    journal = open_journal(files)
    journal.close()
    journal.close()
    assert contents(files) == (RESULT_HEADER, DETAIL_HEADER)


class TestReopened:
    """A journal whose writer died: what was not acknowledged is sent again."""

    def test_it_leaves_out_what_is_there_and_writes_what_is_not(self, files: RunFiles) -> None:
        journal = open_journal(files)
        journal.append(encoded([passed(0, "Mint.a.0", outputs=2)]))
        journal.append(encoded(BATCH))
        written = contents(files)
        journal.close()
        again = Journal.reopen(files.result, files.details)
        again.append(encoded(BATCH))
        assert contents(files) == written
        again.append(encoded([BATCH[0], passed(5, "=Mint.new\n.0")]))
        assert names_in(files.result.read_bytes()) == [
            "Mint.a.0", "Mint.b.0", "Mint.c.0", "=Mint.new\n.0",
        ]  # fmt: skip

    def test_a_batch_that_is_sent_twice_after_it_is_written_once(self, files: RunFiles) -> None:
        open_journal(files).close()
        journal = Journal.reopen(files.result, files.details)
        for _ in range(2):
            journal.append(encoded(BATCH))
        assert contents(files) == (
            RESULT_HEADER + b"".join(result_row(result) for result in BATCH),
            DETAIL_HEADER + b"".join(detail_rows(result) for result in BATCH),
        )

    def test_wherever_the_writer_died_no_row_is_missing_and_none_comes_twice(
        self, files: RunFiles
    ) -> None:
        first = passed(0, "Mint.a.0", outputs=2)
        journal = open_journal(files)
        journal.append(encoded([first]))
        acknowledged = contents(files)
        journal.append(encoded(BATCH))
        journal.close()
        whole = contents(files)
        # The writer dies in the details, then in the result rows, which come after all details.
        deaths = [(0, cut) for cut in range(len(whole[1]) - len(acknowledged[1]) + 1)]
        deaths += [(cut, len(whole[1])) for cut in range(len(whole[0]) - len(acknowledged[0]) + 1)]
        for in_result, in_details in deaths:
            files.result.write_bytes(whole[0][: len(acknowledged[0]) + in_result])
            files.details.write_bytes(whole[1][: len(acknowledged[1]) + in_details])
            journal = Journal.reopen(files.result, files.details)
            journal.append(encoded(BATCH))
            journal.complete(["Mint.a.0", "Mint.b.0", "Mint.c.0"])
            assert contents(files) == whole, (in_result, in_details)

    def test_files_without_a_header_get_theirs(self, files: RunFiles) -> None:
        files.result.write_bytes(b"")
        files.details.write_bytes(DETAIL_HEADER[:20])
        Journal.reopen(files.result, files.details).append(encoded([passed(0, "Mint.a.0")]))
        assert contents(files) == (
            RESULT_HEADER + result_row(passed(0, "Mint.a.0")),
            DETAIL_HEADER + detail_rows(passed(0, "Mint.a.0")),
        )

    def test_a_result_csv_that_was_removed_stops_the_run(self, files: RunFiles) -> None:
        journal = open_journal(files)
        journal.append(encoded(BATCH))
        files.result.unlink()
        with pytest.raises(StoppedError, match="No such file"):
            Journal.reopen(files.result, files.details)
        assert not files.result.exists()


class TestTheMarkOfACompletedRun:
    def test_it_has_the_sizes_of_both_files(self, files: RunFiles) -> None:
        save_settings(files.settings, RunSettings({"seed": "0"}))
        journal = open_journal(files)
        journal.append(encoded(BATCH))
        assert load_settings(files.settings) == RunSettings({"seed": "0"})
        journal.complete(["Mint.c.0", "Mint.b.0"])
        settings = load_settings(files.settings)
        assert settings is not None
        assert settings.fingerprint == {"seed": "0"}
        assert settings.completed == tuple(len(data) for data in contents(files))
        assert settings.is_untouched(files.result, files.details)

    @pytest.mark.parametrize("which", ["result", "details"])
    def test_it_is_not_believed_where_a_file_was_cut(self, files: RunFiles, which: str) -> None:
        save_settings(files.settings, RunSettings({}))
        journal = open_journal(files)
        journal.append(encoded(BATCH))
        journal.complete([])
        os.truncate(getattr(files, which), len(DETAIL_HEADER) + 10)
        settings = load_settings(files.settings)
        assert settings is not None
        assert not settings.is_untouched(files.result, files.details)

    def test_untouched_files_are_not_written_again(self, files: RunFiles) -> None:
        save_settings(files.settings, RunSettings({}))
        journal = open_journal(files)
        journal.append(encoded(BATCH))
        journal.complete(["Mint.c.0", "Mint.b.0"])
        before = [path.stat().st_ino for path in files.result.parent.iterdir()]
        journal = open_journal(files)
        journal.append(encoded([]))
        journal.complete(["Mint.c.0", "Mint.b.0"])
        assert [path.stat().st_ino for path in files.result.parent.iterdir()] == before

    def test_without_a_settings_file_none_is_made(self, files: RunFiles) -> None:
        journal = open_journal(files)
        journal.append(encoded(BATCH))
        journal.complete([])
        assert not files.settings.exists()

    def test_a_full_disk_does_not_spoil_a_completed_run(
        self, files: RunFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_settings(files.settings, RunSettings({"seed": "0"}))
        journal = open_journal(files)
        journal.append(
            encoded(BATCH)
        )  # in dump order already: nothing but the mark is left to write
        monkeypatch.setattr(os, "fsync", full_disk)
        journal.complete(["Mint.b.0", "Mint.c.0"])
        assert load_settings(files.settings) == RunSettings({"seed": "0"})
        assert len(list(files.result.parent.iterdir())) == 3


def full_disk(fd: int) -> None:
    """An `os.fsync` of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_cannot_be_cut_back_either_is_one_sentence(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(fd: int, *args: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    journal = open_journal(files)
    monkeypatch.setattr(os, "write", deny)
    monkeypatch.setattr(os, "ftruncate", deny)
    with pytest.raises(StoppedError, match="Operation not permitted; all acknowledged rows"):
        journal.append(encoded(BATCH))


@pytest.mark.parametrize("which", ["result", "details"])
def test_a_file_that_was_replaced_stops_the_run(files: RunFiles, which: str) -> None:
    journal = open_journal(files)
    path = getattr(files, which)
    path.with_suffix(".copy").write_bytes(path.read_bytes())
    path.with_suffix(".copy").rename(path)
    with pytest.raises(StoppedError, match="replaced by another"):
        journal.append(encoded(BATCH))
