"""Where a difference begins in a graph that an optimizer has changed, by the nodes of the user's model.

Comes in: the nodes of the model and of its optimised graph, and how far each value that both have is from
the right one. Goes out: for each place where a difference begins, the nodes on both sides. Pure; called by
`node_search`.

Values that both graphs have keep their names: what is between two of them was replaced.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node of a graph: its name, its operator, and the names of its values."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def title(self) -> str:
        """Its name and its operator."""
        return f"{self.name or self.outputs[0]} ({self.op})"


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """Nodes in an order in which they can run; the index of the node that gives a value, by its name; and the
    values that are `fixed`, the same for all inputs: constants, and what is made of them."""

    nodes: tuple[OnnxNode, ...]
    producers: Mapping[str, int]
    fixed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Beginning:
    """A value that is wrong although what it is made of is not.

    `inputs` are values before it that both graphs have; `nodes` are those of the user's model in between,
    `kernels` those of the optimised graph; `distance` is how wrong it is, in floors.
    """

    value: str
    distance: float
    inputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    kernels: tuple[OnnxNode, ...]

    @property
    def replaced(self) -> str:
        """Which nodes became which, in a few words; the others only pass the difference on."""
        old = [node for node in self.nodes if node not in self.kernels]
        new = [node for node in self.kernels if node not in self.nodes]
        others = [node for node in self.nodes if node in self.kernels]
        if not old:
            return titles(self.nodes)
        said = f"{titles(old)} became {titles(new) if new else 'nothing'}"
        return f"{said}, and {titles(others[-1:])} brings it out" if others else said


def parse_graph(answer: Mapping[str, Any]) -> OnnxGraph:
    """Return the graph of an answer to a request for values."""
    nodes = tuple(
        OnnxNode(each["name"], each["op"], tuple(each["inputs"]), tuple(each["outputs"]))
        for each in answer["nodes"]
    )
    fixed = set(answer["constants"])
    for node in nodes:
        if fixed.issuperset(node.inputs):
            fixed.update(node.outputs)
    producers = {name: index for index, node in enumerate(nodes) for name in node.outputs}
    return OnnxGraph(nodes, producers, frozenset(fixed))


def beginnings(
    model: OnnxGraph, optimised: OnnxGraph, distances: Mapping[str, float], limit: float
) -> list[Beginning]:
    """Return where values get wrong: those above the limit whose nearest values before them are not.

    `distances` has the values that were compared. NaN counts as wrong.
    """
    found = []
    for node in optimised.nodes:
        wrong = [
            name for name in node.outputs if name in distances and not distances[name] <= limit
        ]
        for value in wrong:
            _, before = between(optimised, value, distances)
            if all(distances.get(name, 0.0) <= limit for name in before):
                found.append(beginning_at(value, model, optimised, distances, distances))
    return found


def beginning_at(
    value: str,
    model: OnnxGraph,
    optimised: OnnxGraph,
    distances: Mapping[str, float],
    stops: Collection[str],
) -> Beginning:
    """Return the nodes before a value, as far as the nearest of the values `stops`."""
    kernels, before = between(optimised, value, stops)
    nodes, inputs = between(model, value, before)
    return Beginning(value, distances[value], inputs, nodes, kernels)


def between(
    graph: OnnxGraph, value: str, stops: Collection[str]
) -> tuple[tuple[OnnxNode, ...], tuple[str, ...]]:
    """Return the nodes that make a value from the nearest `stops` before it, and these `stops`, which may be
    inputs of the graph, too."""
    producers, fixed = graph.producers, graph.fixed
    nodes: set[int] = set()
    inputs: dict[str, None] = {}
    ahead = [value]
    while ahead:
        index = producers.get(ahead.pop())
        if index is None or index in nodes:
            continue
        nodes.add(index)
        for name in graph.nodes[index].inputs:
            # What is fixed is folded, or a weight of a fusion: it is no input.
            if name in fixed:
                ahead.append(name)
            elif name in stops or name not in producers:
                inputs[name] = None
            else:
                ahead.append(name)
    return tuple(graph.nodes[i] for i in sorted(nodes)), tuple(inputs)


def titles(nodes: Sequence[OnnxNode], most: int = 6) -> str:
    """Return the titles of nodes, of many the first ones."""
    named = ", ".join(node.title for node in nodes[:most])
    return named if len(nodes) <= most else f"{named} and {len(nodes) - most} more"
