"""Two runs of other parallel layouts, written as two captures of whole tensors, which are compared like any.

Comes in: the open captures of all ranks of both runs, in their order, and the layouts that the user gave. Goes
out: two folders with a dump.json each, with sketches and files beside it. Called by the commands that compare
two runs, where they have other numbers of ranks or other layouts.

`partners` says which calls belong together, `wholes` how the parts of each tensor make the whole. A record has
the number of its pair (`pair`), by which the alignment knows it, or says that only the layout has it
(`layout`). An element says how it was put together (`gathered`); one whose parts make no whole has no values.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.dump.tensors import SketchFile
from ray_precheck.numerics.sketch import sketch
from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.schema.dtypes import header_field
from ray_precheck.trace.items import GRADIENTS as GRADIENTS_PART
from ray_precheck.trace.items import INPUT, OUTPUT, Item, items_of
from ray_precheck.trace.layouts.axes import LayoutStage, SideLayout, layout_of, plain_name
from ray_precheck.trace.layouts.parts import DISTRIBUTED, PartFiles, Values, are_replicas
from ray_precheck.trace.layouts.partners import (
    MOVES,
    UPDATE,
    ModelCall,
    Occurrence,
    RunCalls,
    partners_of,
    run_calls_of,
)
from ray_precheck.trace.layouts.updates import Update, update_of
from ray_precheck.trace.layouts.wholes import (
    REPLICA,
    SHARD,
    SUM,
    Fold,
    PartGrid,
    Role,
    WholeMaker,
    Wholes,
)
from ray_precheck.trace.side import BACKWARD, FORWARD, GRADIENTS, CaptureSide, RecordEntry

PAIR, OF_LAYOUT, GATHERED = "pair", "layout", "gathered"
# What tells the values of a part, and is wrong of the whole.
_OF_VALUES = (*FIELDS, "md5", "data_name", "sketch", "sketch_exponent", "sketch_counted", "health")
_OF_PLACES = (DISTRIBUTED, "placements", "device_mesh")
_TENSORS = "dump_tensor_data"
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_DIRECTIONS = (FORWARD, BACKWARD, "")


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
    known = tuple(layout_of(each, given) for each, given in zip(sides, layouts, strict=True))
    runs = tuple(run_calls_of(*each) for each in zip(sides, known, strict=True))
    writers = tuple(_Writer(run, folder) for run, folder in zip(runs, folders, strict=True))
    maker = WholeMaker()
    found = partners_of(runs[0], runs[1])
    for number, direction in _in_order_of_run(writers[0], found.pairs):
        _write_pair(writers, maker, found.pairs[number], direction, number)
    for writer, alone in zip(writers, found.alone, strict=True):
        for call in alone:
            writer.add_alone(call)
        writer.finish()
    return known[0], known[1]


def _in_order_of_run(
    writer: "_Writer", pairs: Sequence[tuple[ModelCall, ModelCall]]
) -> list[tuple[int, str]]:
    """Return the records of pairs, by number and direction, in the order of the run: what is known of a tensor
    counts where it is used. The last stage of a pipeline is the first whose gradients there are."""
    found = []
    for number, (call, _) in enumerate(pairs):
        stage = call.occurrences[0].stage
        rank = writer.run.layout.stages[stage].ranks[0]
        for direction in _DIRECTIONS:
            entry = writer.run.entry(stage, rank, call.name, direction)
            if entry is not None:
                is_forward = direction == FORWARD
                place = entry.span.start
                found.append((not is_forward, stage if is_forward else -stage, place, number, direction))
    return [(number, direction) for *_, number, direction in sorted(found)]


class _Parts(NamedTuple):
    """A record on all ranks: that of the first one, and for each path the elements in the order of the ranks
    and of the parts of the batch, with the files of their ranks."""

    record: dict[str, Any]
    items: list[Item]
    elements: Mapping[str, list[Mapping[str, Any]]]


@dataclass(slots=True)
class _Written:
    key: str
    record: dict[str, Any]
    entry: RecordEntry
    stage: int
    order: int


@dataclass(slots=True)
class _Writer:
    """The whole capture of a run, while it is made."""

    run: RunCalls
    folder: Path
    files: list[PartFiles] = field(init=False)
    written: list[_Written] = field(default_factory=list)
    reduced: list[dict[Any, Mapping[str, Any]]] = field(init=False)
    tied: set[Any] = field(default_factory=set)
    added: dict[Any, frozenset[int]] = field(default_factory=dict)
    parameters: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    _sketches: SketchFile = field(init=False)
    _names: dict[Occurrence, str] = field(default_factory=dict)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / _TENSORS).mkdir(parents=True)
        self.files = [PartFiles(side) for side in self.run.sides]
        self.reduced = [
            _reduced_in(self.run.sides[stage.ranks[0]]) for stage in self.run.layout.stages
        ]
        first = self.run.sides[0]
        gradients = Counter(
            item.mark
            for entry in first.entries
            if entry.kind == GRADIENTS
            for item in first.items(entry)
        )
        self.tied = {mark for mark, count in gradients.items() if count > 1}
        self._sketches = SketchFile(self.folder)
        self._name_calls()

    def _name_calls(self) -> None:
        """Give each call a name of its own: stages of a pipeline count theirs by themselves."""
        taken: set[str] = set()
        for number, stage in enumerate(self.run.layout.stages):
            names = dict.fromkeys(entry.call for entry in self.run.sides[stage.ranks[0]].entries)
            for call in names:
                before, _, last = call.rpartition(".")
                at, name = int(last) if last.isdigit() else 0, call
                while name in taken:
                    at += 1
                    name = f"{before}.{at}" if last.isdigit() else f"{call}.{at}"
                taken.add(name)
                self._names[Occurrence(number, call)] = name

    def stage(self, call: ModelCall) -> LayoutStage:
        """Return the stage that makes a call."""
        return self.run.layout.stages[call.occurrences[0].stage]

    def sizes(self, call: ModelCall) -> tuple[int, ...]:
        """Return the sizes of the axes over which the parts of a call's tensors are: those of the layout,
        and the parts of the batch."""
        times = len(call.occurrences)
        return (*self.stage(call).sizes, *((times,) if times > 1 else ()))

    def ranks(self, call: ModelCall) -> list[int]:
        """Return the rank of each part of a call's tensors."""
        return [rank for rank in self.stage(call).ranks for _ in call.occurrences]

    def parts(self, call: ModelCall, direction: str) -> _Parts | None:
        """Return a record of a call on all ranks, None where it has none of this direction."""
        found: list[dict[str, Any]] = []
        for rank in self.stage(call).ranks:
            for at, (stage, name) in enumerate(call.occurrences):
                record = self._record(stage, rank, name, direction)
                if record is None:
                    if not found:
                        return None
                    record = {}
                if call.bias is not None:
                    bias = call.bias.occurrences[min(at, len(call.bias.occurrences) - 1)]
                    added = self._record(bias.stage, rank, bias.call, direction)
                    record = _with_bias(record, added or {})
                found.append(record)
        entry = self.run.entry(call.occurrences[0].stage, self.stage(call).ranks[0], call.name, direction)
        name = entry.key if entry is not None else ""
        several = [items_of(record, name) for record in found]
        by_path = [{item.path: item for item in items} for items in several]
        elements = {
            item.path: [
                each[item.path].element or {} if item.path in each else {} for each in by_path
            ]
            for item in several[0]
        }
        return _Parts(found[0], several[0], elements)

    def _record(self, stage: int, rank: int, call: str, direction: str) -> dict[str, Any] | None:
        entry = self.run.entry(stage, rank, call, direction)
        return None if entry is None else dict(self.run.sides[rank].record(entry))

    def grid(self, call: ModelCall, elements: Sequence[Mapping[str, Any]], role: Role) -> PartGrid | None:
        """Return the parts of a tensor; None where a rank has none."""
        if not all("shape" in each for each in elements):
            return None
        stage = self.stage(call)
        fixed: list[Fold | None] = list(_placed(elements[0], stage))
        sizes = self.sizes(call)
        fixed += [None] * (len(sizes) - len(fixed))
        ranks = self.ranks(call)
        return PartGrid(sizes, elements, [self.files[rank] for rank in ranks], fixed, role)

    def element(
        self, first: Mapping[str, Any], key: str, path: str, grid: PartGrid, values: Values, note: str
    ) -> dict[str, Any]:
        """Return the element of a whole tensor, and write its file and its sketch."""
        found = _without_values(first)
        found["shape"] = list(values.shape)
        same = grid.part_of(values)
        if same is not None:
            found |= {name: same[name] for name in (*FIELDS, "health", "md5") if name in same}
        else:
            found |= _numbers(values, str(first.get("dtype")))
        if note:
            found[GATHERED] = note
        buckets = values.buckets
        if values.array is not None:
            name = f"{key}.{path}.npy"
            np.save(self.folder / _TENSORS / name, values.array)
            found["data_name"] = name
            buckets = sketch(values.array) if values.array.dtype.kind in "fiub" and values.size else None
        if buckets is not None:
            found |= json.loads(f"{{{self._sketches.append(buckets)}}}")
        return found

    def add(self, call: ModelCall, direction: str, record: dict[str, Any], **marks: Any) -> None:
        """Add a record under the name that its call has in the whole capture."""
        first = call.occurrences[0]
        rank = self.run.layout.stages[first.stage].ranks[0]
        entry = self.run.entry(first.stage, rank, first.call, direction)
        if entry is None:
            return
        record = {name: each for name, each in record.items() if name not in ("stack", "parent")}
        key = self.key(first.stage, entry)
        self.written.append(_Written(key, record | marks, entry, first.stage, entry.span.start))

    def key(self, stage: int, entry: RecordEntry) -> str:
        """Return the key of a record in the whole capture."""
        name = self._names[Occurrence(stage, entry.call)]
        if name == entry.call:
            return entry.key
        before, _, number = name.rpartition(".")
        if entry.kind == GRADIENTS or not entry.direction:
            return name
        if entry.key == f"{entry.call}.{entry.direction}":
            return f"{name}.{entry.direction}"
        return f"{before}.{entry.direction}.{number}"

    def add_alone(self, call: ModelCall) -> None:
        """Add the records of a call that the other side lacks: what all ranks have is told."""
        marks = {OF_LAYOUT: True} if call.is_of_layout else {}
        for occurrence in call.occurrences:
            single = ModelCall([occurrence], call.view)
            for direction in _DIRECTIONS:
                parts = self.parts(single, direction)
                if parts is None:
                    continue
                new: dict[int, dict[str, Any]] = {}
                for item in parts.items:
                    if item.is_tensor and item.element is not None:
                        new[id(item.element)] = self.common(single, parts, item)
                self.add(single, direction, _rebuilt(parts.record, new), **marks)

    def common(self, call: ModelCall, parts: _Parts, item: Item) -> dict[str, Any]:
        """Return the element of a tensor that has no partner: what all ranks have is told."""
        elements = parts.elements[item.path]
        grid = self.grid(call, elements, Role())
        first = elements[0]
        if grid is None or not all(are_replicas(each, first) for each in elements):
            return {name: each for name, each in first.items() if name not in _OF_VALUES}
        name = f"{call.name}.{item.path}"
        return self.element(first, name, "alone", grid, grid.value(0), "")

    def finish(self) -> None:
        """Write the dump, in the order of the model."""
        first = self.run.sides[0].header
        header: dict[str, object] = {
            "task": first.task, "level": first.level, "framework": first.framework,
            "dump_data_dir": None, "layout": self.run.layout.words,
        }  # fmt: skip
        header["float32"] = header_field(first.float32, first.float32)
        begins = []
        for stage in self.run.layout.stages:
            entries = self.run.sides[stage.ranks[0]].entries
            starts = [each.span.start for each in entries if each.direction == BACKWARD]
            begins.append(min(starts, default=math.inf))

        def place(each: _Written) -> tuple[int, int, int]:
            is_late = each.order >= begins[each.stage]
            return (1, -each.stage, each.order) if is_late else (0, each.stage, each.order)

        rows = sorted(self.written, key=place)
        with (self.folder / "dump.json").open("w", encoding="utf-8") as file:
            file.write(json.dumps(header)[:-1] + ', "data": {')
            for number, each in enumerate(rows):
                comma = ",\n" if number else "\n"
                file.write(f"{comma}{json.dumps(each.key)}: {json.dumps(each.record)}")
            file.write("\n}}\n")
        self._sketches.finish()
        stacks, modules = {}, {}
        for number, each in enumerate(rows):
            side = self.run.sides[self.run.layout.stages[each.stage].ranks[0]]
            if each.entry.key in side.stacks:
                stacks[str(number)] = [[each.key], side.stacks[each.entry.key]]
            modules[each.key] = side.modules.get(each.entry.key)
        for name, content in (("stack.json", stacks), ("construct.json", modules)):
            (self.folder / name).write_text(json.dumps(content), encoding="utf-8")


