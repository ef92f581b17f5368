"""Where the members of a large JSON object stand, without decoding them.

Comes in: an open file. Goes out: the byte spans of the header's values and of every member of
`data`. Called by `dump.parse`. The file is read in chunks and never held, once for its structure
and once for the keys; NumPy finds the quotes and braces, so that a gigabyte takes a few seconds
and, beside the members, no memory to speak of. The inside of records is not looked at: bare NaN and
Infinity are accepted, and a broken record stays one record.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, NamedTuple

import numpy as np

from ray_precheck.errors import DumpError
from ray_precheck.foreign import shown
from ray_precheck.schema.dtypes import Array

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
    window = _Window(file)
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
        yield from zip(_keys(window, key_starts, key_ends), spans, strict=True)
        tell(value_ends[-1])


def _keys(window: "_Window", starts: list[int], ends: list[int]) -> list[str]:
    """Return keys as text, all of them at once where they are plain and close to each other."""
    begin = starts[0]
    if ends[-1] - begin <= LONGEST_KEY_BYTES:  # so none of them is longer
        # Latin-1 has a character for every byte: positions stay, and ASCII is right.
        text = window.read(begin, ends[-1]).decode("latin-1")
        keys = [
            text[start - begin + 1 : end - begin - 1]
            for start, end in zip(starts, ends, strict=True)
        ]
        joined = "".join(keys)
        if joined.isascii() and "\\" not in joined:
            return keys
    return [_key(window, start, end) for start, end in zip(starts, ends, strict=True)]


@dataclass(slots=True)
class _Window:
    """A piece of the file; keys that follow each other are cut from it without another read."""

    file: BinaryIO
    start: int = 0
    data: bytes = b""

    def read(self, start: int, end: int) -> bytes:
        self.file.seek(start)
        return self.file.read(end - start)

    def cut(self, start: int, end: int) -> bytes:
        if start < self.start or end > self.start + len(self.data):
            self.data = self.read(start, max(start + _WINDOW_BYTES, end))
            self.start = start
        return self.data[start - self.start : end - self.start]


def _key(window: _Window, start: int, end: int) -> str:
    """Return a key as text: the JSON string without its quotes, as it stands where it is broken."""
    if end - start > LONGEST_KEY_BYTES:
        begin = window.cut(start + 1, start + _SHOWN_KEY_BYTES).decode(errors="replace")
        return f"{begin}... ({end - start} bytes at byte {start})"
    raw = window.cut(start, end)
    if b"\\" in raw:
        try:
            return str(json.loads(raw))
        except ValueError:
            pass
    return raw[1:-1].decode(errors="replace")


def read_value(file: BinaryIO, span: ByteRange) -> bytes:
    """Return the raw JSON of a member's value, without the comma that follows it."""
    file.seek(span.start)
    return value_of(file.read(max(0, span.end - span.start)))


def value_of(raw: bytes) -> bytes:
    """Return the bytes of a member's span without blanks and the comma that follows it."""
    return raw.rstrip().removesuffix(b",").strip()


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
