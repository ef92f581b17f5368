"""Specs of values, records and results."""

import dataclasses
import pickle

import numpy as np
import pytest

from ray_precheck.schema.record import ApiName, ApiRecord
from ray_precheck.schema.result import Outcome, Verdict, failed, skipped
from ray_precheck.schema.task import DeviceSlot
from ray_precheck.schema.values import (
    Constant,
    HostTensor,
    MappingSpec,
    SequenceSpec,
    Symbol,
    TensorSpec,
    UnknownSpec,
    walk_specs,
)

pytestmark = pytest.mark.unit

MATRIX = TensorSpec("float16", (2, 3))
SCALAR = TensorSpec("int64", ())
NESTED = SequenceSpec(
    (
        MATRIX,
        SequenceSpec((Constant(1), SCALAR)),
        MappingSpec((("scale", Symbol("dtype", "float32")), ("rest", SequenceSpec(())))),
        UnknownSpec("why"),
    )
)


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "nbytes"),
    [
        ("float16", (2, 3), 6, 12),
        ("float32", (), 1, 4),
        ("bool", (5, 0, 7), 0, 0),
        ("complex128", (4,), 4, 64),
        ("bfloat16", (1 << 40, 1 << 40), 1 << 80, 1 << 81),
    ],
)
def test_size_and_bytes_follow_from_shape_and_dtype(
    dtype: str, shape: tuple[int, ...], size: int, nbytes: int
) -> None:
    spec = TensorSpec(dtype, shape)
    assert (spec.size, spec.nbytes) == (size, nbytes)


def test_leaves_are_walked_in_order_with_their_paths() -> None:
    assert list(walk_specs(NESTED, "input_args.4")) == [
        ("input_args.4.0", MATRIX),
        ("input_args.4.1.0", Constant(1)),
        ("input_args.4.1.1", SCALAR),
        ("input_args.4.2.scale", Symbol("dtype", "float32")),
        ("input_args.4.3", UnknownSpec("why")),
    ]


def test_a_leaf_is_walked_as_itself() -> None:
    assert list(walk_specs(MATRIX, "output.0")) == [("output.0", MATRIX)]


def test_inputs_are_positional_ones_first_then_keywords() -> None:
    record = ApiRecord(
        name=ApiName("Torch", "linalg.inv", 3),
        args=(SCALAR, NESTED),
        kwargs=(("other", MATRIX), ("alpha", Constant(2))),
        outputs=(),
    )
    assert [path for path, _ in record.input_leaves()] == [
        "input_args.0",
        "input_args.1.0",
        "input_args.1.1.0",
        "input_args.1.1.1",
        "input_args.1.2.scale",
        "input_args.1.3",
        "input_kwargs.other",
        "input_kwargs.alpha",
    ]
    assert list(record.input_tensors()) == [
        ("input_args.0", SCALAR),
        ("input_args.1.0", MATRIX),
        ("input_args.1.1.1", SCALAR),
        ("input_kwargs.other", MATRIX),
    ]


def test_a_record_has_a_backward_part_where_gradients_came_in_even_none_of_them() -> None:
    record = ApiRecord(ApiName("Tensor", "add", 0), (), (), ())
    assert not record.has_backward
    assert dataclasses.replace(record, grads_in=()).has_backward


def test_names_of_calls_and_of_apis_are_written_with_dots() -> None:
    name = ApiName("Torch", "linalg.inv", 3)
    assert str(name) == "Torch.linalg.inv.3"
    assert name.type_name == "Torch.linalg.inv"


def test_the_shape_of_a_host_tensor_is_that_of_its_data() -> None:
    assert HostTensor("float32", np.zeros((2, 0, 3), np.float32)).shape == (2, 0, 3)


def test_specs_are_frozen_and_cross_processes() -> None:
    assert pickle.loads(pickle.dumps(NESTED)) == NESTED
    with pytest.raises(dataclasses.FrozenInstanceError):
        MATRIX.dtype = "int8"  # type: ignore[misc]


@pytest.mark.parametrize(("has_backward", "cell"), [(True, Verdict.SKIP), (False, Verdict.NONE)])
def test_skipped_and_failed_calls_have_a_backward_cell_only_with_a_backward_record(
    has_backward: bool, cell: Verdict
) -> None:
    skip = skipped(4, "Tensor.add.0", "no bench", has_backward)
    assert (skip.outcome, skip.forward, skip.backward) == (Outcome.SKIPPED, Verdict.SKIP, cell)
    crash = failed(4, "Tensor.add.0", Outcome.CRASHED, "SIGSEGV", has_backward)
    assert (crash.outcome, crash.forward, crash.backward) == (Outcome.CRASHED, Verdict.ERROR, cell)
    assert (skip.message, crash.message) == ("no bench", "SIGSEGV")
    assert (skip.index, skip.name) == (crash.index, crash.name) == (4, "Tensor.add.0")


def test_a_slot_is_called_by_its_kind_and_id() -> None:
    assert DeviceSlot("npu", 3, "node", "10.0.0.1", "3").label == "npu:3"
