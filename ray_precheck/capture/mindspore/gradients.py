"""The gradients at an operator's own border.

Comes in: the tensors that an operator got and gave. Goes out: the gradients that arrived at its outputs
and those that it passed on to each of its inputs, once the backward pass of `ms.grad` and its like has gone
through it. Called for each recorded call with an input that a gradient goes to.

MindSpore keeps a graph of nodes as PyTorch does (`Tensor._grad_node`): an operator is one node or several
(a product of a transposed matrix makes it contiguous first). The nodes between its outputs and its inputs
are found by walking from the outputs down, and hooks on them see what arrives and what is passed on. Nothing
is put between the tensors of the program, as `ops.HookBackward` would, so changes in place stay what they
are.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import mindspore as ms

from ray_precheck.capture.mindspore.elements import values_on_host
from ray_precheck.capture.recording.recorder import GradientWait

# A node of the graph and which of its outputs it is, None where that is not known.
Edge: TypeAlias = tuple[Any, "int | None"]


class BorderGradients(NamedTuple):
    """What one backward pass through an operator saw, for each output and input; None for no gradient."""

    arrived: Sequence[ms.Tensor | None]
    passed_on: Sequence[ms.Tensor | None]


OnGradients: TypeAlias = Callable[[BorderGradients], None]


class OutputNumbers:
    """Remembers which output of its node a tensor is: MindSpore's tensors do not say it."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[weakref.ref[ms.Tensor], int]] = {}

    def learn(self, outputs: Iterable[ms.Tensor]) -> None:
        """Take note of the outputs of a call, which are in the order of its node."""
        seen: dict[Hashable, int] = {}
        for tensor in outputs:
            node = node_of(tensor)
            if node is None or _is_single(node):
                continue
            identity = _identity(node)
            number = seen[identity] = seen.get(identity, -1) + 1
            self._numbers[id(tensor)] = (weakref.ref(tensor), number)

    def of(self, tensor: ms.Tensor, node: Any) -> int | None:
        """Return the number of a tensor among the outputs of its node."""
        if _is_single(node):
            return 0
        found = self._numbers.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def edges(self, tensors: Iterable[ms.Tensor]) -> list[Edge | None]:
        """Return where the gradient of each tensor goes, None for those that get none.

        It is asked before the call, because one that changes its argument in place gives it another node.
        """
        found: list[Edge | None] = []
        for tensor in tensors:
            node = node_of(tensor)
            found.append(None if node is None else (node, self.of(tensor, node)))
        return found


def node_of(tensor: ms.Tensor) -> Any:
    """Return the node that computes a tensor's gradient, None where there is none."""
    return getattr(tensor, "_grad_node", None)


def _identity(node: Any) -> Hashable:
    """Return what two objects for the same node have in common; MindSpore 2.8 has its name only."""
    unique = getattr(node, "_unique_id", None)
    return repr(node) if unique is None else unique()


def _is_single(node: Any) -> bool:
    """Return whether a node has one output; MindSpore 2.8 does not say it."""
    return len(getattr(node, "_input_metadata", (None, None))) < 2


_Key: TypeAlias = tuple[Hashable, "int | None"]


def watch_nodes(
    inputs: Sequence[Edge | None],
    outputs: Sequence[ms.Tensor],
    numbers: OutputNumbers,
    done: OnGradients,
) -> "_NodeBorder | None":
    """Hand over the gradients of a call once they have passed; None where it has no graph.

    A tensor that the call hands on as it is (`x.to(x.dtype)` is `x`) has one gradient as output and as input:
    that of the tensor, from all who use it.
    """
    wanted: dict[_Key, list[int]] = {}
    for index, edge in enumerate(inputs):
        if edge is not None:
            wanted.setdefault((_identity(edge[0]), edge[1]), []).append(index)
    nodes: dict[Hashable, Any] = {}
    roots: dict[Hashable, dict[int, int]] = {}
    handed_on: list[tuple[Edge, int, int]] = []
    for index, tensor in enumerate(outputs):
        node = node_of(tensor)
        if node is None:
            continue
        identity, number = _identity(node), numbers.of(tensor, node)
        same = wanted.get((identity, number))
        if same is None:
            nodes[identity] = node
            roots.setdefault(identity, {})[number or 0] = index
        else:
            handed_on.append(((node, number), index, same[0]))
    if not roots and not handed_on:
        return None
    exits = _exits(nodes, wanted)
    border = _NodeBorder(len(outputs), len(inputs), done)
    for edge, output, given in handed_on:
        border.watch_same(edge, output, given)
    for identity in dict.fromkeys([*roots, *exits]):
        border.watch(nodes[identity], roots.get(identity, {}), exits.get(identity, ()))
    return border


