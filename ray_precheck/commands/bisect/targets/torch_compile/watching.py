"""What is copied while torch compiles and runs once: graphs, inputs and outputs.

Used by `looking.py`, in the interpreter that has torch: only the standard library, numpy and torch are here.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._inductor.compile_fx as compile_fx
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph
from torch.fx.passes.graph_transform_observer import GraphTransformObserver

from .graphs import CopiedGraph, cloned, copied_graph, leaves, node_line


@dataclass
class LoweredGraph:
    """What inductor compiled: the graph, the names of its lowerings by node, the inputs and outputs of its
    first call."""

    frame: int
    final: CopiedGraph | None = None
    lowered: dict[str, str] = field(default_factory=dict)
    inputs: list[Any] | None = None
    outputs: list[Any] | None = None


@dataclass
class AppliedPass:
    """A graph pass that changed something; `switch` is "" where it cannot be switched off."""

    frame: int
    name: str
    switch: str
    before: CopiedGraph
    after: CopiedGraph


@dataclass
class Seen:
    """All that a look keeps. `values` are those of placeholders, by frame and name."""

    floors: Mapping[str, float]
    members: dict[str, tuple[str, str]] = field(default_factory=dict)
    passes: list[AppliedPass] = field(default_factory=list)
    graphs: list[LoweredGraph] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    inner: list[LoweredGraph] = field(default_factory=list)
    depth: int = 0
    asked: str = ""
    skipped: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def watched(seen: Seen, state: Any) -> Iterator[None]:
    """Take copies where torch compiles and where compiled code is called; nothing else is changed."""
    patches: list[tuple[Any, str, Any]] = [
        (GraphTransformObserver, "__enter__", _entering(seen, GraphTransformObserver.__enter__)),
        (GraphTransformObserver, "__exit__", _leaving(seen, GraphTransformObserver.__exit__)),
        (GraphLowering, "run", _lowering(seen, GraphLowering.run)),
        (CompiledFxGraph, "__call__", _calling(CompiledFxGraph.__call__)),
        (compile_fx, "compile_fx", _compiling(seen, compile_fx.compile_fx)),
    ]
    olds = [(holder, name, getattr(holder, name)) for holder, name, _ in patches]
    for holder, name, new in patches:
        setattr(holder, name, new)
    state.told = lambda kind, name, node: _told(seen, kind, name, node)
    try:
        yield
    finally:
        state.told = None
        for holder, name, old in olds:
            setattr(holder, name, old)


def _told(seen: Seen, kind: str, name: str, node: Any) -> None:
    if node is not None:
        line = node_line(node.meta)
        if seen.inner:
            seen.inner[-1].lowered[node.name] = name
    elif kind == "decomposition":
        line = node_line(torch.fx.traceback.get_current_meta())
    else:
        line, seen.asked = "", name
    seen.members.setdefault(name, (kind, line))


def _entering(seen: Seen, old: Any) -> Any:
    def entering(self: Any) -> Any:
        if seen.depth == 0:
            seen.asked = ""
            self.copied_before = copied_graph(self.gm)
        seen.depth += 1
        return old(self)

    return entering


def _leaving(seen: Seen, old: Any) -> Any:
    def leaving(self: Any, *error: Any) -> Any:
        seen.depth -= 1
        if seen.depth == 0:
            after = copied_graph(self.gm)
            if after.key != self.copied_before.key:
                frame = seen.inner[-1].frame if seen.inner else len(seen.values) - 1
                name = f"{self.subsystem or 'passes'} {self.passname}"
                seen.passes.append(AppliedPass(frame, name, seen.asked, self.copied_before, after))
        return old(self, *error)

    return leaving


def _lowering(seen: Seen, old: Any) -> Any:
    def run(self: Any, *args: Any) -> Any:
        if seen.inner and seen.inner[-1].final is None:
            seen.inner[-1].final = copied_graph(self.module)
        return old(self, *args)

    return run


def _calling(old: Any) -> Any:
    def call(self: Any, inputs: Any) -> Any:
        graph = getattr(self, "looked_at", None)
        if graph is None or graph.inputs is not None:
            return old(self, inputs)
        graph.inputs = cloned(inputs)
        found = old(self, inputs)
        graph.outputs = cloned(leaves(found))
        return found

    return call


def _compiling(seen: Seen, old: Any) -> Any:
    def compile_watched(model: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if args or "inner_compile" in kwargs:  # It calls itself with more settings.
            return old(model, example_inputs, *args, **kwargs)
        frame = len(seen.values)
        names = [node.target for node in model.graph.nodes if node.op == "placeholder"]
        seen.values.append({})

        def inner_compile(gm: Any, inputs: Any, **settings: Any) -> Any:
            graph = LoweredGraph(frame)
            seen.graphs.append(graph)
            seen.inner.append(graph)
            try:
                found = compile_fx.compile_fx_inner(gm, inputs, **settings)
            finally:
                seen.inner.pop()
            if isinstance(found, CompiledFxGraph):
                vars(found)["looked_at"] = graph
            return found

        compiled = old(model, example_inputs, inner_compile=inner_compile, **kwargs)

        def calling(*values: Any) -> Any:
            if not seen.values[frame]:
                seen.values[frame].update(zip(names, cloned(values), strict=False))
            return compiled(*values)

        return calling

    return compile_watched


def traced_values(seen: Seen, frame: int) -> dict[str, Any]:
    """Return the values of the placeholders of a frame's graphs by name."""
    values = dict(seen.values[frame]) if 0 <= frame < len(seen.values) else {}
    for graph in seen.graphs:
        if graph.frame == frame and graph.inputs is not None and graph.final is not None:
            values.update(named_inputs(graph))
    return values


def named_inputs(graph: LoweredGraph) -> dict[str, Any]:
    """Return the inputs of its first call by the names of its placeholders."""
    assert graph.final is not None
    names = [node.target for node in graph.final.placeholders()]
    return dict(zip(names, graph.inputs or (), strict=False))
