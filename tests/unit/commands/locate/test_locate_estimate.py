"""Estimates of own errors, where nothing can be replayed."""

import math

import pytest

from ray_precheck.commands.locate.walk.estimate import (
    Differences,
    estimated_error,
    narrow_sum_of,
    suspicious,
)
from ray_precheck.commands.locate.walk.nouns import ValueEvidence
from tests.unit.commands.locate.run_records import record, tensor

UNIT = 4 * 2.0**-23
SUSPICIOUS = suspicious("torch.float32")


def _own(of, forward=None, **differences):
    values = {path.replace("_", "."): ValueEvidence(each) for path, each in differences.items()}
    return estimated_error(Differences(of, values), forward)


def test_what_inputs_bring_with_them_is_no_own_error():
    relu = record("Functional.relu.0.forward", [tensor(1.0)], [tensor(2.0)])
    assert _own(relu, input_0=1e-3, output_0=1e-3).verdict == "pass"
    found = _own(relu, input_0=1e-7, output_0=1e-3)
    assert (found.verdict, found.output, found.is_estimate) == ("error", "output.0", True)
    assert found.own == pytest.approx(1e-3 / UNIT)


def _not_finite(**more):
    nan = math.nan
    return tensor(nan, Min=nan, Mean=nan, norm=nan, **more)


def test_finite_inputs_explain_no_nan():
    # Each of these estimates divides by the size of the output, which NaN has not.
    bias = [_not_finite(shape=(4,))]
    gradient = record("Tensor.exp.0.backward", [tensor(1.0, shape=(4,))], bias)
    found = _own(gradient, input_0=1e-7, output_0=math.inf)
    assert found.own == math.inf
    assert "output.0 has other NaN or infinities than the golden run's" in found.message
    update = record("Optimizer.Adam.0.forward", [{"grads": [tensor(1.0)]}], [{"params": bias}])
    values = {"output.0.params.0": ValueEvidence(math.inf)}
    assert estimated_error(Differences(update, values)).verdict == "error"


def test_a_mask_of_infinities_passes_on_what_its_input_brings():
    masked = tensor(1.0, Min=-math.inf, norm=math.inf)
    fill = record("Tensor.masked_fill.0.forward", [tensor(1.0)], [masked])
    assert _own(fill, input_0=1e-3, output_0=1e-3).verdict == "pass"


def test_nan_that_came_in_is_no_own_error():
    gradient = record("Tensor.exp.0.backward", [_not_finite(shape=(4,))], [_not_finite(shape=(4,))])
    assert _own(gradient, input_0=math.inf, output_0=math.inf) is None
    kept = Differences(record("Tensor.exp.0.forward", [_not_finite()], [_not_finite()]), {})
    grown = record("Tensor.exp.0.backward", [tensor(1.0, shape=(4,))], [_not_finite(shape=(4,))])
    assert _own(grown, kept, input_0=0.0, output_0=math.inf) is None


def test_one_rounding_is_always_explained():
    relu = record("Functional.relu.0.forward", [tensor(1.0)], [tensor(2.0)])
    assert _own(relu, input_0=0.0, output_0=SUSPICIOUS * UNIT).verdict == "pass"
    assert _own(relu, input_0=0.0, output_0=1.1 * SUSPICIOUS * UNIT).verdict == "error"


def test_a_difference_of_large_terms_may_cancel():
    terms = [tensor(1.0, norm=1000.0), tensor(2.0, norm=1000.0)]
    less = record("Torch.sub.0.forward", terms, [tensor(3.0, norm=1.0)])
    product = record("Torch.mul.0.forward", terms, [tensor(3.0, norm=1.0)])
    differences = {"input_0": 1e-6, "input_1": 1e-6, "output_0": 2e-3}
    assert _own(less, **differences).verdict == "pass"
    assert _own(product, **differences).verdict == "error"


def test_an_exponential_amplifies_by_its_largest_exponent():
    def softmax(high):
        return record("Functional.softmax.0.forward", [tensor(high)], [tensor(0.5)])

    assert _own(softmax(100.0), input_0=1e-5, output_0=5e-3).verdict == "pass"
    assert _own(softmax(1.0), input_0=1e-5, output_0=5e-3).verdict == "error"


def test_a_gradient_may_differ_as_what_its_forward_pass_has_kept():
    call = "Functional.cross_entropy.0"
    kept = Differences(
        record(f"{call}.forward", [tensor(1.0)], [tensor(2.0, shape=())]),
        {"input.0": ValueEvidence(1e-2)},
    )
    gradient = record(f"{call}.backward", [tensor(1.0, shape=())], [tensor(0.1)])
    assert _own(gradient, kept, input_0=0.0, output_0=1e-2).verdict == "pass"
    assert _own(gradient, None, input_0=0.0, output_0=1e-2).verdict == "error"


