"""What a cell may hold, and that every row is one physical line."""

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from store_results import passed

from ray_precheck.schema.result import Metrics, OutputCheck, TaskResult, Verdict, skipped
from ray_precheck.store.tables import (
    BOM,
    DETAIL_COLUMNS,
    RESULT_COLUMNS,
    call_of_detail,
    decode_name,
    decode_row,
    detail_rows,
    encode_name,
    encode_row,
    encode_text,
    header,
    result_row,
    with_note,
)
from ray_precheck.trace.difference.rows import encode_rows

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("control", ["\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\u2028"])
def test_no_cell_has_what_a_terminal_obeys_and_names_come_back(control: str) -> None:
    name, text = f"Mint.{control}[31m.0", f"it says {control}]0;x"
    for encode in (encode_row, lambda row: encode_rows([row])):
        row = encode([encode_name(name), encode_text(text), f"File {control}a.py"])
        assert control not in row.decode()
        assert f"\\u{ord(control):04x}" in row.decode() or control == "\u2028"
        assert decode_name(decode_row(row)[0]) == name


# What a spreadsheet, a line reader or a CSV parser stumbles over.
AWKWARD = st.text(
    st.one_of(
        st.sampled_from("=+-@\t\r\n\x00\\'\",;u0419 \ud800\udfff\u2028\x85\x1c\x0b"),
        st.characters(),
    ),
    max_size=30,
)


@given(AWKWARD)
def test_a_name_survives_its_cell(name: str) -> None:
    assert decode_name(encode_name(name)) == name


@given(AWKWARD, AWKWARD)
def test_a_name_survives_its_row(name: str, message: str) -> None:
    cells = decode_row(result_row(skipped(0, name, message, True)))
    assert decode_name(cells[0]) == name
    assert len(cells) == len(RESULT_COLUMNS)


@given(AWKWARD, AWKWARD)
def test_every_row_is_one_physical_line(name: str, message: str) -> None:
    result = passed(0, name, outputs=2, message=message)
    assert len(result_row(result).splitlines()) == 1
    rows = detail_rows(result).splitlines(keepends=True)
    assert len(rows) == 2
    assert all(row.endswith(b"\r\n") for row in rows)


@given(AWKWARD, AWKWARD)
def test_no_name_and_no_message_starts_a_formula(name: str, message: str) -> None:
    cells = decode_row(result_row(skipped(0, name, message, False)))
    assert not cells[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert not cells[3].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@given(AWKWARD)
def test_a_reader_of_the_whole_file_sees_the_same_rows(message: str) -> None:
    data = header(RESULT_COLUMNS) + result_row(skipped(0, "Mint.a.0", message, True))
    rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    assert [row[0] for row in rows] == ["API Name", "Mint.a.0"]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("Mint.add.0", "Mint.add.0"),
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@SUM", "'@SUM"),
        ("'quoted", "''quoted"),
        ("a\nb", "a\\u000ab"),
        ("a\\u000ab", "a\\u005cu000ab"),
        ("\ud800", "\\ud800"),
    ],
)
def test_names_are_written_in_a_harmless_form(name: str, cell: str) -> None:
    assert encode_name(name) == cell


def test_a_message_of_several_lines_becomes_one_line() -> None:
    cells = decode_row(result_row(skipped(0, "Mint.a.0", " =1\r\n  two\tthree ", False)))
    assert cells[3] == "'=1 two three"


def test_no_row_holds_a_nul_which_python_310_can_neither_write_nor_read() -> None:
    row = result_row(skipped(0, "Mint.a\x00.0", "read \x00 bytes", True))
    assert b"\x00" not in row
    assert decode_row(row)[3] == "read bytes"
    assert decode_row(b"of another tool\x00,x\r\n") == ["of another tool\ufffd", "x"]


def test_a_file_begins_with_a_byte_order_mark_and_its_headings() -> None:
    assert header(RESULT_COLUMNS) == (
        b"\xef\xbb\xbfAPI Name,Forward Test Success,Backward Test Success,Message\r\n"
    )
    assert decode_row(header(DETAIL_COLUMNS)) == (
        "API Name,Bench Dtype,Tested Dtype,Shape,Cosine,MaxAbsErr,MaxRelativeErr,Status,Message"
    ).split(",")


