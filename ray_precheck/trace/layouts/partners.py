"""Which call of a run belongs to which of another one that has another parallel layout.

Comes in: the open captures of the ranks of both runs and their layouts. Goes out: the calls of each run in
the order of the model (`RunCalls`), and which belong together (`Together`). Called by `together`.

The shapes of values say nothing here: they are those of parts. Calls are told by operator, module, the
parameters that they get and their order. One rank stands for its stage, the stages of a pipeline follow each
other, and calls that one side makes once for each part of a batch (microbatches, accumulated gradients) are
one call. A bias that one side adds by itself, behind an all_reduce, belongs to the product that has it on the
other side.
"""

import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ray_precheck.trace.alignment.align import How, align
from ray_precheck.trace.alignment.calls import Call, calls_of
from ray_precheck.trace.items import INPUT, OUTPUT, bare_name, items_of
from ray_precheck.trace.layouts.axes import SideLayout
from ray_precheck.trace.side import (
    API,
    BACKWARD,
    FORWARD,
    GRADIENTS,
    MODULE,
    CaptureSide,
    RecordEntry,
)

UPDATE = "Optimizer."
_DISTRIBUTED = ("Distributed.", "MintDistributed.", "fsdp.")
# Operators that move values without computing any: what a layout adds beside its collectives.
MOVES = frozenset(
    """clone view_as view reshape contiguous detach chunk split split_with_sizes narrow getitem setitem cat
    stack to transpose permute unsqueeze squeeze flatten empty empty_like zeros zeros_like new_empty new_zeros
    tensor_split select index_select copy requires_grad expand t T data unbind full ones ones_like
    register_hook tensor item movedim div mul as_strided""".split()
)
_DEALT = frozenset("chunk clone split narrow as_strided view_as".split())
# What has a bias that another call may add.
_PRODUCTS = frozenset("linear conv1d conv2d conv3d matmul addmm".split())
# Where an element names its parameter or buffer.
_NAMED = ("parameter", "buffer")
# So many calls behind a product its bias is looked for.
_NEAR = 8


class Occurrence(NamedTuple):
    """A call of a stage: the name that it has in the records of the stage's first rank."""

    stage: int
    call: str


@dataclass(slots=True)
class ModelCall:
    """A call of the model: where it was made, once for each part of a batch, and the call behind it that adds
    its bias, as often; `view` is what the alignment sees. `got` and `given` tell its inputs and outputs from
    other tensors; `tail` are calls of this run alone through which its output goes, one behind the other.
    `is_expert`: it is among experts that are spread over ranks."""

    occurrences: list[Occurrence]
    view: Call
    parameters: tuple[str, ...] = ()
    module: str = ""
    dims: tuple[int, ...] = ()
    got: frozenset[Hashable] = frozenset()
    given: frozenset[Hashable] = frozenset()
    tail: "list[ModelCall]" = field(default_factory=list)
    bias: "ModelCall | None" = None
    is_of_layout: bool = False
    is_expert: bool = False

    @property
    def name(self) -> str:
        """The name of the call in its capture."""
        return self.occurrences[0].call


@dataclass(slots=True)
class RunCalls:
    """The calls of a run. `names` has for each stage and rank the rank's name of each call of the first
    one's, by that name, where the two differ; `wrappers` are parts of the names of parameters and modules
    that the other run has not."""

    sides: Sequence[CaptureSide]
    layout: SideLayout
    wrappers: frozenset[str] = frozenset()
    calls: list[ModelCall] = field(default_factory=list)
    names: dict[tuple[int, int], Mapping[str, str]] = field(default_factory=dict)
    entries: list[dict[tuple[str, str], RecordEntry]] = field(default_factory=list)

    def entry(self, stage: int, rank: int, call: str, direction: str) -> RecordEntry | None:
        """Return the record of a call on a rank (its position), None where the rank has none."""
        name = self.names[stage, rank].get(call, call)
        return self.entries[rank].get((name, direction))

    def record(self, rank: int, entry: RecordEntry) -> dict[str, Any]:
        """Return a record of a rank, whose parameters have names without wrappers."""
        record = dict(self.sides[rank].record(entry))
        return _unwrapped(record, self.wrappers) if self.wrappers else record


def run_calls_of(
    sides: Sequence[CaptureSide], layout: SideLayout, wrappers: frozenset[str] = frozenset()
) -> RunCalls:
    """Read the calls of all stages of a run."""
    run = RunCalls(sides, layout, wrappers)
    run.entries = [
        {(entry.call, entry.direction): entry for entry in side.entries} for side in sides
    ]
    for number, stage in enumerate(layout.stages):
        first = sides[stage.ranks[0]]
        views = calls_of(first)
        for rank in stage.ranks:
            run.names[number, rank] = _names_on(first, views, sides[rank])
        run.calls += _stage_calls(number, run, views)
    return run


