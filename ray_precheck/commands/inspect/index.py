"""Where each record of a capture stands, and what it is called, so that a look at it begins at once.

Comes in: the path of a dump. Goes out: a `CaptureIndex`. Called by `opened`. A dump of a gigabyte is read
once; what was found of it is kept in a file beside it, or in the user's cache where its folder cannot be
written, and the next look reads that. A small dump is read each time.

A key is a pattern and a number: `Torch.add.3.forward` is the pattern (`Torch.add.`, `.forward`) with a 3. A
million calls have some hundred patterns, so that a search by name looks at these and not at every key.

The file is untrusted, as the dump beside it is: its length has to be the one that its header says, numbers
are taken for what they are, and every place is looked up in the dump itself, of which it can name no more
than bytes. It is of the dump whose size, time of change and inode it names; of any other it is made anew.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from ray_precheck.dump.folders import LOG_FILE
from ray_precheck.dump.log import Log, log_members, scan_log
from ray_precheck.dump.scan import DIRECTIONS, ByteRange, OnProgress, scan_dump, silent
from ray_precheck.errors import DumpError
from ray_precheck.foreign import open_file, read_file
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.side import RecordEntry, entry_of, without_collector
from ray_precheck.trace.sources import CONSTRUCT_FILE

# Raised whenever the file holds something else than before.
_VERSION = 1
_MAGIC = b"RPINDEX1"
# Reading so much takes as long as a user notices (0.3 s, measured on 2026-11-28).
_WORTH_KEEPING_BYTES = 32 << 20
_LARGEST_HEADER_BYTES = 256 << 20
_LARGEST_CONSTRUCT_BYTES = 512 << 20
_MOST_DIGITS = 18
_NO_NUMBER = -1
# The columns of the file, in their order.
_COLUMNS = {
    "starts": "<i8",
    "lengths": "<i8",
    "numbers": "<i8",
    "patterns": "<i4",
    "modules": "<i4",
}
_ROW_BYTES = sum(np.dtype(kind).itemsize for kind in _COLUMNS.values())


@dataclass(frozen=True, slots=True)
class Pattern:
    """What the keys of some records have in common: a key is `head`, its number, `tail`."""

    head: str
    tail: str = ""

    def key(self, number: int) -> str:
        """Return the key with a number, which -1 stands for none of."""
        return self.head if number == _NO_NUMBER else f"{self.head}{number}{self.tail}"

    @property
    def name(self) -> str:
        """What the calls are called without number: `Torch.add`, `Module.layers.0.Linear`."""
        name = self.head.removesuffix(".")
        before, _, last = name.rpartition(".")
        return before if last in DIRECTIONS and before else name

    @property
    def type_name(self) -> str:
        """The type of the operator: `Torch.add`; of a module its class."""
        if self.head.startswith(("Module.", "Cell.")):
            return self.name.removesuffix(".parameters_grad").rpartition(".")[2]
        return self.name


@dataclass(frozen=True)
class CaptureIndex:
    """The records of a capture, in the order of its file.

    `members` are the places of the fields beside the records. `starts`, `lengths` and `numbers` are
    `(N,)` int64; `patterns` and `modules` `(N,)` int32, places in `all_patterns` and `all_modules`. The
    module of a record that is in none is "".
    """

    members: Mapping[str, ByteRange]
    all_patterns: tuple[Pattern, ...]
    all_modules: tuple[str, ...]
    starts: Array
    lengths: Array
    numbers: Array
    patterns: Array
    modules: Array
    log: Log | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def key(self, row: int) -> str:
        """Return the key of a record."""
        pattern: Pattern = self.all_patterns[self.patterns[row]]
        return pattern.key(int(self.numbers[row]))

    def entry(self, row: int) -> RecordEntry:
        """Return a record as the other commands know it."""
        start = int(self.starts[row])
        return entry_of(self.key(row), ByteRange(start, start + int(self.lengths[row])))

    def module(self, row: int) -> str:
        """Return the key of the module that a record ran in, "" where it is not known."""
        return str(self.all_modules[self.modules[row]])

    def row(self, key: str) -> int | None:
        """Return the place of a record by its key; None where there is none."""
        pattern, number = key_pattern(key)
        place = self._places.get(pattern)
        if place is None:
            return None
        found = np.flatnonzero((self.numbers == number) & (self.patterns == place))
        return int(found[0]) if len(found) else None

    @cached_property
    def counts(self) -> Array:
        """How many records each pattern has, `(len(all_patterns),)`."""
        return np.bincount(self.patterns, minlength=len(self.all_patterns))

    @cached_property
    def _places(self) -> dict[Pattern, int]:
        return {pattern: place for place, pattern in enumerate(self.all_patterns)}


def key_pattern(key: str) -> tuple[Pattern, int]:
    """Return the pattern and the number of a key, -1 for one without a number."""
    name, _, last = key.rpartition(".")
    if last in DIRECTIONS:
        before, _, number = name.rpartition(".")
        if before and _is_number(number):
            return Pattern(f"{before}.", f".{last}"), int(number)
    elif name and _is_number(last):
        return Pattern(f"{name}."), int(last)
    return Pattern(key), _NO_NUMBER


def _is_number(text: str) -> bool:
    """Return whether a text is the only one that stands for its number."""
    if not (text.isdigit() and text.isascii() and len(text) <= _MOST_DIGITS):
        return False
    return text[0] != "0" or text == "0"


def open_index(path: Path, file: BinaryIO, on_progress: OnProgress = silent) -> CaptureIndex:
    """Return the index of an open dump, kept from the last time or made now, and then kept.

    Raises:
        DumpError: it is no dump, or has no record.
    """
    state = os.fstat(file.fileno())
    is_kept = path.suffix != Path(LOG_FILE).suffix and state.st_size >= _WORTH_KEEPING_BYTES
    stamp = [_VERSION, state.st_size, state.st_mtime_ns, state.st_ino, *_construct_state(path)]
    places = _places_of(path) if is_kept else ()
    for place in places:
        found = _kept(place, stamp, state.st_size)
        if found is not None:
            return found
    with without_collector():
        found = _made(path, file, on_progress)
    for place in places:
        if _keep(place, found, stamp, state.st_mode):
            break
    return found


def _construct_state(path: Path) -> list[int]:
    try:
        state = (path.parent / CONSTRUCT_FILE).stat()
    except OSError:
        return [0, 0]
    return [state.st_size, state.st_mtime_ns]


def _places_of(path: Path) -> tuple[Path, Path]:
    name = hashlib.sha256(str(path.resolve()).encode(errors="surrogateescape")).hexdigest()[:32]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return path.with_name(f"{path.name}.index"), cache / "ray_precheck" / "indexes" / name


def _made(path: Path, file: BinaryIO, on_progress: OnProgress) -> CaptureIndex:
    """Read a dump, and return its index."""
    log = None
    if path.suffix == Path(LOG_FILE).suffix:
        log, members = scan_log(file, str(path), on_progress)
        records: Iterator[tuple[str, ByteRange]] = log_members(log, file, str(path), on_progress)
    else:
        members, records = scan_dump(file, str(path), on_progress)
    around = _modules_of(path.parent / CONSTRUCT_FILE)
    patterns: dict[Pattern, int] = {}
    modules: dict[str, int] = {"": 0}
    # A dict of the texts that a pattern is made of is asked in half the time of one of patterns.
    known: dict[tuple[str, str], int] = {}
    columns = {name: array(np.dtype(kind).char) for name, kind in _COLUMNS.items()}
    starts, lengths, numbers, kinds, inside = columns.values()
    for key, (start, end) in records:
        before, _, last = key.rpartition(".")
        head, _, digits = before.rpartition(".")
        place = known.get((head, last))
        if place is None or not _is_number(digits):
            pattern, number = key_pattern(key)
            place = patterns.setdefault(pattern, len(patterns))
            if pattern.tail:
                known[head, last] = place
        else:
            number = int(digits)
        starts.append(start)
        lengths.append(end - start)
        numbers.append(number)
        kinds.append(place)
        inside.append(modules.setdefault(around.get(key, ""), len(modules)) if around else 0)
    if not starts:
        raise DumpError(f"{path} holds no record; capture the step again")
    arrays = {name: np.frombuffer(column, column.typecode) for name, column in columns.items()}
    found = CaptureIndex(dict(members), tuple(patterns), tuple(modules), **arrays, log=log)
    return _without_repeated(found)


def _modules_of(path: Path) -> Mapping[str, str]:
    """Return the module around each record; {} where there is no file, or none that can be read."""
    try:
        if path.stat().st_size > _LARGEST_CONSTRUCT_BYTES:
            return {}
        found = orjson.loads(read_file(path))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    # Older ones have a list of the module and its parent.
    firsts = (
        (key, value[0] if isinstance(value, list) and value else value)
        for key, value in found.items()
    )
    return {key: value for key, value in firsts if isinstance(value, str)}


def _without_repeated(index: CaptureIndex) -> CaptureIndex:
    """Return an index in which each key stands once: at the first place, with the last value, as readers of
    JSON have it."""
    order = np.lexsort((index.numbers, index.patterns))
    same = (np.diff(index.numbers[order]) == 0) & (np.diff(index.patterns[order]) == 0)
    if not same.any():
        return index
    firsts: dict[tuple[int, int], int] = {}
    columns = {name: np.array(getattr(index, name)) for name in _COLUMNS}
    kept = np.ones(len(index), np.bool_)
    for row in np.unique(np.concatenate([order[1:][same], order[:-1][same]])).tolist():
        first = firsts.setdefault((int(index.patterns[row]), int(index.numbers[row])), row)
        columns["starts"][first], columns["lengths"][first] = index.starts[row], index.lengths[row]
        kept[row] = first == row
    columns = {name: column[kept] for name, column in columns.items()}
    return CaptureIndex(
        index.members, index.all_patterns, index.all_modules, **columns, log=index.log
    )


def _keep(place: Path, index: CaptureIndex, stamp: list[int], mode: int) -> bool:
    """Write an index, which those may read who may read the dump; returns whether that worked."""
    header = json.dumps(
        {
            "stamp": stamp,
            "rows": len(index),
            "members": {name: list(span) for name, span in index.members.items()},
            "patterns": [[pattern.head, pattern.tail] for pattern in index.all_patterns],
            "modules": index.all_modules,
        }
    ).encode()
    header += b" " * (-(len(_MAGIC) + 8 + len(header)) % 8)
    unfinished = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".", delete=False) as file:
            unfinished = Path(file.name)
            os.fchmod(file.fileno(), 0o600 | (mode & 0o044))
            file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
            for name, kind in _COLUMNS.items():
                file.write(np.ascontiguousarray(getattr(index, name), kind).data)
        unfinished.rename(place)
    except OSError:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                unfinished.unlink()
        return False
    return True


def _kept(place: Path, stamp: list[int], dump_bytes: int) -> CaptureIndex | None:
    """Return the index in a file; None where there is none, or it is of another dump or broken."""
    try:
        with open_file(place) as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(len(_MAGIC) + 8)
            length = int.from_bytes(begin[len(_MAGIC) :], "little")
            if not begin.startswith(_MAGIC) or length > min(size, _LARGEST_HEADER_BYTES):
                return None
            header = orjson.loads(file.read(length))
            rows = header["rows"]
            if header["stamp"] != stamp or size != len(begin) + length + rows * _ROW_BYTES:
                return None
            return _checked(header, _columns(file, rows), dump_bytes)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _columns(file: BinaryIO, rows: int) -> dict[str, Array]:
    found = {}
    for name, kind in _COLUMNS.items():
        found[name] = np.frombuffer(file.read(rows * np.dtype(kind).itemsize), kind)
    return found


def _checked(header: Any, columns: dict[str, Array], dump_bytes: int) -> CaptureIndex | None:
    """Return an index whose numbers name what is there; None otherwise."""
    patterns = tuple(Pattern(str(head), str(tail)) for head, tail in header["patterns"])
    modules = tuple(map(str, header["modules"]))
    spans = {str(name): ByteRange(*map(int, span)) for name, span in header["members"].items()}
    limits: Iterable[tuple[str, int, int]] = (
        ("starts", 0, dump_bytes),
        ("lengths", 0, dump_bytes),
        ("numbers", _NO_NUMBER, 10**_MOST_DIGITS),
        ("patterns", 0, len(patterns) - 1),
        ("modules", 0, len(modules) - 1),
    )
    for name, least, most in limits:
        column = columns[name]
        if not len(column) or column.min() < least or column.max() > most:
            return None
    return CaptureIndex(spans, patterns, modules, log=None, **columns)
