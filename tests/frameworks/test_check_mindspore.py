"""MindSpore calls of every form that a dump can have, where MindSpore's CPU has a kernel."""

import importlib
from typing import Any

import pytest
from records import (
    RememberedTensors,
    altered,
    call,
    dtypes,
    replace_kernel,
    shapes,
    symbol,
)
from records import ms_tensor as tensor
from versions import require_kernel

from ray_precheck import private_parts
from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Outcome, TaskResult, Verdict
from ray_precheck.schema.task import Cause, TaskPayload

pytestmark = [
    pytest.mark.frameworks,
]

FLOAT32, FLOAT16, BFLOAT16 = (
    symbol("mindspore.dtype", name) for name in ("Float32", "Float16", "BFloat16")
)
ROWS = slice(1, None, 2)


def whole(*shape: int, dtype: str = "Int64") -> Any:
    return tensor(*shape, dtype=dtype, low=0, high=3)


def mask(*shape: int) -> Any:
    return tensor(*shape, dtype="Bool", low=False, high=True)


def both(outputs: list[str], gradients: list[str] | None = None) -> tuple[list[str], list[str]]:
    return outputs, gradients or []


# The Shape cells of the outputs and of the gradients that a call must get, all of them passing.
CASES: dict[str, tuple[TaskPayload, tuple[list[str], list[str]]]] = {
    "positional": (
        call("Mint.add", tensor(2, 3), tensor(3), grads=[tensor(2, 3)]),
        both(["(2, 3)"], ["(2, 3)", "(3,)"]),
    ),
    "keyword": (
        call("Mint.add", input=tensor(2, 3), other=tensor(3), alpha=2, grads=[tensor(2, 3)]),
        both(["(2, 3)"], ["(2, 3)", "(3,)"]),
    ),
    "list of tensors": (
        call("Mint.cat", [tensor(2, 3), tensor(2, 1)], 1, grads=[tensor(2, 4)]),
        both(["(2, 4)"], ["(2, 3)", "(2, 1)"]),
    ),
    "list of tensors and a keyword": (
        call("Functional.concat", [tensor(2), tensor(2)], axis=0, grads=[tensor(4)]),
        both(["(4,)"], ["(2,)", "(2,)"]),
    ),
    "several outputs": (
        call("Mint.split", tensor(6, 4), 2, dim=0, grads=[tensor(2, 4)] * 3),
        both(["(2, 4)"] * 3, ["(6, 4)"]),
    ),
    "outputs of several dtypes": (
        call("Mint.max", tensor(3, 4), 1, grads=[tensor(3), None]),
        both(["(3,)", "(3,)"], ["(3, 4)"]),
    ),
    "fewer gradients than outputs": (
        call("Functional.topk", tensor(3, 5), 2, grads=[tensor(3, 2)]),
        both(["(3, 2)", "(3, 2)"], ["(3, 5)"]),
    ),
    "0-d": (
        call("Mint.mul", tensor(), tensor(), grads=[tensor()]),
        both(["()"], ["()", "()"]),
    ),
    "slices": (
        # Strides in a middle dimension depend on the machine: MindSpore 2.10's StridedSliceGrad raises
        # "input memory out of bounds" for them on some.
        call("Tensor.__getitem__", tensor(4, 5, 6), (ROWS, slice(None), 0), grads=[tensor(2, 5)]),
        both(["(2, 5)"], ["(4, 5, 6)"]),
    ),
    "Ellipsis and None": (
        call("Tensor.__getitem__", tensor(4, 6), (..., None, slice(2)), grads=[tensor(4, 1, 2)]),
        both(["(4, 1, 2)"], ["(4, 6)"]),
    ),
    "an index tensor": (
        call("Tensor.__getitem__", tensor(4, 5), whole(3), grads=[tensor(3, 5)]),
        both(["(3, 5)"], ["(4, 5)"]),
    ),
    "a shape as list": (
        call("Tensor.reshape", tensor(4, 6), (8, 3), grads=[tensor(8, 3)]),
        both(["(8, 3)"], ["(4, 6)"]),
    ),
    "a shape as numbers": (call("Tensor.view", tensor(4, 6), 8, -1), both(["(8, 3)"])),
    "condition": (
        call("Mint.where", mask(3), tensor(3), tensor(3), grads=[tensor(3)]),
        both(["(3,)"], ["(3,)", "(3,)"]),
    ),
    "reversed minus": (
        call("Tensor.__rsub__", tensor(4), 2, grads=[tensor(4)]),
        both(["(4,)"], ["(4,)"]),
    ),
    "reversed power": (
        call("Tensor.__rpow__", tensor(4), 2.5, grads=[tensor(4)]),
        both(["(4,)"], ["(4,)"]),
    ),
    "reversed quotient": (
        call("Tensor.__rtruediv__", tensor(4, low=1.0, high=2.0), 2, grads=[tensor(4)]),
        both(["(4,)"], ["(4,)"]),
    ),
    "matrix operator": (
        call("Tensor.__matmul__", tensor(2, 3), tensor(3, 4), grads=[tensor(2, 4)]),
        both(["(2, 4)"], ["(2, 3)", "(3, 4)"]),
    ),
    "add_": (
        call("Tensor.add_", tensor(3), tensor(3), grads=[tensor(3)]),
        both(["(3,)"], ["(3,)", "(3,)"]),
    ),
    "add_ without gradient": (call("Tensor.add_", tensor(3), tensor(3)), both(["(3,)"])),
    "mul_ without gradient": (call("Tensor.mul_", tensor(3), 2.0), both(["(3,)"])),
    "__iadd__": (
        call("Tensor.__iadd__", tensor(3), tensor(3), grads=[tensor(3)]),
        both(["(3,)"], ["(3,)", "(3,)"]),
    ),
    "copy_": (
        call("Tensor.copy_", tensor(3), tensor(3), grads=[tensor(3)]),
        both(["(3,)"], ["(3,)", "(3,)"]),
    ),
    # It returns None: what is compared is the tensor that was written to.
    "__setitem__": (
        call("Tensor.__setitem__", tensor(4, 3), 0, 7.0, grads=[tensor(4, 3)]),
        both(["(4, 3)"], ["(4, 3)"]),
    ),
    "__setitem__ without gradient": (
        call("Tensor.__setitem__", tensor(4, 3), (slice(1, 3), ...), tensor(2, 3)),
        both(["(4, 3)"]),
    ),
    "a layer with weights": (
        call("MintFunctional.linear", tensor(4, 7), tensor(3, 7), tensor(3), grads=[tensor(4, 3)]),
        both(["(4, 3)"], ["(4, 7)", "(3, 7)", "(3,)"]),
    ),
    "an activation": (
        call("MintFunctional.silu", tensor(4, 7), grads=[tensor(4, 7)]),
        both(["(4, 7)"], ["(4, 7)"]),
    ),
    "dropout that does not drop": (
        call("MintFunctional.dropout", tensor(4), p=0.5, training=False, grads=[tensor(4)]),
        both(["(4,)"], ["(4,)"]),
    ),
    "convolution": (
        call(
            "Functional.conv2d", tensor(1, 2, 5, 5), tensor(3, 2, 3, 3), grads=[tensor(1, 3, 3, 3)]
        ),
        both(["(1, 3, 3, 3)"], ["(1, 2, 5, 5)", "(3, 2, 3, 3)"]),
    ),
    "loss": (
        call("Functional.cross_entropy", tensor(4, 7), whole(4, dtype="Int32"), grads=[tensor()]),
        both(["()"], ["(4, 7)"]),
    ),
    "axes": (
        call("Functional.transpose", tensor(2, 3), (1, 0), grads=[tensor(3, 2)]),
        both(["(3, 2)"], ["(2, 3)"]),
    ),
}


