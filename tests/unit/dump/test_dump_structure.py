"""The field `structure`: what it says of a tensor's values, and what no tensor can be."""

from typing import Any

import pytest

from ray_precheck.dump.fields import structure_of
from ray_precheck.errors import NotCheckable
from ray_precheck.schema.values import Structure

pytestmark = pytest.mark.unit


def test_it_is_read_and_fields_of_later_captures_are_passed_over() -> None:
    found = {
        "distinct": 7,
        "rows": 4,
        "zero_rows": 2,
        "masked_rows": 1,
        "equal_rows": 1,
        "row_means": [-1, 2.5],
        "row_deviation": 0.25,
        "nan": 3,
        "later": "x",
    }
    expected = Structure(7, 4, 2, 1, 1, (-1.0, 2.5), 0.25, 3)
    assert structure_of({"structure": found}, (4, 6), "input_args.0") == expected
    alike = {"rows": 4, "row_means": [-1, 2.5], "row_deviation": 0}
    assert structure_of({"structure": alike}, (4, 6), "") == Structure(
        rows=4, row_means=(-1.0, 2.5), row_deviation=0.0
    )
    assert structure_of({"structure": {}}, (4, 6), "") == Structure()
    assert structure_of({}, (4, 6), "") is None


@pytest.mark.parametrize(
    ("structure", "says"),
    [
        ([1], "structure must be an object, not [1]"),
        ({"distinct": 25}, "distinct must be a count of at most 24 elements, not 25"),
        ({"distinct": 0}, "0 distinct values of 24 elements"),
        ({"distinct": True}, "not True"),
        ({"distinct": 2.0}, "not 2.0"),
        ({"nan": -1}, "nan must be a count of at most 24 elements, not -1"),
        ({"rows": 5}, "24 elements do not lie in 5 rows of one length"),
        ({"rows": 4, "zero_rows": 5}, "zero_rows must be a count of at most 4 rows, not 5"),
        ({"zero_rows": 1}, "zero_rows must be a count of at most 0 rows, not 1"),
        (
            {"rows": 4, "zero_rows": 2, "masked_rows": 2, "equal_rows": 1},
            "2 zero, 2 masked and 1 equal rows of 4",
        ),
        ({"rows": 4, "row_means": [2, 1]}, "row_means [2, 1] fall"),
        ({"rows": 4, "row_means": [1]}, "the smallest and the largest mean of its rows, not [1]"),
        ({"row_means": [1, 2]}, "not [1, 2] of 0 rows"),
        ({"rows": 4, "row_means": [1, float("inf")]}, "not [1, inf] of 4 rows"),
        ({"rows": 4, "row_means": [1, 10**400]}, "of 4 rows"),
        ({"rows": 4, "row_means": [1, 2], "row_deviation": -1}, "0 or more, not -1"),
    ],
)
def test_what_no_tensor_can_be_is_said(structure: Any, says: str) -> None:
    with pytest.raises(NotCheckable) as reason:
        structure_of({"structure": structure}, (4, 6), "input_args.0")
    text = str(reason.value)
    assert text.startswith("input_args.0: ")
    assert says in text
