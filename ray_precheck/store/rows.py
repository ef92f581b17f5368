"""The rows of a CSV file as bytes: read one after the other, named, and written back.

Comes in: an open file of any size and age. Goes out: its whole rows with their line ends. Called by
the journal, by repair and by resume; a file of a million rows is never in memory as a whole.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ray_precheck.store.columns import DISTRIBUTION, decode_name, decode_row

_DISTRIBUTION = f".{DISTRIBUTION}".encode()


def whole_rows(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the rows with their line ends; a quoted cell may hold line breaks.

    A torn last row is left out.
    """
    is_open = False
    pending: list[bytes] = []
    for line in lines:
        # Nearly every one of millions of lines; of bytes `in` and `count` take three times as long.
        if not pending and line.find(b'"') < 0:
            if line.endswith(b"\n"):
                yield line
            continue
        is_open ^= line.count(b'"') % 2 == 1
        pending.append(line)
        if is_open:
            continue
        row = b"".join(pending)
        pending.clear()
        if row.endswith(b"\n"):
            yield row


def row_name(row: bytes) -> str:
    """Return the name in the first cell of a row, as the dump has it."""
    return _decoded(_first_cell(row))


def row_cells(row: bytes) -> list[str]:
    """Return the cells of a row; the csv module is asked where something is quoted."""
    if row.find(b'"') >= 0:
        return decode_row(row)
    return row.decode("utf-8", errors="replace").rstrip("\r\n").split(",")


def rows_by_call(rows: Iterable[bytes], parts: int | None) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield for each row the call that it belongs to, what tells it from the other rows of the call, and
    itself.

    `parts` is how many parts of its name a row has behind that of its call: with 3 of them the detail
    row `X.0.forward.output.1` belongs to `X.0`; with 0 a result row to its own name. With None the call
    stands in the last cell. A row of a distribution belongs to no call, but to its own name. Rows that
    follow each other and belong to the same call are given the same string.
    """
    last, call = b"", ""
    for row in rows:
        if parts is None:
            cell, its_call = row, _last_cell(row)
        else:
            cell = _first_cell(row)
            is_own = not parts or cell.endswith(_DISTRIBUTION)
            its_call = cell if is_own else cell.rsplit(b".", parts)[0]
        if its_call != last:
            last, call = its_call, _decoded(its_call)
        yield call, cell, row


def _last_cell(row: bytes) -> bytes:
    """Return the last cell without its quotes; the csv module is slow, so only if it has some."""
    end = row.rstrip(b"\r\n")
    if end.endswith(b'"'):
        return next(reversed(decode_row(row)), "").encode()
    return end.rpartition(b",")[2]


def _first_cell(row: bytes) -> bytes:
    """Return the first cell without its quotes; the csv module is slow, so only if it has some."""
    if row.startswith(b'"'):
        return next(iter(decode_row(row)), "").encode()
    return row.partition(b",")[0]


def _decoded(cell: bytes) -> str:
    return decode_name(cell.decode("utf-8", errors="replace"))


def replace_file(
    path: Path, lines: Iterable[bytes], before_renaming: Callable[[int], None] = lambda fd: None
) -> None:
    """Write lines to a new file and put it in the place of `path`, atomically.

    `before_renaming` is handed the descriptor of the new file, which is whole by then.
    """
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
            before_renaming(file.fileno())
            temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftover(path: Path) -> None:
    """Remove the temporary file that a killed `replace_file` has left beside `path`."""
    _temporary(path).unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")
