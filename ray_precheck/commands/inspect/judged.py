"""The words of `inspect` that compute: a call against the other capture, its own error, a whole comparison.

Comes in: an `InspectSession` and the options of a word. Goes out: a `WordAnswer`. Called by `words`. What is
measured and how it is judged is that of `compare`, `run_ut` and `overflow_check`.
"""

import argparse
import csv
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ray_precheck.commands.compare.rows import KeyedItems, rows_of_fusion
from ray_precheck.commands.inspect.answers import Table, WordAnswer
from ray_precheck.commands.inspect.opened import OpenedCapture
from ray_precheck.commands.inspect.session import InspectSession
from ray_precheck.errors import UsageError
from ray_precheck.foreign import open_text
from ray_precheck.options.shared import ALIGNED, EXACT
from ray_precheck.trace.difference.measuring import Reading, reading_of, rows_of_operators
from ray_precheck.trace.difference.rows import DIFFERENCES, ComparisonMode, TensorRow
from ray_precheck.trace.difference.standards.registry import STANDARDS, judge_rows
from ray_precheck.trace.items import GRADIENTS, INPUT, OUTPUT, PARAMETERS

# Aligning more records takes longer than a user at a prompt waits (2 s, measured on 2026-11-28); the calls of
# larger captures are paired by their names.
_MOST_ALIGNED = 100_000
_STANDARD, _OF_TOOLS = "auto", ("precision_tool", "megengine")
# precision_tool's limit of the cosine similarity (its command reference, `vcs -c`), and how many it lists.
_COSINE, _LISTED = 0.98, 3
# `why` goes so many calls up.
_MOST_STEPS = 30
_RESULT_STEM = "compare_result_"
_CONVERTER = ("msaccucmp.pyc", "msaccucmp.py")
_MOST_FOLDERS = 100_000
_PARTS = (INPUT, OUTPUT, PARAMETERS, GRADIENTS)


@dataclass
class _Pairing:
    """Which records of two captures belong together: the keys of both sides, by each key of the first. None:
    records of the same key do."""

    reading: Reading
    pieces: dict[str, tuple[list[str], list[str]]] | None = None
    cache: dict[int, list[TensorRow]] = field(default_factory=dict)


def _pairing(session: InspectSession) -> _Pairing:
    """Return how the two captures of a session are paired, worked out once."""
    if session.pairing is None:
        capture, golden = session.capture, session.require_golden("this word")
        found = _Pairing(reading_of(capture.side, golden.side))
        if max(len(capture.index), len(golden.index)) <= _MOST_ALIGNED:
            found.pieces = _aligned(capture, golden)
        session.pairing = found
    pairing: _Pairing = session.pairing
    return pairing


def _aligned(
    capture: OpenedCapture, golden: OpenedCapture
) -> dict[str, tuple[list[str], list[str]]]:
    from ray_precheck.trace.alignment.align import align, pieces_of
    from ray_precheck.trace.alignment.calls import calls_of

    calls = calls_of(capture.whole), calls_of(golden.whole)
    pieces = pieces_of(capture.whole, golden.whole, calls, align(*calls))
    found: dict[str, tuple[list[str], list[str]]] = {}
    for piece in pieces:
        keys = [own.key for own in piece.target], [other.key for other in piece.golden]
        found |= dict.fromkeys(keys[0], keys)
    return found


def _piece(session: InspectSession, row: int) -> tuple[list[int], list[int]]:
    """Return the records of both captures that belong together with one: of a fusion several."""
    golden = session.require_golden("this word")
    key = session.capture.index.key(row)
    pieces = _pairing(session).pieces
    own, others = ([key], [key]) if pieces is None else pieces.get(key, ([key], []))
    rows = map(session.capture.index.row, own), map(golden.index.row, others)
    ours, theirs = ([each for each in side if each is not None] for side in rows)
    return ours, theirs


def partners(session: InspectSession, row: int) -> list[int]:
    """Return the records of the other capture that belong to one."""
    return _piece(session, row)[1]


def _rows(session: InspectSession, row: int) -> list[TensorRow]:
    """Return the measured and judged values of a record and its partner; [] without a partner."""
    pairing, golden = _pairing(session), session.require_golden("this word")
    if row not in pairing.cache:
        sides = zip((session.capture, golden), _piece(session, row), strict=True)
        ours, theirs = (
            [KeyedItems(capture.index.key(each), capture.items(each)) for each in rows]
            for capture, rows in sides
        )
        found: list[TensorRow] = []
        if len(ours) == len(theirs) == 1:
            (own,), (other,) = ours, theirs
            found = rows_of_operators(own.key, other.key, own.items, other.items, pairing.reading)
        elif ours and theirs:
            found, _ = rows_of_fusion(ours, theirs, pairing.reading)
        judge_rows(found, STANDARDS[_standard_of(session)], pairing.reading.mode)
        pairing.cache[row] = found
    return pairing.cache[row]


