"""The dynamic loss scale is in the header of a step, and a step whose update is skipped is a step."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_precheck.capture import Capture
from ray_precheck.dump.parse import open_dump

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        not hasattr(torch.amp, "GradScaler"), reason="this torch scales on CUDA alone"
    ),
]
Overflows = Callable[[int], bool]


class Wrapped:
    """An optimizer within another object, as some trainers have it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def train(
    steps: int,
    overflows: Overflows = lambda _: False,
    *,
    fused: bool = False,
    scaler: Any = None,
    wrap: Callable[[Any], Any] = lambda optimizer: optimizer,
) -> None:
    """Train with a scale of 1024; the gradients of some steps are infinite."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused or None)
    scaler = scaler or torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(steps):
        loss = model(torch.ones(2, 4)).square().mean()
        scaler.scale(loss * (float("inf") if overflows(step) else 1.0)).backward()
        scaler.step(wrap(optimizer))
        scaler.update()
        optimizer.zero_grad()


def header_of(folder: Path, step: int) -> dict[str, Any]:
    (dump,) = folder.glob(f"step{step}/*/dump.json")
    return dict(json.loads(dump.read_text()))


def updates_of(folder: Path, step: int) -> int:
    return sum(key.startswith("Optimizer.") for key in header_of(folder, step)["data"])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("overflow", [0, 1])
def test_a_step_that_the_scaler_skips_is_a_step(tmp_path: Path, fused: bool, overflow: int) -> None:
    with Capture(tmp_path, framework="pytorch", steps="0-2"):
        train(4, lambda step: step == overflow, fused=fused)
    headers = [header_of(tmp_path, step) for step in range(3)]
    scales = [1024.0] * (overflow + 1) + [512.0] * (2 - overflow)
    assert [header["loss_scale"] for header in headers] == scales
    skipped = [header.get("update_skipped", False) for header in headers]
    assert skipped == [step == overflow for step in range(3)]
    assert [updates_of(tmp_path, step) for step in range(3)] == [int(not each) for each in skipped]
    for header in headers:  # each holds one training step
        assert sum(key.startswith("Functional.linear") for key in header["data"]) == 2
        assert not [key for key in header["data"] if key.startswith("Tensor.item")]
    assert not (tmp_path / "step3").exists()


def test_skipped_steps_count_where_they_are_not_captured(tmp_path: Path) -> None:
    with Capture(tmp_path, framework="pytorch", steps=[2]):
        train(4, lambda step: step < 2)
    assert header_of(tmp_path, 2)["loss_scale"] == 256.0
    assert updates_of(tmp_path, 2) == 1


@pytest.mark.parametrize("overflow", [0, 1])
def test_an_optimizer_in_a_wrapper_ends_its_steps_once(tmp_path: Path, overflow: int) -> None:
    wrapper: list[Any] = []

    def wrap(optimizer: Any) -> Any:
        wrapper[:] = wrapper or [Wrapped(optimizer)]
        return wrapper[0]

    with Capture(tmp_path, framework="pytorch"):
        train(3, lambda step: step == overflow, wrap=wrap)
    assert [updates_of(tmp_path, step) for step in range(3)] == [
        int(step != overflow) for step in range(3)
    ]
    assert not (tmp_path / "step3").exists()


def test_a_second_optimizer_ends_no_step_when_it_is_skipped(tmp_path: Path) -> None:
    models = [torch.nn.Linear(4, 3) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with Capture(tmp_path, framework="pytorch"):
        for step in range(2):
            for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                factor = float("inf") if (step, number) == (1, 1) else 1.0
                scaler.scale(model(torch.ones(2, 4)).mean() * factor).backward()
                scaler.step(optimizer)
            scaler.update()
    assert not (tmp_path / "step3").exists()


def test_a_scaler_with_a_step_of_its_own_is_seen(tmp_path: Path) -> None:
    class Own(torch.amp.GradScaler):
        def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return super().step(optimizer, *args, **kwargs)

    with Capture(tmp_path, framework="pytorch"):
        train(2, lambda step: step == 0, scaler=Own("cpu", init_scale=16.0))
    assert [header_of(tmp_path, step)["loss_scale"] for step in range(2)] == [16.0, 8.0]


def test_a_scaler_that_is_switched_off_has_no_scale(tmp_path: Path) -> None:
    with Capture(tmp_path, framework="pytorch"):
        train(2, scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert "loss_scale" not in header_of(tmp_path, 0)
    assert updates_of(tmp_path, 1) == 1


@pytest.mark.parametrize("steps", [[0], None])
def test_after_the_capture_the_scaler_is_as_it_was(tmp_path: Path, steps: list[int] | None) -> None:
    before = torch.amp.GradScaler.step
    with Capture(tmp_path, framework="pytorch", steps=steps):
        assert torch.amp.GradScaler.step is not before
        train(2)
    assert torch.amp.GradScaler.step is before


def test_steps_that_end_otherwise_have_their_scale(tmp_path: Path) -> None:
    with Capture(tmp_path, framework="pytorch", step_by="forward"):
        train(2, lambda step: step == 0)
    assert header_of(tmp_path, 0)["loss_scale"] == 1024.0
    assert header_of(tmp_path, 0)["update_skipped"] is True


def test_the_precheck_reads_a_dump_with_a_loss_scale(tmp_path: Path) -> None:
    with Capture(tmp_path, framework="pytorch"):
        train(1, lambda _: True)
    (path,) = tmp_path.glob("step0/*/dump.json")
    with open_dump(path) as dump:
        assert (dump.framework, dump.task) == ("pytorch", "statistics")
        assert any(call.name.startswith("Functional.linear") for call in dump.calls)


@pytest.mark.parametrize("overflow", [False, True])
def test_unscaled_gradients_are_those_that_are_clipped(tmp_path: Path, overflow: bool) -> None:
    """The usual recipe: unscale, then clip, then step."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    unscaled: list[torch.Tensor] = []
    with Capture(tmp_path, framework="pytorch", task="tensor", step_by="manual"):
        loss = model(torch.ones(2, 4)).square().mean() * (float("inf") if overflow else 1.0)
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            torch.sum(parameter.grad)
        scaler.unscale_(optimizer)
        unscaled += [parameter.grad.clone() for parameter in model.parameters()]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    (path,) = tmp_path.glob("step0/*/dump.json")
    records = json.loads(path.read_text())["data"]

    def values(element: dict[str, Any]) -> torch.Tensor:
        found: torch.Tensor = torch.load(path.parent / "dump_tensor_data" / element["data_name"])
        return found

    call = "Torch._amp_foreach_non_finite_check_and_unscale_.0.forward"
    places = (records[call]["output"], records["Torch._foreach_norm.0.forward"]["input_args"][0])
    for place in places:
        for element, expected in zip(place, unscaled, strict=True):
            assert torch.equal(values(element).nan_to_num(), expected.nan_to_num())
    (scale,) = records["Torch._amp_update_scale_.0.forward"]["output"]
    assert scale["Max"] == (512.0 if overflow else 2048.0)