def _write_pair(
    writers: Sequence[_Writer],
    maker: WholeMaker,
    pair: tuple[ModelCall, ModelCall],
    direction: str,
    number: int,
) -> None:
    if pair[0].name.startswith(UPDATE):
        if direction == FORWARD:
            _write_update(writers, maker, pair, direction, number)
        return
    sides = [writer.parts(call, direction) for writer, call in zip(writers, pair, strict=True)]
    if sides[0] is None or sides[1] is None:
        for writer, call, parts in zip(writers, pair, sides, strict=True):
            if parts is not None:
                writer.add(call, direction, _rebuilt(parts.record, {}), **{PAIR: number})
        return
    work = _PairWork(writers, maker, pair, direction, (sides[0], sides[1]))
    for item, mate in _mates(sides[0].items, sides[1].items):
        work.add(item, mate)
    for side in range(2):
        record = _rebuilt(work.parts[side].record, work.new[side])
        writers[side].add(pair[side], direction, record, **{PAIR: number})


@dataclass(slots=True)
class _PairWork:
    """Two records that belong together, while their tensors are put together: `new` has the elements that take
    the place of others, by the identity of these, `sharded` the axes over which inputs are sharded."""

    writers: Sequence[_Writer]
    maker: WholeMaker
    pair: tuple[ModelCall, ModelCall]
    direction: str
    parts: tuple[_Parts, _Parts]
    new: tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]] = field(
        default_factory=lambda: ({}, {})
    )
    sharded: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    def add(self, item: Item | None, mate: Item | None) -> None:
        """Put the values of a place in both records together."""
        if item is None or mate is None or item.element is None or mate.element is None:
            for side, each in enumerate((item, mate)):
                if each is not None and each.element is not None and each.is_tensor:
                    whole = self.writers[side].common(self.pair[side], self.parts[side], each)
                    self.new[side][id(each.element)] = whole
            return
        if item.part == GRADIENTS_PART and self._is_tied(item, mate):
            for side, each in enumerate((item, mate)):
                left = _without_values(each.element or {}) | {GATHERED: _TIED}
                self.new[side][id(each.element)] = left
            return
        if not (item.is_tensor and mate.is_tensor):
            _give_value(item.element, mate.element, self.new)
            return
        both = item, mate
        elements = [
            self.parts[side].elements[both[side].path] for side in range(2)
        ]
        found, grids = self._made(both, elements)
        is_edge = item.part == OUTPUT if self.direction == FORWARD else item.part == INPUT
        if is_edge and (found is None or found.distance > _SAME):
            found, grids, elements = self._behind(both, elements, found, grids)
        for side in range(2):
            first, old = elements[side][0], both[side].element or {}
            if found is None or grids is None:
                self.new[side][id(old)] = _without_values(first) | {GATHERED: _NO_WHOLE}
                continue
            folds = (found.way.target, found.way.golden)[side]
            self._note(side, both[side], folds, grids[side])
            writer, call = self.writers[side], self.pair[side]
            note = _words(folds, writer.ranks(call), found, is_target=side == 0)
            values, key = (found.target, found.golden)[side], f"{call.name}.{self.direction}"
            self.new[side][id(old)] = writer.element(
                first, key, both[side].path, grids[side], values, note
            )

    def _made(
        self, both: tuple[Item, Item], elements: Sequence[Sequence[Mapping[str, Any]]]
    ) -> tuple[Wholes | None, list[PartGrid] | None]:
        grids = []
        for side in range(2):
            writer, call = self.writers[side], self.pair[side]
            role = self._role(side, both[side])
            grid = writer.grid(call, elements[side], role)
            if grid is None or _is_masked_later(call, both[side], grid):
                return None, None
            grids.append(grid)
        return self.maker.make(grids[0], grids[1]), grids

    def _behind(
        self,
        both: tuple[Item, Item],
        elements: list[list[Mapping[str, Any]]],
        found: Wholes | None,
        grids: list[PartGrid] | None,
    ) -> tuple[Wholes | None, list[PartGrid] | None, list[list[Mapping[str, Any]]]]:
        """Return the wholes of what a call gives behind calls of its run alone, where they fit, else those that
        were found: an embedding of a part of the vocabulary is masked and summed first."""
        for side in range(2):
            for near in reversed(self.pair[side].tail):
                parts = self.writers[side].parts(near, self.direction)
                if parts is None or len(near.occurrences) != len(self.pair[side].occurrences):
                    continue
                items = [each for each in parts.items if each.is_tensor and each.part == both[side].part]
                for each in items[:1] if self.direction != FORWARD else items:
                    others = list(elements)
                    others[side] = parts.elements[each.path]
                    again, made = self._made(both, others)
                    if again is not None and again.distance < _SAME:
                        return again, made, others
        return found, grids, elements

    def _is_tied(self, item: Item, mate: Item) -> bool:
        """Return whether two modules share a parameter that stages of a pipeline have each for themselves."""
        marks = [self.writers[0].tied, self.writers[1].tied]
        stages = [len(writer.run.layout.stages) for writer in self.writers]
        return (stages[0] > 1 and mate.mark in marks[1]) or (stages[1] > 1 and item.mark in marks[0])

    def _note(self, side: int, item: Item, folds: Sequence[Fold], grid: PartGrid) -> None:
        """Note what the folds of a tensor say of those that come after it."""
        shards = {at for at, fold in enumerate(folds) if fold.kind == SHARD}
        sums = {at for at, fold in enumerate(folds) if fold.kind == SUM}
        if item.part != OUTPUT:
            self.sharded[side].update(shards)
        if item.state_name and self.direction == FORWARD:
            shapes = self.writers[side].parameters.setdefault(self.pair[side].name, set())
            shapes.update(grid.shapes)
            self.maker.divided.update((side, at) for at in shards if grid.fixed[at] is None)
        if self.direction == BACKWARD and item.part == OUTPUT:
            linear = frozenset(at for at in sums if (side, at) not in self.maker.divided)
            if linear:
                self.writers[side].added[item.mark] = linear

    def _role(self, side: int, item: Item) -> Role:
        """Return what a tensor is to its record, of which ranks may have addends."""
        writer, call = self.writers[side], self.pair[side]
        axes = frozenset(range(len(writer.sizes(call))))
        whole = writer.reduced[call.occurrences[0].stage].get(item.mark)
        is_gradient = item.part == GRADIENTS_PART
        is_backward = self.direction == BACKWARD or is_gradient
        is_output = item.part == OUTPUT
        is_masked = bool(call.tail) and item.part == INPUT
        if whole is not None or is_gradient or (is_backward and (is_output or is_masked)):
            shapes = writer.parameters.get(call.name, ())
            is_parameter = is_gradient or (is_backward and is_output and item.shape in shapes)
            return Role(is_backward, axes, is_parameter, whole or None)
        if is_backward:
            return Role(True, writer.added.get(item.mark, frozenset()))
        if math.prod(item.shape or ()) == 1:
            return Role(False, axes)
        return Role(False, frozenset(self.sharded[side]) if is_output else frozenset())


