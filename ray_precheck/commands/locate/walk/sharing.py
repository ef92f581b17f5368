"""One rank's record of a collective, as the walk through its dump sees it.

Comes in: a record with its partner of the golden run. Goes out: a `SharedRecord`. Called by `walk`; read by
`collectives`.
"""

import math
from collections.abc import Sequence

from ray_precheck.commands.locate.walk.noise import floor_of, stands_out
from ray_precheck.commands.locate.walk.roots import SharedRecord
from ray_precheck.commands.locate.walk.seen import SeenRecord, WalkState
from ray_precheck.trace.items import Item


def shared_record(state: WalkState, seen: SeenRecord, *, is_affected: bool) -> SharedRecord | None:
    """Return what other ranks have to know of a collective; None where it got and gave nothing new."""
    meeting = state.meetings.get(seen.record.entry.key)
    if meeting is None:
        return None
    got, got_norm, _, floor = _largest(seen, seen.record.inputs)
    gave, gave_norm, item, other = _largest(seen, seen.record.outputs)
    if not is_affected and (
        item is None or not stands_out(gave, got, item.dtype, is_gradient=False)
    ):
        return None
    entry = seen.record.entry
    return SharedRecord(
        entry.key, entry.direction, seen.place, meeting, not is_affected, got, got_norm, gave, gave_norm,
        max(floor, other), item.path if item else "",
    )  # fmt: skip


def _largest(seen: SeenRecord, items: Sequence[Item]) -> tuple[float, float, Item | None, float]:
    """Return the largest known difference of some tensors, the norm and the item of it, and its rounding."""
    worst, norm, found, floor = 0.0, 0.0, None, 0.0
    for item in items:
        floor = max(floor, floor_of(item.dtype))
        if seen.difference(item.path) > worst:
            size = item.norm
            worst, found = seen.difference(item.path), item
            norm = size if size is not None and math.isfinite(size) else 0.0
    return worst, norm, found, floor
