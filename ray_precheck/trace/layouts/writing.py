"""The whole capture of a run, while it is made: the records of its ranks read, and whole ones written.

Comes in: the calls of a run, and the elements that stand for their tensors. Goes out: the parts of a record
on all ranks, and a folder with a dump.json, sketches and files. Called by `together`.
"""

import itertools
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
from ray_precheck.trace.items import INPUT, OUTPUT, Item, items_of
from ray_precheck.trace.layouts.axes import LayoutStage
from ray_precheck.trace.layouts.parts import DISTRIBUTED, PartFiles, PartValues, are_replicas
from ray_precheck.trace.layouts.run_calls import MOVES, ModelCall, Occurrence, RecordPlace, RunCalls
from ray_precheck.trace.layouts.wholes import REPLICA, SHARD, SUM, AxisRole, Fold, PartGrid
from ray_precheck.trace.side import BACKWARD, FORWARD, GRADIENTS, CaptureSide, RecordEntry

GATHERED, OF_LAYOUT_FIELD = "gathered", "layout"
DIRECTIONS = (FORWARD, BACKWARD, "")
# What tells the values of a part, and is wrong of the whole.
_OF_VALUES = (*FIELDS, "md5", "data_name", "sketch", "sketch_exponent", "sketch_counted", "health")
_OF_PLACES = (DISTRIBUTED, "placements", "device_mesh")
_TENSORS = "dump_tensor_data"
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


class RecordParts(NamedTuple):
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
    order: RecordPlace


