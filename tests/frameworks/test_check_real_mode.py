"""Real mode: the tensors of the capture are the inputs, and what the capture computed is tested."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import DATA, altered, capture_settings, payload_of, payloads_of, replace_kernel, rows
from versions import is_documented

from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.dump.tensors import CapturedTensors
from ray_precheck.errors import BackendMissingError
from ray_precheck.schema.result import TaskResult, Verdict
from ray_precheck.schema.values import HostTensor, TensorSpec

pytestmark = pytest.mark.frameworks

CAPTURES = ["torch_llm_tensor", "mindspore_llm_tensor"]
NO_LAYOUT = (
    "layout not exercised: the dump does not say it, and the inputs were contiguous; see --layouts"
)
NO_GRADIENTS = "Mint.cat.1"
SPLITS = [f"Mint.split.{number}" for number in range(4)]


def _refuse(*_: Any) -> Any:
    raise BackendMissingError("the device is not to be opened")


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray_precheck.check.device.open_backend", _refuse)


def _checker(capture: str, **options: Any) -> Checker:
    return Checker(capture_settings(capture, **options), "cpu")


def _check_all(capture: str, **options: Any) -> dict[str, TaskResult]:
    checker = _checker(capture, **options)
    return {payload.name: checker.check(payload) for payload in payloads_of(capture)}


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize("capture", CAPTURES)
def test_captured_results_are_tested_without_the_device(capture: str) -> None:
    results = _check_all(capture, options=CheckOptions(tested="dump"))
    verdicts = {(r.forward, r.backward) for name, r in results.items() if name != NO_GRADIENTS}
    assert {forward for forward, _ in verdicts} == {Verdict.PASS}
    assert Verdict.SKIP not in {backward for _, backward in verdicts}
    gradients = [row for result in results.values() for row in rows(result, "backward")]
    assert len(gradients) >= 12


@pytest.mark.usefixtures("mindspore_checker")
@pytest.mark.parametrize("capture", CAPTURES)
def test_captured_results_are_the_same_with_and_without_the_device(
    capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_device = _check_all(capture)
    monkeypatch.setattr("ray_precheck.check.device.open_backend", _refuse)
    without = _check_all(capture)
    assert set(without) == set(with_device)
    assert len(without) >= 22
    for name, result in without.items():
        if name != NO_GRADIENTS:
            assert result.checks == with_device[name].checks
            assert result.checks


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_device_itself_can_be_tested_with_the_captured_inputs(
    mindspore_checker: Checker, capture: str
) -> None:
    results = _check_all(capture, tests_dump=False)
    assert len(results) >= 22
    for name, result in results.items():
        if not is_documented("mindspore") and "the CPU has no kernel for it" in result.message:
            continue
        assert result.forward is Verdict.PASS, name
        # msprobe's dumps do not tell how tensors lay in memory.
        assert not result.message.removeprefix(NO_LAYOUT), name
        assert result.backward in (Verdict.PASS, Verdict.NONE)


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_wrong_device_is_found_only_where_it_is_tested(
    mindspore_checker: Checker, capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"torch_llm_tensor": "Tensor.cos.0", "mindspore_llm_tensor": "Mint.cos.0"}[capture]
    verdicts = []
    for tests_dump in (False, True):
        checker = _checker(capture, tests_dump=tests_dump)
        replace_kernel(monkeypatch, checker.device(), altered(lambda out: out + 1.0))
        verdicts.append(checker.check(payload_of(capture, name)).forward)
    assert verdicts == [Verdict.ERROR, Verdict.PASS]


@pytest.fixture
def copies(tmp_path: Path) -> dict[str, Path]:
    """Copies of the captured tensors that a test may change."""
    return {
        capture: shutil.copytree(DATA / capture / "dump_tensor_data", tmp_path / capture)
        for capture in CAPTURES
    }


def _corrupt(file: Path, index: tuple[int, ...]) -> None:
    if file.suffix == ".npy":
        data = np.load(file)
        data[index] += 0.25
        np.save(file, data)
    else:
        value = torch.load(file, weights_only=True).detach().clone()
        value[index] += 0.25
        torch.save(value, file)


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize(
    ("capture", "name", "file", "index", "direction"),
    [
        ("mindspore_llm_tensor", "Mint.cos.0", "forward.output.0.npy", (3, 5), "forward"),
        (
            "mindspore_llm_tensor",
            "Mint.matmul.1",
            "backward.output.1.npy",
            (0, 1, 2, 3),
            "backward",
        ),
        ("torch_llm_tensor", "Tensor.sin.0", "forward.output.0.pt", (3, 2), "forward"),
        ("torch_llm_tensor", "Functional.silu.0", "backward.output.0.pt", (0, 3, 5), "backward"),
    ],
)
def test_a_captured_file_that_was_changed_is_an_error_at_that_place(
    copies: dict[str, Path],
    capture: str,
    name: str,
    file: str,
    index: tuple[int, ...],
    direction: str,
) -> None:
    _corrupt(copies[capture] / f"{name}.{file}", index)
    checker = _checker(capture, data_folder=copies[capture])
    result = checker.check(payload_of(capture, name))
    verdicts = {"forward": result.forward, "backward": result.backward}
    assert verdicts.pop(direction) is Verdict.ERROR
    assert Verdict.ERROR not in verdicts.values()
    number = file.split(".")[2]
    assert f"{direction}.output.{number}: " in result.message
    assert f"at index {list(index)} is not below" in result.message


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize(
    ("capture", "name", "file", "verdicts"),
    [
        ("mindspore_llm_tensor", "Mint.cos.0", "forward.input.0.npy", ("SKIP", "")),
        ("mindspore_llm_tensor", "Mint.cos.0", "forward.output.0.npy", ("SKIP", "")),
        ("mindspore_llm_tensor", "Mint.log.0", "backward.input.0.npy", ("pass", "SKIP")),
        ("mindspore_llm_tensor", "Mint.log.0", "backward.output.0.npy", ("pass", "SKIP")),
        ("torch_llm_tensor", "Tensor.pow.0", "forward.input.0.pt", ("SKIP", "SKIP")),
        ("torch_llm_tensor", "Tensor.pow.0", "backward.output.0.pt", ("pass", "SKIP")),
    ],
)
def test_a_captured_file_that_is_missing_is_a_skip_that_names_it(
    copies: dict[str, Path], capture: str, name: str, file: str, verdicts: tuple[str, str]
) -> None:
    missing = copies[capture] / f"{name}.{file}"
    missing.unlink()
    result = _checker(capture, data_folder=copies[capture]).check(payload_of(capture, name))
    assert (result.forward.value, result.backward.value) == verdicts
    assert f"no file {missing.name!r}" in result.message
    assert "ray_precheck failed" not in result.message


def test_gradients_that_were_not_captured_are_tested_on_this_machine_and_it_is_said(
    mindspore_checker: Checker,
) -> None:
    result = _checker("mindspore_llm_tensor").check(
        payload_of("mindspore_llm_tensor", NO_GRADIENTS)
    )
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.PASS)
    assert len(rows(result, "backward")) == 2
    assert result.message == (
        "the dump holds no gradients of this call, so this machine's cpu was tested"
    )


@pytest.mark.usefixtures("no_device")
def test_gradients_that_were_not_captured_are_skipped_where_only_the_dump_is_tested() -> None:
    checker = _checker("mindspore_llm_tensor", options=CheckOptions(tested="dump"))
    result = checker.check(payload_of("mindspore_llm_tensor", NO_GRADIENTS))
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.SKIP)
    assert result.message == (
        "the dump holds no gradients of this call; --tested device checks them"
    )


@pytest.mark.usefixtures("no_device")
def test_a_stand_in_that_is_not_installed_leaves_the_captured_forward_check() -> None:
    checker = _checker("mindspore_llm_tensor")
    result = checker.check(payload_of("mindspore_llm_tensor", NO_GRADIENTS))
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.SKIP)
    assert "the device is not to be opened" in result.message
    assert "ray_precheck failed" not in result.message


@pytest.mark.usefixtures("no_device")
def test_outputs_that_were_not_captured_are_skipped_where_only_the_dump_is_tested() -> None:
    payload = payload_of("mindspore_llm_tensor", "Mint.cos.0")
    forward = payload.forward or b""
    cut = forward[: forward.index(b'"output"')] + b'"output": []}'
    checker = _checker("mindspore_llm_tensor", options=CheckOptions(tested="dump"))
    result = checker.check(replace(payload, forward=cut))
    assert result.forward is Verdict.SKIP
    assert "the dump holds no outputs of this call; --tested device checks them" in result.message


@pytest.mark.usefixtures("no_device")
def test_wrong_captured_gradients_of_mint_split_are_found() -> None:
    results = _check_all("mindspore_llm_tensor", options=CheckOptions(tested="dump"))
    found = [name for name, result in results.items() if result.backward is Verdict.ERROR]
    assert found == SPLITS


def test_a_captured_output_is_read_once_for_both_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str] = []
    read = CapturedTensors.tensor

    def counted(source: CapturedTensors, spec: TensorSpec, path: str) -> HostTensor:
        reads.append(path)
        return read(source, spec, path)

    monkeypatch.setattr(CapturedTensors, "tensor", counted)
    checker = Checker(capture_settings("torch_llm_tensor"), "cpu")
    result = checker.check(payload_of("torch_llm_tensor", "Functional.linear.0"))
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.PASS)
    assert reads.count("output.0") == 1
