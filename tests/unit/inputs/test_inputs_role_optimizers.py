"""Tensors of an optimizer's update are drawn so that the update exists: second moments are squares."""

import numpy as np
import pytest

from ray_precheck.inputs.generate import build_call, generated_tensors
from ray_precheck.inputs.roles.records import SecondMoment
from ray_precheck.inputs.roles.role import Within
from ray_precheck.inputs.roles.table import roles_of
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.values import (
    Bound,
    Constant,
    MappingSpec,
    SequenceSpec,
    TensorSpec,
    ValueSpec,
)

pytestmark = pytest.mark.unit


def tensors(*shape: int, low: Bound = None, high: Bound = None) -> SequenceSpec:
    return SequenceSpec((TensorSpec("float32", shape, low, high),) * 2)


def record(api: str, grads: SequenceSpec, lr: ValueSpec, **state: ValueSpec) -> ApiRecord:
    group = MappingSpec(
        (
            ("lr", lr),
            ("params", tensors(4, 3, low=-1.0, high=1.0)),
            ("grads", grads),
            ("state", MappingSpec(tuple(state.items()))),
        )
    )
    scale = ("grad_scale", TensorSpec("float32", ()))
    return ApiRecord(ApiName("Optimizer", api, 0), (group,), (scale,), (), framework="pytorch")


ADAM = record(
    "AdamW",
    tensors(4, 3, low=-1.0, high=1.0),
    TensorSpec("float32", ()),
    exp_avg=tensors(4, 3, low=-1.0, high=2.0),
    exp_avg_sq=tensors(4, 3),
    max_exp_avg_sq=tensors(4, 3, low=-3.0, high=0.5),
    step=SequenceSpec((TensorSpec("float32", (), 7.0, 7.0), TensorSpec("float32", ()))),
)


def drawn(record: ApiRecord, name: str) -> list[Array]:
    call = build_call(record, generated_tensors(0, record, "recorded"))
    return [tensor.data for tensor in call.args[0]["state"][name]]


def test_second_moments_grow_with_what_was_squared() -> None:
    firsts = drawn(ADAM, "exp_avg")
    for name, highest in (("exp_avg_sq", 1.0), ("max_exp_avg_sq", 0.5)):
        for first, second in zip(firsts, drawn(ADAM, name), strict=True):
            assert second.min() >= 0.0
            assert second.max() <= highest
            order = np.argsort(np.abs(first.reshape(-1)), kind="stable")
            assert (np.diff(second.reshape(-1)[order]) >= 0).all()


def test_steps_are_counted_as_recorded_and_unknown_ones_make_sense() -> None:
    assert [step.tolist() for step in drawn(ADAM, "step")] == [7.0, 10.0]
    call = build_call(ADAM, generated_tensors(0, ADAM, "recorded"))
    assert call.args[0]["lr"].data.tolist() == pytest.approx(1e-3)
    assert call.kwargs["grad_scale"].data.tolist() == 1.0


def test_the_variance_of_a_vector_grows_with_its_gradient_and_factors_are_not_negative() -> None:
    adafactor = record(
        "Adafactor",
        tensors(4, 3, low=-1.0, high=1.0),
        Constant(0.1),
        variance=tensors(4, 3),
        row_var=tensors(4, 1),
    )
    roles = roles_of(adafactor)
    variance = roles["input_args.0.state.variance.1"]
    assert isinstance(variance, SecondMoment)
    assert variance.path == "input_args.0.grads.1"
    assert isinstance(roles["input_args.0.state.row_var.0"], Within)
    assert min(each.min() for each in drawn(adafactor, "row_var")) >= 0.0


def test_a_second_moment_without_its_first_is_not_negative_all_the_same() -> None:
    alone = record("AdamW", tensors(2, low=0.0, high=1.0), Constant(0.1), exp_avg_sq=tensors(4, 3))
    assert min(each.min() for each in drawn(alone, "exp_avg_sq")) >= 0.0


def test_other_arguments_than_groups_mean_nothing() -> None:
    odd = ApiRecord(ApiName("Optimizer", "AdamW", 0), (Constant(None), SequenceSpec(())), (), ())
    assert roles_of(odd) == {}
