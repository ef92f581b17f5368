"""What the walk through a capture names as the beginning of an error."""

import math

import pytest

from ray_precheck.commands.locate.walk.nouns import OwnError, RootKind
from tests.unit.commands.locate.run_records import (
    MeasuredForTest,
    record,
    tensor,
    walked,
    weight,
)

LINEAR, RELU, SUM = (
    "Functional.linear.0.forward",
    "Functional.relu.0.forward",
    "Torch.sum.0.forward",
)
X, W, Y, Z, LOSS = tensor(1.0), weight(0.5), tensor(2.0), tensor(3.0), tensor(4.0, shape=())
RUN = [record(LINEAR, [X, W], [Y]), record(RELU, [Y], [Z]), record(SUM, [Z], [LOSS])]
PASSES = OwnError("pass", 0.5)
ERRS = OwnError("error", 70.0, 3.0, output="output.0", index="[1, 2]", cause="a sign")


def _outcomes(located):
    roots = [(root.kind, root.key) for root in located.roots]
    return roots, [(each.verdict, each.key) for each in located.passed]


def test_the_record_that_errs_by_itself_is_the_root_and_what_got_its_value_passes_it_on():
    errors = {LINEAR: PASSES, RELU: ERRS, SUM: PASSES}
    differences = {(RELU, "output.0"): 0.1, (SUM, "input.0"): 0.1, (SUM, "output.0"): 0.1}
    located = walked(RUN, MeasuredForTest(errors, differences), RUN)
    assert _outcomes(located) == ([(RootKind.OPERATOR, RELU)], [("inherited", SUM)])
    (root,) = located.roots
    assert (root.own, root.inherited, root.index, root.reached) == (70.0, 3.0, "[1, 2]", 1)
    assert located.edges == [(RELU, SUM)]


def test_one_capture_suffices_for_what_errs_by_itself():
    located = walked(RUN, MeasuredForTest({LINEAR: PASSES, RELU: ERRS, SUM: PASSES}))
    assert [root.key for root in located.roots] == [RELU]
    assert [each.key for each in located.passed] == [SUM]


def test_runs_that_differ_by_rounding_have_no_root():
    differences = {(LINEAR, "output.0"): 2e-7, (RELU, "input.0"): 2e-7, (RELU, "output.0"): 2e-7}
    errors = dict.fromkeys((LINEAR, RELU, SUM), PASSES)
    assert _outcomes(walked(RUN, MeasuredForTest(errors, differences), RUN)) == ([], [])


def test_an_input_that_the_runs_do_not_share_is_found_first_and_explains_the_rest():
    differences = {(LINEAR, "input.0"): 0.3, (LINEAR, "output.0"): 0.3, (RELU, "output.0"): 0.3}
    located = walked(RUN, MeasuredForTest(differences=differences), RUN)
    roots, passed = _outcomes(located)
    assert roots == [(RootKind.INPUT, LINEAR)]
    assert (
        "the runs got different values: Functional.linear.0.forward.input.0"
        in located.roots[0].message
    )
    assert ("inherited", RELU) in passed


def test_a_weight_of_another_value_is_named_as_one():
    located = walked(RUN, MeasuredForTest(differences={(LINEAR, "input.1"): 1e-3}), RUN)
    assert _outcomes(located)[0] == [(RootKind.WEIGHT, LINEAR)]
    assert located.roots[0].item == "input.1"


def test_a_layer_that_gets_the_weight_of_another_layer_is_named():
    key, value = record("Functional.linear.0.forward", [X, W], [Y]), "Functional.linear.1.forward"
    target = [key, record(value, [X, W], [Y])]
    golden = [key, record(value, [X, weight(0.75)], [Z])]
    evidence = MeasuredForTest(differences={(value, "input.1"): 1.4, (value, "output.0"): 1.4})
    (root,) = walked(target, evidence, golden).roots
    assert (root.kind, root.key, root.item) == (RootKind.WEIGHT, value, "input.1")
    tied = MeasuredForTest(differences={(value, "input.1"): 1e-3}, estimates=True)
    assert walked(target, tied, target).roots == []


