"""The rows of both CSV files, read one after the other, also while a run writes them.

Comes in: a path. Goes out: cells or dicts by heading. Called by the report. A last line that is torn,
or not yet whole, is left out, and the size of the file does not matter.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

from ray_precheck.errors import UsageError
from ray_precheck.foreign import open_file, open_text
from ray_precheck.store.columns import BOM, DETAIL_COLUMNS, RESULT_COLUMNS, cells_of, decode_name
from ray_precheck.store.done import ResultRow, parse_result_row
from ray_precheck.store.rows import row_cells, whole_rows

_HEADINGS = {name.lower(): name for name in (*RESULT_COLUMNS, *DETAIL_COLUMNS)}


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file as dicts by heading, with names as the dump has them."""
    with _opened(path) as (headings, rows):
        for cells in rows:
            padded = [*cells, *[""] * (len(headings) - len(cells))]
            row = dict(zip(headings, padded, strict=False))
            yield {**row, "API Name": decode_name(row.get("API Name", ""))}


def read_columns(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of these columns for each row, "" where the row or the file has none."""
    with _opened(path) as (headings, rows):
        width = len(headings)
        places = {heading: place for place, heading in enumerate(headings)}
        pick = itemgetter(*(places.get(heading, width) for heading in wanted))
        is_whole = places.keys() >= set(wanted)
        blanks = [""] * (width + 1)
        for cells in rows:
            if not is_whole or len(cells) < width:
                cells = [*cells[:width], *blanks][: width + 1]
            yield pick(cells)


def read_results(result: Path) -> Iterator[ResultRow]:
    """Yield the outcome of each call of a result CSV; nothing if there is no file.

    Raises:
        OSError: the file cannot be read.
    """
    yield from map(parse_result_row, read_columns(result, tuple(RESULT_COLUMNS)))


def require_result_csv(path: Path) -> None:
    """Require that a file is a result CSV, or the empty file of a run that has only begun.

    Raises:
        UsageError: it is missing, cannot be read, or has other columns.
    """
    try:
        with open_file(path) as file:
            first = next(whole_rows(file), b"")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    headings = [cell.strip().lower() for cell in row_cells(first.removeprefix(BOM))]
    if first and headings != [heading.lower() for heading in RESULT_COLUMNS]:
        raise UsageError(
            f"{path} is no result CSV: its first line must be {', '.join(RESULT_COLUMNS)}"
        )


def headings_of(path: Path) -> list[str]:
    """Return the headings of a CSV file as ours are written; [] for a file that is missing or empty."""
    with _opened(path) as (headings, _):
        return headings


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Open a CSV file; its headings as ours are written, and the rows that are not empty."""
    if not path.exists():
        yield [], iter(())
        return
    with open_text(path) as file:
        rows = cells_of(_whole_lines(file))
        headings = [_HEADINGS.get(cell.strip().lower(), cell) for cell in next(rows, [])]
        yield headings, filter(None, rows)


def _whole_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines but a last one without its end."""
    before = ""
    for line in lines:
        if before:
            yield before
        before = line
    if before.endswith("\n"):
        yield before
