"""One capture, as a comparison reads it: where its records stand, and what each of them is.

Comes in: the path of a dump.json or of the log of a capture that was cut off. Goes out: a `CaptureSide`.
Called by the jobs that compare captures. Unlike `dump.parse`, which opens a dump to check its calls, this
also takes records of modules, gradients of parameters and dumps that hold nothing else. The file is scanned
once; a record is read when it is needed, so that memory holds names and places alone.
"""

import gc
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import orjson

from ray_precheck.dump.folders import LOG_FILE, cut_note, is_being_written, standing_for
from ray_precheck.dump.log import Log, log_members, scan_log
from ray_precheck.dump.scan import (
    CHUNK_BYTES,
    ByteRange,
    OnProgress,
    read_value,
    scan_dump,
    silent,
    split_key,
    value_of,
)
from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file, read_file
from ray_precheck.schema.dtypes import FULL_FLOAT32, Float32, from_header
from ray_precheck.trace.items import Item, items_of

FORWARD, BACKWARD = "forward", "backward"
API, MODULE, GRADIENTS, OTHER = "api", "module", "gradients", "other"
MODULE_PREFIXES = ("Module.", "Cell.")
_TENSORS = "dump_tensor_data"
_STACKS, _MODULES = "stack.json", "construct.json"
# A record with more bytes is no record of a call: one with 1,500 tensors has 0.5 MB.
LARGEST_RECORD_BYTES = 64 << 20
_WINDOW_BYTES = 1 << 16


class RecordEntry(NamedTuple):
    """One record: its key, the call that it belongs to, its direction and kind, and its place in the file.

    `call` is the key without direction: `Torch.add.3`, `Module.layers.0.Linear.0`. `direction` is
    `FORWARD` or `BACKWARD`, "" for the gradients of parameters and what is no call.
    """

    key: str
    call: str
    direction: str
    kind: str
    span: ByteRange


class Unseen(NamedTuple):
    """How many places of a step ran out of the capture's sight, -1 where that is not known, and what is said
    of the first of them: what ran there, the module and the line."""

    total: int = -1
    places: tuple[str, ...] = ()


NOTHING_KNOWN = Unseen()


@dataclass(slots=True)
class Header:
    """What the dump says of itself; "" for what it does not say.

    `is_update_skipped`: a loss scaler, of which `loss_scale` is the scale, skipped the update of the step.
    `float32` are the formats of the operands of float32 products. `unseen` are places of the step that
    the capture did not see. `layout` is that of the ranks of which this is the whole (`trace.layouts`).
    """

    task: str = ""
    level: str = ""
    framework: str = ""
    data_folder: str = ""
    is_update_skipped: bool = False
    loss_scale: float | None = None
    float32: Float32 = FULL_FLOAT32
    unseen: Unseen = NOTHING_KNOWN
    layout: str = ""


