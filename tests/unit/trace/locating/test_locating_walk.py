"""What the walk through a capture names as the beginning of an error."""

import math

from ray_precheck.trace.locating.evidence import OwnError
from ray_precheck.trace.locating.roots import RootKind
from tests.unit.trace.locating.run_records import (
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


def test_weights_of_later_steps_may_differ_because_earlier_steps_did():
    evidence = MeasuredForTest(differences={(LINEAR, "input.1"): 1e-3})
    assert walked(RUN, evidence, RUN, is_first_step=False).roots == []


def test_an_optimizer_tells_the_name_of_a_weight_that_a_dump_does_not_mark():
    plain = tensor(0.5)
    update = record(
        "Optimizer.SGD.0.forward",
        [
            {
                "lr": {"type": "float", "value": 0.1},
                "names": [{"type": "str", "value": "fc.weight"}],
                "params": [plain],
            }
        ],
        [{"params": [tensor(0.25)]}],
    )
    run = [record("Torch.mul.0.forward", [X, plain], [Y]), update]
    differences = {("Torch.mul.0.forward", "input.1"): 0.1}
    (root,) = walked(run, MeasuredForTest(differences=differences), run).roots
    assert root.kind is RootKind.WEIGHT
    assert "(fc.weight)" in root.message


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


def test_a_call_that_the_golden_run_does_not_have_is_named_where_its_value_is_used():
    extra = record("Tensor.flip.0.forward", [Y], [tensor(7.0)])
    relu = record(RELU, [tensor(7.0)], [Z])
    run = [record(LINEAR, [X, W], [Y]), extra, relu]
    evidence = MeasuredForTest(differences={(RELU, "input.0"): 0.5})
    (root,) = walked(run, evidence, [run[0], relu]).roots
    assert (root.kind, root.key, root.before) == (RootKind.GAP, RELU, "Tensor.flip.0.forward")
    said = "is what Tensor.flip.0.forward gave, a call that the golden run does not have"
    assert said in root.message


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
