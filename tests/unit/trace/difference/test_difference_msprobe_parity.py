"""Columns and cells are those that mindstudio-probe 26.2 wrote for the same captures."""

import csv
import io
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from planted_captures import MODES, write_side

from ray_precheck.store.tables import encode_row
from ray_precheck.trace.difference.measuring import reading_of, rows_of_operators
from ray_precheck.trace.difference.rows import (
    ComparisonMode,
    TensorRow,
    cells,
    encode_rows,
    headings,
)
from ray_precheck.trace.difference.standards.registry import STANDARDS, judge_rows
from ray_precheck.trace.side import CaptureSide, open_side

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[3] / "data" / "msprobe_compare"
MODE_OF = {
    "real": ComparisonMode.REAL,
    "statistics": ComparisonMode.STATISTICS,
    "md5": ComparisonMode.DIGESTS,
}
# Rows whose verdict is another on purpose: msprobe passes them.
OTHERWISE = {
    "Mint.nan_gold.0.forward.output.0": "error",
    "Mint.inf_signs.0.forward.output.0": "error",
    "Mint.more.0.forward.input.1": "unmatched",
    "Mint.only_target.0.forward.input.0": "unmatched",
    "Mint.only_target.0.forward.output.0": "unmatched",
}


def table_of(folder: Path, mode: str) -> list[tuple[TensorRow, list[str]]]:
    with ExitStack() as stack:
        paths = [
            write_side(folder / name, mode, target=name == "target")
            for name in ("target", "golden")
        ]
        sides = [stack.enter_context(open_side(path)) for path in paths]
        return _table(sides, mode)


def _table(sides: list[CaptureSide], mode: str) -> list[tuple[TensorRow, list[str]]]:
    reading = reading_of(*sides)
    assert reading.mode is MODE_OF[mode]
    target, golden = ({each.key: each for each in side.entries} for side in sides)
    found = []
    for key in dict.fromkeys((*target, *golden)):
        ours = sides[0].items(target[key]) if key in target else []
        theirs = sides[1].items(golden[key]) if key in golden else []
        rows = rows_of_operators(key if ours else "", key if theirs else "", ours, theirs, reading)
        judge_rows(rows, STANDARDS["msprobe"], reading.mode)
        found += [(row, cells(row, reading.mode, "name", key)) for row in rows]
    return found


def same(ours: str, theirs: str) -> bool:
    """Pandas parses and prints some numbers one digit short."""
    if ours == theirs:
        return True
    both = [text.rstrip("%") for text in (ours, theirs)]
    numbers = all(re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", text) for text in both)
    return numbers and float(both[0]) == pytest.approx(float(both[1]), rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_cells_are_those_of_msprobe(tmp_path: Path, mode: str) -> None:
    with (DATA / f"{mode}.csv").open(encoding="utf-8", newline="") as file:
        expected = {row["NPU Name"]: row for row in csv.DictReader(file)}
    found = table_of(tmp_path, mode)
    names = headings(MODE_OF[mode])
    ours = {row.target_name: dict(zip(names, line, strict=True)) for row, line in found}
    del ours["N/A"]  # a record that only the golden side has: msprobe drops it
    assert list(ours) == list(expected)
    differ = [
        (name, heading, ours[name][heading], text)
        for name, row in expected.items()
        for heading, text in row.items()
        if heading not in ("Result", "Err_message") and not same(ours[name][heading], text)
    ]
    assert differ == []
    results = {name: line["Result"] for name, line in ours.items()}
    assert results == {name: OTHERWISE.get(name, row["Result"]) for name, row in expected.items()}


@pytest.mark.parametrize("mode", MODES)
def test_columns_are_those_of_msprobe_and_then_ours(mode: str) -> None:
    with (DATA / f"{mode}.csv").open(encoding="utf-8", newline="") as file:
        theirs = next(csv.reader(file))
    names = list(headings(MODE_OF[mode]))
    assert [name for name in names if name in theirs] == theirs
    place = theirs.index("Err_message") + 1
    assert names[place] == "NPU_Stack_Info"
    assert names[-8:] == [
        "RMSE", "MAPE", "Relative L2", "Noise Floor", "Share of Noise", "Digest Equal", "Match", "Call",
    ]  # fmt: skip
    assert len(names) == len(theirs) + 9


def test_a_row_that_only_the_golden_side_has_is_there(tmp_path: Path) -> None:
    rows = [row for row, _ in table_of(tmp_path, "real") if row.target is None]
    assert [row.golden_name for row in rows] == [
        "Mint.only_golden.0.forward.input.0",
        "Mint.only_golden.0.forward.output.0",
    ]
    assert {row.result for row in rows} == {"unmatched"}
    assert rows[0].messages == ["unmatched: only the golden capture has it"]


def test_encoded_rows_are_csv_as_the_store_writes_it(tmp_path: Path) -> None:
    lines = [line for _, line in table_of(tmp_path, "statistics")]
    lines.append(["a,b", 'c"d', "e\nf", "", "plain"])
    raw = encode_rows(lines)
    assert raw == b"".join(map(encode_row, lines))
    assert list(csv.reader(io.StringIO(raw.decode(), newline=""))) == lines