@dataclass
class CaptureSide(AbstractContextManager["CaptureSide"]):
    """An open capture. `entries` are its records in the order of the file."""

    path: Path
    file: BinaryIO
    header: Header
    entries: list[RecordEntry] = field(default_factory=list)
    log: Log | None = None
    _window: tuple[int, bytes] = (0, b"")

    @property
    def folder(self) -> Path:
        """The folder that the dump is in, with its other files."""
        return self.path.parent

    @cached_property
    def data_folder(self) -> Path:
        """The folder of the captured tensors: as the dump says, or, once it was copied, beside the dump."""
        said = Path(self.header.data_folder) if self.header.data_folder else None
        beside = self.folder / _TENSORS
        return said if said is not None and said.is_dir() and not beside.is_dir() else beside

    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal, by which a resumed comparison knows its captures."""
        state = hashlib.sha256()
        self.file.seek(0)
        while chunk := self.file.read(CHUNK_BYTES):
            state.update(chunk)
        return state.hexdigest()

    @property
    def note(self) -> str:
        """A sentence about a capture that was cut off; "" for a whole one."""
        if self.log is None:
            return cut_note(self.path)
        state = "is still being written" if is_being_written(self.file) else "was cut off"
        return f"{self.path} is the log of a capture that {state}: its {self.log.records} records are used"

    def raw(self, entry: RecordEntry) -> bytes:
        """Return the JSON of a record."""
        start, end = entry.span
        # One tuple, so that threads that read at the same time do not mix places and bytes.
        begin, window = self._window
        if start < begin or end > begin + len(window):
            # A read costs more than the bytes of the records behind, which are wanted next.
            length = max(end - start, _WINDOW_BYTES)
            begin, window = start, os.pread(self.file.fileno(), length, start)
            if length == _WINDOW_BYTES:
                self._window = begin, window
        return value_of(window[start - begin : max(start, end) - begin])

    def record(self, entry: RecordEntry) -> Mapping[str, Any]:
        """Return a record, decoded; an empty one where it cannot be read.

        NaN and the infinities stand as bare words in a dump: they are read as their names, which
        `Item.number` knows.
        """
        return record_from_json(self.raw(entry))

    def items(self, entry: RecordEntry) -> list[Item]:
        """Return the values of a record in the order of a comparison."""
        return items_of(self.record(entry), entry.key)

    @cached_property
    def stacks(self) -> Mapping[str, list[str]]:
        """The lines of the program that led to each record, by its key; empty where there is no stack.json.

        msprobe groups them: `{"0": [[keys], [lines]]}`; older ones have `{key: lines}`.
        """
        found: dict[str, list[str]] = {}
        for key, value in _object_in(self.folder / _STACKS).items():
            if not isinstance(value, list):
                continue
            if len(value) == 2 and all(isinstance(each, list) for each in value):
                found |= {str(name): value[1] for name in value[0]}
            else:
                found[key] = value
        return found

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """The module's record in which each record ran, by its key; empty without construct.json (L1)."""
        raw = _object_in(self.folder / _MODULES)
        return {key: value for key, value in raw.items() if isinstance(value, str)}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()


def record_from_json(raw: bytes) -> Mapping[str, Any]:
    """Return the JSON of a record, decoded; an empty mapping for what is no JSON object."""
    if len(raw) > LARGEST_RECORD_BYTES:
        return {}
    found = json_with_words(raw)
    return found if isinstance(found, dict) else {}


def json_with_words(raw: bytes) -> Any:
    """Return what a JSON says in which NaN and infinities may stand as bare words, which are read as texts;
    None for what is no JSON."""
    try:
        return orjson.loads(raw)
    except ValueError:
        import json

    try:
        return json.loads(raw, parse_constant=str)
    except (ValueError, RecursionError):
        return None


