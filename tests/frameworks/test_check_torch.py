"""PyTorch calls of every form that a dump can have, with torch itself on both sides."""

import warnings

import pytest
from records import (
    MEMORY_FORMAT,
    RememberedTensors,
    call,
    dtypes,
    leaf,
    mask,
    rows,
    shapes,
    size,
    symbol,
    tensor,
    whole,
)

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = [
    pytest.mark.frameworks,
    # A dump has a tuple as a list, and an index of x[0, 1:] is passed on as x[[0, slice(1, None)]].
]

HALF, BFLOAT = symbol("torch.dtype", "torch.float16"), symbol("torch.dtype", "torch.bfloat16")
NPU = symbol("torch.device", "npu:0")
ROWS = slice(1, None, 2)


def both(outputs: list[str], gradients: list[str] | None = None) -> tuple[list[str], list[str]]:
    return outputs, gradients or []


LSTM_STATE = [tensor(1, 2, 4), tensor(1, 2, 4)]
LSTM_WEIGHTS = [leaf(16, 3), leaf(16, 4), leaf(16), leaf(16)]
NORM = (leaf(4, 3, 2, 2), tensor(3), tensor(3, low=0.5), leaf(3), leaf(3))
TRUE = True

# The Shape cells of the outputs and of the gradients that a call must get, all of them passing.
CASES: dict[str, tuple[TaskPayload, tuple[list[str], list[str]]]] = {
    "positional": (
        call("Torch.add", leaf(2, 3), leaf(3), grads=[tensor(2, 3)]),
        both(["(2, 3)"], ["(2, 3)", "(3,)"]),
    ),
    "keyword": (
        call("Torch.add", input=leaf(2, 3), other=leaf(3), alpha=2, grads=[tensor(2, 3)]),
        both(["(2, 3)"], ["(2, 3)", "(3,)"]),
    ),
    "list of tensors": (
        call("Torch.cat", [leaf(2, 3), leaf(2, 1)], 1, grads=[tensor(2, 4)]),
        both(["(2, 4)"], ["(2, 3)", "(2, 1)"]),
    ),
    "list of tensors as keyword": (
        call("Torch.stack", tensors=[leaf(2), leaf(2)], dim=0, grads=[tensor(2, 2)]),
        both(["(2, 2)"], ["(2,)", "(2,)"]),
    ),
    "text and tensors": (
        call("Torch.einsum", "ij,jk->ik", leaf(2, 3), leaf(3, 4), grads=[tensor(2, 4)]),
        both(["(2, 4)"], ["(2, 3)", "(3, 4)"]),
    ),
    "text and list of tensors": (
        call("Torch.einsum", "ij,jk->ik", [leaf(2, 3), leaf(3, 4)], grads=[tensor(2, 4)]),
        both(["(2, 4)"], ["(2, 3)", "(3, 4)"]),
    ),
    "several outputs": (
        call("Torch.split", leaf(6, 4), 2, dim=0, grads=[tensor(2, 4)] * 3),
        both(["(2, 4)"] * 3, ["(6, 4)"]),
    ),
    "outputs of several dtypes": (
        call("Torch.max", leaf(3, 4), 1, grads=[tensor(3), None]),
        both(["(3,)", "(3,)"], ["(3, 4)"]),
    ),
    "fewer gradients than outputs": (
        call("Torch.topk", leaf(3, 5), 2, grads=[tensor(3, 2)]),
        both(["(3, 2)", "(3, 2)"], ["(3, 5)"]),
    ),
    "0-d": (call("Torch.mul", leaf(), leaf(), grads=[tensor()]), both(["()"], ["()", "()"])),
    "slices": (
        call("Tensor.__getitem__", leaf(4, 5, 6), (slice(None), ROWS, 0), grads=[tensor(4, 2)]),
        both(["(4, 2)"], ["(4, 5, 6)"]),
    ),
    "Ellipsis and None": (
        call("Tensor.__getitem__", leaf(4, 6), (..., None, slice(2)), grads=[tensor(4, 1, 2)]),
        both(["(4, 1, 2)"], ["(4, 6)"]),
    ),
    "an index tensor": (
        call("Tensor.__getitem__", leaf(4, 5), whole(3), grads=[tensor(3, 5)]),
        both(["(3, 5)"], ["(4, 5)"]),
    ),
    "Size": (
        call("Tensor.reshape", leaf(4, 6), size(8, 3), grads=[tensor(8, 3)]),
        both(["(8, 3)"], ["(4, 6)"]),
    ),
    "memory format": (
        call("Tensor.contiguous", tensor(1, 2, 3, 3), memory_format=MEMORY_FORMAT),
        both(["(1, 2, 3, 3)"]),
    ),
    "device text": (
        call("Torch.arange", 0, 10, 2, device="npu:0"),
        both(["(5,)"]),
    ),
    "device": (call("Torch.ones", size(2, 3), device=NPU), both(["(2, 3)"])),
    "dotted name": (
        call("Torch.linalg.inv", leaf(3, 3, low=1, high=9), grads=[tensor(3, 3)]),
        both(["(3, 3)"], ["(3, 3)"]),
    ),
    "reversed minus": (
        call("Tensor.__rsub__", leaf(4), 2, grads=[tensor(4)]),
        both(["(4,)"], ["(4,)"]),
    ),
    "reversed power": (
        call("Tensor.__rpow__", leaf(4), 2.5, grads=[tensor(4)]),
        both(["(4,)"], ["(4,)"]),
    ),
    "lstm": (
        call(
            "VF.lstm",
            leaf(5, 2, 3),
            LSTM_STATE,
            LSTM_WEIGHTS,
            *(True, 1, 0.0, True, False, False),
            grads=[tensor(5, 2, 4), tensor(1, 2, 4), tensor(1, 2, 4)],
        ),
        both(
            ["(5, 2, 4)", "(1, 2, 4)", "(1, 2, 4)"],
            ["(5, 2, 3)", "(16, 3)", "(16, 4)", "(16,)", "(16,)"],
        ),
    ),
    "batch_norm in training": (
        call("Functional.batch_norm", *NORM, True, 0.1, 1e-5, grads=[tensor(4, 3, 2, 2)]),
        both(["(4, 3, 2, 2)"], ["(4, 3, 2, 2)", "(3,)", "(3,)"]),
    ),
    "dropout that does not drop": (
        call("Functional.dropout", leaf(4), p=0.5, training=False, grads=[tensor(4)]),
        both(["(4,)"], ["(4,)"]),
    ),
    "add_": (
        call("Tensor.add_", leaf(3), leaf(3), alpha=2, grads=[tensor(3)]),
        both(["(3,)"], ["(3,)", "(3,)"]),
    ),
    "__iadd__": (
        call("Tensor.__iadd__", leaf(3), leaf(3), grads=[tensor(3)]),
        both(["(3,)"], ["(3,)", "(3,)"]),
    ),
    "copy_": (
        call("Tensor.copy_", leaf(3), leaf(3), grads=[tensor(3)]),
        both(["(3,)"], ["(3,)", "(3,)"]),
    ),
    "relu in place": (
        call("Functional.relu", leaf(3, 4), inplace=True, grads=[tensor(3, 4)]),
        both(["(3, 4)"], ["(3, 4)"]),
    ),
    "relu in place by position": (
        call("Functional.relu", leaf(3, 4), TRUE, grads=[tensor(3, 4)]),
        both(["(3, 4)"], ["(3, 4)"]),
    ),
    # It returns None: what is compared is the tensor that was written to.
    "__setitem__": (
        call(
            "Tensor.__setitem__", leaf(4, 3), (slice(1, 3), ...), leaf(2, 3), grads=[tensor(4, 3)]
        ),
        both(["(4, 3)"], ["(4, 3)", "(2, 3)"]),
    ),
    "a list of tensors in place": (
        call("Torch._foreach_add_", [tensor(3), tensor(2)], 1.0),
        both(["(3,)", "(2,)"]),
    ),
}


