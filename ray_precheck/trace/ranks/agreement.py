"""How tensors of several ranks agree: which ranks differ, how far, by which factor; and how that is shown.

Comes in: what dumps say of tensors. Goes out: ranks, numbers, words. Called by all checks of this folder.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.ranks.layout import factor_of
from ray_precheck.trace.ranks.nouns import RankGroup, TensorFact

# Two kernels that add n terms in another order are about u sqrt(n) apart (Higham, Accuracy and Stability of
# Numerical Algorithms, 2nd ed., sections 2.8 and 4.2); 8 of them, and no more than a thousandth.
_ROUNDINGS, _MOST_ROUNDING = 8.0, 1e-3
# A sketch of a factor has no more than this beside it, relative to the tensor.
NO_FACTOR = 1e-3
SAME_SCALE = 1e-2


def differ_by_rounding(one: TensorFact, other: TensorFact) -> bool:
    """Return whether two tensors agree but for rounding: 8 u sqrt(n) of n elements, at most 1e-3."""
    unit = epsilon_of(one.dtype) / 2
    limit = min(_ROUNDINGS * unit * math.sqrt(max(1, one.size)), _MOST_ROUNDING)
    return relative_difference(one, other) <= limit


def relative_difference(one: TensorFact, other: TensorFact) -> float:
    """Return how far two tensors are apart, relative to the larger one: in L2 as their sketches estimate it,
    else the largest difference of Max, Min, Mean and of Norm for each element. NaN counts as infinite."""
    if one.sketch is not None and other.sketch is not None:
        size = max(float(np.linalg.norm(one.sketch)), float(np.linalg.norm(other.sketch)))
        apart = float(np.linalg.norm(one.sketch.astype(np.float64) - other.sketch))
    else:
        root = max(1, one.size) ** 0.5
        ours = [*one.statistics[:3], one.statistics[3] / root]
        theirs = [*other.statistics[:3], other.statistics[3] / root]
        pairs = [
            (a, b) for a, b in zip(ours, theirs, strict=True) if not (np.isnan(a) and np.isnan(b))
        ]
        size = max((abs(each) for pair in pairs for each in pair), default=0.0)
        apart = max((abs(a - b) if a != b else 0.0 for a, b in pairs), default=0.0)
    if not np.isfinite(apart) or not np.isfinite(size):
        return float("inf")
    return apart / size if size else 0.0


def odd_ones(facts: Mapping[int, TensorFact]) -> tuple[list[int], list[int]]:
    """Return the ranks that have what most of them have, and those that have something else; where no value
    is the most frequent one, the first rank alone is in the first list."""
    by_value: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, fact in facts.items():
        by_value[fact.checksum, fact.content].append(rank)
    most = max(by_value.values(), key=lambda members: (len(members), -members[0]))
    agreeing = {*most}
    return most, [rank for rank in facts if rank not in agreeing]


def factor_of_facts(one: TensorFact, other: TensorFact) -> float:
    """Return by which factor a tensor is another one, as sketches or statistics tell; 0.0 for no factor."""
    if one.sketch is None or other.sketch is None:
        return factor_of(one, other)
    ours, theirs = one.sketch.astype(np.float64), other.sketch.astype(np.float64)
    square = float(ours @ ours)
    factor = float(ours @ theirs) / square if square else 0.0
    rest = float(np.linalg.norm(theirs - factor * ours))
    return factor if rest <= NO_FACTOR * float(np.linalg.norm(theirs)) else 0.0


def is_near(one: float, other: float, share: float = SAME_SCALE) -> bool:
    """Return whether a number is another one but for a share of it; none is near 0."""
    return bool(other) and abs(one / other - 1) <= share


def usual_of(scales: Sequence[float]) -> float:
    """Return the scale that most have, 0.0 where none is usual."""
    best, count = 0.0, 0
    for scale in scales:
        near = sum(abs(other / scale - 1) <= SAME_SCALE for other in scales)
        if near > count:
            best, count = scale, near
    return best if 2 * count > len(scales) else 0.0


def shown_group(group: RankGroup) -> str:
    """Return a group as a cell: `dp 0-1`."""
    return f"{group.kind} {ranges_of(group.ranks)}"


def shown_fact(fact: TensorFact | None) -> str:
    """Return the statistics of a tensor as a cell."""
    if fact is None:
        return "none"
    high, low, mean, norm = fact.statistics
    return f"Max {high:.6g}, Min {low:.6g}, Mean {mean:.6g}, Norm {norm:.6g}"


def shown_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words: `rank 1`, `ranks 0-3`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {ranges_of(ranks)}"


def ranks_have(ranks: Sequence[int]) -> str:
    """Return ranks as the subject of a sentence: `rank 1 has`, `ranks 1-2 have`."""
    return f"{shown_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"