def _object_in(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; an empty one where there is none."""
    try:
        found = orjson.loads(read_file(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def float32_note(target: CaptureSide, golden: CaptureSide | None) -> str:
    """Return the sentence about two captures whose float32 products have operands of other formats, "" where
    they are the same."""
    if golden is None or target.header.float32 == golden.header.float32:
        return ""
    return (
        f"the target computed with {target.header.float32}, the golden run with"
        f" {golden.header.float32}: their products differ by that"
    )


def open_side(path: str | os.PathLike[str], on_progress: OnProgress = silent) -> CaptureSide:
    """Open a dump.json, or the log of a capture that was cut off, for a comparison.

    Raises:
        DumpError: there is no such file, it is no dump, or it has no record.
    """
    where = standing_for(Path(path))
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open_file(where))
            log: Log | None = None
            if where.suffix == Path(LOG_FILE).suffix:
                log, members = scan_log(file, str(where), on_progress)
                records: Iterator[tuple[str, ByteRange]] = log_members(
                    log, file, str(where), on_progress
                )
            else:
                members, records = scan_dump(file, str(where), on_progress)
            entries = list(_entries(records))
            header = header_of(file, dict(members))
            if not entries:
                raise DumpError(f"{where} holds no record; capture the step again")
            stack.pop_all()
    except OSError as error:
        raise DumpError(f"cannot read the dump {where}: {error.strerror or error}") from None
    return CaptureSide(where, file, header, entries, log)


_NO_PLACE = ByteRange(0, 0)
# The ranks of a run have the same keys: those of the last dumps.
_KNOWN_KEYS = 1 << 16


@lru_cache(_KNOWN_KEYS)
def entry_without_place(key: str) -> RecordEntry:
    """Return the entry of a record by its key, without a place in the file."""
    return entry_of(key, _NO_PLACE)


def _entries(members: Iterator[tuple[str, ByteRange]]) -> Iterator[RecordEntry]:
    """Yield the records; of one that stands twice the first place has the last value, as readers of JSON
    have it."""
    found: dict[str, ByteRange] = {}
    for key, span in members:
        found[key] = span
    for key, span in found.items():
        yield RecordEntry(*entry_without_place(key)[:4], span)


def entry_of(key: str, span: ByteRange) -> RecordEntry:
    """Return the entry of a record by its key and its place in the file."""
    if key.startswith(MODULE_PREFIXES):
        return _module_entry(key, span)
    split = split_key(key)
    if split is None:
        return RecordEntry(key, key, "", OTHER, span)
    return RecordEntry(key, *split, API, span)


def _module_entry(key: str, span: ByteRange) -> RecordEntry:
    """Return the record of a module: `Module.{path}.{Class}.forward.{n}`, `...backward.{n}`, or of the
    gradients of its parameters, `Module.{path}.{Class}.parameters_grad`, in newer dumps with a number."""
    name, _, last = key.rpartition(".")
    if last == "parameters_grad" or name.endswith(".parameters_grad"):
        return RecordEntry(key, key, "", GRADIENTS, span)
    before, _, direction = name.rpartition(".")
    if direction in (FORWARD, BACKWARD):
        return RecordEntry(key, f"{before}.{last}", direction, MODULE, span)
    return RecordEntry(key, key, "", MODULE, span)


def header_of(file: BinaryIO, members: Mapping[str, ByteRange]) -> Header:
    """Return what a dump says of itself in the members of its top-level object."""

    def value(name: str) -> object:
        if name not in members or members[name].end - members[name].start > LARGEST_RECORD_BYTES:
            return None
        try:
            return orjson.loads(read_value(file, members[name]))
        except ValueError:
            return None

    return _header(value)


def _header(value: Callable[[str], object]) -> Header:
    """Return the header of a dump; `value` gives a member of its top-level object, None for one it lacks."""

    def text(name: str) -> str:
        found = value(name)
        return found if isinstance(found, str) else ""

    names = text("task"), text("level"), text("framework"), text("dump_data_dir")
    scale = value("loss_scale")
    return Header(
        *names,
        is_update_skipped=value("update_skipped") is True,
        loss_scale=float(scale) if isinstance(scale, int | float) else None,
        float32=from_header(value("float32")),
        unseen=unseen_from_json(value("dark")),
        layout=text("layout"),
    )


def call_entries(side: CaptureSide) -> list[RecordEntry]:
    """Return the entries of calls in the order of the run; of a dump of modules alone, those of modules."""
    return calls_among(side.entries)


def calls_among(entries: Sequence[RecordEntry]) -> list[RecordEntry]:
    """Return the entries of calls among those of a dump; see `call_entries`."""
    return [entry for entry in entries if entry.kind == API] or [
        entry for entry in entries if entry.direction
    ]


def unseen_from_json(found: object) -> Unseen:
    """Return the places that the header's field `dark` tells of; what it does not tell stays unknown."""
    if not isinstance(found, dict):
        return NOTHING_KNOWN
    count, listed = found.get("count"), found.get("places")
    places = []
    for each in listed if isinstance(listed, list) else ():
        words = (
            (each.get(name) for name in ("what", "module", "place"))
            if isinstance(each, dict)
            else ()
        )
        if said := ", ".join(word for word in words if isinstance(word, str) and word):
            places.append(said)
    return Unseen(count if type(count) is int and count >= 0 else -1, tuple(places))


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the garbage collector away while the records of captures are read: they are millions of objects
    without cycles, which it would look through again and again (a third of the time)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
