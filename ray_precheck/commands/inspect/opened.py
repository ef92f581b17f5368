"""A capture in hand: its operators by name, their records, their tensors, and what tools know beyond.

Comes in: the path that a user names. Goes out: an `OpenedCapture`. Called by the words. Records are read when
they are asked for. What a format knows beyond records stands in two places: the field `operator` of a record
(`{"type", "name", "attributes", "origins", "graph"}`), and `tool.json` beside the dump (`{"format", "source",
"overflow", "fusions"}`).
"""

import difflib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from ray_precheck.commands.inspect.index import CaptureIndex, Pattern, key_pattern, open_index
from ray_precheck.dump.folders import one_dump, standing_for
from ray_precheck.dump.mapped import MappedTensors, read_plain_tensor
from ray_precheck.dump.tensors import UNREADABLE, unreadable
from ray_precheck.errors import DumpError, NotCheckable, UsageError
from ray_precheck.foreign import open_file, read_file, shown
from ray_precheck.formats.conversion import as_our_dump
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.difference.measuring import open_item
from ray_precheck.trace.flow import Flow, FlowRecord, flow_of
from ray_precheck.trace.items import OUTPUT, Item
from ray_precheck.trace.side import API, MODULE, CaptureSide, RecordEntry, header_of

TOOL_FILE = "tool.json"
_LARGEST_TOOL_BYTES = 64 << 20
# What `trace.difference` looks at to know what a capture has.
_FIRST = 200
# How far the data flow is followed: so many records are read in a second (measured on 2026-11-28).
WINDOW = 20_000
_NEAREST, _LEAST_ALIKE = 5, 60.0
# How many files of a foreign capture are looked at for a bare name.
_MOST_FILES = 200_000
_TENSOR_SUFFIXES = (".npy", ".pt")


