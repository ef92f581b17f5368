"""The summary of a comparison: how many pairs differ, which first, and what has no partner.

Comes in: the two tables of a comparison. Goes out: a `ComparisonSummary` and its closing lines.
Called by the session and the command. The rows stand in the order of the target's records, in which data
flows, so that the first error, and those whose inputs are in none, are where differences begin.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.foreign import open_file, printable
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED
from ray_precheck.options.commands import PASSED as PASSED_CODE
from ray_precheck.store.journal import rows_below
from ray_precheck.store.tables import Tables, decode_name, row_cells
from ray_precheck.trace.difference.limits import messages_in
from ray_precheck.trace.difference.rows import BY_STATISTICS
from ray_precheck.trace.difference.standards.megengine import error_told

ERROR, WARNING, UNMATCHED, PASSED = "error", "warning", "unmatched", "pass"
# Pairs in error whose inputs are not.
_OWN = "own"
_OF_OUTPUT = re.compile(r"(?:[^:\s]+\.)?output(?:\.[^:\s]+)?: ")
_SHOWN = 5
_SHARES = (50, 90, 99)
_LONGEST_LINE = 160


@dataclass(frozen=True, slots=True)
class CallRow:
    """A row of `compare_calls_*.csv`: a pair of records."""

    name: str
    result: str
    golden: str
    match: str
    rows: int
    relative_l2: str
    module: str
    source: str
    message: str


@dataclass(frozen=True, slots=True)
class ComparisonSummary:
    """How a comparison ended.

    `first` are the first pair in error in the order of the target's records, then those whose inputs are in
    no error (`blamed` with the first), then others; `lone` the first ones without a partner; `results` counts
    pairs, `tensors` their rows, and `matches` pairs by how they were found. `lone_rows` counts rows without
    a partner in pairs that have one, `unread` pairs with a warning that files of tensors could not be read.
    `note` is a sentence about captures that cannot agree, "" for none. `errors` are those of the outputs by
    the measure of `--standard megengine`, of which quantiles are candidates for its limit; empty with others.
    """

    calls: Path
    result: Path
    total: int
    results: Counter[str] = field(default_factory=Counter)
    tensors: int = 0
    matches: Counter[str] = field(default_factory=Counter)
    first: tuple[CallRow, ...] = ()
    blamed: int = 0
    warned: tuple[CallRow, ...] = ()
    lone: tuple[CallRow, ...] = ()
    lone_rows: int = 0
    note: str = ""
    unread: int = 0
    errors: Sequence[float] = ()

    @property
    def done(self) -> int:
        """How many pairs have a row."""
        return self.results.total()

    @property
    def compared_nothing(self) -> bool:
        """Whether no tensor of one side was compared with one of the other."""
        return not (self.results[PASSED] or self.results[WARNING] or self.results[ERROR])


def summarise_comparison(
    calls: Path, result: Path, tables: Tables, total: int
) -> ComparisonSummary:
    """Read the table of calls; `total` is how many pairs there are."""
    results: Counter[str] = Counter()
    matches: Counter[str] = Counter()
    shown: dict[str, list[CallRow]] = {_OWN: [], ERROR: [], WARNING: [], UNMATCHED: []}
    tensors = lone_rows = unread = 0
    headings = ("Result", "Match", "Rows", "Unmatched", "Message")
    result_at, match_at, rows_at, lone_at, message_at = map(tables.result.index, headings)
    for cells in _cells(calls, tables):
        outcome = cells[result_at]
        results[outcome] += 1
        matches[cells[match_at]] += 1
        tensors += int(cells[rows_at] or 0)
        lone_rows += int(cells[lone_at] or 0) if outcome != UNMATCHED else 0
        unread += outcome == WARNING and BY_STATISTICS in cells[message_at]
        # Of the first pair of all an input may be in error that no call has made, such as a weight.
        is_first = outcome == ERROR and results[ERROR] == 1
        is_own = outcome == ERROR and is_of_output(cells[message_at])
        kind = _OWN if is_first or is_own else outcome
        if kind in shown and len(shown[kind]) < _SHOWN:
            shown[kind].append(_row(dict(zip(tables.result, cells, strict=True))))
    return ComparisonSummary(
        calls,
        result,
        total,
        results,
        tensors,
        matches,
        tuple([*shown[_OWN], *shown[ERROR]][:_SHOWN]),
        len(shown[_OWN]),
        tuple(shown[WARNING]),
        tuple(shown[UNMATCHED]),
        lone_rows,
        unread=unread,
    )


def errors_told(rows: Path, tables: Tables) -> list[float]:
    """Return the errors of outputs that the messages of the rows of tensors tell, in rising order."""
    found = []
    with open_file(rows) as file:
        for raw in rows_below(file, tables.details):
            for cell in row_cells(raw):
                if "error " in cell and cell[:1] == "[":
                    found += [
                        error
                        for text in messages_in(cell)
                        if (error := error_told(text)) is not None
                    ]
    return sorted(found)


def _cells(calls: Path, tables: Tables) -> Iterator[list[str]]:
    """Yield the cells of each row; a row that others have cut has empty ones at its end."""
    if not calls.exists():
        return
    width = len(tables.result)
    with open_file(calls) as file:
        for raw in rows_below(file, tables.result):
            cells = row_cells(raw)
            yield (cells + [""] * width)[:width] if len(cells) != width else cells


def _row(cells: Mapping[str, str]) -> CallRow:
    return CallRow(
        decode_name(cells["Call"]),
        cells["Result"],
        decode_name(cells["Golden Call"]),
        cells["Match"],
        int(cells["Rows"] or 0),
        cells["Relative L2"],
        cells["Module"],
        cells["Source"],
        cells["Message"],
    )


def format_comparison_summary(summary: ComparisonSummary, label: str = "") -> str:
    """Return the closing lines of a comparison."""
    lines = [f"\n{label}" if label else "", *filter(None, [summary.note])]
    counts = ", ".join(
        f"{summary.results[each]} {each}" for each in (PASSED, WARNING, ERROR, UNMATCHED)
    )
    lines.append(
        f"{summary.done} of {summary.total} pairs of records, {summary.tensors} rows: {counts}"
    )
    if summary.lone_rows:
        lines.append(
            f"{summary.lone_rows} rows of these pairs are unmatched, too: only one side has the value, or"
            " each rank has its own"
        )
    if summary.unread:
        pairs = "pair has" if summary.unread == 1 else "pairs have"
        lines.append(
            f"{summary.unread} {pairs} tensors whose files cannot be read: their statistics were compared"
        )
    others = {
        how: count for how, count in summary.matches.items() if how not in ("exact", UNMATCHED)
    }
    if others:
        paired = ", ".join(f"{count} {how}" for how, count in sorted(others.items()))
        lines.append(f"paired though their names differ: {paired}")
    title = "first errors, in the order of the run:"
    if summary.blamed < len(summary.first):
        title = (
            "errors: the first of the run, then calls whose inputs are in no error, then others:"
        )
    lines += _listed(title, summary.first, summary.results[ERROR])
    if not summary.first:
        lines += _listed("first warnings:", summary.warned, summary.results[WARNING])
    lines += _listed("without a partner:", summary.lone, summary.results[UNMATCHED])
    if summary.errors:
        told = ", ".join(
            f"{name} {value:.3g}" for name, value in _quantiles(summary.errors).items()
        )
        lines.append(f"errors of {len(summary.errors)} variables, candidates for --max-err: {told}")
    lines.append(f"rows:  {summary.result}")
    lines.append(f"calls: {summary.calls}")
    return "\n".join(lines)


def _quantiles(errors: Sequence[float]) -> dict[str, float]:
    """Return the least errors that so many of all variables do not exceed, and the largest."""
    count = len(errors)
    shares = {f"{share} %": errors[-(-count * share // 100) - 1] for share in _SHARES}
    return {**shares, "largest": errors[-1]}


def _listed(title: str, rows: Sequence[CallRow], count: int) -> Iterator[str]:
    if not rows:
        return
    yield title
    for row in rows:
        where = f" in {row.module}" if row.module else ""
        difference = f", relative L2 {row.relative_l2}" if row.relative_l2 else ""
        yield _short(f"  {row.name}{where}{difference}: {row.message}")
        if row.source:
            yield _short(f"    {row.source}")
    if count > len(rows):
        yield f"  ... and {count - len(rows)} more"


def _short(line: str) -> str:
    line = printable(line)
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."


def is_of_output(message: str) -> bool:
    """Return whether the message of a pair in error is of an output: then its inputs are in none, because the
    message is that of the first row in error, and the rows of inputs come first."""
    return _OF_OUTPUT.match(message) is not None


def comparison_code(results: Counter[str], lone_rows: int, *, strict: bool) -> int:
    """Return the exit code of a comparison that came to its end, by its pairs and its unmatched rows."""
    lone = results[UNMATCHED] or lone_rows
    if results[ERROR] or (strict and (results[WARNING] or lone)):
        return IN_ERROR
    is_compared = results[PASSED] or results[WARNING] or results[ERROR]
    return PASSED_CODE if is_compared else NOTHING_CHECKED
