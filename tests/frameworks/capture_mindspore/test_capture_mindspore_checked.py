"""Captures of MindSpore, prechecked in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from decoder import decoder_step
from records import capture_settings, failing, payloads_of

from ray_precheck.check.checker import Checker
from ray_precheck.schema.result import TaskResult, Verdict

Captured = Callable[..., dict[str, Any]]


def test_a_capture_of_statistics_passes_the_precheck_but_for_the_same_fault(
    captured: Captured, tmp_path: Path
) -> None:
    """The incoming gradients are generated with the strides that they had."""
    results = _checked(captured, tmp_path, "statistics")
    wrong = {check.name for check in failing(results)}
    assert wrong == {f"Mint.split.{number}.backward.output.0" for number in range(2)}
    assert [each for each in results if each.forward is not Verdict.PASS] == []
    backward = [result.backward for result in results]
    assert backward.count(Verdict.PASS) > 30
    assert Verdict.SKIP not in backward


def test_captured_tensors_pass_the_precheck_but_for_a_fault_of_mindspore(
    captured: Captured, tmp_path: Path
) -> None:
    """What is tested are the captured outputs and gradients. The backward pass of split reads a strided view
    as contiguous on the CPU of MindSpore 2.10, as test_check_captures shows of msprobe's capture."""
    results = _checked(captured, tmp_path, "tensor")
    wrong = {check.name for check in failing(results)}
    assert wrong <= {f"Mint.split.{number}.backward.output.0" for number in range(2)}
    assert [each for each in results if each.forward is not Verdict.PASS] == []


def _checked(captured: Captured, tmp_path: Path, task: str) -> list[TaskResult]:
    net, step = decoder_step(1, 16, 4)
    captured(step, model=net, task=task)
    (folder,) = tmp_path.glob("dump/step0/*")
    checker = Checker(capture_settings(str(folder)), "cpu")
    return [checker.check(payload) for payload in payloads_of(str(folder))]
