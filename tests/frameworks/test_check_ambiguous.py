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


@pytest.mark.parametrize("api", ["Torch.svd", "Tensor.svd"])
def test_the_older_svd_gives_v_whose_columns_turn_with_those_of_u(
    monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    """torch.linalg.svd gives v^H, torch.svd gives v, and mindspore.ops.svd has the values first."""
    signs = torch.tensor([-1.0, 1.0, -1.0])

    def turned(found: Any) -> Any:
        return found[0] * signs, found[1], found[2] * signs

    def half_turned(found: Any) -> Any:
        return found[0] * signs, found[1], found[2]

    assert _verdict(monkeypatch, turned, api, tensor(5, 3)) is Verdict.PASS
    assert _verdict(monkeypatch, half_turned, api, tensor(5, 3)) is Verdict.ERROR


def test_where_the_device_chose_otherwise_its_gradient_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checker = statistics_checker("pytorch")
    equal = tensor(3, 8, low=1.0, high=1.0, grad=True)
    payload = call("Torch.topk", equal, 4, grads=[tensor(3, 4), None])
    assert checker.check(payload).backward is Verdict.PASS
    replace_kernel(monkeypatch, checker.device(), altered(_other_indices))
    result = checker.check(payload)
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.SKIP)
    assert "their gradients differ" in result.message


def test_the_workspace_of_a_kernel_is_not_compared() -> None:
    indices = tensor(4, dtype="int64", low=0, high=5)
    offsets = tensor(2, dtype="int64", low=0, high=0)
    result = statistics_checker("pytorch").check(
        call("Torch.embedding_bag", tensor(6, 3, grad=True), indices, offsets, grads=[tensor(2, 3)])
    )
    assert (result.forward, result.backward) == (Verdict.PASS, Verdict.PASS)
    assert [check.verdict for check in result.checks][:4] == [Verdict.PASS, *[Verdict.SKIP] * 3]
