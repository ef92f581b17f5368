"""Parameters that an optimizer moves by nothing but rounding.

Comes in: both records of an update. Goes out: the parameters whose gradients are 0 but for rounding, and how
far apart two honest runs may have them. Called by the plan of a comparison.

The bias of a key projection before softmax, or of a convolution before batch norm, has no gradient. What is
left is rounding, and Adam and its like divide it by its own size: each step goes by up to the learning rate,
in another direction in each run. So the parameter differs wholly from the second step on.
"""

import math
from collections.abc import Sequence

from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.numerics.statistics import MAX
from ray_precheck.trace.items import Item

OPTIMIZER, PLAIN = "Optimizer.", "Optimizer.SGD."
_GRADS, _PARAMS, _STEP, _RATE = ".grads.", ".params.", ".state.step.", ".lr"
# Beside all gradients together, rounding makes of one that is 0: 4 roundings of its dtype, or in float32 what
# sums of 65,536 terms lose, u sqrt(n) (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 4.2).
_ROUNDINGS, _SUMMED = 4.0, 2.0**-16
# So far a step goes at most, in learning rates: (1 - beta1) / sqrt(1 - beta2) of Adam's defaults (Kingma and
# Ba, Adam, section 2.1), rounded up; the steps of both runs may have opposite signs.
_FURTHEST_STEP, _BOTH = 4.0, 2.0

# A parameter whose statistics differ by so much has made a step of rounding.
_STEPPED = 1e-4

Unsteady = dict[tuple[object, ...], float]
NEVER = 1 << 62


def unsteady_parameters(
    target: Sequence[Item], golden: Sequence[Item], steps: int, *, is_plain: bool
) -> Unsteady:
    """Return by the mark of each such parameter, before and after the update, the largest L2 distance that
    rounding explains. `steps` is how many updates there were, where the state of the optimizer does not say.

    Of a vector a part may have no gradient, as the keys' part of a packed bias: unless `is_plain`, an
    optimizer whose steps are as large as the gradient, vectors count whole.
    """
    ours, theirs = ({item.path: item for item in items} for items in (target, golden))
    lost = _lost(ours) & _lost(theirs)
    if not is_plain:
        lost |= {
            path for path, item in ours.items() if _GRADS in path and len(item.shape or ()) == 1
        }
    found: Unsteady = {}
    for path in sorted(lost):
        group, _, place = path.partition(_GRADS)
        taken = _number(ours, f"{group}{_STEP}{place}", MAX)
        rate = _number(ours, f"{group}{_RATE}", "value")
        if rate is None:
            continue
        for end in (group, group.replace("input", "output", 1)):
            item = ours.get(f"{end}{_PARAMS}{place}")
            if item is None or item.norm is None or _is_anywhere(item):
                continue
            number = steps if taken is None else taken + 1.0
            size = math.prod(item.shape or ())
            slack = _BOTH * _FURTHEST_STEP * rate * number * math.sqrt(size)
            found[item.mark] = max(slack, found.get(item.mark, 0.0))
    return found


def are_apart(
    target: Sequence[Item], golden: Sequence[Item], unsteady: Unsteady, part: str
) -> bool:
    """Return whether unsteady parameters are apart by more than rounding in a part of an update, its inputs
    or its outputs."""
    theirs = {item.path: item for item in golden}
    for item in target:
        other = theirs.get(item.path)
        if other is None or _PARAMS not in item.path or item.part != part:
            continue
        pairs = zip((*item.ends, item.norm), (*other.ends, other.norm), strict=True)
        if item.mark in unsteady and any(
            one is not None
            and two is not None
            and abs(one - two) > _STEPPED * max(abs(one), abs(two))
            for one, two in pairs
        ):
            return True
    return False


def share_of_rounding(unit: float) -> float:
    """Return the part of the norm of all tensors of a list that rounding may make of a single one."""
    return max(_ROUNDINGS * unit, _SUMMED) if unit else 0.0


def _lost(items: dict[str, Item]) -> set[str]:
    """Return the paths of gradients that are 0 but for rounding, beside all gradients of their group."""
    norms = {
        path: norm
        for path, item in items.items()
        if _GRADS in path and (norm := item.norm) is not None and math.isfinite(norm)
    }
    wholes: dict[str, float] = {}
    for path, norm in norms.items():
        group = path.partition(_GRADS)[0]
        wholes[group] = math.hypot(wholes.get(group, 0.0), norm)
    return {
        path
        for path, norm in norms.items()
        if norm
        <= share_of_rounding(epsilon_of(items[path].dtype) / 2) * wholes[path.partition(_GRADS)[0]]
    }


def _is_anywhere(item: Item) -> bool:
    """Return whether other tensors may have the same mark: zeros, ones, all of one value, as a parameter has
    before its first update. A result that is wrongly 0 is no parameter."""
    (most, least), size = item.ends, math.prod(item.shape or ())
    return most == least and (size > 1 or most in (0.0, 1.0))


def _number(items: dict[str, Item], path: str, name: str) -> float | None:
    return items[path].number(name) if path in items else None
