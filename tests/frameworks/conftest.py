"""Checkers that the tests of this folder share; each opens its framework once for the session."""

import atexit
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from records import statistics_checker

from ray_precheck.check.checker import Checker


@pytest.fixture(autouse=True)
def denormals_as_before() -> Iterator[None]:
    """Some MindSpore operators (Tensor.norm) leave the calling thread flushing denormals.

    The checker undoes that, which has a test; tests that call MindSpore themselves do not.
    """
    import torch

    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def one_debugger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Begin without a debugger of this process; to call what it returns is the end of the process."""
    from ray_precheck.capture import PrecisionDebugger

    ends: list[Callable[[], object]] = []
    register = atexit.register

    def registered(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function.__module__.startswith("ray_precheck."):
            ends.append(function)
            return function
        return register(function, *args, **kwargs)

    def end() -> None:
        while ends:
            ends.pop()()

    monkeypatch.setattr(atexit, "register", registered)
    monkeypatch.setattr(PrecisionDebugger, "_instance", None)
    yield end
    end()


@pytest.fixture(scope="session")
def torch_checker() -> Checker:
    pytest.importorskip("torch")
    return statistics_checker("pytorch")


@pytest.fixture(scope="session")
def mindspore_checker() -> Checker:
    with warnings.catch_warnings():
        # MindSpore's import may warn of what the machine lacks (CANN); that is none of ours.
        warnings.simplefilter("ignore")
        pytest.importorskip("mindspore")
        return statistics_checker("mindspore")
