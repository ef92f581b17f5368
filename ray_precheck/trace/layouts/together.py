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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.dump.tensors import SketchFile
from ray_precheck.numerics.sketch import sketch
from ray_precheck.numerics.statistics import FIELDS
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
    for number, pair in enumerate(found.pairs):
        for direction in _DIRECTIONS:
            _write_pair(writers, maker, pair, direction, number)
    for writer, alone in zip(writers, found.alone, strict=True):
        for call in alone:
            writer.add_alone(call)
        writer.finish()
    return known[0], known[1]


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
    _sketches: SketchFile = field(init=False)
    _names: dict[Occurrence, str] = field(default_factory=dict)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / _TENSORS).mkdir(parents=True)
        self.files = [PartFiles(side) for side in self.run.sides]
        self.reduced = [
            _reduced_in(self.run.sides[stage.ranks[0]]) for stage in self.run.layout.stages
        ]
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
                    record = _with_bias(record, self._record(*bias[:1], rank, bias.call, direction) or {})
                found.append(record)
        key = self.run.sides[self.stage(call).ranks[0]]
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
        del key
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
        found = {
            name: each for name, each in first.items() if name not in (*_OF_VALUES, *_OF_PLACES)
        }
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
        if buckets is not None and (same is None or not DISTRIBUTED in same):
            found |= json.loads(f"{{{self._sketches.append(buckets)}}}")
        elif buckets is not None:
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
                        new[id(item.element)] = self._common(single, parts, item)
                self.add(single, direction, _rebuilt(parts.record, new), **marks)

    def _common(self, call: ModelCall, parts: _Parts, item: Item) -> dict[str, Any]:
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
        header = {
            "task": first.task, "level": first.level, "framework": first.framework,
            "dump_data_dir": None,
        }  # fmt: skip
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
    sides = [writer.parts(call, direction) for writer, call in zip(writers, pair, strict=True)]
    if sides[0] is None or sides[1] is None:
        for writer, call, parts in zip(writers, pair, sides, strict=True):
            if parts is not None:
                writer.add(call, direction, _rebuilt(parts.record, {}), **{PAIR: number})
        return
    if pair[0].name.startswith(UPDATE):
        _write_update(writers, maker, pair, direction, number)
        return
    new: tuple[dict[int, dict[str, Any]], ...] = ({}, {})
    keys = [f"{call.name}.{direction}" for call in pair]
    sharded: tuple[set[int], set[int]] = (set(), set())
    for item, mate in _mates(sides[0].items, sides[1].items):
        if item is None or mate is None or item.element is None or mate.element is None:
            for side, each in enumerate((item, mate)):
                if each is not None and each.element is not None and each.is_tensor:
                    new[side][id(each.element)] = writers[side]._common(pair[side], sides[side], each)
            continue
        if not (item.is_tensor and mate.is_tensor):
            _give_value(item.element, mate.element, new)
            continue
        both, grids = (item, mate), []
        for side in range(2):
            elements = sides[side].elements[both[side].path]
            role = _role(writers[side], pair[side], both[side], direction, sharded[side])
            grids.append(writers[side].grid(pair[side], elements, role))
        found = None if None in grids else maker.make(grids[0], grids[1])
        for side in range(2):
            first = both[side].element or {}
            if found is None:
                left = {name: each for name, each in first.items() if name not in (*_OF_VALUES, *_OF_PLACES)}
                new[side][id(first)] = left | {GATHERED: "the parts of the ranks make no whole of one shape"}
                continue
            folds = (found.way.target, found.way.golden)[side]
            if both[side].part != OUTPUT:
                sharded[side].update(at for at, fold in enumerate(folds) if fold.kind == SHARD)
            note = _note(writers[side], pair[side], found, folds, is_target=side == 0)
            new[side][id(first)] = writers[side].element(
                first, keys[side], both[side].path, grids[side], (found.target, found.golden)[side], note
            )
    for side in range(2):
        writers[side].add(pair[side], direction, _rebuilt(sides[side].record, new[side]), **{PAIR: number})


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
                made[side][place] = {
                    name: each for name, each in first.items() if name not in (*_OF_VALUES, *_OF_PLACES)
                }
                continue
            values = (found.target, found.golden)[side]
            path = ".".join(map(str, place))
            folds = (found.way.target, found.way.golden)[side]
            stage = updates[side].elements[place][0]
            note = _words(folds, stage.ranks, found, side == 0)
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


def _role(
    writer: _Writer, call: ModelCall, item: Item, direction: str, sharded: set[int]
) -> Role:
    axes = frozenset(range(len(writer.sizes(call))))
    whole = writer.reduced[call.occurrences[0].stage].get(item.mark)
    is_gradient = item.part == GRADIENTS_PART
    is_backward = direction == BACKWARD or is_gradient
    if whole is not None or is_gradient or (direction == BACKWARD and item.part == OUTPUT):
        return Role(is_backward, axes, whole or None)
    is_number = math.prod(item.shape or ()) == 1 and direction != BACKWARD
    if is_number:
        return Role(is_backward, axes)
    return Role(is_backward, frozenset(sharded) if item.part == OUTPUT else frozenset())


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
    folds: dict[int, Fold] = {}
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


def _fold(placement: Any) -> Fold:
    if isinstance(placement, dict):
        for name, said in placement.items():
            if "Shard" in name and isinstance(said, dict) and type(said.get("dim")) is int:
                return Fold(SHARD, said["dim"])
            if "Partial" in name:
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
        shapes = [each.get("shape") for each in record.get("output") or [] if isinstance(each, dict)]
        grads = [
            each
            for each in bias.get("output") or []
            if isinstance(each, dict) and len(each.get("shape") or ()) == 1
        ]
        del shapes
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
    return {**record, "input_args": [*args, *names], "output": bias.get("output", record.get("output"))}


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


def _note(
    writer: _Writer, call: ModelCall, found: Wholes, folds: Sequence[Fold], *, is_target: bool
) -> str:
    return _words(folds, writer.ranks(call), found, is_target)


def _words(folds: Sequence[Fold], ranks: Sequence[int], found: Wholes, is_target: bool) -> str:
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
