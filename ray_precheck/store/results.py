"""The verdicts of a run's calls, read from its rows, and which calls are done.

Comes in: both files as they were left, and the calls of the dump. Goes out: `ResultRow`s and names.
Nothing is changed. Called by resume and by the report.

Also here: both CSV files of a run as pandas data frames.

The rows of both CSV files, read one after the other, also while a run writes them. A last line that is
torn, or not yet whole, is left out, and the size of the file does not matter.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ray_precheck.errors import UsageError
from ray_precheck.foreign import open_file, open_text
from ray_precheck.schema.result import MACHINE_REASONS, Verdict, call_verdict, verdict_in
from ray_precheck.store.journal import rows_below
from ray_precheck.store.tables import (
    ADDED_TEXTS,
    API_TABLES,
    BOM,
    DETAIL_COLUMNS,
    DISTRIBUTION,
    RESULT_COLUMNS,
    Tables,
    cells_of,
    decode_name,
    row_cells,
    rows_by_call,
    whole_rows,
)

if TYPE_CHECKING:
    import pandas

# The part of the Message that tells of all calls of a random operator; it is always the last one.
OPERATOR_NOTE = re.compile(rf"(?:^|; ){DISTRIBUTION}: .*$")
_OUTPUTS = ("forward.output.", "forward.changed.", "backward.output.")


class ResultRow(NamedTuple):
    """A row of the result CSV: the name as the dump has it, and the verdicts of both directions."""

    name: str
    forward: Verdict
    backward: Verdict
    message: str

    @property
    def verdict(self) -> Verdict:
        """The verdict of the whole call."""
        return call_verdict(self.forward, self.backward)

    @property
    def is_error(self) -> bool:
        """Whether a direction is in error."""
        return self.verdict is Verdict.ERROR

    @property
    def is_skip(self) -> bool:
        """Whether a direction could not be checked, and not for an error in the other one."""
        return self.verdict is Verdict.SKIP

    @property
    def is_crash(self) -> bool:
        """Whether the machine is to blame: a crash, a time-out, memory, a lost node."""
        return self.is_error and self.message.startswith(MACHINE_REASONS)

    @property
    def is_of_operator(self) -> bool:
        """Whether the draws of all calls of its operator together are in error."""
        return self.is_error and OPERATOR_NOTE.search(self.message) is not None

    @property
    def has_details(self) -> bool:
        """Whether an output was compared, so that there is a detail row."""
        if Verdict.PASS in (self.forward, self.backward):
            return True
        return self.is_error and any(part in self.message for part in _OUTPUTS)

    @property
    def forward_broke(self) -> bool:
        """Whether the forward pass gave nothing to compare: the device raised, crashed or hung."""
        if self.forward is not Verdict.ERROR:
            return False
        return self.message.startswith(MACHINE_REASONS) or bool(_RAISED.search(self.message))

    @property
    def backward_broke(self) -> bool:
        """Whether the backward pass gave nothing to compare: the device raised."""
        return self.backward is Verdict.ERROR and bool(_BACKWARD_RAISED.search(self.message))

    @property
    def broke(self) -> bool:
        """Whether the call is in error, and no number of it is."""
        wrong_forward = self.forward is Verdict.ERROR and not self.forward_broke
        wrong_backward = self.backward is Verdict.ERROR and not self.backward_broke
        return self.is_error and not wrong_forward and not wrong_backward


# The Message of a device that raised (`check.judge`), and of a backward pass that did.
_RAISED = re.compile(r"(?:^|; )the device raised where the bench is fine")
_BACKWARD_RAISED = re.compile(r"(?:^|; )backward: the device raised where the bench is fine")

RETRY_KINDS: dict[str, Callable[[ResultRow], bool]] = {
    "error": lambda row: row.is_error,
    "skip": lambda row: row.is_skip,
    "crash": lambda row: row.is_crash,
    "all": lambda row: True,
}


def read_done(
    result: Path, names: Set[str], retry: Collection[str] = (), tables: Tables = API_TABLES
) -> tuple[set[str], set[str]]:
    """Return the names with a result row, and those of them that must have detail rows.

    Rows of a kind in `retry` are left out; with one whose error is that of all calls of its operator, all
    of these. A row without a call in the dump always counts as done,
    because no run could make it again.

    Raises:
        ResumeError: the file has other columns.
        OSError: the file cannot be read.
    """
    done: set[str] = set()
    again: set[str] = set()
    operators: set[str] = set()
    with_details: set[str] = set()
    for row in _result_rows(result, tables):
        name = row.name
        if name in done or name in again:
            continue  # If a row occurs twice, the first counts.
        if retry and name in names and any(RETRY_KINDS[kind](row) for kind in retry):
            again.add(name)
            if row.is_of_operator:
                operators.add(name.rsplit(".", 1)[0])
            continue
        done.add(name)
        if tables.needs_details and row.has_details:
            with_details.add(name)
    if operators:
        done = {n for n in done if n not in names or n.rsplit(".", 1)[0] not in operators}
    return done, with_details & done


def count_verdicts(result: Path, names: Set[str], tables: Tables = API_TABLES) -> Counter[Verdict]:
    """Return how many of these calls have which verdict, going by the first row of each.

    Raises:
        ResumeError: the file has other columns.
        OSError: the file cannot be read.
    """
    counts: Counter[Verdict] = Counter()
    seen: set[str] = set()
    for row in _result_rows(result, tables):
        if row.name in names and row.name not in seen:
            seen.add(row.name)
            counts[row.verdict] += 1
    return counts


def _result_rows(path: Path, tables: Tables) -> Iterator[ResultRow]:
    width = len(tables.result)
    with open_file(path) as file:
        for row in rows_below(file, tables.result):
            cells = row_cells(row)
            if len(cells) < width:
                if not any(cells):
                    continue
                cells += [""] * width
            yield parse_result_row(cells, tables)


def parse_result_row(cells: Sequence[str], tables: Tables = API_TABLES) -> ResultRow:
    """Return a result row made of its cells, given in their order."""
    forward, *others = map(
        verdict_in, cells[tables.verdict_at : tables.verdict_at + tables.verdicts]
    )
    backward = others[0] if others else Verdict.NONE
    return ResultRow(decode_name(cells[0]), forward, backward, cells[len(tables.result) - 1])


def without_details(details: Path, calls: Set[str], tables: Tables = API_TABLES) -> set[str]:
    """Return which of the calls have no detail row, and the call of the last detail row.

    A power loss makes no such call, for details are on the disk before their result row. A cut of
    the file does, and it may have gone between the detail rows of the last call.

    Raises:
        ResumeError: the file has other columns.
        OSError: the file cannot be read.
    """
    missing, call = set(calls), ""
    if not details.exists():
        return missing
    with open_file(details) as file:
        rows = rows_below(file, tables.details)
        for call, _, _ in rows_by_call(rows, tables.detail_parts):
            missing.discard(call)
    return missing | {call}


_HEADINGS = {name.lower(): name for name in (*RESULT_COLUMNS, *DETAIL_COLUMNS)}


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


_METRICS = ("Cosine", "MaxAbsErr", "MaxRelativeErr")
# Every other column of ours is text.
_TEXTS = frozenset([*RESULT_COLUMNS, *DETAIL_COLUMNS, *ADDED_TEXTS])


def read_table(path: Path) -> "pandas.DataFrame":
    """Return the rows of a result or details CSV; text stays as it is, empty cells are "".

    Metrics, those that a standard adds too, are float64, with NaN in cells that hold no number: rows
    of outputs that are no tensors, or in which nothing could be compared.

    Raises:
        OSError: the file cannot be read.
    """
    import pandas

    table = pandas.read_csv(path, encoding="utf-8-sig", keep_default_na=False, dtype=str)
    for heading in table.columns:
        cells = table[heading].str.strip()
        numbers = pandas.to_numeric(cells, errors="coerce").astype("float64")
        is_blank = cells.str.lower().isin(["", "nan"])
        is_added_metric = heading not in _TEXTS and (numbers.notna() | is_blank).all()
        if heading in _METRICS or is_added_metric:
            table[heading] = numbers
    return table