@dataclass(slots=True)
class WholeWriter:
    """The whole capture of a run, while it is made."""

    run: RunCalls
    folder: Path
    files: list[PartFiles] = field(init=False)
    written: list[_Written] = field(default_factory=list)
    reduced: list[dict[Any, Mapping[str, Any]]] = field(init=False)
    tied: set[Any] = field(default_factory=set)
    rooted: set[Any] = field(default_factory=set)
    added: dict[Any, frozenset[int]] = field(default_factory=dict)
    parameters: dict[Occurrence, set[tuple[int, ...]]] = field(default_factory=dict)
    undivided: dict[tuple[Occurrence, tuple[int, ...]], frozenset[int]] = field(
        default_factory=dict
    )
    _sketches: SketchFile = field(init=False)
    _names: dict[Occurrence, str] = field(default_factory=dict)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / _TENSORS).mkdir(parents=True)
        self.files = [PartFiles(side) for side in self.run.sides]
        self.reduced = [_reduced_in(self.run.sides[stage.first]) for stage in self.run.stages]
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
        names: dict[int, dict[str, None]] = {}
        for each in self.run.calls:
            for number, call in each.occurrences:
                names.setdefault(number, {})[call] = None
        for number in sorted(names):
            for call in names[number]:
                before, _, last = call.rpartition(".")
                at, name = int(last) if last.isdigit() else 0, call
                while name in taken:
                    at += 1
                    name = f"{before}.{at}" if last.isdigit() else f"{call}.{at}"
                taken.add(name)
                self._names[Occurrence(number, call)] = name

    def stage(self, call: ModelCall) -> LayoutStage:
        """Return the stage that makes a call."""
        return self.run.stages[call.occurrences[0].stage]

    def sizes(self, call: ModelCall) -> tuple[int, ...]:
        """Return the sizes of the axes over which the parts of a call's tensors are: those of the layout,
        and the parts of the batch."""
        times = len(call.occurrences)
        return (*self.stage(call).sizes, *((times,) if times > 1 else ()))

    def ranks(self, call: ModelCall) -> list[int]:
        """Return the rank of each part of a call's tensors."""
        return [rank for rank in self.stage(call).ranks for _ in call.occurrences]

    def parts(self, call: ModelCall, direction: str) -> RecordParts | None:
        """Return a record of a call on all ranks, None where it has none of this direction."""
        found: list[dict[str, Any]] = []
        first = self.stage(call).first
        if self.record_of(*call.occurrences[0], direction, rank=first) is None:
            return None
        for rank in self.stage(call).ranks:
            for at, (stage, name) in enumerate(call.occurrences):
                record = self.record_of(stage, name, direction, rank=rank) or {}
                if record and call.bias is not None:
                    bias = call.bias.occurrences[min(at, len(call.bias.occurrences) - 1)]
                    added = self.record_of(bias.stage, bias.call, direction, rank=rank)
                    record = _with_bias(record, added or {})
                found.append(record)
        entry = self.run.entry(call.occurrences[0].stage, first, call.name, direction)
        name = entry.key if entry is not None else ""
        several = [items_of(record, name) for record in found]
        lead = self.stage(call).ranks.index(first) * len(call.occurrences)
        by_path = [{item.path: item for item in items} for items in several]
        elements = {
            item.path: [
                each[item.path].element or {} if item.path in each else {} for each in by_path
            ]
            for item in several[lead]
        }
        return RecordParts(found[lead], several[lead], elements)

    def record_of(
        self, stage: int, call: str, direction: str, *, rank: int
    ) -> dict[str, Any] | None:
        """Return the record of a call on a rank, None where it has none."""
        entry = self.run.entry(stage, rank, call, direction)
        return None if entry is None else self.run.record(rank, entry)

    def grid(
        self,
        call: ModelCall,
        elements: Sequence[Mapping[str, Any]],
        role: AxisRole,
        *,
        is_copy: bool = False,
    ) -> PartGrid | None:
        """Return the parts of a tensor; None where a rank has none. Ranks that lack an expert have copies of
        its parameters and their gradients, and no rows of its tokens."""
        stage, ranks, sizes = self.stage(call), self.ranks(call), self.sizes(call)
        if not all("shape" in each for each in elements):
            if call.occurrences[0].stage not in self.run.homes:
                return None
            elements, ranks = _filled(elements, ranks, sizes, is_copy=is_copy)
        fixed: list[Fold | None] = list(placed_folds(elements[0], stage))
        fixed += [None] * (len(sizes) - len(fixed))
        return PartGrid(sizes, elements, [self.files[rank] for rank in ranks], fixed, role, ranks)

    def element(
        self,
        first: Mapping[str, Any],
        key: str,
        path: str,
        grid: PartGrid,
        values: PartValues,
        note: str,
    ) -> dict[str, Any]:
        """Return the element of a whole tensor, and write its file and its sketch."""
        found = without_values(first)
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
            buckets = (
                sketch(values.array) if values.array.dtype.kind in "fiub" and values.size else None
            )
        if buckets is not None:
            found |= json.loads(f"{{{self._sketches.append(buckets)}}}")
        return found

    def add(self, call: ModelCall, direction: str, record: dict[str, Any], **marks: Any) -> None:
        """Add a record under the name that its call has in the whole capture."""
        first = call.occurrences[0]
        rank = self.run.stages[first.stage].first
        entry = self.run.entry(first.stage, rank, first.call, direction)
        if entry is None:
            return
        record = {name: each for name, each in record.items() if name not in ("stack", "parent")}
        key = self.key(first.stage, entry)
        order = self.run.place(first.stage, entry)
        self.written.append(_Written(key, record | marks, entry, first.stage, order))

    def name(self, call: ModelCall) -> str:
        """Return the name of a call in the whole capture."""
        return self._names[call.occurrences[0]]

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
        marks = {OF_LAYOUT_FIELD: True} if call.is_of_layout else {}
        for occurrence in call.occurrences:
            single = ModelCall([occurrence], call.view)
            for direction in DIRECTIONS:
                parts = self.parts(single, direction)
                if parts is None:
                    continue
                new: dict[int, dict[str, Any]] = {}
                for item in parts.items:
                    if item.is_tensor and item.element is not None:
                        new[id(item.element)] = self.common(single, parts, item)
                self.add(single, direction, rebuilt(parts.record, new), **marks)

    def common(self, call: ModelCall, parts: RecordParts, item: Item) -> dict[str, Any]:
        """Return the element of a tensor that has no partner: what all ranks have is told."""
        elements = parts.elements[item.path]
        grid = self.grid(call, elements, AxisRole())
        first = elements[0]
        if grid is None or not all(are_replicas(each, first) for each in elements):
            return {name: each for name, each in first.items() if name not in _OF_VALUES}
        name = f"{self.name(call)}.{item.path}"
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
            entries = self.run.sides[stage.first].entries
            starts = [each.span.start for each in entries if each.direction == BACKWARD]
            begins.append(min(starts, default=math.inf))

        def place(each: _Written) -> tuple[int, int, RecordPlace]:
            home = self.run.home(each.stage)
            is_late = each.order.start >= begins[home] or each.entry.direction == BACKWARD
            return (1, -home, each.order) if is_late else (0, home, each.order)

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
            side = self.run.sides[self.run.stages[each.stage].first]
            if each.entry.key in side.stacks:
                stacks[str(number)] = [[each.key], side.stacks[each.entry.key]]
            modules[each.key] = side.modules.get(each.entry.key)
        for name, content in (("stack.json", stacks), ("construct.json", modules)):
            (self.folder / name).write_text(json.dumps(content), encoding="utf-8")