def _assert_passes(result: TaskResult, backward: Verdict) -> None:
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, backward, "")


@pytest.mark.parametrize("case", CASES)
def test_a_call_passes_with_one_row_for_each_output_and_gradient(
    torch_checker: Checker, case: str
) -> None:
    payload, (outputs, gradients) = CASES[case]
    result = torch_checker.check(payload)
    _assert_passes(result, Verdict.PASS if payload.backward else Verdict.NONE)
    assert (shapes(result), shapes(result, "backward")) == (outputs, gradients)


@pytest.mark.parametrize(
    ("payload", "cell"),
    [
        (call("Tensor.size", tensor(4, 3)), "Size"),
        (call("Tensor.size", tensor(4, 3), 1), "int"),
        (call("Tensor.dim", tensor(4, 3)), "int"),
        (call("Tensor.numel", tensor(4, 3)), "int"),
        (call("Tensor.item", tensor()), "float"),
        (call("Tensor.item", tensor(dtype="bfloat16")), "float"),
        (call("Tensor.tolist", tensor(2, 2)), "list"),
        (call("Tensor.__bool__", tensor()), "bool"),
    ],
)
def test_an_output_that_is_no_tensor_is_compared_by_equality(
    torch_checker: Checker, payload: TaskPayload, cell: str
) -> None:
    result = torch_checker.check(payload)
    _assert_passes(result, Verdict.NONE)
    assert (dtypes(result), shapes(result)) == ([(cell, cell)], [""])


