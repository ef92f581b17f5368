"""Calls of one kind share what their records have in common, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from ray_precheck.bench.run import Bench
from ray_precheck.check.decode import Decoded, decode
from ray_precheck.check.settings import CheckSettings
from ray_precheck.inputs.distribution import recorded_body, value_range
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import TensorSpec

pytestmark = pytest.mark.unit

SETTINGS = CheckSettings("pytorch", "statistics", Path())


def decoded(number: int, high: float, **extra: Any) -> Decoded:
    tensor = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 3],
        "Max": high,
        "Min": -1.0,
        "Mean": 0.0,
        "Norm": 1.0,
        "requires_grad": False,
    } | extra
    forward = json.dumps({"input_args": [tensor], "input_kwargs": {}, "output": [tensor]}).encode()
    backward = json.dumps({"input": [tensor], "output": [tensor]}).encode()
    payload = TaskPayload(number, f"Torch.relu.{number}", forward, backward)
    return decode(payload, SETTINGS, Bench("pytorch"))


def test_calls_of_one_kind_share_their_plan_and_keep_their_statistics() -> None:
    one, other = decoded(0, 1.0), decoded(1, 2.5e-3)
    assert one.plan is other.plan
    assert [spec.high for _, spec in one.record.input_tensors()] == [1.0]
    assert [spec.high for _, spec in other.record.input_tensors()] == [2.5e-3]


def test_calls_that_differ_in_more_than_statistics_are_of_two_kinds() -> None:
    assert decoded(0, 1.0).plan.differentiable == (0,)
    assert decoded(1, 1.0, dtype="torch.int64").plan.differentiable == ()


def test_a_fit_that_is_kept_tells_the_signs_of_zeros_apart() -> None:
    for low in (0.0, -0.0):
        spec = TensorSpec("float32", (100,), low=low, high=2.0, mean=1.0, norm=12.0)
        body = recorded_body(spec, value_range(spec))
        assert body is not None
        assert str(body.low) == str(low)