def _filled(
    elements: Sequence[Mapping[str, Any]],
    ranks: Sequence[int],
    sizes: Sequence[int],
    *,
    is_copy: bool,
) -> tuple[list[Mapping[str, Any]], list[int]]:
    """Return the elements of all ranks, and the rank that each is of: for those that lack the tensor a copy
    of the nearest that has it, or no rows of it."""
    places = list(itertools.product(*(range(size) for size in sizes)))
    having = [at for at, each in enumerate(elements) if "shape" in each]
    found, of = list(elements), list(ranks)
    for at, each in enumerate(elements):
        if "shape" in each:
            continue
        nearest = min(
            having,
            key=lambda other: sum(a != b for a, b in zip(places[at], places[other], strict=True)),
        )
        element = elements[nearest]
        if is_copy or not element["shape"]:
            found[at], of[at] = element, ranks[nearest]
        else:
            found[at] = without_values(element) | {"shape": [0, *element["shape"][1:]]}
    return found, of


def without_values(element: Mapping[str, Any]) -> dict[str, Any]:
    """Return an element without what tells its values, and where its part lies."""
    left = {name: each for name, each in element.items() if name not in (*_OF_VALUES, *_OF_PLACES)}
    return left | ({"shape": element[DISTRIBUTED]} if DISTRIBUTED in element else {})


def _reduced_in(side: CaptureSide) -> dict[Any, Mapping[str, Any]]:
    """Return the tensors of a rank that a collective adds up later, by what tells their values, each with
    what the collective makes of it; {} where that is of another shape.

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


def placed_folds(element: Mapping[str, Any], stage: LayoutStage) -> Iterator[Fold | None]:
    """Yield for each axis of a stage what the placements of a distributed tensor say of it, else None."""
    placements, mesh = element.get("placements"), element.get("device_mesh")
    folds: dict[int, Fold | None] = {}
    if DISTRIBUTED in element and isinstance(placements, list) and isinstance(mesh, list):
        ranks = np.array(mesh)
        places = np.argwhere(ranks == stage.ranks[0])
        grid = np.array(stage.ranks).reshape(stage.sizes)
        for axis in range(grid.ndim):
            line = set(np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis])[0].tolist())
            for dim, placement in enumerate(placements):
                if not len(places) or dim >= ranks.ndim:
                    continue
                at = [slice(int(each), int(each) + 1) for each in places[0]]
                at[dim] = slice(None)
                if line <= set(ranks[tuple(at)].reshape(-1).tolist()):
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
        if isinstance(each, dict) and len(each.get("shape") or ()) == 1
    ]
    for each in names:
        if None in args[1:]:
            args[args.index(None, 1)] = each
        else:
            args.append(each)
    return {**record, "input_args": args, "output": bias.get("output", record.get("output"))}


def rebuilt(value: Any, new: Mapping[int, dict[str, Any]]) -> Any:
    """Return a record with other elements in the places of those that are named by their identity."""
    if isinstance(value, dict):
        if id(value) in new:
            return new[id(value)]
        return {name: rebuilt(each, new) for name, each in value.items()}
    if isinstance(value, list):
        return [rebuilt(each, new) for each in value]
    return value


def _numbers(values: PartValues, dtype: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(values.statistics)
    if dtype.endswith("bool"):
        return {name: None if each is None else bool(each) for name, each in found.items()}
    return found
