"""Which call of a run belongs to which of another one that has another parallel layout.

Comes in: the calls of both runs (`run_calls`), with the experts among them. Goes out: which belong together
(`Together`). Called by `together`.

The shapes of values say nothing here: they are those of parts. Calls are told by operator, module, the
parameters that they get and their order. One rank stands for its stage, the stages of a pipeline follow each
other, and calls that one side makes once for each part of a batch (microbatches, accumulated gradients) are
one call. A bias that one side adds by itself, behind an all_reduce, belongs to the product that has it on the
other side.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from ray_precheck.trace.alignment.align import How, align
from ray_precheck.trace.layouts.axes import SideLayout
from ray_precheck.trace.layouts.run_calls import (
    COLLECTIVES,
    MOVES,
    UNKNOWN,
    UPDATE,
    ModelCall,
    RunCalls,
)
from ray_precheck.trace.side import API, BACKWARD, FORWARD, GRADIENTS

_DEALT = frozenset("chunk clone split narrow as_strided view_as".split())
# What has a bias that another call may add.
_PRODUCTS = frozenset("linear conv1d conv2d conv3d matmul addmm".split())
# So many calls behind a product its bias is looked for.
_NEAR = 8


@dataclass(slots=True)
class Together:
    """What belongs together: the calls of the model on both sides, and those that one side has alone."""

    pairs: list[tuple[ModelCall, ModelCall]] = field(default_factory=list)
    alone: tuple[list[ModelCall], list[ModelCall]] = field(default_factory=lambda: ([], []))


def partners_of(target: RunCalls, golden: RunCalls) -> Together:
    """Return which calls of two runs belong together."""
    ours, theirs = _per_batch(target, golden)
    for calls, others in ((ours, theirs), (theirs, ours)):
        if not (any(each.module for each in calls) and any(each.module for each in others)):
            for each in calls:  # A capture of level L1 has no modules.
                each.view = each.view._replace(inputs=each.view.inputs[1:])
    _forget_lone_names(ours, theirs)
    updates = [[each for each in calls if each.name.startswith(UPDATE)] for calls in (ours, theirs)]
    ours, theirs = (
        [each for each in calls if not each.name.startswith(UPDATE)] for calls in (ours, theirs)
    )
    found = Together()
    left: list[tuple[ModelCall | None, ModelCall | None]] = []
    has_experts = any(each.is_expert for each in (*ours, *theirs))
    own = [
        _of_gradients(*each) if has_experts else set()
        for each in ((target, ours), (golden, theirs))
    ]
    dense = [
        [each for each in calls if not each.is_expert and id(each) not in own[side]]
        for side, calls in enumerate((ours, theirs))
    ]
    for match in align([each.view for each in dense[0]], [each.view for each in dense[1]]):
        mine, other = [dense[0][at] for at in match.target], [dense[1][at] for at in match.golden]
        pair = _main(mine, other) if match.how is not How.RECOMPUTED else None
        if pair is not None:
            found.pairs.append(pair)
        left += [(each, None) for each in mine if pair is None or each is not pair[0]]
        left += [(None, each) for each in other if pair is None or each is not pair[1]]
    paired = ({id(a) for a, _ in found.pairs}, {id(b) for _, b in found.pairs})
    for side in range(2):
        for lone in left:
            call = lone[side]
            if call is not None and id(call) not in paired[side]:
                paired[side].add(id(call))
                found.alone[side].append(call)
    _pair_unique(found, ours, theirs)
    _pair_experts(found, ours, theirs)
    _give_biases(found, ours, theirs)
    _give_tails(found, ours, theirs)
    _pair_updates(found, *updates)
    for side, (layout, calls) in enumerate(((target.layout, ours), (golden.layout, theirs))):
        found.alone[side].extend(call for call in calls if id(call) in own[side])
        for call in found.alone[side]:
            is_own = call.is_expert or id(call) in own[side]
            call.is_of_layout = is_own or _is_of_layout(call, layout)
    return found


def _of_gradients(run: RunCalls, calls: Iterable[ModelCall]) -> set[int]:
    """Return by identity the calls behind the first backward one that are in no module: what is done with the
    gradients of one parameter after the other, of which each rank has its own where it has experts."""
    begins: dict[int, int] = {}
    for number, stage in enumerate(run.stages):
        starts = (e.span.start for e in run.sides[stage.first].entries if e.direction == BACKWARD)
        begins[number] = min(starts, default=-1)
    found = set()
    for call in calls:
        at, name = call.occurrences[0]
        entry = run.entry(at, run.stages[at].first, name, FORWARD)
        is_bare = call.view.kind == API and not (call.module or call.parameters)
        if entry is not None and is_bare and 0 <= begins[at] < entry.span.start:
            found.add(id(call))
    return found


def _forget_lone_names(*sides: Sequence[ModelCall]) -> None:
    """Forget the names of parameters where the sides have few in common: FSDP computes with nameless ones."""
    names = [{name for call in calls for name in call.parameters} for calls in sides]
    if len(names[0] & names[1]) * 2 >= max(map(len, names)):
        return
    for call in (*sides[0], *sides[1]):
        call.parameters = ()
        plain = tuple((0,) * dims for dims in call.dims)
        call.view = call.view._replace(
            inputs=call.view.inputs[: len(call.view.inputs) - len(plain)] + plain
        )


def _main(
    mine: Sequence[ModelCall], other: Sequence[ModelCall]
) -> tuple[ModelCall, ModelCall] | None:
    """Return the two calls of a group that are the same operator: of several the first."""
    if not mine or not other:
        return None
    is_single = len(mine) == len(other) == 1
    for one in mine:
        for two in other:
            if _may_pair(one, two, is_single=is_single):
                return one, two
    return None


def _may_pair(one: ModelCall, two: ModelCall, *, is_single: bool) -> bool:
    """Return whether two calls may be the same one of the model: collectives are those of a layout, and so is
    what only moves values where the other side does something else."""
    names, families = (one.name, two.name), {one.view.family, two.view.family}
    if any(name.startswith(COLLECTIVES) for name in names):
        return False
    if one.view.kind != API:
        return _is_within(one.view.name, two.view.name)
    if len(families) == 1:
        # Samples are dealt out so, and parameters put together: each layout has its own.
        return not (families & _DEALT and not (one.module and two.module))
    same = one.view.inputs == two.view.inputs and one.view.outputs == two.view.outputs
    if not (one.module or two.module or one.parameters):
        return False  # Nothing but its place tells it: norms of gradients, which each layout clips anew.
    return is_single and same and not families & MOVES


def _is_within(name: str, other: str) -> bool:
    """Return whether one name of a module has the other's parts in order: it is wrapped once more."""
    one, two = sorted((name.split("."), other.split(".")), key=len)
    rest = iter(two)
    if len(two) > len(one) + 1:
        return False
    return all(part in rest for part in one)