def test_a_gradient_of_a_normalisation_may_cancel():
    call = "Functional.layer_norm.0"
    kept = Differences(record(f"{call}.forward", [tensor(1.0)], [tensor(2.0)]), {})
    whole = record(f"{call}.backward", [tensor(1.0)], [tensor(1.0)])
    gone = record(f"{call}.backward", [tensor(1.0)], [tensor(1.0, norm=1e-4)])
    assert _own(whole, kept, input_0=1e-7, output_0=1e-3).verdict == "error"
    assert _own(gone, kept, input_0=1e-7, output_0=1e-3).verdict == "pass"


def test_a_weight_of_equal_elements_amplifies_nothing():
    # Its norm without its mean is what rounding left of 0.
    ones = tensor(1.0, Mean=1.0, norm=4.0 * (1 + 1e-15))
    values = tensor(2.0, Mean=0.0)
    norm = record("Functional.batch_norm.0.forward", [values, ones], [tensor(1.0)])
    differences = {"input_0": 1e-7, "input_1": 1e-7, "output_0": 1e-2}
    assert _own(norm, **differences).verdict == "error"
    far = tensor(2.0, Mean=1.0, norm=4.0 * (1 + 1e-9))
    centred = record("Functional.batch_norm.0.forward", [far, ones], [tensor(1.0)])
    assert _own(centred, **differences).verdict == "pass"


def test_the_difference_below_a_mask_of_attention_is_carried_past_its_norm():
    masked = tensor(1.0, Min=-3.4e38, norm=math.inf)
    softmax = record("Functional.softmax.0.forward", [masked], [tensor(0.5)])
    values = {"input.0": ValueEvidence(0.0), "output.0": ValueEvidence(1e-3)}
    assert estimated_error(Differences(softmax, values)).verdict == "error"
    assert estimated_error(Differences(softmax, values, {"input.0": 1e-3})).verdict == "pass"


def _update(second_moment):
    state = {"exp_avg_sq": [tensor(0.1)]} if second_moment else {}
    group = {
        "lr": {"type": "float", "value": 1e-3},
        "params": [tensor(0.1), tensor(0.2)],
        "grads": [tensor(1e-3), tensor(2e-3)],
    }
    after = {"params": [tensor(0.1), tensor(0.2)], "state": state}
    return record("Optimizer.Any.0.forward", [group], [after])


def _updated(update, parameter, gradient):
    values = {
        "input.0.params.0": ValueEvidence(0.0),
        "input.0.grads.0": ValueEvidence(gradient),
        "input.0.grads.1": ValueEvidence(1.0),
        "output.0.params.0": ValueEvidence(parameter),
    }
    return estimated_error(Differences(update, values)).verdict


def test_an_update_differs_as_far_as_its_own_gradient_moves_it():
    assert _updated(_update(second_moment=False), 1e-6, 0.5) == "pass"
    assert _updated(_update(second_moment=False), 1e-2, 1e-7) == "error"


def test_an_update_by_signs_may_go_either_way_where_a_gradient_is_nearly_0():
    assert _updated(_update(second_moment=True), 1e-4, 1e-5) == "pass"
    assert _updated(_update(second_moment=True), 1e-1, 1e-5) == "error"


def test_integers_and_unknown_differences_have_no_estimate():
    indices = tensor(3.0, dtype="torch.int64")
    argmax = record("Torch.argmax.0.forward", [tensor(1.0)], [indices])
    assert _own(argmax, input_0=0.0, output_0=1.0) is None
    assert _own(record("Torch.exp.0.forward", [tensor(1.0)], [tensor(2.0)]), input_0=0.0) is None


def test_half_types_round_less_in_proportion_but_not_where_rows_are_added_up():
    half = "torch.bfloat16"
    unit = 2.0**-7

    def verdict(call, difference):
        given = tensor(1.0, dtype=half)
        return _own(record(call, [given], [tensor(2.0, dtype=half)]), output_0=difference).verdict

    assert verdict("Functional.relu.0.forward", 0.9 * unit) == "pass"
    assert verdict("Functional.relu.0.forward", 1.1 * unit) == "error"
    summed = "Functional.layer_norm.0.backward", "Functional.conv2d.0.backward"
    for call in (*summed, "Optimizer.SGD.0.forward"):
        assert verdict(call, 3.9 * unit) == "pass"
        assert verdict(call, 4.1 * unit) == "error"


