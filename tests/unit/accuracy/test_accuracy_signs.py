"""A step of Lion has either sign where rounding decides, and the exact one elsewhere."""

from typing import Any

import numpy as np
import pytest

from ray_precheck.accuracy.ambiguous import chosen_like
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import HostCall, HostTensor

pytestmark = pytest.mark.unit

LION = ApiName("Optimizer", "Lion", 0)
# beta1 = 0.5, so that the sum is half of m + g: cancelled, cancelled but for 2^-8, clear, zero.
MOMENTUM = np.array([1.0, 1.0, 1.0, 0.0])
GRADIENT = np.array([-1.0, -1.0 + 2.0**-8, 0.5, 0.0])
BENCH = np.array([7.0, 7.0 - 0.25, 7.0 - 0.25, 7.0])


def tensor(values: Any, dtype: str = "bfloat16") -> HostTensor:
    return HostTensor(dtype, np.asarray(values, np.float64 if dtype == "float64" else np.float32))


def aligned(tested: Any, dtype: str = "bfloat16", **options: Any) -> Array:
    group = {
        "lr": 0.25,
        "betas": [0.5, 0.9],
        "params": [tensor(np.full(4, 7.0), dtype)],
        "grads": [tensor(GRADIENT, dtype)],
        "state": {"exp_avg": [tensor(MOMENTUM, dtype)]},
        **options,
    }
    outputs = [tensor(tested, dtype), tensor(MOMENTUM, dtype)]
    bench = [tensor(BENCH, "float64"), tensor(MOMENTUM, "float64")]
    found = chosen_like(LION, HostCall((group,), {}), outputs, bench, "pytorch")
    assert found[1] is bench[1]
    chosen: Array = found[0].data
    return chosen


@pytest.mark.parametrize("step", [-0.25, 0.0, 0.25])
def test_where_rounding_decides_each_step_is_right(step: float) -> None:
    tested = [7.0 + step, 7.0 + step, 7.0 - 0.25, 7.0]
    assert aligned(tested).tolist() == tested


def test_a_wrong_step_stays_wrong() -> None:
    assert aligned([7.0, 7.0, 7.25, 7.25]).tolist() == [7.0, 7.0, 6.75, 7.0]


def test_an_undecided_step_of_another_length_stays_wrong() -> None:
    assert aligned([8.0, 7.0, 6.75, 7.0]).tolist() == [7.25, 7.0, 6.75, 7.0]
    assert aligned([np.nan, np.inf, 6.75, 7.0])[2:].tolist() == [6.75, 7.0]


def test_a_finer_dtype_decides_more_signs() -> None:
    assert aligned([7.25, 7.25, 7.25, 7.25], "float32").tolist() == [7.25, 6.75, 6.75, 7.0]


def test_the_sign_of_the_first_step_is_that_of_the_gradient() -> None:
    assert aligned([7.25, 7.25, 7.25, 7.25], state=None).tolist() == BENCH.tolist()


def test_gradients_are_turned_where_the_loss_is_maximised() -> None:
    turned = aligned([7.25, 7.25, 6.75, 7.25], grads=[tensor(-GRADIENT)], maximize=True)
    assert turned.tolist() == [7.25, 7.25, 6.75, 7.0]


def test_a_learning_rate_may_be_a_tensor() -> None:
    tested = [7.25, 7.25, 6.75, 7.0]
    assert aligned(tested, lr=tensor(0.25, "float32")).tolist() == tested


def test_what_does_not_fit_is_left_as_it_is() -> None:
    assert aligned([7.25, 7.25, 7.25, 7.25], params=None).tolist() == BENCH.tolist()
