"""Where NaN and infinity are born is told apart from where they pass, are masked, come back and are meant."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.trace.overflow import births
from ray_precheck.trace.overflow.births import Followed, follow
from ray_precheck.trace.side import open_side
from tests.unit.trace.overflow_records import (
    INF,
    NAN,
    backward,
    forward,
    number,
    tensor,
    write_dump,
)

pytestmark = pytest.mark.unit
Construct = Mapping[str, Any] | None
BAD = tensor(INF, 0.0)
ALL_NAN = tensor(NAN, NAN)
MASK = tensor(0.0, -INF)
TRUTH = tensor(True, False, "torch.bool")


def followed(folder: Path, records: Mapping[str, Any], construct: Construct = None) -> Followed:
    with open_side(write_dump(folder, records, construct)) as side:
        return follow(side)


def found(folder: Path, records: Mapping[str, Any], construct: Construct = None) -> list[Any]:
    """Return the findings as (birth, key without number, alarm)."""
    return [
        (each.birth.value, each.key, each.is_alarm)
        for each in followed(folder, records, construct).findings
    ]


def test_finite_inputs_and_an_output_that_is_not_are_a_birth(tmp_path: Path) -> None:
    records = {
        "Torch.exp.0.forward": forward([tensor(800.0)], [BAD]),
        "Torch.neg.0.forward": forward([BAD], [tensor(0.0, -INF)]),
    }
    (first, second) = followed(tmp_path, records).findings
    assert (first.place, first.birth.value, first.is_alarm) == (
        "Torch.exp.0.forward.output.0",
        "birth",
        True,
    )
    assert "the largest absolute value was 800" in first.message
    assert (second.birth.value, second.is_alarm) == ("passed on", False)
    assert second.message == "from Torch.exp.0.forward.output.0"


WHOLE = tensor(5, -(2**63), "torch.int64")
SMALL = tensor(5, 0, "torch.int64")
WHERE = {"Torch.where.0.forward": forward([TRUTH, BAD, tensor()], [tensor(3.0)])}
CAST = {"Tensor.to.0.forward": forward([BAD, {"type": "torch.dtype"}], [WHOLE])}


@pytest.mark.parametrize(
    ("records", "is_gone"),
    [
        (WHERE, True),
        ({"Torch.mul.0.forward": forward([BAD, tensor()], [tensor(3.0)])}, False),
        ({}, False),
        ({"Torch.isnan.0.forward": forward([BAD], [TRUTH])}, False),
        ({"Torch.neg.0.forward": forward([BAD], [MASK]), **WHERE}, False),
        ({"Torch.clone.0.forward": forward([BAD], [BAD]), **WHERE}, False),
        ({**WHERE, "Module.net.Net.forward.0": forward([tensor()], [BAD])}, False),
        ({**WHERE, "Torch.exp.0.backward": backward([tensor()], [ALL_NAN])}, False),
        ({**CAST, "Torch.where.1.forward": forward([TRUTH, WHOLE, SMALL], [SMALL])}, True),
        ({**CAST, "Torch.clamp.0.forward": forward([WHOLE, number(0)], [SMALL])}, False),
        (CAST, False),
    ],
)
def test_a_birth_is_taken_away_where_only_masks_read_it(
    tmp_path: Path, records: Mapping[str, Any], is_gone: bool
) -> None:
    seen = followed(tmp_path, {"Torch.exp.0.forward": forward([tensor()], [BAD])} | dict(records))
    (first, *_) = seen.findings
    assert (first.birth.value == "taken away", not seen.alarms) == (is_gone, is_gone)


def test_a_single_number_is_not_taken_away(tmp_path: Path) -> None:
    """It may be the loss, of which a log has a finite copy."""
    loss = tensor(NAN, NAN, shape=())
    records = {
        "Torch.log.0.forward": forward([tensor()], [loss]),
        "Torch.nan_to_num.0.forward": forward([loss], [tensor(shape=())]),
    }
    assert found(tmp_path, records)[0] == ("birth", "Torch.log.0.forward", True)


def test_an_output_that_is_finite_masks_and_the_same_values_re_emerge(tmp_path: Path) -> None:
    records = {
        "Torch.exp.0.forward": forward([tensor()], [BAD]),
        "Torch.isfinite.0.forward": forward([BAD], [TRUTH]),
        "Torch.where.0.forward": forward([TRUTH, BAD, tensor()], [tensor(3.0)]),
        "Torch.mul.0.forward": forward([BAD, tensor()], [ALL_NAN]),
        "Torch.add.0.forward": forward([ALL_NAN], [ALL_NAN]),
    }
    assert found(tmp_path, records) == [
        ("birth", "Torch.exp.0.forward", True),
        ("masked", "Torch.isfinite.0.forward", False),
        ("masked", "Torch.where.0.forward", False),
        ("re-emerged", "Torch.mul.0.forward", False),
        ("passed on", "Torch.add.0.forward", False),
    ]


def test_a_look_at_truth_values_masks_nothing(tmp_path: Path) -> None:
    records = {
        "Torch.exp.0.forward": forward([tensor()], [BAD]),
        "Torch.isinf.0.forward": forward([BAD], [TRUTH]),
        "Torch.mul.0.forward": forward([BAD], [ALL_NAN]),
    }
    assert [each[0] for each in found(tmp_path, records)] == ["birth", "masked", "passed on"]


def test_a_gradient_re_emerges_where_the_forward_pass_was_masked(tmp_path: Path) -> None:
    records = {
        "Torch.log.0.forward": forward([tensor(0.0, 0.0)], [tensor(-INF, -INF)]),
        "Torch.where.0.forward": forward([TRUTH, tensor(-INF, -INF)], [tensor()]),
        "Torch.where.0.backward": backward([tensor()], [tensor(1.0, 0.0)]),
        "Torch.log.0.backward": backward([tensor(1.0, 0.0)], [ALL_NAN]),
        "Torch.mul.0.backward": backward([ALL_NAN], [ALL_NAN]),
    }
    assert found(tmp_path, records) == [
        ("birth", "Torch.log.0.forward", True),
        ("masked", "Torch.where.0.forward", False),
        ("re-emerged", "Torch.log.0.backward", True),
        ("passed on", "Torch.mul.0.backward", False),
    ]


def test_a_gradient_is_born_where_the_forward_pass_was_finite(tmp_path: Path) -> None:
    records = {
        "Torch.sqrt.0.forward": forward([tensor(0.0, 0.0)], [tensor(0.0, 0.0)]),
        "Torch.sqrt.0.backward": backward([tensor(1.0)], [tensor(INF, INF)]),
    }
    assert found(tmp_path, records) == [("birth", "Torch.sqrt.0.backward", True)]


@pytest.mark.parametrize(
    "made",
    [
        {"Torch.full.0.forward": forward([number(-INF)], [MASK])},
        {"Tensor.masked_fill.0.forward": forward([tensor(), TRUTH, number(-INF)], [MASK])},
        {"Tensor.__setitem__.0.forward": forward([tensor(), TRUTH, number(-INF)], [MASK])},
        {"Torch.tensor.0.forward": forward([[number(0.0), number(-INF)]], [MASK])},
        {},
    ],
)
def test_a_mask_of_negative_infinity_is_meant(tmp_path: Path, made: dict[str, Any]) -> None:
    records = {
        **made,
        "Tensor.triu.0.forward": forward([MASK], [MASK]),
        "Torch.add.0.forward": forward([tensor(), MASK], [tensor(1.0, -INF)]),
        "Functional.softmax.0.forward": forward([tensor(1.0, -INF)], [tensor(1.0, 0.0)]),
    }
    ((birth, _, alarm),) = found(tmp_path, records)
    assert (birth, alarm) == ("meant", False)


def test_a_mask_that_nothing_makes_finite_came_in(tmp_path: Path) -> None:
    records = {"Tensor.masked_fill.0.forward": forward([tensor(), TRUTH, number(-INF)], [MASK])}
    assert found(tmp_path, records) == [("came in", "Tensor.masked_fill.0.forward", False)]


def test_a_row_that_is_masked_as_a_whole_is_a_birth(tmp_path: Path) -> None:
    records = {
        "Tensor.masked_fill.0.forward": forward([tensor(), TRUTH, number(-INF)], [MASK]),
        "Functional.softmax.0.forward": forward([MASK], [ALL_NAN]),
    }
    assert found(tmp_path, records)[1] == ("birth", "Functional.softmax.0.forward", True)


def test_an_infinity_that_an_operator_computed_is_no_mask(tmp_path: Path) -> None:
    scores = tensor(-5.0, -INF)
    records = {
        "Torch.log.0.forward": forward([tensor(1.0, 0.0)], [scores]),
        "Functional.softmax.0.forward": forward([scores], [tensor(1.0, 0.0)]),
    }
    assert found(tmp_path, records) == [
        ("birth", "Torch.log.0.forward", True),
        ("masked", "Functional.softmax.0.forward", False),
    ]


def test_a_mask_with_the_statistics_of_a_birth_does_not_hide_it(tmp_path: Path) -> None:
    lowest = tensor(-INF, -INF)
    records = {
        "Torch.log.0.forward": forward([tensor(0.0, 0.0)], [lowest]),
        "Torch.full.0.forward": forward([number(-INF)], [lowest]),
        "Torch.add.0.forward": forward([lowest, lowest], [lowest]),
        "Functional.softmax.0.forward": forward([lowest], [ALL_NAN]),
    }
    assert [each[0] for each in found(tmp_path, records) if each[2]] == ["birth"]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_constant_of_another_sign_or_nan_is_a_birth(tmp_path: Path, sign: int) -> None:
    records = {
        "Tensor.__mul__.0.forward": forward([tensor(0.0, 0.0), number(sign * INF)], [ALL_NAN])
    }
    assert found(tmp_path, records) == [("birth", "Tensor.__mul__.0.forward", True)]


@pytest.mark.parametrize("operator", ["half", "to", "type", "copy_", "__setitem__"])
def test_a_value_that_leaves_a_half_type_in_a_cast_is_named(tmp_path: Path, operator: str) -> None:
    half = tensor(INF, 0.0, "torch.float16")
    records = {f"Tensor.{operator}.0.forward": forward([tensor(), tensor(1e5)], [half])}
    (finding,) = followed(tmp_path, records).findings
    assert (finding.birth.value, finding.is_alarm) == ("cast", True)
    assert finding.message == "the cast gives a value of 100000 in float16, whose largest is 65504"


def test_whole_numbers_leave_a_half_type_too(tmp_path: Path) -> None:
    whole = tensor(70000, 0, "torch.int64")
    half = tensor(INF, 0.0, "torch.float16")
    assert found(tmp_path, {"Tensor.half.0.forward": forward([whole], [half])})[0][0] == "cast"


def test_a_cast_of_values_that_fit_is_an_ordinary_birth(tmp_path: Path) -> None:
    half = tensor(INF, 0.0, "torch.float16")
    assert found(tmp_path, {"Tensor.half.0.forward": forward([tensor(9.0)], [half])})[0][0] == (
        "birth"
    )


def test_autocast_is_named_where_its_dtype_cannot_hold_an_input(tmp_path: Path) -> None:
    half = tensor(INF, 0.0, "torch.float16")
    record = forward([tensor(1e6)], [half], autocast="torch.float16")
    (finding,) = followed(tmp_path, {"Functional.linear.0.forward": record}).findings
    assert finding.birth.value == "cast"
    assert finding.message.startswith("autocast gives a value of 1e+06 in float16")


def test_nan_of_a_constant_infinity_is_a_birth(tmp_path: Path) -> None:
    constant, lost = tensor(INF, INF), tensor(NAN, NAN, shape=())
    records = {
        "Tensor.new_full.0.forward": forward([tensor(), number(INF)], [constant]),
        "Tensor.__add__.0.forward": forward([tensor(), constant], [constant]),
        "Tensor.__mul__.0.forward": forward([constant], [ALL_NAN]),
        "Tensor.sum.0.forward": forward([ALL_NAN], [lost]),
    }
    findings = followed(tmp_path, records).findings
    assert [(each.birth.value, each.is_alarm) for each in findings] == [
        ("came in", False), ("passed on", False), ("birth", True), ("passed on", False),
    ]  # fmt: skip
    assert "only inf was not finite" in findings[2].message
    assert findings[3].message == "from Tensor.__mul__.0.forward.output.0"


def test_values_that_were_not_finite_before_came_in_once(tmp_path: Path) -> None:
    records = {
        "Functional.linear.0.forward": forward(
            [tensor(), ALL_NAN], [tensor(NAN, NAN, shape=(4, 2))]
        ),
        "Functional.linear.1.forward": forward(
            [tensor(), ALL_NAN], [tensor(NAN, NAN, shape=(4, 2))]
        ),
    }
    assert found(tmp_path, records) == [
        ("came in", "Functional.linear.0.forward", True),
        ("passed on", "Functional.linear.0.forward", False),
        ("passed on", "Functional.linear.1.forward", False),
    ]


def test_memory_that_was_not_written_is_no_alarm(tmp_path: Path) -> None:
    records = {
        "Torch.empty.0.forward": forward([{"type": "int", "value": 4}], [ALL_NAN]),
        "Tensor.copy_.0.forward": forward([ALL_NAN, tensor()], [tensor()]),
    }
    assert found(tmp_path, records) == [("came in", "Torch.empty.0.forward", False)]


def test_a_change_through_a_view_is_followed_to_its_base(tmp_path: Path) -> None:
    part = tensor(INF, INF, shape=(4,))
    records = {
        "Tensor.div_.0.forward": forward([tensor(shape=(4,)), number(0.0)], [part]),
        "Tensor.__add__.0.forward": forward([BAD, number(1.0)], [BAD]),
    }
    assert [each[0] for each in found(tmp_path, records)] == ["birth", "passed on"]


def test_a_change_in_place_is_judged_by_the_values_before_it(tmp_path: Path) -> None:
    records = {"Tensor.mul_.0.forward": forward([tensor(60000.0), number(2.0)], [BAD])}
    assert found(tmp_path, records) == [("birth", "Tensor.mul_.0.forward", True)]


def test_gradients_that_autograd_sums_may_be_born_between_operators(tmp_path: Path) -> None:
    records = {
        "Torch.mul.0.backward": backward([tensor()], [tensor(60000.0, dtype="torch.float16")]),
        "Torch.add.0.backward": backward([tensor(INF, 0.0, "torch.float16")], [BAD]),
    }
    assert found(tmp_path, records) == [
        ("birth", "Torch.add.0.backward", True),
        ("passed on", "Torch.add.0.backward", False),
    ]


def test_a_gradient_with_the_statistics_of_a_mask_is_not_meant(tmp_path: Path) -> None:
    records = {
        "Torch.full.0.forward": forward([number(-INF)], [MASK]),
        "Functional.softmax.0.forward": forward([MASK], [tensor(1.0, 0.0)]),
        "Torch.mul.0.backward": backward([MASK], [MASK]),
    }
    assert [each[:2] for each in found(tmp_path, records)] == [
        ("meant", "Torch.full.0.forward"),
        ("passed on", "Torch.mul.0.backward"),
    ]


def test_a_sum_of_gradients_has_the_origin_of_its_terms(tmp_path: Path) -> None:
    records = {
        "Torch.sqrt.0.backward": backward([tensor()], [tensor(INF, INF)]),
        "Torch.add.0.backward": backward([tensor(INF, 3.0)], [tensor(INF, 3.0)]),
    }
    first, second = followed(tmp_path, records).findings
    assert (second.birth.value, second.message) == ("passed on", f"from {first.place}")


def test_nan_without_mean_and_norm_is_seen(tmp_path: Path) -> None:
    double = {**tensor(NAN, NAN, "torch.float64"), "Mean": None, "Norm": None}
    (finding,) = followed(tmp_path, {"Torch.log.0.forward": forward([tensor()], [double])}).findings
    assert finding.found.words == "NaN"


def test_the_first_gradient_came_in(tmp_path: Path) -> None:
    records = {"Torch.add.0.backward": backward([BAD], [BAD])}
    assert found(tmp_path, records)[0] == ("came in", "Torch.add.0.backward", True)


def test_gradients_of_parameters_are_born_in_their_sum(tmp_path: Path) -> None:
    records = {
        "Functional.linear.0.backward": backward([tensor()], [tensor()]),
        "Module.l.Linear.parameters_grad.0": {"weight": [BAD]},
    }
    assert found(tmp_path, records) == [("birth", "Module.l.Linear.parameters_grad.0", True)]


def test_a_module_bears_what_no_operator_in_it_shows(tmp_path: Path) -> None:
    module = "Module.custom.Fused.forward.0"
    records = {
        "Torch.add.0.forward": forward([tensor()], [tensor()]),
        module: forward([tensor()], [BAD]),
        "Torch.neg.0.forward": forward([BAD], [BAD]),
    }
    construct = {"Torch.add.0.forward": module, module: None}
    assert found(tmp_path, records, construct) == [
        ("birth", module, True),
        ("passed on", "Torch.neg.0.forward", False),
    ]


def test_a_module_only_carries_what_an_operator_in_it_bore(tmp_path: Path) -> None:
    inner, outer = "Module.a.Inner.forward.0", "Module.Outer.forward.0"
    other = tensor(INF, 0.0, shape=(2,))
    records = {
        "Torch.exp.0.forward": forward([tensor()], [BAD]),
        inner: forward([tensor()], [other]),
        outer: forward([tensor()], [tensor(INF, 1.0)]),
    }
    construct = {"Torch.exp.0.forward": inner, inner: outer, outer: None}
    assert found(tmp_path, records, construct) == [("birth", "Torch.exp.0.forward", True)]


def test_modules_alone_are_judged_from_the_inside_out(tmp_path: Path) -> None:
    inner, outer = "Module.a.Inner.forward.0", "Module.Outer.forward.0"
    records = {inner: forward([tensor()], [BAD]), outer: forward([tensor()], [tensor(INF, 1.0)])}
    assert found(tmp_path, records, {inner: outer, outer: None}) == [("birth", inner, True)]


def test_counts_of_a_sketch_tell_more_than_the_ends(tmp_path: Path) -> None:
    hidden = tensor(2.0, -1.0, health={"nan": 3})
    records = {"Torch.fused.0.forward": forward([tensor()], [hidden])}
    (finding,) = followed(tmp_path, records).findings
    assert finding.found.words == "NaN"


def test_a_largest_value_that_leaves_nan_out_does_not_hide_it(tmp_path: Path) -> None:
    hidden = {**tensor(), "Mean": NAN, "Norm": NAN}
    records = {"Torch.sub.0.forward": forward([tensor()], [hidden])}
    assert found(tmp_path, records) == [("birth", "Torch.sub.0.forward", True)]


def test_a_sum_that_overflows_in_the_statistics_is_none(tmp_path: Path) -> None:
    large = {**tensor(3e38, -3e38), "Mean": INF, "Norm": INF}
    assert found(tmp_path, {"Torch.sub.0.forward": forward([tensor()], [large])}) == []


def test_a_collective_with_finite_values_of_its_own_rank_is_told(tmp_path: Path) -> None:
    group = {"type": "torch.ProcessGroup", "group_ranks": [0, 1, 2, 5]}
    records = {"Distributed.all_reduce.0.forward": forward([tensor()], [BAD], group=group)}
    (finding,) = followed(tmp_path, records).findings
    assert finding.birth.value == "came in"
    assert finding.message == "own values were finite (group of ranks 0-2,5)"


def test_an_optimizer_bears_what_it_makes_of_finite_gradients(tmp_path: Path) -> None:
    state = {"params": [tensor()], "grads": [tensor()]}
    records = {"Optimizer.Adam.0.forward": forward([state], [{"params": [ALL_NAN]}])}
    assert found(tmp_path, records) == [("birth", "Optimizer.Adam.0.forward", True)]


def test_statistics_that_are_missing_are_said_and_no_pass(tmp_path: Path) -> None:
    unknown = tensor(None, None)
    nothing = followed(tmp_path, {"Torch.add.0.forward": forward([unknown], [unknown])})
    assert not nothing.knows
    some = followed(tmp_path, {"Torch.add.0.forward": forward([unknown], [BAD])})
    assert "input.0 has no statistics" in some.findings[0].message


def test_records_without_floats_know_nothing(tmp_path: Path) -> None:
    whole = tensor(3, 0, "torch.int64")
    assert not followed(tmp_path, {"Torch.add.0.forward": forward([whole], [whole])}).knows


def test_mindspore_names_are_known(tmp_path: Path) -> None:
    half = tensor(INF, 0.0, "Float16")
    record = forward([tensor(1e5, dtype="Float32")], [half])
    path = write_dump(tmp_path, {"Tensor.astype.0.forward": record})
    path.write_text(path.read_text().replace("pytorch", "mindspore"))
    with open_side(path) as side:
        assert [each.birth.value for each in follow(side).findings] == ["cast"]


def test_records_that_pass_on_are_counted_beyond_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(births, "MOST_PASSED_ON", 2)
    records = {"Torch.exp.0.forward": forward([tensor()], [BAD])}
    records |= {f"Torch.neg.{number}.forward": forward([BAD], [BAD]) for number in range(5)}
    seen = followed(tmp_path, records)
    assert (len(seen.findings), seen.passed_on) == (3, 5)


# Records of odd forms; whether they can be read, and what an operator of such a record bears.
ODD_RECORDS: list[tuple[Any, bool, str]] = [
    (None, False, ""),
    ([], False, ""),
    ("NaN", False, ""),
    ({"input_args": "NaN", "output": {"a": NAN}}, True, ""),
    (
        {"input_args": [{"type": "torch.Tensor", "dtype": 3, "shape": "inf"}], "output": [NAN]},
        True,
        "",
    ),
    ({"output": [{**tensor(None, None), "Max": "nan"}]}, True, "NaN"),
    (
        forward(
            [{**tensor(), "Max": 10**400}], [tensor(INF, 0.0, health={"nan": "many", "+inf": []})]
        ),
        True,
        "inf",
    ),
    (forward([], [tensor(INF, 0.0)], group={"group_ranks": ["inf"]}, autocast=7), True, "inf"),
]


@pytest.mark.parametrize(
    "key", ["Torch.exp.0.forward", "Torch.exp.0.backward", "Module.a.B.forward.0", "x"]
)
@pytest.mark.parametrize(("record", "is_read", "born"), ODD_RECORDS)
def test_records_of_any_form_are_read_and_hide_no_birth_behind_them(
    tmp_path: Path, key: str, record: Any, is_read: bool, born: str
) -> None:
    behind = {"Torch.log.0.forward": forward([tensor()], [BAD])}
    seen = followed(tmp_path, {key: record, "Module.a.B.parameters_grad": record, **behind})
    assert seen.records == 3
    assert seen.unread == (0 if is_read else 2)
    births = [("Torch.log.0.forward", "inf")]
    if born and key != "x":  # which names no call
        births = [(key, born), *births]
    assert [(each.key, each.found.words) for each in seen.alarms] == births
    assert seen.births == len(births)
