"""The reference of a fused operator beside an independent implementation, forward and backward."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ray_precheck.bench.run import References
from ray_precheck.schema.record import ApiName

Tensor = torch.Tensor
_REFERENCES: dict[str, References] = {}


def fused(type_name: str) -> Callable[..., Any]:
    """Return the reference of `NPU.x`, or of `Functional.x` in a dump of MindSpore."""
    framework = "mindspore" if type_name.startswith("Functional.") else "pytorch"
    references = _REFERENCES.setdefault(framework, References(framework))
    prefix, api = type_name.split(".", 1)
    found = references.find(ApiName(prefix, api, 0))
    assert found is not None
    return found


def randn(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    """Return normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return made.requires_grad_(grad)


def assert_same(ours: Any, theirs: Any, inputs: Sequence[Tensor] = ()) -> None:
    """Compare two results, and their gradients at the inputs for the same random cotangents."""
    mine, other = _tensors(ours), _tensors(theirs)
    assert len(mine) == len(other)
    for left, right in zip(mine, other, strict=True):
        assert left.shape == right.shape
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)
    if inputs:
        for left, right in zip(_grads(mine, inputs), _grads(other, inputs), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [leaf for leaf in result if isinstance(leaf, Tensor)]


def _grads(outputs: list[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    differentiable = [out for out in outputs if out.requires_grad]
    cotangents = [randn(*out.shape, seed=9, grad=False) for out in differentiable]
    return torch.autograd.grad(
        differentiable, inputs, cotangents, retain_graph=True, materialize_grads=True
    )
