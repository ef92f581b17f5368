"""Where the members of a large JSON object stand, without decoding them, and what their keys name.

Comes in: an open file. Goes out: the byte spans of the header's values and of every member of
`data`. Called by `dump.parse`. The file is read in chunks and never held, once for its structure
and once for the keys; NumPy finds the quotes and braces, so that a gigabyte takes a few seconds
and, beside the members, no memory to speak of. The inside of records is not looked at: bare NaN and
Infinity are accepted, and a broken record stays one record.

A key of `data`, such as `Torch.linalg.inv.0.forward`, gives the API's name and the direction
(`split_key`), or the reason why it names no API call (`parse_key`).
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson

from ray_precheck.errors import DumpError
from ray_precheck.foreign import shown
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.record import ApiName

CHUNK_BYTES = 4 << 20
# Real records have 350 bytes and more. Without a limit, 1 GB of `"":0,` would be 2e8 members.
SURE_MEMBERS = 1_500_000
BYTES_FOR_ANOTHER = 500
_TOKENS_OF_A_MEMBER = 8
LONGEST_KEY_BYTES = 16 << 20
_SHOWN_KEY_BYTES = 200
_BOM = b"\xef\xbb\xbf"
_QUOTE, _BACKSLASH, _COLON = ord('"'), ord("\\"), ord(":")
# Tables for bytes.translate: 1 for a structural character; how it changes the depth, as an int8.
_INTEREST = bytes(chr(code) in '"{}[]:' for code in range(256))
_STEPS = bytes({"{": 1, "[": 1, "}": 255, "]": 255}.get(chr(code), 0) for code in range(256))
_DATA_DEPTH = 2
_END_BYTES = 1 << 16
_KEYS_AT_A_TIME = 1 << 12
_WINDOW_BYTES = 1 << 16

# A function that is told the progress: the amount done, and the total (bytes of a file, calls of a
# plan).
OnProgress = Callable[[int, int], None]


class ByteRange(NamedTuple):
    """From which byte of the file to which a value stands, with the comma that follows it."""

    start: int
    end: int


# A member of a JSON object: its decoded key and the span of its value.
Member = tuple[str, ByteRange]
# Span(start, end) takes three times as long as tuple.__new__, and a dump has millions of them.
_span = partial(tuple.__new__, ByteRange)


def silent(done: int, total: int) -> None:
    """Report no progress."""


@dataclass(slots=True)
class _State:
    """The state between two chunks: depth, whether inside a string, pending backslashes."""

    depth: int = 0
    in_string: bool = False
    backslashes: int = 0
    count: int = 0
    tokens: list[tuple[Array, Array, Array]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Position, character and depth of structural characters, in file order."""

    positions: Array
    chars: Array
    depths: Array

    def only(self, chosen: Array | slice) -> "_Tokens":
        return _Tokens(self.positions[chosen], self.chars[chosen], self.depths[chosen])


