"""A wrong gradient of one call, and the honest errors of the same gradient.

Comes in: calls whose results require a gradient. Goes out: `Size`s by key. Acts of `runs`. Hooks on the
node of autograd's graph that leads out of the call to one of its inputs change what it passes on, before
the capture's own hooks, which are put on after the call, see it. The reference is torch's derivative in
float64 at the captured inputs, for the very gradient that arrived.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ray_precheck.foreign import caught
from scripts.locate_faults.planted import Change, Size, size_of
from scripts.locate_faults.planting.runs import Act, MadeStep, only_tensor, unseen
from scripts.locate_faults.planting.watching import tensors_of, widened

_ACCUMULATE = "torch::autograd::AccumulateGrad"
# The identity of a node and the number of its output, or of a leaf and `_LEAF`.
Edge = tuple[int, int]
_LEAF = -1


class Way(NamedTuple):
    """The node and the number of its edge by which a gradient leaves a call, and the number of the input
    tensor that gets it."""

    node: Any
    place: int
    input: int


def way_out(call: MadeStep, result: Tensor) -> Way | None:
    """Return the way to the first input that has one way and is given once; None where there is none."""
    inputs = list(tensors_of((call.args, call.kwargs)))
    nodes = [
        each.grad_fn for each in inputs
    ]  # Held, so that no other one gets the identity of one.
    edges = [_edge(*each) for each in zip(inputs, nodes, strict=True)]
    ways = list(_ways(result.grad_fn, {edge for edge in edges if edge is not None}))
    for index, edge in enumerate(edges):
        if edge is None or edges.count(edge) > 1:
            continue
        mine = [(node, place) for node, place, found in ways if found == edge]
        if len(mine) == 1:
            return Way(*mine[0], index)
    return None


def _edge(tensor: Tensor, node: Any) -> Edge | None:
    if not tensor.requires_grad:
        return None
    return (id(tensor), _LEAF) if node is None else (id(node), tensor.output_nr)


def _ways(root: Any, wanted: Container[Edge]) -> Iterator[tuple[Any, int, Edge]]:
    """Yield the edges of the graph below a node that lead to one of the wanted ones."""
    stack, visited = [root], {root}
    while stack:
        node = stack.pop()
        for place, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            is_leaf = following.name() == _ACCUMULATE
            key = (id(following.variable), _LEAF) if is_leaf else (id(following), number)
            if key in wanted:
                yield node, place, key
            elif following not in visited and not is_leaf:
                visited.add(following)
                stack.append(following)


@dataclass
class GradientFault(Act):
    """Changes the gradient that one call passes on; `moved` says by how much, None before."""

    key: str
    change: Change
    moved: Size | None = None

    def after(self, call: MadeStep, result: Any) -> None:
        """Hook the way out of the victim."""
        found = only_tensor(result)
        if call.key != self.key or found is None or found.grad_fn is None:
            return
        way = way_out(call, found)
        if way is None:
            return

        def hook(passed_on: tuple[Any, ...], _: Any) -> tuple[Any, ...] | None:
            right = passed_on[way.place]
            if right is None:
                return None
            with unseen(), torch.no_grad():
                wrong = self.change(right)
                self.moved = size_of(wrong, right)
            return (*passed_on[: way.place], wrong, *passed_on[way.place + 1 :])

        way.node.register_hook(hook)


@dataclass
class _Waiting:
    way: Way
    reference: Callable[[Tensor], Tensor]
    arrived: Tensor | None = None
    passed_on: Tensor | None = None


@dataclass
class GradientWatch(Act):
    """Measures the errors of gradients that some calls pass on."""

    keys: frozenset[str]
    errors: dict[str, Size] = field(default_factory=dict)
    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    def after(self, call: MadeStep, result: Any) -> None:
        """Hook the result and the way out of a call, and keep its inputs."""
        found = only_tensor(result)
        if call.key not in self.keys or found is None or found.grad_fn is None:
            return
        way = way_out(call, found)
        if way is None:
            return
        args, kwargs = widened(call.args), widened(call.kwargs)

        def reference(arrived: Tensor) -> Tensor:
            leaf = list(tensors_of((args, kwargs)))[way.input].requires_grad_()
            with torch.enable_grad():
                made = only_tensor(call.function(*args, **kwargs))
            assert made is not None
            return torch.autograd.grad(made, leaf, arrived.double())[0]

        waiting = self._waiting[call.key] = _Waiting(way, reference)

        def arrive(gradient: Tensor) -> None:
            waiting.arrived = gradient

        def leave(passed_on: tuple[Any, ...], _: Any) -> None:
            waiting.passed_on = passed_on[way.place]

        found.register_hook(arrive)
        way.node.register_hook(leave)

    def finish(self) -> None:
        """Compute the references, after the backward pass."""
        for key, each in self._waiting.items():
            arrived, passed_on = each.arrived, each.passed_on
            if arrived is None or passed_on is None:
                continue
            right, error = caught(lambda each=each, arrived=arrived: each.reference(arrived))
            if error is None and right is not None and right.shape == passed_on.shape:
                self.errors[key] = size_of(passed_on, right)
        self._waiting.clear()
