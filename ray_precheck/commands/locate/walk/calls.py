"""What only one of two runs calls: the calls that a difference is named by, other operators, other operands.

Comes in: a root at a record whose values differ, with its partner of the golden run. Goes out: a root at the
call that only one run has, or that gets another call's value. Called by `walk`, for records that lie
downstream of no other root. A call that one run lacks is none where the values behind it agree: versions and
devices cast, copy and fuse.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ray_precheck.commands.locate.walk.estimate import is_view
from ray_precheck.commands.locate.walk.exchanged import lacking
from ray_precheck.commands.locate.walk.naming import Exchanges
from ray_precheck.commands.locate.walk.nouns import GoldenRun, Root, RootKind, SeenRecord, WalkState
from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.trace.flow import Flow, FlowRecord, is_collective
from ray_precheck.trace.items import INPUT, OUTPUT, Item
from ray_precheck.trace.side import BACKWARD, FORWARD

# So many calls are named in a message.
_NAMED = 4
_COPIES = ("clone", "contiguous", "detach", "to")


def named_by_calls(state: WalkState, seen: SeenRecord, root: Root) -> Root:
    """Return a root in the place of a gap or an estimate: the first of the calls before it that only one run
    has, or the record itself where it gets what another call gave; else the same root."""
    golden = state.golden
    # Where elements are seen, an input that another call gave was found before any estimate.
    kinds = [RootKind.GAP] if state.evidence.sees_elements else [RootKind.GAP, RootKind.ESTIMATE]
    has_other_shape = root.kind is RootKind.ESTIMATE and any(
        mine is not None and other is not None and mine.part == OUTPUT and mine.shape != other.shape
        for mine, other in seen.pairs
    )
    if golden is None or seen.golden is None or not (root.kind in kinds or has_other_shape):
        return root
    pairs = [
        pair
        for pair in seen.pairs
        if any(item is not None and item.part != OUTPUT and item.is_tensor for item in pair)
    ]
    if root.kind is RootKind.GAP:
        pairs = [pair for pair in pairs if pair[0] is not None and pair[0].path == root.item]
    ours, theirs = _alone_before(state, seen, golden, pairs)
    if root.kind is RootKind.ESTIMATE and all(map(_copies, (*ours, *theirs))):
        ours, theirs = [], []
    entry = seen.record.entry
    shown = root.message.partition(": ")[0]
    if root.kind is RootKind.ESTIMATE:
        shown = f"{entry.key}.{shown}"
    if ours or theirs:
        first, is_ours, cause, said = _told(state.exchanges, golden.exchanges, ours, theirs)
        module_of, alone = (
            (state.module_of, golden.alone[0]) if is_ours else (golden.module_of, golden.alone[1])
        )
        key = first.entry.key
        if not is_collective(first.entry.call):
            key = _whole_module(key, module_of, alone)
        if key != first.entry.key:
            said = f"{key} as a whole: {said}"
        return replace(
            root, kind=RootKind.CALL, key=key, direction=first.entry.direction,
            place=state.places[first.entry.key] if is_ours else seen.place, item="", before=entry.key,
            is_golden=not is_ours, message=f"{said}: {shown}", cause=cause or root.cause,
        )  # fmt: skip
    if root.kind is RootKind.GAP:
        other = _other_giver(state, seen, golden, pairs)
        if other is not None:
            mine, lost, said = other
            is_lost = is_collective(lost) and not is_collective(mine)
            if is_lost and _is_unread(state, golden, lost):
                said = f"{lacking(golden, lost)}: {said}"
                return replace(
                    root, kind=RootKind.CALL, key=lost, direction=FORWARD, item="", before=entry.key,
                    is_golden=True, cause="missing collective", message=f"{said}: {shown}",
                )  # fmt: skip
            return replace(root, kind=RootKind.CALL, message=f"{said}: {shown}")
    elif seen.record.inputs and is_view(entry.call):
        return _before_view(state, seen, root)
    return root


def _copies(record: FlowRecord) -> bool:
    """Return whether a record gives the values that it got in their order: it explains no difference."""
    return record.entry.call.rpartition(".")[0].rpartition(".")[2] in _COPIES


def _before_view(state: WalkState, seen: SeenRecord, root: Root) -> Root:
    """Return the root of the record whose values a view hands on: by statistics the view seems to err where
    it picks other values of a tensor in which all statistics agree."""
    record, path = seen.record, seen.record.inputs[0].path
    while is_view(record.entry.call):
        giver = state.flow.producer(record.entry.key, path)
        if giver is None or not state.records[giver.key].inputs:
            break
        record = state.records[giver.key]
        path = record.inputs[0].path
    said = (
        f"{record.entry.key} or what lies before it gave other values of the same Max, Min, Mean and Norm, or"
        f" the same in another order (a shift, a permutation): {seen.record.entry.key}, which only picks some"
        f" of them, shows it: {root.message}; statistics do not tell where that began: capture with --sketch"
    )
    return replace(
        root, key=record.entry.key, direction=record.entry.direction, item="", message=said,
        place=state.places[record.entry.key],
    )  # fmt: skip


def _alone_before(
    state: WalkState,
    seen: SeenRecord,
    golden: GoldenRun,
    pairs: Sequence[tuple[Item | None, Item | None]],
) -> tuple[list[FlowRecord], list[FlowRecord]]:
    """Return the calls without a partner, of the target and of the golden run, from which a record gets its
    values, in the order of their runs."""
    assert seen.golden is not None
    ours = _alone(
        state.flow, state.records, golden.alone[0], seen.record.entry.key, (pair[0] for pair in pairs)
    )  # fmt: skip
    theirs = _alone(
        golden.flow(), golden.records, golden.alone[1], seen.golden.entry.key, (pair[1] for pair in pairs)
    )  # fmt: skip
    return ours, theirs


def _alone(
    flow: Flow,
    records: Mapping[str, FlowRecord],
    alone: frozenset[str],
    key: str,
    items: Iterable[Item | None],
) -> list[FlowRecord]:
    """Return the records of calls without a partner from which values come, each as its forward record; views
    of their results are passed."""
    found: dict[str, int] = {}
    waiting = [(key, item.path) for item in items if item is not None]
    passed: set[str] = set()
    while waiting:
        giver = flow.producer(*waiting.pop())
        if giver is None or giver.key in passed:
            continue
        passed.add(giver.key)
        record = records[giver.key]
        if record.entry.call in alone:
            found[giver.key] = giver.place
        elif not is_view(record.entry.call):
            continue
        waiting += [(giver.key, item.path) for item in record.inputs]
    named = (
        records.get(f"{records[each].entry.call}.{FORWARD}", records[each])
        for each in sorted(found, key=lambda each: _forward_first(records[each], found[each]))
    )
    return list({record.entry.key: record for record in named}.values())


def _forward_first(record: FlowRecord, place: int) -> int:
    """Return what sorts calls in the order of the forward pass, which that of gradients is turned round."""
    return -place if record.entry.direction == BACKWARD else place


def _whole_module(key: str, module_of: Callable[[str], str], alone: frozenset[str]) -> str:
    """Return the record of the outermost module around a call that has no partner; else the call's own."""
    while module := module_of(key):
        before, _, number = module.rpartition(".")
        if f"{before.removesuffix(f'.{FORWARD}')}.{number}" not in alone:
            break
        key = module
    return key


