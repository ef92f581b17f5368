"""Files of a job with tables of its own: another stem, one verdict, other detail rows."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ray_precheck.errors import ResumeError
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.journal import Journal, names_in, repair
from ray_precheck.store.results import count_verdicts, read_done
from ray_precheck.store.resume import load_done, resume_run, start_run
from ray_precheck.store.settings import RunSettings, load_settings
from ray_precheck.store.tables import (
    API_TABLES,
    RunFiles,
    Tables,
    encode_name,
    encode_row,
    header,
    run_files,
)

pytestmark = pytest.mark.unit

TABLES = Tables(
    "compare",
    ("Name", "Result", "Where", "Err_message"),
    ("Name", "Cosine"),
    detail_parts=1,
    verdicts=1,
    needs_details=False,
)
STAMP = "20260101120000"
SETTINGS = {"dump": "d1"}
HEADS = header(TABLES.result), header(TABLES.details)


def done(index: int, name: str, verdict: Verdict, message: str = "", details: int = 0) -> Done:
    """A finished piece; its detail rows are `name.0`, `name.1`, ..."""
    row = encode_row([encode_name(name), verdict.value, "rank 0", message])
    rows = [encode_row([encode_name(f"{name}.{part}"), "0.5"]) for part in range(details)]
    return Done(index, name, verdict, row, b"".join(rows))


PIECES = [
    done(0, "X.a.0", Verdict.PASS, details=2),
    done(1, "X.a.0.backward.output", Verdict.PASS),
    done(2, '=X.b,"odd"\n.0', Verdict.ERROR, "too far off, by 3", details=1),
    done(3, "X.c.0", Verdict.SKIP, "no such tensor"),
    done(4, "X.d.0", Verdict.ERROR, "killed its worker (SIGSEGV)"),
]
NAMES = [piece.name for piece in PIECES]
AS_CAME = [PIECES[3], PIECES[0], PIECES[4], PIECES[2], PIECES[1]]


def contents(files: RunFiles) -> tuple[bytes, bytes]:
    return files.result.read_bytes(), files.details.read_bytes()


def expected(pieces: Sequence[Done]) -> tuple[bytes, bytes]:
    rows = b"".join(piece.row for piece in pieces)
    return HEADS[0] + rows, HEADS[1] + b"".join(piece.details for piece in pieces)


def journal(files: RunFiles) -> Journal:
    return Journal.open(files.result, files.details, tables=TABLES)


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """The files of a run with all rows in the order in which they came, not completed."""
    made = start_run(tmp_path, STAMP, RunSettings(SETTINGS), TABLES)
    opened = journal(made)
    opened.append(AS_CAME)
    opened.close()
    return made


class TestNames:
    def test_files_are_named_by_the_stem_of_their_tables(self, files: RunFiles) -> None:
        folder = files.result.parent
        assert files == run_files(folder / f"compare_result_{STAMP}.csv", TABLES)
        assert {path.name for path in folder.iterdir()} == {
            f"compare_result_{STAMP}.csv",
            f"compare_details_{STAMP}.csv",
            f"compare_{STAMP}.run.json",
        }
        assert (files.timeline.name, files.lock.name) == (
            f"compare_{STAMP}.timeline.json",
            f"compare_{STAMP}.lock",
        )

    @pytest.mark.parametrize(
        "name",
        [
            f"accuracy_checking_result_{STAMP}.csv",
            f"compare_details_{STAMP}.csv",
            f"compare_result_{STAMP}.txt",
            "compare_result.csv",
        ],
    )
    def test_the_file_of_another_job_is_refused_with_the_name_that_is_expected(
        self, tmp_path: Path, name: str
    ) -> None:
        with pytest.raises(ResumeError, match=r"like compare_result_20260101120000\.csv is exp"):
            run_files(tmp_path / name, TABLES)

    def test_two_jobs_may_have_runs_of_one_second_in_one_folder(self, files: RunFiles) -> None:
        other = start_run(files.result.parent, STAMP, RunSettings(SETTINGS))
        assert other.result.name == f"accuracy_checking_result_{STAMP}.csv"
        again = start_run(files.result.parent, STAMP, RunSettings(SETTINGS), TABLES)
        assert again.result.name == f"compare_result_{STAMP}_1.csv"


class TestJournal:
    def test_it_writes_the_rows_below_the_headings_of_the_tables(self, files: RunFiles) -> None:
        assert contents(files) == expected(AS_CAME)

    def test_at_the_end_details_stand_with_their_piece_in_its_order(self, files: RunFiles) -> None:
        journal(files).complete(NAMES)
        assert contents(files) == expected(PIECES)
        settings = load_settings(files.settings)
        assert settings is not None
        assert settings.is_untouched(files.result, files.details)

    def test_one_that_follows_a_dead_writer_writes_nothing_twice(self, files: RunFiles) -> None:
        with files.details.open("ab") as file:
            file.write(b"X.e.0.0,0.")
        new = done(5, "X.e.0", Verdict.PASS, details=1)
        heir = Journal.reopen(files.result, files.details, tables=TABLES)
        heir.append([*AS_CAME, new])
        heir.close()
        assert contents(files) == expected([*AS_CAME, new])

    def test_tables_of_another_job_are_refused(self, files: RunFiles) -> None:
        before = contents(files)
        other = replace(TABLES, result=("Name", "Verdict", "Where", "Err_message"))
        with pytest.raises(ResumeError, match="its first line must be Name, Verdict, Where, Err_m"):
            Journal.reopen(files.result, files.details, tables=other)
        assert contents(files) == before


class TestRepair:
    def test_a_piece_keeps_its_own_details_alone(self, files: RunFiles) -> None:
        # By three parts, as a call's details are named, `X.a.0.backward.output` would be `X`'s.
        kept = {NAMES[0], NAMES[2]}
        repair(files.result, files.details, kept, TABLES)
        assert contents(files) == expected([piece for piece in AS_CAME if piece.name in kept])
        assert names_in(files.result, TABLES) == kept

    def test_torn_files_are_cut_back_to_whole_rows(self, files: RunFiles) -> None:
        for path in (files.result, files.details):
            path.write_bytes(path.read_bytes()[:-3])
        whole = {piece.name for piece in AS_CAME[:-1]} - {NAMES[2]}
        repair(files.result, files.details, whole, TABLES)
        assert contents(files) == expected([piece for piece in AS_CAME if piece.name in whole])

    def test_a_torn_header_is_mended_with_its_own(self, files: RunFiles) -> None:
        for path, head in zip((files.result, files.details), HEADS, strict=True):
            path.write_bytes(head[:-4])
        repair(files.result, files.details, set(), TABLES)
        assert contents(files) == HEADS


class TestDone:
    @pytest.mark.parametrize(
        ("retry", "again"),
        [
            ((), set()),
            (("error",), {NAMES[2], NAMES[4]}),
            (("skip",), {NAMES[3]}),
            (("crash",), {NAMES[4]}),
            (("skip", "crash"), {NAMES[3], NAMES[4]}),
        ],
    )
    def test_rows_with_one_verdict_may_be_retried_by_it(
        self, files: RunFiles, retry: tuple[str, ...], again: set[str]
    ) -> None:
        assert read_done(files.result, set(NAMES), retry, TABLES) == (set(NAMES) - again, set())

    def test_a_pass_must_have_details_where_the_tables_say_so(self, files: RunFiles) -> None:
        strict = replace(TABLES, needs_details=True)
        found, with_details = read_done(files.result, set(NAMES), (), strict)
        assert (found, with_details) == (set(NAMES), {NAMES[0], NAMES[1]})
        # The piece that has the last of the details may have lost others behind it.
        settings = load_settings(files.settings)
        assert load_done(files, set(NAMES), settings, (), TABLES) == set(NAMES) - {NAMES[2]}
        assert load_done(files, set(NAMES), settings, (), strict) == (
            set(NAMES) - {NAMES[1], NAMES[2]}
        )

    def test_verdicts_are_counted_by_their_one_column(self, files: RunFiles) -> None:
        assert count_verdicts(files.result, set(NAMES), TABLES) == {
            Verdict.PASS: 2,
            Verdict.ERROR: 2,
            Verdict.SKIP: 1,
        }


@pytest.mark.parametrize("cut", [0, 1, 30, 60, 100, 10**6])
def test_a_run_that_was_cut_goes_on_and_ends_as_an_undisturbed_one(
    files: RunFiles, cut: int
) -> None:
    data = contents(files)[0]
    files.result.write_bytes(data[: max(0, len(data) - cut)])
    left = names_in(files.result, TABLES)
    found = resume_run(files, set(NAMES), SETTINGS, tables=TABLES)
    # The piece that has the last of the details may have lost others behind it.
    assert found == left - {NAMES[2]}
    opened = journal(files)
    opened.append([piece for piece in PIECES if piece.name not in found])
    opened.complete(NAMES)
    assert contents(files) == expected(PIECES)


def test_a_run_goes_on_with_what_is_to_be_retried(files: RunFiles) -> None:
    journal(files).complete(NAMES)
    found = resume_run(files, set(NAMES), SETTINGS, retry=("crash", "skip"), tables=TABLES)
    assert found == {NAMES[0], NAMES[1], NAMES[2]}
    new = [done(3, NAMES[3], Verdict.PASS, details=1), done(4, NAMES[4], Verdict.PASS)]
    opened = journal(files)
    opened.append(new[::-1])
    opened.complete(NAMES)
    assert contents(files) == expected([*PIECES[:3], *new])


def test_the_prechecks_tables_are_msprobes() -> None:
    assert API_TABLES.file("result", STAMP) == f"accuracy_checking_result_{STAMP}.csv"
    assert API_TABLES.result == (
        "API Name", "Forward Test Success", "Backward Test Success", "Message",
    )  # fmt: skip
    assert API_TABLES.details == (
        "API Name", "Bench Dtype", "Tested Dtype", "Shape", "Cosine", "MaxAbsErr",
        "MaxRelativeErr", "Status", "Message",
    )  # fmt: skip
