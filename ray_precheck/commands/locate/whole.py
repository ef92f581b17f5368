"""What is known of the roots of a run that was put together of its ranks, for one of another layout.

Comes in: the roots of a walk through whole tensors. Goes out: those that stay, with the ranks whose parts are
off. Called by `search`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from ray_precheck.commands.locate.plan import RunRecords
from ray_precheck.commands.locate.walk.estimate import EstimatedEvidence, floor_of
from ray_precheck.commands.locate.walk.nouns import GoldenRun, Root, RootKind
from ray_precheck.trace.items import UNORDERED, Item
from ray_precheck.trace.side import FORWARD

_GRADIENT = ".grads."
# Gradients of honest runs of other layouts differ by so many times what one call may, as a share of the
# largest: they were added up in other orders in all layers.
_ROUNDINGS = 10.0
_IN_ORDER = (
    "its inputs agree in numbers that do not show the order of tokens: it may be right, and get tokens that"
    " another call has put into another order"
)
# Statistics of two honest runs that round in other ways are so far apart after an update, at least.
_DRIFTED = 1e-5


def roots_of_whole(
    roots: Sequence[Root],
    ours: RunRecords,
    run: GoldenRun | None,
    estimated: EstimatedEvidence,
    *,
    is_first_step: bool,
) -> list[Root]:
    """Return the roots with what is known of the ranks whose parts make their values; in later steps without
    gaps that are smaller than what honest updates have done to parameters."""
    return [
        _with_ranks(_with_order(_named_weight(root, run), ours), ours)
        for root in roots
        if not _is_rounding(root, ours, run, estimated)
        and (is_first_step or not _has_drifted(root, ours, run, estimated))
    ]


def _named_weight(root: Root, run: GoldenRun | None) -> Root:
    """Return a gap at a parameter of the golden run as what it is: where ranks have shards, a call gets what
    they gathered, and the parameter has no name there."""
    if root.kind is not RootKind.GAP or run is None or root.direction != FORWARD:
        return root
    other = run.records.get(run.partners.get(root.key, ""))
    mate = next((each for each in (other.inputs if other else ()) if each.path == root.item), None)
    if mate is None or not mate.state_name:
        return root
    said = f"{mate.state_name} has other values than in the golden run: {root.message}"
    return replace(root, kind=RootKind.WEIGHT, own=None, message=said)


def _with_order(root: Root, ours: RunRecords) -> Root:
    """Return an estimate of a call, of whose inputs nothing shows the order, with what that may be."""
    record = ours.by_key.get(root.key)
    inputs = record.inputs if record is not None else ()
    if root.kind is not RootKind.ESTIMATE or not any(
        UNORDERED in item.put_together for item in inputs
    ):
        return root
    return replace(root, message=f"{root.message}; {_IN_ORDER}")


def _is_rounding(
    root: Root, ours: RunRecords, run: GoldenRun | None, estimated: EstimatedEvidence
) -> bool:
    """Return whether a gap at a gradient is no more than rounding of the largest gradient of the update, and
    so is that of all others: the gradients of keys' biases are 0 but for that, and collectives that the
    golden run lacks hide it."""
    record = ours.by_key.get(root.key)
    if root.kind is not RootKind.GAP or run is None or record is None or _GRADIENT not in root.item:
        return False
    gradients = [item for item in record.inputs if _GRADIENT in item.path]
    gaps = (_difference(root.key, item, run, estimated) * (item.norm or 0.0) for item in gradients)
    largest = max((item.norm or 0.0 for item in gradients), default=0.0)
    limit = _ROUNDINGS * max((floor_of(item.dtype) for item in gradients), default=0.0) * largest
    return max(gaps, default=0.0) <= limit


def _difference(key: str, item: Item, run: GoldenRun, estimated: EstimatedEvidence) -> float:
    """Return how much a value differs from the golden run's; 0 where that is not known."""
    other = run.records.get(run.partners.get(key, ""))
    items = other.items if other is not None else ()
    mate = next((each for each in items if each.path == item.path), None)
    found = estimated.value(key, item, mate).difference if mate is not None else 0.0
    return found if math.isfinite(found) else 0.0


def _has_drifted(
    root: Root, ours: RunRecords, run: GoldenRun | None, estimated: EstimatedEvidence
) -> bool:
    """Return whether a gap, an estimate from parts, or what another call gave, is smaller than what updates
    have made of parameters of two runs that round in other ways: statistics of parts see less of that than
    whole tensors show."""
    if run is None or root.key not in ours.by_key:
        return False
    record = ours.by_key[root.key]
    is_partly = root.kind is RootKind.ESTIMATE and any(item.put_together for item in record.inputs)
    if not (is_partly or root.kind in (RootKind.GAP, RootKind.CALL)):
        return False
    gap = max(
        (
            _difference(root.key, item, run, estimated)
            for item in record.items
            if item.path == root.item
        ),
        default=0.0,
    )
    parameters = (
        _difference(key, item, run, estimated)
        for key, each in ours.by_key.items()
        for item in each.inputs
        if item.state_name
    )
    return gap < max(_DRIFTED, *parameters)


def _with_ranks(root: Root, ours: RunRecords) -> Root:
    """Return a root with what is known of the ranks whose parts make its value."""
    record = ours.by_key.get(root.key)
    items = record.items if record is not None else ()
    note = next((item.put_together for item in items if item.path == root.item), "")
    return replace(root, message="; ".join(filter(None, [root.message, note]))) if note else root
