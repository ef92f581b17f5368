"""Each value of both sides is in exactly one pair."""

from typing import Any

import pytest
from captured_pairs import items, record, statistics
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.trace.difference.measuring import pair_items
from ray_precheck.trace.items import Item, items_of

pytestmark = pytest.mark.unit


def paths(pairs: list[tuple[Item | None, Item | None]]) -> list[tuple[str, str]]:
    return [(a.path if a else "", b.path if b else "") for a, b in pairs]


def of_shape(*shape: int) -> dict[str, Any]:
    return statistics(shape=shape)


def test_values_of_the_same_path_are_a_pair_whatever_their_shapes() -> None:
    target = items([of_shape(2, 3), of_shape(3)], [of_shape(1)])
    golden = items([of_shape(3, 2), of_shape(3)], [of_shape(1)])
    assert paths(pair_items(target, golden)) == [
        ("input.0", "input.0"), ("input.1", "input.1"), ("output.0", "output.0"),
    ]  # fmt: skip


def test_a_keyword_is_paired_with_the_positional_argument_at_its_place() -> None:
    target = items([of_shape(2, 3), of_shape(4, 3)], [])
    golden = items([of_shape(2, 3)], [], weight=of_shape(4, 3))
    assert paths(pair_items(target, golden)) == [
        ("input.0", "input.0"), ("input.1", "input.weight"),
    ]  # fmt: skip


def test_permuted_keywords_are_paired_by_their_shapes() -> None:
    target = items([], [], x=of_shape(2, 3), weight=of_shape(4, 3))
    golden = items([], [], w=of_shape(4, 3), data=of_shape(2, 3))
    assert sorted(paths(pair_items(target, golden))) == [
        ("input.weight", "input.w"), ("input.x", "input.data"),
    ]  # fmt: skip


def test_between_frameworks_a_shape_says_more_than_a_position() -> None:
    target = items([of_shape(2, 3), of_shape(4, 3)], [])
    golden = items([of_shape(4, 3), of_shape(2, 3)], [])
    assert paths(pair_items(target, golden, same_framework=False)) == [
        ("input.0", "input.1"), ("input.1", "input.0"),
    ]  # fmt: skip
    assert paths(pair_items(target, golden)) == [("input.0", "input.0"), ("input.1", "input.1")]


def test_what_only_the_golden_side_has_comes_at_the_end_of_its_part() -> None:
    target = items([of_shape(2)], [of_shape(2)])
    golden = items([of_shape(2), of_shape(3)], [of_shape(2)])
    assert paths(pair_items(target, golden)) == [
        ("input.0", "input.0"), ("", "input.1"), ("output.0", "output.0"),
    ]  # fmt: skip


def test_what_a_call_has_changed_is_an_output_that_is_paired_with_its_like_alone() -> None:
    changed = {"input_args.1": of_shape(3), "input_kwargs.mean": of_shape(3)}
    ours = items_of({**record([of_shape(3)], [of_shape(2)]), "changed": changed})
    assert [(each.path, each.part) for each in ours[1:]] == [
        ("output.0", "output"), ("changed.1", "output"), ("changed.mean", "output"),
    ]  # fmt: skip
    golden = items(
        [of_shape(3)], [of_shape(2), of_shape(3)]
    )  # of another framework, or a dump of others
    for same in (True, False):
        assert paths(pair_items(ours, golden, same_framework=same))[1:] == [
            *(("output.0", "output.0"), ("changed.1", ""), ("changed.mean", ""), ("", "output.1")),
        ]


def test_a_side_without_values_leaves_all_of_the_other_alone() -> None:
    golden = items([of_shape(2)], [of_shape(2)])
    assert paths(pair_items([], golden)) == [("", "input.0"), ("", "output.0")]
    assert paths(pair_items(golden, [])) == [("input.0", ""), ("output.0", "")]


_VALUES = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 2), st.integers(1, 2)).map(lambda shape: of_shape(*shape)),
        st.just({"type": "int", "value": 1}),
        st.none(),
    ),
    max_size=4,
)


@given(_VALUES, _VALUES, _VALUES, _VALUES, st.booleans())
def test_each_value_of_both_sides_is_in_exactly_one_pair(
    ours: list[Any], theirs: list[Any], out: list[Any], golden_out: list[Any], same: bool
) -> None:
    target, golden = items(ours, out), items(theirs, golden_out)
    pairs = pair_items(target, golden, same_framework=same)
    assert [a for a, _ in pairs if a is not None] == target
    assert sorted(b.path for _, b in pairs if b is not None) == sorted(b.path for b in golden)
    assert (None, None) not in pairs