def _per_batch(target: RunCalls, golden: RunCalls) -> tuple[list[ModelCall], list[ModelCall]]:
    """Return the calls of both sides, where one makes each several times, for parts of the batch, as one."""
    counts = [Counter(map(_signature, _differentiated(run))) for run in (target, golden)]
    times = Counter(
        counts[0][each] / counts[1][each]
        for each in counts[0]
        if counts[1][each] and (each[2] or each[1])
    )
    ratio = times.most_common(1)[0][0] if times else 1.0
    if ratio > 1 and ratio == int(ratio):
        return _joined(target.calls, int(ratio)), golden.calls
    if 0 < ratio < 1 and 1 / ratio == int(1 / ratio):
        return target.calls, _joined(golden.calls, int(1 / ratio))
    return target.calls, golden.calls


def _differentiated(run: RunCalls) -> list[ModelCall]:
    """Return the calls that gradients went through, all where there are none: those that a checkpoint makes
    again have none of their own."""
    found = []
    for call in run.calls:
        stage, name = call.occurrences[0]
        if run.entry(stage, run.stages[stage].first, name, BACKWARD) is not None:
            found.append(call)
    return found or run.calls


def _signature(call: ModelCall) -> tuple[str, str, tuple[str, ...]]:
    return call.view.type_name, call.module, call.parameters


def _in_stage(call: ModelCall) -> Hashable:
    return call.occurrences[0].stage, _signature(call)


def _joined(calls: Iterable[ModelCall], times: int) -> list[ModelCall]:
    """Return calls, of which those that a stage makes `times` as often as the other side are joined."""
    calls = list(calls)
    counts = Counter(map(_in_stage, calls))
    seen: Counter[Hashable] = Counter()
    firsts: dict[tuple[Hashable, int], ModelCall] = {}
    found = []
    for call in calls:
        key = _in_stage(call)
        each = counts[key] // times
        if counts[key] % times or call.name.startswith(UPDATE):
            found.append(call)
            continue
        at = seen[key] % each
        seen[key] += 1
        if (key, at) in firsts:
            known = firsts[key, at].occurrences
            known += call.occurrences
            if call.view.kind == GRADIENTS:
                # Gradients of parameters add up: the last of them are those of the batch.
                known[:] = call.occurrences * len(known)
        else:
            firsts[key, at] = call
            found.append(call)
    return found