def scan_dump(
    file: BinaryIO, path: str, on_progress: OnProgress = silent
) -> tuple[list[Member], Iterator[Member]]:
    """Return the members of the top-level object and those of its `data` object, in file order.

    `on_progress` is told the bytes that are dealt with, after each chunk: the first half of the
    file's size while its structure is read, the rest while the members of `data` are taken.

    Raises:
        DumpError: the file is no JSON object, is cut off in the middle, or has more members than
            a dump of its size can have.
    """
    size = file.seek(0, os.SEEK_END)
    offset = _require_object(file, size, path)
    file.seek(offset)
    tokens = _shallow_tokens(file, offset, size, path, on_progress)
    if not len(tokens.chars) or tokens.chars[0] != ord("{"):
        raise _no_object(path)
    limit = member_limit(size)
    header = list(_members(file, tokens, 1, limit, path, lambda position: None))
    data = next((span for key, span in reversed(header) if key == "data"), None)
    if data is None:
        return header, iter(())
    inside = tokens.only(slice(*np.searchsorted(tokens.positions, data)))

    def tell(position: int) -> None:
        on_progress((size + position) // 2, size)

    return header, _members(file, inside, _DATA_DEPTH, limit, path, tell)


def member_limit(size: int) -> int:
    """Return how many members a file of `size` bytes may have, which bounds the memory."""
    return SURE_MEMBERS + size // BYTES_FOR_ANOTHER


def _require_object(file: BinaryIO, size: int, path: str) -> int:
    """Look at both ends of the file, so that a file that is no whole dump need not be read to its
    end.

    Returns where the text begins, behind a byte order mark.
    """
    file.seek(0)
    first = file.read(_END_BYTES)
    wide = b"\x00" in first[:4] and b"{" in first[:16]
    if wide or first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DumpError(
            f"{path} is UTF-16 or UTF-32 text; a dump.json in UTF-8 is expected: convert it first"
        )
    offset = len(_BOM) if first.startswith(_BOM) else 0
    begin = first[offset:].lstrip()
    if not begin.startswith(b"{") and (begin or size <= _END_BYTES):
        raise _no_object(path)
    file.seek(max(offset, size - _END_BYTES))
    end = file.read(_END_BYTES).rstrip()
    if end and not end.endswith(b"}"):
        raise DumpError(
            f"{path} is cut off: it has {size} bytes and ends with {shown(end[-20:])}, a closing"
            " brace is expected; copy the dump again"
        )
    return offset


def _no_object(path: str) -> DumpError:
    return DumpError(f"{path} is not a dump: a JSON object is expected, as msprobe writes it")


def _shallow_tokens(
    file: BinaryIO, offset: int, size: int, path: str, on_progress: OnProgress
) -> _Tokens:
    """Return the structural characters down to depth 2."""
    state = _State()
    limit = _TOKENS_OF_A_MEMBER * member_limit(size)
    while chunk := file.read(CHUNK_BYTES):
        _scan_chunk(chunk, offset, state, path)
        offset += len(chunk)
        on_progress(offset // 2, size)
        if state.count > limit:
            raise too_many(path, limit // _TOKENS_OF_A_MEMBER)
    if not state.count and not state.in_string:
        raise _no_object(path)
    if state.depth > 0 or state.in_string:
        raise DumpError(
            f"{path} is cut off: it ends at byte {offset} inside a record; copy the dump again"
        )
    positions, chars, depths = zip(*state.tokens, strict=True)
    state.tokens.clear()
    return _Tokens(np.concatenate(positions), np.concatenate(chars), np.concatenate(depths))


def too_many(path: str, limit: int) -> DumpError:
    """Return the error of a file that has more members than a dump of its size can have."""
    return DumpError(
        f"{path} has more than {limit} members, too many for records of API calls in a file of its"
        " size; is it a dump.json of msprobe?"
    )


def _scan_chunk(chunk: bytes, offset: int, state: _State, path: str) -> None:
    """Append the chunk's shallow structural characters to `state.tokens`."""
    places = np.flatnonzero(np.frombuffer(chunk.translate(_INTEREST), dtype=bool))
    chars = np.frombuffer(chunk, dtype=np.uint8)[places]
    is_quote = chars == _QUOTE
    _drop_escaped(chunk, places, is_quote, state)
    if not len(places):
        return
    quotes = np.cumsum(is_quote, dtype=np.int32)
    outside = ((quotes & 1) == state.in_string) & ~is_quote
    steps = np.frombuffer(chars.tobytes().translate(_STEPS), dtype=np.int8) * outside
    change = np.cumsum(steps, dtype=np.int32)
    if state.depth + int(change.min()) < 0:
        raise DumpError(f"{path} is not JSON: a bracket too many near byte {offset}")
    # An opening bracket stands at the depth that it opens, a closing one at the one it closes.
    depth = change - np.minimum(steps, 0)
    kept = np.flatnonzero((depth <= _DATA_DEPTH - state.depth) & (outside | is_quote))
    if len(kept):
        depths = (depth[kept] + state.depth).astype(np.uint8)
        state.tokens.append((places[kept] + offset, chars[kept], depths))
        state.count += len(kept)
    state.depth += int(change[-1])
    state.in_string ^= bool(quotes[-1] & 1)


def _drop_escaped(chunk: bytes, places: Array, is_quote: Array, state: _State) -> None:
    """Clear `is_quote` where an odd number of backslashes stands before the quote."""
    carried = state.backslashes
    ending = len(chunk) - len(chunk.rstrip(b"\\"))
    state.backslashes = ending + carried if ending == len(chunk) else ending
    if not carried and b"\\" not in chunk:
        return
    escaped = np.zeros(len(chunk) + 1, dtype=bool)
    slashes = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == _BACKSLASH)
    last = np.flatnonzero(np.diff(slashes, append=len(chunk) + 1) > 1)  # of each run of them
    lengths, ends = np.diff(last, prepend=-1), slashes[last]
    if chunk.startswith(b"\\"):
        lengths[0] += carried
    else:
        escaped[0] = carried % 2 == 1
    escaped[ends[lengths % 2 == 1] + 1] = True
    is_quote &= ~escaped[places]


def _members(
    file: BinaryIO,
    tokens: _Tokens,
    depth: int,
    limit: int,
    path: str,
    tell: Callable[[int], None],
) -> Iterator[Member]:
    """Yield the members of the one object that stands at `depth` among the tokens."""
    tokens = tokens.only(tokens.depths == depth)
    if not len(tokens.chars) or tokens.chars[0] != ord("{"):
        return
    colons = np.flatnonzero(tokens.chars == _COLON)
    # The key is the string right before the colon: its quotes are the two tokens before it.
    colons = colons[colons >= 2]
    if len(colons) > limit:
        raise too_many(path, limit)
    for first in range(0, len(colons), _KEYS_AT_A_TIME):
        block = colons[first : first + _KEYS_AT_A_TIME]
        following = colons[first + 1 : first + 1 + _KEYS_AT_A_TIME]
        positions = tokens.positions
        key_starts, key_ends = positions[block - 2].tolist(), (positions[block - 1] + 1).tolist()
        value_starts = (positions[block] + 1).tolist()
        value_ends = positions[following - 2].tolist()
        if len(value_ends) < len(value_starts):
            value_ends.append(int(positions[-1]))
        spans = map(_span, zip(value_starts, value_ends, strict=True))
        yield from zip(_keys(file, key_starts, key_ends), spans, strict=True)
        tell(value_ends[-1])


def _keys(file: BinaryIO, starts: list[int], ends: list[int]) -> list[str]:
    """Return keys as text, all of them at once where they are plain and close to each other."""
    begin = starts[0]
    if ends[-1] - begin <= LONGEST_KEY_BYTES:  # so none of them is longer
        # Latin-1 has a character for every byte: positions stay, and ASCII is right.
        text = _read(file, begin, ends[-1]).decode("latin-1")
        keys = [
            text[start - begin + 1 : end - begin - 1]
            for start, end in zip(starts, ends, strict=True)
        ]
        joined = "".join(keys)
        if joined.isascii() and "\\" not in joined:
            return keys
    return [_key(file, start, end) for start, end in zip(starts, ends, strict=True)]


def _key(file: BinaryIO, start: int, end: int) -> str:
    if end - start > LONGEST_KEY_BYTES:
        begin = _read(file, start + 1, start + _SHOWN_KEY_BYTES).decode(errors="replace")
        return f"{begin}... ({end - start} bytes at byte {start})"
    return key_text(_read(file, start, end))


def key_text(raw: bytes) -> str:
    """Return a key as text: the JSON string without its quotes, as it stands where it is broken."""
    if b"\\" in raw:
        try:
            return str(json.loads(raw))
        except ValueError:
            pass
    return raw[1:-1].decode(errors="replace")


def _read(file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(max(0, end - start))


def read_value(file: BinaryIO, span: ByteRange) -> bytes:
    """Return the raw JSON of a member's value, without the comma that follows it."""
    return value_of(_read(file, *span))


def value_of(raw: bytes) -> bytes:
    """Return the bytes of a member's span without blanks and the comma that follows it."""
    return raw.rstrip().removesuffix(b",").strip()


def loose_json(raw: bytes) -> Any:
    """Return what a JSON says; bare NaN and Infinity, which msprobe writes, are fine.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return orjson.loads(raw)  # fast, but strict
    except ValueError:
        return json.loads(raw)


class RecordWindow:
    """A piece of a file in memory, which moves to where the next record is."""

    def __init__(self, file_descriptor: int) -> None:
        self._fd = file_descriptor
        self._start = self._end = 0
        self._data = b""

    def raw(self, span: ByteRange | None) -> bytes | None:
        """Return the raw JSON of one record; None for a record that the dump does not have."""
        if span is None:
            return None
        start, end = span
        if end - start > _WINDOW_BYTES:  # so that no window keeps 64 MiB
            return value_of(os.pread(self._fd, end - start, start))
        if start < self._start or end > self._end:
            self._move(start, end)
        return value_of(self._data[start - self._start : end - self._start])

    def _move(self, start: int, end: int) -> None:
        """Read the record and what lies ahead of it, on the side that the window moves to."""
        if start < self._start:
            start = max(0, end - _WINDOW_BYTES)
        else:
            end = start + _WINDOW_BYTES
        self._start, self._end = start, end
        self._data = os.pread(self._fd, end - start, start)


DIRECTIONS = ("forward", "backward")
LONGEST_NAME = 1000
_MODULE_PREFIXES = ("Module", "Cell")
_MINIMUM_PARTS = 4
# Canonical, so that two keys never become one call; more digits than int() takes are none.
_MOST_DIGITS = 18
_NUMBER = re.compile(rf"0|[1-9][0-9]{{0,{_MOST_DIGITS - 1}}}")
_MOST_KINDS = 1 << 12


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that names an API call, and its direction."""

    name: ApiName
    direction: str


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A key that names no API call, with the reason. `is_module` is true of module records."""

    reason: str
    is_module: bool = False


def split_key(key: str) -> tuple[str, str] | None:
    """Return the name of the API call and the direction, None for a key that names no call.

    The same as `parse_key` says, in a fifth of the time: a dump can have millions of keys.
    """
    name, _, direction = key.rpartition(".")
    if direction not in DIRECTIONS or len(key) > LONGEST_NAME:
        return None
    kind, _, number = name.rpartition(".")
    is_number = number.isdigit() and number.isascii() and len(number) <= _MOST_DIGITS
    if not is_number or (number[0] == "0" and number != "0") or not _is_api(kind):
        return None
    return name, direction


@lru_cache(_MOST_KINDS)
def _is_api(kind: str) -> bool:
    """Return whether `Prefix.api` is that of an API; thousands of calls are of one."""
    parts = kind.split(".")
    return len(parts) > 1 and "" not in parts and parts[0] not in _MODULE_PREFIXES


def parse_key(key: str) -> ApiKey | ForeignKey:
    """Return the call and the direction that a key of the dump names; for other keys the reason.

    An API key is `Prefix.api.N.forward|backward`; an api with dots has more parts. Modules
    (`Module.conv1.Conv2d.forward.0`, `Cell...`) and `*.parameters_grad` are no APIs.
    """
    if len(key) > LONGEST_NAME:
        return ForeignKey(f"not an API: a name of {len(key)} characters")
    parts = key.split(".")
    if parts[0] in _MODULE_PREFIXES:
        return ForeignKey("not an API: the record of a module", is_module=True)
    if parts[-1] == "parameters_grad":
        return ForeignKey("not an API: gradients of a module's parameters", is_module=True)
    if parts[-1] not in DIRECTIONS:
        return ForeignKey("not an API: the name does not end in .forward or .backward")
    if len(parts) < _MINIMUM_PARTS:
        return ForeignKey("not an API: the name has too few parts (Prefix.api.N.forward expected)")
    number = parts[-2]
    if not _NUMBER.fullmatch(number) or "" in parts:
        return ForeignKey(
            f"not an API: {number!r} is no call number (Prefix.api.N.forward expected)"
        )
    return ApiKey(ApiName(parts[0], ".".join(parts[1:-2]), int(number)), parts[-1])
