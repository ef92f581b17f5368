"""A capture of a training has the updates of its optimizers, and ends its steps after them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ray_precheck.capture import Capture

pytestmark = pytest.mark.frameworks


def train(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def data_of(folder: Path, step: int) -> dict[str, Any]:
    (dump,) = folder.glob(f"step{step}/*/dump.json")
    return dict(json.loads(dump.read_text())["data"])


def test_a_step_ends_after_the_update_of_its_optimizer(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    # A hook of the program's own is called after those of a capture that ends.
    optimizer.register_step_post_hook(lambda *_: None)
    with Capture(tmp_path, framework="pytorch", model=model, steps="0-1"):
        for _ in range(3):
            train(model, optimizer)
    for step in range(2):
        data = data_of(tmp_path, step)
        updates = [key for key in data if key.startswith("Optimizer.")]
        assert updates == ["Optimizer.AdamW.0.forward"]
        (group,) = data[updates[0]]["input_args"]
        assert [name["value"] for name in group["names"]] == ["weight", "bias"]
        assert ("state" in group) is (step == 1)
        assert [key for key in data if "addcdiv" in key or "lerp" in key] == []
    assert not (tmp_path / "step2").exists()


def test_a_fault_of_the_capture_in_a_hook_does_not_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("ray_precheck.capture.pytorch.updates.optimizers.entries_of", broken)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Capture(tmp_path, framework="pytorch"):
        handle = register_optimizer_step_post_hook(lambda *_: None)
        try:
            before = model.weight.detach().clone()
            train(model, optimizer)
        finally:
            handle.remove()
    assert not model.weight.equal(before)
    assert "out of luck" in capsys.readouterr().err


def test_without_updates_neither_they_nor_their_arithmetic_have_records(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for updates in (True, False):
        path = tmp_path / str(updates)
        with Capture(path, framework="pytorch", model=model, steps=0, updates=updates):
            train(model, optimizer)
    with_updates, without = data_of(tmp_path / "True", 0), data_of(tmp_path / "False", 0)
    assert set(with_updates) - set(without) == {"Optimizer.AdamW.0.forward"}
    assert set(without) <= set(with_updates)


def test_without_updates_a_later_call_shows_what_a_fused_kernel_has_made(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    with Capture(
        tmp_path, framework="pytorch", model=model, updates=False, step_by="manual"
    ) as capture:
        train(model, optimizer)
        model(torch.ones(2, 4))
        expected = model.weight.max().item()
        capture.step()
    first, second = (
        data_of(tmp_path, 0)[f"Functional.linear.{number}.forward"]["input_args"][1]["Max"]
        for number in range(2)
    )
    assert first != second == expected
