"""What one compile shows without trials: which decomposition, graph pass or lowering changes the result.

Comes in: the bench of `trials.py`. Goes out: plain values for `target.py`. Used by `trials.py`, in the
interpreter that has torch.

- A decomposition is held against its operator on the inputs that it gets as the program runs eagerly.
- The graph before and after each graph pass is run eagerly on the inputs that the compiled code gets later.
- The graph that was lowered is run eagerly on them, too. Where the compiled code has other outputs, each of
  its operators is compiled alone, all in one graph that joins nothing, on the inputs that they get there.
- What no operator shows alone (fusion, reuse of memory) is left to trials, with the operators before the
  first wrong output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch._inductor.compile_fx as compile_fx
from torch._inductor.decomposition import select_decomp_table
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .graphs import ancestors_of, cloned, copy_of, distance_in_floors, leaves, node_line, run_graph
from .programs import attempted, said_of
from .watching import AppliedPass, LoweredGraph, Seen, named_inputs, traced_values, watched

# Calls of one operator that are held against its decomposition: a script may run it a million times.
_MOST_CALLS = 64
# Operators of one graph with equal attributes, shapes and strides that are compiled alone.
_MOST_ALIKE = 2
# Values of a graph that are kept at once to compile its operators alone, in bytes.
_MOST_BYTES = 4 << 30


def look_at_compile(
    bench: Any, state: Any, floors: Mapping[str, float], out: str
) -> dict[str, Any]:
    """Compile and run once with copies taken, and compare; the outputs are written to `out`.

    Where that raises, return the "error" and the members that were asked for until then.

    `floors` are what honest results may differ by, relative to the largest element, by dtype.
    """
    bench.warm()
    seen = Seen(floors)
    with watched(seen, state):
        found, error = attempted(lambda: bench.outputs("look_at_compile", (), ()))
    members = [{"name": n, "kind": k, "line": line} for n, (k, line) in seen.members.items()]
    if error is not None:
        return {"error": said_of(error), "members": members}
    np.savez(out, **found[0])
    rows = {
        "outputs": out,
        "members": members,
        "passes": [_pass_row(seen, each) for each in seen.passes],
        "decompositions": _wrong_decompositions(bench, seen),
        "graphs": [_graph_row(seen, each, state) for each in seen.graphs],
    }
    return {**rows, "skipped": seen.skipped}


def _distance(seen: Seen, tested: Sequence[Any], golden: Sequence[Any]) -> float:
    """Return how far two lists of outputs are apart, in floors."""
    if len(tested) != len(golden):
        return float("inf")
    return max(
        (distance_in_floors(seen.floors, t, g) for t, g in zip(tested, golden, strict=False)),
        default=0.0,
    )


# Graph passes.


def _pass_row(seen: Seen, applied: AppliedPass) -> dict[str, Any]:
    values = traced_values(seen, applied.frame)
    before, after = (run_graph(each, values) for each in (applied.before, applied.after))
    distance = None
    if before is None or after is None:
        seen.skipped["pass"] += 1
    else:
        distance = _distance(seen, after[1], before[1])
    gone, lines = _replaced(applied)
    names = {"name": applied.name, "switch": applied.switch}
    return {**names, "distance": distance, "gone": gone, "lines": lines}


def _replaced(applied: AppliedPass) -> tuple[list[str], list[str]]:
    """Return the operators that a pass took away or changed, and their lines in the user's code."""

    def words(node: Any) -> str:
        return f"{node.name} {node.target} {node.args} {node.kwargs}"

    kept = {words(node) for node in applied.after.graph.nodes}
    nodes = [node for node in applied.before.graph.nodes if node.op != "output"]
    gone = [node for node in nodes if words(node) not in kept]
    lines = [node_line(node.meta) for node in gone]
    return [str(node.target) for node in gone][:8], [each for each in dict.fromkeys(lines) if each][
        :4
    ]


# Decompositions.