class Operator(NamedTuple):
    """What a tool knows of the operator of a record; empty for captures of frameworks."""

    type_name: str = ""
    name: str = ""
    graph: str = ""
    attributes: Mapping[str, Any] = {}
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A tensor that was found by a name: what it is called, the file, its values in their shape."""

    name: str
    path: Path
    values: Array
    dtype: str


@dataclass
class OpenedCapture:
    """A capture; `path` is what the user named, `dump` what it is read as."""

    path: Path
    dump: Path
    index: CaptureIndex
    side: CaptureSide
    _held: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Close its file."""
        self._held.close()

    def __enter__(self) -> "OpenedCapture":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def tool(self) -> Mapping[str, Any]:
        """What the tool that made the capture knows beyond records; {} where nothing does."""
        path = self.dump.parent / TOOL_FILE
        try:
            if path.stat().st_size > _LARGEST_TOOL_BYTES:
                return {}
            found = orjson.loads(read_file(path))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def entry(self, row: int) -> RecordEntry:
        """Return a record's key, kind and place."""
        return self.index.entry(row)

    def record(self, row: int) -> Mapping[str, Any]:
        """Return a record, decoded."""
        return self.side.record(self.entry(row))

    def items(self, row: int) -> list[Item]:
        """Return the values of a record."""
        return self.side.items(self.entry(row))

    def operator(self, row: int) -> Operator:
        """Return what a tool knows of the operator of a record."""
        if not self.has_operators:
            return Operator()
        found = self.record(row).get("operator")
        found = found if isinstance(found, dict) else {}
        attributes, origins = found.get("attributes"), found.get("origins")
        return Operator(
            str(found.get("type") or ""),
            str(found.get("name") or ""),
            str(found.get("graph") or ""),
            attributes if isinstance(attributes, dict) else {},
            tuple(map(str, origins)) if isinstance(origins, list) else (),
        )

    @cached_property
    def has_operators(self) -> bool:
        """Whether the capture is another tool's, whose records have operators."""
        return any("operator" in self.record(row) for row in range(min(len(self.index), _FIRST)))

    @cached_property
    def operators(self) -> Sequence[Operator]:
        """The operators of all records; [] for captures of frameworks, whose keys have the names."""
        if not self.has_operators:
            return []
        return [self.operator(row) for row in range(len(self.index))]

    def type_name(self, row: int) -> str:
        """Return the type of an operator: `MatMulV2`, `Torch.add`, of a module its class."""
        own = self.operators[row].type_name if self.operators else ""
        return own or self.index.all_patterns[self.index.patterns[row]].type_name

    def name(self, row: int) -> str:
        """Return what an operator is called: by its tool, else by its key."""
        own = self.operators[row].name if self.operators else ""
        return own or self.index.key(row)

    @cached_property
    def names(self) -> Sequence[str]:
        """The distinct names of operators and modules, without the numbers of calls."""
        found = {pattern.name for pattern in self.index.all_patterns}
        found.update(operator.name for operator in self.operators)
        found.update(map(module_path, self.index.all_modules))
        return sorted(found - {""})

    def rows_of(self, name: str) -> list[int]:
        """Return the records that a name means: a key, a call (forward and backward), an operator.

        Raises:
            UsageError: there is none; names the nearest.
        """
        whole = self.index.row(name)
        if whole is not None:
            return [whole]
        places = [self.index.row(f"{name}.{direction}") for direction in ("forward", "backward")]
        found = [place for place in places if place is not None] or self._rows_of_module(name)
        if not found:
            # precision_tool's files have the names with these signs in the place of `/` and `.`.
            flat = _flat(name)
            found = [row for row, each in enumerate(self.operators) if _flat(each.name) == flat]
        if not found:
            near = self.nearest(name)
            told = f"; nearest: {', '.join(near)}" if near else ""
            raise UsageError(f"{shown(name)} is no operator of {self.path}{told} (`ls` lists them)")
        return found

    def _rows_of_module(self, name: str) -> list[int]:
        """Return the records of a module, which are called `Module.layers.0.Linear.forward.0`."""
        before, _, number = name.rpartition(".")
        places = [self.index.row(f"{before}.{each}.{number}") for each in ("forward", "backward")]
        return [place for place in places if place is not None]

    def nearest(self, name: str) -> list[str]:
        """Return names that are like one that is not there, with its number where they have one."""
        pattern, number = key_pattern(name)
        if not pattern.tail:
            pattern, number = key_pattern(f"{name}.forward")
        names = self.names
        found = likest_names(pattern.name, names, _NEAREST)
        told = []
        for each in found:
            numbered = [
                other.key(number)
                for other in (Pattern(f"{each}.", ".forward"), Pattern(f"{each}."))
                if number >= 0 and self.index.row(other.key(number)) is not None
            ]
            told.append(numbered[0].removesuffix(".forward") if numbered else each)
        return told

    def source(self, row: int) -> str:
        """Return the model's line of source that led to a record, "" where it is not known."""
        from ray_precheck.trace.sources import source_lines

        key = self.index.key(row)
        return source_lines(self.dump, [key]).get(key, "")

    def modules_around(self, row: int) -> list[str]:
        """Return the keys of the modules around a record, the innermost first."""
        from ray_precheck.trace.sources import Modules

        known = Modules(self.dump.parent)
        found, key = [], self.index.module(row) or known.of(self.index.key(row))
        while key and key not in found:
            found.append(key)
            key = known.of(key)
        return found

    def flow(
        self, first: int, last: int, kinds: Collection[str] = (API,)
    ) -> tuple[list[FlowRecord], Flow]:
        """Return the records from `first` to before `last`, and who gave which value to which of them."""
        records = [
            FlowRecord(entry, self.side.items(entry))
            for entry in map(self.entry, range(max(0, first), min(last, len(self.index))))
            if entry.kind in kinds
        ]
        return records, flow_of(records)

    def window(self, row: int, before: int, after: int) -> tuple[list[FlowRecord], Flow]:
        """Return the data flow around a record; modules are followed among modules alone, whose outputs
        are those of calls within them, too."""
        kind = self.entry(row).kind
        return self.flow(
            row - before, row + after + 1, (MODULE,) if kind == MODULE else (kind, API)
        )

    @cached_property
    def whole(self) -> CaptureSide:
        """The capture with all its entries, as comparisons read it."""
        return replace(self.side, entries=[self.entry(row) for row in range(len(self.index))])

    def tensor(self, name: str) -> TensorFile:
        """Return a tensor by the name of a value (`Torch.add.0.forward.input.0`), or by that of a file.

        A path names the file there; a bare name is looked for in the folder of the capture's tensors, then
        in the folders of the tool's capture.

        Raises:
            UsageError: nothing is called so.
            NotCheckable: the file cannot be read.
        """
        path = Path(name)
        if path.suffix in _TENSOR_SUFFIXES:
            for found in self._files_called(path):
                return read_tensor(found, name)
        row, item = self.item(name)
        if item.file and self.side.data_folder.is_dir():
            opened = open_item(item, MappedTensors(self.side.data_folder, is_mapped=False))
            values = opened.carrier(opened.raw).reshape(opened.shape)
            where = self.side.data_folder / item.file
            return TensorFile(f"{self.index.key(row)}.{item.path}", where, values, opened.dtype)
        raise UsageError(
            f"the capture has no file of {name}, only its statistics (`ni {self.index.key(row)}` shows"
            " them); capture with --task tensor"
        )

    def item(self, name: str) -> tuple[int, Item]:
        """Return a value of a record by its name, and the place of the record; a record alone stands for its
        first output.

        Raises:
            UsageError: there is none.
        """
        parts = name.split(".")
        for cut in range(len(parts), 1, -1):
            row = self.index.row(".".join(parts[:cut]))
            if row is None:
                continue
            path = ".".join(parts[cut:])
            items = self.items(row)
            outputs = [item for item in items if item.part == OUTPUT and item.is_tensor]
            if not path and outputs:
                return row, outputs[0]
            for item in items:
                if item.path == path:
                    return row, item
            known = ", ".join(item.path for item in items if item.is_tensor)
            raise UsageError(f"{'.'.join(parts[:cut])} has no value {shown(path)}; it has: {known}")
        rows = self.rows_of(name) if Path(name).suffix not in _TENSOR_SUFFIXES else []
        for row in rows:
            for item in self.items(row):
                if item.part == OUTPUT and item.is_tensor:
                    return row, item
        raise UsageError(
            f"{shown(name)} is no tensor: no file of this name is here, in {self.side.data_folder} or in"
            f" {self.path}; name a value such as {self.index.key(0)}.input.0, or a file"
        )

    def _files_called(self, path: Path) -> Iterator[Path]:
        if path.is_file():
            yield path
            return
        if len(path.parts) != 1:
            return
        beside = self.side.data_folder / path
        if beside.is_file() and beside.resolve().is_relative_to(self.side.data_folder.resolve()):
            yield beside
        source = self.tool.get("source")
        roots = [Path(str(source))] if source else []
        roots += [self.path] if self.path.is_dir() and self.dump.parent != self.path else []
        for root in roots:
            yield from _below(root, path.name)


