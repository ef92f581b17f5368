"""Elements of a record, each as the dump writes it, and what becomes of it."""

import json
import math
from typing import Any

import pytest

from ray_precheck.dump.decode import decode_record, decode_value, words_of
from ray_precheck.schema.record import ApiName
from ray_precheck.schema.values import (
    Constant,
    MappingSpec,
    SequenceSpec,
    Sparse,
    Symbol,
    TensorSpec,
    UnknownSpec,
    ValueSpec,
)

pytestmark = pytest.mark.unit

TENSOR_TYPES = [
    "mindspore.Tensor",
    "mindspore.Parameter",
    "mindspore.common.parameter.Parameter",
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch.nn.Parameter",
]


def tensor(**fields: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 3],
        "Max": 1.5,
        "Min": -2,
        "Mean": 0.1,
        "Norm": 3.0,
        **fields,
    }


def decoded(element: Any) -> ValueSpec:
    """Decode one element by way of a whole record, as JSON of msprobe (bare NaN and Infinity)."""
    raw = json.dumps({"input_args": [element]}).encode()
    return decode_record("Torch.add.0", raw, None).args[0]


@pytest.mark.parametrize("kind", TENSOR_TYPES)
def test_every_kind_of_tensor_has_dtype_shape_and_extremes(kind: str) -> None:
    assert decoded(tensor(type=kind)) == TensorSpec("float32", (2, 3), -2, 1.5, mean=0.1, norm=3.0)


def test_tensors_have_the_layouts_that_were_captured() -> None:
    views = [tensor(), [tensor(stride=[1, 2], shares="input_args.0")]]
    fields = {"out": tensor(stride=[0, 0], offset=5, shares="input_args.1.0")}
    raw = json.dumps({"input_args": views, "input_kwargs": fields}).encode()
    specs = dict(decode_record("Torch.add.0", raw, None).input_tensors())
    assert {path: (spec.stride, spec.offset, spec.shares) for path, spec in specs.items()} == {
        "input_args.0": (None, 0, ""),
        "input_args.1.0": ((1, 2), 0, "input_args.0"),
        "input_kwargs.out": ((0, 0), 5, "input_args.1.0"),
    }


def test_a_tensor_keeps_its_gradient_flag_and_its_file() -> None:
    spec = decoded(tensor(requires_grad=True, data_name="Torch.add.0.forward.input.0.pt", md5="ff"))
    assert isinstance(spec, TensorSpec)
    assert spec.requires_grad is True
    assert spec.data_name == "Torch.add.0.forward.input.0.pt"


def test_a_sparse_tensor_has_the_places_of_each_line() -> None:
    places = {"nnz": 4, "fewest": 1, "most": 3}
    spec = decoded(tensor(layout="torch.sparse_csr", sparse=places))
    assert isinstance(spec, TensorSpec)
    assert isinstance(spec.storage, Sparse)
    assert (spec.storage.nnz, spec.storage.fewest, spec.storage.most) == (4, 1, 3)


@pytest.mark.parametrize(
    ("given", "kept"), [(False, False), (None, None), ("yes", None), (1, None)]
)
def test_only_true_and_false_are_gradient_flags(given: Any, kept: bool | None) -> None:
    spec = decoded(tensor(requires_grad=given, data_name=5))
    assert isinstance(spec, TensorSpec)
    assert spec.requires_grad is kept
    assert spec.data_name is None


def test_extremes_of_a_boolean_tensor_are_booleans() -> None:
    spec = decoded(tensor(dtype="torch.bool", Min=False, Max=True))
    assert isinstance(spec, TensorSpec)
    assert (spec.low, spec.high) == (False, True)
    assert type(spec.low) is bool