def _told(
    mine: Exchanges, other: Exchanges, ours: Sequence[FlowRecord], theirs: Sequence[FlowRecord]
) -> tuple[FlowRecord, bool, str, str]:
    """Return the call that is named, whether it is the target's, the cause, and what is said of it.

    A collective is named before the calls around it, which prepare what it sends.
    """
    sent, missed = (
        [each for each in records if is_collective(each.entry.call)] for records in (ours, theirs)
    )
    if sent and not missed:
        said = f"{mine.in_words(sent[0].entry.key)} runs only in the target; the golden run has none here"
        return sent[0], True, "extra collective", said
    if missed and not sent:
        said = f"the golden run has {other.in_words(missed[0].entry.key)} here; the target has none"
        return missed[0], False, "missing collective", said
    if sent and missed:
        said = (
            f"the target has {mine.in_words(sent[0].entry.key)} where the golden run has"
            f" {other.in_words(missed[0].entry.key)}"
        )
        return sent[0], True, "another collective", said
    if not ours:
        cause = f"{len(theirs)} missing calls" if len(theirs) > _NAMED else ""
        return theirs[0], False, cause, f"{_listed(theirs)} only in the golden run"
    said = f"{_listed(ours)} only in the target"
    if theirs:
        names = ", ".join(each.entry.call for each in theirs[:_NAMED])
        more = f" and {len(theirs) - _NAMED} more" if len(theirs) > _NAMED else ""
        said += f", where the golden run has {names}{more}"
    return ours[0], True, "", said


