"""The script of `repro` shows a failure without ray_precheck: of a broken kernel, not of a right one."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from alone import run_alone
from alone import run_here as run
from records import (
    DATA,
    Element,
    altered,
    call,
    capture_settings,
    ms_tensor,
    payload_of,
    raising,
    replace_kernel,
    statistics_checker,
    symbol,
    tensor,
)
from versions import require_kernel

from ray_precheck.accuracy.standards.user_file import load_standard
from ray_precheck.check.checker import Checker
from ray_precheck.cli import main
from ray_precheck.commands.repro.script import repro_script
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import TaskPayload
from ray_precheck.schema.values import HostCall, HostTensor
from ray_precheck.store.error_data import save_error_data

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("mindspore_checker")]


def scaled(out: Any) -> Any:
    return tuple(one * 1.01 for one in out) if isinstance(out, tuple) else out * 1.01


TORCH = "import torch; wrong(torch"
MINT = "import mindspore as ms; wrong(ms.mint"
CALLS: dict[str, tuple[str, TaskPayload, str]] = {
    "function": (
        "pytorch",
        call(
            "Functional.linear",
            tensor(4, 8, grad=True),
            tensor(3, 8, grad=True),
            None,
            grads=[tensor(4, 3)],
            output=tensor(4, 3),
        ),
        f"{TORCH}.nn.functional, 'linear')",
    ),
    "bfloat16": (
        "pytorch",
        call(
            "Torch.neg",
            tensor(4, 8, dtype="bfloat16", grad=True),
            grads=[tensor(4, 8, dtype="bfloat16")],
        ),
        f"{TORCH}, 'neg')",
    ),
    "dunder": (
        "pytorch",
        call("Tensor.__sub__", tensor(4, 8, grad=True), 2.5, grads=[tensor(4, 8)]),
        f"{TORCH}.Tensor, '__sub__')",
    ),
    "in place": (
        "pytorch",
        call("Tensor.add_", tensor(4, 8, grad=True), tensor(4, 8), grads=[tensor(4, 8)]),
        f"{TORCH}.Tensor, 'add_')",
    ),
    "dotted, several outputs": (
        "pytorch",
        call(
            "Torch.split",
            tensor(6, 4, low=1.0, high=9.0, grad=True),
            [2, 4],
            dim=0,
            grads=[tensor(2, 4), tensor(4, 4)],
        ),
        f"{TORCH}, 'split')",
    ),
    "an argument that is no number": (
        "pytorch",
        call(
            "Torch.sum",
            tensor(6, 4, low=1.0, high=9.0),
            dim=1,
            dtype=symbol("torch.dtype", "torch.float32"),
        ),
        f"{TORCH}, 'sum')",
    ),
    "MindSpore": (
        "mindspore",
        call(
            "Mint.matmul",
            ms_tensor(4, 8),
            ms_tensor(8, 3),
            grads=[ms_tensor(4, 3)],
            output=ms_tensor(4, 3),
        ),
        f"{MINT}, 'matmul')",
    ),
    "MindSpore bfloat16": (
        "mindspore",
        call("Mint.add", ms_tensor(4, 8, dtype="BFloat16"), ms_tensor(4, 8, dtype="BFloat16")),
        f"{MINT}, 'add')",
    ),
    "MindSpore method": (
        "mindspore",
        call(
            "Tensor.reshape",
            ms_tensor(4, 8),
            [8, 4],
            grads=[ms_tensor(8, 4)],
            output=ms_tensor(8, 4),
        ),
        "import mindspore as ms; wrong(ms.Tensor, 'reshape')",
    ),
}


def saved(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Path, str]:
    """Have a broken kernel found and its tensors saved; return the JSON, and what breaks it again."""
    framework, payload, broken = CALLS[name]
    checker = statistics_checker(framework, error_folder=folder, **options)
    replace_kernel(monkeypatch, checker.device(), altered(scaled))
    result = checker.check(payload)
    if framework == "mindspore":
        require_kernel(result)
    assert result.forward is Verdict.ERROR, result.message
    return folder / f"{payload.name}.json", broken


@pytest.mark.parametrize("name", CALLS)
def test_it_shows_the_failure_with_the_broken_kernel_and_none_with_a_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path, broken = saved(tmp_path, name, monkeypatch)
    capsys.readouterr()
    assert main(["repro", str(path)]) == 0
    script = capsys.readouterr().out
    assert "import ray_precheck" not in script
    is_simple = "grads" not in script and "bfloat16" not in script
    assert len(script.splitlines()) <= (45 if is_simple else 60)
    # Once in each framework it is run as its user does.
    run_it = run_alone if name in ("function", "MindSpore") else run
    shown = run_it(script, broken)
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "forward.output.0: worst at [" in shown.stdout
    assert "limit 0.0001;" in shown.stdout
    assert "IN ERROR" in shown.stdout
    right = run_it(script)
    assert (right.returncode, right.stderr) == (0, "")
    assert "forward.output.0: worst at [" in right.stdout
    assert right.stdout.endswith("no failure here\n")


def test_gradients_are_shown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, broken = saved(tmp_path, "function", monkeypatch)
    shown = run(repro_script(path), broken)
    for number in (0, 1):
        assert f"backward.output.{number}: worst at [" in shown.stdout


def test_what_a_call_changes_is_shown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(function: Any) -> Any:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            out = function(*args, **kwargs)
            args[2].mul_(5)
            return out

        return kernel

    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), wrong)
    statistics = tensor(4), tensor(4, low=0.5)
    result = checker.check(call("Functional.batch_norm", tensor(8, 4), *statistics, training=True))
    assert "forward.changed.running_var: " in result.message
    script = repro_script(tmp_path / "Functional.batch_norm.0.json")
    again = """
