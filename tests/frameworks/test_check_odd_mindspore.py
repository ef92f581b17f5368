"""MindSpore calls of unusual form: views, empty, complex, sparse, fp8, of any length."""

import pytest
from records import Element, call, ms_tensor, shapes, symbol
from versions import require_kernel

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

PASS, NONE, SKIP = Verdict.PASS, Verdict.NONE, Verdict.SKIP


def ms_dtype(name: str) -> Element:
    return symbol("mindspore.dtype", name)


MS_MASK = ms_tensor(4, 5, dtype="Bool", low=False, high=True)
MS_COMPLEX = ms_tensor(3, dtype="Complex64")
MINDSPORE: dict[str, tuple[TaskPayload, list[str] | None]] = {
    "view": (
        call("Tensor.view", ms_tensor(4, 6), 8, 3, grads=[ms_tensor(8, 3)]),
        ["(4, 6)"],
    ),
    "broadcast_to": (
        call("Mint.broadcast_to", ms_tensor(4, 1), (4, 6), grads=[ms_tensor(4, 6)]),
        ["(4, 1)"],
    ),
    # It takes a tuple alone, which a dump has as a list.
    "permute": (
        call("Mint.permute", ms_tensor(4, 6, 2), (2, 0, 1), grads=[ms_tensor(2, 4, 6)]),
        ["(4, 6, 2)"],
    ),
    "contiguous": (
        call("Tensor.contiguous", ms_tensor(4, 6), grads=[ms_tensor(4, 6)]),
        ["(4, 6)"],
    ),
    "nonzero": (call("Mint.nonzero", MS_MASK), []),
    "masked_select": (
        call("Mint.masked_select", ms_tensor(4, 5), MS_MASK, grads=[ms_tensor(9)]),
        ["(4, 5)"],
    ),
    "a mask as index": (
        call("Tensor.__getitem__", ms_tensor(4, 5), MS_MASK, grads=[ms_tensor(9)]),
        ["(4, 5)"],
    ),
    "unique": (call("Functional.unique", ms_tensor(20, dtype="Int64", low=0, high=3)), []),
    "unique_consecutive": (
        call("Mint.unique_consecutive", ms_tensor(20, dtype="Int64", low=0, high=3)),
        [],
    ),
    "sections": (
        call("Mint.split", ms_tensor(10, 2), [3, 7], grads=[ms_tensor(3, 2), ms_tensor(7, 2)]),
        ["(10, 2)"],
    ),
    "empty": (
        call("Mint.add", ms_tensor(0, 3), ms_tensor(0, 3), grads=[ms_tensor(0, 3)]),
        ["(0, 3)", "(0, 3)"],
    ),
    "no rows": (call("Mint.matmul", ms_tensor(0, 3), ms_tensor(3, 4)), []),
    "complex": (call("Mint.exp", MS_COMPLEX, grads=[MS_COMPLEX]), ["(3,)"]),
    "complex to real": (call("Mint.abs", MS_COMPLEX, grads=[ms_tensor(3)]), ["(3,)"]),
}
NOTHING = ("empty", "no rows")


@pytest.mark.parametrize("case", MINDSPORE)
def test_a_call_of_an_odd_form_passes_in_mindspore(mindspore_checker: Checker, case: str) -> None:
    payload, gradients = MINDSPORE[case]
    result = mindspore_checker.check(payload)
    require_kernel(result)
    judged = SKIP if case in NOTHING else PASS
    expected = judged if payload.backward else NONE
    assert (result.forward, result.backward) == (judged, expected)
    assert ("no element to compare: the output is empty" in result.message) == (case in NOTHING)
    assert shapes(result, "backward") == gradients


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (call("Functional.dense_to_sparse_coo", ms_tensor(4, 6)), "sparse"),
        (call("Tensor.to_csr", ms_tensor(4, 6)), "sparse"),
        (
            call("Tensor.to", ms_tensor(4, 6), ms_dtype("Float8E5M2")),
            "the CPU has no kernel for it",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, TaskPayload) else "",
)
def test_what_mindspore_cannot_compare_is_skipped_with_the_reason(
    mindspore_checker: Checker, payload: TaskPayload, says: str
) -> None:
    result = mindspore_checker.check(payload)
    assert result.forward is SKIP
    assert says in result.message
