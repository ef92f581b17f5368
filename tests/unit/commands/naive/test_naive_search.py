"""The smallest set of switches: a single one where one suffices, else none of it can be left out."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.searching.strategy import smallest_set

pytestmark = pytest.mark.unit
NAMES = tuple("abcdefgh")


def needs(*guilty: str) -> tuple[list[frozenset[str]], Callable[[frozenset[str]], bool]]:
    """Return the sets that were tried, and a test that all of these names pass."""
    tried: list[frozenset[str]] = []

    def holds(names: frozenset[str]) -> bool:
        tried.append(names)
        return names >= set(guilty)

    return tried, holds


def test_the_first_single_name_that_suffices_is_taken() -> None:
    tried: list[frozenset[str]] = []

    def holds(names: frozenset[str]) -> bool:
        tried.append(names)
        return bool(names & {"c", "f"})

    assert smallest_set(NAMES, holds) == {"c"}
    assert len(tried) <= 4


def test_a_single_name_is_preferred_to_a_pair_before_it() -> None:
    assert smallest_set(NAMES, lambda names: names >= {"a", "b"} or "g" in names) == {"g"}


def test_several_names_are_found_together_and_no_set_is_tried_twice() -> None:
    tried, holds = needs("b", "g")
    assert smallest_set(NAMES, holds) == {"b", "g"}
    assert len(tried) == len(set(tried))


@given(st.sets(st.sampled_from(NAMES), min_size=1))
def test_no_name_can_be_left_out(guilty: set[str]) -> None:
    _, holds = needs(*guilty)
    assert smallest_set(NAMES, holds) == guilty


def test_where_only_all_names_hold_all_are_left() -> None:
    assert smallest_set(NAMES, lambda names: False) == set(NAMES)


def test_a_single_name_is_the_answer_without_a_trial() -> None:
    assert smallest_set(["a"], lambda names: pytest.fail("it is known")) == {"a"}