@pytest.mark.parametrize(
    ("payload", "bench", "tested"),
    [
        (call("Torch.argmax", tensor(3, 4), dim=1), "int64", "int64"),
        (call("Tensor.add_", whole(3), 1), "int64", "int64"),
        (call("Torch.ge", tensor(3, 4), 0.0), "bool", "bool"),
        (call("Torch.isnan", tensor(3)), "bool", "bool"),
        (call("Torch.mul", *[tensor(3, dtype="complex64")] * 2), "complex128", "complex64"),
        (call("Torch.fft.fft", tensor(8)), "complex128", "complex64"),
        (call("Tensor.to", tensor(3), HALF), "float64", "float16"),
        (call("Tensor.to", tensor(3), "npu:0", BFLOAT), "float64", "bfloat16"),
        (call("Tensor.to", tensor(3), device="npu:0"), "float64", "float32"),
        (call("Tensor.to", tensor(3), NPU), "float64", "float32"),
        (call("Tensor.type_as", tensor(3), tensor(1, dtype="float16")), "float64", "float16"),
        (call("Torch.zeros", size(2), dtype=HALF), "float64", "float16"),
    ],
)
def test_an_output_keeps_its_kind_in_the_bench(
    torch_checker: Checker, payload: TaskPayload, bench: str, tested: str
) -> None:
    result = torch_checker.check(payload)
    _assert_passes(result, Verdict.NONE)
    assert dtypes(result) == [(f"torch.{bench}", f"torch.{tested}")]


def test_an_index_of_several_numbers_is_a_tuple_as_it_was_when_captured(
    torch_checker: Checker,
) -> None:
    result = torch_checker.check(
        call("Tensor.__getitem__", tensor(4, 5, 6), (0, 1), output=tensor(6))
    )
    _assert_passes(result, Verdict.NONE)
    assert shapes(result) == ["(6,)"]


def test_an_index_of_slices_makes_torch_warn_of_nothing(torch_checker: Checker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = torch_checker.check(CASES["slices"][0])
    _assert_passes(result, Verdict.PASS)


@pytest.mark.parametrize(
    "payload",
    [
        call("Torch.sin", whole(9, high=50)),
        call("Tensor.__truediv__", whole(9, high=50), 7),
        call("Torch.linspace", 0, 1, 7),
    ],
    ids=lambda payload: payload.name,
)
def test_a_float_made_of_integers_is_float64_in_the_bench(
    torch_checker: Checker, payload: TaskPayload
) -> None:
    result = torch_checker.check(payload)
    _assert_passes(result, Verdict.NONE)
    assert dtypes(result) == [("torch.float64", "torch.float32")]


def test_the_gradient_of_a_complex_product_is_compared(torch_checker: Checker) -> None:
    product = [leaf(3, dtype="complex64"), leaf(3, dtype="complex64")]
    payload = call("Torch.mul", *product, grads=[tensor(3, dtype="complex64")])
    result = torch_checker.check(payload)
    _assert_passes(result, Verdict.PASS)
    assert dtypes(result, "backward") == [("torch.complex128", "torch.complex64")] * 2


def test_only_tensors_that_require_a_gradient_get_one(torch_checker: Checker) -> None:
    payload = call("Torch.mul", tensor(2, 3), leaf(3), grads=[tensor(2, 3)])
    result = torch_checker.check(payload)
    _assert_passes(result, Verdict.PASS)
    assert shapes(result, "backward") == ["(3,)"]


@pytest.mark.parametrize(
    "payload",
    [
        CASES["batch_norm in training"][0],
        CASES["__setitem__"][0],
        call("Tensor.add_", tensor(3), tensor(3)),
        call("Tensor.zero_", tensor(3)),
        call("Tensor.masked_fill_", tensor(8), mask(8), 5.0),
        call("Torch._foreach_add_", [tensor(3), tensor(2)], 1.0),
    ],
    ids=lambda payload: payload.name,
)
def test_what_one_side_writes_to_its_input_does_not_reach_the_other(
    torch_checker: Checker, payload: TaskPayload
) -> None:
    source = RememberedTensors(payload.name)
    result = torch_checker.check(payload, source)
    assert result.forward is Verdict.PASS
    assert source.made
    assert source.changed() == []


@pytest.mark.parametrize(
    "payload",
    [
        call("Functional.dropout", tensor(4), 0.5, True),
        call("Functional.dropout", tensor(4)),
        call("Functional.scaled_dot_product_attention", *[tensor(1, 2, 4, 8)] * 3, None, 0.1),
        call("Torch.rand_like", tensor(4)),
        call("Tensor.normal_", tensor(4)),
    ],
    ids=lambda payload: payload.name,
)
def test_a_random_output_is_not_compared_element_by_element(
    torch_checker: Checker, payload: TaskPayload
) -> None:
    result = torch_checker.check(payload)
    assert (result.forward, result.checks[0].metrics) == (Verdict.PASS, None)
    assert result.message == "its output is random: judged by statistics"


def test_attention_without_dropout_is_checked(torch_checker: Checker) -> None:
    heads = [leaf(1, 2, 4, 8)] * 3
    payload = call(
        "Functional.scaled_dot_product_attention",
        *heads,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=True,
        grads=[tensor(1, 2, 4, 8)],
    )
    result = torch_checker.check(payload)
    _assert_passes(result, Verdict.PASS)
    assert len(rows(result, "backward")) == 3
