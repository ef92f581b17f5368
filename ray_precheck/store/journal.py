"""The two CSV files while a run goes on, and their repair.

Comes in: batches of results. Goes out: rows on disk. Called by the writer actor, the only process
that touches the files while the run goes on, with the token of the run's claim on them. Detail rows
are written first, then the result row as the commit mark: a call with a result row is done, a call
without one was never acknowledged.

A crash, a power loss or a cut may end both files anywhere. `repair` leaves whole rows only, and detail rows
only for calls with a result row, so that a resumed run, or a writer in the place of one that died, can go on
in them. The result CSV comes first: a process that is killed between the two leaves details without a result
row, which the next repair drops.
"""

import contextlib
import errno
import mmap
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ray_precheck.errors import ResumeError, StoppedError
from ray_precheck.foreign import open_file
from ray_precheck.schema.task import Done
from ray_precheck.store.claim import lock_file, locked, require_claim
from ray_precheck.store.heat import HeatLog, finish_heats
from ray_precheck.store.settings import load_settings, mark_completed
from ray_precheck.store.tables import (
    API_TABLES,
    BOM,
    Tables,
    decode_row,
    header,
    replace_file,
    row_name,
    rows_by_call,
    run_files,
    whole_rows,
)

_LONGEST_HEADER = 1000
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
            replace_file(path, chain.from_iterable(_lines(file, *each) for each in kept))
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


class Journal:
    """Appends results to both files. Make one with `open`, or with `reopen` while a run goes on."""

    def __init__(
        self,
        result_path: Path,
        details_path: Path,
        token: str = "",
        tables: Tables = API_TABLES,
    ) -> None:
        self.result_path = result_path
        self.details_path = details_path
        self._token = token
        self._tables = tables
        self._lock_path = run_files(result_path, tables).lock
        self._reopened_with: set[str] | None = None
        # The names of all rows in their order; None where others have written some of them.
        self._names: list[str] | None = []
        columns = _with_added(result_path, tables)
        self._heats = HeatLog(result_path)
        self._result_fd = self._details_fd = -1
        try:
            self._result_fd = _open_to_append(result_path)
            lock_file(self._result_fd)
            self._require_claim()
            self._details_fd = _open_to_append(details_path)
            self._begin(self._details_fd, header(columns.details))
            self._begin(self._result_fd, header(columns.result))
        except (OSError, StoppedError):
            self.close()
            raise

    @classmethod
    def open(
        cls, result_path: Path, details_path: Path, token: str = "", tables: Tables = API_TABLES
    ) -> "Journal":
        """Open both files for appending; an empty or missing file gets its header.

        `token` is that of the run's claim on the files, "" if no other run can have them.

        Raises:
            StoppedError: a file cannot be written, or another run is writing them.
        """
        try:
            return cls(result_path, details_path, token, tables)
        except OSError as error:
            raise _cannot_write(error, result_path) from None

    @classmethod
    def reopen(
        cls, result_path: Path, details_path: Path, token: str = "", tables: Tables = API_TABLES
    ) -> "Journal":
        """Open and repair files whose writer died.

        Results that the dead writer had not acknowledged may be sent again, written or not: rows
        that are in the files already are left out, so no row comes twice and none is missing.

        Raises:
            StoppedError: a file cannot be written, or was removed.
        """
        try:
            with locked(result_path):
                if token:
                    require_claim(run_files(result_path, tables).lock, token)
                names = names_in(result_path, tables)
                repair(result_path, details_path, names, _with_added(result_path, tables))
        except OSError as error:
            raise _cannot_write(error, result_path) from None
        journal = cls.open(result_path, details_path, token, tables)
        journal._reopened_with = names
        return journal

    def append(self, finished: Sequence[Done]) -> None:
        """Write a batch; when this returns, it is on the disk.

        Raises:
            StoppedError: the disk is full, the file is gone, or another run has the files now;
                neither file holds part of the batch. Where a file cannot even be cut back, the next
                repair does that.
        """
        self._require_claim()
        finished = self._without_known(finished)
        details = b"".join([done.details for done in finished])
        rows = b"".join([done.row for done in finished])
        ends: list[tuple[int, int]] = []
        try:
            for path, fd in (
                (self.details_path, self._details_fd),
                (self.result_path, self._result_fd),
            ):
                _require_same_file(path, fd)
                ends.append((fd, os.fstat(fd).st_size))
            self._heats.append(finished)
            self._write(self._details_fd, details)
            self._write(self._result_fd, rows)
        except OSError as error:
            for fd, end in ends:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, end)
            raise _cannot_write(error, self.result_path) from None
        if self._reopened_with is not None:
            self._reopened_with.update(done.name for done in finished)
        if self._names is not None:
            self._names += [done.name for done in finished]

    def _require_claim(self) -> None:
        if self._token:
            require_claim(self._lock_path, self._token)

    def _without_known(self, finished: Sequence[Done]) -> Sequence[Done]:
        known = self._reopened_with
        return [done for done in finished if done.name not in known] if known else finished

    def _begin(self, fd: int, head: bytes) -> None:
        if os.fstat(fd).st_size:
            self._names = None
            return
        try:
            self._write(fd, head)
        except OSError:
            os.ftruncate(fd, 0)
            raise

    def _write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)

    def complete(self, order: Sequence[str]) -> None:
        """Rewrite both files in dump order, each atomically; names not in `order` come last.

        The settings file is told, so that a resume knows that nothing is missing. The result CSV
        stays locked until all is done, the new file from before it has its name.

        Raises:
            StoppedError: a file cannot be written; both keep all their rows.
        """
        self._require_claim()
        settings_path = run_files(self.result_path, self._tables).settings
        paths = self.result_path, self.details_path
        with ExitStack() as locks:
            locks.callback(self.close)

            def lock(fd: int) -> None:
                its_own = os.dup(fd)
                locks.callback(os.close, its_own)
                lock_file(its_own)

            try:
                settings = load_settings(settings_path)
                if settings is not None and settings.is_untouched(*paths):
                    return
                rank = {name: position for position, name in enumerate(order)}
                parts = self._tables.detail_parts
                if not self._is_in(order):
                    _sort_file(self.details_path, rank, parts)
                    _sort_file(self.result_path, rank, 0, before_renaming=lock)
                self._heats.close()
                finish_heats(self.result_path, order)
            except OSError as error:
                raise _cannot_write(error, self.result_path) from None
            mark_completed(settings_path, *paths)

    def _is_in(self, order: Sequence[str]) -> bool:
        """Return whether the rows stand in this order as they came, so that the files need not be read."""
        if self._names is None:
            return False
        names = iter(order)
        return all(name in names for name in self._names)

    def close(self) -> None:
        """Close all files; safe to call twice."""
        self._heats.close()
        for fd in (self._result_fd, self._details_fd):
            if fd >= 0:
                os.close(fd)
        self._result_fd = self._details_fd = -1


