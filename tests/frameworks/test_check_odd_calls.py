"""Calls of unusual form: views, out=, in place, sparse, quantized, complex, empty."""

from typing import Any

import pytest
from records import (
    Element,
    altered,
    assert_passes,
    call,
    leaf,
    null,
    replace_kernel,
    shapes,
    size,
    tensor,
    torch_dtype,
    whole,
)

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = [
    pytest.mark.frameworks,
    # Said once for each process that makes a sparse tensor of its parts.
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]

PASS, NONE, SKIP, ERROR = Verdict.PASS, Verdict.NONE, Verdict.SKIP, Verdict.ERROR
COMPLEX = "complex64"


COMPLEX_SQUARE = [leaf(3, 4, dtype=COMPLEX), leaf(4, 2, dtype=COMPLEX)]
# The shapes of the outputs and of the gradients.
CASES: dict[str, tuple[TaskPayload, list[str], list[str]]] = {
    "view": (call("Tensor.view", leaf(4, 6), 8, 3, grads=[tensor(8, 3)]), ["(8, 3)"], ["(4, 6)"]),
    "view_as": (
        call("Tensor.view_as", leaf(4, 6), tensor(8, 3), grads=[tensor(8, 3)]),
        ["(8, 3)"],
        ["(4, 6)"],
    ),
    "expand": (
        call("Tensor.expand", leaf(4, 1), -1, 6, grads=[tensor(4, 6)]),
        ["(4, 6)"],
        ["(4, 1)"],
    ),
    "expand_as": (
        call("Tensor.expand_as", leaf(4, 1), tensor(4, 6), grads=[tensor(4, 6)]),
        ["(4, 6)"],
        ["(4, 1)"],
    ),
    "detach": (call("Tensor.detach", leaf(4, 1)), ["(4, 1)"], []),
    "detach in place": (call("Tensor.detach_", tensor(4)), ["(4,)"], []),
    "contiguous": (call("Tensor.contiguous", leaf(4), grads=[tensor(4)]), ["(4,)"], ["(4,)"]),
    "to the same": (
        call("Tensor.to", leaf(4), torch_dtype("float32"), grads=[tensor(4)]),
        ["(4,)"],
        ["(4,)"],
    ),
    "clone": (call("Tensor.clone", leaf(4), grads=[tensor(4)]), ["(4,)"], ["(4,)"]),
    "transpose": (
        call("Tensor.transpose", leaf(4, 2, 3), 0, 1, grads=[tensor(2, 4, 3)]),
        ["(2, 4, 3)"],
        ["(4, 2, 3)"],
    ),
    "permute": (
        call("Tensor.permute", leaf(4, 2, 3), (2, 0, 1), grads=[tensor(3, 4, 2)]),
        ["(3, 4, 2)"],
        ["(4, 2, 3)"],
    ),
    "as_strided": (
        call("Torch.as_strided", leaf(8), size(2, 3), size(1, 2), grads=[tensor(2, 3)]),
        ["(2, 3)"],
        ["(8,)"],
    ),
    "unfold": (call("Tensor.unfold", leaf(8), 0, 3, 1, grads=[tensor(6, 3)]), ["(6, 3)"], ["(8,)"]),
    "unbind": (
        call("Tensor.unbind", leaf(2, 3), grads=[tensor(3)] * 2),
        ["(3,)", "(3,)"],
        ["(2, 3)"],
    ),
    "out": (call("Torch.add", tensor(3), tensor(3), out=tensor(3)), ["(3,)"], []),
    "out that is resized": (call("Torch.add", tensor(3), tensor(3), out=tensor(0)), ["(3,)"], []),
    "out that rounds": (
        call("Torch.add", tensor(3), tensor(3), out=tensor(3, dtype="float16")),
        ["(3,)"],
        [],
    ),
    "two outs": (
        call("Torch.max", tensor(3, 4), 1, out=[tensor(3), whole(3)]),
        ["(3,)", "(3,)"],
        [],
    ),
    "out without an input": (call("Torch.arange", 5, out=tensor(5)), ["(5,)"], []),
    "to sparse": (
        call("Tensor.to_sparse", leaf(4, 6), grads=[tensor(4, 6)]),
        ["(4, 6)"],
        ["(4, 6)"],
    ),
    "to sparse of zeros": (
        call("Tensor.to_sparse", tensor(4, 6, low=0.0, high=0.0)),
        ["(4, 6)"],
        [],
    ),
    "sparse from parts": (
        call("Torch.sparse_coo_tensor", whole(2, 5), leaf(5), size(4, 4), grads=[tensor(4, 4)]),
        ["(4, 4)"],
        ["(5,)"],
    ),
    "a dense input of to_dense": (
        call("Tensor.to_dense", leaf(4, 6), grads=[tensor(4, 6)]),
        ["(4, 6)"],
        ["(4, 6)"],
    ),
    "a sparse gradient": (
        call("Functional.embedding", whole(5), leaf(4, 3), sparse=True, grads=[tensor(5, 3)]),
        ["(5, 3)"],
        ["(4, 3)"],
    ),
    "fake quantized": (
        call(
            "Torch.fake_quantize_per_tensor_affine",
            leaf(4, 6),
            *(0.1, 0, -128, 127),
            grads=[tensor(4, 6)],
        ),
        ["(4, 6)"],
        ["(4, 6)"],
    ),
    "complex matmul": (
        call("Torch.matmul", *COMPLEX_SQUARE, grads=[tensor(3, 2, dtype=COMPLEX)]),
        ["(3, 2)"],
        ["(3, 4)", "(4, 2)"],
    ),
    "complex to real": (
        call("Torch.abs", leaf(3, dtype=COMPLEX), grads=[tensor(3)]),
        ["(3,)"],
        ["(3,)"],
    ),
    "real to complex": (
        call("Torch.fft.rfft", leaf(8), grads=[tensor(5, dtype=COMPLEX)]),
        ["(5,)"],
        ["(8,)"],
    ),
    "complex of two": (
        call("Torch.complex", leaf(3), leaf(3), grads=[tensor(3, dtype=COMPLEX)]),
        ["(3,)"],
        ["(3,)", "(3,)"],
    ),
    "a view of complex": (
        call("Torch.view_as_real", leaf(3, dtype=COMPLEX), grads=[tensor(3, 2)]),
        ["(3, 2)"],
        ["(3,)"],
    ),
    "a lazy conjugate": (
        call("Tensor.conj", leaf(3, dtype=COMPLEX), grads=[tensor(3, dtype=COMPLEX)]),
        ["(3,)"],
        ["(3,)"],
    ),
    "a complex number": (
        call("Tensor.mul", leaf(3, dtype=COMPLEX), 2j, grads=[tensor(3, dtype=COMPLEX)]),
        ["(3,)"],
        ["(3,)"],
    ),
    "cat with nothing": (
        call("Torch.cat", [leaf(0, 3), leaf(2, 3)], grads=[tensor(2, 3)]),
        ["(2, 3)"],
        ["(0, 3)", "(2, 3)"],
    ),
    "no rows": (
        call("Torch.matmul", leaf(0, 3), leaf(3, 4), grads=[tensor(0, 4)]),
        ["(0, 4)"],
        ["(0, 3)", "(3, 4)"],
    ),
    "no terms": (
        call("Torch.matmul", leaf(2, 0), leaf(0, 4), grads=[tensor(2, 4)]),
        ["(2, 4)"],
        ["(2, 0)", "(0, 4)"],
    ),
    "softmax of nothing": (
        call("Functional.softmax", leaf(0, 4), -1, grads=[tensor(0, 4)]),
        ["(0, 4)"],
        ["(0, 4)"],
    ),
    "layer_norm of nothing": (
        call("Functional.layer_norm", leaf(0, 4), size(4), leaf(4), grads=[tensor(0, 4)]),
        ["(0, 4)"],
        ["(0, 4)", "(4,)"],
    ),
    "mean of nothing": (call("Torch.mean", leaf(0), grads=[tensor()]), ["()"], ["(0,)"]),
    "an empty slice": (
        call("Tensor.__getitem__", leaf(4, 3), slice(0, 0), grads=[tensor(0, 3)]),
        ["(0, 3)"],
        ["(4, 3)"],
    ),
    "sections": (
        call("Torch.split", leaf(10, 2), [3, 0, 7], grads=[tensor(3, 2), None, tensor(7, 2)]),
        ["(3, 2)", "(0, 2)", "(7, 2)"],
        ["(10, 2)"],
    ),
    "unequal parts": (
        call("Torch.tensor_split", leaf(7), 3, grads=[tensor(3), tensor(2), tensor(2)]),
        ["(3,)", "(2,)", "(2,)"],
        ["(7,)"],
    ),
    "none selected": (
        call(
            "Torch.masked_select",
            leaf(4, 5),
            tensor(4, 5, dtype="bool", low=False, high=False),
            grads=[tensor(0)],
        ),
        ["(0,)"],
        ["(4, 5)"],
    ),
    "nonzero of nothing": (call("Torch.nonzero", tensor(0, 2)), ["(0, 2)"], []),
}
# Where no element could be compared: forward and backward.
NOTHING = {
    "no rows": (SKIP, PASS),  # the gradient of (3, 4) is all zeros
    "no terms": (PASS, SKIP),
    "softmax of nothing": (SKIP, SKIP),
    "layer_norm of nothing": (SKIP, PASS),
    "mean of nothing": (SKIP, SKIP),
    "an empty slice": (SKIP, PASS),
    "none selected": (SKIP, PASS),
    "nonzero of nothing": (SKIP, NONE),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_of_an_odd_form_passes(torch_checker: Checker, case: str) -> None:
    payload, outputs, gradients = CASES[case]
    result = torch_checker.check(payload)
    if case in NOTHING:
        assert (result.forward, result.backward) == NOTHING[case]
        assert "no element to compare: " in result.message
    else:
        assert_passes(result, payload)
    assert (shapes(result), shapes(result, "backward")) == (outputs, gradients)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (call("Tensor.view", tensor(4, 6), torch_dtype("int32")), "reads the bits of its input"),
        (call("Tensor.dequantize", null(4, 6, dtype="quint8")), "no scale and zero point"),
        (
            call("Torch.mm", Element(tensor(4, 6), layout="torch.sparse_csr"), tensor(6, 2)),
            "has the layout 'torch.sparse_csr', of which the dump has no indices",
        ),
        (call("Tensor.coalesce", tensor(4, 6)), "a sparse, quantized or nested tensor"),
        (call("Tensor.values", tensor(4, 6)), "a sparse, quantized or nested tensor"),
        (
            call("Torch.sparse.mm", tensor(4, 6), tensor(6, 2)),
            "a sparse, quantized or nested tensor",
        ),
        (call("Torch.add", tensor(3, dtype="complex32"), 1), "complex32' is not supported"),
        (
            call("Tensor.to", tensor(4), torch_dtype("float8_e8m0fnu")),
            "dtype 'torch.float8_e8m0fnu' is not supported",
        ),
        (call("Tensor.mul", null(4, dtype="float8_e5m2"), 2.0), "the CPU has no kernel for it"),
        (call("Torch.max", tensor(0, 4)), "device and bench raised"),
    ],
    ids=lambda value: value.name if isinstance(value, TaskPayload) else "",
)
def test_what_cannot_be_compared_is_skipped_with_the_reason(
    torch_checker: Checker, payload: TaskPayload, says: str
) -> None:
    result = torch_checker.check(payload)
    assert result.forward is SKIP
    assert says in result.message


