"""Graphs of torch.fx, copied at one moment and run eagerly later, and how far outputs are apart.

Used by `looking.py`, in the interpreter that has torch: only the standard library, numpy and torch are here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .programs import attempted

_SOURCE = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<where>\S+)\s*(?P<code>[^\n]*)'
)


@dataclass
class CopiedGraph:
    """A graph as it was, with what it refers to."""

    graph: Any
    attributes: dict[str, Any]
    key: str

    def placeholders(self) -> list[Any]:
        """Return the placeholders in their order."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]


def copied_graph(gm: Any) -> CopiedGraph:
    """Return a copy of the graph of a module; what it refers to is shared."""
    graph = torch.fx.Graph()
    result: Any = graph.graph_copy(gm.graph, {}, return_output_node=True)
    if result is not None:
        graph.output(result[0])
    attributes: dict[str, Any] = {}
    words = []
    for node in gm.graph.nodes:
        words.append(f"{node.name} {node.op} {node.target} {node.args} {node.kwargs}")
        if node.op in ("get_attr", "call_module"):
            value = gm
            for part in node.target.split("."):
                value = getattr(value, part)
            attributes[node.target] = value
    return CopiedGraph(graph, attributes, "\n".join(words))


class _Runner(torch.fx.Interpreter):
    """Runs a copied graph; with `keep` its `env` has the values of all nodes then."""

    def __init__(self, copied: CopiedGraph, keep: bool = False) -> None:
        super().__init__(torch.nn.Module(), garbage_collect_values=not keep, graph=copied.graph)
        self.attributes = copied.attributes

    def fetch_attr(self, target: str) -> Any:
        """Return what a node refers to."""
        return self.attributes[target]


def run_graph(
    copied: CopiedGraph, values: Mapping[str, Any], keep: bool = False
) -> tuple[_Runner, list[Any]] | None:
    """Return the runner and the outputs of a graph; None where it cannot be run here."""
    inputs = [_value_of(node, values) for node in copied.placeholders()]
    runner = _Runner(copied, keep)
    torch.manual_seed(0)
    with torch.no_grad():
        found, error = attempted(lambda: runner.run(*cloned(inputs)))
    return None if error is not None else (runner, leaves(found))


def _value_of(node: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of a placeholder. A tangent that no backward has given is drawn at random: the joint
    graph of a model of which only the forward is run has some."""
    value, like = values.get(node.target), node.meta.get("val")
    if value is None and "tangents" in str(node.target) and isinstance(like, torch.Tensor):
        shape = [int(each) for each in like.shape]
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like.dtype)
    return value


def distance_in_floors(floors: Mapping[str, float], tested: Any, golden: Any) -> float:
    """Return the largest difference of two outputs, relative to the largest element, in floors of the dtype.
    Infinity where shapes, whole numbers or the places of NaN and infinity differ."""
    if not isinstance(golden, torch.Tensor) or not isinstance(tested, torch.Tensor):
        return 0.0
    if tested.shape != golden.shape:
        return float("inf")
    if not golden.numel():
        return 0.0
    if not golden.is_floating_point() and not golden.is_complex():
        return 0.0 if torch.equal(tested.to(golden.dtype), golden) else float("inf")
    wide = torch.complex128 if golden.is_complex() else torch.float64
    t, g = tested.detach().to(wide), golden.detach().to(wide)
    finite = torch.isfinite(g)
    if not torch.equal(finite, torch.isfinite(t)) or not torch.equal(g.isnan(), t.isnan()):
        return float("inf")
    if not finite.any():
        return 0.0
    largest = float(g[finite].abs().max())
    difference = float((t[finite] - g[finite]).abs().max())
    if largest == 0.0:
        return float("inf") if difference else 0.0
    return difference / largest / floors.get(str(golden.real.dtype).replace("torch.", ""), 1e-4)


def leaves(value: Any) -> list[Any]:
    """Return the values within nested tuples, lists and dicts; None is one of them."""
    found: list[Any] = pytree.tree_leaves(value, is_leaf=lambda each: each is None)
    return found


def cloned(values: Sequence[Any]) -> list[Any]:
    """Return copies of tensors, and what is none as it is."""
    return [copy_of(each) for each in values]


def copy_of(value: Any) -> Any:
    """Return a copy of a tensor with its strides, which compiled code checks; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.layout is not torch.strided or not value.numel():
        return value.clone()
    steps = zip(value.shape, value.stride(), strict=True)
    length = 1 + sum((size - 1) * stride for size, stride in steps)
    flat = value.as_strided((length,), (1,)).clone()
    return flat.as_strided(value.shape, value.stride())


def node_line(meta: Mapping[str, Any]) -> str:
    """Return where a node is from: "file:line, in function: code" of the innermost frame in the user's code;
    else the path of its module; "" where neither is known."""
    found = _SOURCE.findall(meta.get("stack_trace") or "")
    if found:
        file, line, where, code = found[-1]
        return f"{file}:{line}, in {where}: {code.strip()}"
    modules = list((meta.get("nn_module_stack") or {}).values())
    path = modules[-1][0].rpartition("['self'].")[2] if modules else ""
    return f"module {path}" if path and "[" not in path else ""


def ancestors_of(node: Any) -> set[Any]:
    """Return a node and all that it depends on."""
    found, queue = {node}, [node]
    while queue:
        for each in queue.pop().all_input_nodes:
            if each not in found:
                found.add(each)
                queue.append(each)
    return found
