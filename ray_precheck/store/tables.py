"""The names and columns of a job's two tables: the result table and its details.

All modules of this folder that read or write the files get such a `Tables`, which names the files of a run
(`run_files`). The precheck's is `API_TABLES`: its columns are msprobe's, so that its users' scripts work; a
standard other than the default adds its own after them, and the settings of a run say which.

The rows of a CSV file are bytes here: read one after the other, named, and written back.
"""

import csv
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

from ray_precheck.errors import ResumeError
from ray_precheck.foreign import without_controls
from ray_precheck.schema.result import OutputCheck, TaskResult

# For the report, which reads whole files by itself.
csv.field_size_limit(sys.maxsize)
BOM = b"\xef\xbb\xbf"
# A spreadsheet runs a cell that starts with one of these (OWASP, CSV Injection).
_FORMULA_STARTS = ("=", "+", "-", "@", "\t")
_NEED_QUOTE = (*_FORMULA_STARTS, "'")
# Characters that no cell may hold, and their replacements. The backslash comes first, because all
# other replacements are written with it. Plain replacements, because a name can have 10,000,000 of
# them.
_ESCAPES = {"\\": r"\u005c", "\r": r"\u000d", "\n": r"\u000a", "\x00": r"\u0000"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_OTHER_ESCAPE = re.compile(r"\\u(?!005c)([0-9a-f]{4})")
# Python 3.10 can neither write nor read a NUL in CSV.
_BLANKS = re.compile(r"[\s\x00]+")

ResultCell = Callable[[TaskResult], str]
DetailCell = Callable[[OutputCheck], str]

RESULT_COLUMNS: dict[str, ResultCell] = {
    "API Name": lambda result: encode_name(result.name),
    "Forward Test Success": lambda result: result.forward.value,
    "Backward Test Success": lambda result: result.backward.value,
    "Message": lambda result: encode_text(result.message),
}
DETAIL_COLUMNS: dict[str, DetailCell] = {
    "API Name": lambda check: encode_name(check.name),
    "Bench Dtype": lambda check: check.bench_dtype,
    "Tested Dtype": lambda check: check.tested_dtype,
    "Shape": lambda check: check.shape,
    "Cosine": lambda check: _metric(check, "cosine"),
    "MaxAbsErr": lambda check: _metric(check, "max_abs_err"),
    "MaxRelativeErr": lambda check: _metric(check, "max_rel_err"),
    "Status": lambda check: check.verdict.value,
    "Message": lambda check: encode_text("; ".join(filter(None, [check.message, check.drawn]))),
}


# The last part of the name of the row that judges all calls of a random operator: `X.distribution`.
DISTRIBUTION = "distribution"
# The columns that standards add and that hold text; all others hold numbers.
ADDED_TEXTS = ("Standard", "Reference", "Bench", "HonestBy")
# Those that details of former versions lack; a run goes on without them where it began without them.
LATER_COLUMNS = ("Bench", "HonestBy")
# The setting of a run that lists the columns that its standard adds to the details; missing: none.
ADDED_SETTING = "added columns"


def added_setting(headings: Sequence[str]) -> dict[str, str]:
    """Return the settings that say which columns are added; {} for none."""
    return {ADDED_SETTING: ", ".join(headings)} if headings else {}


def added_columns(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the headings of the added columns that the settings of a run list."""
    listed = settings.get(ADDED_SETTING, "")
    return tuple(listed.split(", ")) if listed else ()


def result_row(result: TaskResult) -> bytes:
    """Return the row of a result, encoded, with its line end."""
    return encode_row(cell(result) for cell in RESULT_COLUMNS.values())


def detail_rows(result: TaskResult, *added: str) -> bytes:
    """Return the detail rows of a result, encoded, with their line ends; `added` are the headings
    of the columns after the default ones."""
    rows = []
    for check in result.checks:
        columns = dict(check.columns)
        cells = [cell(check) for cell in DETAIL_COLUMNS.values()]
        cells += (_added_cell(columns.get(heading, "")) for heading in added)
        rows.append(encode_row(cells))
    return b"".join(rows)


def _added_cell(value: float | str) -> str:
    return encode_text(value) if isinstance(value, str) else repr(float(value))


def with_note(row: bytes, note: str) -> bytes:
    """Return a result row with a note behind its message, which is the last cell."""
    *cells, message = decode_row(row.rstrip(b"\r\n"))
    return encode_row([*cells, "; ".join(filter(None, [message, encode_text(note)]))])


def header(columns: Iterable[str]) -> bytes:
    """Return the first line of a file: the byte order mark and the headings."""
    return BOM + encode_row(columns)


def encode_row(cells: Iterable[str]) -> bytes:
    """Return cells as one line of CSV (CRLF, as msprobe and RFC 4180 have it)."""
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    row = text.getvalue()
    if not row[:-2].isprintable():
        row = without_controls(row)
    return row.encode("utf-8", errors="backslashreplace")


def cells_of(lines: Iterable[str]) -> Iterator[list[str]]:
    """Return the rows of CSV text, with cells of any length."""
    # The default is 131,072 characters a cell, and MindSpore sets it when it is imported.
    csv.field_size_limit(sys.maxsize)
    return csv.reader(line.replace("\x00", "\ufffd") for line in lines)


def decode_row(line: bytes) -> list[str]:
    """Return the cells of one line; [] for an empty line and for a line that is no CSV."""
    text = line.removeprefix(BOM).decode("utf-8", errors="replace")
    try:
        return next(cells_of([text]), [])
    except csv.Error:
        return []


def encode_name(name: str) -> str:
    """Return a name as a cell on one line that no spreadsheet runs; `decode_name` undoes it."""
    if name.isprintable() and "\\" not in name and name[:1] not in _NEED_QUOTE:
        return name  # nearly all of them
    escaped = name
    for character, escape in _ESCAPES.items():
        escaped = escaped.replace(character, escape)
    escaped = _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", escaped)
    return f"'{escaped}" if escaped.startswith(_NEED_QUOTE) else escaped


def decode_name(cell: str) -> str:
    """Return the name that `encode_name` made a cell of."""
    plain = cell.removeprefix("'")
    if "\\" not in plain:
        return plain
    for character, escape in reversed(_ESCAPES.items()):
        if character == "\\":
            plain = _OTHER_ESCAPE.sub(lambda found: chr(int(found.group(1), 16)), plain)
        plain = plain.replace(escape, character)
    return plain


def call_of_detail(name: str) -> str:
    """Return the API call that a detail row belongs to: `X.0.forward.output.1` is of `X.0`."""
    return name.rsplit(".", 3)[0]


def encode_text(message: str) -> str:
    """Return a message on one line that no spreadsheet runs."""
    line = _BLANKS.sub(" ", message).strip()
    return f"'{line}" if line.startswith(_FORMULA_STARTS) else line


def _metric(check: OutputCheck, name: str) -> str:
    """Return a number as the shortest text that reads back as it, "" where there is none."""
    value = None if check.metrics is None else getattr(check.metrics, name)
    return "" if value is None else repr(float(value))


@dataclass(frozen=True, slots=True)
class Tables:
    """The two tables of a job.

    The files of a run are `{stem}_{word}_{stamp}.csv` with the two `words` (`{stem}_{stamp}.csv` where the
    word is ""), `{stem}_{stamp}.run.json`, ...
    The first column of `result` is the name of a piece; a detail row is named `{piece}.{part}.{part}...`
    with `detail_parts` parts behind the name of its piece, or, where `detail_parts` is None, has the name
    of its piece in its last column. The settings of a run may add columns to the details, but not to
    details with the name in the last one. `result` has `verdicts` columns with a verdict each (pass, error,
    SKIP) from the column `verdict_at` on, by default behind the name, and a message as the last one. With
    `needs_details` a piece that passes has a detail row. `unit` is what progress counts in a second.
    """

    stem: str
    result: tuple[str, ...]
    details: tuple[str, ...]
    detail_parts: int | None = 3
    verdicts: int = 2
    needs_details: bool = True
    words: tuple[str, str] = ("result", "details")
    unit: str = "api"
    verdict_at: int = 1

    def file(self, kind: str, stamp: str) -> str:
        """Return the name of a file: `kind` is result or details."""
        word = self.words[("result", "details").index(kind)]
        return f"{'_'.join(filter(None, [self.stem, word]))}_{stamp}.csv"


API_TABLES = Tables("accuracy_checking", tuple(RESULT_COLUMNS), tuple(DETAIL_COLUMNS))

# Beside the result CSV; below it is a folder for each run.
ERROR_FOLDER = "error_data"
# msprobe's folder for a run, with the timestamp after it (acc_check.py, initialize_save_error_data).
MSPROBE_ERROR_FOLDER = "ut_error_data"
RESULT_STEM = f"{API_TABLES.stem}_result_"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run: result rows, detail rows, settings, timeline, the lock file (which exists
    while a run goes on), and the folder for the tensors of failing outputs.

    `token` is that of the run that holds the files, "" if none does.
    """

    result: Path
    details: Path
    settings: Path
    timeline: Path
    lock: Path
    errors: Path
    token: str = ""

    def absolute(self) -> "RunFiles":
        """Return them by absolute paths, for a process that may run in another folder."""
        names = [each.name for each in fields(self) if each.name != "token"]
        return replace(self, **{name: getattr(self, name).absolute() for name in names})


@lru_cache(maxsize=64)
def run_files(result: Path, tables: Tables = API_TABLES) -> RunFiles:
    """Return the files that belong to a result table.

    Raises:
        ResumeError: its name is not `{stem}_result_{timestamp}.csv` with the stem of the tables.
    """
    begin, end = tables.file("result", "\0").split("\0")
    name = result.name
    if not (name.startswith(begin) and name.endswith(end) and len(name) >= len(begin + end)):
        raise ResumeError(
            f"{result} is no result CSV: a name like {begin}20260101120000{end} is expected"
        )
    stamp = name.removeprefix(begin).removesuffix(end)
    return RunFiles(
        result,
        result.with_name(tables.file("details", stamp)),
        result.with_name(f"{tables.stem}_{stamp}.run.json"),
        result.with_name(f"{tables.stem}_{stamp}.timeline.json"),
        result.with_name(f"{tables.stem}_{stamp}.lock"),
        result.parent / ERROR_FOLDER / stamp,
    )


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