def _assert_passes(result: TaskResult, backward: Verdict) -> None:
    require_kernel(result)
    assert (result.forward, result.backward, result.message) == (Verdict.PASS, backward, "")


@pytest.mark.parametrize("case", CASES)
def test_a_call_passes_with_one_row_for_each_output_and_gradient(
    mindspore_checker: Checker, case: str
) -> None:
    payload, (outputs, gradients) = CASES[case]
    result = mindspore_checker.check(payload)
    _assert_passes(result, Verdict.PASS if payload.backward else Verdict.NONE)
    assert (shapes(result), shapes(result, "backward")) == (outputs, gradients)


@pytest.mark.parametrize(
    ("payload", "cell"),
    [
        (call("Tensor.dim", tensor(4, 3)), "int"),
        (call("Tensor.numel", tensor(4, 3)), "int"),
        (call("Tensor.__len__", tensor(4, 3)), "int"),
        (call("Tensor.item", tensor()), "float"),
        (call("Tensor.__bool__", tensor()), "bool"),
    ],
)
def test_an_output_that_is_no_tensor_is_compared_by_equality(
    mindspore_checker: Checker, payload: TaskPayload, cell: str
) -> None:
    result = mindspore_checker.check(payload)
    _assert_passes(result, Verdict.NONE)
    assert (dtypes(result), shapes(result)) == ([(cell, cell)], [""])


