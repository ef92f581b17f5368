"""Wrong arguments of the hooks are one sentence each."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ray_precheck.hooks import (
    HookUsageError,
    register_hook,
    seed_all,
    set_dump_path,
    wrap_acc_cmp_hook,
    wrap_async_datadump_hook,
)

pytestmark = pytest.mark.frameworks
KNOWN = "wrap_acc_cmp_hook, wrap_checkoverflow_hook, wrap_async_datadump_hook"


def own_hook(name: str, **_: Any) -> None:
    """Nothing that `register_hook` knows."""


@pytest.mark.parametrize(
    ("model", "shown"), [(torch.ones(2), "Tensor"), (None, "NoneType"), (nn.Linear, "type")]
)
def test_a_model_must_be_a_module(model: Any, shown: str) -> None:
    with pytest.raises(HookUsageError) as caught:
        register_hook(model, wrap_acc_cmp_hook)
    assert str(caught.value) == f"the model is a {shown}; expected a torch.nn.Module"


@pytest.mark.parametrize(
    ("hook", "shown"),
    [
        (own_hook, "own_hook"),
        (None, "None"),
        ("wrap_acc_cmp_hook", "'wrap_acc_cmp_hook'"),
        ([], "[]"),
    ],
)
def test_a_hook_must_be_one_of_the_three(hook: Any, shown: str) -> None:
    with pytest.raises(HookUsageError) as caught:
        register_hook(nn.Identity(), hook)
    assert str(caught.value) == f"the hook is {shown}; expected one of {KNOWN}"


def test_a_refused_registration_leaves_nothing_behind() -> None:
    with pytest.raises(HookUsageError):
        register_hook(nn.Identity(), own_hook)
    with pytest.raises(HookUsageError):
        register_hook(nn.Identity(), wrap_acc_cmp_hook, schedule=3)
    set_dump_path("a.pkl")
    torch.abs(torch.ones(2))
    assert Path("a.pkl").read_text() == ""


def test_the_path_of_arrays_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(HookUsageError) as caught:
            register_hook(nn.Identity(), wrap_async_datadump_hook, path=path)
        assert str(caught.value) == (
            f"the arrays cannot be written to {tmp_path / path}: it, or a part of it, is a file; give"
            " register_hook the path of a folder that can be written"
        )


@pytest.mark.parametrize("capacity", [2, 2049, "9", 3.0])
def test_the_capacity_has_limits(capacity: Any) -> None:
    with pytest.raises(HookUsageError) as caught:
        register_hook(nn.Identity(), wrap_async_datadump_hook, capacity=capacity)
    assert str(caught.value) == f"capacity is {capacity!r}; expected 3 to 2048"


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1"])
def test_a_seed_must_fit_every_generator(seed: Any) -> None:
    with pytest.raises(HookUsageError) as caught:
        seed_all(seed)
    assert (
        str(caught.value) == f"the seed is {seed!r}; expected a whole number from 0 to 4294967295"
    )


def test_a_model_that_runs_without_a_path_is_told_to_set_one() -> None:
    model = nn.Linear(2, 1)
    register_hook(model, wrap_acc_cmp_hook)
    with pytest.raises(HookUsageError) as caught:
        model(torch.ones(1, 2))
    assert str(caught.value) == (
        "Functional_linear_forward was called by the registered model and there is no file to write it to;"
        " call set_dump_path before the model"
    )
    nn.ReLU()(torch.ones(2))  # It belongs to no registered model.
