"""The gradients at an operator's own border.

Comes in: the tensors that an operator got and gave. Goes out: the gradients that arrived at its outputs
and those that it passed on to each of its inputs, once the backward pass has gone through it. Called for
each recorded call whose outputs require a gradient.

An operator is one node of autograd's graph, or several (a linear layer on three dimensions is a view, a
product and a view). The nodes between its outputs and its inputs are found by walking from the outputs
down; hooks on those that lead out of the operator see what each input gets from this operator alone,
where a hook on the input itself would see the sum over all its users. What several nodes give to one
input is added in the order in which it arrives, as autograd does.

One output may be made from another (h of a cell from its c): what reaches that one by a way within the
operator is taken away again from what has arrived there.

Where a call is given the same tensor several times its graph does not say which argument gets which gradient
(`input_places`): all places of the tensor are the same edge, and the order of operands is that of the
arguments for most operators, but not for all (`linear` adds its bias first). So the call is made once more on
meta tensors, which have no values, a tensor of its own for each place. Where this cannot be done, or gives
another graph, nothing is known.
"""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch

from ray_precheck.capture.pytorch.tensors.text import tensors_in, unwrapped
from ray_precheck.capture.recording.recorder import GradientWait
from ray_precheck.foreign import caught
from ray_precheck.numerics.one_pass import COMPILED

# A node of autograd's graph and the number of its output, or a leaf and `_LEAF`.
Edge: TypeAlias = tuple[Any, int]
_LEAF, _END = -1, -2
# By a node and the number of an edge of it: the number of the input that the edge leads to.
Places: TypeAlias = Mapping[tuple[Any, int], int]
# The kind of a border that has one gradient for each input, whatever nodes it has.
MODULE, NODE = "module", "node"
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_COPY = "ToCopyBackward0"
# The nodes of C that are neither, by their classes: a module is walked through once for each that it is in. A
# script may define any number of functions of Python, whose classes are not to be kept.
_OTHER_KINDS: set[type] = set()
_OF_PYTHON = torch.autograd.function.BackwardCFunction


def edges_of(tensors: list[torch.Tensor]) -> list[Edge | None]:
    """Return where the gradient of each tensor goes, None for those that require none.

    It is asked before the call, because one that changes its argument in place gives it another node.
    """
    if COMPILED is not None:
        found: list[Edge | None] = COMPILED.edges_of(tensors)
        return found
    return [_edge(tensor) if tensor.requires_grad else None for tensor in tensors]


def _edge(tensor: torch.Tensor) -> Edge:
    node = tensor.grad_fn
    # A leaf has no node of its own yet; the node that accumulates its gradient names it.
    return (tensor, _LEAF) if node is None else (node, tensor.output_nr)


class PassedGradients(NamedTuple):
    """What one backward pass through an operator saw; None where there is no gradient.

    `inside` has by the number of an output what reached it from others by ways within the operator.
    `gradient_of` has for each of `passed_on` the number of the input that gets it, None for a part of the
    node that is no tensor of the call.
    """

    arrived: Sequence[torch.Tensor | None]
    passed_on: Sequence[torch.Tensor | None]
    gradient_of: Sequence[int | None]
    inside: Mapping[int, Sequence[torch.Tensor]] = MappingProxyType({})

    def from_outside(self) -> list[torch.Tensor | None]:
        """Return what arrived from outside of the operator, as exact as the sums were; None for nothing."""
        found = list(self.arrived)
        for index, several in self.inside.items():
            arrived = found[index]
            if arrived is not None:
                found[index] = _without(arrived, several)
        return found


