"""What ranks and steps tell of each other, from their rows alone."""

import pytest

from ray_precheck.trace.overflow.rows import ARRIVAL, OverflowRow, arrival, joined_rows, number_of

pytestmark = pytest.mark.unit
PAIR = f"{ARRIVAL} (group of ranks 0-1)"


def row(rank: str, api: str, birth: str, message: str, step: str = "0") -> OverflowRow:
    empty = ("output.0", "NaN", birth, "float32", "", "", message)
    return OverflowRow(rank, step, api, *empty, f"step{step}/rank{rank}")


REDUCED = "Distributed.all_reduce.3.forward"


def test_a_collective_names_the_rank_that_brought_it() -> None:
    rows = [
        row("0", REDUCED, "came in", PAIR),
        row("1", "Torch.exp.0.forward", "birth", "born here"),
        row("1", REDUCED, "passed on", "from Torch.exp.0.forward.output.0"),
    ]
    first, *others = joined_rows(rows)
    assert first.birth == "passed on"
    assert first.message == f"{PAIR}; rank 1 brought it, from Torch.exp.0.forward.output.0"
    assert others == rows[1:]


def test_a_collective_of_another_step_or_number_explains_nothing() -> None:
    rows = [
        row("0", REDUCED, "came in", PAIR),
        row("1", REDUCED, "passed on", "from X", step="1"),
        row("1", "Distributed.all_reduce.2.forward", "passed on", "from X"),
    ]
    first = joined_rows(rows)[0]
    assert (first.birth, "not among these dumps" in first.message) == ("came in", True)


def test_a_collective_bears_it_where_all_ranks_of_the_group_were_finite() -> None:
    rows = [row(rank, REDUCED, "came in", PAIR) for rank in "01"]
    assert [each.birth for each in joined_rows(rows)] == ["birth", "birth"]
    assert joined_rows(rows[:1])[0].birth == "came in"


def test_a_receive_is_explained_by_a_send_of_another_rank() -> None:
    rows = [
        row("1", "Distributed.recv.0.forward", "came in", PAIR),
        row("0", "Distributed.send.7.forward", "passed on", "from X"),
    ]
    assert joined_rows(rows)[0].message.endswith("; rank 0 brought it, from X")


def test_values_that_come_in_later_name_the_step_of_the_birth() -> None:
    rows = [
        row("0", "Torch.exp.0.forward", "birth", "born here", step="1"),
        row("0", "Functional.linear.0.forward", "came in", "from outside", step="3"),
        row("1", "Functional.linear.0.forward", "came in", "from outside", step="3"),
        row("0", "Functional.linear.0.forward", "came in", "from outside", step="0"),
    ]
    assert [each.message for each in joined_rows(rows)[1:]] == [
        "from outside; since step 1 values of this rank are not finite",
        "from outside",
        "from outside",
    ]


def test_joining_again_says_the_same() -> None:
    rows = [
        row("0", REDUCED, "came in", PAIR),
        row("1", REDUCED, "passed on", "from X"),
        row("0", "Functional.linear.0.forward", "came in", "from outside", step="2"),
        row("0", "Distributed.reduce.0.forward", "came in", ARRIVAL),
    ]
    assert joined_rows(joined_rows(rows)) == joined_rows(rows)


@pytest.mark.parametrize(
    ("group", "shown"),
    [
        ({"group_ranks": [3, 1, 2, 7]}, f"{ARRIVAL} (group of ranks 1-3,7)"),
        ({"group_ranks": []}, ARRIVAL),
        ({"group_ranks": ["a"]}, ARRIVAL),
        (None, ARRIVAL),
    ],
)
def test_the_ranks_of_a_group_are_shown_as_ranges(group: object, shown: str) -> None:
    assert arrival(group) == shown


def test_numbers_of_folders() -> None:
    names = ["step3", "rank12", "proc4711", "rank", ""]
    assert [number_of(each) for each in names] == ["3", "12", "proc4711", "rank", ""]
