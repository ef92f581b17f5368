"""How far parameters and states may differ after the update of an optimizer, where nothing can be replayed.

Comes in: the record of an update, with the differences of what it got. Goes out: the difference that these
explain. Called by `estimate`.

An optimizer that divides a gradient by its own size moves an element by its learning rate, whatever rounding
left of a gradient that is nearly 0.
"""

import math
from collections.abc import Sequence

from ray_precheck.commands.locate.walk.estimates.sizes import rms_of
from ray_precheck.numerics.statistics import MAX
from ray_precheck.trace.flow.flow import FlowRecord
from ray_precheck.trace.items import Item

# Whose step is the learning rate times the gradient; the others divide it by its own size, or take its sign.
_PROPORTIONAL = ("Optimizer.SGD.", "Optimizer.ASGD.")


def explained_update(
    record: FlowRecord, inputs: Sequence[tuple[Item, float]], output: Item
) -> float:
    """Return the relative difference of a parameter or state after an update that its gradient explains.

    A step is the learning rate times the gradient, or times its sign where the optimizer divides it by its
    size: then elements whose gradient is within its difference of 0 may go either way. In a vector these may
    be any: in a bias of attention those of the keys, to which softmax is invariant, have rounding alone.
    """
    group, _, number = output.path.removeprefix("output.").partition(".")
    number = number.rpartition(".")[2]
    given = [
        (item, difference)
        for item, difference in inputs
        if item.path.startswith(f"input.{group}.") and item.path.rpartition(".")[2] == number
    ]
    if ".params." not in output.path:
        return 2.0 * max((difference for _, difference in given), default=0.0)
    size, rate = rms_of(output), _number(record, group, "lr")
    if not size:
        return math.inf
    explained = 0.0
    is_sign = not record.entry.key.startswith(_PROPORTIONAL)
    is_vector = len(output.shape or ()) < 2
    for item, difference in given:
        if ".params." in item.path:
            explained += difference
        elif is_sign and ".grads." in item.path:
            share = 1.0 if is_vector and difference else min(1.0, difference)
            explained += 2.0 * rate * _steps(record, group) / size * math.sqrt(share)
        else:
            explained += rate * rms_of(item) / size * difference
    return explained


def _steps(record: FlowRecord, group: str) -> float:
    """Return the largest step of an element in learning rates.

    RMSprop divides a gradient by the root of a running mean of its squares, of which the newest has the
    weight 1 - alpha, and adds up what is left of earlier steps with its momentum.
    """
    alpha, momentum = (_number(record, group, name) for name in ("alpha", "momentum"))
    if not (0.0 <= alpha < 1.0 and 0.0 <= momentum < 1.0):
        return 1.0
    return 1.0 / math.sqrt(1.0 - alpha) / (1.0 - momentum)


def _number(record: FlowRecord, group: str, name: str) -> float:
    """Return a hyperparameter of a group of parameters, a number or a tensor of one; 0 where the record has
    none."""
    for item in record.items:
        if item.path == f"input.{group}.{name}":
            found = item.number(MAX) if item.is_tensor else (item.element or {}).get("value")
            return float(found) if isinstance(found, float | int) else 0.0
    return 0.0
