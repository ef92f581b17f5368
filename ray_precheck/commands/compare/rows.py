"""The rows of one piece of a comparison: decoded, paired, measured, judged and encoded.

Comes in: the payload of a piece, and how its captures are read. Goes out: `PieceRows`. Called by the runner
of a comparison, and by its job for a piece that no worker answered for.

What travels from the driver to the workers of a comparison: its settings, the records of a piece, and its
files of tensors, for workers on machines that do not see their folders. A file is named by its side,
`target/Torch.add.0.forward.input.0.pt`.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from ray_precheck.commands.compare.inside import ParameterGaps, give_gaps
from ray_precheck.commands.compare.pairing import NameMapping
from ray_precheck.commands.compare.told import (
    OF_PARAMETER,
    asked_of_both,
    name_parameters,
    of_one_run,
)
from ray_precheck.dump.tensors import FolderFiles, Shipped, ShippedFiles, TensorFiles
from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.operators.table import with_name
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.task import Task
from ray_precheck.trace.difference.measuring import Reading, rows_of_operators
from ray_precheck.trace.difference.rows import (
    ERROR,
    NOT_THERE,
    PASS,
    UNMATCHED,
    WARNING,
    ComparisonMode,
    TensorRow,
    cells,
    encode_rows,
)
from ray_precheck.trace.difference.standards.base import CaptureStandard
from ray_precheck.trace.difference.standards.registry import judge_rows
from ray_precheck.trace.difference.unsteady import NEVER, Unsteady
from ray_precheck.trace.items import OUTPUT, Item, items_of
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
    `unsteady_from` on may have got, `gaps` those that are apart before an update, by name."""

    mode: ComparisonMode
    standard: str
    folders: Mapping[str, Path]
    same_framework: bool = True
    framework: str = ""
    mapping: NameMapping = field(default_factory=NameMapping)
    unsteady: Unsteady = field(default_factory=dict)
    unsteady_from: int = NEVER
    gaps: ParameterGaps = field(default_factory=dict)
    max_err: float | None = None


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


_INSIDE = "between the operators of a fusion, of which the other side has one"
_NOT_MAPPED = "the file of -am lists no partner for it"


class PieceRows(NamedTuple):
    """The rows of a piece, encoded, and what its row in the table of calls says of them."""

    result: str
    rows: int
    errors: int
    warnings: int
    unmatched: int
    relative_l2: str
    message: str
    encoded: bytes


@dataclass(frozen=True, slots=True)
class PieceReading:
    """How a piece is read: both captures; and for its noise the golden one and the second golden run."""

    pair: Reading
    noise: Reading | None = None

    def read_whole(self) -> "PieceReading":
        """Return a reading that maps no file into memory."""
        noise = self.noise.read_whole() if self.noise is not None else None
        return PieceReading(self.pair.read_whole(), noise)


def rows_of_piece(
    payload: ComparisonPayload,
    standard: CaptureStandard,
    settings: ComparisonSettings,
    reading: PieceReading,
) -> PieceRows:
    """Return the rows of a piece: every value of its records on both sides is in one."""
    target, golden = payload.target.decoded(), payload.golden.decoded()
    if not (target and golden):
        rows = _lone_rows(target, golden, reading.pair)
        told = of_one_run(payload.target.records, payload.golden.records, payload.module)
        _mark(rows, UNMATCHED, told or payload.note)
        return _piece_rows(payload, rows, reading.pair.mode, told)
    inner: list[TensorRow] = []
    if len(target) == len(golden) == 1:
        rows, inner = _rows_of_pair(
            target[0], golden[0], settings.mapping, reading.pair, payload.type_name
        )
    else:
        rows, inner = rows_of_fusion(target, golden, reading.pair)
    _give_saved(rows, payload, reading.pair)
    for row in rows if settings.unsteady else ():
        row.slack = settings.unsteady.get(row.item.mark, 0.0)
        row.is_late = payload.index >= settings.unsteady_from
    if len(target) == 1:
        give_gaps(target[0].key, rows, settings.gaps)
    noise: list[float | None] | None = None
    if reading.noise is not None and payload.noise.records and len(golden) == 1:
        noise = _noise(rows, golden[0], payload.noise.decoded()[0], reading.noise)
    judge_rows(rows, standard, reading.pair.mode, noise)
    for row in rows:
        if row.result in (ERROR, WARNING) and (note := row.item.put_together):
            row.messages.append(note)
    name_parameters(rows, target[0].items)
    told = asked_of_both(payload.target.records, payload.golden.records)
    if told and rows:
        rows[0].messages.append(told)
    return _piece_rows(payload, [*rows, *inner], reading.pair.mode, told)


