"""Which call is which: every rule of the alignment, and that nothing is dropped."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_precheck.trace.alignment.align import How, Match, align
from ray_precheck.trace.alignment.calls import Call, Shape, family_of
from ray_precheck.trace.side import API, GRADIENTS, MODULE

pytestmark = pytest.mark.unit

S: Shape = (2, 8)
HOWS = {How.EXACT, How.SHIFTED, How.RENAMED, How.FUSED, How.SPLIT, How.UNMATCHED}


def call(
    name: str,
    inputs: Sequence[Shape] = (S,),
    outputs: Sequence[Shape] = (S,),
    norm: float = math.nan,
    digest: str = "",
    recompute_of: str = "",
    kind: str = API,
) -> Call:
    type_name = name.rpartition(".")[0]
    family = family_of(type_name) if kind == API else type_name.rpartition(".")[2]
    digests = (digest,) if digest else ()
    norms = (norm,) * len(outputs)
    return Call(
        name, kind, type_name, family, tuple(inputs), tuple(outputs), digests, norms, recompute_of
    )


def calls(*names: str, **more: float) -> list[Call]:
    return [call(name, **more) for name in names]


def pairs(matches: Sequence[Match]) -> list[tuple[tuple[int, ...], tuple[int, ...], How]]:
    return [(match.target, match.golden, match.how) for match in matches]


def test_runs_with_the_same_names_are_matched_by_name_whatever_their_shapes() -> None:
    golden = calls("Torch.add.0", "Torch.mul.0")
    target = [call("Torch.add.0", [(9,)], [(9,)]), call("Torch.mul.0", norm=math.inf)]
    assert pairs(align(target, golden)) == [((0,), (0,), How.EXACT), ((1,), (1,), How.EXACT)]


def test_after_an_inserted_call_the_numbers_are_shifted() -> None:
    golden = calls("Torch.exp.0", "Torch.add.0", "Torch.mul.0", "Torch.add.1", "Torch.sin.0")
    target = calls(
        "Torch.exp.0", "Torch.add.0", "Torch.mul.0", "Torch.cos.0", "Torch.add.1", "Torch.sin.0"
    )
    target.insert(0, call("Torch.add.7", [(3,)], [(3,)]))
    target = [
        each._replace(name=name)
        for each, name in zip(
            target,
            ["Torch.add.0", "Torch.exp.0", "Torch.add.1", "Torch.mul.0", "Torch.cos.0", "Torch.add.2",
             "Torch.sin.0"],
            strict=True,
        )
    ]  # fmt: skip
    assert pairs(align(target, golden)) == [
        ((0,), (), How.UNMATCHED),
        ((1,), (0,), How.EXACT),
        ((2,), (1,), How.SHIFTED),
        ((3,), (2,), How.EXACT),
        ((4,), (), How.UNMATCHED),
        ((5,), (3,), How.SHIFTED),
        ((6,), (4,), How.EXACT),
    ]


def test_a_removed_call_stands_where_the_golden_side_has_it() -> None:
    golden = calls("Torch.exp.0", "Torch.add.0", "Torch.mul.0")
    matches = align(calls("Torch.exp.0", "Torch.mul.0"), golden)
    assert pairs(matches) == [
        ((0,), (0,), How.EXACT),
        ((), (1,), How.UNMATCHED),
        ((1,), (2,), How.EXACT),
    ]


def test_another_spelling_of_an_operator_is_renamed() -> None:
    golden = calls("Torch.exp.0", "Tensor.__add__.0", "Torch.mul.0")
    target = calls("Torch.exp.0", "Torch.add.0", "Torch.mul.0")
    assert pairs(align(target, golden))[1] == ((1,), (1,), How.RENAMED)


def test_another_operator_with_the_same_shapes_in_the_same_place_is_renamed() -> None:
    golden = calls("Torch.exp.0", "Torch.gelu.0", "Torch.mul.0")
    target = calls("Torch.exp.0", "NPU.quick.0", "Torch.mul.0")
    assert pairs(align(target, golden))[1] == ((1,), (1,), How.RENAMED)


def test_another_operator_with_other_shapes_is_no_pair_and_the_note_says_so() -> None:
    golden = calls("Torch.exp.0", "Torch.gelu.0", "Torch.mul.0")
    target = [golden[0], call("NPU.quick.0", [(3,)], [(5, 7), ()]), golden[2]]
    found = align(target, golden)
    assert pairs(found)[1:3] == [((), (1,), How.UNMATCHED), ((1,), (), How.UNMATCHED)]
    assert found[2].note == (
        "nearest is Torch.gelu.0, but it is another operator (gelu, not quick) and gives 2x8, not "
        "5x7 scalar"
    )


NORM = [
    call("Tensor.pow.0"),
    call("Tensor.mean.0", [S], [(2, 1)]),
    call("Torch.rsqrt.0", [(2, 1)], [(2, 1)]),
    call("Tensor.__mul__.0", [S, (2, 1)]),
    call("Tensor.__mul__.1", [(8,), S]),
]
WHOLE = call("NPU.npu_rms_norm.0", [S, (8,)])


@pytest.mark.parametrize("values", [math.nan, 3.5])
def test_several_calls_that_the_target_does_in_one_are_fused(values: float) -> None:
    around = calls("Torch.exp.0", "Torch.sin.0")
    parts = [*NORM[:-1], NORM[-1]._replace(norms=(values,))]
    golden, target = [around[0], *parts, around[1]], [around[0], WHOLE, around[1]]
    assert pairs(align(target, golden))[1] == ((1,), (1, 2, 3, 4, 5), How.FUSED)
    assert pairs(align(golden, target))[1] == ((1, 2, 3, 4, 5), (1,), How.SPLIT)


def test_a_call_that_both_sides_have_is_not_given_away_to_a_fusion() -> None:
    golden = [call("Torch.exp.0"), call("Torch.add.0"), call("Torch.mul.0")]
    target = [call("Torch.add.0"), call("Torch.mul.0")]
    assert pairs(align(target, golden)) == [
        ((), (0,), How.UNMATCHED),
        ((0,), (1,), How.EXACT),
        ((1,), (2,), How.EXACT),
    ]


def test_values_tell_which_of_several_alike_calls_is_missing() -> None:
    golden = [call(f"Torch.add.{at}", norm=10.0 + at) for at in range(6)]
    for gone in range(6):
        left = [each for at, each in enumerate(golden) if at != gone]
        target = [each._replace(name=f"Torch.add.{at}") for at, each in enumerate(left)]
        alone = [match.golden for match in align(target, golden) if match.how is How.UNMATCHED]
        assert alone == [(gone,)]


def test_digests_tell_which_of_several_alike_calls_is_missing() -> None:
    golden = [call(f"Torch.add.{at}", digest=f"{at:08x}") for at in range(6)]
    target = [each._replace(name=f"Torch.add.{at}") for at, each in enumerate(golden[1:])]
    assert pairs(align(target, golden))[0] == ((), (0,), How.UNMATCHED)


def test_wrong_values_and_nan_do_not_change_what_shapes_and_order_say() -> None:
    golden = [
        call(f"Torch.op{at % 7}.{at // 7}", [(at % 5, 2)], [(at % 5, 2)], norm=1.0 + at)
        for at in range(60)
    ]
    wrong = [
        each._replace(norms=(math.nan if at % 3 else 1.0 + (at * 17) % 60,)) if at > 20 else each
        for at, each in enumerate(golden)
    ]
    target = [*wrong[:10], call("Torch.new.0", [(77,)], [(77,)]), *wrong[10:]]
    matched = [
        (match.target[0], match.golden[0]) for match in align(target, golden) if match.golden
    ]
    assert matched == [(at + (at >= 10), at) for at in range(60)]


def test_values_that_agree_by_chance_alone_move_nothing() -> None:
    golden = [
        call(f"Torch.op{at % 3}.{at // 3}", [(2, 2)], [(2, 2)], norm=1.0 + at) for at in range(200)
    ]
    wrong = [each._replace(norms=(1000.0 + at,)) for at, each in enumerate(golden)]
    wrong[30] = wrong[30]._replace(norms=golden[150].norms)
    target = [*wrong[:10], call("Torch.new.0", [(77,)], [(77,)]), *wrong[10:]]
    matched = [(match.target, match.golden) for match in align(target, golden) if match.golden]
    assert matched == [((at + (at >= 10),), (at,)) for at in range(200)]


def test_another_batch_size_is_aligned_by_operators() -> None:
    golden = [call(f"Torch.op{at % 7}.{at // 7}") for at in range(40)]
    small = [each._replace(inputs=((1, 8),), outputs=((1, 8),)) for each in golden]
    target = [*small[:9], call("Torch.new.0", [(1, 8)], [(1, 8)]), *small[9:20], *small[21:]]
    found = {match.target: match.golden for match in align(target, golden) if match.golden}
    assert [found.get((at,)) for at in (8, 9, 10, 20, 21, 39)] == [
        (8,),
        None,
        (9,),
        (19,),
        (21,),
        (39,),
    ]
    assert found[()] == (20,)


def test_a_recomputed_call_has_the_partner_of_its_first_call() -> None:
    golden = calls("Torch.exp.0", "Torch.sin.0")
    again = call("Torch.exp.1", recompute_of="Torch.exp.0")
    assert pairs(align([*golden, again], golden)) == [
        ((0,), (0,), How.EXACT),
        ((1,), (1,), How.EXACT),
        ((2,), (0,), How.RECOMPUTED),
    ]
    assert pairs(align(golden, [*golden, again]))[2] == ((0,), (2,), How.RECOMPUTED)


def test_calls_that_both_sides_compute_again_are_pairs() -> None:
    golden = [*calls("Torch.exp.0", "Torch.sin.0"), call("Torch.exp.1", recompute_of="Torch.exp.0")]
    target = [call("Torch.cos.0"), *golden]
    assert pairs(align(target, golden))[3] == ((3,), (2,), How.EXACT)


def test_a_recomputed_call_whose_first_call_is_alone_is_alone() -> None:
    golden = calls("Torch.exp.0")
    first = call("Torch.sin.0", [(3,)], [(4,)])
    target = [first, *golden, first._replace(name="Torch.sin.1", recompute_of="Torch.sin.0")]
    found = align(target, golden)
    assert pairs(found)[2] == ((2,), (), How.UNMATCHED)
    assert found[2].note == "computes Torch.sin.0 again, which has no partner"


def test_a_module_behind_what_it_computes_again_is_computed_again_too() -> None:
    module = call("Module.a.Exp.0", kind=MODULE)
    golden = [call("Torch.exp.0"), module]
    again = [
        call("Torch.exp.1", recompute_of="Torch.exp.0"),
        module._replace(name="Module.a.Exp.1"),
    ]
    assert pairs(align([*golden, *again], golden))[2:] == [
        ((2,), (0,), How.RECOMPUTED),
        ((3,), (1,), How.RECOMPUTED),
    ]
    without = [again[0]._replace(recompute_of=""), again[1]]
    assert [match.how for match in align([*golden, *without], golden)[2:]] == [How.UNMATCHED] * 2


def test_modules_are_matched_by_name_and_then_in_order() -> None:
    golden = [call(f"Module.{name}.Linear.0", kind=MODULE) for name in ("a", "b", "c")]
    target = [call(f"Module.{name}.Linear.0", kind=MODULE) for name in ("b", "net.a", "net.c")]
    assert {match[:2]: match.how for match in align(target, golden)} == {
        ((0,), (1,)): How.EXACT,
        ((1,), (0,)): How.RENAMED,
        ((2,), (2,)): How.RENAMED,
    }


def test_gradients_are_matched_by_name_in_any_order() -> None:
    golden = [call(f"Module.{name}.Linear.parameters_grad", kind=GRADIENTS) for name in "abc"]
    found = align(golden[::-1], golden)
    assert pairs(found) == [
        ((0,), (2,), How.EXACT),
        ((1,), (1,), How.EXACT),
        ((2,), (0,), How.EXACT),
    ]


def test_exact_matches_the_same_names_alone() -> None:
    golden = calls("Torch.add.0", "Torch.exp.0")
    target = calls("Torch.cos.0", "Torch.add.0", "Torch.add.1")
    found = align(target, golden, exact=True)
    assert pairs(found) == [
        ((0,), (), How.UNMATCHED),
        ((1,), (0,), How.EXACT),
        ((), (1,), How.UNMATCHED),
        ((2,), (), How.UNMATCHED),
    ]
    assert found[0].note == "the golden side has no call of this name"
    assert found[2].note == "the target has no call of this name"


def test_a_note_names_the_call_that_took_the_same_name() -> None:
    golden = calls("Torch.exp.0", "Torch.add.0", "Torch.sin.0")
    target = [golden[0], call("Torch.add.0", [(3,)], [(4,)]), call("Torch.add.1"), golden[2]]
    found = align(target, golden)
    assert found[1].note == "Torch.add.0 of the golden side is the partner of Torch.add.1"


def test_mindspore_and_torch_are_aligned_by_family() -> None:
    golden = calls("Functional.linear.0", "Tensor.__mul__.0", "Tensor.transpose.0", "Torch.cat.0")
    target = calls("Functional.dense.0", "Mint.mul.0", "Tensor.swapaxes.0", "Functional.concat.0")
    matches = align(target, golden)
    assert [match.how for match in matches] == [How.RENAMED] * 4
    assert [match.golden for match in matches] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("length", [0, 1, 300])
def test_an_empty_side_leaves_the_other_one_unmatched(length: int) -> None:
    some = calls(*(f"Torch.add.{at}" for at in range(length)))
    assert [match.target for match in align(some, [])] == [(at,) for at in range(length)]
    assert [match.golden for match in align([], some)] == [(at,) for at in range(length)]


def test_everything_different_is_unmatched_with_a_note() -> None:
    golden = [call(f"Torch.a{at}.0", [(at, 1)], [(at, 2)]) for at in range(300)]
    target = [call(f"Torch.b{at}.0", [(at, 3, 1)], [(at, 4, 1)]) for at in range(300)]
    found = align(target, golden)
    assert {match.how for match in found} == {How.UNMATCHED}
    assert all(match.note for match in found)


SHAPES = st.sampled_from([(), (2,), (2, 3)])
CALLS = st.lists(
    st.builds(
        lambda kind, type_name, inputs, outputs, norm, digest, first: call(
            f"{type_name}.0", inputs, outputs, norm, digest, first, kind
        ),
        st.sampled_from([API] * 6 + [MODULE, GRADIENTS]),
        st.sampled_from(["Torch.add", "Tensor.__add__", "Torch.mul", "Torch.exp", "NPU.fused", "Module.a.A"]),
        st.lists(SHAPES, max_size=2),
        st.lists(SHAPES, max_size=2),
        st.sampled_from([0.0, 1.0, 2.0, math.nan, math.inf]),
        st.sampled_from(["", "", "a", "b"]),
        st.sampled_from(["", "", "", "Torch.add.0", "Torch.add.1", "Torch.none.0"]),
    ),
    max_size=40,
).map(
    lambda made: [
        each._replace(name=f"{each.type_name}.{at}" if at % 3 else f"{each.type_name}.{at // 2}")
        for at, each in enumerate(made)
    ]
)  # fmt: skip


@given(CALLS, CALLS, st.booleans())
def test_every_call_stands_in_one_match_and_the_order_is_kept(
    target: list[Call], golden: list[Call], exact: bool
) -> None:
    matches = align(target, golden, exact=exact)
    own = [match for match in matches if match.how is not How.RECOMPUTED]
    again = [match for match in matches if match.how is How.RECOMPUTED]
    for side, length in ((0, len(target)), (1, len(golden))):
        held = [at for match in own for at in match[side]]
        assert len(held) == len(set(held))
        assert set(held) | {at for match in again for at in match[side]} == set(range(length))
    firsts = [match.target[0] for match in own if match.target]
    assert firsts == sorted(firsts)
    assert all(match.how in HOWS for match in own)
    assert all(bool(match.note) == (match.how is How.UNMATCHED) for match in matches)
    if exact or [each.name for each in target] == [each.name for each in golden]:
        return
    once = [
        at
        for match in own
        if match.target and match.golden and target[match.target[0]].kind == API
        for at in match.golden
        if not golden[at].recompute_of
    ]
    assert once == sorted(once)