def test_weights_of_later_steps_may_differ_because_earlier_steps_did():
    evidence = MeasuredForTest(differences={(LINEAR, "input.1"): 1e-3})
    assert walked(RUN, evidence, RUN, is_first_step=False).roots == []


def test_an_optimizer_tells_of_a_weight_that_a_dump_does_not_mark():
    plain = tensor(0.5)
    update = record(
        "Optimizer.SGD.0.forward",
        [
            {
                "lr": {"type": "float", "value": 0.1},
                "params": [plain],
            }
        ],
        [{"params": [tensor(0.25)]}],
    )
    run = [record("Torch.mul.0.forward", [X, plain], [Y]), update]
    differences = {("Torch.mul.0.forward", "input.1"): 0.1}
    (root,) = walked(run, MeasuredForTest(differences=differences), run).roots
    assert root.kind is RootKind.WEIGHT


@pytest.mark.parametrize(
    ("field", "kind"),
    [("parameter", RootKind.WEIGHT), ("buffer", RootKind.WEIGHT), ("argument", RootKind.INPUT)],
)
def test_a_value_has_the_name_that_the_model_has_for_it(field, kind):
    run = [record("Torch.mul.0.forward", [X, {**tensor(0.5), field: "the.name"}], [Y])]
    evidence = MeasuredForTest(differences={("Torch.mul.0.forward", "input.1"): 0.1})
    (root,) = walked(run, evidence, run).roots
    assert root.kind is kind
    assert "Torch.mul.0.forward.input.1 (the.name)" in root.message


def test_a_random_operator_that_got_the_same_and_gave_something_else_had_another_seed():
    dropped = [record("Functional.dropout.0.forward", [X], [Y])]
    evidence = MeasuredForTest({}, {("Functional.dropout.0.forward", "output.0"): 0.5})
    located = walked(dropped, evidence, dropped, draws=["dropout"])
    assert _outcomes(located)[0] == [(RootKind.MASK, "Functional.dropout.0.forward")]
    assert walked(dropped, evidence, dropped).roots == []


def test_the_first_parameter_of_another_name_is_said_but_not_what_a_wrapper_adds():
    def run(*names):
        group = {"names": [{"type": "str", "value": name} for name in names]}
        return [record("Optimizer.SGD.0.forward", [group], [])]

    wrapped = run("module.fc.weight", "module._orig_mod.fc.bias")
    plain = run("fc.weight", "fc.bias")
    assert walked(wrapped, MeasuredForTest(), plain).roots == []
    (root,) = walked(run("a", "b"), MeasuredForTest(), plain).roots
    assert "names.0 is a where the golden run has fc.weight" in root.message


def test_an_argument_that_is_no_tensor_is_a_matter_of_configuration():
    def run(value):
        eps = {"type": "float", "value": value}
        return [record("Functional.layer_norm.0.forward", [X], [Y], eps=eps)]

    (root,) = walked(run(1e-5), MeasuredForTest(), run(1e-6)).roots
    assert root.kind is RootKind.CONFIGURATION
    assert "input.eps is 1e-05 where the golden run has 1e-06" in root.message
    assert walked(run(0.1), MeasuredForTest(), run(0.1 * (1 + 1e-9))).roots == []


def test_a_value_that_no_record_gave_is_a_gap_between_what_was_captured():
    hidden = tensor(7.0)
    run = [record(LINEAR, [X, W], [Y]), record(RELU, [hidden], [Z])]
    differences = {(LINEAR, "output.0"): 1e-7, (RELU, "input.0"): 1e-2, (RELU, "output.0"): 1e-2}
    errors = {LINEAR: PASSES, RELU: PASSES}
    (root,) = walked(run, MeasuredForTest(errors, differences), run).roots
    assert (root.kind, root.before, root.key) == (RootKind.GAP, LINEAR, RELU)
    assert f"an operator between {LINEAR} and {RELU} was not captured" in root.message