def _give_saved(rows: Sequence[TensorRow], payload: ComparisonPayload, reading: Reading) -> None:
    """Give the rows of a backward call those of its forward record, whose files are read when a row that may
    be an error asks for them: most do not."""
    if not (payload.saved[0].records and payload.saved[1].records):
        return

    @cache
    def saved() -> Sequence[TensorRow]:
        (own,), (other,) = (side.decoded() for side in payload.saved)
        return rows_of_operators(own.key, other.key, own.items, other.items, reading)

    for row in rows:
        row.saved = saved


def unread_rows(
    payload: ComparisonPayload, mode: ComparisonMode, result: str, reason: str
) -> PieceRows:
    """Return the rows of a piece that could not be compared, each with the reason."""
    rows = _lone_rows(payload.target.decoded(), payload.golden.decoded(), Reading(mode))
    _mark(rows, result, reason)
    return _piece_rows(payload, rows, mode)


def _lone_rows(
    target: Sequence[KeyedItems], golden: Sequence[KeyedItems], reading: Reading
) -> list[TensorRow]:
    """Return a row for each value of records that have no partner."""
    rows: list[TensorRow] = []
    for record in target:
        rows += rows_of_operators(record.key, "", record.items, (), reading)
    for record in golden:
        rows += rows_of_operators("", record.key, (), record.items, reading)
    return rows


def _rows_of_pair(
    target: KeyedItems, golden: KeyedItems, mapping: NameMapping, reading: Reading, type_name: str
) -> tuple[list[TensorRow], list[TensorRow]]:
    """Return the rows of two records, and those of values that a mapping says have no partner."""
    if mapping.is_empty:
        return rows_of_operators(target.key, golden.key, target.items, golden.items, reading), []
    renamed: dict[int, Item] = {}
    paired: list[Item] = []
    left: list[Item] = []
    for item in target.items:
        path = mapping.partner(type_name, target.key, item)
        if path == "":
            left.append(item)
            continue
        other = item if path is None else item._replace(path=path.removeprefix(f"{golden.key}."))
        renamed[id(other)] = item
        paired.append(other)
    rows = rows_of_operators(target.key, golden.key, paired, golden.items, reading)
    for row in rows:
        if row.target is not None:
            row.target = renamed[id(row.target)]
            row.target_name = _named(target.key, row.target)
    alone = rows_of_operators(target.key, "", left, (), reading)
    _mark(alone, UNMATCHED, _NOT_MAPPED)
    return rows, alone


def rows_of_fusion(
    target: Sequence[KeyedItems], golden: Sequence[KeyedItems], reading: Reading
) -> tuple[list[TensorRow], list[TensorRow]]:
    """Return the rows of n records against one: inputs with inputs, the outputs of the last ones; and of
    the values that are inside of the n records alone. Where both sides say which tensors of the model their
    outputs are, the outputs are those that both have, whatever records gave them."""
    shared = _origins(target) & _origins(golden)
    ours, ours_inside = _border(target, shared)
    theirs, theirs_inside = _border(golden, shared)
    rows = rows_of_operators("", "", ours, theirs, reading)
    inner = rows_of_operators("", "", ours_inside, (), reading)
    inner += rows_of_operators("", "", (), theirs_inside, reading)
    # Inputs of the n records that the one record does not have come from inside, too.
    border = [row for row in rows if row.is_matched or row.is_output]
    inner += [row for row in rows if not (row.is_matched or row.is_output)]
    for row in (*border, *inner):
        row.target_name = row.target.path if row.target is not None else NOT_THERE
        row.golden_name = row.golden.path if row.golden is not None else NOT_THERE
    _mark(inner, UNMATCHED, _INSIDE)
    return border, inner


