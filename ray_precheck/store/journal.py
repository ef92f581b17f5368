"""The two CSV files while a run goes on.

Comes in: batches of results. Goes out: rows on disk. Called by the writer actor, the only one that
touches the files. Detail rows are written first, then the result row as the commit mark: what has
a result row is done, what has none was never acknowledged.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ray_precheck.errors import StoppedError
from ray_precheck.schema.result import TaskResult
from ray_precheck.store.columns import (
    DETAIL_COLUMNS,
    RESULT_COLUMNS,
    call_of_detail,
    decode_name,
    decode_row,
    detail_rows,
    header,
    result_row,
)


class Journal:
    """Appends results to both files. Open it with `create` or, after `repair`, with `resume`."""

    def __init__(self, result_path: Path, details_path: Path) -> None:
        self.result_path = result_path
        self.details_path = details_path
        self._result_fd = os.open(result_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._details_fd = os.open(details_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @classmethod
    def open(cls, result_path: Path, details_path: Path) -> "Journal":
        """Open both files for appending; an empty or missing file gets its header.

        Raises:
            StoppedError: a file cannot be written.
        """
        try:
            journal = cls(result_path, details_path)
            journal._begin(journal._details_fd, header(DETAIL_COLUMNS))
            journal._begin(journal._result_fd, header(RESULT_COLUMNS))
        except OSError as error:
            raise _cannot_write(error, result_path) from None
        return journal

    def append(self, results: Sequence[TaskResult]) -> None:
        """Write a batch; when this returns, it is on the disk.

        Raises:
            StoppedError: the disk is full or the file is gone; neither file holds part of the batch.
        """
        details = b"".join(detail_rows(result) for result in results)
        rows = b"".join(result_row(result) for result in results)
        ends = [(fd, os.fstat(fd).st_size) for fd in (self._details_fd, self._result_fd)]
        try:
            for path in (self.details_path, self.result_path):
                if not path.exists():
                    raise FileNotFoundError(2, "the file was removed", str(path))
            self._write(self._details_fd, details)
            self._write(self._result_fd, rows)
        except OSError as error:
            for fd, end in ends:
                os.ftruncate(fd, end)
            raise _cannot_write(error, self.result_path) from None

    def _begin(self, fd: int, head: bytes) -> None:
        if os.fstat(fd).st_size:
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

        Raises:
            StoppedError: a file cannot be written; both keep all their rows.
        """
        self.close()
        try:
            rank = {name: position for position, name in enumerate(order)}
            _sort_file(self.details_path, lambda name: rank.get(call_of_detail(name), len(rank)))
            _sort_file(self.result_path, lambda name: rank.get(name, len(rank)))
        except OSError as error:
            raise _cannot_write(error, self.result_path) from None

    def close(self) -> None:
        """Close both files; safe to call twice."""
        for fd in (self._result_fd, self._details_fd):
            if fd >= 0:
                os.close(fd)
        self._result_fd = self._details_fd = -1


def _cannot_write(error: OSError, path: Path) -> StoppedError:
    return StoppedError(
        f"cannot write the results to {path.parent}: {error.strerror or error};"
        " what was acknowledged is on disk"
    )


def row_name(line: bytes) -> str:
    """Return the name in the first cell of a row, as the dump has it."""
    cells = decode_row(line)
    return decode_name(cells[0]) if cells else ""


def split_rows(data: bytes) -> list[bytes]:
    """Return the rows of a CSV file with their line ends; quoted cells may hold line breaks."""
    rows: list[bytes] = []
    pending = b""
    for line in data.splitlines(keepends=True):
        pending += line
        if pending.count(b'"') % 2 == 0:
            rows.append(pending)
            pending = b""
    return [*rows, pending] if pending else rows


def replace_file(path: Path, lines: Iterable[bytes]) -> None:
    """Write lines to a new file and put it in the place of `path`, atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _sort_file(path: Path, rank: Callable[[str], int]) -> None:
    head, *rows = split_rows(path.read_bytes())
    # sorted() is stable: the detail rows of a call keep their order, forward before backward.
    replace_file(path, [head, *sorted(rows, key=lambda line: rank(row_name(line)))])
