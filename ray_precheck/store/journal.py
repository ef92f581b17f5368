"""The two CSV files while a run goes on.

Comes in: batches of results. Goes out: rows on disk. Called by the writer actor, the only process
that touches the files while the run goes on, with the token of the run's claim on them. Detail rows
are written first, then the result row as the commit mark: a call with a result row is done, a call
without one was never acknowledged.
"""

import contextlib
import errno
import mmap
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from ray_precheck.errors import StoppedError
from ray_precheck.foreign import open_file
from ray_precheck.schema.task import Done
from ray_precheck.store.claim import lock_file, locked, require_claim
from ray_precheck.store.repair import names_in, repair
from ray_precheck.store.resume import run_files
from ray_precheck.store.settings import load_settings, mark_completed
from ray_precheck.store.tables import (
    API_TABLES,
    Tables,
    header,
    replace_file,
    rows_by_call,
    whole_rows,
)


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
            for path, fd in self._open_files():
                _require_same_file(path, fd)
                ends.append((fd, os.fstat(fd).st_size))
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

    def _open_files(self) -> tuple[tuple[Path, int], tuple[Path, int]]:
        return (self.details_path, self._details_fd), (self.result_path, self._result_fd)

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
        """Close both files; safe to call twice."""
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