def test_a_value_that_changed_on_its_way_is_a_gap_though_its_giver_is_known():
    run = [record(LINEAR, [X, W], [Y]), record(RELU, [Y], [Z])]
    differences = {(LINEAR, "output.0"): 1e-7, (RELU, "input.0"): 0.2}
    (root,) = walked(run, MeasuredForTest(differences=differences), run).roots
    assert (root.kind, root.before) == (RootKind.GAP, LINEAR)


DIFFERS = MeasuredForTest(differences={(RELU, "input.0"): 0.5})
SHOWN = "Functional.relu.0.forward.input.0 differs by 0.5 of its norm"


def test_a_call_that_the_golden_run_does_not_have_is_named():
    extra = record("Tensor.flip.0.forward", [Y], [tensor(7.0)])
    relu = record(RELU, [tensor(7.0)], [Z])
    run = [record(LINEAR, [X, W], [Y]), extra, relu]
    located = walked(run, DIFFERS, [run[0], record(RELU, [Y], [Z])])
    (root,) = located.roots
    assert (root.kind, root.key, root.before) == (RootKind.CALL, "Tensor.flip.0.forward", RELU)
    assert root.message.startswith(f"Tensor.flip.0 runs only in the target: {SHOWN}")
    assert (root.is_golden, root.place, root.reached) == (False, 1, 1)
    assert walked(run, MeasuredForTest(), [run[0], record(RELU, [Y], [Z])]).roots == []


def test_a_call_that_the_target_lacks_is_named_and_is_one_of_the_golden_run():
    first = record(LINEAR, [X, W], [Y])
    golden = [
        first,
        record("Tensor.neg.0.forward", [Y], [tensor(7.0)]),
        record(RELU, [tensor(7.0)], [Z]),
    ]
    (root,) = walked([first, record(RELU, [Y], [Z])], DIFFERS, golden).roots
    assert (root.kind, root.key, root.is_golden) == (RootKind.CALL, "Tensor.neg.0.forward", True)
    assert root.message.startswith(f"Tensor.neg.0 runs only in the golden run: {SHOWN}")
    assert root.name != root.key


def test_the_first_call_of_a_lost_expression_is_named_with_the_others():
    first = record(LINEAR, [X, W], [Y])
    masked = record("Tensor.mul.0.forward", [Y], [tensor(7.0)])
    summed = record("Tensor.view.0.forward", [tensor(7.0)], [tensor(7.0, shape=(16,))])
    golden = [first, masked, summed, record(RELU, [tensor(7.0, shape=(16,))], [Z])]
    mean = record("Tensor.mean.0.forward", [Y], [tensor(8.0)])
    (root,) = walked([first, record(RELU, [Y], [Z])], DIFFERS, golden).roots
    assert root.key == "Tensor.mul.0.forward"
    assert "Tensor.mul.0, and with it Tensor.view.0, runs only in the golden run" in root.message
    (root,) = walked([first, mean, record(RELU, [tensor(8.0)], [Z])], DIFFERS, golden).roots
    assert (root.key, root.is_golden) == ("Tensor.mean.0.forward", False)
    assert "where the golden run has Tensor.mul.0, Tensor.view.0" in root.message


def test_a_module_that_one_run_lacks_as_a_whole_is_named_for_its_calls():
    first = record(LINEAR, [X, W], [Y])
    golden = [
        first,
        record("Tensor.neg.0.forward", [Y], [tensor(7.0)]),
        record(RELU, [tensor(7.0)], [Z]),
    ]
    modules = {
        "Tensor.neg.0.forward": "Module.norm.Norm.forward.0",
        "Module.norm.Norm.forward.0": "Module.Model.forward.0",
    }
    target = [first, record(RELU, [Y], [Z])]
    for alone, key in (
        ("Module.norm.Norm.0", "Module.norm.Norm.forward.0"),
        ("", "Tensor.neg.0.forward"),
    ):
        (root,) = walked(target, DIFFERS, golden, modules=modules, alone=alone).roots
        assert (root.key, root.is_golden) == (key, True)
        assert "Tensor.neg.0 runs only in the golden run" in root.message