def test_finite_extremes_of_older_captures_are_read() -> None:
    element = tensor(Max=math.inf, Min=math.nan, Max_except_inf_nan=3.0, Min_except_inf_nan=-1)
    spec = decode_value(element, "x", words_of())
    assert isinstance(spec, TensorSpec)
    assert (spec.finite_low, spec.finite_high) == (-1.0, 3.0)
    for nothing in (None, math.nan, math.inf, "x", {}, 10**400):
        spec = decode_value(
            tensor(Max_except_inf_nan=nothing, Min_except_inf_nan=nothing), "x", words_of()
        )
        assert isinstance(spec, TensorSpec)
        assert (spec.finite_low, spec.finite_high) == (None, None)


def test_extremes_that_are_null_or_missing_are_none() -> None:
    missing = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": []}
    for element in (tensor(Max=None, Min=None, Mean=None, Norm=None, shape=[]), missing):
        assert decoded(element) == TensorSpec("float32", (), None, None)


def test_mean_and_norm_are_kept_where_they_are_numbers() -> None:
    spec = decoded(tensor(Mean=2**70, Norm=math.inf))
    assert isinstance(spec, TensorSpec)
    assert (spec.mean, spec.norm) == (2**70, math.inf)
    spec = decoded(tensor(Mean="-0.5", Norm=[1]))
    assert isinstance(spec, TensorSpec)
    assert (spec.mean, spec.norm) == (None, None)


def test_bare_nan_and_infinity_are_read() -> None:
    spec = decoded(tensor(Max=math.inf, Min=-math.inf))
    assert isinstance(spec, TensorSpec)
    assert (spec.low, spec.high) == (-math.inf, math.inf)
    spec = decoded(tensor(Max=math.nan, Min=math.nan))
    assert isinstance(spec, TensorSpec)
    assert isinstance(spec.low, float)
    assert math.isnan(spec.low)


def test_extremes_in_quotes_are_read() -> None:
    spec = decoded(tensor(Max="inf", Min="-1.5"))
    assert isinstance(spec, TensorSpec)
    assert (spec.low, spec.high) == (-1.5, math.inf)


def test_extremes_of_64_bit_integers_are_exact() -> None:
    spec = decoded(tensor(dtype="torch.int64", Max=2**63 - 1, Min=-(2**63)))
    assert isinstance(spec, TensorSpec)
    assert (spec.low, spec.high) == (-(2**63), 2**63 - 1)


def test_what_has_dtype_and_shape_is_a_tensor_whatever_its_type() -> None:
    assert decoded(tensor(type="torch.distributed.tensor.DTensor")) == TensorSpec(
        "float32", (2, 3), -2, 1.5, mean=0.1, norm=3.0
    )


@pytest.mark.parametrize(
    ("element", "value"),
    [
        ({"type": "int", "value": 3}, 3),
        ({"type": "int", "value": -(2**63)}, -(2**63)),
        ({"type": "float", "value": 0.5}, 0.5),
        ({"type": "float", "value": 2}, 2.0),
        ({"type": "float", "value": math.inf}, math.inf),
        ({"type": "float", "value": "-inf"}, -math.inf),
        ({"type": "bool", "value": True}, True),
        ({"type": "str", "value": "mean"}, "mean"),
        ({"type": "str", "value": ""}, ""),
        ({"type": "complex", "value": "(1+2j)"}, 1 + 2j),
        ({"type": "complex", "value": "1 - 2j"}, 1 - 2j),
        ({"type": "NoneType", "value": None}, None),
        ({"type": "slice", "value": [1, None, -2]}, slice(1, None, -2)),
        ({"type": "slice", "value": [None, None, None]}, slice(None)),
        ({"type": "ellipsis", "value": "..."}, Ellipsis),
        ({"type": "torch.Size", "value": [2, 0]}, (2, 0)),
        ({"type": "torch.Size", "value": []}, ()),
        ({"type": "torch.Size", "value": [-1, 3]}, (-1, 3)),
        ({"type": "numpy.bool_", "value": True}, True),
        ({"type": "numpy.int64", "value": 7}, 7),
        ({"type": "numpy.uint8", "value": 255}, 255),
        ({"type": "numpy.float16", "value": 0.25}, 0.25),
        ({"type": "numpy.float64", "value": 3}, 3.0),
        ({"type": "bool_", "value": False}, False),
        ({"type": "int64", "value": 7}, 7),
        ({"type": "float32", "value": 2.5}, 2.5),
        (None, None),
        (5, 5),
        (0.5, 0.5),
        (True, True),
        ("text", "text"),
    ],
)
def test_constants_are_python_values_of_their_own_type(element: Any, value: Any) -> None:
    spec = decoded(element)
    assert spec == Constant(value)
    assert isinstance(spec, Constant)
    assert type(spec.value) is type(value)


