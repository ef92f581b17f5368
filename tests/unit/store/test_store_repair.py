"""Files that a crash cut anywhere: repaired, gone on with, and equal to an undisturbed run."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from ray_precheck.errors import ResumeError
from ray_precheck.schema.result import TaskResult, skipped
from ray_precheck.store.journal import repair
from ray_precheck.store.resume import load_done
from ray_precheck.store.tables import BOM, RunFiles, call_of_detail, row_name

pytestmark = pytest.mark.unit

# In the order of the dump; names and messages with everything that needs a quote or an escape.
RESULTS = [
    passed(0, "Mint.add.0", outputs=2, message='says "no", twice'),
    skipped(1, "Mint.foo.0", "not supported", True),
    passed(2, "=Tensor.__add__.3", message="a\nb"),
    passed(3, 'Mint.odd"\r\n,name.1', outputs=3),
    passed(4, "Functional.é.0"),
]
NAMES = [result.name for result in RESULTS]
# The order in which they came in: one batch of two, then one by one.
BATCHES = [[RESULTS[3], RESULTS[1]], [RESULTS[0]], [RESULTS[4]], [RESULTS[2]]]


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


def undisturbed(folder: Path) -> RunFiles:
    """The files of a run with every row, in the order in which the results came in."""
    files = files_in(folder)
    journal = open_journal(files)
    for batch in BATCHES:
        journal.append(encoded(batch))
    journal.close()
    return files


def made(*, complete: bool) -> tuple[bytes, bytes]:
    """What both files hold at the end of an undisturbed run, before or after `complete`."""
    with tempfile.TemporaryDirectory() as folder:
        files = undisturbed(Path(folder))
        if complete:
            open_journal(files).complete(NAMES)
        return contents(files)


AS_CAME = made(complete=False)
COMPLETED = made(complete=True)


def cut_files(folder: Path, data: tuple[bytes, bytes], cuts: tuple[int, int]) -> RunFiles:
    """Both files of a run, each only up to a byte."""
    files = files_in(folder)
    files.result.write_bytes(data[0][: cuts[0]])
    files.details.write_bytes(data[1][: cuts[1]])
    return files


def repaired(files: RunFiles) -> set[str]:
    """Repair the files as a resumed run does; returns what is done."""
    done = load_done(files, set(NAMES))
    repair(files.result, files.details, done)
    return done


def gone_on_with(files: RunFiles) -> tuple[bytes, bytes]:
    """Repair the files, write what is missing, and complete; returns what they hold then."""
    done = repaired(files)
    journal = open_journal(files)
    journal.append(encoded([result for result in RESULTS if result.name not in done]))
    journal.complete(NAMES)
    return contents(files)


def details_of_committed(data: tuple[bytes, bytes], result_cut: int) -> int:
    """How many bytes of details were on the disk before the result rows up to a cut.

    The details of a batch are synced before its result rows are written.
    """
    started = set(names_in(data[0][:result_cut]))
    end, position = len(DETAIL_HEADER), 0
    for row in split_rows(data[1]):
        position += len(row)
        if call_of_detail(row_name(row)) in started:
            end = position
    return end


def cuts_of(data: bytes) -> st.SearchStrategy[int]:
    """A byte to cut at, anywhere."""
    return st.integers(0, len(data))


any_result_cut = cuts_of(AS_CAME[0])
any_details_cut = cuts_of(AS_CAME[1])


@settings(max_examples=200, deadline=None)
@given(any_result_cut, any_details_cut)
def test_after_a_cut_anywhere_both_files_have_whole_rows_that_agree(
    result_cut: int, details_cut: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = cut_files(Path(folder), AS_CAME, (result_cut, details_cut))
        done = repaired(files)
        rows, details = contents(files)
    # Every row that is left is one of the rows that were there: none is torn or glued.
    assert set(split_rows(rows)) <= set(split_rows(AS_CAME[0]))
    assert set(split_rows(details)) <= set(split_rows(AS_CAME[1]))
    assert names_in(rows) == [name for name in names_in(AS_CAME[0]) if name in done]
    assert {call_of_detail(name) for name in names_in(details)} <= done
    assert len(done) == max(0, AS_CAME[0][:result_cut].count(b"\n") - 1)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_run_that_goes_on_after_a_crash_ends_with_the_same_bytes(data: st.DataObject) -> None:
    result_cut = data.draw(any_result_cut, "result cut")
    first = details_of_committed(AS_CAME, result_cut)
    details_cut = data.draw(st.integers(first, len(AS_CAME[1])), "details cut")
    with tempfile.TemporaryDirectory() as folder:
        files = cut_files(Path(folder), AS_CAME, (result_cut, details_cut))
        assert gone_on_with(files) == COMPLETED


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_run_may_crash_twice(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = AS_CAME
        for crash in ("first", "second"):
            result_cut = data.draw(cuts_of(state[0]), f"{crash} result cut")
            first = details_of_committed(state, result_cut)
            details_cut = data.draw(st.integers(first, len(state[1])), f"{crash} details cut")
            files = cut_files(Path(folder), state, (result_cut, details_cut))
            done = repaired(files)
            journal = open_journal(files)
            for result in reversed(RESULTS):
                if result.name not in done:
                    journal.append(encoded([result]))
            journal.close()
            state = contents(files)
        assert gone_on_with(files) == COMPLETED


@pytest.mark.parametrize("cut", [1, 3, 10, len(RESULT_HEADER) - 2, len(RESULT_HEADER) - 1])
def test_a_torn_header_of_the_result_csv_is_mended(tmp_path: Path, cut: int) -> None:
    files = cut_files(tmp_path, AS_CAME, (cut, len(AS_CAME[1])))
    assert gone_on_with(files) == COMPLETED


@pytest.mark.parametrize("cut", [1, 3, 10, len(DETAIL_HEADER) - 2, len(DETAIL_HEADER) - 1])
def test_a_torn_header_of_the_details_csv_is_mended(tmp_path: Path, cut: int) -> None:
    files = cut_files(tmp_path, AS_CAME, (len(RESULT_HEADER), cut))
    assert gone_on_with(files) == COMPLETED


@pytest.mark.parametrize("result_cut", [0, len(RESULT_HEADER)])
@pytest.mark.parametrize("details_cut", [0, len(DETAIL_HEADER)])
def test_empty_and_header_only_files_start_anew(
    tmp_path: Path, result_cut: int, details_cut: int
) -> None:
    files = cut_files(tmp_path, AS_CAME, (result_cut, details_cut))
    assert gone_on_with(files) == COMPLETED


def test_a_missing_details_file_is_made(tmp_path: Path) -> None:
    files = undisturbed(tmp_path)
    files.details.unlink()
    assert repaired(files) == set(NAMES)
    open_journal(files).complete(NAMES)
    assert contents(files) == (COMPLETED[0], DETAIL_HEADER)


def test_details_without_a_result_row_are_dropped(tmp_path: Path) -> None:
    files = cut_files(tmp_path, AS_CAME, (len(RESULT_HEADER), len(AS_CAME[1])))
    assert repaired(files) == set()
    assert contents(files) == (RESULT_HEADER, DETAIL_HEADER)


def test_whole_files_are_not_written_again(tmp_path: Path) -> None:
    files = undisturbed(tmp_path)
    before = [path.stat().st_ino for path in (files.result, files.details)]
    repaired(files)
    assert [path.stat().st_ino for path in (files.result, files.details)] == before
    assert contents(files) == AS_CAME


def test_a_second_row_of_the_same_name_is_dropped(tmp_path: Path) -> None:
    files = undisturbed(tmp_path)
    journal = open_journal(files)
    journal.append(encoded([RESULTS[0], RESULTS[3]]))
    journal.close()
    repaired(files)
    assert contents(files) == AS_CAME


def test_blank_lines_are_dropped(tmp_path: Path) -> None:
    files = undisturbed(tmp_path)
    files.result.write_bytes(AS_CAME[0] + b"\r\n \r\n")
    repaired(files)
    assert contents(files) == AS_CAME


def test_detail_rows_of_a_call_that_are_there_twice_are_dropped(tmp_path: Path) -> None:
    files = undisturbed(tmp_path)
    once = split_rows(AS_CAME[1])
    (first, *rest) = [row for row in once if row.startswith(b"Mint.add.0")]
    files.details.write_bytes(AS_CAME[1].replace(first, first + first) + first + b"".join(rest))
    repaired(files)
    assert contents(files) == AS_CAME


def test_only_the_end_is_cut_off_where_the_rest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = undisturbed(tmp_path)
    with files.details.open("ab") as file:
        file.write(b"Mint.new.0.forward.output.0,Float32,Flo")
    monkeypatch.setattr(
        "ray_precheck.store.journal.replace_file", None
    )  # would need the room twice
    repaired(files)
    assert contents(files) == AS_CAME


@pytest.mark.parametrize("torn", [b"API name,Forw", b"\xef\xbb\xbfAPI name,", b"\xef\xbb"])
def test_a_torn_header_of_msprobe_is_mended_too(tmp_path: Path, torn: bytes) -> None:
    files = files_in(tmp_path)
    files.result.write_bytes(torn)
    assert repaired(files) == set()
    assert files.result.read_bytes() == RESULT_HEADER


def test_details_with_other_columns_are_left_alone(tmp_path: Path) -> None:
    files = undisturbed(tmp_path)
    foreign = b"API Name,Bench Dtype,DEVICE Dtype\r\nMint.add.0.forward.output.0,a,b\r\n"
    files.details.write_bytes(foreign)
    with pytest.raises(
        ResumeError, match=r"details_.*its first line must be API Name, Bench Dtype"
    ):
        repaired(files)
    assert files.details.read_bytes() == foreign


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_file_that_is_gone_on_with_has_one_kind_of_line_ends(tmp_path: Path, end: bytes) -> None:
    files = files_in(tmp_path)
    head = b"API Name,Forward Test Success,Backward Test Success,Message|"
    rows = head + b'A.b.0,pass,,"two\nlines"|A.c.0,pass,,|'
    files.result.write_bytes(BOM + rows.replace(b"|", end, 2).replace(b"|", b"\n"))
    repair(files.result, files.details, {"A.b.0", "A.c.0"})
    assert files.result.read_bytes() == BOM + rows.replace(b"|", b"\r\n")


def test_quoted_line_breaks_of_msprobe_are_kept_and_torn_ones_cut(tmp_path: Path) -> None:
    head = b"\xef\xbb\xbfAPI name,Forward Test Success,Backward Test Success,Message\r\n"
    whole = b'Mint.add.0,error,,"two\r\nlines"\r\n'
    files = files_in(tmp_path)
    files.result.write_bytes(head + whole + b'Mint.foo.0,error,,"two\r\n')
    done = load_done(files, set(NAMES))
    assert done == {"Mint.add.0"}
    repair(files.result, files.details, done)
    assert files.result.read_bytes() == head + whole


def test_the_results_of_these_tests_need_quotes_and_have_details() -> None:
    def rows(result: TaskResult) -> int:
        return len(result.checks)

    assert b'"' in AS_CAME[0]
    assert [rows(result) for result in RESULTS] == [2, 0, 1, 3, 1]
    assert AS_CAME != COMPLETED
