"""Which argument gets which gradient, where a call is given the same tensor several times.

Comes in: a call that was made, and what it gave. Goes out: for each edge of its graph that leads to such a
tensor the number of the input. Called by the recorder for calls whose outputs require a gradient.

The graph of the call does not say it: all places of the tensor are the same edge, and the order of operands
is that of the arguments for most operators, but not for all (`linear` adds its bias first). So the call is
made once more on meta tensors, which have no values, a tensor of its own for each place. Where this cannot
be done, or gives another graph, nothing is known.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ray_precheck.capture.pytorch.gradients import Edge, Places, edges_of, inputs_by_key, key_behind
from ray_precheck.capture.pytorch.tensors.nested import tensors_in
from ray_precheck.foreign import caught


def input_places(
    call: Callable[[], Any] | None, inputs: Sequence[Edge | None], outputs: Sequence[torch.Tensor]
) -> Places | None:
    """Return which input each edge of the call's graph leads to, None where that cannot be told.

    Where no tensor is given several times nothing has to be told.
    """
    if not _is_ambiguous(inputs) or not isinstance(call, functools.partial):
        return None
    given = edges_of(tensors_in((call.args, call.keywords)))
    if _keys(given) != _keys(inputs):
        return None  # a change in place, or a function whose record has another order of arguments
    stand_ins: list[torch.Tensor] = []

    def run_on_meta() -> Any:
        args, kwargs = (_on_meta(each, stand_ins) for each in (call.args, call.keywords))
        return call.func(*args, **kwargs)

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        result, error = caught(run_on_meta)
    again = tensors_in(result)
    if error is not None or len(again) != len(outputs):
        return None
    index_of = {each.grad_fn: index for index, each in enumerate(stand_ins) if each.requires_grad}
    pairs = [(one.grad_fn, other.grad_fn) for one, other in zip(outputs, again, strict=True)]
    return _walked(pairs, inputs_by_key(inputs), index_of)


def _is_ambiguous(inputs: Sequence[Edge | None]) -> bool:
    """Return whether a tensor that requires a gradient is given several times."""
    keys = [key for key in _keys(inputs) if key is not None]
    return len(set(keys)) < len(keys)


def _keys(inputs: Sequence[Edge | None]) -> list[tuple[int, int] | None]:
    return [None if edge is None else (id(edge[0]), edge[1]) for edge in inputs]


def _on_meta(value: Any, stand_ins: list[torch.Tensor]) -> Any:
    """Return a nested value with a tensor on the meta device for each tensor of it, which are appended."""
    if isinstance(value, torch.Tensor):
        leaf = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device="meta"
        ).requires_grad_(value.requires_grad)
        stand_ins.append(leaf.clone())  # a leaf cannot be changed in place
        return stand_ins[-1]
    if isinstance(value, dict):
        return {name: _on_meta(each, stand_ins) for name, each in value.items()}
    if isinstance(value, tuple | list):
        items = [_on_meta(each, stand_ins) for each in value]
        return items if type(value) is list else tuple(items)
    return value


def _kind(node: Any) -> str:
    """Return the name of a node; `reshape` makes another one on meta tensors."""
    name = str(node.name())
    return "ViewBackward0" if name == "ReshapeAliasBackward0" else name


def _walked(
    pairs: list[tuple[Any, Any]], wanted: Mapping[Any, Sequence[int]], index_of: Mapping[Any, int]
) -> Places | None:
    """Walk through two graphs side by side, None where they are not alike."""
    places: dict[tuple[Any, int], int] = {}
    visited = set()
    while pairs:
        node, other = pairs.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if other is None or _kind(node) != _kind(other):
            return None
        edges, other_edges = node.next_functions, other.next_functions
        if len(edges) != len(other_edges):
            return None
        for place, ((following, number), (beside, _)) in enumerate(
            zip(edges, other_edges, strict=True)
        ):
            key = None if following is None else key_behind(following, number, wanted)
            if key not in wanted:
                pairs.append((following, beside))
                continue
            index = index_of.get(beside)
            if index is None or index not in wanted[key]:
                return None
            places[node, place] = index
    return places