def test_a_float_that_is_nan_stays_nan() -> None:
    spec = decoded({"type": "float", "value": math.nan})
    assert isinstance(spec, Constant)
    assert math.isnan(spec.value)


@pytest.mark.parametrize(
    ("element", "symbol"),
    [
        ({"type": "mindspore.dtype", "value": "Float16"}, Symbol("dtype", "float16")),
        ({"type": "torch.dtype", "value": "torch.bfloat16"}, Symbol("dtype", "bfloat16")),
        ({"type": "torch.dtype", "value": "None"}, Constant(None)),
        ({"type": "torch.dtype", "value": "<class 'int'>"}, Symbol("dtype", "int64")),
        ({"type": "torch.device", "value": "cpu"}, Symbol("device", "cpu")),
        ({"type": "torch.device", "value": "npu:3"}, Symbol("device", "npu:3")),
        (
            {"type": "torch.memory_format", "format": "channels_last"},
            Symbol("memory_format", "channels_last"),
        ),
        (
            {"type": "torch.memory_format", "format": "torch.contiguous_format"},
            Symbol("memory_format", "contiguous_format"),
        ),
    ],
)
def test_constants_of_the_framework_are_symbols(element: Any, symbol: Symbol) -> None:
    assert decoded(element) == symbol


@pytest.mark.parametrize(
    ("element", "says"),
    [
        ({}, "no description"),
        ({"type": "ProcessGroup", "group_ranks": [0]}, "'ProcessGroup' cannot be built"),
        ({"type": "functools.partial"}, "'functools.partial' cannot be built"),
        ({"type": "torch.dtype", "value": "torch.quint4x2"}, "'torch.quint4x2' is not supported"),
        ({"type": "mindspore.dtype", "value": None}, "not supported"),
        ({"type": "torch.device", "value": 7}, "does not say which device"),
        ({"type": "torch.memory_format"}, "does not say which memory_format"),
        ({"type": "slice", "value": [0.5, None, None]}, "slice bounds"),
        (tensor(dtype="torch.quint4x2"), "'torch.quint4x2' is not supported"),
        (tensor(dtype=None), "not supported"),
    ],
)
def test_what_cannot_be_built_is_unknown_with_the_reason(element: Any, says: str) -> None:
    spec = decoded(element)
    assert isinstance(spec, UnknownSpec)
    assert says in spec.reason


def test_lists_are_sequences_and_dicts_without_type_are_mappings() -> None:
    element = [{"type": "int", "value": 1}, [], {"a": None, "b": [tensor()]}]
    assert decoded(element) == SequenceSpec(
        (
            Constant(1),
            SequenceSpec(()),
            MappingSpec(
                (
                    ("a", Constant(None)),
                    (
                        "b",
                        SequenceSpec((TensorSpec("float32", (2, 3), -2, 1.5, mean=0.1, norm=3.0),)),
                    ),
                )
            ),
        )
    )


def test_a_dict_with_an_argument_called_type_is_a_mapping() -> None:
    element = {"type": {"type": "str", "value": "x"}, "n": 1}
    assert decoded(element) == MappingSpec((("type", Constant("x")), ("n", Constant(1))))


