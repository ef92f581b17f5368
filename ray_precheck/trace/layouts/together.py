"""Two runs of other parallel layouts, written as two captures of whole tensors, which are compared like any.

Comes in: the open captures of all ranks of both runs, in their order, and the layouts that the user gave.
Goes out: two folders with a dump.json each, with sketches and files beside it. Called by the commands that
compare two runs, where they have other numbers of ranks or other layouts.

`partners` says which calls belong together, `wholes` how the parts of each tensor make the whole. A record
has the number of its pair (`pair`), by which the alignment knows it, or says that only the layout has it
(`layout`). An element says how it was put together (`gathered`); one whose parts make no whole has no values.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_precheck.trace.items import GRADIENTS as GRADIENTS_PART
from ray_precheck.trace.items import INPUT, OUTPUT, SAID_BEFORE, UNORDERED, Item, bare_name
from ray_precheck.trace.layouts.axes import SideLayout, side_layout
from ray_precheck.trace.layouts.experts import Experts, spread_experts
from ray_precheck.trace.layouts.partners import partners_of
from ray_precheck.trace.layouts.run_calls import (
    MOVES,
    UPDATE,
    ModelCall,
    run_calls_of,
    wrappers_between,
)
from ray_precheck.trace.layouts.updates import Update, update_of
from ray_precheck.trace.layouts.wholes import (
    REPLICA,
    ROOT,
    SHARD,
    SUM,
    AxisRole,
    Fold,
    PartGrid,
    WholeMaker,
    Wholes,
)
from ray_precheck.trace.layouts.writing import (
    DIRECTIONS,
    GATHERED,
    OF_LAYOUT_FIELD,
    RecordParts,
    WholeWriter,
    placed_folds,
    rebuilt,
    without_values,
)
from ray_precheck.trace.side import BACKWARD, FORWARD, CaptureSide

PAIR = "pair"


def put_together(
    target: Sequence[CaptureSide],
    golden: Sequence[CaptureSide],
    layouts: tuple[str, str],
    folders: tuple[Path, Path],
) -> tuple[SideLayout, SideLayout]:
    """Write the whole captures of both runs into two folders, which are made; the same captures make the same
    bytes.

    Returns:
        The layouts, given or found.

    Raises:
        UsageError: a given layout has another number of ranks.
    """
    sides = target, golden
    known = tuple(side_layout(each, given) for each, given in zip(sides, layouts, strict=True))
    runs = [run_calls_of(*each) for each in zip(sides, known, strict=True)]
    for side, wrappers in enumerate(wrappers_between(runs[0], runs[1])):
        if wrappers:
            runs[side] = run_calls_of(sides[side], known[side], wrappers)
    experts = spread_experts((runs[0], runs[1]))
    writers = tuple(WholeWriter(run, folder) for run, folder in zip(runs, folders, strict=True))
    maker = WholeMaker()
    found = partners_of(runs[0], runs[1])
    for number, direction in _in_order_of_run(writers[0], found.pairs):
        pair = found.pairs[number]
        if not pair[0].name.startswith(UPDATE):
            _write_pair(writers, maker, pair, direction, number)
        elif direction == FORWARD:
            _write_update(writers, maker, pair, experts, number)
    for writer, alone in zip(writers, found.alone, strict=True):
        for call in alone:
            writer.add_alone(call)
        writer.finish()
    return known[0], known[1]


def _in_order_of_run(
    writer: "WholeWriter", pairs: Sequence[tuple[ModelCall, ModelCall]]
) -> list[tuple[int, str]]:
    """Return the records of pairs, by number and direction, in the order of the run: what is known of a
    tensor counts where it is used. The last stage of a pipeline is the first whose gradients there are."""
    found = []
    for number, (call, _) in enumerate(pairs):
        stage = call.occurrences[0].stage
        rank, home = writer.run.stages[stage].first, writer.run.home(stage)
        for direction in DIRECTIONS:
            entry = writer.run.entry(stage, rank, call.name, direction)
            if entry is not None:
                is_forward = direction == FORWARD
                place = writer.run.place(stage, entry)
                found.append(
                    (not is_forward, home if is_forward else -home, place, number, direction)
                )
    return [(number, direction) for *_, number, direction in sorted(found)]


def _write_pair(
    writers: Sequence[WholeWriter],
    maker: WholeMaker,
    pair: tuple[ModelCall, ModelCall],
    direction: str,
    number: int,
) -> None:
    sides = [writer.parts(call, direction) for writer, call in zip(writers, pair, strict=True)]
    if sides[0] is None or sides[1] is None:
        for writer, call, parts in zip(writers, pair, sides, strict=True):
            if parts is not None:
                writer.add(call, direction, rebuilt(parts.record, {}), **{PAIR: number})
        return
    work = _PairWork(writers, maker, pair, direction, (sides[0], sides[1]))
    for item, mate in _mates(sides[0].items, sides[1].items):
        work.add(item, mate)
    work.restore_own_inputs()
    is_moved = work.has_no_whole and pair[0].view.family in MOVES and not pair[0].is_expert
    for side in range(2):
        record = rebuilt(work.parts[side].record, work.new[side])
        # What only moves parts, and of them makes no whole, belongs to the layout.
        marks = {OF_LAYOUT_FIELD: True} if is_moved else {PAIR: number}
        writers[side].add(pair[side], direction, record, **marks)


@dataclass(slots=True)
class _PairWork:
    """Two records that belong together, while their tensors are put together: `new` has the elements that
    take the place of others, by the identity of these, `sharded` the axes over which inputs are sharded,
    `rooted` the sides whose values are norms of shards."""

    writers: Sequence[WholeWriter]
    maker: WholeMaker
    pair: tuple[ModelCall, ModelCall]
    direction: str
    parts: tuple[RecordParts, RecordParts]
    new: tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]] = field(
        default_factory=lambda: ({}, {})
    )
    sharded: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    rooted: set[int] = field(default_factory=set)
    has_no_whole: bool = False
    is_off: bool = False
    behind: list[tuple[Item, Item]] = field(default_factory=list)
    far: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=list)

    def add(self, item: Item | None, mate: Item | None, *, is_own: bool = False) -> None:
        """Put the values of a place in both records together; `is_own`: not those behind calls of one run."""
        if item is None or mate is None or item.element is None or mate.element is None:
            for side, each in enumerate((item, mate)):
                if each is not None and each.element is not None and each.is_tensor:
                    whole = self.writers[side].common(self.pair[side], self.parts[side], each)
                    self.new[side][id(each.element)] = whole
            return
        if item.part == GRADIENTS_PART and self._is_tied(item, mate):
            for side, each in enumerate((item, mate)):
                self._leave(side, each.element or {}, mate.element or {}, _TIED)
            return
        is_expert = self.pair[0].is_expert
        if not (item.is_tensor and mate.is_tensor):
            give = self._give_expert_value if is_expert else self._give_value
            give(item.element, mate.element)
            return
        both = item, mate
        elements = [self.parts[side].elements[both[side].path] for side in range(2)]
        found, grids = self._made(both, elements)
        if is_expert and not self._is_known(item, found, grids):
            self._leave_expert(item.element, mate.element)
            return
        is_tokens = is_expert and not (item.state_name or (grids and grids[0].role.is_parameter))
        is_own = is_own or is_expert
        is_edge = item.part == OUTPUT if self.direction == FORWARD else item.part == INPUT
        if self.direction == BACKWARD and item.part == OUTPUT:
            self.is_off = self.is_off or (found is not None and found.distance > _OFF)
        if is_edge and not is_own and (found is None or found.distance > _SAME):
            before = elements
            found, grids, elements = self._behind(both, elements, found, grids)
            if elements is not before and self.direction == FORWARD:
                self._forget_own_inputs()
            elif elements is not before:
                self.behind.append(both)
        elif not (is_edge or is_expert or item.state_name) and (
            found is None or found.distance > _SAME
        ):
            self.far.append((item.element, mate.element))
        for side in range(2):
            old = both[side].element or {}
            first = next((each for each in elements[side] if "shape" in each), old)
            if (
                first is not old and "requires_grad" in old
            ):  # What is behind may be without gradients.
                first = {**first, "requires_grad": old["requires_grad"]}
            if found is None or grids is None:
                self.has_no_whole = self.has_no_whole or item.part == OUTPUT
                self._leave(side, old, mate.element, _NO_WHOLE)
                continue
            folds = (found.way.target, found.way.golden)[side]
            self._note(side, both[side], folds, grids[side])
            writer, call = self.writers[side], self.pair[side]
            note = _words(folds, grids[side].ranks, found, is_target=side == 0)
            if is_tokens and found.target.buckets is None and found.target.array is None:
                note = "; ".join(filter(None, [note, UNORDERED]))
            values, key = (
                (found.target, found.golden)[side],
                f"{writer.name(call)}.{self.direction}",
            )
            self.new[side][id(old)] = writer.element(
                first, key, both[side].path, grids[side], values, note
            )

    def restore_own_inputs(self) -> None:
        """Take the gradients that the call itself got, where what it made of those behind calls of one run is
        off: one of these scales them, and nothing scales them back."""
        if self.is_off:
            for item, mate in self.behind:
                self.add(item, mate, is_own=True)

    def _forget_own_inputs(self) -> None:
        """Leave inputs that differ without values: what comes behind the call says that each rank looked up
        what it has."""
        for pair in self.far:
            for side, element in enumerate(pair):
                self._leave(side, element, pair[1], _OWN_INPUT)
        self.has_no_whole = self.has_no_whole or bool(self.far)

    def _leave(
        self, side: int, element: Mapping[str, Any], golden: Mapping[str, Any], why: str
    ) -> None:
        """Leave a tensor without values, in the shape of the golden run: nothing is said of it."""
        shape = without_values(golden).get("shape")
        self.new[side][id(element)] = without_values(element) | {"shape": shape, GATHERED: why}

    def _is_known(self, item: Item, found: Wholes | None, grids: Sequence[PartGrid] | None) -> bool:
        """Return whether values of experts that are spread are those of the whole: they agree in one of the
        ways, or the ranks have rows of the tokens of an expert, or each as many of all (others come from
        exchanges, in which each rank has its own), or it is a parameter or a gradient of one."""
        expert = self.pair[0].expert
        if expert and found is None and not item.state_name:
            self.maker.unlike.add(expert)
        if found is None or grids is None or (expert in self.maker.unlike and not item.state_name):
            return False
        if not item.dtype.rpartition(".")[2].startswith(_FLOATS):
            # Of a sum of integers not all is known, and what is known has to be equal.
            both = found.target.statistics, found.golden.statistics
            lacks = [[name for name, each in side.items() if each is None] for side in both]
            return found.distance < _NEAR_INTEGER and lacks[0] == lacks[1]
        if found.distance < _NEAR_INTEGER:
            return True
        if expert and (item.state_name or grids[0].role.is_parameter):
            return True
        folds = (*found.way.target, *found.way.golden)
        is_even = all(len(set(grid.shapes)) == 1 for grid in grids)
        return all(fold.kind == SHARD for fold in folds) and (bool(expert) or is_even)

    def _leave_expert(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """Leave a tensor without values, which is said once for each module."""
        mixture = self.pair[0].mixture
        expert = self.pair[0].expert if self.pair[0].expert in self.maker.unlike else ""
        why = _OTHER_TOKENS if expert else _OF_EXPERTS
        why = SAID_BEFORE if (expert or mixture) in self.maker.said else why
        self.maker.said.add(expert or mixture)
        for side, element in enumerate((ours, theirs)):
            self._leave(side, element, theirs, why)

    def _give_expert_value(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """Give a number of tokens, of which each rank has its own, the number of the whole."""
        if type(ours.get("value")) is type(theirs.get("value")) is int:
            note = {} if ours["value"] == theirs["value"] else {GATHERED: _OF_EXPERTS}
            self.new[0][id(ours)] = {**ours, "value": theirs["value"], **note}

    def _made(
        self, both: tuple[Item, Item], elements: Sequence[Sequence[Mapping[str, Any]]]
    ) -> tuple[Wholes | None, list[PartGrid] | None]:
        grids = []
        for side in range(2):
            writer, call = self.writers[side], self.pair[side]
            role = self._role(side, both[side])._replace(is_dealt=call.is_expert)
            is_copy = role.is_parameter or bool(both[side].state_name)
            grid = writer.grid(call, elements[side], role, is_copy=is_copy)
            if grid is None or _is_masked_later(call, both[side], grid):
                return None, None
            is_norm = call.view.family in _NORMS or (
                side in self.rooted and call.view.family in MOVES
            )
            if (is_norm and both[side].part == OUTPUT) or both[side].mark in writer.rooted:
                # torch sums squares over shards, and writes that as a sum.
                grid.fixed = [Fold(ROOT) if f and f.kind == SUM else f for f in grid.fixed]
            grids.append(grid)
        return self.maker.make(grids[0], grids[1]), grids

    def _behind(
        self,
        both: tuple[Item, Item],
        elements: list[list[Mapping[str, Any]]],
        found: Wholes | None,
        grids: list[PartGrid] | None,
    ) -> tuple[Wholes | None, list[PartGrid] | None, list[list[Mapping[str, Any]]]]:
        """Return the wholes of what a call gives behind calls of its run alone, where they fit, else those
        that were found: an embedding of a part of the vocabulary is masked and summed first."""
        for side in range(2):
            for near in reversed(self.pair[side].tail):
                parts = self.writers[side].parts(near, self.direction)
                if parts is None or len(near.occurrences) != len(self.pair[side].occurrences):
                    continue
                items = [
                    each for each in parts.items if each.is_tensor and each.part == both[side].part
                ]
                for each in items[:1] if self.direction != FORWARD else items:
                    others = list(elements)
                    others[side] = parts.elements[each.path]
                    again, made = self._made(both, others)
                    if again is not None and again.distance < _SAME:
                        return again, made, others
        return found, grids, elements

    def _give_value(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
        """Give a number of elements or heads, of which one side has a part, the number of the whole."""
        one, two = ours.get("value"), theirs.get("value")
        if type(one) is not int or type(two) is not int or one == two or min(one, two) < 1:
            return
        if max(one, two) % min(one, two):
            return
        sizes = [
            {size for item in parts.items for size in item.shape or ()} for parts in self.parts
        ]
        is_size = min(one, two) > 1 and one in sizes[0] and two in sizes[1]
        if is_size or self.pair[0].view.family in MOVES:
            note = f"of the whole; each rank has {min(one, two)}"
            side, element = (0, ours) if one < two else (1, theirs)
            self.new[side][id(element)] = {**element, "value": max(one, two), GATHERED: note}

    def _is_tied(self, item: Item, mate: Item) -> bool:
        """Return whether two modules share a parameter that stages of a pipeline have each for themselves."""
        marks = [self.writers[0].tied, self.writers[1].tied]
        stages = [len(writer.run.layout.stages) for writer in self.writers]
        return (stages[0] > 1 and mate.mark in marks[1]) or (
            stages[1] > 1 and item.mark in marks[0]
        )

    def _note(self, side: int, item: Item, folds: Sequence[Fold], grid: PartGrid) -> None:
        """Note what the folds of a tensor say of those that come after it."""
        if any(fold.kind == ROOT for fold in folds):
            self.writers[side].rooted.add(item.mark)
            self.rooted.add(side)
        shards = {at for at, fold in enumerate(folds) if fold.kind == SHARD}
        sums = {at for at, fold in enumerate(folds) if fold.kind == SUM}
        if item.part != OUTPUT:
            self.sharded[side].update(shards)
        if item.state_name and self.direction == FORWARD:
            shapes = self.writers[side].parameters.setdefault(self.pair[side].occurrences[0], set())
            shapes.update(grid.shapes)
            whole = frozenset(at for at, fold in enumerate(folds) if fold.kind == REPLICA)
            known, place = (
                self.writers[side].undivided,
                (self.pair[side].occurrences[0], grid.shapes[0]),
            )
            known[place] = known.get(place, whole) & whole
            self.maker.divided.update((side, at) for at in shards if grid.fixed[at] is None)
        if self.direction == BACKWARD and item.part == OUTPUT:
            linear = frozenset(at for at in sums if (side, at) not in self.maker.divided)
            if linear:
                self.writers[side].added[item.mark] = linear

    def _role(self, side: int, item: Item) -> AxisRole:
        """Return what a tensor is to its record, of which ranks may have addends."""
        writer, call = self.writers[side], self.pair[side]
        axes = frozenset(range(len(writer.sizes(call))))
        whole = writer.reduced[call.occurrences[0].stage].get(item.mark)
        is_gradient = item.part == GRADIENTS_PART
        is_backward = self.direction == BACKWARD or is_gradient
        is_output = item.part == OUTPUT
        is_masked = bool(call.tail) and item.part == INPUT
        if whole is not None or is_gradient or (is_backward and (is_output or is_masked)):
            shapes = writer.parameters.get(call.occurrences[0], ())
            is_parameter = is_gradient or (is_backward and is_output and item.shape in shapes)
            place = call.occurrences[0], item.shape or ()
            undivided = writer.undivided.get(place) if is_parameter and not is_gradient else None
            return AxisRole(
                is_backward, axes, is_parameter, whole or None, undivided or frozenset()
            )
        if is_backward:
            return AxisRole(True, writer.added.get(item.mark, frozenset()))
        if math.prod(item.shape or ()) == 1:
            return AxisRole(False, axes)
        return AxisRole(False, frozenset(self.sharded[side]) if is_output else frozenset())


# What a call gives is looked for behind the calls of its run alone where it is farther off, and found where
# it is nearer.
_SAME = 1e-4
_NORMS = frozenset(("norm", "linalg.vector_norm", "vector_norm"))
# So near are integers that are equal.
_NEAR_INTEGER = 1e-4
_FLOATS = ("float", "bfloat", "half", "double")
_OFF = 0.1  # far more than other orders of additions explain
_TIED = "stages of the pipeline have parts of the gradient of this shared parameter: not compared"
_OWN_INPUT = "each rank looks up what it has: not compared"
_OF_EXPERTS = (
    "experts are spread over ranks, which deal out the tokens among them, and each has numbers of its own"
    " (places, counts): not compared"
)
_OTHER_TOKENS = "this expert got another number of tokens than in the other run: not compared"
_NO_WHOLE = "the parts of the ranks make no whole of one shape: not compared"


def _is_masked_later(call: ModelCall, item: Item, grid: PartGrid) -> bool:
    """Return whether an output has rows that are masked only when they are added up: those of a distributed
    embedding for tokens that other ranks have."""
    is_sum = any(fold is not None and fold.kind == SUM for fold in grid.fixed)
    return is_sum and item.part == OUTPUT and call.view.family == "embedding"


def _write_update(
    writers: Sequence[WholeWriter],
    maker: WholeMaker,
    pair: tuple[ModelCall, ModelCall],
    experts: Experts,
    number: int,
) -> None:
    """Write the update of an optimizer: its tensors are those of parameters, which stages and ranks share."""
    updates: list[Update] = []
    for writer, call in zip(writers, pair, strict=True):
        records = []
        for number_of, name in call.occurrences:
            ranks = writer.run.layout.stages[number_of].ranks
            records.append(
                [writer.record_of(number_of, name, FORWARD, rank=rank) or {} for rank in ranks]
            )
        updates.append(
            update_of(records, [writer.run.layout.stages[at.stage] for at in call.occurrences])
        )
    made: tuple[dict[Any, dict[str, Any]], ...] = ({}, {})
    for place in updates[0].elements:
        if place not in updates[1].elements or experts.is_unknown(place.name):
            continue
        grids = []
        for writer, update in zip(writers, updates, strict=True):
            stage, elements = update.elements[place]
            files = [writer.files[rank] for rank in stage.ranks]
            grids.append(
                PartGrid(stage.sizes, elements, files, list(placed_folds(elements[0], stage)))
            )
        found = maker.make(grids[0], grids[1])
        for side in range(2):
            having, elements = updates[side].elements[place]
            first = elements[0]
            is_start = place.part == "input_args" and place.list == "params"
            is_unlike = not is_start and experts.expert_of(place.name) in maker.unlike
            if found is None or is_unlike:
                shape = without_values(grids[1].elements[0]).get("shape")
                why = _OTHER_TOKENS if is_unlike else _NO_WHOLE
                left = without_values(first) | {"shape": shape, GATHERED: why}
                made[side][place] = left
                continue
            values = (found.target, found.golden)[side]
            path = ".".join(map(str, place))
            folds = (found.way.target, found.way.golden)[side]
            note = _words(folds, having.ranks, found, is_target=side == 0)
            key = f"{pair[side].name}.{FORWARD}"
            made[side][place] = writers[side].element(first, key, path, grids[side], values, note)
    for side in range(2):
        record = updates[side].record(made[side], updates[1 - side])
        writers[side].add(pair[side], FORWARD, record, **{PAIR: number})


def _mates(
    target: Sequence[Item], golden: Sequence[Item]
) -> Iterator[tuple[Item | None, Item | None]]:
    """Yield the values of two records that belong together: those of one path, and parameters of one name."""
    theirs = {item.path: item for item in golden}
    names = {bare_name(item.state_name): item for item in golden if item.state_name}
    taken = set()
    for item in target:
        mate = theirs.get(item.path)
        named = names.get(bare_name(item.state_name)) if item.state_name else None
        if named is not None and (mate is None or mate.state_name != named.state_name):
            mate = named
        if mate is not None and mate.path in taken:
            mate = None
        if mate is not None:
            taken.add(mate.path)
        yield item, mate
    for item in golden:
        if item.path not in taken:
            yield None, item


def _words(folds: Sequence[Fold], ranks: Sequence[int], found: Wholes, *, is_target: bool) -> str:
    """Return how a tensor was put together."""
    words = []
    for fold in folds:
        if fold.kind == SHARD:
            words.append(f"shards along dimension {fold.dim}")
        elif fold.kind == SUM:
            words.append("a mean" if fold.is_scaled else "a sum")
        elif fold.kind == ROOT:
            words.append("the root of the sum of squares")
    said = f"put together of ranks {_ranges(ranks)}: {', '.join(words)}" if words else ""
    if found.is_unordered:
        said += "; the order of the parts is not known, so that statistics are compared"
    if is_target and found.odd:
        odd = _ranges(sorted({ranks[at] for at in found.odd}))
        is_replica = all(fold.kind != SHARD for fold in folds)
        what = (
            f"ranks have other values, these are rank {odd}'s"
            if is_replica
            else f"rank {odd}'s part is off"
        )
        said = "; ".join(filter(None, [said, what]))
    if is_target and found.is_not_added:
        said += (
            "; the sum of the ranks' values would be right: no collective adds them up before this"
        )
    return said


def _ranges(ranks: Sequence[int]) -> str:
    known = sorted(set(ranks))
    if len(known) > 2 and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]}-{known[-1]}"
    return ", ".join(map(str, known))
