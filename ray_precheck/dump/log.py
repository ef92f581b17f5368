"""The log of a capture: a dump that grows line by line while its step runs.

Comes in: an open `dump.jsonl`. Goes out: where each record stands in it, and the dump.json that it
becomes. Called by `dump.parse` for a capture that was cut off, and by `capture` at the end of a step.

The first line is the header of a dump.json without `data`; each line after it is an object with one
record, and ends with a line break. What stands behind the last line break was being written when the
process was killed, and is not looked at. The file is read once, in chunks.
"""

import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from ray_precheck.dump.folders import FIELD, KILLED, end_of_dump
from ray_precheck.dump.scan import (
    CHUNK_BYTES,
    ByteRange,
    Member,
    OnProgress,
    key_text,
    member_limit,
    scan_dump,
    too_many,
)
from ray_precheck.errors import DumpError, NothingToCheckError
from ray_precheck.foreign import from_json, shown

LARGEST_HEADER_BYTES = 1 << 20
DATA = b'"data": {\n'
_COMMA = b",\n"
# The beginning of a line, up to the brace of the record; a quote in the key is escaped.
_KEY = re.compile(rb'\{("[^"\\]*(?:\\.[^"\\]*)*"): \{')
_END_KEY = f'"{FIELD}"'.encode()
_span = partial(tuple.__new__, ByteRange)


@dataclass(slots=True)
class Log:
    """The whole lines of a log: its header, the end of the last one in bytes, and the count of records.

    `end` and `records` grow while its members are taken. `cut_short` is why it ends.
    """

    header: bytes
    end: int
    records: int = 0
    cut_short: str = KILLED
    is_ended: bool = False


def scan_log(file: BinaryIO, path: str, on_progress: OnProgress) -> tuple[Log, list[Member]]:
    """Return a log of which nothing but the header is known, and the header's members.

    Raises:
        DumpError: its first line is no header.
        NothingToCheckError: the capture was cut off before its first line was whole.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    line = file.readline(LARGEST_HEADER_BYTES)
    if line.endswith(b"\n"):
        header, _ = scan_dump(io.BytesIO(line), path)
        if "data" in dict(header):
            raise DumpError(f"{path} is a dump.json: its first line has 'data'; name it dump.json")
        on_progress(len(line), size)
        return Log(line, len(line)), header
    if len(line) < LARGEST_HEADER_BYTES and (not line or line.startswith((b"{", b"\0"))):
        raise NothingToCheckError(f"{path} holds no call: the capture was cut off at its beginning")
    raise DumpError(
        f"{path} is no log of a capture: it begins with {shown(line[:20])}, expected is a JSON object"
        " on the first line and one for each record below it"
    )


def log_members(log: Log, file: BinaryIO, path: str, on_progress: OnProgress) -> Iterator[Member]:
    """Yield the records of a log in the order of its lines, and count them in `log`.

    Raises:
        DumpError: a line is no record, or there are more than a file of this size can have.
    """
    size = file.seek(0, os.SEEK_END)
    limit = member_limit(size)
    while log.end < size:
        file.seek(log.end)
        chunk = file.read(min(CHUNK_BYTES, size - log.end))
        whole = chunk.rfind(b"\n") + 1
        if whole:
            yield from _members(log, chunk, whole, path)
        elif (end := _line_end(file, log.end + len(chunk), size)) >= 0:
            yield _long_member(log, chunk, file, end, path)
        else:
            return
        if log.is_ended:
            return
        if log.records > limit:
            raise too_many(path, limit)
        on_progress(log.end, size)


def _members(log: Log, chunk: bytes, whole: int, path: str) -> Iterator[Member]:
    """Yield the records on the whole lines of a chunk, which begins where the log has been read to."""
    base, begin = log.end, 0
    while begin < whole:
        end = chunk.find(b"\n", begin)
        key = _KEY.match(chunk, begin, end)
        if key is None or chunk[end - 2 : end] != b"}}":
            raise _broken(log, chunk[begin:end], path)
        if key[1] == _END_KEY:
            log.cut_short, log.is_ended = reason_of(chunk[begin:end]), True
            return
        log.records += 1
        log.end = base + end + 1
        yield key_text(key[1]), _span((base + key.end() - 1, base + end - 1))
        begin = end + 1


def _long_member(log: Log, chunk: bytes, file: BinaryIO, end: int, path: str) -> Member:
    """Return the record on a line that is longer than a chunk, of which the line break is at `end`."""
    key = _KEY.match(chunk)
    file.seek(end - 2)
    if key is None or file.read(2) != b"}}":
        raise _broken(log, chunk, path)
    span = ByteRange(log.end + key.end() - 1, end - 1)
    log.records += 1
    log.end = end + 1
    return key_text(key[1]), span


def _line_end(file: BinaryIO, start: int, size: int) -> int:
    """Return the position of the first line break from `start` on, -1 where there is none."""
    file.seek(start)
    while start < size and (chunk := file.read(min(CHUNK_BYTES, size - start))):
        if (found := chunk.find(b"\n")) >= 0:
            return start + found
        start += len(chunk)
    return -1


def _broken(log: Log, line: bytes, path: str) -> DumpError:
    return DumpError(
        f"line {log.records + 2} of {path} (byte {log.end}) is {shown(line[:60])}, expected is one record"
        ' of a call, {"NAME": {...}}; copy the log again'
    )


def whole_lines(log: Log, file: BinaryIO) -> Iterator[bytes]:
    """Yield the records of a log as they stand in it, in chunks."""
    position = len(log.header)
    file.seek(position)
    while position < log.end and (chunk := file.read(min(CHUNK_BYTES, log.end - position))):
        position += len(chunk)
        yield chunk


def reason_of(line: bytes) -> str:
    """Return what the last line of a log says of its end."""
    try:
        said = from_json(line)[FIELD]
    except ValueError:
        said = None
    return str(said.get("reason", KILLED)) if isinstance(said, dict) else KILLED


def as_dump(header: bytes, lines: Iterable[bytes], cut_short: str = "") -> Iterator[bytes]:
    """Yield the bytes of the dump.json that a log becomes; `lines` may be cut anywhere.

    Records are not decoded: the borders between the lines become commas, which takes less than a
    millisecond for each megabyte.
    """
    begin = header.rstrip()[:-1]
    yield begin + (b"" if begin == b"{" else b", ") + DATA
    yield from records_text(lines)
    yield end_of_dump(cut_short)


def records_text(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text of `data` behind its brace."""
    kept, first = b"", True
    for chunk in lines:
        if first and chunk:
            chunk, first = chunk[1:], False  # the brace of the first record
        text = kept + chunk
        # A border may be cut here: what may be the beginning of one waits for the next chunk.
        waiting = 2 if text.endswith(b"}\n") else 1 if text.endswith(b"}") else 0
        kept = text[len(text) - waiting :]
        # Line breaks are found in half the time of the border: `replace` looks for each of its bytes.
        records = text[: len(text) - waiting].split(b"\n")
        if len(records) > 1:
            inner = [record[1:-1] for record in records[1:-1]]
            records = [records[0][:-1], *inner, records[-1][1:]]
        yield _COMMA.join(records)
    yield b"\n}"
