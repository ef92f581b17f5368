"""How well calls fit each other: one to one, and several calls to one that does what they do.

Comes in: the features of both sides. Goes out: scores, 0 for what is no pair. Called by `gaps`, which makes
the sum of the scores as large as it can be. A pair with the same operator and shapes is worth 1, so no
other pair may take a call away from it; the numbers below were set by F1 after random edits
(`tests/unit/trace/alignment/test_alignment_edits.py`, scripts/README.md).
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import chain

from ray_precheck.trace.alignment.features import Features, are_close

# Shapes and operator: the same, another input, another output of as many dimensions, other shapes.
_SAME, _SAME_OUTPUTS, _SAME_RANKS, _SAME_FAMILY = 1.0, 0.7, 0.6, 0.4
# Another operator: the same shapes; the same first input and outputs.
_RENAMED, _PARTLY_RENAMED = 0.5, 0.3
# Several calls for one: the boundary fits, how much of the inputs, and each call that it explains.
_FUSED, _FUSED_INPUTS, _FUSED_WHOLE, _FUSED_EACH, _FUSED_KNOWN = 0.35, 0.25, 0.05, 0.03, 0.08
_NUMBER = frozenset([()])
# Values: two honest runs differ by less than 2 %, and another value speaks against another operator.
_CLOSE, _CLOSE_BY, _FAR = 0.25, 0.02, -0.1
# Between equals the same name or spelling.
_SAME_NAME, _SAME_TYPE = 0.02, 0.01
LONGEST_FUSION = 8

# Operators and what they are made of, where the shapes at the boundary may differ.
_PARTS = {
    name: frozenset(parts.split())
    for name, parts in {
        "scaled_dot_product_attention": "matmul softmax",
        "linear": "matmul add",
        "addmm": "matmul add",
        "baddbmm": "matmul add",
        "rms_norm": "rsqrt mul",
        "layer_norm": "mean mul add",
        "softmax": "exp sum div",
        "log_softmax": "softmax log",
        "cross_entropy": "log_softmax nll_loss",
        "silu": "sigmoid mul",
        "swiglu": "silu mul",
        "rotary_embedding": "mul add",
        "addcmul": "mul add",
        "addcdiv": "div add",
    }.items()
}


@dataclass(frozen=True, slots=True)
class Likeness:
    """The scores of calls of a target and a golden side, by their positions."""

    target: Features
    golden: Features
    _pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    _groups: dict[Hashable, float] = field(default_factory=dict)

    def of_pair(self, x: int, y: int) -> float:
        """Return how well two calls fit each other; 0 if they are no pair."""
        key = self.target.tokens[x], self.golden.tokens[y]
        score = self._pairs.get(key)
        if score is None:
            score = self._pairs[key] = self._shaped(x, y)
        if not score:
            return 0.0
        first, second = self.target.calls[x], self.golden.calls[y]
        score += self._valued(x, y, certain=key[0] == key[1])
        if first.type_name == second.type_name:
            score += _SAME_NAME if first.name == second.name else _SAME_TYPE
        return score

    def of_fusion(self, x: int, y: int, count: int) -> float:
        """Return how well one call of the target fits `count` golden ones that end with `y`."""
        score = self._group(self.target, x, self.golden, y, count)
        return score + self._valued(x, y) if score else 0.0

    def of_split(self, x: int, y: int, count: int) -> float:
        """Return how well `count` calls of the target that end with `x` fit one golden call."""
        score = self._group(self.golden, y, self.target, x, count)
        return score + self._valued(x, y) if score else 0.0

    def may_be_fused(self, x: int, y: int) -> bool:
        """Return whether one of two calls could end what the other one does alone."""
        target, golden = self.target, self.golden
        return target.outputs[x] == golden.outputs[y] and target.tokens[x] != golden.tokens[y]

    def _shaped(self, x: int, y: int) -> float:
        target, golden = self.target, self.golden
        if target.tokens[x] == golden.tokens[y]:
            return _SAME
        same_outputs = target.outputs[x] == golden.outputs[y]
        first, second = target.calls[x], golden.calls[y]
        if first.family == second.family:
            if same_outputs:
                return _SAME_OUTPUTS
            ranks = [[len(shape) for shape in call.outputs] for call in (first, second)]
            return _SAME_RANKS if ranks[0] == ranks[1] else _SAME_FAMILY
        if not same_outputs or not first.outputs:
            return 0.0
        if target.inputs[x] == golden.inputs[y]:
            return _RENAMED
        return _PARTLY_RENAMED if first.inputs[:1] == second.inputs[:1] else 0.0

    def _valued(self, x: int, y: int, *, certain: bool = False) -> float:
        close = are_close(self.target.calls[x].norms, self.golden.calls[y].norms, _CLOSE_BY)
        if close is None:
            return 0.0
        return _CLOSE if close else 0.0 if certain else _FAR

    def _group(self, one: Features, at: int, many: Features, last: int, count: int) -> float:
        """Return how well a call fits a group of `count` of the other side that ends with `last`."""
        first = last - count + 1
        key = one is self.target, one.tokens[at], *many.tokens[first : last + 1]
        score = self._groups.get(key)
        if score is None:
            score = self._groups[key] = _boundary(one, at, many, first, last)
        return score


def _boundary(one: Features, at: int, many: Features, first: int, last: int) -> float:
    """Return how well the shapes at the boundary of a group fit a call that does what the group does.

    The outputs must be those of the last call; the inputs those that do not come out of a call of the
    group, the first call's among them, each once or as often as the group gets it, numbers aside. Where
    the operator is known to be made of the group's, the inputs may have other shapes. At most 0.97.
    """
    if one.outputs[at] != many.outputs[last]:
        return 0.0
    head = many.calls[first].inputs
    taken = [*head, *chain.from_iterable(many.outside[first + 1 : last + 1])]
    given = one.calls[at].inputs
    shapes, own = set(taken) - _NUMBER, set(given) - _NUMBER
    starts_alike = own.issuperset(_NUMBER.union(head[:1]) - _NUMBER)
    parts = _PARTS.get(one.calls[at].family)
    is_known = parts is not None and parts <= {call.family for call in many.calls[first : last + 1]}
    if not is_known and not (starts_alike and own <= shapes):
        return 0.0
    share = len(own & shapes) / len(own | shapes) if own or shapes else 1.0
    is_whole = len(taken) == len(given) and sorted(taken) == sorted(given)
    return (
        _FUSED
        + _FUSED_INPUTS * share
        + _FUSED_WHOLE * is_whole
        + _FUSED_EACH * (last - first + 1)
        + _FUSED_KNOWN * is_known
    )
