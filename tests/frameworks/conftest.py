"""Checkers that the tests of this folder share; each opens its framework once for the session."""

import warnings
from collections.abc import Iterator

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
