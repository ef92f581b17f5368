"""torch's switches: each is there, is set and restored; and products as plain loops."""

import math

import numpy as np
import pytest
import torch

from ray_precheck.frameworks.pytorch import switches
from ray_precheck.frameworks.pytorch.switches import TORCH_SWITCHES
from ray_precheck.frameworks.switches import SwitchBoard

pytestmark = pytest.mark.frameworks
# opt_einsum is another package, and HF32 needs torch_npu.
MAY_BE_MISSING = {"einsum_order", "hf32_convolutions", "hf32_products"}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_every_switch_of_a_device_is_turned_and_restored(kind: str) -> None:
    board = SwitchBoard(TORCH_SWITCHES, kind)
    wanted = {each.name for each in TORCH_SWITCHES if not each.kinds or kind in each.kinds}
    assert wanted - set(board.names) <= MAY_BE_MISSING
    switches = [each for each in board.switches if not each.environment]
    before = [each.read() for each in switches]
    with board.turned(board.names):
        assert [each.read() for each in switches] == [each.plain for each in switches]
    assert [each.read() for each in switches] == before


def test_the_default_side_computes_with_several_threads_on_a_cpu() -> None:
    board = SwitchBoard(TORCH_SWITCHES, "cpu")
    with board.turned([]):
        assert torch.get_num_threads() == 4
    with board.turned(["threads"]):
        assert torch.get_num_threads() == 1


def test_names_are_said_once_and_each_has_its_words() -> None:
    names = [each.name for each in TORCH_SWITCHES]
    assert len(names) == len(set(names))
    assert all(each.title and each.advice for each in TORCH_SWITCHES)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "complex64", "int64"]
)
def test_plain_products_are_products(dtype: str) -> None:
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    left, right, added = (
        (4 * torch.randn(*shape)).to(kind) for shape in ((2, 5, 7), (2, 7, 3), (2, 5, 3))
    )
    # With beta = 0 what is added is not read.
    unread = torch.full_like(added[0], math.nan) if kind.is_floating_point else added[0]
    wanted = [
        torch.bmm(left, right),
        left[0] @ right[0],
        left[0] @ right[0, :, 0],
        torch.dot(left[0, 0], right[0, :, 0]),
        torch.baddbmm(added, left, right, beta=2, alpha=3),
        torch.addmm(added[0], left[0], right[0]),
        torch.addmv(added[0, :, 0], left[0], right[0, :, 0]),
        torch.addmm(unread, left[0], right[0], beta=0),
    ]
    switches.make_plain(True)
    try:
        assert switches.are_plain()
        found = [
            torch.bmm(left, right),
            left[0] @ right[0],
            left[0] @ right[0, :, 0],
            torch.dot(left[0, 0], right[0, :, 0]),
            torch.baddbmm(added, left, right, beta=2, alpha=3),
            torch.addmm(added[0], left[0], right[0]),
            torch.addmv(added[0, :, 0], left[0], right[0, :, 0]),
            torch.addmm(unread, left[0], right[0], beta=0),
        ]
    finally:
        switches.make_plain(False)
    assert not switches.are_plain()
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype is kind
        assert torch.allclose(mine, theirs, 2e-2 if "16" in dtype else 1e-4, 0.1)


def test_plain_products_are_not_those_of_torch_s_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    original = switches._product

    def watched(one: object, other: object, *, is_small: bool) -> object:
        seen.append(is_small)
        return original(one, other, is_small=is_small)  # type: ignore[arg-type]

    monkeypatch.setattr(switches, "_product", watched)
    monkeypatch.setattr(switches, "_MOST_MULTIPLICATIONS", 100)
    value = torch.randn(4, 4, requires_grad=True)
    switches.make_plain(True)
    try:
        (value @ value).sum().backward()
        torch.randn(8, 8) @ torch.randn(8, 8)
    finally:
        switches.make_plain(False)
    assert seen == [True, True, True, False]
    assert np.isfinite(value.grad.numpy()).all()
