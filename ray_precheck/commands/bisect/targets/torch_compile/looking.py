"""What one compile shows without trials: which decomposition, graph pass or lowering changes the result.

Comes in: the bench of `inside.py`. Goes out: plain values for `target.py`. Loaded by path by `inside.py`, in the
interpreter that has torch: only the standard library, numpy and torch are here.

- A decomposition is held against its operator on the inputs that the operator gets when the program runs eagerly.
- The graph before and after each graph pass is run eagerly on the inputs that the compiled code gets later.
- The graph that was lowered is run eagerly on them, too. Where the compiled code has other outputs, each of its
  operators is compiled alone, all of them in one graph that joins nothing, on the inputs that they get there.
- What no operator shows alone (fusion, reuse of memory) is left to trials, with the operators before the first
  wrong output.
"""

import contextlib
import copy
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
import torch._inductor.compile_fx as compile_fx
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph
from torch.fx.passes.graph_transform_observer import GraphTransformObserver
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Calls of one operator that are held against its decomposition: a script may run it a million times.
_MOST_CALLS = 64
# Values of a graph that are kept at once to compile its operators alone, in bytes.
_MOST_BYTES = 4 << 30
_SOURCE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<where>\S+)\s*(?P<code>[^\n]*)')


def look(bench, state, floors, out):
    """Compile and run once with copies taken, and compare; the outputs are written to `out`.

    `floors` are what honest results may differ by, relative to the largest element, by dtype.
    """
    seen = Seen(floors)
    with _watched(seen, state):
        outputs, _ = bench.outputs("look", (), ())
    np.savez(out, **outputs)
    found = {
        "outputs": out,
        "members": [{"name": n, "kind": k, "line": line} for n, (k, line) in seen.members.items()],
        "passes": [_pass_row(seen, each) for each in seen.passes],
        "decompositions": _wrong_decompositions(bench, seen),
        "graphs": [_graph_row(seen, each, state) for each in seen.graphs],
    }
    bench.outputs("off", (), ())  # Leaves nothing compiled behind.
    return {**found, "skipped": seen.skipped}


@dataclass
class CopiedGraph:
    """A graph as it was, with what it refers to."""

    graph: torch.fx.Graph
    attributes: dict
    key: str

    def placeholders(self):
        return [node.target for node in self.graph.nodes if node.op == "placeholder"]


@dataclass
class LoweredGraph:
    """What inductor compiled: the graph, the names of its lowerings by node, the inputs and outputs of its first
    call."""

    frame: int
    final: CopiedGraph | None = None
    lowered: dict = field(default_factory=dict)
    inputs: list | None = None
    outputs: list | None = None


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

    floors: dict
    members: dict = field(default_factory=dict)
    passes: list = field(default_factory=list)
    graphs: list = field(default_factory=list)
    values: list = field(default_factory=list)
    inner: list = field(default_factory=list)
    depth: int = 0
    asked: str = ""
    skipped: Counter = field(default_factory=Counter)