def test_a_value_of_another_call_than_in_the_golden_run_is_no_gap():
    first, second = record(LINEAR, [X, W], [Y]), record("Torch.tanh.0.forward", [X], [tensor(9.0)])
    target = [first, second, record(RELU, [tensor(9.0)], [Z])]
    (root,) = walked(target, DIFFERS, [first, second, record(RELU, [Y], [Z])]).roots
    assert (root.kind, root.key) == (RootKind.CALL, RELU)
    said = f"{RELU} gets output.0 of Torch.tanh.0.forward, where the golden run's gets output.0 of {LINEAR}"
    assert said in root.message


def test_another_operator_that_is_right_by_itself_is_named_where_it_gives_something_else():
    ours, theirs = "Torch.mean.0.forward", "Torch.sum.0.forward"
    target, golden = [record(ours, [X], [Y])], [record(theirs, [X], [Z])]
    for errors in ({ours: PASSES}, {}):
        evidence = MeasuredForTest(errors, {(ours, "output.0"): 0.5}, estimates=not errors)
        (root,) = walked(target, evidence, golden, renamed={ours: theirs}).roots
        assert (root.kind, root.key) == (RootKind.CALL, ours)
        assert (
            "Torch.mean.0 runs in the target where the golden run has Torch.sum.0" in root.message
        )
    small = MeasuredForTest({ours: PASSES}, {(ours, "output.0"): 1e-7})
    assert walked(target, small, golden, renamed={ours: theirs}).roots == []


def test_truth_values_of_another_operator_differ_without_an_estimate():
    def compared(name, number):
        return [record(name, [X], [tensor(number, dtype="torch.bool")])]

    ours, theirs = "Tensor.__ne__.0.forward", "Tensor.__eq__.0.forward"
    evidence = MeasuredForTest({ours: PASSES}, {(ours, "output.0"): 0.5})
    (root,) = walked(
        compared(ours, 1.0), evidence, compared(theirs, 0.5), renamed={ours: theirs}
    ).roots
    assert (root.kind, root.key) == (RootKind.CALL, ours)


def _flagged(number, flag):
    return tensor(number, requires_grad=flag)


def test_a_detach_that_one_run_lacks_is_told_by_what_has_a_gradient():
    first = record("Torch.max.0.forward", [_flagged(1.0, True)], [_flagged(2.0, True)])

    def run(flag):
        return [first, record(RELU, [_flagged(2.0, flag)], [_flagged(3.0, flag)])]

    (root,) = walked(run(True), MeasuredForTest(), run(False)).roots
    assert (root.kind, root.key, root.before) == (RootKind.CALL, RELU, "Torch.max.0.forward")
    assert "the golden run cuts gradients off, and the target does not" in root.message
    assert walked(run(True), MeasuredForTest(), run(True)).roots == []


def test_weights_and_regions_without_gradients_are_matters_of_configuration():
    def run(weight_flag, out_flag):
        return [record(LINEAR, [X, _flagged(0.5, weight_flag)], [_flagged(2.0, out_flag)])]

    (root,) = walked(run(True, True), MeasuredForTest(), run(False, False)).roots
    assert (root.kind, root.item) == (RootKind.CONFIGURATION, "input.1")
    assert "requires a gradient in the target alone" in root.message
    (root,) = walked(run(True, False), MeasuredForTest(), run(True, True)).roots
    assert root.item == "output.0"
    assert "the target computes it without gradients (no_grad" in root.message


def test_a_view_has_no_own_error_by_statistics_and_its_giver_is_doubtful():
    picks = record("Tensor.__getitem__.0.forward", [Y], [tensor(1.5)])
    run = [record(LINEAR, [X, W], [Y]), picks, record(RELU, [tensor(1.5)], [Z])]
    shown = ("Tensor.__getitem__.0.forward", "output.0"), (RELU, "input.0"), (RELU, "output.0")
    differences = dict.fromkeys(shown, 0.3)
    evidence = MeasuredForTest(differences=differences, estimates=True)
    evidence.sees_elements = False
    (root,) = walked(run, evidence, run).roots
    assert (root.kind, root.key) == (RootKind.ESTIMATE, LINEAR)
    assert "in another order (a shift, a permutation)" in root.message
    assert "capture with --sketch" in root.message