# What a call gives is looked for behind the calls of its run alone where it is farther off, and found where it
# is nearer.
_SAME = 1e-4
_TIED = "stages of the pipeline have parts of the gradient of this shared parameter: not compared"
_NO_WHOLE = "the parts of the ranks make no whole of one shape: not compared"


def _is_masked_later(call: ModelCall, item: Item, grid: PartGrid) -> bool:
    """Return whether an output has rows that are masked only when they are added up: those of a distributed
    embedding for tokens that other ranks have."""
    is_sum = any(fold is not None and fold.kind == SUM for fold in grid.fixed)
    return is_sum and item.part == OUTPUT and call.view.family == "embedding"


def _without_values(element: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: each for name, each in element.items() if name not in (*_OF_VALUES, *_OF_PLACES)
    }


def _write_update(
    writers: Sequence[_Writer],
    maker: WholeMaker,
    pair: tuple[ModelCall, ModelCall],
    direction: str,
    number: int,
) -> None:
    """Write the update of an optimizer: its tensors are those of parameters, which stages and ranks share."""
    updates: list[Update] = []
    for writer, call in zip(writers, pair, strict=True):
        records = []
        for stage, name in call.occurrences:
            ranks = writer.run.layout.stages[stage].ranks
            records.append([writer._record(stage, rank, name, direction) or {} for rank in ranks])
        updates.append(update_of(records, [writer.run.layout.stages[at.stage] for at in call.occurrences]))
    made: tuple[dict[Any, dict[str, Any]], ...] = ({}, {})
    for place in updates[0].elements:
        if place not in updates[1].elements:
            continue
        grids = []
        for writer, update in zip(writers, updates, strict=True):
            stage, elements = update.elements[place]
            files = [writer.files[rank] for rank in stage.ranks]
            grids.append(PartGrid(stage.sizes, elements, files, list(_placed(elements[0], stage))))
        found = maker.make(grids[0], grids[1])
        for side in range(2):
            first = grids[side].elements[0]
            if found is None:
                made[side][place] = _without_values(first) | {GATHERED: _NO_WHOLE}
                continue
            values = (found.target, found.golden)[side]
            path = ".".join(map(str, place))
            folds = (found.way.target, found.way.golden)[side]
            stage = updates[side].elements[place][0]
            note = _words(folds, stage.ranks, found, is_target=side == 0)
            key = f"{pair[side].name}.{direction}"
            made[side][place] = writers[side].element(first, key, path, grids[side], values, note)
    for side in range(2):
        record = updates[side].record(made[side], updates[1 - side])
        writers[side].add(pair[side], direction, record, **{PAIR: number})