@contextlib.contextmanager
def _watched(seen, state):
    """Take copies where torch compiles and where compiled code is called; nothing else is changed."""
    patches = [
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


def _told(seen, kind, name, node):
    if node is not None:
        line = source_of(node.meta.get("stack_trace"))
        if seen.inner:
            seen.inner[-1].lowered[node.name] = name
    elif kind == "decomposition":
        line = source_of(torch.fx.traceback.get_current_meta().get("stack_trace"))
    else:
        line, seen.asked = "", name
    seen.members.setdefault(name, (kind, line))


def source_of(trace):
    """Return "file:line, in function: code" of the innermost frame of a node's stack; "" without one."""
    found = _SOURCE.findall(trace or "")
    if not found:
        return ""
    file, line, where, code = found[-1]
    return f"{file}:{line}, in {where}: {code.strip()}"


def _entering(seen, old):
    def entering(self):
        if seen.depth == 0:
            seen.asked = ""
            self.copied_before = _copied(self.gm)
        seen.depth += 1
        return old(self)

    return entering


def _leaving(seen, old):
    def leaving(self, *error):
        seen.depth -= 1
        if seen.depth == 0:
            after = _copied(self.gm)
            if after.key != self.copied_before.key:
                frame = seen.inner[-1].frame if seen.inner else len(seen.values) - 1
                name = f"{self.subsystem or 'passes'} {self.passname}"
                seen.passes.append(AppliedPass(frame, name, seen.asked, self.copied_before, after))
        return old(self, *error)

    return leaving


def _lowering(seen, old):
    def run(self, *args):
        if seen.inner and seen.inner[-1].final is None:
            seen.inner[-1].final = _copied(self.module)
        return old(self, *args)

    return run


def _calling(old):
    def call(self, inputs):
        graph = getattr(self, "looked_at", None)
        if graph is None or graph.inputs is not None:
            return old(self, inputs)
        graph.inputs = _cloned(inputs)
        found = old(self, inputs)
        graph.outputs = _cloned(pytree.tree_leaves(found, is_leaf=lambda each: each is None))
        return found

    return call


def _compiling(seen, old):
    def compile(model, example_inputs, *args, **kwargs):
        if args or "inner_compile" in kwargs:  # It calls itself with more settings.
            return old(model, example_inputs, *args, **kwargs)
        frame = len(seen.values)
        names = [node.target for node in model.graph.nodes if node.op == "placeholder"]
        seen.values.append({})

        def inner_compile(gm, inputs, **settings):
            graph = LoweredGraph(frame)
            seen.graphs.append(graph)
            seen.inner.append(graph)
            try:
                found = compile_fx.compile_fx_inner(gm, inputs, **settings)
            finally:
                seen.inner.pop()
            if isinstance(found, CompiledFxGraph):
                found.looked_at = graph
            return found

        compiled = old(model, example_inputs, inner_compile=inner_compile, **kwargs)

        def calling(*values):
            if not seen.values[frame]:
                seen.values[frame].update(zip(names, _cloned(values), strict=False))
            return compiled(*values)

        return calling

    return compile


def _cloned(values):
    return [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in values]


def _copied(gm):
    graph = torch.fx.Graph()
    kept = graph.graph_copy(gm.graph, {}, return_output_node=True)
    if kept is not None:
        graph.output(kept[0])
    attributes = {}
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
    """Runs a copied graph; `kept` are the values of all nodes, if asked for."""

    def __init__(self, copied, keep=False):
        super().__init__(torch.nn.Module(), garbage_collect_values=not keep, graph=copied.graph)
        self.attributes = copied.attributes

    def fetch_attr(self, target):
        return self.attributes[target]


def _run(copied, values, keep=False):
    """Return the runner and the outputs of a graph; None where it cannot be run here."""
    if any(name not in values for name in copied.placeholders()):
        return None
    runner = _Runner(copied, keep)
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            found = runner.run(*_cloned([values[name] for name in copied.placeholders()]))
    except Exception:  # noqa: BLE001 - graphs hold operators of inductor that have no eager kernel
        return None
    return runner, pytree.tree_leaves(found, is_leaf=lambda each: each is None)


def _distance(seen, tested, golden):
    """Return how far two lists of outputs are apart, in floors, and the position where they are most."""
    if len(tested) != len(golden):
        return float("inf"), -1
    found = [_apart(seen.floors, t, g) for t, g in zip(tested, golden, strict=True)]
    worst = max(range(len(found)), key=found.__getitem__, default=-1)
    return (found[worst] if found else 0.0), worst


def _apart(floors, tested, golden):
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
    name = str(golden.dtype).replace("torch.", "").replace("complex64", "float32")
    if largest == 0.0:
        return float("inf") if difference else 0.0
    return difference / largest / floors.get(name.replace("complex128", "float64"), 1e-4)


# Graph passes.


def _pass_row(seen, applied):
    values = _values_of(seen, applied.frame)
    before, after = _run(applied.before, values), _run(applied.after, values)
    distance = None
    if before is None or after is None:
        seen.skipped["pass"] += 1
    else:
        distance, _ = _distance(seen, after[1], before[1])
    gone, lines = _replaced(applied)
    return {
        "name": applied.name,
        "switch": applied.switch,
        "distance": distance,
        "gone": gone,
        "lines": lines,
    }


def _values_of(seen, frame):
    values = dict(seen.values[frame]) if 0 <= frame < len(seen.values) else {}
    for graph in seen.graphs:
        if graph.frame == frame and graph.inputs is not None and graph.final is not None:
            values.update(zip(graph.final.placeholders(), graph.inputs, strict=False))
    return values


def _replaced(applied):
    """Return the operators that a pass took away or changed, and the lines of the user's code that they are of."""

    def words(node):
        return f"{node.name} {node.target} {node.args} {node.kwargs}"

    kept = {words(node) for node in applied.after.graph.nodes}
    gone = [node for node in applied.before.graph.nodes if words(node) not in kept and node.op != "output"]
    lines = [source_of(node.meta.get("stack_trace")) for node in gone]
    return [str(node.target) for node in gone][:8], [each for each in dict.fromkeys(lines) if each][:4]


# Decompositions.


class _Decomposing(TorchDispatchMode):
    """Holds each operator that has a decomposition against it."""

    def __init__(self, seen, table):
        super().__init__()
        self.seen, self.table = seen, table
        self.counts, self.worst = Counter(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        is_checked = func in self.table and self.counts[func] < _MOST_CALLS and not _is_loose(func)
        copies = pytree.tree_map(_copy_of, (args, kwargs)) if is_checked else None
        found = func(*args, **kwargs)
        if copies is not None:
            self.counts[func] += 1
            distance = self._distance(func, copies, found)
            if distance is not None and distance > self.worst.get(str(func), 0.0):
                self.worst[str(func)] = distance
        return found

    def _distance(self, func, copies, found):
        try:
            decomposed = self.table[func](*copies[0], **copies[1])
        except Exception:  # noqa: BLE001 - some decompositions are made for fake tensors alone
            self.seen.skipped["decomposition"] += 1
            return None
        if decomposed is NotImplemented:
            return None
        tested, golden = (pytree.tree_leaves(each) for each in (decomposed, found))
        return _distance(self.seen, tested, golden)[0]


def _copy_of(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_loose(func):
    """Whether an operator has more than one right result: random numbers, or memory that is not set."""
    return torch.Tag.nondeterministic_seeded in func.tags or "empty" in str(func)


def _wrong_decompositions(bench, seen):
    mode = _Decomposing(seen, compile_fx.select_decomp_table())
    with mode:
        bench.outputs("off", (), ())
    return {name: each for name, each in mode.worst.items() if each > 1.0}


# Lowerings.


def _graph_row(seen, graph, state):
    """Return how wrong a compiled graph is, and the lowerings that are suspected: wrong alone, or before the
    first wrong output."""
    row = {"distance": None, "wrong": {}, "before": [], "lowerings": len(graph.lowered)}
    if graph.final is None or graph.inputs is None or graph.outputs is None:
        return row
    values = dict(zip(graph.final.placeholders(), graph.inputs, strict=False))
    ran = _run(graph.final, values, keep=True)
    if ran is None:
        seen.skipped["graph"] += 1
        return row
    runner, golden = ran
    row["distance"], _ = _distance(seen, graph.outputs, golden)
    if row["distance"] <= 1.0:
        return row
    row["before"] = _before_first_wrong(seen, graph, golden)
    row["wrong"] = _wrong_alone(seen, graph, runner.env, state)
    return row


def _before_first_wrong(seen, graph, golden):
    """Return pairs of the lowerings that the first wrong output depends on, in their order, and whether a right
    output depends on them, too."""
    order = {node: index for index, node in enumerate(graph.final.graph.nodes)}
    output = next(node for node in graph.final.graph.nodes if node.op == "output")
    nodes = pytree.tree_leaves(output.args[0], is_leaf=lambda each: each is None)
    wrong = [
        node
        for node, t, g in zip(nodes, graph.outputs, golden, strict=False)
        if isinstance(node, torch.fx.Node) and _apart(seen.floors, t, g) > 1.0
    ]
    if not wrong:
        return [[name, False] for name in graph.lowered.values()]
    first = min(wrong, key=order.__getitem__)
    right = set()
    for node in nodes:
        if isinstance(node, torch.fx.Node) and node not in wrong:
            right |= _ancestors(node)
    found = sorted(_ancestors(first), key=order.__getitem__)
    return [[graph.lowered[n.name], n in right] for n in found if n.name in graph.lowered]


def _ancestors(node):
    found, queue = {node}, [node]
    while queue:
        for each in queue.pop().all_input_nodes:
            if each not in found:
                found.add(each)
                queue.append(each)
    return found


def _wrong_alone(seen, graph, values, state):
    """Compile each operator of a graph on the inputs that it gets there; return the wrong ones, in floors."""
    size = sum(each.nbytes for each in values.values() if isinstance(each, torch.Tensor))
    nodes = [node for node in graph.final.graph.nodes if node.name in graph.lowered]
    nodes = [node for node in nodes if _stands_alone(node, values)]
    if size > _MOST_BYTES or not nodes:
        seen.skipped["lowering"] += len(graph.lowered)
        return {}
    alone, inputs = _apart_graph(nodes, values)
    torch._dynamo.reset()
    state.all_passes_off = True
    try:
        with torch.no_grad():
            found = compile_fx.compile_fx(alone, inputs)(*_cloned(inputs))
    except Exception:  # noqa: BLE001 - a compiler under test may raise anything; trials go on without this
        seen.skipped["lowering"] += len(nodes)
        return {}
    finally:
        state.all_passes_off = False
    wrong = {}
    for node, tested in zip(nodes, found, strict=True):
        distance = _apart(seen.floors, tested, values[node])
        if distance > 1.0:
            wrong[graph.lowered[node.name]] = distance
    return wrong


def _stands_alone(node, values):
    """Whether a node is an operator from tensors to one tensor, without views, changes or symbolic sizes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not isinstance(values.get(node), torch.Tensor):
        return False
    if _is_loose(node.target) or any(each.alias_info for each in (*schema.arguments, *schema.returns)):
        return False
    return all(isinstance(values.get(each), torch.Tensor) for each in node.all_input_nodes)


def _apart_graph(nodes, values):
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
    return torch.fx.GraphModule(torch.nn.Module(), graph), [copy.copy(values[each]) for each in needed]
