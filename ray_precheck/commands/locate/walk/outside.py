"""What a record was given, and no captured record gave: inputs, weights, arguments, and what gaps hid.

Comes in: a record with its partner of the golden run. Goes out: roots. Called by `walk`, for records that lie
downstream of no other root.
"""

import math
from collections.abc import Iterator

from ray_precheck.commands.locate.walk.estimate import floor_of, is_other, stands_out
from ray_precheck.commands.locate.walk.naming import (
    differs_in_words,
    factor_between,
    factor_in_words,
    listed_names,
    value_in_words,
)
from ray_precheck.commands.locate.walk.nouns import Root, RootKind, SeenRecord, WalkState
from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.operators.table import with_name
from ray_precheck.trace.flow import is_collective
from ray_precheck.trace.items import OUTPUT, Item, bare_name
from ray_precheck.trace.side import BACKWARD

# Numbers that a program computes from tensors differ by rounding.
_SAME_NUMBER = 1e-5
_OPTIMIZER = "Optimizer."
_NAMES = ".names."
_STATE = ".state."
# What DTensor moves within an operator is judged with the operator.
_DTENSOR = "DTensor"
# In a later step a weight that differs by so much was not moved by rounding alone; so many are told of.
MOVED, MOST_LATE = 1e-2, 3
_FLOATS = ("float", "bfloat", "complex", "half", "double")


def given_roots(state: WalkState, seen: SeenRecord, least: float = 0.0) -> Iterator[Root]:
    """Yield values that no captured record gave, and that differ from what the golden run had.

    `least` is how far what a gap hides may differ, whatever is known of the values before it.
    """
    entry = seen.record.entry
    is_gradient = entry.direction == BACKWARD or entry.key.startswith(_OPTIMIZER)
    told = state.exchanges.raw(entry.key) if is_collective(entry.call) else {}
    # What FSDP gathers and DDP broadcasts are parameters, what both reduce their gradients.
    has_weights = bool(told.get("parameters")) and "reduce" not in entry.call
    is_gradient = is_gradient or (bool(told.get("parameters")) and not has_weights)
    for target, golden in seen.pairs:
        if target is None or golden is None or target.part == OUTPUT or not target.is_tensor:
            continue
        difference = seen.difference(target.path)
        if not difference > 0.0:
            continue
        giver = state.giver(seen, target.path)
        if giver is None and _was_looked_at(state, seen, target, golden):
            continue
        if giver is None and (has_weights or state.weights.holds(seen.record, target)):
            if said := _other_parameter(state, seen, target, golden):
                yield said
                return
            if is_other(difference, by_sums=state.evidence.estimates) and state.is_first_step:
                yield _other(state, seen, RootKind.WEIGHT, target, difference)
            elif MOVED < difference < math.inf and len(state.late) < MOST_LATE:
                state.late.append(_other(state, seen, RootKind.WEIGHT, target, difference))
            continue
        if giver is None and not state.is_first_step and _is_state(seen, target):
            continue  # The update of the step before gave it, as it gave the weights.
        expected = max(_expected(state, seen, target, giver is not None), least)
        if giver is None and _is_input(state, target):
            if is_other(difference, by_sums=state.evidence.estimates) and state.is_first_step:
                yield _other(state, seen, RootKind.INPUT, target, difference)
        elif told.get("by") != _DTENSOR and _stands_out(
            state, seen, target, difference, expected, is_gradient=is_gradient
        ):
            if not epsilon_of(target.dtype) and not is_gradient and state.is_first_step:
                # Of integers Max and Min alone tell who gave them: samples look like others.
                yield _other(state, seen, RootKind.INPUT, target, difference)
                continue
            yield _gap(state, seen, target, golden, difference, expected)


def _stands_out(
    state: WalkState,
    seen: SeenRecord,
    target: Item,
    difference: float,
    expected: float,
    *,
    is_gradient: bool,
) -> bool:
    """Return whether a value that was got differs by more than is expected of it.

    What a program's own collective gets behind a backward pass is a gradient that was added up outside of
    what is captured.
    """
    beyond = difference - seen.values[target.path].slack
    is_vector = len(target.shape or ()) == 1
    # What was not captured may have computed a gradient in a half type, and widened it.
    coarsest = max(target.dtype, state.around.coarsest, key=epsilon_of)
    dtype = coarsest if is_gradient else target.dtype
    if not stands_out(beyond, expected, dtype, is_gradient=is_gradient, is_vector=is_vector):
        return False
    if is_gradient or not is_collective(seen.record.entry.call):
        return True
    return not state.around.before(target).endswith(f".{BACKWARD}") or stands_out(
        beyond, expected, coarsest, is_gradient=True, is_vector=is_vector
    )


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


