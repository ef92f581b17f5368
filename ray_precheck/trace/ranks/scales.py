"""Gradients that a reduction scaled otherwise than those of other parameters.

Comes in: the dumps of a group in each step, and its `Replicas`. Goes out: findings. Called by `checks`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.items import INPUT, items_of
from ray_precheck.trace.ranks.agreement import (
    NO_FACTOR,
    SAME_SCALE,
    is_near,
    shown_fact,
    shown_group,
    usual_of,
)
from ray_precheck.trace.ranks.layout import DATA, EXPERT, TENSOR, Ranks
from ray_precheck.trace.ranks.nouns import (
    RankFault,
    RankFinding,
    RankGroup,
    RankTrace,
)
from ray_precheck.trace.ranks.replicas import Replicas, members_of
from ray_precheck.trace.side import record_from_json


def scale_findings(steps: Sequence[Ranks], replicas: Replicas) -> Iterator[RankFinding]:
    """Yield the gradients that a reduction scaled otherwise than those of other parameters: reduced twice, or
    not divided. A factor that all of them have, as clipping gives, is none; that of a sum in the place of a
    mean is a warning, because a loss may be divided by the samples of all ranks."""
    group = replicas.group
    for ranks in steps:
        members = members_of(ranks, group)
        scales = {
            name: scale
            for name in replicas.copies
            if (scale := _scale(name, members, group)) is not None
        }
        if len(scales) < 2:
            continue
        usual = usual_of(list(scales.values()))
        rests = members[0].rests_on.value
        found = []
        for name, scale in scales.items():
            if usual and abs(scale / usual - 1) > SAME_SCALE:
                fact = members[0].updates[name].gradient
                of = "sum" if group.kind == TENSOR else "mean"
                factor = scale / usual
                message = (
                    f"{name}: the gradient that the update gets is {factor:.4g} times what those of"
                    f" {len(scales) - 1} other parameters are to the {of} of the ranks' gradients: it is"
                )
                size = len(group.ranks)
                verdict = ERROR if is_near(factor, size) or is_near(factor, 1 / size) else WARNING
                message += (
                    f" scaled, or {_what_scales(name, group)}"
                    if verdict == ERROR
                    else " scaled; right where it is clipped or weighted by itself"
                )
                found.append(RankFinding(
                    members[0].step, verdict, RankFault.GRADIENT, name, ranges_of(group.ranks),
                    shown_group(group), "", shown_fact(fact), rests, message, dump=members[0].name,
                    key=members[0].uses.get(name, ""), place=len(members[0].keys),
                ))  # fmt: skip
        if found:
            if len(found) <= len(scales) // 2:
                yield from found
            return
        yield from _sum_for_mean(members, group, usual, len(scales))
        return


def _sum_for_mean(
    members: Sequence[RankTrace], group: RankGroup, usual: float, count: int
) -> Iterator[RankFinding]:
    size = len(group.ranks)
    starts = {each for summary in members for each in summary.losses.values()}
    passes = {1.0 / len(summary.losses) for summary in members if summary.losses}
    if group.kind not in (DATA, EXPERT) or starts != passes or len(members) < size:
        return
    times = usual / size
    if times < 1 - SAME_SCALE or abs(usual - 1) <= SAME_SCALE:
        return
    name = next(iter(members[0].updates), "")
    message = (
        f"the gradients of {count} parameters are {usual:.4g} times the mean of the {size} ranks', and each"
        f" rank's loss is not divided either: they are {_why_too_large(members, group)}; right only where the"
        " learning rate takes it into account"
    )
    yield RankFinding(
        members[0].step, WARNING, RankFault.GRADIENT, name, ranges_of(group.ranks), shown_group(group),
        "", "", members[0].rests_on.value, message, dump=members[0].name,
        key=members[0].uses.get(name, ""), place=len(members[0].keys),
    )  # fmt: skip


def reductions_of_gradients(summary: RankTrace, group: RankGroup) -> int:
    """Return how often the collectives of a group reduce tensors of the shapes of all gradients: twice where
    gradients of two passes, or gradients that are reduced already, are reduced."""
    wanted = Counter(
        update.gradient.shape for update in summary.updates.values() if update.gradient is not None
    )
    members, there = ranges_of(group.ranks), Counter[tuple[int, ...]]()
    for each in summary.exchanges:
        if each.meeting.group == members and "reduce" in each.meeting.operation:
            items = items_of(record_from_json(each.raw), each.key)
            there.update(
                item.shape or () for item in items if item.part == INPUT and item.is_tensor
            )
    return min((there[shape] // count for shape, count in wanted.items()), default=0)


def _what_scales(name: str, group: RankGroup) -> str:
    if group.kind == TENSOR and name.endswith(".bias"):
        return "reduced twice, or the bias is added on each rank before a sum, and counts several times"
    return "reduced twice"


def _why_too_large(members: Sequence[RankTrace], group: RankGroup) -> str:
    """Return in words why gradients are the sum of the ranks' and not their mean."""
    if reductions_of_gradients(members[0], group) > 1:
        return "reduced twice, or summed and not divided by the number of ranks"
    return "summed, and not divided by the number of ranks"


def _scale(name: str, members: Sequence[RankTrace], group: RankGroup) -> float | None:
    """Return what a gradient at the update is to the mean of what the backward passes left, or to their sum
    in a tensor-parallel group, to one of them where they are the same; None where it is no multiple."""
    raw = [each.gradients.get(name) for each in members]
    update = members[0].updates.get(name) if members else None
    final = update.gradient if update is not None else None
    if final is None or final.sketch is None or len(raw) < 2:
        return None
    sketches = [each.sketch for each in raw if each is not None and each.sketch is not None]
    if len(sketches) < len(members) or any(name in each.reduced for each in members):
        return None
    if any(each is None or each.shape != final.shape for each in raw):
        return None
    stacked = np.stack(sketches).astype(np.float64)
    same = all(each is not None and raw[0] is not None and each.is_same(raw[0]) for each in raw)
    brought = stacked[0] if same or group.kind != TENSOR else stacked.sum(axis=0)
    if not same and group.kind != TENSOR:
        brought = stacked.mean(axis=0)
    square = float(brought @ brought)
    if not square:
        return None
    got = final.sketch.astype(np.float64)
    scale = float(brought @ got) / square
    rest = float(np.linalg.norm(got - scale * brought))
    return scale if scale and rest <= NO_FACTOR * float(np.linalg.norm(got)) else None
