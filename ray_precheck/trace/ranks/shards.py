"""Gradients of shards that the ranks scaled otherwise, as a norm of a rank's own shards does.

Comes in: the dumps of a step. Goes out: findings. Called by `checks`. FSDP reduces the gradients of a module
to one shard for each rank; what the update gets may be scaled (clipped), and by one factor on all ranks.
"""

import math
from collections import defaultdict
from collections.abc import Iterator

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR
from ray_precheck.trace.items import OUTPUT, bare_name, items_of
from ray_precheck.trace.ranks.agreement import SAME_SCALE, is_near, shown_ranks
from ray_precheck.trace.ranks.layout import Ranks
from ray_precheck.trace.ranks.nouns import RankFault, RankFinding, RankTrace
from ray_precheck.trace.side import record_from_json

# A rank's factors are one, where they are so near to each other: norms of float32, and of bfloat16 that was
# reduced, have less beside them when 100 elements are in them.
_ONE_FACTOR = 1e-3


def shard_findings(ranks: Ranks) -> Iterator[RankFinding]:
    """Yield where each rank of a group scaled all its shards of gradients by a factor of its own."""
    by_group: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for rank, summary in sorted(ranks.items()):
        for members, factors in _factors(summary).items():
            if len(factors) > 1 and max(factors) - min(factors) <= _ONE_FACTOR * max(factors):
                by_group[members][rank] = sum(factors) / len(factors)
    for members, found in by_group.items():
        first = next(iter(found.values()))
        odd = [rank for rank, factor in found.items() if not is_near(factor, first, SAME_SCALE)]
        if not odd or set(found) != set(members):
            continue
        shown = ", ".join(f"{factor:.4g} on rank {rank}" for rank, factor in found.items())
        message = (
            "the ranks scale their shards of gradients by other factors between the reduction and the update"
            f" ({shown}): each of {shown_ranks(sorted(found))} clips by a norm of its own shards, which is"
            " not summed over the ranks"
        )
        summary = ranks[odd[0]]
        name = next(iter(summary.updates), "")
        yield RankFinding(
            summary.step, ERROR, RankFault.GRADIENT, name, ranges_of(members),
            f"dp {ranges_of(members)}", f"{first:.4g}", f"{found[odd[0]]:.4g}",
            summary.rests_on.value, message, dump=summary.name, key=summary.uses.get(name, ""),
            place=len(summary.keys),
        )  # fmt: skip


def _factors(summary: RankTrace) -> dict[tuple[int, ...], list[float]]:
    """Return what the norms of shards at the update are to those that FSDP's reductions gave, by group; none
    of parameters that are reduced more often."""
    found: dict[tuple[int, ...], list[float]] = defaultdict(list)
    seen: dict[tuple[str, ...], int] = defaultdict(int)
    told: list[tuple[tuple[int, ...], tuple[str, ...], float]] = []
    for each in summary.exchanges:
        if "reduce" not in each.meeting.operation or b'"by"' not in each.raw:
            continue
        record = record_from_json(each.raw)
        listed = record.get("parameters")
        if record.get("by") != "FSDP" or not isinstance(listed, list):
            continue
        if "all_reduce" in each.meeting.operation:
            return {}  # shards are summed over copies of them, too
        names = tuple(bare_name(name) for name in listed if isinstance(name, str))
        seen[names] += 1
        given = [item for item in items_of(record) if item.part == OUTPUT and item.is_tensor]
        shard = min(given, key=lambda item: math.prod(item.shape or ()), default=None)
        updates = [summary.updates.get(name) for name in names]
        gradients = [each.gradient for each in updates if each is not None and each.gradient]
        norm = None if shard is None else shard.norm
        if not names or len(gradients) < len(names) or not norm or not math.isfinite(norm):
            continue
        total = math.sqrt(sum(fact.statistics[3] ** 2 for fact in gradients))
        if math.isfinite(total) and total:
            told.append((each.meeting.ranks, names, total / norm))
    for members, names, factor in told:
        if seen[names] == 1:
            found[members].append(factor)
    return found
