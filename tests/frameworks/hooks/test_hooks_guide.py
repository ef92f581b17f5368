"""The examples of torch_npu's guide, with the import line and the device changed.

The guide is "PyTorch精度比对和溢出检测工具使用指南" in Ascend/pytorch; its `.npu()` is `.cpu()` here.
"""

import copy
import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy
import pytest
import torch
from hook_dumps import names, read_lines
from torch import nn

from ray_precheck.hooks import (
    register_hook,
    schedule,
    seed_all,
    set_dump_path,
    step_schedule,
    unregister_hook,
    wrap_acc_cmp_hook,
    wrap_async_datadump_hook,
    wrap_checkoverflow_hook,
)
from ray_precheck.hooks.tools import compare

pytestmark = pytest.mark.frameworks


class ModuleOP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_features=2, out_features=2)
        self.linear_2 = nn.Linear(in_features=2, out_features=1)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.linear_2(self.linear_1(x)))


@pytest.fixture
def torchvision() -> ModuleType:
    try:
        import torchvision
    except ImportError:
        pytest.skip("torchvision is not installed")
    except RuntimeError as error:  # its wheel was built for another torch
        pytest.skip(f"torchvision cannot be imported: {error}")
    return torchvision


def test_two_runs_of_a_small_network() -> None:
    module = ModuleOP()
    register_hook(module, wrap_acc_cmp_hook)
    seed_all()
    x = torch.randn(2, 2)

    set_dump_path("./cpu_module_op.pkl")
    module(x).sum().backward()

    module.cpu()
    x = x.cpu()
    set_dump_path("./npu_module_op.pkl")
    module(x).sum().backward()

    linear = [
        "Functional_linear_forward_" + it for it in ("input.0", "input.1", "input.2", "output")
    ]
    assert names("./cpu_module_op.pkl") == [
        *linear,
        *linear,
        "Functional_relu_forward_input.0",
        "Functional_relu_forward_output",
        "Tensor_sum_forward_input.0",  # Its output has no dimension.
        "Tensor_sum_backward_input.0",
        "Functional_relu_backward_input.0",
        "Functional_relu_backward_output.0",
        "Functional_linear_backward_input.0",
        "Functional_linear_backward_input.1",
        "Functional_linear_backward_input.2",
        "Functional_linear_backward_output.0",
        "Functional_linear_backward_input.0",  # The network's input requires no gradient.
        "Functional_linear_backward_input.1",
        "Functional_linear_backward_output.0",
    ]
    assert Path("cpu_module_op.pkl").read_text() == Path("npu_module_op.pkl").read_text()
    compare("npu_module_op.pkl", "cpu_module_op.pkl", "module_result.csv", True)
    with Path("module_result.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(Path("npu_module_op.pkl").read_text().splitlines())
    assert {row["RMSE"] for row in rows} == {"0.0"}


def test_two_runs_of_resnet50(torchvision: ModuleType) -> None:
    model_cpu = torchvision.models.resnet50()
    model_cpu.eval()
    model_npu = copy.deepcopy(model_cpu)
    model_npu.eval()

    seed_all()
    register_hook(model_cpu, wrap_acc_cmp_hook)
    register_hook(model_npu, wrap_acc_cmp_hook)

    inputs = torch.randn(1, 3, 244, 244)
    labels = torch.randn(1).long()
    criterion = nn.CrossEntropyLoss()

    set_dump_path("./cpu_resnet50_op.pkl")
    criterion(model_cpu(inputs), labels).backward()

    set_dump_path("./npu_resnet50_op.pkl")
    model_npu.cpu()
    inputs = inputs.cpu()
    labels = labels.cpu()
    criterion(model_npu(inputs), labels).backward()

    found = names("./cpu_resnet50_op.pkl")
    assert found == names("./npu_resnet50_op.pkl")
    for name, count in [
        ("Functional_conv2d_forward_output", 53),
        ("Functional_conv2d_backward_output.0", 53),
        ("Functional_batch_norm_forward_output", 53),
        ("Functional_relu_forward_output", 49),
        ("Tensor___iadd___forward_output", 16),
        ("Functional_max_pool2d_forward_output", 1),
        ("Functional_linear_backward_output.0", 1),
        ("Functional_cross_entropy_forward_input.0", 1),
    ]:
        assert found.count(name) == count, name

    with open("./cpu_resnet50_op.pkl") as pkl_file:
        tensor_data = json.loads(pkl_file.readline())
    assert tensor_data[0] == "0_Functional_conv2d_forward_input.0"
    assert len(tensor_data[1]) == 13
    assert tensor_data[2] == "torch.float32"
    assert tensor_data[3] == [1, 3, 244, 244]


def train(model: nn.Module, epochs: int, batches: Sequence[torch.Tensor]) -> None:
    for _ in range(epochs):
        step_schedule.reset_step()
        for inputs in batches:
            model(inputs).sum().backward()
            step_schedule.step()


def test_a_schedule_chooses_the_steps_of_each_epoch() -> None:
    model = nn.Linear(1, 1)
    register_hook(model, wrap_acc_cmp_hook, schedule=schedule(4, 10, 2))
    set_dump_path("./steps.pkl")
    train(model, 2, [torch.full((1, 1), float(step)) for step in range(13)])
    inputs = [
        line.values[0] for line in read_lines("steps.pkl") if "linear_forward_input.0" in line.name
    ]
    assert inputs == [4.0, 6.0, 8.0, 10.0] * 2


def test_arrays_are_written_beside_the_training() -> None:
    module = ModuleOP()
    register_hook(module, wrap_async_datadump_hook, path="./output", schedule=schedule(1, 2))
    train(module, 1, [torch.randn(2, 2) for _ in range(4)])
    unregister_hook()  # waits for the files; the end of the process does so, too
    found = sorted(path.name for path in Path("output").iterdir())
    relu = [name for name in found if "Functional_relu_backward_input0" in name]
    assert [re.sub(r"^\d+", "16", name) for name in relu] == [
        "16_Functional_relu_backward_input0_shape[2,1]_stride[1,1]_offset[0]_format[2].npy"
    ] * 2
    assert numpy.load(f"./output/{relu[0]}").shape == (2, 1)


def test_a_network_without_overflow_is_left_alone(torchvision: ModuleType) -> None:
    model = torchvision.models.resnet50()
    register_hook(model, wrap_checkoverflow_hook)
    inputs = torch.randn(2, 3, 64, 64)
    labels = torch.randn(2).long().abs()
    nn.CrossEntropyLoss()(model(inputs), labels).backward()
    assert list(Path().iterdir()) == []


def test_an_overflow_stops_the_training_and_names_the_layer(torchvision: ModuleType) -> None:
    model = torchvision.models.resnet50().eval()
    with torch.no_grad():
        model.layer3[2].conv2.weight.fill_(1e38)
    register_hook(model, wrap_checkoverflow_hook)
    with pytest.raises(
        ValueError, match=r"Functional_conv2d_forward in layer layer3\.2\.conv2 \(Conv2d\)"
    ):
        model(torch.randn(1, 3, 64, 64))
    (path,) = Path().glob("Overflow_info_*.pkl")
    assert re.fullmatch(r"Overflow_info_\d{8}_\d{6}\.pkl", path.name)
