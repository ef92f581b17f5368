"""Calls inside the transforms of torch.func."""

from typing import Any

import pytest
import torch
from torch.func import grad, hessian, vmap


def _cubes(x: torch.Tensor) -> torch.Tensor:
    return x.pow(3).sum()


@pytest.mark.parametrize(
    "options",
    [{}, {"task": "tensor"}, {"sketch": True}, {"summary_mode": "md5"}],
    ids=["statistics", "tensor", "sketch", "md5"],
)
def test_transforms_are_captured_to_their_end(captured: Any, options: dict[str, Any]) -> None:
    x = torch.arange(1.0, 7.0).reshape(2, 3)
    found: list[torch.Tensor] = []

    def step() -> None:
        found.append(vmap(grad(_cubes))(x))
        found.append(hessian(_cubes)(x[0]))
        torch.sin(x)

    records = captured(step, **options)

    assert "Torch.sin.0.forward" in records
    assert torch.equal(found[0], 3 * x**2)
    assert torch.equal(found[1], torch.diag(6 * x[0]))


def test_a_call_that_is_mapped_has_the_shapes_that_it_got(captured: Any) -> None:
    x = torch.arange(1.0, 7.0).reshape(2, 3)

    records = captured(lambda: vmap(lambda row: row.sum())(x), task="tensor")

    record = records["Tensor.sum.0.forward"]
    (given,), (made,) = record["input_args"], record["output"]
    assert (given["shape"], given["Max"], given["Min"]) == ([3], 6.0, 1.0)
    assert (made["shape"], made["Max"], made["Min"]) == ([], 15.0, 6.0)
    assert "data_name" not in given  # the values of all rows are no values of this call
