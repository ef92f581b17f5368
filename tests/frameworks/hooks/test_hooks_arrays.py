"""The arrays of the asynchronous hook."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ray_precheck.capture.pytorch.classic import kinds
from ray_precheck.hooks import (
    register_hook,
    schedule,
    step_schedule,
    unregister_hook,
    wrap_async_datadump_hook,
)

pytestmark = pytest.mark.frameworks
NAME = re.compile(
    r"(\d+)_(.+)_(forward|backward)_(input|output)(\d+)"
    r"_shape\[([\d,]*)\]_stride\[([\d,]*)\]_offset\[(\d+)\]_format\[(\d+)\]\.npy"
)


def start() -> None:
    register_hook(nn.Identity(), wrap_async_datadump_hook, path="out")


def found() -> list[str]:
    """Wait for the files, and return their names in the order of their numbers."""
    unregister_hook()
    names = [path.name for path in Path("out").iterdir()]
    assert all(NAME.fullmatch(name) for name in names), names
    return sorted(names, key=lambda name: (int(name.split("_")[0]), name))


def array(name: str) -> np.ndarray:
    return np.load(Path("out") / name, allow_pickle=False)


def test_what_a_call_got_and_gave_has_a_number_each() -> None:
    start()
    x = torch.randn(2, 3, requires_grad=True)
    torch.max(x, 1)[0].sum().backward()
    matrix = "_shape[2,3]_stride[3,1]_offset[0]_format[2].npy"
    vector = "_shape[2]_stride[1]_offset[0]_format[2].npy"
    number = "_shape[]_stride[]_offset[0]_format[2].npy"
    expanded = "_shape[2]_stride[0]_offset[0]_format[2].npy"
    assert found() == [
        f"0_Torch_max_forward_input0{matrix}",
        f"1_Torch_max_forward_output0{vector}",
        f"1_Torch_max_forward_output1{vector}",
        f"2_Tensor_sum_forward_input0{vector}",
        f"3_Tensor_sum_forward_output0{number}",
        f"4_Tensor_sum_backward_input0{expanded}",
        f"5_Tensor_sum_backward_output0{number}",
        f"6_Torch_max_backward_input0{matrix}",
        f"7_Torch_max_backward_output0{expanded}",
    ]
    assert np.array_equal(array(f"0_Torch_max_forward_input0{matrix}"), x.detach().numpy())
    assert array(f"1_Torch_max_forward_output1{vector}").dtype == np.int64
    assert array(f"3_Tensor_sum_forward_output0{number}").shape == ()


def test_the_name_says_how_a_view_lies_in_memory_and_the_file_has_its_values() -> None:
    start()
    whole = torch.arange(12.0).reshape(3, 4)
    part = whole[1:, 1:].t()
    torch.abs(part)
    (name,) = [name for name in found() if "abs_forward_input" in name]
    assert name.endswith("_input0_shape[3,2]_stride[1,4]_offset[5]_format[2].npy")
    assert np.array_equal(array(name), part.numpy())


def test_the_values_are_those_before_a_call_in_place() -> None:
    start()
    x = torch.tensor([1.0, 2.0])
    x.mul_(3)
    names = found()
    assert [array(name).tolist() for name in names] == [[1, 2], [3, 6]]


@pytest.mark.parametrize(
    ("dtype", "written"),
    [
        (torch.float16, "float16"),
        (torch.bfloat16, "float32"),
        (torch.float8_e5m2, "float32"),
        (torch.float64, "float64"),
        (torch.complex64, "complex64"),
        (torch.int8, "int8"),
        (torch.bool, "bool"),
    ],
)
def test_each_dtype_is_written_as_numpy_has_it(dtype: torch.dtype, written: str) -> None:
    x = torch.tensor([1.0, 0.0, 2.0]).to(dtype)
    start()
    torch.cat([x, x])
    names = found()
    assert [str(array(name).dtype) for name in names] == [written] * 3
    assert [name.split("_shape")[0] for name in names] == [
        "0_Torch_cat_forward_input0",
        "0_Torch_cat_forward_input1",
        "1_Torch_cat_forward_output0",
    ]
    assert array(names[0]).real.astype(float).tolist() == [1, 0, 1 if dtype is torch.bool else 2]


def test_a_schedule_chooses_the_steps() -> None:
    register_hook(nn.Identity(), wrap_async_datadump_hook, path="out", schedule=schedule(1, 1))
    for step in range(3):
        torch.abs(torch.full((1,), float(step)).cpu())
        step_schedule.step()
    assert [array(name).tolist() for name in found() if "abs" in name] == [[1], [1]]


def test_the_training_waits_for_a_slow_disk_and_no_file_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_write, save = threading.Event(), np.save

    def slow(*args: object, **more: object) -> None:
        may_write.wait(60)
        save(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(kinds.np, "save", slow)
    x = torch.ones(2)
    start()
    torch.abs(x)
    torch.abs(x)  # One group is being written, three wait.
    threading.Timer(0.2, may_write.set).start()
    for _ in range(10):
        torch.abs(x)
    assert may_write.is_set()
    assert len(found()) == 2 * 12


def test_the_end_of_the_process_waits_for_the_files() -> None:
    source = """
import torch
from torch import nn
from ray_precheck.hooks import register_hook, wrap_async_datadump_hook
model = nn.Linear(2, 1)
register_hook(model, wrap_async_datadump_hook, path="out", capacity=100)
for _ in range(20):
    model(torch.randn(3, 2)).sum().backward()
raise SystemExit(3)
"""
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 3
    numbers = {int(path.name.split("_")[0]) for path in Path("out").iterdir()}
    assert numbers == set(range(20 * 8))
    for path in Path("out").iterdir():
        np.load(path)


def test_a_full_disk_ends_the_dump_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kinds.np, "save", full)
    start()
    for _ in range(5):
        torch.abs(torch.ones(2))
    unregister_hook()
    assert capsys.readouterr().err == (
        f"ray-precheck hooks: {Path('out').resolve()} cannot be written: No space left on device; nothing"
        " is dumped any more, and the script goes on\n"
    )
    assert list(Path("out").iterdir()) == []
