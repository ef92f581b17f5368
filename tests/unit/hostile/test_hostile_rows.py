"""Rows of names that are meant to break the writer, a spreadsheet or the reader."""

import csv

import pytest
from growth import AT_MOST, Action, growth

from ray_precheck.schema.result import skipped
from ray_precheck.store.tables import decode_name, decode_row, encode_name, result_row

pytestmark = pytest.mark.unit

MANY = 10**7


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "'", "'=", "''@"])
@pytest.mark.parametrize("rest", ["cmd|' /C calc'!A0", 'a"b', "a,b", "a\nb", "a\r\n=b", ""])
def test_a_name_that_a_spreadsheet_would_run_gets_an_apostrophe_and_comes_back(
    start: str, rest: str
) -> None:
    name = start + rest
    row = result_row(skipped(0, name, "no", False))
    assert row.removeprefix(b'"').startswith(b"'")
    assert row.count(b"\n") == 1
    assert decode_name(decode_row(row)[0]) == name


def there_and_back(name: str) -> str:
    """Return a name as it is read back from its row."""
    return decode_name(decode_row(result_row(skipped(0, name, "", False)))[0])


@pytest.mark.parametrize(
    "character",
    # A carriage return and a zero are escaped as a new line is.
    ["\\", "\n", '"', "=", ",", *(pytest.param(c, marks=pytest.mark.exhaustive) for c in "\r\0")],
    ids=ascii,
)
def test_ten_million_characters_that_must_be_escaped_take_time_in_proportion(
    character: str,
) -> None:
    def escape(size: int) -> Action:
        return lambda: there_and_back(character * size)

    assert growth(escape, 10_000) < AT_MOST
    assert there_and_back(character * MANY) == character * MANY


@pytest.mark.parametrize(
    "name", ["\\u005c", "\\u000a\n", "\\\\u000a", "\\u", "\\u005", "\\ud800\ud800"]
)
def test_a_name_that_looks_like_its_own_escape_comes_back(name: str) -> None:
    assert "\n" not in encode_name(name)
    assert decode_name(encode_name(name)) == name


def test_a_foreign_escape_is_read_like_ours() -> None:
    assert decode_name(r"a\u0041\u005cu0041") == r"aA\u0041"


def test_a_long_cell_is_read_whatever_limit_another_module_has_set() -> None:
    csv.field_size_limit(10)  # as mindspore.utils.runtime_execution_order_check does
    assert decode_row(b"a,%s\r\n" % (b"b" * 1000)) == ["a", "b" * 1000]
