"""What a capture leaves in torch between two captured steps, and after the last one."""

import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed
from torch.overrides import _get_current_function_mode_stack

from ray_precheck.capture import Capture

pytestmark = pytest.mark.frameworks
OWN = "ray_precheck/capture/"
# What README.md of the capture lists: nothing else may be there.
WATCHED = {
    "torch.nn.modules.module._global_forward_pre_hooks": 1,
    "torch.optim.optimizer._global_optimizer_pre_hooks": 1,
    "torch.optim.optimizer._global_optimizer_post_hooks": 1,
}
DETOURED = {
    "torch.amp.grad_scaler.GradScaler.step",
    *(  # messages are counted
        f"torch.distributed.distributed_c10d.ProcessGroup.{name}"
        for name in ("send", "recv", "recv_anysource")
        if torch.distributed.is_available()
    ),
}


class State(NamedTuple):
    """Each function of torch by its place, and how many functions of the capture a table of torch holds."""

    functions: dict[str, Any]
    tables: dict[str, int]
    modes: list[Any]


def torchs_modules() -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torch" and inspect.ismodule(module):
            yield module


def look() -> State:
    functions: dict[str, Any] = {}
    tables: dict[str, int] = {}
    for module in torchs_modules():
        for name, value in list(vars(module).items()):
            place = f"{module.__name__}.{name}"
            if isinstance(value, type):
                place = f"{value.__module__}.{value.__qualname__}"
                functions |= {f"{place}.{each}": found for each, found in vars(value).items()}
            elif callable(value):
                functions[place] = value
            elif isinstance(value, dict | list):
                values = list(value.values()) if isinstance(value, dict) else value
                tables[place] = sum(is_of_the_capture(each) for each in values)
    return State(
        {place: value for place, value in functions.items() if is_called(value)},
        {place: count for place, count in tables.items() if count},
        list(_get_current_function_mode_stack()),
    )


def is_called(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def is_of_the_capture(value: Any) -> bool:
    kinds = types.FunctionType | types.MethodType
    return isinstance(value, kinds) and OWN in value.__code__.co_filename


def changed(before: State, now: State) -> set[str]:
    """Return what is another function than before, is gone, or has come and is one of the capture."""
    return {
        place
        for place in before.functions | now.functions
        if before.functions.get(place) is not now.functions.get(place)
        if place in before.functions or is_of_the_capture(now.functions.get(place))
    }


def test_between_captured_steps_only_what_tells_of_steps_is_there(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    looks = []

    def run(path: Path) -> None:
        with Capture(path, framework="pytorch", model=model, steps="0,2", level="mix"):
            for _ in range(4):
                looks.append(look())
                model(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
            looks.append(look())
        looks.append(look())

    run(tmp_path / "first")  # some of torch's modules are imported by the first capture
    before = look()
    looks.clear()
    run(tmp_path / "second")
    inside, between, again, after_last, after_next, ended = looks
    for captured in (inside, again):
        assert {"torch.nn.modules.module.Module.__call__", "torch.Tensor.__add__"} <= changed(
            before, captured
        )
        assert len(captured.modes) == 1
    assert changed(before, between) == DETOURED
    assert between.tables == WATCHED
    assert between.modes == []
    assert changed(before, after_last) == set()
    for idle in (after_next, ended):
        assert changed(before, idle) == set()
        assert idle.tables == before.tables == {}
        assert idle.modes == []
