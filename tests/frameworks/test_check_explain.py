"""What an error's message says of rounding: where it is the cause, and where it is not."""

from typing import Any

import pytest
import torch
from records import (
    Checker,
    altered,
    call,
    capture_settings,
    ms_tensor,
    payload_of,
    replace_kernel,
    rows,
    tensor,
)

from ray_precheck.accuracy.standards.base import ROUNDING
from ray_precheck.check.options import CheckOptions
from ray_precheck.schema.result import OutputCheck, TaskResult, Verdict
from ray_precheck.schema.task import TaskPayload

pytestmark = pytest.mark.frameworks

NEARLY_CONSTANT = tensor(8, low=1.0, high=1.0000005, grad=True)
STD = call("Tensor.std", NEARLY_CONSTANT, grads=[tensor(low=0.5, high=1.0)])
CONV = call(
    "Functional.conv2d",
    tensor(4, 3, 16, 16, low=-4.0, high=4.0),
    tensor(16, 3, 3, 3, grad=True),
    grads=[tensor(4, 16, 14, 14, low=-9.0, high=9.0)],
)
SUM = call("Torch.sum", tensor(4096, low=1000.0, high=2000.0))
MATMUL = call("Torch.matmul", tensor(8, 8, low=-30.0, high=30.0), tensor(8, 8))


def _only_row(result: TaskResult, direction: str) -> OutputCheck:
    (row,) = rows(result, direction)
    return row


def _off_by(error: float) -> Any:
    return altered(lambda out: out + error)


def test_the_weight_gradient_of_a_convolution_is_explained_by_its_terms(
    torch_checker: Checker,
) -> None:
    row = _only_row(torch_checker.check(CONV), "backward")
    assert row.verdict is Verdict.ERROR
    assert f"{ROUNDING} the magnitudes of the summed terms add up to" in row.message


def test_the_captured_convolution_is_explained_by_its_terms() -> None:
    # Uniform gradients are much larger than the recorded ones, whose errors pass.
    checker = Checker(
        capture_settings("torch_cnn", options=CheckOptions(distribution="uniform")), "cpu"
    )
    result = checker.check(payload_of("torch_cnn", "Functional.conv2d.0"))
    assert result.backward is Verdict.ERROR
    assert result.message.count("the magnitudes of the summed terms") == 2


def test_the_gradient_of_std_of_nearly_constant_input_is_ill_conditioned(
    torch_checker: Checker,
) -> None:
    row = _only_row(torch_checker.check(STD), "backward")
    assert row.verdict is Verdict.ERROR
    assert f"{ROUNDING} ill-conditioned: moving the inputs by half a unit" in row.message


def test_an_explanation_never_changes_a_verdict(torch_checker: Checker) -> None:
    for payload in (CONV, STD):
        result = torch_checker.check(payload)
        assert ROUNDING in result.message
        assert (result.forward, result.backward) == (Verdict.PASS, Verdict.ERROR)


def test_a_large_output_is_explained_by_its_last_place(torch_checker: Checker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        replace_kernel(patch, torch_checker.device(), _off_by(1.0))
        row = _only_row(torch_checker.check(SUM), "forward")
    assert row.verdict is Verdict.ERROR
    assert f"{ROUNDING} one unit in the last place of float32 at" in row.message


@pytest.mark.parametrize(
    "payload",
    [
        call("Torch.mul", tensor(8), tensor(8)),
        call("Torch.exp", tensor(8)),
        call("Torch.softmax", tensor(8, 8), dim=1),
        MATMUL,
        call("Functional.conv2d", tensor(1, 3, 8, 8), tensor(4, 3, 3, 3)),
        call("Functional.layer_norm", tensor(8, 8), (8,)),
        call("Torch.mean", tensor(8)),
    ],
    ids=lambda payload: payload.name,
)
@pytest.mark.parametrize("error", [1e-2, 3e-3])
def test_an_error_that_rounding_does_not_explain_has_no_such_sentence(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch, payload: TaskPayload, error: float
) -> None:
    _assert_not_explained(monkeypatch, torch_checker, payload, error)


def test_an_error_of_mindspore_that_rounding_does_not_explain_has_no_such_sentence(
    mindspore_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = call("Mint.matmul", ms_tensor(8, 8), ms_tensor(8, 8))
    _assert_not_explained(monkeypatch, mindspore_checker, payload, 1e-2)


def _assert_not_explained(
    monkeypatch: pytest.MonkeyPatch, checker: Checker, payload: TaskPayload, error: float
) -> None:
    replace_kernel(monkeypatch, checker.device(), _off_by(error))
    row = _only_row(checker.check(payload), "forward")
    assert row.verdict is Verdict.ERROR
    assert ROUNDING not in row.message


def test_a_wrong_gradient_of_a_convolution_is_not_explained(
    torch_checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(_: Any, *incoming: torch.Tensor) -> torch.Tensor:
            return incoming[0] * 1.001

    replace_kernel(monkeypatch, torch_checker.device(), altered(Scaled.apply))
    row = _only_row(torch_checker.check(CONV), "backward")
    assert row.verdict is Verdict.ERROR
    assert ROUNDING not in row.message


def test_a_nan_is_never_explained(torch_checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_kernel(monkeypatch, torch_checker.device(), _off_by(float("nan")))
    for payload in (MATMUL, SUM, CONV):
        row = _only_row(torch_checker.check(payload), "forward")
        assert row.verdict is Verdict.ERROR
        assert ROUNDING not in row.message
