"""Steps that end where the mode of the capture is not uppermost, or not there."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ray_precheck.capture import Capture

pytestmark = pytest.mark.frameworks


class _Own(TorchFunctionMode):
    """A mode of the script."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Doubled(TorchFunctionMode):
    """Makes each sum twice as large, as a wrong kernel would."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if getattr(func, "__name__", "") == "sum" else out


def _training() -> Callable[[], None]:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        model(torch.ones(2)).sum().backward()
        optimizer.step()

    return train


def _data(folder: Path, step: int) -> dict[str, Any]:
    (dump,) = folder.glob(f"step{step}/*/dump.json")
    return dict(json.loads(dump.read_text())["data"])


def test_a_step_may_end_in_another_thread_than_it_began_in(tmp_path: Path) -> None:
    train, errors = _training(), []
    with Capture(tmp_path, framework="pytorch") as capture:
        for _ in range(2):
            thread = threading.Thread(target=lambda: errors.append(train()))
            thread.start()
            thread.join()
            train()
    assert errors == [None, None]
    assert len(capture.captured) == 4
    assert _get_current_function_mode_stack() == []


def test_an_optimizer_may_step_in_the_backward_pass(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    for each in model.parameters():
        own = torch.optim.SGD([each], lr=0.1)
        each.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    with Capture(tmp_path, framework="pytorch") as capture:
        for _ in range(5):
            model(torch.ones(2)).sum().backward()
            assert len(_get_current_function_mode_stack()) <= 3
    model(torch.ones(2))
    assert len(capture.captured) >= 5


@pytest.mark.parametrize("own", [_Own, lambda: torch.device("cpu")], ids=["mode", "device"])
def test_modes_of_the_script_go_where_the_script_takes_them_off(
    tmp_path: Path, own: Callable[[], Any]
) -> None:
    train = _training()
    with Capture(tmp_path, framework="pytorch"):
        train()
        with own():
            train()
            train()
        assert [type(each).__name__ for each in _get_current_function_mode_stack()] == ["CallMode"]
        train()
    assert _get_current_function_mode_stack() == []
    assert "Functional.linear.0.forward" in _data(tmp_path, 3)


def test_what_a_mode_around_the_capture_does_to_a_call_belongs_to_the_call(tmp_path: Path) -> None:
    train = _training()
    with _Doubled(), Capture(tmp_path, framework="pytorch"):
        train()
        train()
    for step in (0, 1):
        (output,) = _data(tmp_path, step)["Tensor.sum.0.forward"]["output"]
        (given,) = _data(tmp_path, step)["Tensor.sum.0.forward"]["input_args"]
        assert output["Max"] == pytest.approx(2 * 2 * given["Mean"], rel=1e-5)
    assert _get_current_function_mode_stack() == []


def test_a_default_device_can_be_taken_back(tmp_path: Path) -> None:
    train = _training()
    with Capture(tmp_path, framework="pytorch"):
        torch.set_default_device("cpu")
        train()
        with torch.device("cpu"):
            train()
        torch.set_default_device(None)
        train()
    assert _get_current_function_mode_stack() == []
    assert "Functional.linear.0.forward" in _data(tmp_path, 2)
