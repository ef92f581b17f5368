"""Where the members of a large JSON object stand, without decoding them.

Comes in: an open file. Goes out: the byte spans of the header's values and of every member of
`data`. Called by `dump.parse`. The file is read once in chunks and never held; NumPy finds the
quotes and braces, so that 100 MB take about a second and no memory to speak of. What is inside a
record is not looked at: bare NaN and Infinity are welcome, and a broken record stays one record.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from ray_precheck.errors import DumpError
from ray_precheck.schema.dtypes import Array

CHUNK_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_QUOTE, _BACKSLASH, _COLON = ord('"'), ord("\\"), ord(":")
_INTEREST = np.zeros(256, dtype=bool)
_INTEREST[[ord(c) for c in '"{}[]:']] = True
_DEPTH = np.zeros(256, dtype=np.int64)
_DEPTH[[ord("{"), ord("[")]] = 1
_DEPTH[[ord("}"), ord("]")]] = -1
_DATA_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a JSON object: its decoded key and the byte span of its value."""

    key: str
    start: int
    end: int


@dataclass(slots=True)
class _State:
    """What is carried from chunk to chunk: depth, whether inside a string, pending backslashes."""

    depth: int = 0
    in_string: bool = False
    backslashes: int = 0
    tokens: list[Array] = field(default_factory=list)


def scan_dump(file: BinaryIO, path: str) -> tuple[list[Member], list[Member]]:
    """Return the members of the top-level object and those of its `data` object, in file order.

    Raises:
        DumpError: the file is no JSON object, or is cut off in the middle.
    """
    first = file.read(4)
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DumpError(
            f"{path} is UTF-16 text; a dump.json in UTF-8 is expected: convert it first"
        )
    offset = len(_BOM) if first.startswith(_BOM) else 0
    file.seek(offset)
    positions, chars, depths = _shallow_tokens(file, offset, path)
    if not len(chars) or chars[0] != ord("{"):
        raise DumpError(f"{path} is not a dump: a JSON object is expected, as msprobe writes it")
    header = _members(file, positions, chars, depths, 1)
    data = next((member for member in reversed(header) if member.key == "data"), None)
    if data is None:
        return header, []
    inside = (positions >= data.start) & (positions < data.end)
    return header, _members(file, positions[inside], chars[inside], depths[inside], _DATA_DEPTH)


def _shallow_tokens(file: BinaryIO, offset: int, path: str) -> tuple[Array, Array, Array]:
    """Return position, character and depth of the structural characters down to depth 2."""
    state = _State()
    for chunk in _chunks(file):
        _scan_chunk(chunk, offset, state, path)
        offset += len(chunk)
    if not state.tokens and not state.in_string:
        raise DumpError(f"{path} is not a dump: a JSON object is expected, as msprobe writes it")
    if state.depth > 0 or state.in_string:
        raise DumpError(
            f"{path} is cut off: it ends at byte {offset} inside a record; copy the dump again"
        )
    table = np.concatenate(state.tokens, axis=1)
    return table[0], table[1], table[2]


def _chunks(file: BinaryIO) -> Iterator[Array]:
    while chunk := file.read(CHUNK_BYTES):
        yield np.frombuffer(chunk, dtype=np.uint8)


def _scan_chunk(chunk: Array, offset: int, state: _State, path: str) -> None:
    """Append the chunk's shallow structural characters to `state.tokens`."""
    places = np.flatnonzero(_INTEREST[chunk])
    chars = chunk[places]
    is_quote = chars == _QUOTE
    _drop_escaped(chunk, places, is_quote, state)
    quotes = np.cumsum(is_quote)
    before = quotes - is_quote + int(state.in_string)
    outside = (before % 2 == 0) & ~is_quote
    steps = np.where(outside, _DEPTH[chars], 0)
    after = state.depth + np.cumsum(steps)
    if len(after) and after.min() < 0:
        raise DumpError(f"{path} is not JSON: a bracket too many near byte {offset}")
    # An opening bracket stands at the depth that it opens, a closing one at the one it closes.
    depth = after - np.minimum(steps, 0)
    keep = (depth <= _DATA_DEPTH) & (outside | is_quote)
    state.tokens.append(
        np.stack([places[keep] + offset, chars[keep], depth[keep]]).astype(np.int64)
    )
    if len(after):
        state.depth = int(after[-1])
        state.in_string = bool((int(quotes[-1]) + state.in_string) % 2)


def _drop_escaped(chunk: Array, places: Array, is_quote: Array, state: _State) -> None:
    """Clear `is_quote` where an odd number of backslashes stands before the quote."""
    slashes = chunk == _BACKSLASH
    carried, state.backslashes = state.backslashes, 0
    if not carried and not slashes.any():
        return
    # Length of the run of backslashes that ends at each byte, counted from the last other byte.
    order = np.arange(len(chunk), dtype=np.int32)
    last_other = np.maximum.accumulate(np.where(slashes, np.int32(-1), order))
    run = np.where(last_other < 0, order + 1 + carried, order - last_other)
    previous = np.where(places > 0, run[places - 1], carried)
    is_quote &= previous % 2 == 0
    state.backslashes = int(run[-1])


def _members(
    file: BinaryIO, positions: Array, chars: Array, depths: Array, depth: int
) -> list[Member]:
    """Return the members of the one object that stands at `depth` among the tokens."""
    here = depths == depth
    positions, chars = positions[here], chars[here]
    if len(chars) < 2 or chars[0] != ord("{"):
        return []
    colons = np.flatnonzero(chars == _COLON)
    # The key is the string right before the colon: its quotes are the two tokens before it.
    colons = colons[colons >= 2]
    if not len(colons):
        return []
    starts, ends = positions[colons - 2], positions[colons - 1] + 1
    value_starts = positions[colons] + 1
    value_ends = np.append(starts[1:], positions[-1])
    spans = zip(starts, ends, value_starts, value_ends, strict=True)
    return [_member(file, *map(int, span)) for span in spans]


def _member(file: BinaryIO, key_start: int, key_end: int, start: int, end: int) -> Member:
    file.seek(key_start)
    raw = file.read(max(0, key_end - key_start))
    try:
        key = json.loads(raw)
    except ValueError:
        key = raw[1:-1].decode("utf-8", errors="replace")
    return Member(str(key), start, end)


def read_value(file: BinaryIO, member: Member) -> bytes:
    """Return the raw JSON of a member's value, without the comma that follows it."""
    file.seek(member.start)
    return file.read(max(0, member.end - member.start)).rstrip().removesuffix(b",").strip()
