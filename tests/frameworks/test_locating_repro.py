"""The command that `locate` prints for a suspect shows the failure of a real capture alone."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import run_alone, run_here
from torch.overrides import TorchFunctionMode

from ray_precheck.capture import Capture
from ray_precheck.cli import main
from ray_precheck.commands.locate.run import locate_captures
from scripts.located_example import capture_example

pytestmark = pytest.mark.frameworks


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.02


class Spoiled(TorchFunctionMode):
    """Spoils what `gelu` gives, below the hooks of a capture."""

    def __init__(self, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._spoil = spoil

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return self._spoil(out) if getattr(func, "__name__", "") == "gelu" else out


def _not_a_number(value: torch.Tensor) -> torch.Tensor:
    out = value.clone()
    out[2, 3] = float("nan")
    return out


FAULTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "forward": (lambda value: value * 1.02, "forward.output.0"),
    "non-finite": (_not_a_number, "forward.output.0"),
    "backward": (_WrongGradient.apply, "backward.output.0"),
}


def captured(
    folder: Path, spoil: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    """Capture a step of a small network with its tensors."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)]
    net = torch.nn.Sequential(*layers).to(dtype)
    given = torch.randn(8, 16).to(dtype)
    with Spoiled(spoil), Capture(folder, framework="pytorch", task="tensor", level="mix"):
        net(given).float().square().mean().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_printed_command_shows_the_failure_without_ray_precheck(
    tmp_path: Path, capsys: Any, fault: str, dtype: torch.dtype
) -> None:
    spoil, wrong = FAULTS[fault]
    captured(tmp_path / "dump", spoil, dtype)
    assert main(["locate", "-tp", str(tmp_path / "dump"), "-o", str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("1. Functional.gelu.0.") for line in lines)
    command = next(line.partition("alone: ")[2] for line in lines if "alone: " in line)
    words = shlex.split(command)
    assert words[:2] == ["ray-precheck", "repro"]
    assert main(words[1:]) == 0
    script = capsys.readouterr().out
    is_sample = fault == "forward" and dtype is torch.float32
    run = (run_alone if is_sample else run_here)(script)
    assert run.returncode == 1, run.stderr
    shown = [line for line in run.stdout.splitlines() if "IN ERROR" in line]
    assert any(line.startswith(f"captured {wrong}: ") for line in shown)
    assert run.stdout.splitlines()[-1] == "the failure is shown"


def test_the_example_of_the_docs_finds_the_softmax_of_the_second_layer(tmp_path: Path) -> None:
    for side in ("target", "golden"):
        capture_example(tmp_path / side, is_wrong=side == "target")
    report = locate_captures(tmp_path / "target", tmp_path / "golden", out=tmp_path / "out")
    first = report.located.iloc[0]
    assert (first["API Name"], first["Direction"]) == ("Torch.softmax.1", "forward")
    assert first["Verdict"] == "own error"
    assert first["Module"] == "Module.layers.1.ExampleLayer.forward.0"