@pytest.mark.parametrize(
    ("payload", "bench", "tested"),
    [
        (call("Tensor.argmax", tensor(3, 4), 1), "Int64", "Int64"),
        (call("Mint.greater_equal", tensor(3, 4), 0.0), "Bool", "Bool"),
        (call("Tensor.__invert__", mask(3)), "Bool", "Bool"),
        (call("Functional.mul", *[tensor(3, dtype="Complex64")] * 2), "Complex128", "Complex64"),
        (call("Tensor.to", tensor(3), FLOAT16), "Float64", "Float16"),
        (call("Tensor.astype", tensor(3), BFLOAT16), "Float64", "BFloat16"),
        (call("Mint.zeros", (2, 3), dtype=FLOAT32), "Float64", "Float32"),
        (call("Mint.exp", tensor(3, dtype="Float16")), "Float64", "Float16"),
    ],
)
def test_an_output_keeps_its_kind_in_the_bench(
    mindspore_checker: Checker, payload: TaskPayload, bench: str, tested: str
) -> None:
    result = mindspore_checker.check(payload)
    _assert_passes(result, Verdict.NONE)
    assert dtypes(result) == [(bench, tested)]


@pytest.mark.parametrize("dtype", ["Float16", "BFloat16"])
@pytest.mark.parametrize("api", ["Mint.add", "Mint.mul"])
def test_half_precision_is_checked_in_both_directions(
    mindspore_checker: Checker, api: str, dtype: str
) -> None:
    halves = [tensor(3, 4, dtype=dtype), tensor(3, 4, dtype=dtype)]
    result = mindspore_checker.check(call(api, *halves, grads=[tensor(3, 4, dtype=dtype)]))
    _assert_passes(result, Verdict.PASS)
    assert dtypes(result) == [("Float64", dtype)]
    assert dtypes(result, "backward") == [("Float64", dtype)] * 2


@pytest.mark.parametrize(
    ("payload", "kernel"),
    [
        (call("Mint.topk", tensor(3, 5), 2), "TopkExt"),
        (
            call("Mint.topk", tensor(3, 5), 2, grads=[tensor(3, 2)]),
            "TopkExt",
        ),
        (call("MintFunctional.gelu", tensor(3)), "The kernel GeluExt unregistered"),
        (call("Tensor.zero_", tensor(3)), "The kernel InplaceZero unregistered"),
        (call("Mint.exp", tensor(3, dtype="BFloat16")), "Select CPU operator[Exp] fail"),
        pytest.param(
            call("Mint.einsum", "ij,jk->ik", tensor(2, 3), tensor(3, 4)),
            "only supports Ascend",
        ),
        pytest.param(
            call("MintFunctional.layer_norm", tensor(4, 7), (7,), tensor(7), tensor(7), 1e-5),
            "Create kernelmod for op LayerNormExt failed",
        ),
    ],
)
def test_a_kernel_that_the_cpu_lacks_is_a_skip_that_says_so(
    mindspore_checker: Checker, payload: TaskPayload, kernel: str
) -> None:
    result = mindspore_checker.check(payload)
    backward = Verdict.NONE if payload.backward is None else Verdict.SKIP
    assert (result.forward, result.backward) == (Verdict.SKIP, backward)
    assert result.outcome is Outcome.SKIPPED
    assert "the CPU has no kernel for it" in result.message
    assert kernel in result.message