def _origins(records: Sequence[KeyedItems]) -> set[str]:
    """Return the tensors of the model that records give."""
    every = (item for record in records for item in record.items if item.part == OUTPUT)
    return {item.origin for item in every if item.origin}


def _border(
    records: Sequence[KeyedItems], shared: Collection[str]
) -> tuple[list[Item], list[Item]]:
    """Return the values at the border of several records, and those inside: outputs of all but the last one,
    or, where there are any, all but the `shared` ones, and inputs that an earlier one gave. Their paths are
    whole names."""
    border: list[Item] = []
    inside: list[Item] = []
    given: set[Hashable] = set()
    for place, record in enumerate(records):
        is_last = place + 1 == len(records)
        outputs = {_values(item) for item in record.items if item.part == OUTPUT}
        for item in record.items:
            if item.part != OUTPUT:
                is_inside = _values(item) in given
            else:
                is_inside = item.origin not in shared if shared else not is_last
            whole = item._replace(path=_named(record.key, item))
            (inside if is_inside else border).append(whole)
        given |= outputs
    return border, inside


def _values(item: Item) -> Hashable:
    """Return what tells the values of a tensor from those of others in the same run."""
    if not item.is_tensor:
        return id(item)
    statistics = tuple(str(item.statistic(name)) for name in FIELDS)
    return item.shape, item.dtype, item.digest, statistics


def _noise(
    rows: Sequence[TensorRow], golden: KeyedItems, other: KeyedItems, reading: Reading
) -> list[float | None]:
    """Return for each row by how much its golden value differs between two golden runs."""
    found: dict[str, float | None] = {}
    for row in rows_of_operators(golden.key, other.key, golden.items, other.items, reading):
        if row.target is None or row.golden is None:
            continue
        distance = row.relative_l2
        if distance is None:
            distance = _norms_apart(row.target, row.golden)
        found[row.target.path] = distance
    return [found.get(row.golden.path) if row.golden is not None else None for row in rows]


def _norms_apart(one: Item, two: Item) -> float | None:
    """Return by how much two norms differ, of statistics alone a lower bound of the relative L2."""
    first, second = one.norm, two.norm
    if first is None or second is None or not first:
        return None
    return abs(first - second) / abs(first)


def _mark(rows: Iterable[TensorRow], result: str, message: str) -> None:
    for row in rows:
        row.result = result
        if message:
            row.messages.append(message)


def _named(key: str, item: Item) -> str:
    return f"{key}.{item.path}" if item.path else key


def _piece_rows(
    payload: ComparisonPayload, rows: Sequence[TensorRow], mode: ComparisonMode, told: str = ""
) -> PieceRows:
    stack = "\n".join(payload.stack)
    lines = [
        cells(row, mode, payload.how, payload.name, stack if not place else "")
        for place, row in enumerate(rows)
    ]
    results = [row.result for row in rows]
    # The worst of them, where something was compared.
    result = next((each for each in (ERROR, WARNING, PASS) if each in results), UNMATCHED)
    said = _message(rows, result, told or payload.note)
    distances = [row.relative_l2 for row in rows if row.relative_l2 is not None and row.is_output]
    worst = max(distances, default=None, key=lambda each: (each != each, each))
    return PieceRows(
        result,
        len(rows),
        results.count(ERROR),
        results.count(WARNING),
        results.count(UNMATCHED),
        "" if worst is None else f"{worst:.6g}",
        f"{told}; {said}" if told and result in (ERROR, WARNING) else said,
        encode_rows(lines),
    )


def _message(rows: Sequence[TensorRow], result: str, note: str) -> str:
    """Return the first message of the rows that have the result of the piece, with the name of the value."""
    if result == PASS or (result == UNMATCHED and note):
        return note
    for row in rows:
        if row.result == result and row.messages:
            path = row.item.path
            name = row.item.model_name
            key = row.name.removesuffix(f".{path}")
            where = f"{path} ({name})" if name else with_name(key, path)
            named = (each for each in row.messages if each.startswith(OF_PARAMETER))
            where = " ".join([where, *named])
            own = (each for each in row.messages if each.startswith(f"{result}: "))
            return f"{where}: {next(own, row.messages[0]).removeprefix(f'{result}: ')}"
    return note