def _without(arrived: torch.Tensor, several: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a sum without some of its parts, None for nothing; infinity and NaN are of those.

    Within `vmap` it is that of all that is mapped over.
    """
    arrived, inside = unwrapped(arrived), functools.reduce(torch.add, map(unwrapped, several))
    with torch.no_grad():
        is_same = (arrived == inside) | ((arrived != arrived) & (inside != inside))
        rest = (arrived - inside).masked_fill(is_same, 0)
        return rest if bool((rest != 0).any()) else None


OnGradients: TypeAlias = Callable[[PassedGradients], None]


def watch(
    kind: str,
    inputs: list[Edge | None],
    outputs: Sequence[torch.Tensor],
    done: OnGradients,
    find_places: Callable[[], Places | None],
) -> "Border | NodeBorder | None":
    """Watch the gradients at the operator's border, or (`node`) those of the node of the first output,
    which is what msprobe records. `find_places` gives the `places` of `watch_border`, where it matters."""
    if kind != NODE:
        if COMPILED is not None and kind != MODULE and len(outputs) == 1:
            found = COMPILED.single_node(inputs, outputs[0])
            if found is not None:
                return NodeBorder(found[0], found[1], done)
        return watch_border(inputs, outputs, done, find_places(), by_inputs=kind == MODULE)
    node = outputs[0].grad_fn if outputs else None
    return None if node is None else NodeBorder(node, {}, done)


def watch_border(
    inputs: Sequence[Edge | None],
    outputs: Sequence[torch.Tensor],
    done: OnGradients,
    places: Places | None = None,
    *,
    by_inputs: bool = False,
) -> "Border | NodeBorder | None":
    """Hand over the gradients of a call once they have passed; None where it has no graph.

    An operator that is a single node has its gradients in the order of that node, as msprobe has them; one
    of several nodes, and a module (`by_inputs`), has one for each input that requires a gradient. What a
    module gives back as it is (dropout with p = 0) has the gradient of all who use it.

    `places` say which input an edge of the graph leads to, where a tensor is given several times. Without
    them a single node has its edges in the order of the arguments; of several nodes the first place of
    such a tensor has its whole gradient, which belongs to no input, and the others have none.
    """
    wanted = _inputs_by_key(inputs)
    roots: dict[Any, dict[int, int]] = {}
    given_back: dict[Any, list[tuple[int, int, int]]] = {}
    for index, tensor in enumerate(outputs):
        node, number = tensor.grad_fn, tensor.output_nr
        if node is None:
            continue
        if (id(node), number) not in wanted:
            roots.setdefault(node, {}).setdefault(number, index)
        elif by_inputs:
            same = wanted[id(node), number][0]
            given_back.setdefault(node, []).append((number, index, same))
    if not roots and not given_back:
        return None
    found = _ways(roots, wanted, places or {}) if wanted else Ways({}, {}, True)
    if not by_inputs and not found.inner and len(roots) == 1:
        (node,) = roots
        exits = found.exits.get(node, ())
        return NodeBorder(node, {each.place: each.input for each in exits}, done)
    border = Border.of_several(roots, found, len(outputs), inputs, done)
    if places is None:
        border.add_up([indices for indices in wanted.values() if len(indices) > 1])
    for node, given in given_back.items():
        border.watch_given_back(node, given)
    return border


def _inputs_by_key(inputs: Sequence[Edge | None]) -> dict[Any, list[int]]:
    """Return the numbers of the inputs by the edges that they are; a tensor may be given several times."""
    found: dict[Any, list[int]] = {}
    for index, edge in enumerate(inputs):
        if edge is not None:
            found.setdefault((id(edge[0]), edge[1]), []).append(index)
    return found


class Exit(NamedTuple):
    """Where a node leads out of the operator: its place, and the number of the input that gets what it passes
    on there, in the input's dtype if autocast has cast it."""

    place: int
    input: int
    dtype: torch.dtype | None = None


class Ways(NamedTuple):
    """The nodes that lead to an input; those that lead to an output, each with a place and the number of that
    output; and whether there are nodes between."""

    exits: dict[Any, list[Exit]]
    to_outputs: dict[Any, list[tuple[int, int]]]
    inner: bool


def _ways(
    roots: Mapping[Any, Mapping[int, int]], wanted: Mapping[Any, Sequence[int]], places: Places
) -> Ways:
    """Return the nodes by which gradients go within the operator.

    The graph is walked in the order of the operands. A tensor that is given twice (x * x) takes its places
    in this order, unless `places` name them.
    """
    if len(roots) == 1:
        (root,) = roots
        found = _direct_exits(root, wanted)
        if found is not None:
            return Ways({root: found}, {}, False)
    exits: dict[Any, list[Exit]] = {}
    to_outputs: dict[Any, list[tuple[int, int]]] = {}
    taken: dict[Any, int] = {}
    visited, inner = set(roots), False
    # The next node is the last one; each has the edges that are still to be looked at.
    stack = [(node, enumerate(node.next_functions)) for node in reversed(list(roots))]
    while stack:
        node, edges = stack[-1]
        place, (following, number) = next(edges, (0, (None, _END)))
        if number == _END:
            stack.pop()
        if following is None:
            continue
        key, dtype = (id(following), number), None
        indices = wanted.get(key)
        if indices is None:
            key, dtype = _input_behind(following, number, wanted)
            indices = wanted.get(key)
        if indices is not None:
            in_order = indices[min(taken.get(key, 0), len(indices) - 1)]
            index = places.get((node, place), in_order)
            taken[key] = taken.get(key, 0) + 1
            exits.setdefault(node, []).append(Exit(place, index, dtype))
            inner |= dtype is not None
        elif following not in visited:
            inner = True
            visited.add(following)
            stack.append((following, enumerate(following.next_functions)))
        elif following in roots and number in roots[following]:
            to_outputs.setdefault(node, []).append((place, roots[following][number]))
    return Ways(exits, to_outputs, inner)


def _direct_exits(node: Any, wanted: Mapping[Any, Sequence[int]]) -> list[Exit] | None:
    """Return where a node leads out of the operator, if all its edges are inputs that are given once."""
    exits = []
    for place, (following, number) in enumerate(node.next_functions):
        if following is not None:
            indices = wanted.get((id(following), number))
            if (
                indices is None
                and number == 0
                and (leaf := getattr(following, "variable", None)) is not None
            ):
                indices = wanted.get((id(leaf), _LEAF))
            if indices is None or len(indices) != 1:
                return None
            exits.append(Exit(place, indices[0]))
    return exits


def _input_behind(
    node: Any, number: int, wanted: Mapping[Any, Sequence[int]]
) -> tuple[Any, torch.dtype | None]:
    """Return the key of the input that a node may be, and its dtype if autocast's copy lies between.

    Autocast casts a leaf once and keeps the copy for further calls; their gradients are added up there.
    """
    key = id(node), number
    if type(node) in _OTHER_KINDS or key in wanted:
        return key, None
    name = node.name()
    if name not in (_COPY, _ACCUMULATE):
        if not isinstance(node, _OF_PYTHON):
            _OTHER_KINDS.add(type(node))
        return key, None
    is_copy = name == _COPY
    leaf = node.next_functions[0][0] if is_copy else node
    if leaf is None or leaf.name() != _ACCUMULATE:
        return key, None
    return (id(leaf.variable), _LEAF), leaf.variable.dtype if is_copy else None


class NodeBorder:
    """Waits for the gradients at a call that is a single node; `indices` are the numbers of the inputs that
    get what it passes on, by its places. It is the node's hook itself."""

    __slots__ = ("_done", "_handle", "_indices")

    def __init__(self, node: Any, indices: dict[int, int], done: OnGradients) -> None:
        self._done: OnGradients | None = done
        self._indices = indices
        self._handle = node.register_hook(self)

    def __call__(self, passed_on: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
        """Hand over what has passed the first time."""
        done, self._done = self._done, None
        if done is not None:
            find = self._indices.get
            places = [find(place) for place in range(len(passed_on))] if self._indices else []
            done(PassedGradients(arrived, passed_on, places))

    def close(self) -> None:
        """Wait no longer."""
        self._done = None
        self._handle.remove()


class Border(GradientWait):
    """Waits for the gradients at the nodes of one call."""

    def __init__(self, done: OnGradients, outputs: int, inputs: Sequence[int]) -> None:
        super().__init__()
        self._done = done
        self._arrived: list[torch.Tensor | None] = [None] * outputs
        self._passed_on: dict[int, torch.Tensor | None] = dict.fromkeys(inputs)
        # What has reached an output from within the operator.
        self._inside: dict[int, list[torch.Tensor]] = {}
        self._first_of: dict[int, int] = {}

    @classmethod
    def of_several(
        cls,
        roots: dict[Any, dict[int, int]],
        ways: Ways,
        outputs: int,
        inputs: Sequence[Edge | None],
        done: OnGradients,
    ) -> "Border":
        """Watch the nodes of the outputs, and those that lead to the inputs."""
        indices = [index for index, edge in enumerate(inputs) if edge is not None]
        border = cls(done, outputs, indices)
        for node, places in ways.to_outputs.items():
            border._watch_inside(node, places)
        for node in dict.fromkeys([*roots, *ways.exits]):
            border._watch(node, roots.get(node, {}), ways.exits.get(node, ()))
        return border

    def add_up(self, places: Iterable[Sequence[int]]) -> None:
        """Add up what is passed on to several inputs each, because it cannot be told apart."""
        self._first_of = {index: indices[0] for indices in places for index in indices}

    def watch_given_back(self, node: Any, places: Sequence[tuple[int, int, int]]) -> None:
        """Watch what arrives at a node that made inputs which are outputs as well: the number of its
        output, and the indices of the output and of the input."""

        def take(arrived: tuple[Any, ...]) -> None:
            for number, output, index in places:
                self._arrived[output] = arrived[number]
                if self._passed_on[index] is None:
                    self._passed_on[index] = arrived[number]

        self.wait_for(node.register_prehook, take)

    def _watch_inside(self, node: Any, places: Sequence[tuple[int, int]]) -> None:
        """Watch what a node passes on to outputs, before these pass it on."""
        fired = False

        def hook(passed_on: tuple[Any, ...], _: tuple[Any, ...]) -> None:
            nonlocal fired
            if fired or self._left <= 0:
                return
            fired = True
            for place, index in places:
                gradient = passed_on[place]
                if gradient is not None:
                    self._inside.setdefault(index, []).append(gradient)

        self._handles.append(node.register_hook(hook))

    def _watch(self, node: Any, outputs: dict[int, int], exits: Sequence[Exit]) -> None:
        self.wait_for(node.register_hook, functools.partial(self._take, outputs, exits))

    def _take(
        self,
        outputs: dict[int, int],
        exits: Sequence[Exit],
        passed_on: tuple[Any, ...],
        arrived: tuple[Any, ...],
    ) -> None:
        for number, index in outputs.items():
            self._arrived[index] = arrived[number]
        for place, found, dtype in exits:
            index = self._first_of.get(found, found)
            gradient, before = passed_on[place], self._passed_on[index]
            if gradient is None:
                continue
            if dtype is not None:
                gradient = gradient.to(dtype)
            self._passed_on[index] = gradient if before is None else before + gradient

    def hand_over(self) -> None:
        """Hand over what has arrived so far."""
        indices = [None if index in self._first_of else index for index in self._passed_on]
        passed_on = list(self._passed_on.values())
        self._done(PassedGradients(self._arrived, passed_on, indices, self._inside))
        self._arrived, self._passed_on, self._inside = [], {}, {}


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
    return _walked(pairs, _inputs_by_key(inputs), index_of)


def _is_ambiguous(inputs: Sequence[Edge | None]) -> bool:
    """Return whether a tensor that requires a gradient is given several times."""
    wanted = [edge for edge in inputs if edge is not None]
    return len(wanted) > 1 and len({(id(node), number) for node, number in wanted}) < len(wanted)


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
            key = None if following is None else _input_behind(following, number, wanted)[0]
            if key not in wanted:
                pairs.append((following, beside))
                continue
            index = index_of.get(beside)
            if index is None or index not in wanted[key]:
                return None
            places[node, place] = index
    return places