def _below(root: Path, name: str) -> Iterator[Path]:
    looked_at = 0
    for folder, _, names in os.walk(root):
        looked_at += len(names)
        if name in names:
            yield Path(folder, name)
        if looked_at > _MOST_FILES:
            return


def _flat(name: str) -> str:
    return name.replace("/", "_").replace(".", "_")


def module_path(key: str) -> str:
    """Return the path of a module by the key of its record: `layers.0` of
    `Module.layers.0.Linear.forward.0`."""
    return key_pattern(key)[0].name.partition(".")[2].rpartition(".")[0] if key else ""


def likest_names(name: str, names: Sequence[str], most: int) -> list[str]:
    """Return the names that are most like one: those that hold it, the shortest first, then by likeness."""
    lower = name.lower()
    holding = sorted((each for each in names if lower in each.lower()), key=len)[:most]
    if len(holding) >= most:
        return holding
    others = [each for each in names if each not in holding]
    if find_spec("rapidfuzz") is not None:
        from rapidfuzz import fuzz, process

        ranked = process.extract(
            name,
            others,
            scorer=fuzz.WRatio,
            limit=most - len(holding),
            score_cutoff=_LEAST_ALIKE,
            processor=str.lower,
        )
        return holding + [each for each, _, _ in ranked]
    return holding + difflib.get_close_matches(
        name, others, most - len(holding), _LEAST_ALIKE / 100
    )


def read_tensor(path: Path, name: str = "") -> TensorFile:
    """Return the tensor in a file of NumPy or of torch.

    Raises:
        NotCheckable: it is none, it is cut, or it holds something else than plain numbers.
    """
    try:
        with open_file(path) as opened:
            if path.suffix == ".npy":
                # Mapped, so that a header that lies about the shape takes no memory.
                values: Array = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]
                return TensorFile(name or path.name, path, values, str(values.dtype))
            plain = read_plain_tensor(opened, is_mapped=False)
    except UNREADABLE as error:
        raise unreadable(str(path), error) from None
    if plain is None:
        raise NotCheckable(
            f"{path.name} is no plain tensor of torch.save; name it as a value of a record, whose dtype and"
            " shape the dump knows"
        )
    raw = plain.raw
    if plain.dtype == "bfloat16":
        raw = (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return TensorFile(name or path.name, path, raw.reshape(plain.shape), plain.dtype)


def open_capture(path: Path, instead: str = "") -> OpenedCapture:
    """Open a capture of ours, msprobe's or of another tool.

    Raises:
        DumpError: there is none, or it cannot be read.
        UsageError: the path names several; names one of them.
    """
    dump = standing_for(one_dump(as_our_dump(path), instead))
    held = ExitStack()
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open_file(dump))
            index = open_index(dump, file)
            side = CaptureSide(dump, file, header_of(file, index.members), log=index.log)
            side.entries = [index.entry(row) for row in range(min(len(index), _FIRST))]
            held = stack.pop_all()
    except OSError as error:
        raise DumpError(f"cannot read the dump {dump}: {error.strerror or error}") from None
    return OpenedCapture(path, dump, index, side, held)
