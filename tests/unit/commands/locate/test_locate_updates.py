"""How far parameters may differ after an update that was not replayed."""

import pytest

from ray_precheck.commands.locate.walk.estimate import explained_update
from ray_precheck.commands.locate.walk.nouns import ValueEvidence
from tests.unit.commands.locate.run_records import record, tensor

RATE = 1e-3


def _number(value):
    return {"type": "float", "value": value}


def _explained(kind, gradient, *, shape=(4, 4), lr=None, **numbers):
    """Return the difference of a parameter of norm 1 that a difference of its gradient explains."""
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    after = tensor(1.0, shape=shape, norm=count**0.5)
    group = {
        "lr": lr or _number(RATE),
        **{name: _number(value) for name, value in numbers.items()},
        "params": [after],
        "grads": [tensor(1.0, shape=shape, norm=count**0.5)],
    }
    update = record(f"Optimizer.{kind}.0.forward", [group], [{"params": [after]}])
    values = {"input.0.grads.0": ValueEvidence(gradient), "input.0.params.0": ValueEvidence(0.0)}
    given = [(item, values[item.path].difference) for item in update.inputs if item.path in values]
    output = next(item for item in update.outputs if ".params." in item.path)
    return explained_update(update, given, output)


@pytest.mark.parametrize("kind", ["Adam", "RMSprop", "Adagrad", "Lion", "OfMine"])
def test_a_gradient_that_is_divided_by_its_size_may_go_either_way_near_0(kind):
    assert _explained(kind, 1e-4) == pytest.approx(2 * RATE * 1e-2)


@pytest.mark.parametrize("kind", ["SGD", "ASGD"])
def test_a_step_in_proportion_to_its_gradient_differs_as_that_does(kind):
    assert _explained(kind, 1e-4) == pytest.approx(RATE * 1e-4)


def test_all_elements_of_a_vector_may_have_gradients_of_rounding_alone():
    # A bias of queries, keys and values: softmax is invariant to that of the keys.
    assert _explained("Adam", 1e-7, shape=(12,)) == pytest.approx(2 * RATE)
    assert _explained("Adam", 0.0, shape=(12,)) == 0.0


def test_rmsprop_steps_as_far_as_its_smoothing_and_its_momentum_let_it():
    assert _explained("RMSprop", 1.0, alpha=0.99) == pytest.approx(20 * RATE)
    assert _explained("RMSprop", 1.0, alpha=0.75, momentum=0.5) == pytest.approx(8 * RATE)
    assert _explained("RMSprop", 1.0, alpha=1.0) == pytest.approx(2 * RATE)


def test_a_learning_rate_may_be_a_tensor():
    rate = tensor(RATE, shape=())
    assert _explained("Adam", 1.0, lr=rate) == pytest.approx(2 * RATE)