def _with_added(result: Path, tables: Tables) -> Tables:
    """Return the tables with the columns that the settings beside a result table add to the details."""
    settings = load_settings(run_files(result, tables).settings)
    added = () if settings is None else settings.added_columns
    return replace(tables, details=(*tables.details, *added))


def _open_to_append(path: Path) -> int:
    # The driver has seen that it is a regular file; the disk of `scripts.histories` stands in for `os` here.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def _cannot_write(error: OSError, path: Path) -> StoppedError:
    return StoppedError(
        f"cannot write the results to {path.parent}: {error.strerror or error};"
        " all acknowledged rows are on disk"
    )


def _require_same_file(path: Path, fd: int) -> None:
    """Raise if the name of a file stands for another file now: rows that are written would be
    lost."""
    try:
        if os.path.samestat(path.stat(), os.fstat(fd)):
            return
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "the file was removed") from None
    raise FileExistsError(errno.EEXIST, "the file was replaced by another one")


def _sort_file(
    path: Path,
    rank: Mapping[str, int],
    parts: int | None,
    *,
    before_renaming: Callable[[int], None] = lambda fd: None,
) -> None:
    """Put the rows below the header in the order of the rank of their pieces, the unknown last.

    `parts` is how many parts of its name a row has behind that of its piece.

    Rows of one call keep their order: forward before backward, by their number. Memory holds the
    positions of the rows, not the rows.
    """
    ranks, begins = array("q"), array("q")
    last = None
    with open_file(path) as file:
        rows = whole_rows(file)
        end = len(next(rows, b""))
        for call, _, row in rows_by_call(rows, parts):
            if call is not last:
                last = call
                ranks.append(rank.get(call, len(rank)))
                begins.append(end)
            end += len(row)
        begins.append(end)
        if np.all(np.diff(ranks) >= 0):
            return
        order = np.argsort(ranks, kind="stable").tolist()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            sorted_rows = (data[begins[each] : begins[each + 1]] for each in order)
            replace_file(path, chain([data[: begins[0]]], sorted_rows), before_renaming)
