"""What a record was given, and no captured record gave: inputs, weights, arguments, and what gaps hid.

Comes in: a record with its partner of the golden run. Goes out: roots. Called by `walk`, for records that lie
downstream of no other root.

Where two runs are not the same program: calls that one of them lacks, other operators, other operands. A
call that one run lacks is none where the values behind it agree: versions and devices cast, copy and fuse.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ray_precheck.commands.locate.walk.estimate import floor_of, is_other, is_view, stands_out
from ray_precheck.commands.locate.walk.nouns import GoldenRun, Root, RootKind, SeenRecord, WalkState
from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.operators.table import with_name
from ray_precheck.trace.flow import Flow, FlowRecord
from ray_precheck.trace.items import INPUT, OUTPUT, Item
from ray_precheck.trace.side import BACKWARD, FORWARD

# Numbers that a program computes from tensors differ by rounding.
_SAME_NUMBER = 1e-5
_OPTIMIZER = "Optimizer."
# The names of parameters in the record of an update, and what wrappers of torch add to them.
_NAMES = ".names."
_STATE = ".state."
_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
_FLOATS = ("float", "bfloat", "complex", "half", "double")


def given_roots(state: WalkState, seen: SeenRecord, least: float = 0.0) -> Iterator[Root]:
    """Yield values that no captured record gave, and that differ from what the golden run had.

    `least` is how far what a gap hides may differ, whatever is known of the values before it.
    """
    entry = seen.record.entry
    is_gradient = entry.direction == BACKWARD or entry.key.startswith(_OPTIMIZER)
    for target, golden in seen.pairs:
        if target is None or golden is None or target.part == OUTPUT or not target.is_tensor:
            continue
        difference = seen.difference(target.path)
        if not difference > 0.0:
            continue
        giver = state.giver(seen, target.path)
        if giver is None and _was_looked_at(state, seen, target, golden):
            continue
        if giver is None and state.weights.holds(seen.record, target):
            if is_other(difference, by_sums=state.evidence.estimates) and state.is_first_step:
                yield _other(state, seen, RootKind.WEIGHT, target, difference)
            continue
        if giver is None and not state.is_first_step and _is_state(seen, target):
            continue  # The update of the step before gave it, as it gave the weights.
        expected = max(_expected(state, seen, target, giver is not None), least)
        if giver is None and _is_input(state, target):
            if is_other(difference, by_sums=state.evidence.estimates) and state.is_first_step:
                yield _other(state, seen, RootKind.INPUT, target, difference)
        elif stands_out(
            difference - seen.values[target.path].slack,
            expected,
            # What was not captured may have computed a gradient in a half type, and widened it.
            max(target.dtype, state.around.coarsest, key=epsilon_of)
            if is_gradient
            else target.dtype,
            is_gradient=is_gradient,
            is_vector=len(target.shape or ()) == 1,
        ):
            yield _gap(state, seen, target, golden, difference, expected)


def _was_looked_at(state: WalkState, seen: SeenRecord, target: Item, golden: Item) -> bool:
    """Return whether a value was got before, by a record whose partner got the same as this one's: a layer
    that gets another layer's weight got one that was looked at as that one's."""
    own = seen.record.entry.key, target.path
    first = state.flow.first_use(*own)
    if first == own:
        return False
    if first is None or state.golden is None or seen.golden is None:
        return True
    theirs = state.golden.flow().first_use(seen.golden.entry.key, golden.path)
    return theirs is None or (state.golden.partners.get(first[0]), first[1]) == theirs


def _is_state(seen: SeenRecord, item: Item) -> bool:
    """Return whether a value is what an optimizer has kept from the step before."""
    return seen.record.entry.key.startswith(_OPTIMIZER) and _STATE in item.path


def _is_input(state: WalkState, item: Item) -> bool:
    """Return whether a value was given to the run: integers, and what is there before any operator."""
    is_float = item.dtype.lower().rpartition(".")[2].startswith(_FLOATS)
    return not (is_float and state.around.has_given_floats)


def _expected(state: WalkState, seen: SeenRecord, item: Item, is_linked: bool) -> float:
    """Return how far a value may differ: as what its giver gave, else as values around it do."""
    if is_linked:
        giver = state.giver(seen, item.path)
        assert giver is not None
        return state.given(giver)
    return state.around.expected(item)


def _other(
    state: WalkState, seen: SeenRecord, kind: RootKind, item: Item, difference: float
) -> Root:
    entry = seen.record.entry
    order = seen.values[item.path].order
    name = item.model_name
    what = f"{entry.key}.{item.path}{f' ({name})' if name else ''}"
    said = f"the runs got different values: {what}, relative difference {difference:.3g}"
    if order:
        said += f": {order}"
    return seen.root(
        kind,
        item.path,
        cause=order,
        message=said,
    )


def argument_roots(seen: SeenRecord) -> Iterator[Root]:
    """Yield arguments that are no tensors and are not those of the golden run; of names of parameters the
    first one."""
    entry = seen.record.entry
    is_update, has_other_names = entry.key.startswith(_OPTIMIZER), False
    for target, golden in seen.pairs:
        if target is None or golden is None or target.part == OUTPUT:
            continue
        if target.is_tensor or golden.is_tensor:
            continue
        if is_update and _NAMES in target.path:
            if has_other_names or _unwrapped(target) == _unwrapped(golden):
                continue
            has_other_names = True
        said = other_argument(target, golden, is_exact=is_update)
        if said:
            yield seen.root(
                RootKind.CONFIGURATION,
                target.path,
                message=f"the runs were configured differently: {entry.key}."
                f"{with_name(entry.key, target.path)} {said}",
            )


def _unwrapped(name: Item) -> list[str]:
    """Return the parts of a parameter's name without those of `DistributedDataParallel`, `torch.compile` and
    other wrappers of a model."""
    return [
        part for part in str((name.element or {}).get("value")).split(".") if part not in _WRAPPERS
    ]


def _gap(
    state: WalkState, seen: SeenRecord, item: Item, golden: Item, difference: float, expected: float
) -> Root:
    entry = seen.record.entry
    giver = state.giver(seen, item.path)
    if giver is None and state.golden is not None and seen.golden is not None:
        theirs = state.golden.flow().producer(seen.golden.entry.key, golden.path)
        before = state.golden.target_of(theirs.key) if theirs is not None else ""
    else:
        before = giver.key if giver is not None else ""
    partners = state.golden.partners if state.golden is not None else {}
    is_extra = giver is not None and giver.key not in partners
    before = before or state.around.before(item)
    between = f"between {before} and {entry.key}" if before else f"before {entry.key}"
    said = f"{entry.key}.{item.path} differs by {difference:.3g} of its norm, "
    if is_extra:
        said += f"and is what {before} gave, of which the golden run has no record"
    else:
        said += (
            f"where what the run gave before differs by {expected:.3g}: an operator {between} was not"
            f" captured, or it comes from outside; {_advice(state, entry.key)}"
        )
    return seen.root(
        RootKind.GAP,
        item.path,
        own=difference / max(expected, floor_of(item.dtype), 1e-300),
        message=said,
        before=before,
    )


def _advice(state: WalkState, key: str) -> str:
    """Return what to do about a gap, which is no capture like the one at hand."""
    if key.startswith(_OPTIMIZER):
        return (
            "gradients that were scaled, clipped, averaged or added to those of the step before (zero_grad)"
            " come about so"
        )
    own = "an operator of your own is captured as a custom operator of the framework"
    return own if state.has_modules else f"capture at level mix to see the module; {own}"


def other_argument(target: Item, golden: Item, *, is_exact: bool) -> str:
    """Return how two arguments that are no tensors differ, "" where they do not, but for rounding of numbers
    that a program computed (`is_exact`: none is)."""
    ours, theirs = ((side.element or {}).get("value") for side in (target, golden))
    if target.type_name != golden.type_name:
        return (
            f"is {target.type_name or 'None'} where the golden run has {golden.type_name or 'None'}"
        )
    if ours == theirs or str(ours) == str(theirs):
        return ""
    numbers = [each for each in (ours, theirs) if isinstance(each, float)]
    if len(numbers) == 2 and not is_exact and math.isclose(*numbers, rel_tol=_SAME_NUMBER):
        return ""
    return f"is {_short(ours)} where the golden run has {_short(theirs)}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# So many calls are named in a message.
_NAMED = 4
_COPIES = ("clone", "contiguous", "detach", "to")


def named_by_calls(state: WalkState, seen: SeenRecord, root: Root) -> Root:
    """Return a root in the place of a gap or an estimate: the first of the calls before it that only one run
    has, or the record itself where it gets what another call gave; else the same root."""
    golden = state.golden
    # Where elements are seen, an input that another call gave was found before any estimate.
    kinds = [RootKind.GAP] if state.evidence.sees_elements else [RootKind.GAP, RootKind.ESTIMATE]
    if golden is None or seen.golden is None or root.kind not in kinds:
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
        first, said = _told(ours, theirs)
        module_of, alone = (
            (state.module_of, golden.alone[0]) if ours else (golden.module_of, golden.alone[1])
        )
        key = _whole_module(first.entry.key, module_of, alone)
        if key != first.entry.key:
            said = f"{key} as a whole: {said}"
        return replace(
            root, kind=RootKind.CALL, key=key, direction=first.entry.direction,
            place=state.places[first.entry.key] if ours else seen.place, item="", before=entry.key,
            is_golden=not ours, message=f"{said}: {shown}",
        )  # fmt: skip
    if root.kind is RootKind.GAP:
        said = _other_giver(state, seen, golden, pairs)
        if said:
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


def _told(ours: Sequence[FlowRecord], theirs: Sequence[FlowRecord]) -> tuple[FlowRecord, str]:
    """Return the call that is named, and what is said of it."""
    if not ours:
        return theirs[0], f"{_listed(theirs)} only in the golden run"
    said = f"{_listed(ours)} only in the target"
    if theirs:
        names = ", ".join(each.entry.call for each in theirs[:_NAMED])
        more = f" and {len(theirs) - _NAMED} more" if len(theirs) > _NAMED else ""
        said += f", where the golden run has {names}{more}"
    return ours[0], said


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
) -> str:
    """Return how a value comes from another call than that of the golden run, "" where it does not."""
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
            return (
                f"{seen.record.entry.key} gets {mine.path} of {mine.key}, where the golden run's gets"
                f" {theirs.path} of {golden.target_of(theirs.key) or theirs.key}"
            )
    return ""


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