def test_a_result_row_has_its_cells_in_the_order_of_the_headings() -> None:
    assert result_row(skipped(3, "Mint.a.0", "no, not here", True)) == (
        b'Mint.a.0,SKIP,SKIP,"no, not here"\r\n'
    )


def test_a_detail_row_has_its_cells_in_the_order_of_the_headings() -> None:
    assert detail_rows(passed(0, "Mint.a.0")) == (
        b'Mint.a.0.forward.output.0,Float64,Float32,"(2, 3)",0.999,1e-06,2e-06,pass,\r\n'
    )


def test_metrics_that_say_nothing_are_empty_cells() -> None:
    def cells(metrics: Metrics | None) -> list[str]:
        check = OutputCheck("X.0.forward.output.0", "int", "int", "", metrics, Verdict.PASS)
        result = skipped(0, "X.0", "", False)
        whole = TaskResult(0, "X.0", result.outcome, Verdict.PASS, Verdict.NONE, checks=(check,))
        return decode_row(detail_rows(whole))[4:7]

    assert cells(None) == ["", "", ""]
    assert cells(Metrics(None, 0.0, float("inf"))) == ["", "0.0", "inf"]


@pytest.mark.parametrize(
    ("detail", "call"),
    [
        ("Mint.add.0.forward.output.0", "Mint.add.0"),
        ("Torch.linalg.inv.12.backward.output.3", "Torch.linalg.inv.12"),
    ],
)
def test_a_detail_row_belongs_to_the_call_before_its_direction(detail: str, call: str) -> None:
    assert call_of_detail(detail) == call


def test_an_empty_line_has_no_cells() -> None:
    assert decode_row(b"") == []


def test_the_byte_order_mark_is_no_part_of_the_first_cell() -> None:
    assert decode_row(BOM + b"API Name,x\r\n") == ["API Name", "x"]


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert decode_row(b"a\xff,b\r\n") == ["a\ufffd", "b"]


def test_a_row_can_be_read_back_however_long_its_message_is() -> None:
    # One sentence for each failing output: 1,500 outputs of a foreach call are enough.
    message = (
        "forward.output.0: MaxAbsErr 1.5 is above the limit 0.0001 at index (0, 0, 0). " * 2000
    )
    assert decode_row(encode_row(["Mint.a.0", message])) == ["Mint.a.0", message]


def test_a_line_that_is_no_csv_is_read_without_an_error() -> None:
    assert decode_row(b'say "hi\nthere"\n') != ["API Name"]


@pytest.mark.parametrize(
    "message", ["", "plain", 'far off, says "abs"', "two\r\nlines, of it", "=1"]
)
def test_a_note_stands_behind_the_message_of_a_row(message: str) -> None:
    result = skipped(0, 'Mint."odd",\n.0', message, True)
    before = decode_row(result_row(result).removesuffix(b"\r\n"))
    row = with_note(result_row(result), 'its tensors, "a" and b,\r\nare not saved')
    assert row.endswith(b"\r\n")
    assert len(row.splitlines()) == 1
    *cells, noted = decode_row(row.removesuffix(b"\r\n"))
    assert cells == before[:-1]
    note = 'its tensors, "a" and b, are not saved'
    assert noted == (f"{before[-1]}; {note}" if message else note)


@given(AWKWARD, AWKWARD, AWKWARD)
@example("Mint.add.0", "", "\x00")
def test_a_note_leaves_the_other_cells_and_the_message_as_they_are(
    name: str, message: str, note: str
) -> None:
    row = result_row(skipped(0, name, message, False))
    before = decode_row(row.removesuffix(b"\r\n"))
    after = decode_row(with_note(row, note).removesuffix(b"\r\n"))
    assert after[:-1] == before[:-1]
    assert after[-1].startswith(before[-1])
    is_empty = not note.replace("\x00", " ").strip()  # a cell holds no NUL
    assert (after[-1] == before[-1]) == is_empty