def test_a_missing_kernel_does_not_reach_the_next_call(mindspore_checker: Checker) -> None:
    """MindSpore's errors are asynchronous unless it is told to launch one kernel at a time."""
    for _ in range(5):
        assert mindspore_checker.check(call("Mint.topk", tensor(3, 5), 2)).forward is Verdict.SKIP
        _assert_passes(mindspore_checker.check(CASES["positional"][0]), Verdict.PASS)


@pytest.mark.parametrize(
    "payload",
    [
        call("Functional.dropout", tensor(4), 0.5, True),
        call("Functional.dropout", tensor(4)),
        call("Functional.rand_like", tensor(4)),
    ],
    ids=lambda payload: payload.name,
)
def test_a_random_output_is_not_compared_element_by_element(
    mindspore_checker: Checker, payload: TaskPayload
) -> None:
    result = mindspore_checker.check(payload)
    assert (result.forward, result.checks[0].metrics) == (Verdict.PASS, None)
    assert result.message == "its output is random: judged by statistics"


@pytest.mark.parametrize(
    "case", ["add_", "add_ without gradient", "mul_ without gradient", "copy_", "__setitem__"]
)
def test_what_one_side_writes_to_its_input_does_not_reach_the_other(
    mindspore_checker: Checker, case: str
) -> None:
    payload = CASES[case][0]
    source = RememberedTensors(payload.name)
    assert mindspore_checker.check(payload, source).forward is Verdict.PASS
    assert source.made
    assert source.changed() == []


def test_a_float_made_of_integers_is_float64_in_the_bench(mindspore_checker: Checker) -> None:
    numbers = [tensor(9, dtype="Int32", low=1, high=50), tensor(9, dtype="Int32", low=1, high=50)]
    result = mindspore_checker.check(call("Mint.div", *numbers))
    _assert_passes(result, Verdict.NONE)
    assert dtypes(result) == [("Float64", "Float32")]


def test_an_index_of_several_numbers_is_a_tuple_as_it_was_when_captured(
    mindspore_checker: Checker,
) -> None:
    result = mindspore_checker.check(
        call("Tensor.__getitem__", tensor(4, 5, 6), (0, 1), output=tensor(6))
    )
    _assert_passes(result, Verdict.NONE)
    assert shapes(result) == ["(6,)"]


def test_after_a_recording_that_raises_the_next_call_is_as_good_as_before(
    mindspore_checker: Checker,
) -> None:
    # MindSpore's CPU has no kernel for acos, which shows while it records for the gradient. Twice:
    # without an end, it is from the second one on that others suffer.
    for _ in range(2):
        first = mindspore_checker.check(call("Mint.acos", tensor(3), grads=[tensor(3)]))
        assert first.backward is Verdict.SKIP
    result = mindspore_checker.check(call("Functional.mv", tensor(3, 4), tensor(4)))
    _assert_passes(result, Verdict.NONE)


def test_a_mindspore_that_cannot_end_its_recording_is_given_up_with_its_process(
    mindspore_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = private_parts.find(private_parts.MINDSPORE_EXECUTOR)
    assert executor is not None
    run = importlib.import_module("ray_precheck.frameworks.mindspore.run")
    monkeypatch.setattr(run, "_left_open", [])
    monkeypatch.setattr(private_parts, "find", lambda part: None)
    try:
        result = mindspore_checker.check(call("Mint.acos", tensor(3), grads=[tensor(3)]))
    finally:
        executor.clear_res()
    assert mindspore_checker.damage() is Cause.POISONED
    assert result.message.endswith(
        "unusable afterwards: DeviceError: this MindSpore cannot end the recording for gradients of"
        " what raised"
    )


@pytest.mark.parametrize("name", ["Functional.svd", "Tensor.svd"])
def test_singular_vectors_are_right_with_either_sign(
    mindspore_checker: Checker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    payload = call(name, tensor(5, 3))
    _assert_passes(mindspore_checker.check(payload), Verdict.NONE)

    def turned(found: Any) -> Any:
        return found[0], -found[1], -found[2]

    replace_kernel(monkeypatch, mindspore_checker.device(), altered(turned))
    _assert_passes(mindspore_checker.check(payload), Verdict.NONE)
    replace_kernel(
        monkeypatch,
        mindspore_checker.device(),
        altered(lambda found: (found[0], -found[1], found[2])),
    )
    assert mindspore_checker.check(payload).forward is Verdict.ERROR
