"""Gradients that torch does not have: the others are compared, and the row says so."""

import pytest
from records import call, rows, statistics_checker, tensor

from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

PASS, SKIP = Verdict.PASS, Verdict.SKIP
CLASSES = tensor(4, dtype="int64", low=0, high=4)
SCORES, WEIGHT = tensor(4, 5, grad=True), tensor(5, low=0.1, grad=True)
CHANCE = tensor(4, 5, low=0.1, high=0.9, grad=True)
POSITIVE = tensor(4, low=0.5, high=2.0, grad=True)
NUMBER = [tensor()]
# The gradients that are compared, in their order.
CASES: dict[str, tuple[TaskPayload, list[bool]]] = {
    "nll_loss": (
        call("Functional.nll_loss", SCORES, CLASSES, WEIGHT, grads=NUMBER),
        [True, False],
    ),
    "cross_entropy": (
        call("Functional.cross_entropy", SCORES, CLASSES, weight=WEIGHT, grads=NUMBER),
        [True, False],
    ),
    "binary_cross_entropy": (
        call("Functional.binary_cross_entropy", CHANCE, CHANCE, WEIGHT, grads=NUMBER),
        [True, True, False],
    ),
    "multi_margin_loss": (
        call("Functional.multi_margin_loss", SCORES, CLASSES, weight=WEIGHT, grads=NUMBER),
        [True, False],
    ),
    "batch_norm": (
        call("Functional.batch_norm", SCORES, WEIGHT, WEIGHT, grads=[tensor(4, 5)]),
        [True, False, False],
    ),
    "igamma": (
        call("Torch.igamma", POSITIVE, POSITIVE, grads=[tensor(4)]),  # it raises backward
        [False, True],
    ),
    "only one, and not by that": (
        call("Functional.nll_loss", tensor(4, 5), CLASSES, WEIGHT, grads=NUMBER),
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_gradients_that_torch_has_are_compared(case: str) -> None:
    payload, compared = CASES[case]
    result = statistics_checker("pytorch").check(payload)
    assert (result.forward, result.backward) == (PASS, PASS if compared else SKIP), result.message
    found = rows(result, "backward")
    assert [check.verdict is PASS for check in found] == compared
    for check in found:
        if check.verdict is SKIP:
            assert check.message.startswith(
                "not compared: torch has no derivative by this argument"
            )
