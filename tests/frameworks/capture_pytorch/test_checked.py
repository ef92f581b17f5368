"""Captures of PyTorch, prechecked in this process: with captured results and with generated inputs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional
from records import capture_settings, failing, payloads_of
from torch.utils.checkpoint import checkpoint

from ray_precheck.accuracy.standards.user_file import STANDARDS
from ray_precheck.capture import Capture
from ray_precheck.check.checker import Checker
from ray_precheck.commands.repro.script import repro_script
from ray_precheck.schema.result import TaskResult, Verdict

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
F = torch.nn.functional
TASKS = pytest.mark.parametrize("task", ["tensor", "statistics"])
BFLOAT16 = torch.bfloat16


class Model(torch.nn.Module):
    """Composite operators, changes in place, views, attention and a checkpointed region."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(10, 8)
        self.mix = torch.nn.Conv1d(4, 4, 3, padding=1)
        self.wide = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.narrow = torch.nn.Linear(16, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.wide(self.mix(self.words(words))))
        x = checkpoint(lambda t: self.norm(t).sin(), x, use_reentrant=False)
        heads = x.view(2, 4, 2, 8).transpose(1, 2)
        y = F.scaled_dot_product_attention(heads, heads, heads * 0.5, is_causal=True)
        y = torch.einsum("bsh,bsh->bsh", y.transpose(1, 2).reshape(x.shape), x) + x
        z = x.clone()
        z.mul_(y).add_(1)
        z = torch.matmul(z, z.transpose(-1, -2)).softmax(-1) @ z
        return self.narrow(torch.cat([z, y], -1).chunk(2, -1)[0] * 1)  # type: ignore[no-any-return]