def test_a_gradient_of_half_types_that_was_widened_rounds_as_they_do():
    # That of a weight of float32, which autocast has cast.
    coming, weight = tensor(1.0, dtype="torch.bfloat16"), tensor(2.0)

    def verdict(call, difference):
        return _own(record(call, [coming], [weight]), output_0=difference).verdict

    unit = 2.0**-7
    assert verdict("Functional.linear.0.backward", 0.9 * unit) == "pass"
    assert verdict("Functional.linear.0.backward", 1.1 * unit) == "error"
    assert verdict("Functional.linear.0.forward", 0.9 * unit) == "error"


def test_operators_that_are_many_in_one_round_more_than_once():
    def verdict(call, difference):
        given = tensor(1.0, dtype="torch.bfloat16")
        return _own(record(call, [given], [given]), output_0=difference).verdict

    unit = 2.0**-7
    for call in ("Torch.gru_cell.0.backward", "Functional.multi_head_attention_forward.0.forward"):
        assert verdict(call, 3.9 * unit) == "pass"
        assert verdict(call, 4.1 * unit) == "error"


@pytest.mark.parametrize(
    ("name", "shape", "times"),
    [
        ("batch_norm", [2, 64, 1, 1], 64.0),
        ("batch_norm", [4, 64, 1, 1], 4.0),
        ("instance_norm", [4, 16, 2, 1], 64.0),
        ("layer_norm", [2, 64, 1, 1], 1.0),
        ("batch_norm", [0, 64, 1, 1], 1.0),
    ],
)
def test_a_group_of_few_values_may_have_next_to_no_spread(name, shape, times):
    values = tensor(2.0, Mean=0.0, shape=shape)
    norm = record(f"Functional.{name}.0.forward", [values], [tensor(1.0, shape=shape)])
    limit = SUSPICIOUS * times * 1e-6
    assert _own(norm, input_0=1e-6, output_0=0.99 * limit).verdict == "pass"
    assert _own(norm, input_0=1e-6, output_0=1.01 * limit).verdict == "error"


def test_a_kink_moves_gradients_of_elements_that_are_near_it():
    def verdict(name, kept, difference):
        forward = record(
            f"Functional.{name}.0.forward", [tensor(1.0, shape=(8, 25))], [tensor(2.0)]
        )
        own = record(f"Functional.{name}.0.backward", [tensor(1.0)], [tensor(0.5)])
        before = Differences(forward, {"input.0": ValueEvidence(kept)})
        return _own(own, before, input_0=0.0, output_0=difference).verdict

    # One element of 200 is a tenth of the norm of a gradient, where it comes and goes.
    for name in ("relu", "max_pool2d", "adaptive_max_pool2d"):
        assert verdict(name, 1e-3, 0.09) == "pass"
        assert verdict(name, 1e-3, 0.11) == "error"
        # None of 200 is so near to the kink that a difference of 1e-6 moves it past.
        assert verdict(name, 1e-6, 0.09) == "error"
    assert verdict("gelu", 1e-3, 0.09) == "error"


@pytest.mark.parametrize(("rows", "units"), [(1, 1), (16, 1), (128, 8), (512, 32), (1 << 20, 32)])
def test_sums_of_rows_in_a_half_type_lose_more_the_more_rows_they_have(rows, units):
    assert narrow_sum_of("torch.bfloat16", rows) == units * 2.0**-7
    assert narrow_sum_of("torch.float32", rows) == UNIT


def test_the_rounding_on_the_way_is_explained():
    relu = record("Functional.relu.0.forward", [tensor(1.0)], [tensor(2.0)])
    for floor, verdict in ((0.0, "error"), (1e-3, "pass")):
        values = {"output.0": ValueEvidence(5e-3)}
        assert estimated_error(Differences(relu, values, floor=floor)).verdict == verdict


def test_what_one_element_explains_is_no_own_error():
    relu = record("Functional.relu.0.forward", [tensor(1.0)], [tensor(2.0)])
    for slack, verdict in ((0.0, "error"), (1e-2, "pass")):
        differences = {"output.0": ValueEvidence(1e-2, slack=slack)}
        assert estimated_error(Differences(relu, differences)).verdict == verdict


def test_the_gradient_of_a_bias_may_vanish():
    def backward(norm):
        bias = tensor(1.0, shape=(4,), norm=norm)
        return record("Functional.linear.0.backward", [tensor(1.0, shape=(64, 4))], [bias])

    assert _own(backward(8.0), input_0=1e-7, output_0=0.9).verdict == "error"
    assert _own(backward(1e-6), input_0=1e-7, output_0=0.9).verdict == "pass"