def test_a_view_whose_inputs_were_not_captured_is_named_itself():
    run = [record("Tensor.view.0.forward", [], [Y])]
    evidence = MeasuredForTest(
        differences={("Tensor.view.0.forward", "output.0"): 0.3}, estimates=True
    )
    evidence.sees_elements = False
    (root,) = walked(run, evidence, run).roots
    assert root.key == "Tensor.view.0.forward"


def test_values_of_one_record_are_named_in_their_order():
    run = [record(LINEAR, [X, W], [Y]), record(RELU, [tensor(7.0), tensor(8.0)], [Z])]
    evidence = MeasuredForTest(differences={(RELU, "input.0"): 0.5, (RELU, "input.1"): 0.5})
    assert [root.item for root in walked(run, evidence, run).roots] == ["input.0", "input.1"]


def test_a_part_of_what_differs_may_differ_by_more():
    picks = record("Tensor.__getitem__.0.forward", [Y], [tensor(1.5, norm=Y["Norm"] / 100)])
    differences = {("Tensor.__getitem__.0.forward", "input.0"): 1e-4}
    differences["Tensor.__getitem__.0.forward", "output.0"] = 5e-3
    located = walked([picks], MeasuredForTest(differences=differences, estimates=True), [picks])
    assert [root.kind for root in located.roots if root.kind is RootKind.ESTIMATE] == []


def test_an_estimate_by_statistics_says_what_these_do_not_tell():
    run = [record(LINEAR, [X, W], [Y]), record(RELU, [Y], [Z])]
    evidence = MeasuredForTest(differences={(LINEAR, "output.0"): 0.1}, estimates=True)
    (root,) = walked(run, evidence, run).roots
    assert "in another order" not in root.message
    evidence.sees_elements = False
    (root,) = walked(run, evidence, run).roots
    assert "or it got the same values in another order (a shift, a permutation)" in root.message


def test_a_copy_that_one_run_lacks_explains_no_estimate():
    def run(name, sees_elements):
        made = record(f"Tensor.{name}.0.forward", [Y], [tensor(7.0)])
        target = [record(LINEAR, [X, W], [Y]), made, record(RELU, [tensor(7.0)], [Z])]
        evidence = MeasuredForTest(differences={(RELU, "output.0"): 0.3}, estimates=True)
        evidence.sees_elements = sees_elements
        (root,) = walked(target, evidence, [target[0], record(RELU, [Y], [Z])]).roots
        return root.kind, root.key

    assert run("clone", False) == (RootKind.ESTIMATE, RELU)
    assert run("flip", True) == (RootKind.ESTIMATE, RELU)
    assert run("flip", False) == (RootKind.CALL, "Tensor.flip.0.forward")


def test_an_estimate_behind_another_root_is_doubtful():
    run = [record(LINEAR, [X, W], [Y]), record("Torch.exp.0.forward", [Y], [Z])]
    differences = {(LINEAR, "output.0"): 1e-5, ("Torch.exp.0.forward", "input.0"): 1e-5}
    differences["Torch.exp.0.forward", "output.0"] = 0.9
    located = walked(run, MeasuredForTest(differences=differences, estimates=True), run)
    first, second = located.roots
    assert "doubtful" not in first.message
    assert f"doubtful: it stands behind {LINEAR}" in second.message


def test_a_gap_s_advice_is_no_capture_like_the_one_at_hand():
    hidden = tensor(7.0)
    run = [record(LINEAR, [X, W], [Y]), record(RELU, [hidden], [Z])]
    evidence = MeasuredForTest(differences={(RELU, "input.0"): 0.5})
    (root,) = walked(run, evidence, run).roots
    assert "capture at level mix" in root.message
    (root,) = walked(run, evidence, run, has_modules=True).roots
    assert "level mix" not in root.message
    assert "custom operator" in root.message


