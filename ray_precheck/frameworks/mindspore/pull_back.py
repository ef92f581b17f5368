"""MindSpore's `vjp` with one forward pass, on every version.

Comes in: a function and its inputs. Goes out: its outputs, and the function that pulls gradients back.
Called by `mindspore.run`. `mindspore.vjp` of older versions (2.5 and 2.7, not 2.10) runs the function once
for its outputs and once more for its gradients: a random function then draws other numbers, and its
gradients are not those of its outputs. There MindSpore's executor records the only run, as 2.10 does.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import mindspore as ms
import numpy as np

from ray_precheck import private_parts


def vjp(function: Callable[..., Any], *inputs: ms.Tensor) -> tuple[Any, Callable[..., Any]]:
    """Run a function that returns a tuple of tensors; return them and their pull-back.

    The pull-back takes a tuple with a cotangent for each output and returns the gradient of each input;
    it may be called once. On a version whose `vjp` runs the function twice, and which lacks the executor,
    it runs the function again.
    """
    executor = None if _runs_once() else private_parts.find(private_parts.MINDSPORE_RECORDER)
    if executor is None:
        outputs, pull_back = ms.vjp(function, *inputs)
        return outputs, pull_back
    executor.set_grad_flag(True)
    executor.new_graph(function, *inputs)
    outputs = function(*inputs)
    executor.end_graph(function, outputs, *inputs)
    return outputs, partial(_pulled_back, function, inputs)


def _pulled_back(
    function: Callable[..., Any], inputs: tuple[ms.Tensor, ...], cotangents: tuple[ms.Tensor, ...]
) -> Any:
    """Return the gradients. The executor knows the function and its inputs, and does not run it again."""
    return ms.ops.GradOperation(get_all=True, sens_param=True)(function)(*inputs, cotangents)


@cache
def _runs_once() -> bool:
    """Return whether `mindspore.vjp` runs the function once, by a trial."""
    runs: list[None] = []

    def doubled(value: ms.Tensor) -> ms.Tensor:
        runs.append(None)
        return value + value

    one = ms.Tensor(np.ones(1, np.float32))
    _, pull_back = ms.vjp(doubled, one)
    pull_back(one)
    return len(runs) == 1
