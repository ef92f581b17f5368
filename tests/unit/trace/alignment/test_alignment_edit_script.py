"""The edit script keeps a longest common subsequence, in order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.trace.alignment import order
from ray_precheck.trace.alignment.order import Box, Run, kept_runs

pytestmark = pytest.mark.unit

TOKENS = st.lists(st.integers(0, 4), max_size=50)


def longest(target: list[int], golden: list[int]) -> int:
    """The length of a longest common subsequence, by the textbook's table."""
    above = [0] * (len(golden) + 1)
    for token in target:
        row = [0]
        for at, other in enumerate(golden):
            row.append(above[at] + 1 if token == other else max(above[at + 1], row[at]))
        above = row
    return above[-1]


def pairs(target: list[int], golden: list[int]) -> list[tuple[int, int]]:
    runs = kept_runs(target, golden, [Box(0, len(target), 0, len(golden))])
    return [(run.target + at, run.golden + at) for run in runs for at in range(run.length)]


def assert_increasing_and_equal(
    found: list[tuple[int, int]], target: list[int], golden: list[int]
) -> None:
    assert all(target[x] == golden[y] for x, y in found)
    assert all(x < u and y < v for (x, y), (u, v) in pairwise(found))


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_it_is_as_long_as_the_table_says_however_many_rows_are_kept(
    target: list[int], golden: list[int], rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_ROWS_KEPT", rows)
        patch.setattr(order, "_FREQUENT", rows)
        found = pairs(target, golden)
    assert_increasing_and_equal(found, target, golden)
    assert len(found) == longest(target, golden)


@given(TOKENS, TOKENS, st.integers(2, 20))
def test_stretches_of_a_long_box_never_cross(
    target: list[int], golden: list[int], stretch: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_STRETCH", stretch)
        assert_increasing_and_equal(pairs(target, golden), target, golden)


def test_stretches_find_an_edit_that_is_shorter_than_they_are() -> None:
    golden = [at * at % 101 for at in range(400)]
    target = [*golden[:150], 7, 7, *golden[150:300], *golden[303:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_STRETCH", 40)
        assert len(pairs(target, golden)) == 397


def test_only_what_is_in_the_boxes_is_paired() -> None:
    runs = kept_runs([1, 2, 3, 1], [1, 2, 3, 1], [Box(0, 1, 3, 4), Box(1, 3, 1, 3)])
    assert runs == [Run(0, 3, 1), Run(1, 1, 2)]


def test_neither_side_nor_both_empty() -> None:
    assert pairs([], []) == pairs([1], []) == pairs([], [1]) == []