def training_step(dtype: torch.dtype | None = None) -> Callable[[], None]:
    """Return a step of a training, with an optimizer, and under autocast if a dtype is given."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randint(0, 10, (2, 4))
    labels = torch.randint(0, 8, (8,))

    def step() -> None:
        with torch.autocast("cpu", dtype=dtype or BFLOAT16, enabled=dtype is not None):
            logits = model(words)
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels)
        (loss + torch.logsumexp(logits, -1).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., list[TaskResult]]:
    """Capture a program, and precheck its dump as the command does, by the standard `auto`."""

    def run(
        program: Callable[[], object],
        task: str = "tensor",
        damage: Callable[[Path], None] = lambda folder: None,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> list[TaskResult]:
        with Capture(tmp_path, step_by="manual", framework="pytorch", task=task, **options):
            program()
        folder = tmp_path / "step0" / f"proc{os.getpid()}"
        damage(folder)
        terms = {"standard": STANDARDS["auto"](), **(settings or {})}
        checker = Checker(replace(capture_settings(str(folder)), **terms), "cpu")
        return [checker.check(payload) for payload in payloads_of(str(folder))]

    return run


Checked = Callable[..., list[TaskResult]]


def wrong(results: list[TaskResult]) -> list[tuple[str, str]]:
    return [(check.name, check.message) for check in failing(results)]


def skipped(results: list[TaskResult]) -> dict[str, str]:
    """The reasons for SKIP by the name of the call."""
    return {r.name: r.message for r in results if Verdict.SKIP in (r.forward, r.backward)}


def of(results: list[TaskResult], name: str) -> TaskResult:
    return next(result for result in results if result.name == name)


@TASKS
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_training_step_passes(checked: Checked, task: str, level: str) -> None:
    results = checked(training_step(), task, level=level)
    assert wrong(results) == []
    assert skipped(results) == {}
    assert {each.forward for each in results} == {Verdict.PASS}  # modules are no calls
    assert sum(each.backward is Verdict.PASS for each in results) >= 30
    assert of(results, "Functional.linear.1").backward is Verdict.PASS
    assert of(results, "Optimizer.AdamW.0").forward is Verdict.PASS
    assert of(results, "Functional.layer_norm.1").forward is Verdict.PASS  # recomputed


@TASKS
def test_a_step_under_autocast_passes(checked: Checked, task: str) -> None:
    results = checked(training_step(BFLOAT16), task)
    assert (wrong(results), skipped(results)) == ([], {})
    linear = of(results, "Functional.linear.0")
    assert (linear.forward, linear.backward) == (Verdict.PASS, Verdict.PASS)
    assert {check.tested_dtype for check in linear.checks} == {"torch.bfloat16"}


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_that_a_norm_sums_up_in_the_half_type_of_its_input_are_held_to_that(
    checked: Checked, threads: int
) -> None:
    """As torch's layer_norm on the CPU does, where the weights are of float32; it adds up what the threads
    have in float32."""
    x, weight = torch.randn(300, 16).bfloat16(), torch.ones(16, requires_grad=True)

    def program() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        F.layer_norm(x, (16,), weight).float().square().mean().backward()
        torch.set_num_threads(before)

    def scale_gradient(by: float) -> Callable[[Path], None]:
        def damage(folder: Path) -> None:
            file = folder / "dump_tensor_data" / "Functional.layer_norm.0.backward.output.1.pt"
            wrong_gradient = torch.load(file) * by
            file.unlink()
            torch.save(wrong_gradient.bfloat16().float(), file)

        return damage

    results = checked(program)
    assert wrong(results) == []
    (check,) = of(results, "Functional.layer_norm.0").checks[1:]
    assert check.tested_dtype == "torch.bfloat16"
    (name, _) = wrong(checked(program, damage=scale_gradient(1.5)))[0]
    assert name == "Functional.layer_norm.0.backward.output.1"


@TASKS
def test_autocast_to_float16_is_replayed_in_float16(checked: Checked, task: str) -> None:
    x, w = torch.randn(4, 64), torch.randn(8, 64, requires_grad=True)

    def program() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            F.linear(x, w).float().square().mean().backward()

    results = checked(program, task)
    assert wrong(results) == []
    assert of(results, "Functional.linear.0").checks[0].tested_dtype == "torch.float16"


def test_the_script_of_a_call_under_autocast_runs_under_autocast(
    checked: Checked, tmp_path: Path
) -> None:
    def damage(folder: Path) -> None:
        file = folder / "dump_tensor_data" / "Functional.linear.0.forward.output.0.pt"
        wrong_output = torch.load(file) * 1.5
        file.unlink()
        torch.save(wrong_output, file)

    def program() -> None:
        with torch.autocast("cpu", dtype=BFLOAT16):
            F.linear(torch.randn(2, 8), torch.randn(4, 8))

    saved = tmp_path / "saved"
    results = checked(program, damage=damage, settings={"error_folder": saved})
    assert [name for name, _ in wrong(results)] == ["Functional.linear.0.forward.output.0"]
    script = repro_script(saved / "Functional.linear.0.json")
    assert 'torch.autocast(DEVICE.partition(":")[0], dtype=torch.bfloat16)' in script
    done = subprocess.run(
        [sys.executable, "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "forward.output.0" in done.stdout


def test_a_weight_that_is_used_twice_under_autocast_has_the_gradients_of_each_call(
    checked: Checked,
) -> None:
    """Autocast casts it once, and autograd adds up what both calls give to the copy."""
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)

    def program() -> None:
        with torch.autocast("cpu", dtype=BFLOAT16):
            F.linear(F.linear(x, w).sin(), w).float().square().mean().backward()

    results = checked(program)
    assert wrong(results) == []
    for call in range(2):
        assert of(results, f"Functional.linear.{call}").backward is Verdict.PASS


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.matmul(x, x),
        lambda x: x @ x,
        lambda x: torch.einsum("bij,bjk->bik", x, x),
        lambda x: F.linear(x[0], x[0], x[0, 0]),
        lambda x: torch.addmm(x[0], x[0], x[0]),
        lambda x: F.bilinear(x[0], x[0], x, x[0, 0, :1].expand(2)),
        lambda x: torch.lerp(x, x, x),
        lambda x: torch.where(x > 0, x, x),
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: torch.stack([x, x, x]),
    ],
)
def test_a_tensor_that_is_given_twice_has_its_gradients_at_the_right_places(
    checked: Checked, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 4, requires_grad=True)
    weight = torch.randn(3, 2, 4, 4)

    def program() -> None:
        y = function(x * 1)
        (y * weight.flatten()[: y.numel()].reshape(y.shape)).sum().backward()

    results = checked(program)
    assert wrong(results) == []
    assert skipped(results) == {}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_gradient_is_found_at_its_input(checked: Checked, place: int) -> None:
    x = torch.randn(2, 5, 8, requires_grad=True)
    w, b = torch.randn(4, 8, requires_grad=True), torch.randn(4, requires_grad=True)
    named: list[str] = []

    def damage(folder: Path) -> None:
        record = json.loads((folder / "dump.json").read_text())["data"][
            "Functional.linear.0.backward"
        ]
        position = record["gradient_of"].index(str(place))
        named.append(f"Functional.linear.0.backward.output.{position}")
        file = folder / "dump_tensor_data" / record["output"][position]["data_name"]
        gradient = torch.load(file)
        gradient.view(-1)[1] *= 1.5
        file.unlink()
        torch.save(gradient, file)

    def program() -> None:
        F.linear(x * 1, w * 1, b * 1).square().mean().backward()

    results = checked(program, damage=damage)
    assert [name for name, _ in wrong(results) if ".linear." in name] == named


def test_gradients_that_do_not_fit_their_inputs_are_skipped_with_the_reason(
    checked: Checked,
) -> None:
    def damage(folder: Path) -> None:
        dump = json.loads((folder / "dump.json").read_text())
        dump["data"]["Torch.sin.0.backward"]["gradient_of"] = ["1"]
        dump["data"]["Torch.mul.0.backward"]["gradient_of"] = ["0", "0"]
        dump["data"]["Torch.cos.0.backward"]["gradient_of"] = ["x"]
        (folder / "dump.json").write_text(json.dumps(dump))

    x = torch.randn(3, requires_grad=True)
    results = checked(lambda: torch.mul(torch.sin(x), torch.cos(x)).sum().backward(), damage=damage)
    assert wrong(results) == []
    reasons = skipped(results)
    assert "the captured gradients have shapes [[3]]" in reasons["Torch.sin.0"]
    assert "two gradients of input tensor 0" in reasons["Torch.mul.0"]
    assert "gradient_of must have the number of an input" in reasons["Torch.cos.0"]


@TASKS
def test_gradients_of_nodes_are_checked_as_those_of_nodes(checked: Checked, task: str) -> None:
    results = checked(training_step(), task, gradients="node")
    assert wrong(results) == []
    assert len(skipped(results)) <= 2


@TASKS
def test_a_compiled_function_is_skipped_with_the_reason(checked: Checked, task: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(x) * 2, backend="eager")
    x = torch.randn(4, requires_grad=True)
    results = checked(lambda: compiled(torch.sin(x)).cos().sum().backward(), task)
    assert wrong(results) == []
    (reason,) = skipped(results).values()
    assert reason.startswith("it is the one record of a compiled function")
    assert "TORCH_COMPILE_DISABLE=1" in reason


@TASKS
def test_changes_in_place_and_several_outputs_pass(checked: Checked, task: str) -> None:
    x = torch.rand(3, 4, requires_grad=True)

    def program() -> None:
        y = x * 2
        y.mul_(3).clamp_(0.5, 4)
        y[0] = y[1] * 2
        low, high = torch.aminmax(y, dim=1)
        values, _ = y.sort(dim=1)
        first, second = y.split(2, dim=1)
        out = torch.empty(3)
        torch.add(low.detach(), high.detach(), out=out)
        (values.sum() + (first * second).sum() + low.sum()).backward()

    results = checked(program, task)
    assert wrong(results) == []


@TASKS
def test_indices_that_are_ranges_and_numbers_of_numpy_pass(checked: Checked, task: str) -> None:
    columns = torch.tensor([1, 0, 2])

    def program() -> None:
        x = torch.randn(3, 4, requires_grad=True)
        y = x * np.float64(1.5)
        picked = y[range(3), columns], y[range(1, 3)], y[..., range(2)], y[np.int64(1)]
        z = x.detach().clone()
        z[range(3), columns] = z.max()
        torch.cat([each.flatten() for each in picked]).sum().backward()

    results = checked(program, task)
    assert wrong(results) == []
    assert [each.message for each in results if each.forward is Verdict.SKIP] == []


@TASKS
@pytest.mark.parametrize("overflow", [False, True])
def test_a_step_of_cells_that_is_scaled_and_clipped_passes(
    checked: Checked, task: str, overflow: bool
) -> None:
    torch.manual_seed(0)
    cells = torch.nn.ModuleList([torch.nn.LSTMCell(4, 3), torch.nn.LSTMCell(3, 3)])
    optimizer = torch.optim.SGD(cells.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def program() -> None:
        first = second = (torch.zeros(2, 3), torch.zeros(2, 3))
        for x in torch.randn(3, 2, 4):
            first = cells[0](x, first)
            second = cells[1](first[0], second)
        loss = second[0].square().mean() * (float("inf") if overflow else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(cells.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    results = checked(program, task)
    assert wrong(results) == []
    for name in ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"):
        assert overflow or of(results, f"Torch.{name}.0").forward is Verdict.PASS


@pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16])
def test_a_loss_that_torch_rounds_in_several_steps_is_honest(
    checked: Callable[..., list[TaskResult]], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 60, (27,), generator=generator)
    logits = [torch.randn(27, 60, generator=generator).to(dtype) for _ in range(40)]
    results = checked(
        lambda: [F.cross_entropy(each, labels, label_smoothing=0.1) for each in logits]
    )
    assert len(results) == 40
    assert [result.forward for result in results] == [Verdict.PASS] * 40