def wrappers_between(one: RunCalls, other: RunCalls) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parts of names that either run alone has: `added_words` of their parameters."""
    names = [{name for call in run.calls for name in call.parameters} for run in (one, other)]
    return added_words(names[0], names[1]), added_words(names[1], names[0])


def added_words(names: Iterable[str], others: Iterable[str]) -> frozenset[str]:
    """Return the parts of names of parameters that the others have not, and without which the names are those
    of the others: of a module of the user's around each checkpointed block."""
    theirs = frozenset(others)
    known = {part for name in theirs for part in name.split(".")}
    lone = [name.split(".") for name in names if name not in theirs]
    words = {part for name in lone for part in name} - known
    return frozenset(
        word
        for word in words
        if all(
            _plain(".".join(name), frozenset((word,))) in theirs for name in lone if word in name
        )
    )


def _unwrapped(value: Any, wrappers: frozenset[str], *, is_name: bool = False) -> Any:
    """Return a record or a part of it, in which the names of parameters are without these parts."""
    if isinstance(value, dict):
        return {
            key: _unwrapped(
                each,
                wrappers,
                is_name=key in (*_NAMED, "names") or (is_name and key == "value"),
            )
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_unwrapped(each, wrappers, is_name=is_name) for each in value]
    return _plain(value, wrappers) if is_name and isinstance(value, str) else value


def _plain(name: str, wrappers: frozenset[str]) -> str:
    return ".".join(part for part in name.split(".") if part not in wrappers)


def _names_on(first: CaptureSide, views: Sequence[Call], other: CaptureSide) -> Mapping[str, str]:
    """Return what the calls of the first rank of a stage are called on another one, where that differs."""
    ours = dict.fromkeys(entry.call for entry in first.entries)
    theirs = dict.fromkeys(entry.call for entry in other.entries)
    if other is first or list(ours) == list(theirs):
        return {}
    others = calls_of(other)
    found = {}
    for match in align(
        [_without_values(each) for each in views], [_without_values(each) for each in others]
    ):
        if len(match.target) == len(match.golden) == 1:
            name, mate = views[match.target[0]].name, others[match.golden[0]].name
            if name != mate:
                found[name] = mate
    return found


def _without_values(call: Call) -> Call:
    return call._replace(digests=(), norms=())


def _stage_calls(number: int, run: RunCalls, views: Sequence[Call]) -> list[ModelCall]:
    rank = run.layout.stages[number].ranks[0]
    side, wrappers = run.sides[rank], run.wrappers
    entries: dict[str, RecordEntry] = {}
    for entry in side.entries:
        if entry.call not in entries or entry.direction != BACKWARD:
            entries[entry.call] = entry
    found = []
    for view in views:
        entry = entries[view.name]
        items = items_of(run.record(rank, entry), entry.key)
        tensors = [item for item in items if item.is_tensor]
        names = tuple(bare_name(item.state_name) for item in tensors if item.state_name)
        module = _plain(_module_of(side.modules.get(entry.key, "")), wrappers)
        seen = [_number(bare_name(item.state_name), 1) if item.state_name else (0,) * len(item.shape or ())
                for item in tensors if item.part == INPUT]  # fmt: skip
        given = [
            (0,) * len(item.shape or ())
            for item in tensors
            if item.part == OUTPUT and not item.is_changed
        ]
        name, type_name, family = view.name, view.type_name, view.family
        if view.kind in (MODULE, GRADIENTS):
            name, type_name = (_plain(each, wrappers) for each in _module_call(view))
            family = type_name
        plain = view._replace(
            name=name, type_name=type_name, family=family, inputs=(_number(module, 2), *seen),
            outputs=tuple(given), digests=(), norms=(),
        )  # fmt: skip
        dims = tuple(len(item.shape or ()) for item in tensors if item.part == INPUT)
        marks = [
            frozenset(item.mark for item in tensors if item.part == part and item.norm is not None)
            for part in (INPUT, OUTPUT)
        ]
        got, given_marks = marks
        found.append(
            ModelCall([Occurrence(number, view.name)], plain, names, module, dims, got, given_marks)
        )
    return found


def _number(text: str, dims: int) -> tuple[int, ...]:
    """Return a number for a name, as a shape of so many dimensions."""
    return (zlib.crc32(text.encode()) if text else 0,) * dims


def _module_of(record: str) -> str:
    """Return the plain path of a module, of the key of its record: `Module.layers.0.q.Linear.forward.0`."""
    if not record:
        return ""
    for direction in (FORWARD, BACKWARD):
        before, found, _ = record.rpartition(f".{direction}.")
        if found:
            return bare_name(before.partition(".")[2].rpartition(".")[0])
    return ""


def _module_call(view: Call) -> tuple[str, str]:
    """Return the name and the type of a module's call without its class, which other layouts change."""
    before, _, number = view.name.rpartition(".")
    middle = before.rpartition(".")[0]
    if view.kind == GRADIENTS:
        words = view.name.split(".")
        at = words.index("parameters_grad") if "parameters_grad" in words else len(words)
        path, rest = ".".join(words[1 : at - 1]), ".".join(words[at:])
        return (
            f"Module.{bare_name(path + '.')}{rest}",
            f"Module.{bare_name(path + '.')}parameters_grad",
        )
    path = bare_name(middle.partition(".")[2] + ".")
    return f"Module.{path}{number}", f"Module.{path}"


