"""What the ranks tell of each other: who made an error, and who only got it."""

from collections.abc import Sequence

import pytest

from ray_precheck.commands.locate.walk.collectives import Recomputed, joined_dumps
from ray_precheck.commands.locate.walk.nouns import (
    GoldenRun,
    Located,
    Passed,
    Root,
    RootKind,
    SharedRecord,
    WalkState,
)
from ray_precheck.commands.locate.walk.places import DumpRoots, ranked
from ray_precheck.commands.locate.walk.walk import RootWalk
from ray_precheck.trace.flow import Meeting, flow_of
from tests.unit.commands.locate.run_records import MeasuredForTest, record, tensor

REDUCE, LINEAR = "Distributed.all_reduce.0.forward", "Functional.linear.0.forward"
FLOOR = 4e-7


def _shared(
    *,
    arrives: bool,
    got: float = 0.0,
    gave: float = 1e-3,
    place: int = 5,
    number: int = 0,
    group: str = "0-2",
) -> SharedRecord:
    meeting = Meeting("all_reduce", group, number)
    key = f"Distributed.all_reduce.{number}.forward"
    return SharedRecord(
        key, "forward", place, meeting, arrives, got, 10.0, gave, 20.0, FLOOR, "output.0"
    )


def _dump(
    rank: int, shared: Sequence[SharedRecord], roots: Sequence[Root] = (), step: str = "0"
) -> DumpRoots:
    located = Located(roots=list(roots), shared=list(shared))
    return DumpRoots(step, str(rank), f"step{step}/rank{rank}", located)


def _root(kind: RootKind = RootKind.ESTIMATE, place: int = 2, key: str = LINEAR) -> Root:
    return Root(kind, key, "forward", place, own=1000.0)


def _found(dumps: Sequence[DumpRoots]) -> list[tuple[str, str, str]]:
    return [(dump.rank, root.kind.value, root.key) for dump in dumps for root in dump.located.roots]


def test_an_error_that_another_rank_brought_is_inherited_from_it() -> None:
    arrival = _shared(arrives=True)
    dumps = joined_dumps(
        [
            _dump(0, [arrival]),
            _dump(1, [_shared(arrives=False, got=0.01)], [_root()]),
            _dump(2, [arrival]),
        ]
    )
    assert _found(dumps) == [("1", "own error (estimate)", LINEAR)]
    for dump in (dumps[0], dumps[2]):
        (passed,) = dump.located.passed
        assert (passed.verdict, passed.key) == ("inherited", REDUCE)
        assert passed.message == f"inherited from rank 1 ({LINEAR})"


@pytest.mark.parametrize("kind", [RootKind.ESTIMATE, RootKind.GAP])
def test_what_seems_to_err_behind_such_an_arrival_is_no_root(kind: RootKind) -> None:
    behind = _root(kind, place=9, key="Torch.exp.0.forward")
    dumps = joined_dumps(
        [
            _dump(0, [_shared(arrives=True)], [behind]),
            _dump(1, [_shared(arrives=False, got=0.01)], [_root()]),
            _dump(2, []),
        ]
    )
    assert _found(dumps) == [("1", "own error (estimate)", LINEAR)]
    assert [each.key for each in dumps[0].located.passed] == [REDUCE, "Torch.exp.0.forward"]


@pytest.mark.parametrize(
    ("kind", "place"),
    [(RootKind.OPERATOR, 9), (RootKind.NON_FINITE, 9), (RootKind.INPUT, 9), (RootKind.GAP, 4)],
)
def test_what_errs_on_its_own_inputs_or_before_the_arrival_stays_a_root(
    kind: RootKind, place: int
) -> None:
    own = _root(kind, place=place, key="Torch.exp.0.forward")
    dumps = joined_dumps(
        [
            _dump(0, [_shared(arrives=True)], [own]),
            _dump(1, [_shared(arrives=False, got=0.01)], [_root()]),
            _dump(2, []),
        ]
    )
    assert ("0", kind.value, "Torch.exp.0.forward") in _found(dumps)


def test_a_collective_that_got_the_same_from_all_ranks_and_gave_something_else_is_wrong() -> None:
    dumps = joined_dumps([_dump(rank, [_shared(arrives=True)]) for rank in range(3)])
    assert [kind for _, kind, _ in _found(dumps)] == ["wrong collective"] * 3
    (place,) = ranked(dumps)
    assert place.ranks == ("0", "1", "2")
    assert "the collective itself is wrong" in place.root.message
    assert "the ranks 0-2" in place.root.message


def test_an_output_that_is_wrong_on_one_rank_alone_is_named_there() -> None:
    dumps = joined_dumps([_dump(0, []), _dump(1, [_shared(arrives=True)]), _dump(2, [])])
    assert _found(dumps) == [("1", "wrong collective", REDUCE)]
    assert "on rank 1:" in dumps[1].located.roots[0].message


def test_a_sender_whose_difference_is_too_small_explains_nothing() -> None:
    tiny = _shared(arrives=False, got=1e-7)
    dumps = joined_dumps(
        [_dump(0, [_shared(arrives=True, gave=0.1)]), _dump(1, [tiny], [_root()]), _dump(2, [])]
    )
    assert ("0", "wrong collective", REDUCE) in _found(dumps)


