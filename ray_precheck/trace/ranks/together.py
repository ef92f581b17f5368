"""Whether ranks that have copies of parameters train one model.

Comes in: the dumps of these ranks. Goes out: yes or no. Called by `layout`, for ranks of which no collective
tells that it reduces their gradients.
"""

import math
from collections.abc import Mapping, Sequence

from ray_precheck.trace.items import items_of
from ray_precheck.trace.ranks.nouns import ExchangeFact, RankTrace
from ray_precheck.trace.ranks.summary import named_tensors
from ray_precheck.trace.side import record_from_json


def train_together(steps: Sequence[Mapping[int, RankTrace]], members: Sequence[int]) -> bool:
    """Return whether ranks with copies of parameters exchange half as many elements in a step as they update
    (metrics are fewer), or else have the gradient of a copy alike though their inputs are not known to be."""
    for ranks in steps:
        there = [ranks[rank] for rank in members if rank in ranks]
        for summary in there[:1]:
            sizes = [fact.size for each in summary.updates.values() if (fact := each.before)]
            if not sizes:
                sizes = [fact.size for _, fact in named_tensors(summary)]
            if 2 * sum(map(_most_elements, summary.exchanges)) >= sum(sizes):
                return True
        if have_gradients_alike(there) and not _have_inputs_alike(there):
            return True
    return False


def _most_elements(each: ExchangeFact) -> int:
    sizes = [math.prod(i.shape or ()) for i in items_of(record_from_json(each.raw)) if i.is_tensor]
    return max(sizes, default=0)


def have_gradients_alike(members: Sequence[RankTrace]) -> bool:
    """Return whether all ranks got the same gradient for a parameter of one name that is not constant."""
    if len(members) < 2:
        return False
    first, *others = members
    return any(
        update.gradient is not None
        and not update.gradient.is_constant
        and all(
            (theirs := each.updates.get(name)) is not None
            and theirs.gradient is not None
            and theirs.gradient.is_same(update.gradient)
            for each in others
        )
        for name, update in first.updates.items()
    )


def _have_inputs_alike(members: Sequence[RankTrace]) -> bool:
    first, *others = members
    return bool(first.inputs) and all(
        name in each.inputs and each.inputs[name].is_same(fact)
        for name, fact in first.inputs.items()
        for each in others
    )