def _mates(
    target: Sequence[Item], golden: Sequence[Item]
) -> Iterator[tuple[Item | None, Item | None]]:
    """Yield the values of two records that belong together: those of one path, and parameters of one name."""
    theirs = {item.path: item for item in golden}
    names = {plain_name(item.state_name): item for item in golden if item.state_name}
    taken = set()
    for item in target:
        mate = theirs.get(item.path)
        named = names.get(plain_name(item.state_name)) if item.state_name else None
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


def _reduced_in(side: CaptureSide) -> dict[Any, Mapping[str, Any]]:
    """Return the tensors of a rank that a collective adds up later, by what tells their values, each with what
    the collective makes of it; {} where that is of another shape.

    Backward passes are linear in the gradient, and so are moves of values: what goes through them into a
    collective is an addend, too.
    """
    found: dict[Any, Mapping[str, Any]] = {}
    for entry in reversed(side.entries):
        name = entry.call.rpartition(".")[0]
        is_reduced = name.startswith("Distributed.") and any(
            part.startswith(_REDUCING) or part == "ddp_all_reduce" for part in name.split(".")[1:]
        )
        is_linear = entry.direction == BACKWARD or name.rpartition(".")[2].strip("_") in MOVES
        if not (is_reduced or (is_linear and found)):
            continue
        items = [item for item in side.items(entry) if item.is_tensor and item.norm is not None]
        given = [item for item in items if item.part == OUTPUT]
        if is_reduced:
            by_place = {item.path.partition(".")[2]: item for item in given}
            for item in items:
                if item.part == INPUT:
                    mate = by_place.get(item.path.partition(".")[2])
                    same = mate is not None and mate.shape == item.shape
                    found[item.mark] = mate.element or {} if mate is not None and same else {}
        elif any(item.mark in found for item in given):
            for item in items:
                if item.part == INPUT:
                    found.setdefault(item.mark, {})
    return found