def _listed(records: Sequence[FlowRecord]) -> str:
    first, *others = (each.entry.call for each in records)
    if not others:
        return f"{first} runs"
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return f"{first}, and with it {', '.join(others[:_NAMED])}{more}, runs"


def _other_giver(
    state: WalkState,
    seen: SeenRecord,
    golden: GoldenRun,
    pairs: Sequence[tuple[Item | None, Item | None]],
) -> tuple[str, str, str] | None:
    """Return the calls from which a value comes in both runs, where they are not each other's partners, and
    what is said of that; None where they are."""
    assert seen.golden is not None
    for target, other in pairs:
        if target is None or other is None:
            continue
        mine = state.giver(seen, target.path)
        theirs = golden.flow().producer(seen.golden.entry.key, other.path)
        if mine is None or theirs is None:
            continue
        partner = golden.partners.get(mine.key)
        if partner is not None and (partner, mine.path) != (theirs.key, theirs.path):
            said = (
                f"{seen.record.entry.key} gets {mine.path} of {mine.key}, where the golden run's gets"
                f" {theirs.path} of {golden.target_of(theirs.key) or theirs.key}"
            )
            return mine.key, theirs.key, said
    return None


def _is_unread(state: WalkState, golden: GoldenRun, key: str) -> bool:
    """Return whether the partner of a golden collective gives nothing that its own readers get: it stands for
    another one, as where one of several alike is missing."""
    partner = golden.target_of(key)
    if not partner:
        return True
    readers = {read for (read, _), giver in golden.flow().producers.items() if giver.key == key}
    ours = {read for (read, _), giver in state.flow.producers.items() if giver.key == partner}
    return not readers & {golden.partners.get(each, "") for each in ours}


def other_operator(state: WalkState, seen: SeenRecord) -> Root | None:
    """Return the root of a record whose partner is another operator, and gave something else for the same
    inputs; None where it is none."""
    golden, own, entry = state.golden, seen.own, seen.record.entry
    if golden is None or seen.golden is None or entry.call not in golden.renamed:
        return None
    differs = own is not None and own.is_estimate and own.is_guilty
    if not differs and not seen.worst(INPUT) > 0.0:
        # Of truth values and integers there is no estimate.
        differs = any(
            item.is_tensor and not epsilon_of(item.dtype) and seen.difference(item.path) > 0.0
            for item in seen.record.outputs
        )
    if not differs or entry.direction != FORWARD:
        return None
    return seen.root(
        RootKind.CALL,
        own=own.own if own is not None else None,
        message=f"{entry.call} runs in the target where the golden run has {seen.golden.entry.call}, and"
        f" gives what differs by {seen.worst(OUTPUT):.3g} of its norm",
    )


def other_gradient(state: WalkState, seen: SeenRecord) -> Root | None:
    """Return the root of a record at which gradients are computed in one of the runs alone; None where both
    are alike, or one of the captures has no gradients at all."""
    golden, entry = state.golden, seen.record.entry
    if golden is None or not golden.tells_gradients or entry.direction != FORWARD:
        return None
    for target, other in seen.pairs:  # Inputs come first.
        if target is None or other is None:
            continue
        flags = [(item.element or {}).get("requires_grad") for item in (target, other)]
        if flags[0] is flags[1] or None in flags or target.is_changed:
            continue
        has, lacks = ("target", "golden run") if flags[0] else ("golden run", "target")
        where = f"{entry.key}.{target.path}"
        giver = state.giver(seen, target.path)
        if target.part == OUTPUT:
            kind, said = RootKind.CONFIGURATION, f"{where} has a gradient in the {has} alone"
            said += f": the {lacks} computes it without gradients (no_grad, inference mode)"
        elif giver is None:
            kind, said = RootKind.CONFIGURATION, f"{where} requires a gradient in the {has} alone"
            name = target.model_name
            said += f" ({name})" if name else ""
        else:
            kind = RootKind.CALL
            said = (
                f"between {giver.key} and {entry.key} the {lacks} cuts gradients off, and the {has} does not:"
                " a detach or no_grad that only one of them has"
            )
        before = giver.key if giver is not None else ""
        return seen.root(kind, target.path, message=said, before=before)
    return None
