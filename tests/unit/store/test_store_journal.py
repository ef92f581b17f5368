"""Appending to the two CSV files: the order of writes, full disks, and the end of a run."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from store_results import RESULT_HEADER, contents, files_in, open_journal, passed

from ray_precheck.errors import StoppedError
from ray_precheck.schema.result import skipped
from ray_precheck.store.columns import DETAIL_COLUMNS, detail_rows, header, result_row
from ray_precheck.store.journal import replace_file, row_name, split_rows
from ray_precheck.store.resume import RunFiles

pytestmark = pytest.mark.unit

DETAIL_HEADER = header(DETAIL_COLUMNS)


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
        journal.append([passed(0, name)])
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
    journal.append(batch)
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
    journal.append([passed(0, "Mint.a.0")])
    assert steps == ["write", "sync", "write", "sync"]


def test_a_result_without_outputs_has_no_detail_rows(files: RunFiles) -> None:
    journal = open_journal(files)
    journal.append([skipped(0, "Mint.a.0", "not supported", False)])
    assert files.details.read_bytes() == DETAIL_HEADER
    assert files.result.read_bytes() == RESULT_HEADER + b"Mint.a.0,SKIP,,not supported\r\n"


def test_short_writes_are_continued(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(files)
    genuine = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: genuine(fd, data[:7]))
    journal.append([passed(0, "Mint.a.0")])
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
    journal.append([passed(0, "Mint.a.0")])
    before = contents(files)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full_after(room))
        with pytest.raises(StoppedError, match="No space left on device"):
            journal.append(BATCH)
    assert contents(files) == before


def test_the_batch_can_be_written_once_there_is_room_again(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(files)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full_after(DETAILS_SIZE + 5))
        with pytest.raises(StoppedError):
            journal.append(BATCH)
    journal.append(BATCH)
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
            journal.append(BATCH)
    assert contents(files) == before


@pytest.mark.parametrize("which", ["result", "details"])
def test_a_file_that_was_removed_stops_the_run(files: RunFiles, which: str) -> None:
    journal = open_journal(files)
    getattr(files, which).unlink()
    with pytest.raises(StoppedError, match="the file was removed"):
        journal.append([passed(0, "Mint.a.0")])
    left = files.details if which == "result" else files.result
    assert b"Mint.a.0" not in left.read_bytes()


def test_completing_puts_both_files_in_dump_order(files: RunFiles) -> None:
    order = ["Mint.a.0", "Mint.b.0", "=evil.c.0"]
    results = [passed(i, name, outputs=2) for i, name in enumerate(order)]
    journal = open_journal(files)
    journal.append([results[2], results[1]])
    journal.append([results[0]])
    journal.complete(order)
    assert contents(files) == (
        RESULT_HEADER + b"".join(result_row(result) for result in results),
        DETAIL_HEADER + b"".join(detail_rows(result) for result in results),
    )


def test_names_that_the_order_lacks_come_last_as_they_were(files: RunFiles) -> None:
    journal = open_journal(files)
    journal.append([passed(9, "Mint.z.0"), passed(8, "Mint.y.0"), passed(0, "Mint.a.0")])
    journal.complete(["Mint.a.0"])
    names = [row_name(row) for row in split_rows(files.result.read_bytes())[1:]]
    assert names == ["Mint.a.0", "Mint.z.0", "Mint.y.0"]


def test_completing_keeps_all_rows_where_the_disk_is_full(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(files)
    journal.append([passed(1, "Mint.b.0"), passed(0, "Mint.a.0")])
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


def test_a_row_ends_where_its_quotes_are_closed() -> None:
    data = b'a,"x\ny"\nb,c\nd,"torn'
    assert split_rows(data) == [b'a,"x\ny"\n', b"b,c\n", b'd,"torn']
    assert split_rows(b"") == []


def test_closing_twice_is_fine(files: RunFiles) -> None:
    journal = open_journal(files)
    journal.close()
    journal.close()
    assert contents(files) == (RESULT_HEADER, DETAIL_HEADER)
