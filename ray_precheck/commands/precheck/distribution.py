"""The rows `{operator}.distribution`: all calls of a random operator in a run, judged together.

Comes in: the files of a run whose calls are all done. Goes out: the same files, where the details have
one more row for each operator that drew, behind those of its last call, and the result row of that call
is in error where the row is. Called by the session. Everything is made of the rows, which hold what each
call drew: so the files of a run that was killed and resumed are those of one that was not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.accuracy.random.pooled import Drawn, judge_pooled, read_drawn
from ray_precheck.errors import StoppedError
from ray_precheck.foreign import open_file
from ray_precheck.schema.result import Outcome, OutputCheck, TaskResult, Verdict
from ray_precheck.store.claim import locked
from ray_precheck.store.results import OPERATOR_NOTE
from ray_precheck.store.settings import load_settings, mark_completed
from ray_precheck.store.tables import (
    API_TABLES,
    DETAIL_COLUMNS,
    DISTRIBUTION,
    RunFiles,
    decode_row,
    detail_rows,
    encode_row,
    encode_text,
    replace_file,
    row_cells,
    row_name,
    rows_by_call,
    whole_rows,
)

_STATUS, _MESSAGE = (list(DETAIL_COLUMNS).index(name) for name in ("Status", "Message"))
_END = f".{DISTRIBUTION}"


@dataclass(slots=True)
class _Operator:
    """The calls of an operator that drew, in their order, and which of them are in error by themselves."""

    calls: list[tuple[str, Drawn]] = field(default_factory=list)
    own_errors: set[str] = field(default_factory=set)

    @property
    def last(self) -> str:
        """The last call, which has the row behind its own."""
        return self.calls[-1][0]


def add_distributions(files: RunFiles) -> None:
    """Judge each random operator by all its calls, and write it into the files of a completed run.

    Files that hold it already are left as they are.

    Raises:
        StoppedError: a file cannot be written; it is as it was.
    """
    try:
        with locked(files.result):
            _add(files)
    except OSError as error:
        raise StoppedError(
            f"cannot write the distributions of random calls to {files.result.parent}:"
            f" {error.strerror or error}; the rows of all calls are on disk"
        ) from None


def _add(files: RunFiles) -> None:
    operators, before = _read(files.details)
    settings = load_settings(files.settings)
    added = () if settings is None else settings.added_columns
    rows: dict[str, bytes] = {}
    notes: dict[str, str] = {}
    for name, operator in operators.items():
        verdict, message = judge_pooled(operator.calls)
        check = OutputCheck(f"{name}{_END}", "", "", "", None, verdict, message)
        whole = TaskResult(0, name, Outcome.COMPLETED, verdict, Verdict.NONE, checks=(check,))
        rows[operator.last] = detail_rows(whole, *added)
        if verdict is Verdict.ERROR:
            notes[operator.last] = f"{DISTRIBUTION}: {check.name}: {message}"
    if list(rows.values()) == before:
        return
    # The details last: if they hold the rows, the result table has the notes.
    with open_file(files.result) as file:
        replace_file(files.result, _noted(whole_rows(file), operators, notes))
    with open_file(files.details) as file:
        replace_file(files.details, _placed(whole_rows(file), rows))
    mark_completed(files.settings, files.result, files.details)


def _read(details: Path) -> tuple[dict[str, _Operator], list[bytes]]:
    """Return the operators that drew, by the place of their last call, and the rows of distributions
    that are there already."""
    operators: dict[str, _Operator] = {}
    before: list[bytes] = []
    with open_file(details) as file:
        rows = whole_rows(file)
        next(rows, None)
        last = ""
        for call, cell, row in rows_by_call(rows, API_TABLES.detail_parts):
            if call.endswith(_END):
                before.append(row)
            elif b"sums: " in row:  # Few of millions of rows.
                drawn = read_drawn(row_cells(row)[_MESSAGE])
                if drawn is None:
                    continue
                name = call.rsplit(".", 1)[0]
                operators[name] = operators.pop(name) if name in operators else _Operator()
                operators[name].calls.append((call, drawn))
                last = call
            is_of_it = call == last and b".forward." in cell and b"error" in row
            if is_of_it and row_cells(row)[_STATUS] == Verdict.ERROR.value:
                operators[call.rsplit(".", 1)[0]].own_errors.add(call)
    return operators, before


def _noted(
    rows: Iterator[bytes], operators: Mapping[str, _Operator], notes: Mapping[str, str]
) -> Iterator[bytes]:
    """Yield the result rows; a call with a note is in error, and a note of an earlier run is gone."""
    yield next(rows, b"")
    drew = {call: operator for operator in operators.values() for call, _ in operator.calls}
    for row in rows:
        call = row_name(row)
        operator = drew.get(call)
        yield row if operator is None else _noted_row(row, operator, notes.get(call, ""))


def _noted_row(row: bytes, operator: _Operator, note: str) -> bytes:
    name, forward, backward, message = decode_row(row.rstrip(b"\r\n"))
    own = OPERATOR_NOTE.sub("", message)
    if own != message:
        is_error = row_name(row) in operator.own_errors
        forward = (Verdict.ERROR if is_error else Verdict.PASS).value
    if note:
        forward = Verdict.ERROR.value
    told = "; ".join(filter(None, [own, encode_text(note)]))
    return encode_row([name, forward, backward, told])


def _placed(rows: Iterator[bytes], distributions: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the detail rows, with that of each distribution behind those of its last call."""
    yield next(rows, b"")
    left, last = dict(distributions), ""
    for call, _, row in rows_by_call(rows, API_TABLES.detail_parts):
        if call.endswith(_END):
            continue
        if call != last:
            yield left.pop(last, b"")
            last = call
        yield row
    yield left.pop(last, b"")
