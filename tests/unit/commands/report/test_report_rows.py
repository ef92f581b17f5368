"""Rows as a page has them: numbers to three digits, torn files as far as they go."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.commands.report.rows import TableRows, three_digits
from ray_precheck.schema.view import CellKind, RowColumn

pytestmark = pytest.mark.unit
COLUMNS = (RowColumn("Name", CellKind.NAME), RowColumn("Error", CellKind.NUMBER))
HEAD = b"\xef\xbb\xbfName,Result,Error\r\n"


def read(path: Path) -> tuple[list[tuple[str, ...]], list[str]]:
    rows = TableRows(path, COLUMNS)
    return [row for piece in rows.pieces() for row in piece], rows.notes


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_three_digits(value: float) -> None:
    (found,) = three_digits(np.array([value]))
    size = abs(1 - value) if 0.5 <= value <= 1.5 else abs(value)
    # Half a unit of the third digit, and the rounding of the subtraction from 1.
    assert abs(found - value) <= 0.00501 * size + 2.3e-16


@pytest.mark.parametrize(
    ("value", "kept"),
    [(0.99998765, 0.9999877), (1.0, 1.0), (0.0, 0.0), (1234567.0, 1234567.0), (5e-324, 5e-324)],
)
def test_what_is_near_1_keeps_its_distance_to_it(value: float, kept: float) -> None:
    assert three_digits(np.array([value]))[0] == kept
    assert three_digits(np.array([1.234e-7, math.inf]))[1] == math.inf


def test_a_torn_last_row_is_left_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(HEAD + b"x,pass,1.5\r\ny,error,2")
    rows, notes = read(path)
    assert rows == [("x", "1.5")]
    assert notes == [
        "The last 9 bytes of a.csv are no whole row (it is being written, or the run was killed); they"
        " are left out."
    ]


def test_rows_of_another_width_are_shown_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(HEAD + b'x\r\n"a\nb",pass,1\r\ny,pass,2,more\r\n')
    rows, notes = read(path)
    assert rows == [("x", ""), ("a\nb", "1"), ("y", "2")]
    assert notes == ["2 rows of a.csv do not have its 3 cells; what is there is shown."]


def test_a_heading_that_is_missing_gives_empty_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"Error,Other\r\n1,2\r\n")
    assert read(path)[0] == [("", "1")]
    assert read(tmp_path / "none.csv")[1] == [
        f"{tmp_path / 'none.csv'} cannot be read: No such file or directory."
    ]
