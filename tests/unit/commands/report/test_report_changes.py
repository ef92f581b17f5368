"""Two results against each other."""

import dataclasses
import math
from pathlib import Path

import pytest
from report_samples import COLUMNS, TONES

from ray_precheck.commands.report.changes import changes_between
from ray_precheck.schema.view import Fact, RowTable, Tone, View, ViewState

pytestmark = pytest.mark.unit


def view(*rows: tuple[str, str, str], command: str = "run_ut", seed: str = "0") -> View:
    cells = tuple((name, "float32", error, status) for name, error, status in rows)
    return View(
        command,
        "",
        "said",
        Tone.PASS,
        ViewState.FINISHED,
        facts=(Fact("Seed", seed),),
        tables=(RowTable("details", COLUMNS, rows=cells, tones=TONES),),
    )


def changed(before: View, after: View) -> list[tuple[str, ...]]:
    found = changes_between([before], [after], ["a", "b"])
    return [row[:4] for row in found.tables[0].rows]


def test_rows_are_newly_failing_newly_fixed_moved_new_and_gone() -> None:
    before = view(
        ("x", "1e-3", "pass"), ("y", "1", "error"), ("z", "1e-6", "pass"), ("g", "", "pass")
    )
    after = view(("x", "5", "error"), ("y", "1", "pass"), ("z", "2e-6", "pass"), ("n", "", "SKIP"))
    assert changed(before, after) == [
        ("x", "newly failing", "pass", "error"),
        ("y", "newly fixed", "error", "pass"),
        ("z", "moved", "pass", "pass"),
        ("n", "only in the second", "", "SKIP"),
        ("g", "only in the first", "pass", ""),
    ]
    found = changes_between([before], [after], ["a", "b"])
    assert found.tone is Tone.ERROR
    assert [card.name for card in found.cards] == ["x"]
    assert found.cards[0].why == "it was pass and is error: Error 0.001 to 5"
    assert found.sentence == (
        "1 newly failing, 1 newly fixed, 1 moved, 1 only in the second, 1 only in the first; 0 rows are as"
        " before"
    )


def test_a_number_that_is_the_same_to_three_digits_has_not_moved() -> None:
    before = view(("x", "1.2341e-3", "pass"), ("c", "0.99998701", "pass"), ("n", "nan", "pass"))
    after = view(("x", "1.2344e-3", "pass"), ("c", "0.99998704", "pass"), ("n", "nan", "pass"))
    assert changed(before, after) == []
    assert changes_between([before], [after], ["a", "b"]).tone is Tone.PASS
    assert [row[0] for row in changed(before, view(("x", "1.25e-3", "pass"), *ROWS))] == ["x"]


ROWS = (("c", "0.99998701", "pass"), ("n", "nan", "pass"))


def test_what_moved_most_comes_first() -> None:
    before = view(("a", "1", "pass"), ("b", "1", "pass"), ("c", "1", "pass"))
    after = view(("a", "2", "pass"), ("b", "0.01", "pass"), ("c", "30", "pass"))
    assert [row[0] for row in changed(before, after)] == ["b", "c", "a"]


def test_equal_names_are_paired_in_their_order() -> None:
    before = view(("a", "1", "pass"), ("a", "2", "pass"))
    after = view(("a", "1", "pass"), ("a", "3", "error"))
    assert changed(before, after) == [("a (2)", "newly failing", "pass", "error")]


def test_rows_are_told_apart_by_their_full_names() -> None:
    def of(*errors: str) -> View:
        rows = tuple(("x", step, error, "pass") for step, error in zip("01", errors, strict=False))
        table = RowTable("t", COLUMNS, rows=rows, tones=TONES, name_parts=(1,))
        return dataclasses.replace(view(), tables=(table,))

    assert changed(of("1", "2"), of("1", "3")) == [("1/x", "moved", "pass", "pass")]


def test_rows_that_stand_in_another_table_are_counted_once() -> None:
    def of(error: str) -> View:
        one = view(("x", error, "error"))
        extract = dataclasses.replace(one.tables[0], title="In error", repeats=True)
        return dataclasses.replace(one, tables=(extract, *one.tables))

    assert changed(of("1"), of("2")) == [("x", "moved", "error", "error")]


def test_settings_that_differ_are_told() -> None:
    found = changes_between([view(seed="0")], [view(seed="1")], ["a", "b"])
    assert found.notes == ("run_ut: Seed differs: 0 before, 1 after.",)


def test_nothing_compared_is_no_pass() -> None:
    found = changes_between([view(command="naive")], [view()], ["a", "b"])
    assert found.tone is Tone.SKIP
    assert found.sentence == "Nothing of the two could be compared"
    assert [reason.text for reason in found.reasons] == [
        "run_ut has no run in the first folder",
        "naive has no run in the second folder",
    ]
    assert changes_between([view()], [view()], ["a", "b"]).tone is Tone.SKIP


def test_rows_of_one_side_alone_are_no_pass() -> None:
    lone = changes_between([view(("a", "1", "pass"))], [view(("b", "1", "pass"))], ["a", "b"])
    assert (lone.tone, lone.sentence) == (Tone.SKIP, "Nothing of the two could be compared")
    kept = ("c", "1", "pass")
    for after in (view(kept), view(kept, ("a", "1", "SKIP"))):
        found = changes_between([view(kept, ("a", "1", "pass"))], [after], ["a", "b"])
        assert found.tone is Tone.WARNING
    more = changes_between([view(kept)], [view(kept, ("n", "1", "pass"))], ["a", "b"])
    assert more.tone is Tone.PASS


def test_rows_of_files_are_read_and_those_of_ranks_named(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for path, status in zip(paths, ("pass", "error"), strict=True):
        path.write_text(f"API Name,Dtype,Error,Status\r\n'=x,f,1,{status}\r\n", newline="")
    one, other = (
        dataclasses.replace(
            view(), tables=(RowTable("details", COLUMNS, path, tones=TONES, label="rank3"),)
        )
        for path in paths
    )
    assert changed(one, other) == [("rank3/=x", "newly failing", "pass", "error")]
    found = changes_between([one], [other], ["a", "b"])
    assert math.isnan(float(found.tables[0].rows[0][4] or "nan"))
