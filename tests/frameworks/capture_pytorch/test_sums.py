"""Statistics with and without the compiled pass: the same ends, and sums to the last digits of float32."""

import math
from collections.abc import Callable

import pytest
import torch

from ray_precheck.capture.pytorch.tensors import sums
from ray_precheck.capture.pytorch.tensors.values import host_summary
from ray_precheck.numerics.one_pass import COMPILED

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(COMPILED is None, reason="the extension was not built"),
]
INF, NAN = float("inf"), float("nan")
ODD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros of both signs": lambda x: torch.where(x > 0, 0.0, -0.0),
    "below zero": lambda x: torch.where(x > 0, -x, -0.0),
    "above zero": lambda x: x.relu(),
    "subnormal": lambda x: x * 1e-40,
    "small": lambda x: x * 1e-25,
    "huge": lambda x: x.clip(-3, 3) * 1e38,
    "far": lambda x: x + 1000,
    "nan": lambda x: torch.where(x == x.max(), NAN, x),
    "inf": lambda x: torch.where(x == x.max(), INF, x),
    "infinities": lambda x: torch.where(x > 0, INF, -INF),
    "alone": lambda x: x,
}
SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "expanded": lambda x: x.reshape(-1, 1).expand(-1, 3),
    "transposed": lambda x: torch.stack([x, x]).t(),
    "with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "lazily negative": torch._neg_view,
    "without dimensions": lambda x: x[0],
    "a leaf": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 33, 8192, 8193, 300_001])
@pytest.mark.parametrize("name", ODD)
def test_both_ways_agree(
    name: str, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(size)
    tensor = ODD[name](torch.randn(size)).to(dtype)
    views = {name: shaped(tensor) for name, shaped in SHAPES.items()}
    compiled = {name: host_summary(each) for name, each in views.items()}
    monkeypatch.setattr(sums, "COMPILED", None)
    sizes = tensor.double().abs()
    for shape, each in views.items():
        one, other = compiled[shape], host_summary(each)
        assert one is not None
        assert other is not None
        assert list(map(repr, one[:2])) == list(map(repr, other[:2])), (
            shape
        )  # with the signs of zeros
        assert other.norm == pytest.approx(one.norm, rel=4e-5, nan_ok=True), shape
        if each.dim() and math.isfinite(sizes.max().item()):
            # The sum is of values of both signs, and errs by the size of these.
            assert other.mean == pytest.approx(one.mean, rel=0, abs=4e-5 * sizes.mean().item()), (
                shape
            )
        else:
            assert repr(other.mean) == repr(one.mean), shape
