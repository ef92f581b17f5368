"""What a capture could not see is counted by place, kept in the header, and said at the end."""

import pytest

from ray_precheck.capture.account import (
    COMPLETE,
    MOST_PLACES,
    DarkPlaces,
    added,
    dark_sentence,
)

pytestmark = pytest.mark.unit


def places(count: int, **more: int) -> DarkPlaces:
    found = DarkPlaces()
    for number in range(count):
        found.note(f"thing {number}", module="blocks.0", place=f"train.py:{number}", **more)
    return found


def test_a_place_is_one_however_often_it_is_met() -> None:
    found = places(2)
    found.note("thing 0", module="blocks.0", place="train.py:0")
    header = found.header()
    assert header["count"] == 2
    assert header["places"] == [
        {"what": "thing 0", "module": "blocks.0", "place": "train.py:0", "times": 2},
        {"what": "thing 1", "module": "blocks.0", "place": "train.py:1", "times": 1},
    ]


def test_the_header_is_bounded_and_counts_what_it_leaves_out() -> None:
    found = places(MOST_PLACES + 7)
    found.note("x" * 10_000)
    assert len(found) == MOST_PLACES + 8
    assert len(str(found.header())) < 700 * MOST_PLACES
    assert added(found.header(), places(1).header()) == {
        "count": MOST_PLACES + 8,
        "places": [
            {"what": "thing 0", "module": "blocks.0", "place": "train.py:0", "times": 2},
            *found.header()["places"][1:],  # type: ignore[index]
        ],
    }


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], COMPLETE),
        ([places(0).header()], COMPLETE),
        ([None, places(0).header()], ""),
        (
            [places(1).header(), None, places(1).header()],
            "1 place is dark (what ran there has no record): thing 0 (blocks.0, train.py:0, 2 times)",
        ),
        (
            [places(5).header()],
            "5 places are dark (what ran there has no record): thing 0 (blocks.0, train.py:0);"
            " thing 1 (blocks.0, train.py:1); thing 2 (blocks.0, train.py:2), and 2 more in the headers"
            " of the dumps",
        ),
    ],
)
def test_the_sentence_names_the_first_places(
    headers: list[dict[str, object] | None], said: str
) -> None:
    assert dark_sentence(headers) == said