def test_an_out_that_autograd_refuses_has_no_backward_verdict(torch_checker: Checker) -> None:
    payload = call("Torch.add", leaf(3), leaf(3), out=tensor(3), grads=[tensor(3)])
    result = torch_checker.check(payload)
    assert (result.forward, result.backward) == (PASS, SKIP)
    assert "out=... arguments don't support automatic differentiation" in result.message


def test_an_out_is_compared_where_nothing_is_returned(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As foreach and fused kernels of accelerators do: they write and return nothing."""
    payload = CASES["out"][0]
    replace_kernel(monkeypatch, torch_checker.device(), altered(lambda _: None))
    assert_passes(torch_checker.check(payload), payload)


def test_a_wrong_out_is_found(torch_checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, torch_checker.device(), altered(lambda out: out.add_(0.1)))
    assert torch_checker.check(CASES["two outs"][0]).forward is ERROR


def test_in_place_on_what_was_expanded_runs_on_a_tensor_of_its_shape(
    torch_checker: Checker,
) -> None:
    """A dump has the shape of an expanded input and not its strides; torch would refuse it."""
    import torch

    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.zeros(4, 1).expand(4, 6).add_(torch.ones(4, 6))
    payload = call("Tensor.add_", leaf(4, 6), tensor(4, 6), grads=[tensor(4, 6)])
    result = torch_checker.check(payload)
    assert_passes(result, payload)
    assert shapes(result) == ["(4, 6)"]


def test_both_sides_that_refuse_in_place_are_a_skip(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_expanded(function: Any) -> Any:
        return lambda x, y: function(x[:, :1].expand(4, 6), y)

    for side in (torch_checker.device(), torch_checker.bench):
        replace_kernel(monkeypatch, side, on_expanded)
    result = torch_checker.check(call("Tensor.add_", tensor(4, 6), tensor(4, 6)))
    assert result.forward is SKIP
    assert "more than one element of the written-to tensor" in result.message