def test_a_rank_whose_capture_is_missing_may_have_brought_it() -> None:
    dumps = joined_dumps([_dump(0, [_shared(arrives=True)]), _dump(2, [_shared(arrives=True)])])
    assert {kind for _, kind, _ in _found(dumps)} == {"not captured"}
    assert "it came from rank 1, whose capture is not here" in dumps[0].located.roots[0].message


def test_an_error_that_went_through_two_groups_is_of_the_rank_that_made_it() -> None:
    first = {"group": "0-1", "number": 0, "place": 5}
    second = {"group": "1-2", "number": 1, "place": 8}
    dumps = joined_dumps(
        [
            _dump(0, [_shared(arrives=False, got=0.01, **first)], [_root()]),
            _dump(1, [_shared(arrives=True, **first), _shared(arrives=False, got=1e-3, **second)]),
            _dump(2, [_shared(arrives=True, **second)]),
        ]
    )
    assert _found(dumps) == [("0", "own error (estimate)", LINEAR)]
    assert dumps[2].located.passed[0].message == f"inherited from rank 0 ({LINEAR})"


def test_a_step_does_not_explain_another_one() -> None:
    dumps = joined_dumps(
        [
            _dump(0, [_shared(arrives=True)], step="1"),
            _dump(1, [_shared(arrives=False, got=0.01)], [_root()], step="0"),
            _dump(1, [], step="1"),
            _dump(2, [], step="1"),
        ]
    )
    assert ("0", "wrong collective", REDUCE) in _found(dumps)


def test_a_rank_with_too_many_collectives_to_tell_of_may_have_brought_a_late_one() -> None:
    early = _shared(arrives=False, got=0.01)
    cut = _dump(1, [early], [_root()])
    cut.located.shared_left_out = 7
    late = _shared(arrives=True, number=40, place=90)
    dumps = joined_dumps([_dump(0, [late]), cut, _dump(2, [])])
    assert _found(dumps) == [("1", "own error (estimate)", LINEAR)]


def test_a_recomputed_collective_needs_no_golden_run() -> None:
    unchecked = Passed("not checked", REDUCE, "forward", 5, message="depends on other ranks")
    dumps = [_dump(0, []), _dump(1, [])]
    for dump in dumps:
        dump.located.passed.append(unchecked)
    right = Recomputed(REDUCE, 5, 0.3, is_wrong=False)
    wrong = Recomputed(REDUCE, 5, 900.0, True, "output.0", "[1, 3]", "not the sum")
    found = joined_dumps(dumps, {"step0/rank0": [right], "step0/rank1": [wrong]})
    assert _found(found) == [("1", "wrong collective", REDUCE)]
    assert found[1].located.roots[0].index == "[1, 3]"
    assert [dump.located.passed for dump in found] == [[], []]
    assert [dump.located.judged for dump in found] == [1, 1]


def test_a_recomputed_collective_that_is_right_is_no_root_whatever_the_golden_run_had() -> None:
    right = Recomputed(REDUCE, 5, 0.3, is_wrong=False)
    dumps = [_dump(rank, [_shared(arrives=True)]) for rank in range(2)]
    known = {"step0/rank0": [right], "step0/rank1": [right]}
    assert _found(joined_dumps(dumps, known)) == []


def _walked(differences: dict[tuple[str, str], float], estimates: bool = True) -> Located:
    records = [
        record(LINEAR, [tensor(1.0)], [tensor(2.0)]),
        record(REDUCE, [tensor(2.0)], [tensor(3.0)]),
        record("Torch.exp.0.forward", [tensor(3.0)], [tensor(4.0)]),
    ]
    by_key = {each.entry.key: each for each in records}
    run = GoldenRun(by_key, lambda: flow_of(records), {key: key for key in by_key})
    evidence = MeasuredForTest(differences=differences, estimates=estimates)
    meetings = {REDUCE: Meeting("all_reduce", "0-1", 0)}
    return RootWalk(WalkState(flow_of(records), evidence, run, meetings=meetings)).run(records)


def test_in_the_walk_a_collective_is_no_operator_and_what_follows_inherits() -> None:
    after = {(REDUCE, "output.0"): 0.01, ("Torch.exp.0.forward", "input.0"): 0.01}
    located = _walked({**after, ("Torch.exp.0.forward", "output.0"): 0.01})
    assert located.roots == []
    assert [(each.key, each.arrives) for each in located.shared] == [(REDUCE, True)]
    assert [each.key for each in located.passed] == ["Torch.exp.0.forward"]


def test_in_the_walk_a_rank_whose_error_goes_into_a_collective_brings_it() -> None:
    differences = {
        (LINEAR, "output.0"): 0.01,
        (REDUCE, "input.0"): 0.01,
        (REDUCE, "output.0"): 0.005,
    }
    located = _walked(differences)
    assert [root.key for root in located.roots] == [LINEAR]
    assert [(each.arrives, each.got) for each in located.shared] == [(False, 0.01)]


def test_in_the_walk_collectives_that_differ_by_rounding_are_no_news() -> None:
    assert _walked({(REDUCE, "input.0"): 2e-7, (REDUCE, "output.0"): 4e-7}).shared == []
