"""The repair of both files: whole rows only, and detail rows only for calls with a result row.

Comes in: two files that a crash, a power loss or a cut has ended anywhere. Goes out: files that can
be gone on with. Called by resume, and by `Journal.reopen` for a writer that died.

The result CSV comes first. A process that is killed between the two leaves details without a result
row, which the next repair drops.
"""

import os
from collections.abc import Iterable, Iterator, Set
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from ray_precheck.errors import ResumeError, StoppedError
from ray_precheck.foreign import open_file
from ray_precheck.store.tables import (
    API_TABLES,
    BOM,
    Tables,
    decode_row,
    header,
    replace_file,
    row_name,
    rows_by_call,
    whole_rows,
)

_LONGEST_HEADER = 1000
_CHUNK_BYTES = 1 << 20
_END = b"\r\n"


def repair(result: Path, details: Path, done: Set[str], tables: Tables = API_TABLES) -> None:
    """Keep the first result row of every name in `done`, and its detail rows; drop all else.

    A torn last line is cut and a torn header mended. A missing, empty or header-only file is fine.

    Raises:
        ResumeError: a file has other columns; nothing is changed in it.
        StoppedError: a file cannot be written; it is as it was.
    """
    for path, columns, parts in (
        (result, tables.result, 0),
        (details, tables.details, tables.detail_parts),
    ):
        try:
            if path.exists():
                _repair_file(path, columns, done, parts)
        except OSError as error:
            raise StoppedError(f"cannot write {path}: {error.strerror or error}") from None


def names_in(result: Path, tables: Tables = API_TABLES) -> set[str]:
    """Return the names that have a whole result row; none where the file has no rows."""
    with open_file(result) as file:
        return {row_name(row) for row in rows_below(file, tables.result)}


def rows_below(file: BinaryIO, columns: Iterable[str]) -> Iterator[bytes]:
    """Return the whole rows below the header; none for an empty file and a torn header.

    Raises:
        ResumeError: the file has other columns.
    """
    rows = whole_rows(file)
    _read_head(file, rows, columns)
    return rows


def decoded_rows(path: Path, columns: Iterable[str]) -> Iterator[list[str]]:
    """Yield the cells of the whole rows of a file, as `rows_below` finds them."""
    with open_file(path) as file:
        yield from map(decode_row, rows_below(file, columns))


def _read_head(file: BinaryIO, rows: Iterator[bytes], columns: Iterable[str]) -> bytes:
    """Return the header that the rows begin with, b"" where it is torn or not there yet."""
    head = next(rows, b"")
    if not head:
        file.seek(0)
        if _is_torn_header(file.read(_LONGEST_HEADER), header(columns)):
            return b""
    elif _is_header(head, columns):
        return head
    expected = ", ".join(columns)
    raise ResumeError(f"cannot resume {file.name}: its first line must be {expected}")


def _is_header(line: bytes, columns: Iterable[str]) -> bool:
    # msprobe's PyTorch precheck writes "API name", and pads rows with blanks.
    found = [cell.strip().lower() for cell in decode_row(line.rstrip(b"\r\n"))]
    return found == [heading.lower() for heading in columns]


def _is_torn_header(data: bytes, head: bytes) -> bool:
    begins = (head.lower(), head.removeprefix(BOM).lower())
    return any(begin.startswith(data.lower()) for begin in begins)


def _repair_file(path: Path, columns: Iterable[str], done: Set[str], parts: int | None) -> None:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        rows = whole_rows(file)
        head = _read_head(file, rows, columns)
        if not head:
            if size:
                replace_file(path, [header(columns)])
            return
        # Ours end with CRLF; rows of msprobe, or of an editor, may not, and a file has one kind of ends.
        others = [not head.endswith(_END)]
        kept = _kept_ranges(rows_by_call(_noting_ends(rows, others), parts), done, len(head))
        if any(others):
            rows = whole_rows(chain.from_iterable(_lines(file, *each) for each in kept))
            replace_file(path, (row.rstrip(b"\r\n") + _END for row in rows))
        elif len(kept) > 1:
            replace_file(path, chain.from_iterable(_read_range(file, *each) for each in kept))
        elif kept != [(0, size)]:
            _cut(path, kept[0][1])


def _cut(path: Path, size: int) -> None:
    """Cut a file in its place; a process that is killed meanwhile leaves it either as it was or
    cut."""
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def _kept_ranges(
    rows: Iterable[tuple[str, bytes, bytes]], done: Set[str], begin: int
) -> list[tuple[int, int]]:
    """Return the byte ranges of a file that are kept; its rows begin at byte `begin`.

    If rows occur twice, the first ones are kept. The rows of a call stand together, so a call whose
    rows begin a second time occurs twice.
    """
    ranges: list[tuple[int, int]] = []
    left = set(done)
    current, is_kept = None, False
    cells: set[bytes] = set()
    start = 0
    end = begin
    for call, cell, row in rows:
        if call is not current:
            current, is_kept = call, call in left
            left.discard(call)
            cells.clear()
        if not is_kept or cell in cells:
            if start < end:
                ranges.append((start, end))
            start = end + len(row)
        cells.add(cell)
        end += len(row)
    if start < end:
        ranges.append((start, end))
    return ranges


def _noting_ends(rows: Iterable[bytes], others: list[bool]) -> Iterator[bytes]:
    """Yield rows, and note once whether one ends otherwise than ours."""
    for row in rows:
        if not others[-1] and not row.endswith(_END):
            others.append(True)
        yield row


def _lines(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end:
        line = file.readline()
        start += len(line)
        yield line


def _read_range(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end:
        chunk = file.read(min(_CHUNK_BYTES, end - start))
        start += len(chunk)
        yield chunk
