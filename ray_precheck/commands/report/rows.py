"""The rows of a result file as a person sees them: the cells of some columns, numbers to three digits.

Comes in: a CSV file, which may be torn, or still be written. Goes out: its rows, some at a time, and
sentences on what could not be read. Called by `encode` for a page, and by `changes` for two runs.
"""

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ray_precheck.foreign import open_file
from ray_precheck.schema.view import Floats, RowColumn, RowTable
from ray_precheck.store.tables import cells_of, decode_name, whole_rows

_ROWS_AT_ONCE = 20_000
_DIGITS = 3


class TableRows:
    """The rows of a CSV file, cells in the order of the columns that a view names; a heading that the file
    lacks gives empty cells."""

    def __init__(self, path: Path, columns: Sequence[RowColumn]) -> None:
        self._path, self._columns = path, columns
        self.notes: list[str] = []

    def pieces(self) -> Iterator[list[tuple[str, ...]]]:
        """Yield some rows at a time."""
        try:
            file = open_file(self._path)
        except OSError as error:
            self.notes.append(f"{self._path} cannot be read: {error.strerror}.")
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            read, odd = 0, 0
            lines = whole_rows(file)
            head = next(lines, b"")
            read += len(head)
            names = next(cells_of([head.decode("utf-8-sig", "replace")]), [])
            where = [
                names.index(each.heading) if each.heading in names else -1 for each in self._columns
            ]
            width = len(names)
            while piece := _some(lines, _ROWS_AT_ONCE):
                read += sum(map(len, piece))
                found = []
                for cells in _parsed(piece):
                    if len(cells) != width:
                        odd += 1
                        cells = (cells + [""] * width)[:width]
                    cells.append("")  # what index -1 finds
                    found.append(tuple([cells[at] for at in where]))
                yield found
            if read < size:
                self.notes.append(
                    f"The last {size - read:,} bytes of {self._path.name} are no whole row (it is being"
                    " written, or the run was killed); they are left out."
                )
            if odd:
                self.notes.append(
                    f"{odd:,} rows of {self._path.name} do not have its {width} cells; what is there is"
                    " shown."
                )


def _some(lines: Iterator[bytes], most: int) -> list[bytes]:
    found = []
    for line in lines:
        found.append(line)
        if len(found) == most:
            break
    return found


def _parsed(lines: list[bytes]) -> Iterable[list[str]]:
    """Return the cells of rows, each of which is whole."""
    text = b"".join(lines).decode("utf-8", "replace")
    try:
        found = list(csv.reader(text.replace("\0", "\ufffd").split("\r\n")[:-1]))
    except csv.Error:
        found = []
    if len(found) == len(lines):
        return found
    # Something in it is quoted over several lines, or ends its lines otherwise.
    return [next(cells_of([line.decode("utf-8", "replace")]), []) for line in lines]


def linked_name(table: RowTable, cells: Sequence[str]) -> str:
    """Return the name of a row of a table, without the label of the table."""
    parts = [decode_name(cells[at]) for at in (*table.name_parts, table.key) if cells[at]]
    name = "/".join(parts)
    return ".".join([name, *(cells[at] for at in table.name_ends if cells[at])])


def three_digits(values: Floats) -> Floats:
    """Return numbers `(N,)` rounded to three digits, those from 0.5 to 1.5 to three digits of their distance
    to 1. Whole numbers below 2**53, NaN and infinity stay."""
    values = np.asarray(values, np.float64)
    is_near = (values >= 0.5) & (values <= 1.5)
    parts = np.where(is_near, 1.0 - values, values)
    with np.errstate(all="ignore"):
        decades = np.floor(np.log10(np.abs(parts)))
        scales = 10.0 ** (_DIGITS - 1 - decades)
        rounded = np.round(parts * scales) / scales
        near = np.round((1.0 - rounded) * scales) / scales
        found = np.where(is_near, near, rounded)
    is_whole = (values == np.round(values)) & (np.abs(values) < 2.0**53)
    return np.where(np.isfinite(found) & ~is_whole, found, values)
