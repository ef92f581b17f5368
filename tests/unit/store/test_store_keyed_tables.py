"""Tables whose detail rows name their piece in the last cell, and whose files have other words."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Done
from ray_precheck.store.journal import Journal, repair
from ray_precheck.store.resume import resume_run, start_run
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import RunFiles, Tables, encode_name, encode_row, header, run_files

pytestmark = pytest.mark.unit

TABLES = Tables(
    "compare",
    ("Call", "Result", "Message"),
    ("NPU Name", "Bench Name", "Cosine", "Call"),
    detail_parts=None,
    verdicts=1,
    needs_details=False,
    words=("calls", "result"),
)
STAMP = "20260101120000"
SETTINGS = {"dump": "d1"}


def done(index: int, name: str, tensors: Sequence[str]) -> Done:
    """A finished pair; the rows of a pair without a target all begin with N/A."""
    row = encode_row([encode_name(name), "pass", ""])
    target = "N/A" if name.endswith("@golden") else "X"
    details = [encode_row([target, each, "0.5", encode_name(name)]) for each in tensors]
    return Done(index, name, Verdict.PASS, row, b"".join(details))


PIECES = [
    done(0, "X.a.0.forward", ["a.input.0", "a.output.0"]),
    done(1, "X.a.0.forward@golden", ["a.input.0", "a.output.0"]),
    done(2, '=X.b,"odd"\n.0', ["b, with a comma", 'b "quoted"\nand broken']),
    done(3, "X.c.0.forward", []),
]
NAMES = [piece.name for piece in PIECES]
AS_CAME = [PIECES[2], PIECES[3], PIECES[1], PIECES[0]]


def expected(pieces: Sequence[Done]) -> tuple[bytes, bytes]:
    return (
        header(TABLES.result) + b"".join(piece.row for piece in pieces),
        header(TABLES.details) + b"".join(piece.details for piece in pieces),
    )


def contents(files: RunFiles) -> tuple[bytes, bytes]:
    return files.result.read_bytes(), files.details.read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    made = start_run(tmp_path, STAMP, RunSettings(SETTINGS), TABLES)
    journal = Journal.open(made.result, made.details, tables=TABLES)
    journal.append(AS_CAME)
    journal.close()
    return made


def test_the_files_have_the_words_of_their_tables(files: RunFiles) -> None:
    assert (files.result.name, files.details.name) == (
        f"compare_calls_{STAMP}.csv",
        f"compare_result_{STAMP}.csv",
    )
    assert run_files(files.result, TABLES).details == files.details


def test_at_the_end_details_stand_with_their_piece_in_its_order(files: RunFiles) -> None:
    Journal.open(files.result, files.details, tables=TABLES).complete(NAMES)
    assert contents(files) == expected(PIECES)


def test_rows_that_begin_alike_are_kept_and_those_of_other_pieces_dropped(files: RunFiles) -> None:
    kept = {NAMES[1], NAMES[2]}
    repair(files.result, files.details, kept, TABLES)
    assert contents(files) == expected([piece for piece in AS_CAME if piece.name in kept])


@pytest.mark.parametrize("cut", [0, 1, 20, 50, 10**6])
def test_a_run_that_was_cut_goes_on_and_ends_as_an_undisturbed_one(
    files: RunFiles, cut: int
) -> None:
    data = files.result.read_bytes()
    files.result.write_bytes(data[: max(0, len(data) - cut)])
    found = resume_run(files, set(NAMES), SETTINGS, tables=TABLES)
    journal = Journal.open(files.result, files.details, tables=TABLES)
    journal.append([piece for piece in PIECES if piece.name not in found])
    journal.complete(NAMES)
    assert contents(files) == expected(PIECES)


def test_rows_that_came_in_order_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **others: object) -> None:
        raise AssertionError("the files were sorted")

    made = start_run(tmp_path, STAMP, RunSettings(SETTINGS), TABLES)
    journal = Journal.open(made.result, made.details, tables=TABLES)
    for piece in PIECES:
        journal.append([piece])
    monkeypatch.setattr("ray_precheck.store.journal._sort_file", refused)
    journal.complete(NAMES)
    assert contents(made) == expected(PIECES)
    again = start_run(tmp_path, STAMP, RunSettings(SETTINGS), TABLES)
    journal = Journal.open(again.result, again.details, tables=TABLES)
    journal.append(AS_CAME)
    with pytest.raises(AssertionError, match="the files were sorted"):
        journal.complete(NAMES)
