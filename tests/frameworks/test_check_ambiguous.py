"""Outputs of which several are right, through the checker: which one the device takes is its choice."""

from typing import Any

import pytest
import torch
from records import altered, call, replace_kernel, statistics_checker, tensor

from ray_precheck.schema.result import Verdict

pytestmark = pytest.mark.frameworks


def _verdict(monkeypatch: pytest.MonkeyPatch, change: Any, *arguments: Any) -> Verdict:
    checker = statistics_checker("pytorch")
    replace_kernel(monkeypatch, checker.device(), altered(change))
    return checker.check(call(*arguments)).forward


def _other_indices(found: Any) -> Any:
    return found[0], 7 - found[1]


def test_of_equal_values_any_index_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = tensor(3, 8, low=1.0, high=1.0)
    assert _verdict(monkeypatch, _other_indices, "Torch.topk", equal, 4) is Verdict.PASS


def test_of_different_values_another_index_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _verdict(monkeypatch, _other_indices, "Torch.topk", tensor(3, 8), 4) is Verdict.ERROR


def test_singular_vectors_may_point_the_other_way_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(found: Any) -> Any:
        signs = torch.tensor([-1.0, 1.0, -1.0])
        return found[0] * signs, found[1], found[2] * signs[:, None]

    svd = "Torch.linalg.svd", tensor(5, 3), False
    assert _verdict(monkeypatch, turned, *svd) is Verdict.PASS

    def half_turned(found: Any) -> Any:
        return found[0] * torch.tensor([-1.0, 1.0, -1.0]), found[1], found[2]

    assert _verdict(monkeypatch, half_turned, *svd) is Verdict.ERROR