def _placed(element: Mapping[str, Any], stage: LayoutStage) -> Iterator[Fold | None]:
    """Yield for each axis of a stage what the placements of a distributed tensor say of it, None for others."""
    placements, mesh = element.get("placements"), element.get("device_mesh")
    folds: dict[int, Fold | None] = {}
    if DISTRIBUTED in element and isinstance(placements, list) and isinstance(mesh, list):
        ranks = np.array(mesh)
        places = np.argwhere(ranks == stage.ranks[0])
        grid = np.array(stage.ranks).reshape(stage.sizes)
        for axis in range(grid.ndim):
            line = set(np.moveaxis(grid, axis, 0)[(slice(None), *[0] * (grid.ndim - 1))].tolist())
            for dim, placement in enumerate(placements):
                if not len(places) or dim >= ranks.ndim:
                    continue
                at: list[Any] = places[0].tolist()
                at[dim] = slice(None)
                if line <= set(ranks[tuple(at)].tolist()):
                    folds[axis] = _fold(placement)
    for axis in range(len(stage.sizes)):
        yield folds.get(axis)


def _fold(placement: Any) -> Fold | None:
    """Return the fold of a placement; None for a shard that is not in the order of its ranks (FSDP's of what
    tensor parallelism has sharded before), which a capture writes as a sum without an operation."""
    if isinstance(placement, dict):
        for name, said in placement.items():
            if "Shard" in name and isinstance(said, dict) and type(said.get("dim")) is int:
                return Fold(SHARD, said["dim"])
            if "Partial" in name:
                if isinstance(said, dict) and said.get("reduce_op") == "":
                    return None
                return Fold(SUM, 0, "avg" in json.dumps(said))
    return Fold(SUM) if "Partial" in str(placement) else Fold(REPLICA)


