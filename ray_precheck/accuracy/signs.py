"""Updates by the sign of a sum that rounding decides: the bench takes the sign of the tested side.

Comes in: the arguments of a step of Lion, the tested outputs and the bench's. Goes out: the bench's outputs,
in which parameters have taken the tested side's step where its sign is as right. Called by
`accuracy.ambiguous`. Pure NumPy.

Lion moves a parameter by lr, in the direction of sign(beta1 m + (1 - beta1) g). Where the two terms nearly
cancel, an honest sum in the dtype of m and g has either sign, or is 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ray_precheck.numerics.rounding import machine_epsilon
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.values import HostCall, HostTensor

# Each product is rounded once, and their sum once: 1.5 units in the last place of the larger product,
# and as much again for a kernel that rounds beta1 too.
_ROUNDINGS = 3.0


def stepped_like(
    call: HostCall, tested: Sequence[HostTensor], bench: Sequence[HostTensor]
) -> list[Any]:
    """Return the bench's outputs with the tested side's steps where the sign is undecided."""
    found: list[Any] = list(bench)
    start = 0
    for group in call.args:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), list):
            return list(bench)
        for place, (undecided, sign) in enumerate(_sums(group)):
            position = start + place
            if position >= len(found) or found[position].shape != undecided.shape:
                return list(bench)
            mine, lr = tested[position].data, _plain(group.get("lr"))
            chosen = _nearest(mine, found[position].data, undecided, sign, lr)
            found[position] = replace(found[position], data=chosen)
        start += 2 * len(group["params"])  # the parameters, then their momenta
    return found


def _sums(group: Mapping[str, Any]) -> Iterator[tuple[Array, Array]]:
    """Yield, for each parameter, where rounding decides the sign of the sum, and the exact sign."""
    betas, grads = group.get("betas"), group.get("grads")
    momenta = (group.get("state") or {}).get("exp_avg") or [None] * len(group["params"])
    if not isinstance(betas, list | tuple) or not isinstance(grads, list):
        return
    beta1 = _plain(betas[0])
    for grad, momentum in zip(grads, momenta, strict=False):
        kept = np.zeros(grad.shape) if momentum is None else momentum.data.astype(np.float64)
        terms = (kept * beta1, grad.data.astype(np.float64) * (1.0 - beta1))
        if group.get("maximize"):
            terms = (terms[0], -terms[1])
        total = terms[0] + terms[1]
        used = [each for each in (grad, momentum) if each is not None]
        unit = max(machine_epsilon(each.dtype) for each in used)
        near = np.abs(total) < _ROUNDINGS * unit * np.maximum(*np.abs(terms))
        yield np.asarray(near & (momentum is not None)), np.sign(total)


def _nearest(tested: Array, bench: Array, undecided: Array, sign: Array, lr: float) -> Array:
    """Return the bench's values, where undecided the nearest to the tested of the three steps."""
    wide = np.nan_to_num(tested.astype(np.float64))
    before = bench + lr * sign
    candidates = np.stack([before - lr, before, before + lr])
    nearest = np.abs(candidates - wide).argmin(axis=0)
    chosen = np.take_along_axis(candidates, nearest[None], axis=0)[0]
    return np.asarray(np.where(undecided & np.isfinite(bench), chosen, bench))


def _plain(value: Any) -> float:
    """Return a hyperparameter, which may be a tensor of one element."""
    if isinstance(value, HostTensor):
        return float(value.data.reshape(-1)[0])
    return float(value)