def test_the_step_before_gave_an_optimizer_its_states():
    update = "Optimizer.Adam.0.forward"
    group = {"state": {"exp_avg": [tensor(77.0)]}}
    run = [*RUN, record(update, [group], [])]
    evidence = MeasuredForTest(differences={(update, "input.0.state.exp_avg.0"): 0.1})
    assert walked(run, evidence, run, is_first_step=False).roots == []
    assert [root.key for root in walked(run, evidence, run).roots] == [update]


def test_what_may_lie_downstream_of_a_root_is_no_gap():
    hidden = tensor(7.0)
    gradient = record("Functional.relu.0.backward", [hidden], [tensor(9.0)])
    run = [*RUN, gradient]
    errors = {LINEAR: ERRS, RELU: PASSES, SUM: PASSES}
    differences = {("Functional.relu.0.backward", "input.0"): 0.5}
    located = walked(run, MeasuredForTest(errors, differences), run)
    assert [root.key for root in located.roots] == [LINEAR]


def test_nan_that_a_record_made_of_finite_values_is_named_as_such():
    nan = tensor(math.nan)
    run = [record(LINEAR, [X, W], [nan]), record(RELU, [nan], [nan])]
    errors = {LINEAR: OwnError("error", math.inf), RELU: OwnError("SKIP", message="all are NaN")}
    located = walked(run, MeasuredForTest(errors))
    assert _outcomes(located) == ([(RootKind.NON_FINITE, LINEAR)], [("not checked", RELU)])


def test_what_cannot_be_replayed_is_estimated_from_the_golden_run():
    skipped = OwnError("SKIP", message="draws random numbers")
    differences = {(RELU, "input.0"): 1e-7, (RELU, "output.0"): 1e-2}
    located = walked(RUN, MeasuredForTest({RELU: skipped}, differences), RUN)
    assert _outcomes(located)[0] == [(RootKind.ESTIMATE, RELU)]
    assert "an estimate" in located.roots[0].message


def test_the_golden_run_errs_too_is_said():
    both = OwnError("error", 9.0, golden=8.0, golden_verdict="error", message="wrong")
    (root,) = walked(RUN, MeasuredForTest({RELU: both}), RUN).roots
    assert "the golden run's call errs, too" in root.message


def test_what_was_not_checked_has_a_reason():
    located = walked(RUN, MeasuredForTest({RELU: OwnError("SKIP", message="no bench")}))
    assert [(each.verdict, each.message) for each in located.passed] == [
        ("not checked", "no bench")
    ]


def test_a_gap_lies_behind_the_last_value_of_its_size_or_one_that_nothing_gets_shortly_before():
    small = tensor(8.0, shape=(2,))
    loose = [
        record("Torch.neg.0.forward", [X], [tensor(5.0)]),
        record("Torch.abs.0.forward", [X], [Y]),
    ]
    used = [record("Torch.sin.0.forward", [Y], [Z]), record("Torch.max.0.forward", [Z], [small])]
    reader = record("Torch.exp.0.forward", [tensor(7.0)], [tensor(9.0)])
    differences = {("Torch.exp.0.forward", "input.0"): 0.1}

    def before(run):
        (root,) = walked(run, MeasuredForTest(differences=differences), run).roots
        return root.before

    assert before([*loose, *used, reader]) == "Torch.neg.0.forward"
    far = [record(f"Torch.cos.{each}.forward", [Z], [Z]) for each in range(5)]
    assert before([*loose, *used, *far, reader]) == "Torch.cos.4.forward"
    assert before([used[1], reader]) == "Torch.max.0.forward"


def test_a_second_gap_that_may_lie_downstream_of_the_first_is_none():
    run = [
        record(LINEAR, [X, W], [Y]),
        record(RELU, [tensor(7.0)], [Z]),
        record("Torch.exp.0.forward", [tensor(8.0)], [tensor(9.0)]),
    ]
    differences = {(RELU, "input.0"): 1e-2, ("Torch.exp.0.forward", "input.0"): 2e-2}
    errors = dict.fromkeys((LINEAR, RELU), PASSES)
    located = walked(run, MeasuredForTest(errors, differences), run)
    assert _outcomes(located)[0] == [(RootKind.GAP, RELU)]


