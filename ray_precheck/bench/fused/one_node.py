"""A reference as one node of the autograd graph, as the fused operator is one.

Comes in: a function made of torch operators. Goes out: a function with the same results and gradients
whose graph is a single node. Called by the registry. A capture holds the gradients that the node of an
API's first output passed on: for a fused operator those of its tensors, for a composition those of its
last step.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ray_precheck.frameworks.base import flatten_outputs, map_leaves

Tensor = torch.Tensor
_Run = Callable[[Iterator[Tensor]], list[Any]]


def as_one_node(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose outputs, a flat tuple, all come from one node.

    A function that returns one tensor does so still. In-place functions must not be wrapped,
    because they would change a copy.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        tensors: list[Tensor] = []
        map_leaves((args, kwargs), lambda value: tensors.append(value) if _is(value) else None)
        if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            return function(*args, **kwargs)
        others: list[Any] = []

        def run(leaves: Iterator[Tensor]) -> list[Any]:
            def fill(value: Any) -> Any:
                return next(leaves) if _is(value) else value

            result = function(*map_leaves(args, fill), **map_leaves(kwargs, fill))
            others.extend(flatten_outputs(result, _is))
            return others

        made = iter(_OneNode.apply(run, *tensors))  # type: ignore[no-untyped-call]
        results = tuple(next(made) if _is(leaf) else leaf for leaf in others)
        return results[0] if len(results) == 1 else results

    return called


def _is(value: Any) -> bool:
    return isinstance(value, Tensor)


class _OneNode(torch.autograd.Function):
    """Runs a function with a graph of its own inside, and differentiates that one."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        wanted = ctx.needs_input_grad[1:]
        ctx.leaves = [
            tensor.detach().requires_grad_(wants)
            for tensor, wants in zip(tensors, wanted, strict=True)
        ]
        with torch.enable_grad():
            ctx.results = [leaf for leaf in run(iter(ctx.leaves)) if _is(leaf)]
        outputs = tuple(result.detach() for result in ctx.results)
        pairs = zip(outputs, ctx.results, strict=True)
        ctx.mark_non_differentiable(*[out for out, result in pairs if not result.requires_grad])
        return outputs

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs = [
            (result, grad)
            for result, grad in zip(ctx.results, incoming, strict=True)
            if grad is not None and result.requires_grad
        ]
        leaves = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        results, grads = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        found = iter(
            torch.autograd.grad(results, leaves, grads, retain_graph=True, allow_unused=True)
        )
        return (None, *[next(found) if leaf.requires_grad else None for leaf in ctx.leaves])
