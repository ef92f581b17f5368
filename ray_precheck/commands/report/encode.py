"""Arrays, names and rows as a page holds them: gzip in base64, which the browser unpacks when it needs them.

Comes in: arrays, lists of strings, and tables, whose CSV files are read once, piece by piece. Goes out: the
texts of the page's elements, and the objects that refer to them (`web/src/types.ts` says how). Called by
`page`.

Numbers of a table are kept to three digits (`three_digits`): the CSV file has all of them. So a column of a
million numbers has a few thousand different ones.
"""

import base64
import gzip
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_precheck.commands.report.rows import TableRows, linked_name, three_digits
from ray_precheck.schema.view import CellKind, Floats, RowColumn, RowTable
from ray_precheck.store.tables import decode_name, encode_name

# A cell of a million characters helps nobody who looks for a row.
_LONGEST_CELL = 2_000
# Level 9 takes three times as long as 6 for 2 % less.
_LEVEL = 6


class PageBlobs:
    """Collects what stands in elements of its own; `texts` are their texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def array(self, values: NDArray[Any]) -> dict[str, Any]:
        """Add an array in the order of C, as little endian numbers."""
        flat = np.ascontiguousarray(values).reshape(-1)
        kind = flat.dtype.name
        if kind in ("int64", "uint64"):
            flat, kind = flat.astype(np.int32), "int32"
        return self._add(flat.astype(flat.dtype.newbyteorder("<")).tobytes(), kind, flat.size)

    def codes(self, values: NDArray[Any], count: int) -> dict[str, Any]:
        """Add indices below `count`, in the smallest type that holds them."""
        kinds = (np.uint8, np.uint16, np.uint32)
        return self.array(
            values.astype(next(kind for kind in kinds if count <= np.iinfo(kind).max + 1))
        )

    def strings(self, values: Sequence[str]) -> dict[str, Any]:
        """Add strings; of a longer one than 2,000 characters the beginning."""
        return self._add(b"\0".join(map(_cell_bytes, values)), "strings", len(values))

    def joined(self, data: bytes, length: int) -> dict[str, Any]:
        """Add `length` strings that are joined by zeros."""
        return self._add(data, "strings", length)

    def _add(self, data: bytes, kind: str, length: int) -> dict[str, Any]:
        packed = gzip.compress(data, _LEVEL, mtime=0)
        self.texts.append(base64.b64encode(packed).decode())
        return {"blob": len(self.texts) - 1, "dtype": kind, "length": length}


def cut_text(text: str, most: int) -> str:
    """Return a text, of a longer one than `most` characters the beginning and how many it has."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _cell_bytes(text: str) -> bytes:
    return (
        cut_text(text, _LONGEST_CELL)
        .encode("utf-8", "backslashreplace")
        .replace(b"\0", b"\xef\xbf\xbd")
    )


def encode_table(table: RowTable, blobs: PageBlobs) -> dict[str, Any]:
    """Return a table as the page has it; its columns stand in `blobs`.

    Where the cells of one column do not tell rows apart, one more column, which is not shown, has their
    names, and `key` is its place. A file that is gone, torn or has rows of another width is read as far as it
    goes, and `note` says so.
    """
    columns = [_COLUMNS[column.kind](column) for column in table.columns]
    key = table.key
    if table.name_parts or table.name_ends:
        key = len(columns)
        columns.append(_Words(RowColumn("Name", CellKind.NAME), is_hidden=True))
    rows, notes = 0, []
    if table.path is None:
        _take(table, columns, table.rows)
        rows = len(table.rows)
    else:
        reader = TableRows(table.path, table.columns)
        for piece in reader.pieces():
            _take(table, columns, piece)
            rows += len(piece)
        notes = reader.notes
    return {
        "kind": "RowTable",
        "title": table.title,
        "label": table.label,
        "columns": [column.encoded(blobs, rows) for column in columns],
        "rows": rows,
        "key": key,
        "tones": {word: tone.value for word, tone in table.tones.items()},
        "file": "" if table.path is None else str(table.path),
        "note": " ".join(notes),
    }


def _take(
    table: RowTable, columns: Sequence["_Words | _Numbers"], rows: Sequence[Sequence[str]]
) -> None:
    for column, cells in zip(columns, zip(*rows, strict=True), strict=False):
        column.add(cells)
    if len(columns) > len(table.columns):
        columns[-1].add([encode_name(linked_name(table, cells)) for cells in rows])


class _Words:
    """A column of words: each different one once. Those of a name are kept as they come, since hardly any
    stands twice."""

    def __init__(self, column: RowColumn, *, is_hidden: bool = False) -> None:
        self._column, self._is_hidden = column, is_hidden
        self._is_name = column.kind is CellKind.NAME
        self._known: dict[str, int] = {}
        self._codes = array("I")
        self._joined: list[bytes] = []
        self._count = 0

    def add(self, cells: Sequence[str]) -> None:
        if self._is_name:
            self._joined.append(b"\0".join(_cell_bytes(decode_name(cell)) for cell in cells))
            self._count += len(cells)
            return
        known = self._known
        self._codes.extend([known.setdefault(cell, len(known)) for cell in cells])

    def encoded(self, blobs: PageBlobs, rows: int) -> dict[str, Any]:
        head = {
            "heading": self._column.heading,
            "kind": self._column.kind.value,
            "hidden": self._is_hidden,
        }
        if self._is_name:
            words = blobs.joined(b"\0".join(self._joined), self._count)
            return {**head, "words": words, "codes": None}
        codes = np.frombuffer(self._codes, np.uint32) if rows else np.empty(0, np.uint32)
        return {
            **head,
            "words": blobs.strings(list(self._known)),
            "codes": blobs.codes(codes, len(self._known)),
        }


class _Numbers:
    """A column of numbers; cells that are none are words behind them."""

    def __init__(self, column: RowColumn) -> None:
        self._column = column
        self._values: list[Floats] = []
        self._words: dict[str, int] = {}
        self._odd: list[NDArray[np.int64]] = []

    def add(self, cells: Sequence[str]) -> None:
        numbers = np.empty(len(cells))
        odd = np.full(len(cells), -1, np.int64)
        for index, cell in enumerate(cells):
            try:
                numbers[index] = float(cell)
            except ValueError:
                numbers[index] = np.nan
                odd[index] = self._words.setdefault(cell, len(self._words))
        is_nan = np.isnan(numbers) & (odd < 0)
        if is_nan.any():
            odd[is_nan] = self._words.setdefault("nan", len(self._words))
        self._values.append(three_digits(numbers))
        self._odd.append(odd)

    def encoded(self, blobs: PageBlobs, rows: int) -> dict[str, Any]:
        numbers = np.concatenate([*self._values, np.empty(0)])
        odd = np.concatenate([*self._odd, np.empty(0, np.int64)])
        is_number = odd < 0
        values, places = np.unique(numbers[is_number], return_inverse=True)
        codes = odd + len(values)
        codes[is_number] = places.reshape(-1)
        return {
            "heading": self._column.heading,
            "kind": "number",
            "values": blobs.array(values),
            "words": blobs.strings(list(self._words)),
            "codes": blobs.codes(codes, len(values) + len(self._words)),
        }


_COLUMNS: dict[CellKind, type[_Words] | type[_Numbers]] = {
    CellKind.NAME: _Words,
    CellKind.TEXT: _Words,
    CellKind.TONE: _Words,
    CellKind.NUMBER: _Numbers,
}
