"""The order of the suspects, and the graph of what they reached."""

import json

from ray_precheck.commands.locate.walk.nouns import Located, Passed, Root, RootKind
from ray_precheck.commands.locate.walk.places import (
    DumpRoots,
    cells_of_root,
    graph_dot,
    graph_json,
    passed_rows,
    ranked,
    reached_from,
)


def _root(kind, key, place=0, own=None):
    return Root(kind, f"{key}.forward", "forward", place, own=own)


def _keys(*dumps):
    return [(found.place, found.root.key.split(".")[0]) for found in ranked(dumps)]


def test_nan_comes_first_then_other_inputs_then_the_largest_own_error_then_estimates():
    roots = [
        _root(RootKind.GAP, "gap", 0, own=1e9),
        _root(RootKind.ESTIMATE, "estimate", 1, own=1e10),
        _root(RootKind.OPERATOR, "small", 2, own=5.0),
        _root(RootKind.OPERATOR, "large", 3, own=50.0),
        _root(RootKind.WEIGHT, "weight", 4),
        _root(RootKind.NON_FINITE, "nan", 5, own=float("inf")),
    ]
    found = _keys(DumpRoots("0", "0", "dump", Located(roots)))
    assert found == [
        (1, "nan"),
        (2, "weight"),
        (3, "large"),
        (4, "small"),
        (5, "estimate"),
        (6, "gap"),
    ]


def test_earlier_steps_come_first_and_equal_errors_stand_in_the_order_of_the_run():
    later = DumpRoots("1", "0", "step1", Located([_root(RootKind.OPERATOR, "later", 0, own=1e6)]))
    first = DumpRoots(
        "0", "0", "step0",
        Located([_root(RootKind.OPERATOR, "b", 7, own=9.0), _root(RootKind.OPERATOR, "a", 3, own=9.0)]),
    )  # fmt: skip
    assert _keys(later, first) == [(1, "a"), (2, "b"), (3, "later")]


def test_calls_of_one_run_alone_come_before_operators_in_the_order_of_the_run():
    roots = [
        _root(RootKind.OPERATOR, "operator", 0, own=50.0),
        _root(RootKind.CALL, "late", 3, own=1e9),
        _root(RootKind.CALL, "early", 2, own=5.0),
    ]
    dump = DumpRoots("0", "0", "dump", Located(roots))
    assert _keys(dump) == [(1, "early"), (2, "late"), (3, "operator")]
    assert cells_of_root(ranked([dump])[0], "", "")[5] == ""


def test_an_estimate_of_a_later_step_than_the_first_root_is_doubtful():
    def dump(step):
        kinds = (RootKind.OPERATOR, RootKind.ESTIMATE, RootKind.GAP)
        return DumpRoots(
            step, "", step, Located([_root(kind, kind.name, own=9.0) for kind in kinds])
        )

    doubted = [
        (found.dump.step, found.root.kind)
        for found in ranked([dump("3"), dump("4")])
        if "doubtful: the runs were apart since step 3" in found.root.message
    ]
    assert doubted == [("4", RootKind.ESTIMATE), ("4", RootKind.GAP)]


def test_a_row_has_the_cells_of_its_root():
    root = Root(
        RootKind.OPERATOR,
        "Torch.exp.0.forward",
        "forward",
        3,
        "output.0",
        12.3456,
        0.5,
        "[3]",
        "a sign",
        "m",
    )
    (found,) = ranked([DumpRoots("2", "1", "step2/rank1", Located([root]))])
    cells = cells_of_root(found, "Module.a", "a.py:1")
    assert cells[:8] == ("1", "2", "1", "Torch.exp.0", "forward", "12.35", "0.5", "own error")
    assert cells[8:] == ("output.0[3]", "Module.a", "a.py:1", "a sign", "m")


def test_what_passes_an_error_on_has_no_place():
    passed = Passed("inherited", "Torch.exp.0.backward", "backward", 4, 0.5, 70.0)
    dumps = [DumpRoots("0", "", "dump", Located(passed=[passed]))]
    ((_, _, cells),) = passed_rows(dumps, "inherited")
    assert cells[:8] == ("", "0", "", "Torch.exp.0", "backward", "0.5", "70", "inherited")


def test_the_graph_has_roots_and_what_they_reached():
    located = Located([_root(RootKind.OPERATOR, "a", own=3.0)], edges=[("a.forward", "b.forward")])
    dump = DumpRoots("0", "0", 'du"mp', located)
    places = ranked([dump])
    assert 'label="1: a.forward\\nown error\\nown 3", color=red' in graph_dot([dump], places)
    assert "n0_0 -> n0_1;" in graph_dot([dump], places)
    assert json.loads(graph_json([dump], places))['du"mp']["links"] == [["a.forward", "b.forward"]]


def test_each_record_is_counted_once_that_a_root_reaches():
    reached = reached_from([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "a")])
    assert (reached("a"), reached("d"), reached("z")) == (3, 3, 0)


def test_a_wrong_result_stands_before_what_it_does_to_its_own_gradient():
    backward = Root(RootKind.OPERATOR, "softmax.backward", "backward", 9, own=100.0)
    roots = [
        backward,
        _root(RootKind.OPERATOR, "softmax", 2, own=20.0),
        _root(RootKind.OPERATOR, "mul", 1, own=50.0),
    ]
    found = ranked([DumpRoots("0", "0", "dump", Located(roots))])
    assert [each.root.key for each in found] == [
        "softmax.forward",
        "softmax.backward",
        "mul.forward",
    ]


def _ranks(*owns):
    roots = [Root(RootKind.OPERATOR, "Torch.exp.0.forward", "forward", 3, own=own) for own in owns]
    return [
        DumpRoots("0", str(rank), f"step0/rank{rank}", Located([root]))
        for rank, root in enumerate(roots)
    ]


def test_the_same_root_of_all_ranks_has_one_place_with_the_largest_error():
    (found,) = ranked(_ranks(5.0, 80.0, 7.0))
    cells = cells_of_root(found, "", "")
    assert (found.root.own, found.dump.rank) == (80.0, "1")
    assert (cells[2], cells[-1]) == ("0-2", "on all 3 ranks")


def test_a_root_of_some_ranks_says_of_how_many():
    honest = DumpRoots("0", "9", "step0/rank9", Located())
    (found,) = ranked([*_ranks(5.0, 80.0), honest])
    assert cells_of_root(found, "", "")[-1] == "on ranks 0-1 of 3"
    (found,) = ranked([*_ranks(5.0), honest])
    assert cells_of_root(found, "", "")[-1] == "on rank 0 alone of 2"


def test_a_run_of_one_rank_says_nothing_of_ranks():
    (found,) = ranked(_ranks(5.0))
    assert cells_of_root(found, "", "")[-1] == ""


def test_what_several_ranks_pass_on_is_one_row_with_the_largest_errors():
    passed = [Passed("inherited", "Torch.exp.0.forward", "forward", 4, own, 9.0) for own in (1, 4)]
    dumps = [
        DumpRoots("0", str(rank), "", Located(passed=[each])) for rank, each in enumerate(passed)
    ]
    ((_, _, cells),) = passed_rows(dumps, "inherited")
    assert (cells[2], cells[5]) == ("0-1", "4")
