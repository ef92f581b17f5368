"""The cells of statistics follow msprobe's rules."""

import math
from typing import Any

import pytest
from captured_pairs import items, statistics

from ray_precheck.trace.difference import rows as room
from ray_precheck.trace.difference.rows import relative, statistics_cells
from ray_precheck.trace.items import Item

pytestmark = pytest.mark.unit


def value(found: Any) -> Item:
    return items([{"type": type(found).__name__, "value": found}], [])[0]


def of_max(number: Any) -> Item:
    return items([statistics(Max=number)], [])[0]


@pytest.mark.parametrize(
    ("target", "golden", "difference", "share"),
    [
        (3.0, 2.0, "1.0", "50.0%"),
        (1.0, 2.0, "-1.0", "50.0%"),
        (2.0, 2.0, "0", "0"),
        (0.0, -0.0, "0", "0"),
        (1.0, 0.0, "1.0", "inf"),
        (math.nan, 2.0, "Nan", "Nan"),
        ("NaN", 2.0, "Nan", "Nan"),
        ("NaN", "NaN", "0", "0"),
        ("Infinity", 2.0, "inf", "inf"),
        (2.0, "Infinity", "-inf", "-inf"),
        (2.0, "-Infinity", "inf", "inf"),
        ("-Infinity", "Infinity", "-inf", "-inf"),
        ("Infinity", "-Infinity", "inf", "inf"),
        (True, False, "Diff", "Diff"),
        (None, None, "0", "0"),
        (3, 2.0, "1.0", "50.0%"),
    ],
)  # fmt: skip
def test_differences_are_those_of_msprobe(
    target: Any, golden: Any, difference: str, share: str
) -> None:
    cells = statistics_cells(of_max(target), of_max(golden))
    assert (cells[0], cells[4]) == (difference, share)
    assert len(cells) == 16
    assert cells[1:4] == ("0", "0", "0")


def test_devices_have_no_difference_and_other_texts_differ() -> None:
    assert statistics_cells(value("npu:0"), value("cuda:0"))[:8] == ("N/A",) * 8
    assert statistics_cells(value("sum"), value("mean"))[:8] == ("Diff",) * 8
    assert statistics_cells(value("sum"), value("sum"))[:8] == ("0",) * 8


def test_a_value_that_is_no_tensor_has_itself_four_times() -> None:
    assert statistics_cells(value(3), value(2)) == (*["1.0"] * 4, *["50.0%"] * 4, *"3333", *"2222")


def test_a_side_that_is_not_there_has_no_statistics() -> None:
    assert statistics_cells(None, of_max(1.0))[:12] == ("N/A",) * 12
    assert statistics_cells(of_max(1.0), None) == (
        *("N/A",) * 8, "1.0", "-1.0", "0.5", "4.0", *("N/A",) * 4,
    )  # fmt: skip


def test_statistics_that_are_not_finite_are_shown_as_msprobe_shows_them() -> None:
    assert statistics_cells(of_max("-Infinity"), of_max("NaN"))[8::4] == (" -inf", "Nan")


def test_a_text_that_a_spreadsheet_would_run_is_quoted() -> None:
    assert statistics_cells(value("=1+1"), value("-1"))[8::4] == ("'=1+1", "-1")


@pytest.mark.parametrize(
    ("cell", "number"), [("12.5%", 0.125), ("0", 0.0), ("inf", math.inf), ("Diff", 0.0)]
)
def test_a_relative_error_is_read_back(cell: str, number: float) -> None:
    assert relative(cell) == number


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1.0, True), (1.0, 1), (True, 1)])
def test_equal_numbers_of_other_spellings_are_shown_as_they_stand(one: Any, other: Any) -> None:
    for value in (one, other, one):
        (item,) = items([statistics(Max=value, Min=value, Mean=value, Norm=value)], [])
        assert statistics_cells(item, item)[8:] == (str(value),) * 8


def test_statistics_that_come_again_are_not_worked_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def cells(*sides: Any) -> tuple[str, ...]:
        seen.append(sides)
        return ("",) * 16

    room._cells_of_floats.cache_clear()
    monkeypatch.setattr(room, "_cells", cells)
    for item in items([statistics(Max=2.125, Min=1.5, Mean=1.75, Norm=3.0)] * 3, []):
        statistics_cells(item, item)
    room._cells_of_floats.cache_clear()
    assert len(seen) == 1