def test_gradients_that_were_added_up_unseen_scatter_more_than_values():
    gradient = record("Functional.relu.0.backward", [tensor(7.0)], [tensor(9.0)])
    run = [*RUN, gradient]

    def roots(difference):
        differences = {("Functional.relu.0.backward", "input.0"): difference}
        return walked(run, MeasuredForTest(differences=differences), run).roots

    unit = 4 * 2.0**-23
    assert roots(9 * unit) == []
    assert [root.kind for root in roots(11 * unit)] == [RootKind.GAP]


class _ByStatistics(MeasuredForTest):
    sees_elements = False

    def __init__(self, differences, slack=0.0):
        super().__init__(differences=differences, estimates=True)
        self.slack = slack

    def value(self, key, target, golden):
        return super().value(key, target, golden)._replace(slack=self.slack)


def test_a_gradient_of_what_was_not_captured_in_half_types_rounds_as_they_do():
    half = record(LINEAR, [X, W], [tensor(2.0, dtype="torch.bfloat16")])
    gradient = record("Functional.relu.0.backward", [tensor(7.0)], [tensor(9.0)])
    differences = {("Functional.relu.0.backward", "input.0"): 1e-2}
    evidence = MeasuredForTest(differences=differences)
    assert walked([half, gradient], evidence, [half, gradient]).roots == []
    (root,) = walked([*RUN, gradient], evidence, [*RUN, gradient]).roots
    assert root.kind is RootKind.GAP


def test_by_statistics_the_rounding_of_half_types_may_come_out_in_a_gap():
    half = tensor(7.0, dtype="torch.bfloat16")
    run = [record(RELU, [half], [half]), record("Torch.exp.0.forward", [tensor(8.0)], [Z])]
    differences = {(RELU, "input.0"): 1e-9, ("Torch.exp.0.forward", "input.0"): 1e-3}
    differences |= {(RELU, "output.0"): 1e-9, ("Torch.exp.0.forward", "output.0"): 1e-3}
    assert walked(run, _ByStatistics(differences), run).roots == []
    del differences[RELU, "input.0"]
    (root,) = walked(run, _ByStatistics(differences), run).roots
    assert (root.kind, root.key) == (RootKind.GAP, "Torch.exp.0.forward")


def test_one_element_that_was_rounded_to_its_neighbour_is_no_gap():
    run = [record(LINEAR, [X, W], [Y]), record(RELU, [tensor(7.0)], [Z])]
    differences = {(RELU, "input.0"): 1e-2, (RELU, "output.0"): 1e-2}
    (root,) = walked(run, _ByStatistics(differences), run).roots
    assert root.kind is RootKind.GAP
    assert walked(run, _ByStatistics(differences, slack=1e-2), run).roots == []


def test_statistics_cannot_tell_other_random_numbers_from_another_order_of_the_input():
    dropout = "Functional.dropout.0.forward"
    run = [record(dropout, [X], [Y])]
    differences = {(dropout, "output.0"): 0.2}
    (root,) = walked(run, _ByStatistics(differences), run, draws=["dropout"]).roots
    assert root.kind is RootKind.MASK
    assert "or it got the same values in another order" in root.message
    (root,) = walked(run, MeasuredForTest(differences=differences), run, draws=["dropout"]).roots
    assert "order" not in root.message


def test_a_gradient_that_was_not_replayed_is_explained_by_what_its_replayed_forward_pass_kept():
    forward, backward = "Functional.gelu.0.forward", "Functional.gelu.0.backward"
    run = [record(forward, [X], [Y]), record(backward, [tensor(9.0)], [tensor(8.0)])]
    differences = {
        (forward, "input.0"): 1e-4,
        (forward, "output.0"): 1e-4,
        (backward, "output.0"): 1e-4,
    }
    errors = {forward: PASSES, backward: OwnError("SKIP", message="no bench")}
    located = walked(run, MeasuredForTest(errors, differences), run, is_first_step=False)
    assert [root.key for root in located.roots] == []