def _standard_of(session: InspectSession) -> str:
    """Return the standard that judges: that of the tool whose capture it is, where it has one."""
    title = str(session.capture.tool.get("format", "")).lower()
    return next((name for name in _OF_TOOLS if name in title), _STANDARD)


def difference_of(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Compare a call with that of the other capture, value by value."""
    session.require_golden("diff")
    parts: list[str | Table] = []
    data: list[dict[str, Any]] = []
    for row in session.capture.rows_of(given.name):
        key, rows = session.capture.index.key(row), _rows(session, row)
        if not rows:
            parts.append(f"{key}: the other capture has no partner of it")
            data.append({"key": key, "partner": None, "values": []})
            continue
        parts.append(_difference_table(key, rows, _pairing(session).reading.mode))
        parts += [f"  {each.item.path}: {message}" for each in rows for message in each.messages]
        data.append({"key": key, "values": [_row_data(each) for each in rows]})
    return WordAnswer(data, tuple(parts))


def _difference_table(key: str, rows: Sequence[TensorRow], mode: ComparisonMode) -> Table:
    golden = next((each.golden_name for each in rows if each.golden is not None), "")
    title = f"{key} against {golden.rpartition('.forward')[0] or golden}"
    tensors = [each for each in rows if each.tensors or not each.is_matched]
    headings: tuple[str, ...]
    if mode is ComparisonMode.REAL:
        headings = ("Value", "Shape", "Max abs", "Relative L2", "Cosine", "Result")
        cells = [
            (each.elements.max_abs, each.relative_l2, each.elements.cosine)
            if each.elements
            else (None, each.relative_l2, None)
            for each in tensors
        ]
        shown_cells = [tuple(_number(value) for value in row) for row in cells]
    else:
        headings = ("Value", "Shape", "Max diff", "Min diff", "Mean diff", "Norm diff", "Result")
        shown_cells = [tuple(each.statistics[DIFFERENCES]) or ("",) * 4 for each in tensors]
    table = [
        (each.item.path, str(list(each.item.shape or ())), *numbers, each.result)
        for each, numbers in zip(tensors, shown_cells, strict=True)
    ]
    return Table(headings, table, title, frozenset(range(2, len(headings) - 1)))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _row_data(row: TensorRow) -> dict[str, Any]:
    found = row.elements
    return {
        "path": row.item.path,
        "target": row.target_name,
        "golden": row.golden_name,
        "result": row.result,
        "relative_l2": row.relative_l2,
        "cosine": found.cosine if found else None,
        "max_abs": found.max_abs if found else None,
        "worst": found.worst if found else None,
        "messages": row.messages,
    }


@dataclass(frozen=True, slots=True)
class _Errors:
    """How a record differs from its partner: the largest relative error of its inputs and outputs, and at
    which value; None where nothing is known."""

    row: int
    inputs: float | None = None
    worst_input: str = ""
    outputs: float | None = None
    worst_output: str = ""
    dtype: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the outputs differ by more than the inputs and rounding explain, as `locate` has it."""
        from ray_precheck.commands.locate.walk.estimate import stands_out

        if self.outputs is None:
            return False
        return stands_out(self.outputs, self.inputs or 0.0, self.dtype, is_gradient=False)

    @property
    def has_wrong_inputs(self) -> bool:
        """Whether an input differs by more than rounding."""
        from ray_precheck.commands.locate.walk.estimate import stands_out

        return self.inputs is not None and stands_out(
            self.inputs, 0.0, self.dtype, is_gradient=False
        )


def _errors(session: InspectSession, row: int) -> _Errors:
    worst: dict[bool, tuple[float | None, str, str]] = {True: (None, "", ""), False: (None, "", "")}
    for each in _rows(session, row):
        distance = _distance(each)
        if distance is None:
            continue
        known = worst[each.is_output][0]
        if known is None or distance > known or math.isnan(distance):
            worst[each.is_output] = distance, each.item.path, each.item.dtype
    outputs, inputs = worst[True], worst[False]
    return _Errors(row, inputs[0], inputs[1], outputs[0], outputs[1], outputs[2] or inputs[2])


def _distance(row: TensorRow) -> float | None:
    """Return the relative L2 distance of two tensors; of statistics what their norms show of it, which is a
    lower bound; infinite where NaN stands on one side alone."""
    if not row.tensors or row.target is None or row.golden is None:
        return None
    if row.elements is not None and row.elements.odd:
        return math.inf
    if row.relative_l2 is not None:
        return row.relative_l2
    ours, theirs = row.target.norm, row.golden.norm
    if ours is None or theirs is None:
        return None
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return 0.0 if repr(ours) == repr(theirs) else math.inf
    return abs(ours - theirs) / abs(theirs) if theirs else (math.inf if ours else 0.0)


def explain_error(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Tell the own error of a call, and what its inputs brought with them."""
    capture = session.capture
    row = capture.rows_of(given.name)[0]
    key = capture.index.key(row)
    parts: list[str | Table] = [key]
    data: dict[str, Any] = {"key": key}
    own = _own_error(session, row)
    parts.append(f"  own error, of its captured inputs and outputs: {own}")
    data["own"] = own
    if session.golden is None:
        parts.append("  inherited error: not known without another capture (--with)")
        return WordAnswer(data, tuple(parts))
    steps = list(_steps_up(session, row, given.window))
    if steps[0].outputs is None and steps[0].inputs is None:
        parts.append("  inherited error: not known, the other capture has no partner of it")
        return WordAnswer(data, tuple(parts))
    table = Table(
        ("Call", "Inputs", "Outputs", "Times", "Worst input"),
        [_step_cells(capture, each) for each in steps],
        "relative errors against the other capture, upstream along the worst input:",
        frozenset((1, 2, 3)),
    )
    verdict = _told(capture, steps)
    data |= {"steps": [_step_data(capture, each) for each in steps], "verdict": verdict}
    return WordAnswer(data, (*parts, table, verdict))


def _steps_up(session: InspectSession, row: int, window: int) -> Iterator[_Errors]:
    """Yield the errors of a call, of the call that gave its worst input, and so on."""
    capture = session.capture
    _, flow = capture.window(row, window, 0)
    seen = set()
    for _ in range(_MOST_STEPS):
        found = _errors(session, row)
        yield found
        seen.add(row)
        giver = flow.producer(capture.index.key(row), found.worst_input)
        if giver is None or not found.has_wrong_inputs:
            return
        above = capture.index.row(giver.key)
        if above is None or above in seen:
            return
        row = above


def _step_cells(capture: OpenedCapture, each: _Errors) -> tuple[str, ...]:
    times = each.outputs / each.inputs if each.outputs is not None and each.inputs else None
    return (
        capture.index.key(each.row),
        _number(each.inputs),
        _number(each.outputs),
        _number(times),
        each.worst_input,
    )


def _step_data(capture: OpenedCapture, each: _Errors) -> dict[str, Any]:
    return {
        "key": capture.index.key(each.row),
        "inputs": each.inputs,
        "outputs": each.outputs,
        "worst_input": each.worst_input,
    }


def _told(capture: OpenedCapture, steps: Sequence[_Errors]) -> str:
    first, last = steps[0], steps[-1]
    key, end = capture.index.key(first.row), capture.index.key(last.row)
    if first.outputs is not None and not first.is_own and not first.has_wrong_inputs:
        return f"{key} differs by no more than rounding."
    if first.is_own and not first.has_wrong_inputs:
        return (
            f"The error is its own: its inputs agree, and {first.worst_output} differs by"
            f" {_number(first.outputs)}."
        )
    if last.is_own and not last.has_wrong_inputs:
        return f"The error is inherited: it begins at {end}, whose inputs agree and whose outputs do not."
    if last.has_wrong_inputs:
        return f"The error is inherited: {last.worst_input} of {end} differs, which no captured call gave."
    return f"The error is inherited; upstream of {end} nothing differs by more than rounding."


def _own_error(session: InspectSession, row: int) -> str:
    """Return what a check of the captured outputs of a call says."""
    capture = session.capture
    has_files = capture.side.data_folder.is_dir()
    if not (has_files and any(item.file for item in capture.items(row))):
        return "not known, the capture has no files of tensors (--task tensor has)"
    report = _checked_alone(session, row, "dump")
    return "; ".join(_verdict_lines(report))


def check_call(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Check a call now, on this machine."""
    row = session.capture.rows_of(given.name)[0]
    report = _checked_alone(session, row, "auto")
    outputs = report["details"]
    headings = [name for name in _DETAILS if any(each.get(name) for each in outputs)]
    table = Table(
        tuple(headings), [tuple(each.get(name, "") for name in headings) for each in outputs]
    )
    lines = _verdict_lines(report)
    return WordAnswer(report, (*lines, table) if outputs else tuple(lines))


# The columns of the details that a screen has room for.
_DETAILS = ("API Name", "Bench Dtype", "Shape", "Cosine", "Max Abs Error", "Status", "Message")


def _verdict_lines(report: Mapping[str, Any]) -> list[str]:
    found = []
    for each in report["results"]:
        verdicts = ", ".join(
            f"{name} {each[name]}" for name in each if "Success" in name or "Result" in name
        )
        message = f": {each['Message']}" if each.get("Message") else ""
        found.append(f"{each.get('API Name', '')} {verdicts}{message}".strip())
    return found or ["nothing was checked"]


def _checked_alone(session: InspectSession, row: int, tested: str) -> dict[str, Any]:
    """Precheck the call of a record, from a dump that holds it alone; returns the rows of both tables.

    Raises:
        UsageError: it is no call of an API.
    """
    from ray_precheck.commands.precheck.run import precheck

    capture = session.capture
    call = capture.entry(row).call
    rows = [
        place
        for place in (
            capture.index.row(f"{call}.{direction}") for direction in ("forward", "backward")
        )
        if place is not None
    ]
    if not rows:
        raise UsageError(f"{capture.index.key(row)} is no call of an API, and cannot be checked")
    with tempfile.TemporaryDirectory(prefix="ray_precheck-inspect-") as folder:
        dump = Path(folder, "dump.json")
        _write_alone(capture, rows, dump)
        report = precheck(dump, out=Path(folder, "results"), tested=tested)
        tables = {"results": report.files.result, "details": report.files.details}
        return {name: _table_rows(path) for name, path in tables.items()}


def _write_alone(capture: OpenedCapture, rows: Sequence[int], dump: Path) -> None:
    """Write a dump of some records, with the fields of the whole one, and its folder of tensors."""
    side = capture.side
    fields = {}
    for name, (start, end) in capture.index.members.items():
        if name not in ("data", "dump_data_dir") and end - start < 1 << 16:
            raw = os.pread(side.file.fileno(), end - start, start)
            fields[name] = raw.decode(errors="replace").strip().removesuffix(",")
    fields["dump_data_dir"] = json.dumps(str(side.data_folder.absolute()))
    records = {capture.index.key(row): side.raw(capture.entry(row)).decode() for row in rows}
    fields["data"] = _object(records)
    dump.write_text(_object(fields), encoding="utf-8")


def _object(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {raw}" for name, raw in members.items()) + "}"


def _table_rows(path: Path) -> list[dict[str, str]]:
    with open_text(path) as file:
        return [
            {str(name): value or "" for name, value in row.items()} for row in csv.DictReader(file)
        ]


def check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ac`."""
    parser.add_argument(
        "-c", "--compare", action="store_true", help="compare the whole capture, too"
    )
    parser.add_argument(
        "-l", "--limit", type=int, default=10, help="list so many of each (default %(default)s)"
    )


def check_all(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """List fusions and overflows; with -c compare the whole capture."""
    if given.compare:
        session.require_golden("ac -c")
    limit = max(0, given.limit)
    fusions, overflows = _fusions(session.capture), _overflows(session.capture)
    parts: list[str | Table] = []
    if fusions:
        headings = ("Fusion", "Graph", "Match", "Effect")
        rows = [tuple(each.values()) for each in fusions[:limit]]
        parts.append(Table(headings, rows, "Fusions:", frozenset((2, 3))))
    else:
        parts.append("Fusions: the capture tells of none")
    parts += _cut(fusions, limit)
    parts.append("Overflow:" if overflows else "Overflow: none was found")
    for each in overflows[:limit]:
        parts.append(f"[{each['type']}] {each['name']}")
        parts += [f" - {line}" for line in each["told"]]
    parts += _cut(overflows, limit)
    data: dict[str, Any] = {"fusions": fusions, "overflow": overflows}
    if given.compare:
        compared = _compared(
            session, session.capture.path, session.require_golden("ac -c").path, "", limit
        )
        data["compare"] = compared.data
        parts += ["Comparison:", *compared.parts]
    return WordAnswer(data, tuple(parts))


def _cut(found: Sequence[Any], limit: int) -> list[str]:
    return [f"... and {len(found) - limit} more (-l)"] if len(found) > limit else []


def _fusions(capture: OpenedCapture) -> list[dict[str, str]]:
    found = capture.tool.get("fusions")
    entries = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    names = ("name", "graph", "match_times", "effect_times")
    return [{name: str(each.get(name, "")) for name in names} for each in entries]


def _overflows(capture: OpenedCapture) -> list[dict[str, Any]]:
    """Return the operators in which something overflowed: as the tool recorded it, and where NaN and
    infinity were born in the records."""
    from ray_precheck.trace.overflow.births import follow

    found = capture.tool.get("overflow")
    entries = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    told = []
    for each in entries:
        lines = list(_flag_lines(each))
        told.append(
            {"type": str(each.get("type", "")), "name": str(each.get("name", "")), "told": lines}
        )
    for alarm in follow(capture.whole).alarms:
        row = capture.index.row(alarm.key)
        if row is None:
            continue
        found_in = f"{alarm.found.words} in {alarm.tensor} ({alarm.dtype})"
        line = f"{alarm.birth.value} of {found_in}: {alarm.message}"
        kind, name = capture.type_name(row), capture.name(row)
        told.append({"type": kind, "name": name, "told": [line]})
    return told


def _flag_lines(flag: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a tool recorded of an overflow, as precision_tool has it: unit, status, task, bits; file."""
    bits = flag.get("bits") or []
    words = ", ".join(map(str, bits)) if isinstance(bits, list) else str(bits)
    facts = (("", "unit"), ("Status:", "status"), ("TaskId:", "task"))
    marks = "".join(f"[{label}{flag[name]}]" for label, name in facts if flag.get(name) is not None)
    yield f"{marks} [{words}]".strip()
    for name in ("file", "timestamp"):
        if flag.get(name):
            yield f"{name}: {flag[name]}"


def vector_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vc`."""
    parser.add_argument(
        "-lt", "--left", default="", help="the capture that is judged (default: the open one)"
    )
    parser.add_argument(
        "-rt", "--right", default="", help="the other one (default: that of --with)"
    )
    parser.add_argument(
        "-g", "--graph", default="", help="accepted: origins in graphs are always used"
    )
    parser.add_argument(
        "-l", "--limit", type=int, default=_LISTED, help="list so many (default %(default)s)"
    )
    parser.add_argument("--standard", default="", help="the standard of compare that judges")


def compare_vectors(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Compare two captures as a whole."""
    left = Path(given.left) if given.left else session.capture.path
    right = Path(given.right) if given.right else session.require_golden("vc").path
    return _compared(session, left, right, given.standard, max(0, given.limit))


def _compared(
    session: InspectSession, left: Path, right: Path, standard: str, limit: int
) -> WordAnswer:
    """Run `compare` over two captures; the results stay in a folder of the user's state."""
    from ray_precheck.commands.compare.closing import format_comparison_summary
    from ray_precheck.commands.compare.run import compare_captures

    stamp, runs = time.strftime("%Y%m%d%H%M%S"), session.results
    out = next(runs / f"{stamp}_{at}" for at in count() if not (runs / f"{stamp}_{at}").exists())
    chosen = standard or _standard_of(session)
    large = max(each.stat().st_size for each in (left, right) if each.exists()) > 1 << 30
    reports = compare_captures(
        left, right, out=out, standard=chosen, match=EXACT if large else ALIGNED
    )
    lines: list[str] = []
    data: list[dict[str, Any]] = []
    for report in reports.reports:
        lines += format_comparison_summary(report.summary, report.label).strip().split("\n")
        first = report.summary.first[:1]
        lines += [f"first difference: {each.name}: {each.message}" for each in first]
        data.append(
            {
                "label": report.label,
                "results": dict(report.summary.results),
                "first": [
                    {"name": each.name, "message": each.message}
                    for each in report.summary.first[:limit]
                ],
                "rows": report.summary.result,
            }
        )
    if not reports.completed:
        lines.append(
            f"stopped before the end{': ' + reports.stop_reason if reports.stop_reason else ''}"
        )
    return WordAnswer(data, tuple(lines))


def summary_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `vcs`."""
    parser.add_argument(
        "-f", "--file", default="", help="a compare_result CSV (default: those of the last vc)"
    )
    parser.add_argument(
        "-c",
        "--cos_sim",
        type=float,
        default=_COSINE,
        help="list below this cosine (default %(default)s)",
    )
    parser.add_argument(
        "-l", "--limit", type=int, default=_LISTED, help="list so many (default %(default)s)"
    )


def summarise_vectors(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """List the operators of the last comparison whose outputs have a low cosine similarity."""
    files = [Path(given.file)] if given.file else _last_results(session.results)
    parts: list[str | Table] = []
    data = []
    for path in files:
        try:
            low = list(_below(path, given.cos_sim))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
        parts.append(f"{len(low)} operators below {given.cos_sim:g} in {path}")
        for place, each in low[: max(0, given.limit)]:
            parts.append(f"[{place}] {each['left']}")
            parts.append(f" Left:  {each['left']}")
            parts.append(f" Right: {each['right']}")
            for name in ("input", "output"):
                cosines = "  ".join(f"- [{path}]{value}" for path, value in each[name])
                parts.append(f" {name.capitalize()}: {cosines}")
            data.append({"place": place, **each})
    return WordAnswer(data, tuple(parts))


def _last_results(folder: Path) -> list[Path]:
    runs = sorted(each for each in folder.glob("*") if each.is_dir()) if folder.is_dir() else []
    found = sorted(runs[-1].rglob(f"{_RESULT_STEM}*.csv")) if runs else []
    if not found:
        raise UsageError(
            f"no comparison has run yet (looked in {folder}): vc or ac -c makes one, or -f FILE"
        )
    return found


def _below(path: Path, limit: float) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the place and the cosines of each call of which an output has a cosine below a limit."""
    calls: dict[str, dict[str, Any]] = {}
    for row in _table_rows(path):
        left, right = row.get("NPU Name", ""), row.get("Bench Name", "")
        name = left if left not in ("", "N/A") else right
        parts = name.split(".")
        cuts = [at for at, part in enumerate(parts) if part in _PARTS]
        cut = cuts[-1] if cuts else len(parts)
        call = calls.setdefault(
            ".".join(parts[:cut]), {"left": "", "right": "", "input": [], "output": []}
        )
        call["left"] = call["left"] or ".".join(left.split(".")[:cut])
        call["right"] = call["right"] or ".".join(right.split(".")[:cut])
        cosine = row.get("Cosine", "")
        if _is_number(cosine):
            part = "output" if parts[cut : cut + 1] == [OUTPUT] else "input"
            call[part].append((".".join(parts[cut + 1 :]), cosine))
    for place, call in enumerate(calls.values()):
        if any(not float(value) >= limit for _, value in call["output"]):
            yield place, call


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def convert_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dc`."""
    parser.add_argument("dump", nargs="?", default="", metavar="DUMP", help="the same as -n")
    parser.add_argument(
        "-n", "--name", default="", help="a dump file of an NPU, or a folder of them"
    )
    parser.add_argument("-f", "--format", default="", help="convert to this format, such as NCHW")
    parser.add_argument(
        "-o", "--out", default="", help="folder of the .npy files (default: decode/ of the state)"
    )


def convert_dumps(session: InspectSession, given: argparse.Namespace) -> WordAnswer:
    """Decode dumps of an NPU with CANN's converter."""
    name = given.name or given.dump
    if not name:
        raise UsageError("dc wants a dump file of an NPU, or a folder of them: dc FILE")
    if not Path(name).exists():
        raise UsageError(f"there is no {name}")
    out = Path(given.out) if given.out else session.state / "decode"
    tail = [
        "convert",
        "-d",
        name,
        "-out",
        str(out),
        *(["-f", given.format] if given.format else ["-t", "npy"]),
    ]
    found = _converter(session.cmd_root)
    if found is None:
        raise UsageError(
            f"no {_CONVERTER[1]} below {session.cmd_root}, which is part of CANN's Toolkit; where it is"
            f" installed: python3 {_CONVERTER[1]} {' '.join(tail)} (CMD_ROOT_PATH in"
            " precision_tool/config.py names its folder)"
        )
    out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["python3", str(found), *tail], check=False)
    if done.returncode:
        raise UsageError(f"{found} ended with exit code {done.returncode}")
    files = sorted(out.glob("*.npy"))
    return WordAnswer({"folder": out, "files": files}, (f"{len(files)} .npy files in {out}",))


def _converter(root: Path) -> Path | None:
    """Return CANN's converter below a folder; None where there is none."""
    for number, (folder, _, names) in enumerate(os.walk(root)):
        for name in _CONVERTER:
            if name in names:
                return Path(folder, name)
        if number > _MOST_FOLDERS:
            break
    return None