def _pair_experts(found: Together, *sides: Sequence[ModelCall]) -> None:
    """Pair the calls inside of modules whose experts are spread over ranks by module and operator alone,
    where both sides have as many: the alignment would see which calls a rank has, which says nothing."""
    keyed: list[dict[Hashable, list[ModelCall]]] = [{}, {}]
    for side, calls in enumerate(sides):
        for call in calls:
            is_told = call.expert != UNKNOWN and not call.name.startswith(COLLECTIVES)
            if call.is_expert and is_told:
                key: Hashable = (call.view.kind, call.view.type_name, call.path)
                keyed[side].setdefault(key, []).append(call)
            elif call.is_expert:
                found.alone[side].append(call)
    for like in dict.fromkeys((*keyed[0], *keyed[1])):
        mine, other = keyed[0].get(like, []), keyed[1].get(like, [])
        if len(mine) == len(other):
            found.pairs += zip(mine, other, strict=True)
        else:
            found.alone[0].extend(mine)
            found.alone[1].extend(other)


def _pair_unique(found: Together, *sides: Sequence[ModelCall]) -> None:
    """Pair the calls that are left and are the only ones of their operator, module and parameters, then those
    that are the only ones of their operator in a module of both runs: among many calls of a layout the
    alignment may not see them, and what a product gets hangs on where its bias is added."""
    for keyed, calls in ((_keyed, found.alone), (_by_module, sides)):
        counts = [Counter(key for key, _ in keyed(each)) for each in calls]
        ours, theirs = (
            {
                key: call
                for key, call in keyed(alone)
                if call.view.kind == API and call.module and not call.name.startswith(COLLECTIVES)
            }
            for alone in found.alone
        )
        for key, call in ours.items():
            other = theirs.get(key)
            if other is not None and counts[0][key] == counts[1][key] == 1:
                found.pairs.append((call, other))
                found.alone[0].remove(call)
                found.alone[1].remove(other)


def _by_module(calls: Iterable[ModelCall]) -> list[tuple[Hashable, ModelCall]]:
    """Return the calls that compute something by their operator and module."""
    return [
        ((each.view.family, each.module), each)
        for each in calls
        if each.view.family not in MOVES and not each.view.recompute_of
    ]


def _keyed(calls: Iterable[ModelCall]) -> list[tuple[Hashable, ModelCall]]:
    return [
        ((each.view.family, each.module, each.parameters, each.view.inputs), each)
        for each in calls
        if not each.view.recompute_of
    ]


def _give_biases(found: Together, *sides: Sequence[ModelCall]) -> None:
    """Join the call that adds a bias to the product that has the bias on the other side."""
    places = [{id(call): at for at, call in enumerate(calls)} for calls in sides]
    alone = [{id(call) for call in found.alone[side]} for side in range(2)]
    for pair in found.pairs:
        for side in range(2):
            call, other = pair[side], pair[not side]
            missing = set(other.parameters) - set(call.parameters)
            # DTensor's bias has no name where it was made an addend.
            lacks = len(missing) == 1 if missing else len(other.dims) == len(call.dims) + 1 == 3
            if not lacks or call.view.kind != API or call.view.family not in _PRODUCTS:
                continue
            at = places[side][id(call)]
            for near in sides[side][at + 1 : at + 1 + _NEAR]:
                is_bias = (
                    set(near.parameters) == missing
                    if missing
                    else near.view.family == "add" and near.module == call.module and 1 in near.dims
                )
                if is_bias and id(near) in alone[side]:
                    call.bias = near
                    found.alone[side].remove(near)
                    alone[side].discard(id(near))
                    break


def _give_tails(found: Together, *sides: Sequence[ModelCall]) -> None:
    """Note behind each call the calls of its run alone through which its output goes: the mask and the sum of
    an embedding of a part of the vocabulary, the division of a summed loss."""
    for side in range(2):
        alone = {id(call) for call in found.alone[side]}
        places = {id(call): at for at, call in enumerate(sides[side])}
        for pair in found.pairs:
            call = pair[side]
            if call.view.kind != API or not call.given:
                continue
            at, marks = places[id(call)], set(call.given)
            for near in sides[side][at + 1 : at + 1 + _NEAR]:
                if id(near) in alone and near.got & marks and near.given:
                    call.tail.append(near)
                    marks |= near.given


def _pair_updates(found: Together, ours: Sequence[ModelCall], theirs: Sequence[ModelCall]) -> None:
    """Pair the updates of the optimizers by class and number; those of all stages are one."""
    by_name: list[dict[str, ModelCall]] = [{}, {}]
    for side, calls in enumerate((ours, theirs)):
        for call in calls:
            known = by_name[side].setdefault(call.name, call)
            if known is not call:
                known.occurrences += call.occurrences
    for name, call in by_name[0].items():
        if name in by_name[1]:
            found.pairs.append((call, by_name[1].pop(name)))
        else:
            found.alone[0].append(call)
    found.alone[1].extend(by_name[1].values())


def _is_of_layout(call: ModelCall, layout: SideLayout) -> bool:
    """Return whether a call that the other side lacks is one that the layout of this side has."""
    if call.view.recompute_of:
        return True
    many = sum(len(stage.ranks) for stage in layout.stages) > 1
    is_exchange = call.name.startswith(COLLECTIVES)
    return is_exchange or (many and (call.view.family in MOVES or call.view.kind != API))