def _give_value(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], new: tuple[dict[int, dict[str, Any]], ...]
) -> None:
    """Give numbers of elements or heads, of which one side has a part, the number of the whole."""
    one, two = ours.get("value"), theirs.get("value")
    if type(one) is not int or type(two) is not int or one == two or min(one, two) < 1:
        return
    if max(one, two) % min(one, two) == 0:
        note = f"of the whole; each rank has {min(one, two)}"
        side, element = (0, ours) if one < two else (1, theirs)
        new[side][id(element)] = {**element, "value": max(one, two), GATHERED: note}


def _with_bias(record: dict[str, Any], bias: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a product with the bias that another call adds to it."""
    args = list(record.get("input_args") or [])
    if "input" in record:
        grads = [
            each
            for each in bias.get("output") or []
            if isinstance(each, dict) and len(each.get("shape") or ()) == 1
        ]
        return {
            **record,
            "input": bias.get("input", record["input"]),
            "output": [*(record.get("output") or []), *grads],
        }
    names = [
        each
        for each in bias.get("input_args") or []
        if isinstance(each, dict) and isinstance(each.get("parameter"), str)
    ]
    for each in names:
        if None in args[1:]:
            args[args.index(None, 1)] = each
        else:
            args.append(each)
    return {**record, "input_args": args, "output": bias.get("output", record.get("output"))}


def _rebuilt(value: Any, new: Mapping[int, dict[str, Any]]) -> Any:
    """Return a record with other elements in the places of those that are named by their identity."""
    if isinstance(value, dict):
        if id(value) in new:
            return new[id(value)]
        return {name: _rebuilt(each, new) for name, each in value.items()}
    if isinstance(value, list):
        return [_rebuilt(each, new) for each in value]
    return value


def _numbers(values: Values, dtype: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(values.statistics)
    if dtype.endswith("bool"):
        return {name: None if each is None else bool(each) for name, each in found.items()}
    return found


def _words(folds: Sequence[Fold], ranks: Sequence[int], found: Wholes, *, is_target: bool) -> str:
    """Return how a tensor was put together."""
    words = []
    for fold in folds:
        if fold.kind == SHARD:
            words.append(f"shards along dimension {fold.dim}")
        elif fold.kind == SUM:
            words.append("a mean" if fold.is_scaled else "a sum")
    said = f"put together of ranks {_ranges(ranks)}: {', '.join(words)}" if words else ""
    if found.is_unordered:
        said += "; the order of the parts is not known, so that statistics are compared"
    if is_target and found.odd:
        odd = _ranges(sorted({ranks[at] for at in found.odd}))
        said = "; ".join(filter(None, [said, f"it is rank {odd} that differs from the others"]))
    return said


def _ranges(ranks: Sequence[int]) -> str:
    known = sorted(set(ranks))
    if len(known) > 2 and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]}-{known[-1]}"
    return ", ".join(map(str, known))
