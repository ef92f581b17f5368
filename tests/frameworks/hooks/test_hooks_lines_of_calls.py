"""The lines that a call and its gradients have."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hook_dumps import by_name, names, read_lines
from torch import nn
from torch.nn import functional
from torch.nn.functional import relu
from torch.utils.checkpoint import checkpoint

from ray_precheck.capture.pytorch.classic import lines
from ray_precheck.hooks import (
    register_hook,
    schedule,
    seed_all,
    set_dump_path,
    step_schedule,
    unregister_hook,
    wrap_acc_cmp_hook,
)

pytestmark = pytest.mark.frameworks


def start(*, sample: bool = True, **more: Any) -> None:
    register_hook(nn.Identity(), wrap_acc_cmp_hook, sample=sample, **more)
    set_dump_path("a.pkl")


def test_a_sample_is_ten_values_the_largest_the_smallest_and_the_mean() -> None:
    start()
    torch.abs(torch.arange(-8.0, 12.0).reshape(4, 5))
    line = by_name("a.pkl")["Torch_abs_forward_input.0"]
    assert line.values == [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 11, -8, 1.5]
    assert (line.dtype, line.shape) == ("torch.float32", [4, 5])


def test_without_a_sample_all_values_are_there() -> None:
    start(sample=False)
    torch.abs(torch.arange(-8.0, 12.0).reshape(4, 5))
    assert by_name("a.pkl")["Torch_abs_forward_input.0"].values == list(range(-8, 12))
    assert len(by_name("a.pkl")["Torch_abs_forward_output"].values) == 20


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_types_keep_their_values(dtype: torch.dtype) -> None:
    start()
    x = torch.tensor([1 / 3, 2.0], dtype=dtype)
    torch.abs(x)
    line = by_name("a.pkl")["Torch_abs_forward_input.0"]
    assert line.values[:2] == x.tolist()
    assert line.dtype == str(dtype)


def test_float8_is_sampled_in_float32() -> None:
    start()
    x = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    torch.stack([x, x])
    assert by_name("a.pkl")["Torch_stack_forward_output"].values == [1, 2, 1, 2, 2, 1, 1.5]


def test_nan_and_infinity_are_bare_words_of_json() -> None:
    start()
    torch.abs(torch.tensor([math.nan, math.inf, -math.inf]))
    text = Path("a.pkl").read_text().splitlines()[0]
    assert "[NaN, Infinity, -Infinity, NaN, NaN, NaN]" in text
    assert math.isnan(json.loads(text)[1][0])


def test_numbers_integers_and_what_has_no_dimension_have_no_line() -> None:
    start()
    ones = torch.ones(2)
    torch.add(ones, torch.tensor(2.0))
    torch.cumsum(torch.arange(3), 0)
    torch.sum(ones)
    assert names("a.pkl") == [
        "Torch_ones_forward_output",
        "Torch_add_forward_input.0",
        "Torch_add_forward_output",
        "Torch_sum_forward_input.0",
    ]


def test_an_empty_tensor_has_no_values() -> None:
    start()
    torch.abs(torch.zeros(0, 3))
    assert [line.values for line in read_lines("a.pkl")] == [[], []]


def test_a_meta_tensor_has_no_line() -> None:
    start()
    torch.abs(torch.zeros(2, 3, device="meta"))
    assert names("a.pkl") == []


def test_a_sparse_tensor_has_the_values_that_it_stores() -> None:
    start()
    torch.mul(torch.tensor([[0.0, 3.0], [0.0, 0.0]]).to_sparse(), 2)
    line = by_name("a.pkl")["Torch_mul_forward_output"]
    assert (line.values, line.shape) == ([6, 6, 6, 6], [1])


def test_the_operators_of_python_and_names_that_were_imported_are_seen() -> None:
    start()
    x = torch.randn(2)
    x += x * 2
    relu(x)
    assert names("a.pkl") == [
        "Tensor___mul___forward_input.0",
        "Tensor___mul___forward_output",
        "Tensor___iadd___forward_input.0",
        "Tensor___iadd___forward_input.1",
        "Tensor___iadd___forward_output",
        "Functional_relu_forward_input.0",
        "Functional_relu_forward_output",
    ]


def test_lists_have_numbers_of_their_own_and_named_arguments_the_next_ones() -> None:
    start()
    a, b = torch.randn(2, 2), torch.randn(2, 2)
    torch.cat([a, b], 0)
    torch.max(a, 0)
    functional.linear(a, weight=b)
    assert names("a.pkl") == [
        "Torch_cat_forward_input.0.0",
        "Torch_cat_forward_input.0.1",
        "Torch_cat_forward_output",
        "Torch_max_forward_input.0",
        "Torch_max_forward_output.0",  # The second one has integers.
        "Functional_linear_forward_input.0",
        "Functional_linear_forward_input.1",
        "Functional_linear_forward_output",
    ]


def test_a_call_in_place_has_the_value_before_it() -> None:
    start()
    x = torch.tensor([-1.0, 2.0])
    functional.relu(x, inplace=True)
    x.mul_(3)
    found = by_name("a.pkl")
    assert found["Functional_relu_forward_input.0"].values[:2] == [-1, 2]
    assert found["Functional_relu_forward_output"].values[:2] == [0, 2]
    assert found["Tensor_mul__forward_input.0"].values[:2] == [0, 2]
    assert found["Tensor_mul__forward_output"].values[:2] == [0, 6]


def test_moves_copies_and_random_tensors_have_no_line() -> None:
    start()
    x = torch.randn(2, 2)
    x = x.cpu().to("cpu").clone().contiguous().double().float()
    nn.Linear(2, 2).cpu().half()
    assert names("a.pkl") == []


def test_gradients_are_those_of_autograd() -> None:
    weight = torch.randn(3, 2, requires_grad=True)
    x = torch.randn(4, 5, 2, requires_grad=True)  # Three dimensions: several nodes of autograd.
    arriving = torch.randn(4, 5, 3)
    expected = torch.autograd.grad(functional.linear(x, weight), (x, weight), arriving)
    start(sample=False)
    functional.linear(x, weight).backward(arriving)
    found = by_name("a.pkl")
    for index, gradient in enumerate(expected):
        line = found[f"Functional_linear_backward_input.{index}"]
        assert line.values == gradient.reshape(-1).tolist()
    output = found["Functional_linear_backward_output.0"]
    assert output.values == arriving.reshape(-1).tolist()


@pytest.mark.parametrize("way", ["method", "function", "grad"])
def test_gradients_are_seen_however_the_backward_pass_is_started(way: str) -> None:
    start()
    x = torch.randn(2, requires_grad=True)
    loss = torch.exp(x).sum()
    if way == "method":
        loss.backward()
    elif way == "function":
        torch.autograd.backward(loss)
    else:
        torch.autograd.grad(loss, x)
    assert "Torch_exp_backward_input.0" in names("a.pkl")


def test_gradients_of_a_call_whose_outputs_are_not_all_used_are_written() -> None:
    model = nn.LSTM(2, 3, batch_first=True)
    register_hook(model, wrap_acc_cmp_hook)
    set_dump_path("a.pkl")
    output, _ = model(torch.randn(1, 4, 2))
    output.sum().backward()
    found = [name for name in names("a.pkl") if "lstm_backward" in name]
    assert "VF_lstm_backward_output.0" in found or "Torch_lstm_backward_output.0" in found
    assert len(found) > 2


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_region_has_its_gradients(use_reentrant: bool) -> None:
    start()
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    x = torch.randn(1, 2, requires_grad=True)
    checkpoint(net, x, use_reentrant=use_reentrant).square().sum().backward()
    found = names("a.pkl")
    assert found.count("Functional_linear_backward_input.0") == 1
    assert found.count("Functional_linear_forward_output") == 2  # It is computed again.


def test_the_hook_leaves_the_numbers_as_they_are() -> None:
    def losses() -> list[float]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters())
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 3)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    plain = losses()
    start()
    assert losses() == plain


def test_nothing_is_written_before_a_path_is_set() -> None:
    register_hook(nn.Identity(), wrap_acc_cmp_hook)
    x = torch.ones(2) * 3
    set_dump_path("a.pkl")
    torch.abs(x)
    assert names("a.pkl")[0] == "Torch_abs_forward_input.0"


def test_steps_that_are_left_out_have_no_gradients_either() -> None:
    start(schedule=schedule(1, 1))
    x = torch.randn(2, requires_grad=True)
    for _ in range(3):
        torch.exp(x).sum().backward()
        step_schedule.step()
    assert names("a.pkl").count("Torch_exp_forward_output") == 1
    assert names("a.pkl").count("Torch_exp_backward_input.0") == 1


def test_nothing_is_looked_at_after_the_hook_was_taken_off() -> None:
    start()
    x = torch.randn(2, requires_grad=True)
    y = torch.exp(x)
    before = names("a.pkl")
    patched = torch.Tensor.__add__
    unregister_hook()
    assert torch.Tensor.__add__ is not patched
    set_dump_path("b.pkl")
    torch.abs(y).sum().backward()
    assert names("a.pkl") == before
    assert names("b.pkl") == []


def test_a_model_can_be_saved_and_copied_as_before() -> None:
    model = nn.Linear(2, 1)
    register_hook(model, wrap_acc_cmp_hook)
    torch.save(model, "model.pt")
    for hooks in (model._forward_hooks, model._forward_pre_hooks, model._backward_hooks):
        assert not hooks


def test_a_forked_process_writes_nothing() -> None:
    start()
    child = os.fork()
    if not child:
        torch.abs(torch.ones(2))
        os._exit(0)
    os.waitpid(child, 0)
    assert names("a.pkl") == []


def test_a_hook_can_be_registered_at_a_single_module() -> None:
    model = nn.Linear(2, 1)
    model.register_forward_hook(wrap_acc_cmp_hook("Module_Linear_forward", sample=False))
    set_dump_path("a.pkl")
    model(torch.tensor([[1.0, 2.0]]))
    assert names("a.pkl") == ["Module_Linear_forward_input.0", "Module_Linear_forward_output"]


def test_registering_seeds_as_it_did() -> None:
    start()
    first = (random.random(), float(np.random.rand()), torch.rand(1).item())
    seed_all()
    assert (random.random(), float(np.random.rand()), torch.rand(1).item()) == first
    assert os.environ["PYTHONHASHSEED"] == "1234"
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    start(seed=None)
    assert torch.equal(torch.rand(1), expected)


def test_a_full_disk_ends_the_dump_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lines.os, "write", full)
    for _ in range(3):
        torch.abs(torch.randn(2))
    path = Path("a.pkl").resolve()
    assert capsys.readouterr().err == (
        f"ray-precheck hooks: {path} cannot be written: No space left on device; nothing is dumped any"
        " more, and the script goes on\n"
    )


KILLED = """
import torch
from torch import nn
from ray_precheck.hooks import register_hook, set_dump_path, wrap_acc_cmp_hook
model = nn.Linear(50, 50)
register_hook(model, wrap_acc_cmp_hook, sample=False)
set_dump_path("killed.pkl")
while True:
    model(torch.randn(50, 50)).sum().backward()
"""


@pytest.mark.parametrize("wait_s", [0.0, 0.0013, 0.0171])
def test_a_killed_process_leaves_whole_lines(wait_s: float) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED])
    path = Path("killed.pkl")
    while not path.exists() or path.stat().st_size < 1 << 20:
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(wait_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    *whole, last = path.read_text().split("\n")
    assert len(whole) > 3
    assert all(len(json.loads(line)) == 4 for line in whole)
    assert not last or last.startswith("[")