@dataclass(slots=True)
class Together:
    """What belongs together: the calls of the model on both sides, and those that one side has alone.
    `experts` are modules whose experts are spread over ranks: what is inside of them is not put together but
    for the modules `shared`, which every rank has whole (a router)."""

    pairs: list[tuple[ModelCall, ModelCall]] = field(default_factory=list)
    experts: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
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
    for match in align([each.view for each in ours], [each.view for each in theirs]):
        mine, other = [ours[at] for at in match.target], [theirs[at] for at in match.golden]
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
    _pair_experts(found, (target, golden), (ours, theirs))
    _give_biases(found, ours, theirs)
    _give_tails(found, ours, theirs)
    _pair_updates(found, *updates)
    for side, layout in enumerate((target.layout, golden.layout)):
        for call in found.alone[side]:
            call.is_of_layout = call.is_expert or _is_of_layout(call, layout)
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
    if any(name.startswith(_DISTRIBUTED) for name in names):
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
        if run.entry(stage, run.layout.stages[stage].ranks[0], name, BACKWARD) is not None:
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


def _pair_experts(
    found: Together,
    runs: tuple[RunCalls, RunCalls],
    sides: tuple[Sequence[ModelCall], Sequence[ModelCall]],
) -> None:
    """Pair anew the calls inside of modules whose experts are spread over the ranks of one side, by module
    and operator alone, where both sides have as many: which calls there are says nothing of their tensors,
    because each rank has experts of its own, and the tokens are dealt out anew. The experts of the first rank
    are those that the whole run has under their names."""
    names = [{name for call in run.calls for name in call.parameters} for run in runs]
    spread: list[str] = []
    for side, run in enumerate(runs):
        if not any("all_to_all" in call.name for call in run.calls):
            continue
        for name in names[not side] - names[side]:
            words = name.split(".")
            for at, word in enumerate(words):
                begin, end = ".".join(words[:at]), ".".join(words[at + 1 :])
                if word.isdigit() and f"{begin}.0.{end}" in names[side]:
                    spread.append(begin)
    if not spread:
        return
    found.experts = tuple(sorted({begin.rpartition(".")[0] for begin in spread}))
    found.shared = tuple(sorted(_shared_modules(names[0] & names[1], found.experts, spread)))
    for calls in sides:
        for call in calls:
            module = call.module if call.view.kind == API else _path_of(call)
            call.is_expert = is_inside(module, found, is_call=True)
    found.pairs = [pair for pair in found.pairs if not any(call.is_expert for call in pair)]
    paired = [{id(pair[side]) for pair in found.pairs} for side in range(2)]
    keyed: list[dict[Hashable, list[ModelCall]]] = [{}, {}]
    for side, calls in enumerate(sides):
        found.alone[side][:] = [call for call in calls if id(call) not in paired[side]]
        for call in found.alone[side]:
            if call.is_expert and not call.name.startswith(_DISTRIBUTED):
                module = call.module if call.view.kind == API else ""
                key = call.view.kind, call.view.type_name, module
                keyed[side].setdefault(key, []).append(call)
    for like, mine in keyed[0].items():
        other = keyed[1].get(like, [])
        if len(mine) == len(other):
            found.pairs += zip(mine, other, strict=True)
    paired = [{id(pair[side]) for pair in found.pairs} for side in range(2)]
    for side in range(2):
        found.alone[side][:] = [call for call in found.alone[side] if id(call) not in paired[side]]


def _shared_modules(
    names: Iterable[str], experts: Sequence[str], spread: Sequence[str]
) -> Iterator[str]:
    """Yield the modules beside the experts, of whose parameters both sides have the names."""
    for name in names:
        for each in experts:
            child, _, rest = name.removeprefix(f"{each}.").partition(".")
            module = f"{each}.{child}"
            is_around = any(f"{begin}.".startswith(f"{module}.") for begin in spread)
            if name.startswith(f"{each}.") and rest and not is_around:
                yield module


def is_inside(name: str, found: Together, *, is_call: bool = False) -> bool:
    """Return whether a parameter or a module, or a call of one, lies among experts that are spread."""
    if any(f"{name}.".startswith(f"{each}.") for each in found.shared):
        return False
    return any(name.startswith(f"{each}.") or (is_call and name == each) for each in found.experts)


def _path_of(call: ModelCall) -> str:
    return call.view.type_name.partition(".")[2].removesuffix("parameters_grad").strip(".")


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
                if call.view.kind == API and call.module and not call.name.startswith(_DISTRIBUTED)
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
    is_exchange = call.name.startswith(_DISTRIBUTED)
    return is_exchange or (many and (call.view.family in MOVES or call.view.kind != API))
