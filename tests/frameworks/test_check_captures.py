"""Every shipped capture through the checker, in this process: what a user's first run shows."""

import json
from typing import Any

import numpy as np
import pytest
from records import DATA, capture_settings, failing, payloads_of
from versions import is_documented

from ray_precheck.accuracy.standards.base import ROUNDING
from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import Outcome, TaskResult, Verdict

pytestmark = pytest.mark.frameworks

MINDSPORE = ["mindspore_llm", "mindspore_llm_fp16", "mindspore_llm_tensor"]
TORCH = ["torch_llm", "torch_llm_bf16", "torch_cnn", "torch_llm_tensor"]
FLOAT32 = ("Float32", "torch.float32")
WRONG_GRADIENTS = "mindspore_llm_tensor"


@pytest.fixture(scope="module")
def results(mindspore_checker: Checker) -> dict[str, list[TaskResult]]:
    return {capture: _check_capture(capture) for capture in (*MINDSPORE, *TORCH)}


def _check_capture(capture: str) -> list[TaskResult]:
    checker = Checker(capture_settings(capture), "cpu")
    return [checker.check(payload) for payload in payloads_of(capture)]


def _skipped(results: list[TaskResult]) -> list[str]:
    return [f"{r.name}: {r.message}" for r in results if Verdict.SKIP in (r.forward, r.backward)]


@pytest.mark.parametrize("capture", [*MINDSPORE, *TORCH])
def test_every_call_of_a_capture_gets_one_result(
    results: dict[str, list[TaskResult]], capture: str
) -> None:
    names = [payload.name for payload in payloads_of(capture)]
    assert len(names) >= 22
    assert [result.name for result in results[capture]] == names
    assert [result.index for result in results[capture]] == list(range(len(names)))


@pytest.mark.parametrize("capture", MINDSPORE)
def test_no_call_of_a_mindspore_capture_is_skipped(
    results: dict[str, list[TaskResult]], capture: str
) -> None:
    skipped = _skipped(results[capture])
    if not is_documented("mindspore"):
        # Another version lacks a few kernels, and nothing else is a reason there.
        assert [each for each in skipped if "the CPU has no kernel for it" not in each] == []
        assert len(skipped) <= 0.1 * len(results[capture]), skipped
    else:
        assert skipped == []


@pytest.mark.parametrize("capture", TORCH)
def test_at_most_3_percent_of_a_torch_capture_are_skipped(
    results: dict[str, list[TaskResult]], capture: str
) -> None:
    skipped = _skipped(results[capture])
    assert len(skipped) <= 0.03 * len(results[capture]), skipped


@pytest.mark.parametrize("capture", [*MINDSPORE, *TORCH])
def test_a_backward_cell_is_filled_where_the_capture_has_a_backward_record(
    results: dict[str, list[TaskResult]], capture: str
) -> None:
    filled = [result.backward is not Verdict.NONE for result in results[capture]]
    assert filled == [payload.backward is not None for payload in payloads_of(capture)]


@pytest.mark.parametrize("capture", [*MINDSPORE, *TORCH])
def test_nothing_of_a_capture_raises_on_the_cpu(
    results: dict[str, list[TaskResult]], capture: str
) -> None:
    assert [r.message for r in results[capture] if r.outcome is Outcome.RAISED] == []


@pytest.mark.parametrize("capture", [c for c in (*MINDSPORE, *TORCH) if c != WRONG_GRADIENTS])
def test_every_float32_error_of_a_capture_is_explained_by_rounding(
    results: dict[str, list[TaskResult]], capture: str
) -> None:
    errors = [check for check in failing(results[capture]) if check.tested_dtype in FLOAT32]
    assert [check.message for check in errors if ROUNDING not in check.message] == []


def test_the_only_unexplained_errors_are_the_captured_gradients_of_mint_split(
    results: dict[str, list[TaskResult]],
) -> None:
    errors = list(failing(results[WRONG_GRADIENTS]))
    assert [check.name for check in errors] == [
        f"Mint.split.{number}.backward.output.0" for number in range(4)
    ]
    assert all("cosine" in check.message and ROUNDING not in check.message for check in errors)


@pytest.mark.parametrize("number", range(4))
def test_the_captured_gradient_of_mint_split_is_not_its_incoming_gradients_joined(
    number: int,
) -> None:
    """The finding is real: MindSpore 2.10's CPU backward read a strided view as contiguous."""
    records = json.loads((DATA / WRONG_GRADIENTS / "dump.json").read_text())["data"]
    forward = records[f"Mint.split.{number}.forward"]
    backward = records[f"Mint.split.{number}.backward"]
    assert forward["input_kwargs"]["dim"]["value"] == -1
    joined = np.concatenate([_load(spec) for spec in backward["input"]], axis=-1)
    captured = _load(backward["output"][0])
    assert captured.shape == joined.shape
    # Of a right gradient every element is the same, for it is only copied.
    assert np.mean(captured == joined) < 0.6
    assert np.abs(captured - joined).max() > 0.5 * np.abs(joined).max()


def _load(spec: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.load(DATA / WRONG_GRADIENTS / "dump_tensor_data" / spec["data_name"])
