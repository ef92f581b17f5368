"""The summary at the end of a run, read back from the two CSV files.

Comes in: the files. Goes out: counts and a text. Called by the session. The files are read row by
row, so that the size of the run does not matter.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path

from ray_precheck.schema.result import Verdict, call_verdict, verdict_in
from ray_precheck.store.columns import DETAIL_COLUMNS, RESULT_COLUMNS, cells_of, decode_name
from ray_precheck.store.resume import RunFiles

_LONGEST_NAME = 160
WORST_OUTPUTS = 10
WORST_TYPES = 10
_ERROR = Verdict.ERROR.value
_HEADINGS = {name.lower(): name for name in (*RESULT_COLUMNS, *DETAIL_COLUMNS)}


@dataclass(slots=True)
class Summary:
    """Counts over all rows of a result CSV, the worst outputs and the API types with errors."""

    files: RunFiles
    total: int = 0
    passes: int = 0
    errors: int = 0
    skips: int = 0
    error_types: Counter[str] = field(default_factory=Counter)
    worst: list[dict[str, str]] = field(default_factory=list)


def summarise(files: RunFiles) -> Summary:
    """Read both files of a run; a million rows take a few seconds."""
    summary = Summary(files)
    for name, forward, backward in _columns(files.result, tuple(RESULT_COLUMNS)[:3]):
        summary.total += 1
        verdict = call_verdict(verdict_in(forward), verdict_in(backward))
        if verdict is Verdict.ERROR:
            summary.errors += 1
            summary.error_types[decode_name(name).rsplit(".", 1)[0]] += 1
        elif verdict is Verdict.PASS:
            summary.passes += 1
        else:
            summary.skips += 1
    summary.worst = heapq.nlargest(WORST_OUTPUTS, _candidates(files.details), key=_badness)
    return summary


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file as dicts by heading, with names as the dump has them."""
    with _opened(path) as (headings, rows):
        for cells in rows:
            row = dict(zip_longest(headings, cells[: len(headings)], fillvalue=""))
            yield {**row, "API Name": decode_name(row.get("API Name", ""))}


def _columns(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, ...]]:
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


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Open a CSV file; its headings as ours are written, and the rows that are not empty."""
    if not path.exists():
        yield [], iter(())
        return
    with path.open(encoding="utf-8-sig", newline="", errors="replace") as file:
        rows = cells_of(file)
        headings = [_HEADINGS.get(cell.strip().lower(), cell) for cell in next(rows, [])]
        yield headings, filter(None, rows)


def _candidates(path: Path) -> Iterator[dict[str, str]]:
    """Yield the detail rows that may be among the worst, going by those that came before.

    So a dict is made of some dozens of rows, not of millions.
    """
    columns = tuple(DETAIL_COLUMNS)
    error, status = columns.index("MaxAbsErr"), columns.index("Status")
    worst: list[tuple[bool, float]] = []
    for cells in _columns(path, columns):
        if not cells[error]:
            continue
        badness = (cells[status] == _ERROR, _number(cells[error]))
        if len(worst) < WORST_OUTPUTS:
            heapq.heappush(worst, badness)
        elif badness < worst[0]:
            continue
        else:
            heapq.heapreplace(worst, badness)
        row = dict(zip(columns, cells, strict=True))
        yield {**row, "API Name": decode_name(row["API Name"])}


def _badness(row: dict[str, str]) -> tuple[bool, float, str]:
    """Order detail rows: errors first, then by the largest absolute error."""
    return row["Status"] == _ERROR, _number(row["MaxAbsErr"]), row["API Name"]


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.inf
    return math.inf if math.isnan(value) else value


def format_summary(summary: Summary) -> str:
    """Return the summary as text for a terminal of 100 columns."""
    lines = [
        f"{summary.total} APIs: {summary.passes} pass, {summary.errors} error, {summary.skips} SKIP"
    ]
    if summary.worst:
        lines += ["", "Worst outputs (errors first, by MaxAbsErr):"]
        lines.append(f"  {'status':6} {'MaxAbsErr':>10} {'cosine':>10} {'MaxRelErr':>10}  output")
        lines += [_worst_line(row) for row in summary.worst]
    if summary.error_types:
        lines += ["", "API types with most errors:"]
        common = summary.error_types.most_common(WORST_TYPES)
        lines += [f"  {count:6}  {shown_name(name)}" for name, count in common]
    lines += ["", f"Results: {summary.files.result}", f"Details: {summary.files.details}"]
    return "\n".join(lines)


def _worst_line(row: dict[str, str]) -> str:
    numbers = " ".join(
        f"{_short(row.get(key, '')):>10}" for key in ("MaxAbsErr", "Cosine", "MaxRelativeErr")
    )
    name = shown_name(row["API Name"])
    return f"  {row['Status']:6} {numbers}  {name} ({row['Tested Dtype']}, {row['Shape']})"


def shown_name(name: str) -> str:
    """Return a name for the terminal: short, and nothing that a terminal obeys."""
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 3]}..."
    return name if name.isprintable() else ascii(name)[1:-1]


def _short(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text