class _Decomposing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Holds each operator that has a decomposition against it; `worst` are the distances by operator."""

    def __init__(self, seen: Seen, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen, self.table = seen, table
        self.counts: Counter[Any] = Counter()
        self.worst: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_checked = func in self.table and self.counts[func] < _MOST_CALLS and not _is_loose(func)
        copies = pytree.tree_map(copy_of, (args, kwargs)) if is_checked else None
        found = func(*args, **kwargs)
        if copies is not None:
            self.counts[func] += 1
            self._compare(func, copies, found)
        return found

    def _compare(self, func: Any, copies: Any, found: Any) -> None:
        decomposed, error = attempted(lambda: self.table[func](*copies[0], **copies[1]))
        if error is not None:
            self.seen.skipped["decomposition"] += 1
        elif decomposed is not NotImplemented:
            distance = _distance(self.seen, leaves(decomposed), leaves(found))
            self.worst[str(func)] = max(distance, self.worst.get(str(func), 0.0))


def _is_loose(func: Any) -> bool:
    """Whether an operator has more than one right result: random numbers, or memory that is not set."""
    return torch.Tag.nondeterministic_seeded in func.tags or "empty" in str(func)


def _wrong_decompositions(bench: Any, seen: Seen) -> dict[str, float]:
    mode = _Decomposing(seen, select_decomp_table())
    with mode:
        bench.outputs("off", (), ())
    return {name: each for name, each in mode.worst.items() if each > 1.0}


# Lowerings.


def _graph_row(seen: Seen, graph: LoweredGraph, state: Any) -> dict[str, Any]:
    """Return how wrong a compiled graph is, and the lowerings that are suspected: wrong alone, or before the
    first wrong output."""
    row: dict[str, Any] = {"distance": None, "wrong": {}, "before": []}
    if graph.final is None or graph.inputs is None or graph.outputs is None:
        return row
    ran = run_graph(graph.final, named_inputs(graph), keep=True)
    if ran is None:
        seen.skipped["graph"] += 1
        return row
    runner, golden = ran
    row["distance"] = _distance(seen, graph.outputs, golden)
    if row["distance"] > 1.0:
        row["before"] = _before_first_wrong(seen, graph, golden)
        row["wrong"] = _wrong_alone(seen, graph, runner.env, state)
    return row


def _before_first_wrong(
    seen: Seen, graph: LoweredGraph, golden: Sequence[Any]
) -> list[tuple[str, bool]]:
    """Return pairs: the lowerings that the first wrong output depends on, in their order, and whether a right
    output depends on them, too."""
    assert graph.final is not None
    order = {node: index for index, node in enumerate(graph.final.graph.nodes)}
    output = next(node for node in order if node.op == "output")
    nodes = leaves(output.args[0])
    wrong = [
        node
        for node, t, g in zip(nodes, graph.outputs or (), golden, strict=False)
        if isinstance(node, torch.fx.Node) and distance_in_floors(seen.floors, t, g) > 1.0
    ]
    if not wrong:
        return [(name, False) for name in graph.lowered.values()]
    first = min(wrong, key=order.__getitem__)
    right: set[Any] = set()
    for node in nodes:
        if isinstance(node, torch.fx.Node) and node not in wrong:
            right |= ancestors_of(node)
    found = sorted(ancestors_of(first), key=order.__getitem__)
    return [(graph.lowered[n.name], n in right) for n in found if n.name in graph.lowered]


def _wrong_alone(
    seen: Seen, graph: LoweredGraph, values: Mapping[Any, Any], state: Any
) -> dict[str, float]:
    """Compile each operator of a graph on the inputs that it gets there; return the wrong ones, in floors."""
    assert graph.final is not None
    size = sum(each.nbytes for each in values.values() if isinstance(each, torch.Tensor))
    nodes = [node for node in graph.final.graph.nodes if node.name in graph.lowered]
    nodes = _unlike([node for node in nodes if _stands_alone(node, values)], values)
    if size > _MOST_BYTES or not nodes:
        seen.skipped["lowering"] += len(graph.lowered)
        return {}
    alone, inputs = _graph_of_single(nodes, values)
    torch._dynamo.reset()
    state.is_alone = True
    try:
        with torch.no_grad():
            found, error = attempted(lambda: compile_fx.compile_fx(alone, inputs)(*cloned(inputs)))  # type: ignore
    finally:
        state.is_alone = False
    if error is not None:
        seen.skipped["lowering"] += len(nodes)
        return {}
    wrong = {}
    for node, tested in zip(nodes, found, strict=False):
        distance = distance_in_floors(seen.floors, tested, values[node])
        if distance > 1.0:
            wrong[graph.lowered[node.name]] = distance
    return wrong


def _unlike(nodes: Sequence[Any], values: Mapping[Any, Any]) -> list[Any]:
    """Return the nodes less those that are like enough others: layers of a model repeat themselves."""
    counts: Counter[Any] = Counter()
    kept = []
    for node in nodes:
        inputs = [values[each] for each in node.all_input_nodes]
        layouts = tuple((each.dtype, each.shape, each.stride()) for each in inputs)
        words = torch.fx.map_arg((node.args, node.kwargs), _no_name)
        key = node.target, layouts, repr(words)
        counts[key] += 1
        if counts[key] <= _MOST_ALIKE:
            kept.append(node)
    return kept


def _no_name(node: Any) -> str:
    return ""


def _stands_alone(node: Any, values: Mapping[Any, Any]) -> bool:
    """Whether a node is an operator from tensors to one tensor, without views, changes or symbolic sizes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not isinstance(values.get(node), torch.Tensor):
        return False
    if _is_loose(node.target) or any(
        each.alias_info for each in (*schema.arguments, *schema.returns)
    ):
        return False
    return all(isinstance(values.get(each), torch.Tensor) for each in node.all_input_nodes)


def _graph_of_single(nodes: Sequence[Any], values: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
    """Return a graph of these operators in which none gets what another one gave, and its inputs."""
    graph = torch.fx.Graph()
    needed = dict.fromkeys(each for node in nodes for each in node.all_input_nodes)
    places = {each: graph.placeholder(f"value_{number}") for number, each in enumerate(needed)}
    outputs = []
    for node in nodes:
        made = graph.node_copy(node, lambda each: places[each])
        made.meta = {}
        outputs.append(made)
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph), [values[each] for each in needed]