def test_a_record_has_arguments_outputs_and_gradients() -> None:
    forward = {
        "input_args": [tensor()],
        "input_kwargs": {"alpha": {"type": "int", "value": 2}, "out": None},
        "output": [tensor(shape=[3])],
    }
    backward = {"input": [tensor(shape=[3])], "output": [tensor(), None], "is_recompute": False}
    record = decode_record(
        "Torch.linalg.inv.3", json.dumps(forward).encode(), json.dumps(backward).encode()
    )
    assert record.name == ApiName("Torch", "linalg.inv", 3)
    assert record.args == (TensorSpec("float32", (2, 3), -2, 1.5, mean=0.1, norm=3.0),)
    assert record.kwargs == (("alpha", Constant(2)), ("out", Constant(None)))
    assert (
        record.outputs
        == record.grads_in
        == (TensorSpec("float32", (3,), -2, 1.5, mean=0.1, norm=3.0),)
    )
    assert record.grads_out == (
        TensorSpec("float32", (2, 3), -2, 1.5, mean=0.1, norm=3.0),
        Constant(None),
    )


def test_the_keys_of_older_captures_are_read() -> None:
    """`grad_output` is what comes in, as in torch's hooks, and `grad_input` what goes out."""
    forward = {"input": [tensor(), None], "output": [tensor(shape=[3])]}
    backward = {"grad_output": [tensor(shape=[3])], "grad_input": [tensor()]}
    record = decode_record(
        "Torch.sum.0", json.dumps(forward).encode(), json.dumps(backward).encode()
    )
    (incoming,), (passed_on,) = record.grads_in or (), record.grads_out or ()
    assert isinstance(incoming, TensorSpec)
    assert isinstance(passed_on, TensorSpec)
    assert (incoming.shape, passed_on.shape) == ((3,), (2, 3))
    assert len(record.args) == 2


def test_fields_that_are_missing_or_null_are_empty() -> None:
    for raw in (b"{}", b'{"input_args": null, "input_kwargs": null, "output": null}'):
        record = decode_record("Mint.add.0", raw, None)
        assert (record.args, record.kwargs, record.outputs) == ((), (), ())
        assert record.grads_in is None
        assert record.grads_out is None
    assert decode_record("Mint.add.0", b"{}", b"{}").grads_in == ()


def test_an_element_can_be_decoded_on_its_own() -> None:
    assert decode_value({"type": "bool", "value": False}, "here", words_of()) == Constant(False)


def test_our_captures_say_to_which_input_each_gradient_belongs() -> None:
    forward = json.dumps(
        {
            "input_args": [tensor(), tensor()],
            "autocast": "torch.bfloat16",
            "autocast_device": "cuda",
        }
    ).encode()
    backward = {"input": [tensor()], "output": [tensor(), None], "gradient_of": ["1", None]}
    found = decode_record("Torch.add.0", forward, json.dumps(backward).encode())
    assert found.gradient_of == (1, None)
    assert (found.autocast, found.autocast_device) == ("bfloat16", "cuda")
    del backward["output"]  # a capture of the incoming gradients alone
    found = decode_record("Torch.add.0", forward, json.dumps(backward).encode())
    assert found.gradient_of is None


def test_our_captures_say_which_tensors_a_call_changed() -> None:
    forward = {
        "input_args": [tensor(), [tensor(), {"type": "int", "value": 2}]],
        "input_kwargs": {"out": tensor()},
        "changed": {
            "input_kwargs.out": tensor(shape=[5], data_name="after.npy"),
            "input_args.1.0": tensor(shape=[4]),
            "input_args.1.1": tensor(),  # a number, and a path that the call does not have
            "input_args.7": tensor(),
        },
    }
    found = decode_record("Torch.add.0", json.dumps(forward).encode(), None).changed
    assert found is not None
    assert [(path, spec.shape) for path, spec in found] == [
        ("input_args.1.0", (4,)),
        ("input_kwargs.out", (5,)),
    ]
    assert found[1][1].data_name == "after.npy"


def test_records_of_msprobe_say_nothing_of_them() -> None:
    raw = json.dumps({"input_args": [tensor()]}).encode()
    found = decode_record("Torch.add.0", raw, json.dumps({"output": [tensor()]}).encode())
    assert (found.gradient_of, found.autocast, found.changed) == (None, "", None)