def _other_parameter(state: WalkState, seen: SeenRecord, target: Item, golden: Item) -> Root | None:
    """Return the root of a record that gets another parameter than in the golden run, as where a list of
    them lacks one; None where both are the same or not known."""
    mine = _parameter_of(state, target)
    theirs = bare_name(golden.state_name)
    if not theirs and state.golden is not None:
        theirs = state.golden.exchanges.updated.get(golden.mark, "")
    if not (mine and theirs) or mine == theirs:
        return None
    key = seen.record.entry.key
    said = f"{key}.{target.path} is {mine}, where that of the golden run is {theirs}"
    if theirs not in {_parameter_of(state, item) for item in seen.record.inputs if item.is_tensor}:
        said = f"{key} lacks {theirs}, which that of the golden run gets as {golden.path}"
    return seen.root(
        RootKind.CONFIGURATION, target.path, cause="another parameter", message=said
    )  # fmt: skip


def _parameter_of(state: WalkState, item: Item) -> str:
    return bare_name(item.state_name) or state.weights.name_of(item)


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
    golden = next((other for mine, other in seen.pairs if mine is item), None)
    if golden is not None and not golden.is_tensor:
        called = item.model_name or state.weights.name_of(item) or "a tensor"
        said = f"{entry.key}.{item.path} is {called}, where the golden run has None"
        return seen.root(RootKind.CONFIGURATION, item.path, cause="another argument", message=said)
    name = item.model_name or state.weights.name_of(item)
    what = f"{entry.key}.{item.path}{f' ({name})' if name else ''}"
    is_sample = kind is RootKind.INPUT and not epsilon_of(item.dtype)
    # What picks elements later on is no sample: it may be computed.
    samples = "samples" if is_sample and not state.around.has_given_floats else "values"
    said = f"the runs got different {samples}: {what}, relative difference {difference:.3g}"
    if order:
        said += f": {order}"
    return seen.root(
        kind,
        item.path,
        cause=order,
        message=said,
    )


# What says how a collective runs (`exchanged` has what it does), by whether a record is one.
_OF_EXCHANGES = {
    True: frozenset(
        f"input.{name}" for name in "async_op group op src dst group_src group_dst".split()
    )
}


def argument_roots(seen: SeenRecord) -> Iterator[Root]:
    """Yield arguments that are no tensors and are not those of the golden run; of names of parameters the
    first one."""
    entry = seen.record.entry
    is_update, has_other_names = entry.key.startswith(_OPTIMIZER), False
    is_exchange = is_collective(entry.call)
    for target, golden in seen.pairs:
        if target is None or golden is None or target.part == OUTPUT:
            continue
        if (
            target.is_tensor
            or golden.is_tensor
            or target.path in _OF_EXCHANGES.get(is_exchange, ())
        ):
            continue
        if is_update and _NAMES in target.path:
            if has_other_names or _name(target) == _name(golden):
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


def lacking_parameters(seen: SeenRecord) -> Iterator[Root]:
    """Yield a root for an update that lacks parameters which the golden run's has."""
    entry = seen.record.entry
    if not entry.key.startswith(_OPTIMIZER):
        return
    names = [
        _name(golden)
        for target, golden in seen.pairs
        if target is None and golden is not None and _NAMES in golden.path
    ]
    if names:
        are = "are" if len(names) > 1 else "is"
        yield seen.root(
            RootKind.CONFIGURATION,
            cause="parameter not updated",
            message=f"{listed_names(names)} {are} not updated by {entry.call}, and in the golden run"
            f" {'they are' if len(names) > 1 else 'it is'}: no gradient was there, or another group of"
            " parameters was given",
        )


def _name(item: Item) -> str:
    return bare_name(str((item.element or {}).get("value")))


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
    said = f"{value_in_words(seen.record, item)} {differs_in_words(difference, item, golden)}, "
    cause = factor_in_words(factor_between(item, golden)) or seen.values[item.path].order
    if is_extra:
        said += f"and is what {before} gave, of which the golden run has no record"
    elif giver is not None and _is_raw_gradient(state, seen, golden, giver.key):
        cause = cause or "not reduced or scaled"
        said += (
            f"and is what {giver.key} gave on this rank; that of the golden run is not: it was not reduced"
            " with those of other ranks, nor scaled or clipped, as in the golden run"
        )
    else:
        said += (
            f"where what the run gave before differs by {expected:.3g}: an operator {between} was not"
            f" captured, or it comes from outside; {_advice(state, entry.key)}"
        )
    return seen.root(
        RootKind.GAP,
        item.path,
        own=difference / max(expected, floor_of(item.dtype), 1e-300),
        cause=cause,
        message=said,
        before=before,
    )


def _is_raw_gradient(state: WalkState, seen: SeenRecord, golden: Item, giver: str) -> bool:
    """Return whether an update gets a gradient as its backward pass gave it, and in the golden run none that
    a captured record gave."""
    if not seen.record.entry.key.startswith(_OPTIMIZER) or not giver.endswith(f".{BACKWARD}"):
        return False
    if state.golden is None or seen.golden is None:
        return False
    return state.golden.flow().producer(seen.golden.entry.key, golden.path) is None


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