import torch
def wrong(right):
    def kernel(x, mean, var, **more):
        out = right(x, mean, var, **more)
        var.mul_(5)
        return out
    return kernel
torch.nn.functional.batch_norm = wrong(torch.nn.functional.batch_norm)"""
    shown = run(script, again)
    assert (shown.returncode, shown.stderr) == (1, "")
    assert shown.stdout.startswith("forward.changed.running_var: worst at [")
    assert run(script).returncode == 0


def test_of_another_rule_half_of_what_the_run_found_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, broken = saved(tmp_path, "function", monkeypatch, standard=load_standard("ulp"))
    script = repro_script(path)
    assert run(script, broken).returncode == 1
    assert run(script).returncode == 0


@pytest.mark.parametrize("broken", ["", f"{TORCH}.nn.functional, 'linear')"])
def test_of_captured_results_those_are_judged_and_this_machine_is_told(
    tmp_path: Path, broken: str
) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(DATA / "torch_llm_tensor", folder)
    settings = capture_settings("torch_llm_tensor", error_folder=tmp_path / "errors")
    name = "Functional.linear.0"
    (file,) = (folder / "dump_tensor_data").glob(f"{name}.forward.output.0.*")
    torch.save(torch.load(file) * 1.01, file)
    checker = Checker(
        replace(settings, data_folder=folder / "dump_tensor_data", tests_dump=True), "cpu"
    )
    result = checker.check(payload_of("torch_llm_tensor", name))
    assert result.forward is Verdict.ERROR, result.message
    shown = run(repro_script(tmp_path / "errors" / f"{name}.json"), broken)
    assert (shown.returncode, shown.stderr) == (1, "")
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("captured forward.output.0: worst at")
    assert lines[0].endswith("IN ERROR")
    assert lines[1].startswith("forward.output.0: worst at")
    assert lines[1].endswith("IN ERROR" if broken else "ok")


def test_a_call_that_raises_is_shown_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), raising(RuntimeError("no such kernel")))
    assert checker.check(call("Torch.exp", tensor(3))).forward is Verdict.ERROR
    script = repro_script(tmp_path / "Torch.exp.0.json")
    broken = "import torch\ndef bad(*a): raise RuntimeError('no such kernel')\ntorch.exp = bad"
    shown = run(script, broken)
    assert shown.returncode == 1
    assert "the call raises RuntimeError: no such kernel" in shown.stdout
    assert run(script).returncode == 0


def test_what_has_no_plain_spelling_says_what_to_write(tmp_path: Path) -> None:
    payload = TaskPayload(0, "Custom.thing.0", call("Torch.exp", tensor(3)).forward, None)
    value = HostTensor("float32", np.ones(3, np.float32))
    save_error_data(tmp_path, payload, "pytorch", HostCall((value,), {}), [], {}, failing=[])
    script = repro_script(tmp_path / "Custom.thing.0.json")
    assert "# Custom.thing has no plain spelling: write the call below." in script
    assert "UNKNOWN(x[0])" in script


def test_what_is_no_saved_api_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert main(["repro", str(path)]) == 2
    assert "is not the JSON of a saved API" in capsys.readouterr().err


def test_a_result_of_the_wrong_sign_is_in_error_however_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), altered(lambda out: -out))
    small = tensor(4, 8, low=-1e-6, high=1e-6)
    assert checker.check(call("Torch.neg", small)).forward is Verdict.ERROR
    script = repro_script(tmp_path / "Torch.neg.0.json")
    assert run(script, "import torch; torch.neg = torch.clone").returncode == 1
    assert run(script).returncode == 0
    assert len(script.splitlines()) <= 45


RANDOM = {
    "pytorch": (
        call("Functional.dropout", tensor(64, 64, low=1.0, high=2.0), p=0.5, training=True),
        f"{TORCH}.nn.functional, 'dropout')",
    ),
    "mindspore": (
        call("Functional.dropout", ms_tensor(64, 64, low=1.0, high=2.0), 0.5),
        "import mindspore as ms; wrong(ms.ops, 'dropout')",
    ),
}


@pytest.mark.parametrize("framework", RANDOM)
def test_draws_are_judged_only_where_they_are_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    payload, broken = RANDOM[framework]
    checker = statistics_checker(framework, error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), altered(scaled))
    result = checker.check(payload)
    assert result.forward is Verdict.ERROR, result.message
    script = repro_script(tmp_path / f"{payload.name}.json")
    assert len(script.splitlines()) <= 45
    shown = run(script, broken)
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "the same draws as in the run" in shown.stdout
    assert "share of zeros 0." in shown.stdout
    assert " ".join(result.message.split())[:60] in " ".join(shown.stdout.split())
    right = run(script)
    assert (right.returncode, right.stderr) == (2, "")
    assert "other draws" in right.stdout
    assert "cannot judge" in right.stdout


def test_captured_gradients_are_judged_from_the_saved_pair_and_the_script_says_so(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(DATA / "torch_llm_tensor", folder)
    name = "Functional.silu.0"
    (file,) = (folder / "dump_tensor_data").glob(f"{name}.backward.output.0.*")
    torch.save(torch.load(file) + 1.0, file)
    settings = capture_settings(
        "torch_llm_tensor", error_folder=tmp_path / "errors", tests_dump=True
    )
    checker = Checker(replace(settings, data_folder=folder / "dump_tensor_data"), "cpu")
    result = checker.check(payload_of("torch_llm_tensor", name))
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.ERROR), result.message
    script = repro_script(tmp_path / "errors" / f"{name}.json")
    assert "# The dump's results are judged from the saved pair; gradients are not made" in script
    assert "# The call: torch.nn.functional.silu(x[0]" in script
    shown = run(script)
    assert (shown.returncode, shown.stderr) == (1, "")
    (row, end) = shown.stdout.splitlines()
    assert row.startswith("captured backward.output.0: worst at [")
    assert end == "the failure is shown"


def sparse(layout: str, **more: int) -> Element:
    """A sparse matrix of a dump."""
    stored = {"nnz": 7, "dense_dim": 0, "fewest": 0, "most": 3, **more}
    element = tensor(5, 6, low=8.0, high=9.0)
    return Element(element, layout=f"torch.sparse_{layout}", sparse=stored)


MORE: dict[str, tuple[str, TaskPayload, str]] = {
    "a list in its outputs": (
        "pytorch",
        call(
            "VF.lstm",
            tensor(5, 2, 3),
            [tensor(1, 2, 4), tensor(1, 2, 4)],
            [tensor(16, 3), tensor(16, 4), tensor(16), tensor(16)],
            True,
            1,
            0.0,
            False,
            False,
            False,
            output=[tensor(5, 2, 4), tensor(1, 2, 4), [tensor(1, 2, 4)]],
        ),
        f"{TORCH}, 'lstm')",
    ),
    "complex numbers": (
        "pytorch",
        call("Torch.conj_physical", tensor(4, 8, dtype="complex64", low=1.0, high=9.0)),
        f"{TORCH}, 'conj_physical')",
    ),
    "inputs of several dtypes": (
        "pytorch",
        call(
            "Torch.mul",
            tensor(4, 8, dtype="bfloat16", low=8.0, high=9.0),
            tensor(4, 8, low=8.0, high=9.0),
        ),
        f"{TORCH}, 'mul')",
    ),
    "a sparse COO input": (
        "pytorch",
        call("Torch.sparse.mm", sparse("coo", distinct=7), tensor(6, 3, low=8.0, high=9.0)),
        f"{TORCH}.sparse, 'mm')",
    ),
    "a lazy conjugate": (
        "pytorch",
        call(
            "Torch.mul",
            Element(tensor(4, 8, dtype="complex64", low=8.0, high=9.0), lazy="conj"),
            tensor(4, 8, low=8.0, high=9.0),
        ),
        f"{TORCH}, 'mul')",
    ),
    "MindSpore, an output without gradient": (
        "mindspore",
        call(
            "Functional.topk",
            ms_tensor(4, 8, low=1.0, high=9.0),
            3,
            grads=[ms_tensor(4, 3), None],
        ),
        "import mindspore as ms; right = ms.ops.topk;"
        " ms.ops.topk = lambda *a: (right(*a)[0] * 1.01, right(*a)[1])",
    ),
}


def test_a_list_that_a_call_changes_is_all_of_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "Torch._amp_foreach_non_finite_check_and_unscale_"
    grads = [tensor(4, 8, low=8.0, high=9.0), tensor(3, low=8.0, high=9.0)]
    payload = call(name, grads, tensor(1, low=0.0, high=0.0), tensor(1, low=0.5, high=0.5))

    def change(right: Any) -> Any:
        def kernel(grads: list[torch.Tensor], *others: torch.Tensor) -> None:
            right(grads, *others)
            grads[1].mul_(1.5)

        return kernel

    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), change)
    assert checker.check(payload).forward is Verdict.ERROR
    right = run(repro_script(tmp_path / f"{payload.name}.json"))
    assert (right.returncode, right.stderr) == (0, ""), right.stdout
    assert "forward.output.1: worst at [" in right.stdout


@pytest.mark.parametrize("name", MORE)
def test_unusual_calls_are_shown_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    framework, payload, broken = MORE[name]
    checker = statistics_checker(framework, error_folder=tmp_path)

    def first(out: Any) -> Any:
        return (out[0] * 1.01, *out[1:]) if isinstance(out, tuple) else out * 1.01

    replace_kernel(monkeypatch, checker.device(), altered(first))
    result = checker.check(payload)
    assert result.forward is Verdict.ERROR, result.message
    script = repro_script(tmp_path / f"{payload.name}.json")
    assert len(script.splitlines()) <= 65
    shown = run(script, broken)
    assert (shown.returncode, shown.stderr) == (1, ""), script
    assert "forward.output.0: worst at [" in shown.stdout
    right = run(script)
    assert (right.returncode, right.stderr) == (0, ""), script


def test_a_gradient_that_raises_is_shown_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), altered(lambda out: Raises.apply(out)))
    result = checker.check(call("Torch.exp", tensor(3, grad=True), grads=[tensor(3)]))
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.ERROR), result.message
    script = repro_script(tmp_path / "Torch.exp.0.json")
    broken = """
import torch
class Raises(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.clone())
    @staticmethod
    def backward(ctx, grad): raise RuntimeError("no such gradient")
right = torch.exp
torch.exp = lambda x: Raises.apply(right(x))
"""
    shown = run(script, broken)
    assert shown.returncode == 1
    assert "the call raises RuntimeError: no such gradient" in shown.stdout
    right = run(script)
    assert (right.returncode, right.stderr) == (0, "")
    assert "no failure here: the call gives (tensor([" in right.stdout


class Raises(torch.autograd.Function):
    """An identity without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("no such gradient")


def test_where_nothing_was_saved_to_compare_with_the_script_says_that_it_cannot_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = statistics_checker("pytorch", error_folder=tmp_path)
    replace_kernel(monkeypatch, checker.device(), altered(lambda out: (out, out)))
    result = checker.check(call("Torch.exp", tensor(3)))
    assert result.message == "2 outputs where the bench has 1"
    shown = run(repro_script(tmp_path / "Torch.exp.0.json"))
    assert (shown.returncode, shown.stderr) == (2, "")
    assert "2 outputs where the bench has 1" in shown.stdout
    assert "cannot judge: the call gives tensor([" in shown.stdout
