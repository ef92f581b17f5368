"""What `-save_error_data` leaves of a failing call, and that `rerun` gives the same numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import (
    altered,
    call,
    capture_settings,
    payload_of,
    replace_kernel,
    rows,
    statistics_checker,
    tensor,
    timeless,
)

import ray_precheck
from ray_precheck.check.checker import Checker
from ray_precheck.check.options import CheckOptions
from ray_precheck.frameworks.pytorch.backend import TorchBackend
from ray_precheck.schema.result import Verdict

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("mindspore_checker")]


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@pytest.mark.parametrize(
    ("capture", "name", "directions"),
    [
        ("torch_cnn", "Functional.conv2d.0", {"backward"}),
        ("torch_llm_bf16", "Tensor.__mul__.3", {"backward"}),
        ("torch_llm_bf16", "Functional.scaled_dot_product_attention.0", {"forward"}),
        ("torch_llm_bf16", "Functional.linear.14", {"forward"}),
        ("mindspore_llm_fp16", "Mint.matmul.0", {"forward"}),
        ("mindspore_llm_fp16", "MintFunctional.silu.0", {"forward"}),
    ],
)
def test_a_rerun_of_a_failing_call_gives_the_same_numbers(
    tmp_path: Path, capture: str, name: str, directions: set[str]
) -> None:
    checker = Checker(
        capture_settings(
            capture, error_folder=tmp_path, options=CheckOptions(distribution="uniform")
        ),
        "cpu",
    )
    result = checker.check(payload_of(capture, name))
    assert {d for d in ("forward", "backward") if getattr(result, d) is Verdict.ERROR} == directions
    again = ray_precheck.rerun(tmp_path / f"{name}.json")
    assert timeless(again) == timeless(result)
    assert rows(again, "forward")
    assert rows(again, "backward")


def test_the_files_of_a_failing_call_are_named_by_direction_side_and_number(
    tmp_path: Path,
) -> None:
    checker = Checker(
        capture_settings(
            "torch_cnn", error_folder=tmp_path, options=CheckOptions(distribution="uniform")
        ),
        "cpu",
    )
    result = checker.check(payload_of("torch_cnn", "Functional.conv2d.0"))
    name = "Functional.conv2d.0"
    inputs = {f"{name}.forward.input.{i}.npy" for i in range(3)}
    gradients = {
        f"{name}.backward.output.{side}.{i}.npy" for side in ("device", "bench") for i in (0, 1)
    }
    assert [check.verdict for check in rows(result, "backward")] == [Verdict.ERROR] * 2
    assert _files(tmp_path) == {
        *inputs,
        f"{name}.backward.input.0.npy",
        *gradients,
        f"{name}.json",
    }


def test_only_the_failing_outputs_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(
        monkeypatch, checker.device(), altered(lambda outs: (outs[0], outs[1] + 1.0, outs[2]))
    )
    result = checker.check(call("Torch.split", tensor(6, 4), 2))
    assert result.forward is Verdict.ERROR
    assert _files(tmp_path) == {
        "Torch.split.0.json",
        "Torch.split.0.forward.input.0.npy",
        "Torch.split.0.forward.output.device.1.npy",
        "Torch.split.0.forward.output.bench.1.npy",
    }
    sides = [
        np.load(tmp_path / f"Torch.split.0.forward.output.{side}.1.npy")
        for side in ("device", "bench")
    ]
    assert [side.dtype for side in sides] == [np.float32, np.float64]
    np.testing.assert_allclose(sides[0] - 1.0, sides[1], atol=1e-6)


def test_a_call_that_passes_or_is_skipped_leaves_no_file(tmp_path: Path) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    assert checker.check(call("Torch.add", tensor(3), tensor(3))).forward is Verdict.PASS
    assert checker.check(call("Torch.load", "x")).forward is Verdict.SKIP
    assert _files(tmp_path) == set()


def test_bfloat16_is_saved_as_its_bits_with_its_dtype_in_the_json(tmp_path: Path) -> None:
    checker = Checker(
        capture_settings(
            "torch_llm_bf16", error_folder=tmp_path, options=CheckOptions(distribution="uniform")
        ),
        "cpu",
    )
    checker.check(payload_of("torch_llm_bf16", "Functional.linear.14"))
    file = "Functional.linear.14.forward.input.0.npy"
    description = json.loads((tmp_path / "Functional.linear.14.json").read_text())
    assert description["dtypes"][file] == "bfloat16"
    assert description["inputs"]["input_args.0"] == file
    assert np.load(tmp_path / file).dtype == np.uint16


def test_a_rerun_finds_a_kernel_that_was_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), altered(lambda out: out + 1.0))
    payload = call("Torch.mul", tensor(3, grad=True), other=tensor(3), grads=[tensor(3)])
    assert checker.check(payload).forward is Verdict.ERROR
    again = ray_precheck.rerun(tmp_path / "Torch.mul.0.json")
    assert (again.forward, again.backward, again.message) == (Verdict.PASS, Verdict.PASS, "")


@pytest.mark.parametrize(
    "grads",
    [
        [None, tensor(3, 3)],
        pytest.param(
            [tensor(3, 3)],
        ),
    ],
    ids=["one for each output", "only of the second output"],
)
def test_a_rerun_finds_the_incoming_gradient_of_a_later_output(
    tmp_path: Path, grads: list[Any]
) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    matrix = tensor(3, 3, low=-1e5, high=1e5, grad=True)
    result = checker.check(call("Torch.linalg.eigh", matrix, grads=grads))
    assert (result.forward, result.backward) == (Verdict.ERROR, Verdict.PASS)
    again = ray_precheck.rerun(tmp_path / "Torch.linalg.eigh.0.json")
    assert timeless(again) == timeless(result)


def test_a_rerun_of_a_random_call_draws_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_wide(size: int) -> torch.Tensor:
        return 1.2 * torch.randn(size)

    monkeypatch.setattr(TorchBackend, "resolve", lambda backend, name: too_wide)
    checker = statistics_checker("pytorch", error_folder=tmp_path, options=CheckOptions(seed=7))
    result = checker.check(call("Torch.randn", 10_000))
    assert result.forward is Verdict.ERROR
    again = ray_precheck.rerun(tmp_path / "Torch.randn.0.json")
    assert again.message == result.message  # with the statistics of these very draws
