"""A capture of a training has the updates of its optimizers, and ends its steps after them."""

import json
import threading
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

    monkeypatch.setattr("ray_precheck.capture.pytorch.updates.entries_of", broken)
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


OPTIONS: list[dict[str, Any]] = [
    {},
    {"updates": False},
    {"task": "tensor"},
    {"sketch": True},
    {"level": "L0"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_memory_that_fsdp_fills_again_after_an_update_is_looked_at_again(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """FSDP gathers a parameter into the memory that it has freed before, and keeps its version."""
    # The system gives so much memory out at the same place again.
    shard = torch.nn.Parameter(torch.ones(4096, 2048))
    optimizer = torch.optim.SGD([shard], lr=1.0)
    model = torch.nn.Sequential(torch.nn.Linear(2048, 4096, bias=False))
    whole = model[0].weight
    whole.data = torch.ones(4096, 2048)
    version, place, memory = whole._version, whole.data_ptr(), whole.untyped_storage()
    size, others = memory.size(), []

    def gather() -> None:
        memory.resize_(0)
        memory.resize_(size)
        while whole.data_ptr() != place and len(others) < 20:  # another hole comes first
            memory.resize_(0)
            others.append(torch.empty(4096, 2048))
            memory.resize_(size)
        with torch.autograd._unsafe_preserve_version_counter(whole), torch.no_grad():  # type: ignore[no-untyped-call]
            # The mode of a capture is per thread, and FSDP fills by a kernel that has no record.
            thread = threading.Thread(target=lambda: torch._foreach_copy_([whole.data], [shard]))
            thread.start()
            thread.join()

    with Capture(
        tmp_path, framework="pytorch", model=model, step_by="manual", **options
    ) as capture:
        for _ in range(2):
            if (whole.data_ptr(), whole._version) != (place, version):
                pytest.skip("the memory is not given out again")
            model(torch.ones(1, 2048))
            shard.grad = torch.ones(4096, 2048)
            optimizer.step()
            gather()
        capture.step()
    records = [
        record
        for key, record in data_of(tmp_path, 0).items()
        if ".linear." in key or ".Linear." in key
    ]
    weights = [
        record["parameters"]["weight"] if "parameters" in record else record["input_args"][1]
        for record in records
    ]
    assert [weight["Max"] for weight in weights] == [1.0, 0.0]
    if options.get("task") == "tensor":
        (folder,) = tmp_path.glob("step0/*/dump_tensor_data")
        saved = [torch.load(folder / weight["data_name"]).max().item() for weight in weights]
        assert saved == [1.0, 0.0]
    if options.get("sketch"):
        assert weights[0]["sketch"] != weights[1]["sketch"]
