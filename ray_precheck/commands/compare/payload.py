"""What travels from the driver to the workers of a comparison: its settings, the records of a piece, and
its files of tensors, for workers on machines that do not see their folders.

Goes out: frozen nouns, and the reader of files, which the runtime's shipper calls on a thread of its own. A
file is named by its side, `target/Torch.add.0.forward.input.0.pt`. Called by the jobs of `compare` and
`locate`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from ray_precheck.commands.compare.mapping import NameMapping
from ray_precheck.dump.tensors import FolderFiles, Shipped, ShippedFiles, TensorFiles
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.task import Task
from ray_precheck.trace.difference.row import ComparisonMode
from ray_precheck.trace.difference.unsteady import NEVER, Unsteady
from ray_precheck.trace.items import Item, items_of
from ray_precheck.trace.side import CaptureSide, RecordEntry, record_from_json

TARGET, GOLDEN, NOISE = "target", "golden", "noise"
Records = tuple[tuple[str, bytes], ...]


class SideRecords(NamedTuple):
    """The raw records of one side of a piece, each with its key."""

    records: Records = ()

    @classmethod
    def of(cls, side: CaptureSide, entries: Iterable[RecordEntry]) -> "SideRecords":
        """Read the records of a capture."""
        return cls(tuple([(entry.key, side.raw(entry)) for entry in entries]))

    def decoded(self) -> list["KeyedItems"]:
        """Return the values of each record with its key."""
        return [KeyedItems(key, items_of(record_from_json(raw), key)) for key, raw in self.records]


class KeyedItems(NamedTuple):
    """A record of one side: its key and its values."""

    key: str = ""
    items: Sequence[Item] = ()


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """The settings of every worker of a comparison. `folders` are those of the tensors of
    each side, of which `NOISE` is there with a second golden run alone.
    `unsteady` are the target's parameters that honest updates move by rounding alone, which the pieces from
    `unsteady_from` on may have got."""

    mode: ComparisonMode
    standard: str
    folders: Mapping[str, Path]
    same_framework: bool = True
    framework: str = ""
    mapping: NameMapping = field(default_factory=NameMapping)
    unsteady: Unsteady = field(default_factory=dict)
    unsteady_from: int = NEVER


@pickled_by_position
@dataclass(frozen=True, slots=True)
class ComparisonPayload:
    """A piece on its way to a worker: the raw records of both sides, and of the second golden run. Of one
    backward call on each side `saved` are their forward records, else none."""

    index: int
    name: str
    type_name: str
    how: str
    note: str
    target: SideRecords
    golden: SideRecords
    noise: SideRecords
    module: str
    stack: tuple[str, ...]
    saved: tuple[SideRecords, SideRecords] = (SideRecords(), SideRecords())

    def by_side(self) -> dict[str, Records]:
        """Return all records by their sides."""
        saved = [each.records for each in self.saved]
        return {
            TARGET: self.target.records + saved[0],
            GOLDEN: self.golden.records + saved[1],
            NOISE: self.noise.records,
        }


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files of one piece that were read on another machine, by the side that they are of."""

    files: Mapping[str, Mapping[str, Any]]

    def folders(self) -> dict[str, TensorFiles]:
        """Return them as the folders that they come from."""
        sides = (TARGET, GOLDEN, NOISE)
        return {side: ShippedFiles(self.files.get(side, {})) for side in sides}


class ComparisonInputFiles:
    """Reads captured files of all sides for other machines; `records` returns the raw records of a task by
    their sides, which have these `folders`."""

    def __init__(
        self, records: Callable[[Task], Mapping[str, Records]], folders: Mapping[str, Path]
    ) -> None:
        self._records = records
        self._folders = {side: FolderFiles(folder) for side, folder in folders.items()}

    @property
    def folder(self) -> Path:
        """The folder of the target's files, for messages."""
        return self._folders[TARGET].folder

    def limits(self, task: Task, most_bytes: int) -> Mapping[str, int]:
        """Return the files of a task by name; each may have `most_bytes`."""
        return {
            f"{side}/{item.file}": most_bytes
            for side, records in self._records(task).items()
            for key, raw in records
            for item in items_of(record_from_json(raw), key)
            if item.file
        }

    def size_bytes(self, name: str) -> int:
        """Return how many bytes a file has; 0 where it cannot be read."""
        folder, inner = self._place(name)
        return folder.size_bytes(inner)

    def ship(self, name: str, limit_bytes: int) -> Shipped:
        """Read a file; returns its content, or why it is not sent."""
        folder, inner = self._place(name)
        return folder.ship(inner, limit_bytes)

    def packed(self, content: Mapping[str, Any]) -> PairFiles:
        """Return the files of one task as its runner reads them."""
        sides: dict[str, dict[str, Any]] = {}
        for name, each in content.items():
            side, _, inner = name.partition("/")
            sides.setdefault(side, {})[inner] = each
        return PairFiles(sides)

    def _place(self, name: str) -> tuple[FolderFiles, str]:
        side, _, inner = name.partition("/")
        return self._folders[side], str(PurePath(inner))