def _exits(
    nodes: dict[Hashable, Any], wanted: dict[_Key, list[int]]
) -> dict[Hashable, list[tuple[int, int]]]:
    """Return the nodes that lead to an input, with the place and the input's index, from the roots down.

    The nodes on the way are added to `nodes`.
    """
    exits: dict[Hashable, list[tuple[int, int]]] = {}
    taken: dict[_Key, int] = {}
    waiting = list(nodes.values())
    while waiting:
        node = waiting.pop()
        for place, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            identity = _identity(following)
            key: _Key = (identity, number)
            if key not in wanted and (identity, None) in wanted:
                key = (identity, None)
            indices = wanted.get(key)
            if indices is not None:
                # A tensor that is given twice (x * x) takes the places in their order.
                index = indices[min(taken.get(key, 0), len(indices) - 1)]
                taken[key] = taken.get(key, 0) + 1
                exits.setdefault(_identity(node), []).append((place, index))
            elif identity not in nodes:
                nodes[identity] = following
                waiting.append(following)
    return exits


class _NodeBorder(GradientWait):
    """Waits for the gradients at the nodes of one call."""

    def __init__(self, outputs: int, inputs: int, done: OnGradients) -> None:
        super().__init__()
        self._done = done
        self._arrived: list[ms.Tensor | None] = [None] * outputs
        self._passed_on: list[list[ms.Tensor]] = [[] for _ in range(inputs)]

    def watch(self, node: Any, outputs: dict[int, int], exits: Sequence[tuple[int, int]]) -> None:
        """Watch one node: `outputs` has indices by its outputs, `exits` places and indices of inputs."""

        def take(passed_on: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
            for number, index in outputs.items():
                self._arrived[index] = arrived[number]
            for place, index in exits:
                if passed_on[place] is not None:
                    self._passed_on[index].append(passed_on[place])

        self.wait_for(node.register_hook, take)

    def watch_same(self, edge: Edge, output: int, given: int) -> None:
        """Watch a tensor that is an output and an input."""

        def take(_: Any, arrived: tuple[Any, ...]) -> bool:
            gradient = arrived[edge[1] or 0]
            if gradient is not None:
                self._arrived[output] = gradient
                self._passed_on[given].append(gradient)
            return gradient is not None

        self.wait_for(edge[0].register_hook, take)

    def hand_over(self) -> None:
        """Hand over what has arrived so far, that of several nodes for one input added up."""
        arrived, passed_on = self._arrived, self._passed_on
        self._arrived, self._passed_on = [], []
        self._done(BorderGradients(arrived, [_sum(parts) for parts in passed_on]))


class ArrivingGradients(GradientWait):
    """Waits for the gradients that arrive at the outputs of one call, on a MindSpore without nodes.

    What the call passes on to its inputs cannot be seen there: a tensor's own hook has the sum over all who
    use it.
    """

    def __init__(self, outputs: Sequence[ms.Tensor], done: OnGradients) -> None:
        super().__init__()
        self._done = done
        self._arrived: list[ms.Tensor | None] = [None] * len(outputs)
        for index, tensor in enumerate(outputs):
            if "Float" in str(tensor.dtype):
                self.wait_for(_unchanged(tensor), partial(self._arrived.__setitem__, index))

    def hand_over(self) -> None:
        """Hand over what has arrived so far."""
        arrived, self._arrived = self._arrived, []
        self._done(BorderGradients(arrived, []))


def _unchanged(tensor: ms.Tensor) -> Callable[[Callable[..., None]], Any]:
    """Return what puts a hook onto a tensor whose gradient it leaves as it is."""

    def register(tell: Callable[..., None]) -> Any:
        def hook(gradient: ms.Tensor) -> ms.Tensor:
            tell(gradient)
            return gradient

        return tensor.register_hook(hook)

    return register


def _sum(parts: list[ms.Tensor]) -> ms.Tensor | None:
    """Add what several nodes give to one input, on the host so that no operator of MindSpore runs."""
    if len(parts) < 2:
        return parts[0] if parts else None
    arrays = [values for part in parts if (values := values_on_host(part)) is not None]
    total = arrays[0]
    for values in arrays[1:]:
        total = total + values
    return ms.Tensor(total, dtype=parts[0].dtype)
