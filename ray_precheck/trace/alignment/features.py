"""The calls of both sides as numbers, so that comparing two calls is comparing integers.

Comes in: the calls of both sides. Goes out: `Features` of each. Called by `align`; read by everything
else here. Equal numbers mean equal things on both sides.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from ray_precheck.trace.alignment.calls import Call, Shape

# So many common tokens, as a share of the common operators, are enough to go by shapes, too.
_ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class Features:
    """The calls of one side, each list of the same length.

    `tokens` number family, input shapes and output shapes together, `steps` are what the edit script
    compares: `tokens`, or less where the shapes differ throughout. `families`, `inputs` and `outputs`
    number each alone. `outside` has the shapes of the inputs that are not outputs of the call before.
    """

    calls: Sequence[Call]
    tokens: list[int]
    steps: list[int]
    families: list[int]
    inputs: list[int]
    outputs: list[int]
    outside: list[list[Shape]]


def features_of(target: Sequence[Call], golden: Sequence[Call]) -> tuple[Features, Features]:
    """Return the features of both sides.

    Runs with another batch size or another layout have no call with the same shapes: the edit script then
    compares operators and numbers of dimensions, or operators alone. It goes by the finest of these that
    has half as many calls in common as the operators have.
    """
    tokens = _numbered(target, golden, lambda call: (call.family, call.inputs, call.outputs))
    families = _numbered(target, golden, lambda call: call.family)
    ranks = _numbered(target, golden, _ranks)
    needed = _ENOUGH * _in_common(*families)
    steps = next((each for each in (tokens, ranks) if _in_common(*each) >= needed), families)
    inputs = _numbered(target, golden, lambda call: call.inputs)
    outputs = _numbered(target, golden, lambda call: call.outputs)
    first, second = (
        Features(
            calls,
            tokens[side],
            steps[side],
            families[side],
            inputs[side],
            outputs[side],
            _outside(calls),
        )
        for side, calls in enumerate((target, golden))
    )
    return first, second


def _outside(calls: Sequence[Call]) -> list[list[Shape]]:
    found = []
    given: tuple[Shape, ...] = ()
    for call in calls:
        inputs = list(call.inputs)
        for shape in given:
            if shape in inputs:
                inputs.remove(shape)
        found.append(inputs)
        given = call.outputs
    return found


def _ranks(call: Call) -> Hashable:
    return call.family, tuple(map(len, call.inputs)), tuple(map(len, call.outputs))


def _numbered(
    target: Sequence[Call], golden: Sequence[Call], key: Callable[[Call], Hashable]
) -> tuple[list[int], list[int]]:
    numbers: dict[Hashable, int] = {}
    return (
        [numbers.setdefault(key(call), len(numbers)) for call in target],
        [numbers.setdefault(key(call), len(numbers)) for call in golden],
    )


def _in_common(target: Iterable[int], golden: Iterable[int]) -> int:
    """Return how many elements the two have in common, each as often as both have it."""
    return (Counter(target) & Counter(golden)).total()


def are_close(target: Sequence[float], golden: Sequence[float], within: float) -> bool | None:
    """Return whether norms agree within a share of the larger one; None where that is not known.

    NaN and infinities say nothing: a wrong run has them where the right one has numbers.
    """
    if not target or len(target) != len(golden):
        return None
    known = False
    for first, second in zip(target, golden, strict=True):
        if not (math.isfinite(first) and math.isfinite(second)):
            continue
        if abs(first - second) > within * max(abs(first), abs(second)):
            return False
        known = True
    return known or None
