"""What travels from the driver to the workers of a comparison: its settings, and the records of a piece.

Goes out: frozen nouns. Called by the job, by its input files and by the rows that are made of a piece.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ray_precheck.commands.compare.mapping import Mapping
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.trace.difference.rows import ComparisonMode
from ray_precheck.trace.difference.unsteady import NEVER, Unsteady
from ray_precheck.trace.items import Item, items_of
from ray_precheck.trace.side import CaptureSide, RecordEntry, record_from_json


class SideRecords(NamedTuple):
    """The raw records of one side of a piece, each with its key."""

    records: tuple[tuple[str, bytes], ...] = ()

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
    """The settings of every worker of a comparison. `noise_folder` is None without a second golden run, and
    `unsteady` are the target's parameters that honest updates move by rounding alone, which the pieces from
    `unsteady_from` on may have got."""

    mode: ComparisonMode
    standard: str
    target_folder: Path
    golden_folder: Path
    noise_folder: Path | None = None
    same_framework: bool = True
    framework: str = ""
    mapping: Mapping = field(default_factory=Mapping)
    unsteady: Unsteady = field(default_factory=dict)
    unsteady_from: int = NEVER

    @property
    def folders(self) -> tuple[Path | None, ...]:
        """The folders of tensors of all sides."""
        return self.target_folder, self.golden_folder, self.noise_folder


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
