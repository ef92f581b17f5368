"""A timeline's rows and names at their limits."""

from pathlib import Path

import pytest
from test_store_timeline import BEGAN_S, drawn, events_in, write

from ray_precheck.store.timeline import Span

pytestmark = pytest.mark.unit


def rows_of(path: Path, *times_us: tuple[int, int]) -> list[str]:
    """The rows in which spans of one worker are drawn, by their begin and end."""
    spans = [
        Span("node-a", "npu:0", "Mint.add.0", "device", BEGAN_S + begin / 1e6, (end - begin) / 1e6)
        for begin, end in times_us
    ]
    write(path, spans)
    return [row for _, row, *_ in drawn(events_in(path))]


# Begin and length come from two clocks, which may differ by 50 us.
@pytest.mark.parametrize(
    ("begin", "end", "row"),
    [
        (4950, 9000, "npu:0"),
        (4949, 9000, "npu:0 (2)"),
        (4960, 5000, "npu:0"),
        (4960, 4999, "npu:0 (2)"),
    ],
)
def test_a_span_stays_in_its_row_that_begins_hardly_before_the_last_one_ends(
    tmp_path: Path, begin: int, end: int, row: str
) -> None:
    assert rows_of(tmp_path / "t.json", (1000, 5000), (begin, end)) == ["npu:0", row]


@pytest.mark.parametrize(("length", "shown"), [(300, "a" * 300), (301, "a" * 297 + "...")])
def test_a_name_has_300_characters_at_most(tmp_path: Path, length: int, shown: str) -> None:
    path = tmp_path / "t.json"
    write(path, [Span("node-a", "npu:0", "a" * length, "device", BEGAN_S, 1.0)])
    assert [name for _, _, name, *_ in drawn(events_in(path))] == [shown]
