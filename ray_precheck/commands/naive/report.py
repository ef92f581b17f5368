"""What `naive` prints: the first calls whose kernels differ, the switch to blame, and what to do next; and
its `View`.

Comes in: a `NaiveReport`, or the files of runs. Goes out: text, an exit code, a `View`. Called by the
command, and by the command `report`.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.commands.naive.job import NAIVE_TABLES
from ray_precheck.commands.naive.run import NaiveReport, NaiveRow, read_contrast
from ray_precheck.dump.folders import standing_for
from ray_precheck.options.commands import STOPPED, code_of, worst_code
from ray_precheck.running.recorded import module_parents, record_in, unseen_in, value_facts
from ray_precheck.running.views import (
    BEGIN_OF_SENTENCE,
    MOST_CARDS,
    FoundRun,
    JudgedCall,
    advice_to_go_on,
    code_around,
    facts_of_run,
    file_names,
    invocation_of,
    module_tree,
    quantity,
    settings_of_run,
    state_of_run,
    timeline_chart,
    worst_tone,
)
from ray_precheck.schema.environment import environment_from_dict
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.view import (
    Advice,
    Bar,
    Card,
    CellKind,
    Chart,
    Count,
    Fact,
    HeatMap,
    NotCompared,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import RunFiles, call_of_detail, decode_name, run_files
from ray_precheck.trace.items import INPUT
from ray_precheck.trace.sources import Modules, source_lines

_SHOWN = 5
_LONGEST_TEXT = 500


def naive_lines(report: NaiveReport) -> Iterator[str]:
    """Yield the closing lines of a run, the calls in error first, in the order of the dump."""
    wrong = [row for row in report.rows if row.verdict is Verdict.ERROR]
    for row in wrong[:_SHOWN]:
        yield from _shown(row)
    if len(wrong) > _SHOWN:
        yield f"  and {len(wrong) - _SHOWN} more"
    yield _counted(report.rows)
    yield from _blamed(wrong)
    yield f"Rows: {report.files.result}"
    if wrong:
        yield from _next(wrong)


def _shown(row: NaiveRow) -> Iterator[str]:
    what = {
        "default": "the default kernels are wrong",
        "naive": "the plain kernels are wrong",
        "both": "default and plain kernels are wrong",
    }.get(row.wrong, "")
    unlike = "equal runs differ" if row.reproducible == "no" else ""
    yield f"{row.name}: {' and '.join(filter(None, [what, unlike])) or 'error'}"
    if row.default_error or row.naive_error:
        place = f" at {row.output}{f' {row.at}' if row.at else ''}" if row.output else ""
        yield (
            f"  error{place}, in units of what rounding explains: default {row.default_error or '-'},"
            f" plain {row.naive_error or '-'}, difference {row.difference or '-'}"
        )
    if row.switch:
        yield f"  switch: {row.switch}"
    text = row.message
    yield f"  {text if len(text) <= _LONGEST_TEXT else f'{text[:_LONGEST_TEXT]} ...'}"


def _counted(rows: Sequence[NaiveRow]) -> str:
    counts = Counter(row.verdict for row in rows)
    unlike = sum(row.reproducible == "no" for row in rows if row.verdict is Verdict.ERROR)
    said = f"{len(rows)} calls: {counts[Verdict.PASS]} pass, {counts[Verdict.ERROR]} error"
    if unlike:
        said += f" ({unlike} not reproducible)"
    return f"{said}, {counts[Verdict.SKIP]} could not be run"


def _blamed(wrong: Sequence[NaiveRow]) -> Iterator[str]:
    """Yield a line on each switch that makes a difference, the one of most calls first."""
    counts = Counter(row.switch for row in wrong if row.switch)
    for switch, count in counts.most_common():
        yield f"Switch {switch}: {count} of {len(wrong)} calls in error"


def _next(wrong: Sequence[NaiveRow]) -> Iterator[str]:
    """Yield what to do next, from the kinds of errors that there are."""
    yield "Next:"
    if any(row.switch for row in wrong):
        yield (
            "  run the model with the switch of the calls above off, as their messages say, and compare its"
            " loss; report the kernel to its maker with the row"
        )
    if any(row.wrong and not row.switch for row in wrong):
        yield (
            "  no switch mends the calls without one: `ray-precheck run_ut --standard auto --tested device"
            " -save_error_data` says more of them and saves their tensors"
        )
    if any(row.reproducible == "no" for row in wrong):
        yield "  two runs of this model cannot be compared bit for bit while these calls differ"


def naive_exit_code(report: NaiveReport) -> int:
    """Return the exit code of a run."""
    return code_of({row.verdict for row in report.rows}) if report.completed else STOPPED


_TONES = {Verdict.PASS: Tone.PASS, Verdict.ERROR: Tone.ERROR, Verdict.SKIP: Tone.SKIP}
_UNIT = "what rounding explains"
_NAMED = 5


def view(found: Sequence[FoundRun]) -> View:
    """Return the view of runs, of which each `main` is its `naive_{timestamp}.csv`.

    Raises:
        ResumeError: a file has other columns.
        OSError: a file cannot be read.
    """
    runs = [_seen(each) for each in found]
    states = [state_of_run(each.report.files, each.settings) for each in runs]
    state = next((each for each in states if each is not ViewState.FINISHED), ViewState.FINISHED)
    rows = [(each, row) for each in runs for row in each.report.rows]
    wrong = [(each, row) for each, row in rows if row.verdict is Verdict.ERROR]
    tones = [_TONES[row.verdict] for _, row in rows]
    code = worst_code(*(naive_exit_code(each.report) for each in runs))
    timeline = timeline_chart({each.found.label: each.report.files.timeline for each in runs})
    outputs = [cells for each in runs for cells in _outputs(each.report.files)]
    return View(
        "naive",
        "Default and plain kernels side by side",
        f"{BEGIN_OF_SENTENCE[state]}{_sentence([row for _, row in rows])}.",
        worst_tone(tones),
        state,
        -1 if state is ViewState.RUNNING else code,
        tuple(fact for fact in facts_of_run(runs[0].settings) if fact.name != "Standard"),
        invocation_of(runs[0].settings),
        tuple(Count(verdict.value, tones.count(tone), tone) for verdict, tone in _TONES.items()),
        (
            *_not_run([row for _, row in rows]),
            *unseen_in(each.dump for each in runs if each.dump is not None),
        ),
        tuple(each.report.note for each in runs if each.report.note),
        tuple(_card(each, row) for each, row in wrong[:MOST_CARDS]),
        max(0, len(wrong) - MOST_CARDS),
        tuple(_overview(outputs, [row for _, row in wrong])),
        tuple(chart for each in runs for chart in _modules(each)),
        () if timeline is None else (timeline,),
        tuple(table for each in runs for table in _tables(each.report.files)),
        (*advice_to_go_on(runs[0].settings, state, runs[0].found.main), *_advice(wrong)),
        tuple(name for each in runs for name in _files_of(each.report.files)),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A run with its settings, None where they are missing; `dump` is what it read, None where that is not
    on this machine."""

    found: FoundRun
    report: NaiveReport
    settings: RunSettings | None
    dump: Path | None


def _seen(found: FoundRun) -> _Seen:
    files = run_files(found.main, NAIVE_TABLES)
    settings = settings_of_run(files)
    named = environment_from_dict(settings.environment).dump if settings is not None else ""
    dump = standing_for(Path(named)) if named else None
    there = dump if dump is not None and dump.exists() else None
    return _Seen(found, read_contrast(files, settings), settings, there)


def _sentence(rows: Sequence[NaiveRow]) -> str:
    wrong = [row for row in rows if row.verdict is Verdict.ERROR]
    if not wrong:
        done = sum(row.verdict is Verdict.PASS for row in rows)
        if not done:
            return f"Nothing could be run of {quantity(len(rows), 'call')}"
        return f"Of {quantity(done, 'call')} none differs by more than rounding, and each repeats itself"
    unlike = sum(row.reproducible == "no" for row in wrong)
    counts = Counter(row.switch for row in wrong if row.switch)
    said = f"{len(wrong)} of {quantity(len(rows), 'call')} in error"
    said += f", {unlike} of which are not reproducible" if unlike else ""
    said += f"; the first is {wrong[0].name}"
    if counts:
        switch, count = counts.most_common(1)[0]
        said += f"; the switch {switch} makes the difference in {quantity(count, 'call')}"
    return said


def _not_run(rows: Sequence[NaiveRow]) -> Iterator[NotCompared]:
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict is Verdict.SKIP:
            by_reason.setdefault(row.message, []).append(row.name)
    for text, names in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        yield NotCompared(text, len(names), tuple(names[:_NAMED]))


def _card(run: _Seen, row: NaiveRow) -> Card:
    key = f"{row.name}.forward"
    record: Mapping[str, Any] = {}
    module = source = ""
    missing = []
    if run.dump is None:
        missing.append("the dump is not on this machine, so that what the call got cannot be shown")
    else:
        record = record_in(run.dump, key)
        module = Modules(run.dump.parent).of(key)
        source = source_lines(run.dump, [key]).get(key, "")
    code, why_not = code_around(source)
    errors = {
        "default kernels": row.default_error,
        "plain kernels": row.naive_error,
        "difference of both": row.difference,
    }
    bars = tuple(
        Bar(f"{name}, in units of {_UNIT}", float(error), 1.0)
        for name, error in errors.items()
        if error
    )
    facts = {
        "Wrong": {"naive": "plain", "both": "default and plain"}.get(row.wrong, row.wrong),
        "Switch": row.switch,
        "Equal runs give the same bits": row.reproducible,
        "Largest error at": f"{row.output} {row.at}".strip(),
    }
    command = f"ray-precheck naive {_quoted(run.dump)} -k {shlex.quote(row.name)}"
    return Card(
        row.name,
        Tone.ERROR,
        f"{row.message}.",
        row.name,
        run.found.label,
        max((bar.value for bar in bars[:2]), default=math.nan),
        tuple(Fact(name, value) for name, value in facts.items() if value),
        value_facts(record, INPUT),
        bars,
        cause=f"the kernels that {row.switch} chooses" if row.switch else "",
        module=module,
        source=source,
        code=code,
        reproduce=command if run.dump is not None else "",
        missing=tuple(filter(None, [*missing, why_not])),
    )


def _quoted(dump: Path | None) -> str:
    return shlex.quote(str(dump or "DUMP"))


def _outputs(files: RunFiles) -> list[list[str]]:
    return list(decoded_rows(files.details, NAIVE_TABLES.details)) if files.details.exists() else []


def _overview(outputs: Sequence[list[str]], wrong: Sequence[NaiveRow]) -> Iterator[Chart]:
    """Yield operator types x dtypes with their worst error. What passes counts at most 1, the limit: `auto`
    allows a multiple of what rounding explains, which depends on the output."""
    worst: dict[tuple[str, str], float] = {}
    links: dict[tuple[str, str], str] = {}
    names = {row.name for row in wrong}
    for cell, dtype, _, default, naive, _, status, _ in outputs:
        call = call_of_detail(decode_name(cell))
        place = call.rpartition(".")[0], dtype
        errors = [float(each) for each in (default, naive) if each]
        error = max(errors, default=0.0)
        value = error if status == Verdict.ERROR.value else min(error, 1.0)
        if value >= worst.get(place, -1.0):
            worst[place] = value
            links[place] = call if call in names or place not in links else links[place]
    if not worst:
        return
    largest = {kind: max(v for (k, _), v in worst.items() if k == kind) for kind, _ in worst}
    kinds = sorted(largest, key=lambda kind: (-largest[kind], kind))
    dtypes = sorted({dtype for _, dtype in worst})
    values = np.full((len(kinds), len(dtypes)), np.nan)
    found = {}
    for place, value in worst.items():
        cell_of = kinds.index(place[0]), dtypes.index(place[1])
        values[cell_of] = value
        found[cell_of] = links[place]
    yield HeatMap(
        "Worst error of each operator type and dtype; what passes counts at most 1",
        _UNIT,
        tuple(kinds),
        tuple(dtypes),
        values,
        found,
        row_title="operator",
        column_title="dtype",
    )


def _modules(run: _Seen) -> Iterator[Chart]:
    if run.dump is None:
        return
    parents = module_parents(run.dump)
    calls = (
        JudgedCall(parents.get(f"{row.name}.forward", ""), _TONES[row.verdict], row.name)
        for row in run.report.rows
    )
    tree = module_tree("Modules of the model", calls, parents)
    if tree is not None:
        yield tree


def _tables(files: RunFiles) -> Iterator[RowTable]:
    words = {verdict.value: tone for verdict, tone in _TONES.items()}
    kinds = {
        "API Name": CellKind.NAME,
        "Output": CellKind.NAME,
        "Verdict": CellKind.TONE,
        "Status": CellKind.TONE,
        **dict.fromkeys(("Default Error", "Naive Error", "Difference"), CellKind.NUMBER),
    }
    for title, path, headings in (
        ("Calls", files.result, NAIVE_TABLES.result),
        ("Outputs", files.details, NAIVE_TABLES.details),
    ):
        columns = tuple(RowColumn(each, kinds.get(each, CellKind.TEXT)) for each in headings)
        if path.exists():
            yield RowTable(title, columns, path, tones=words)


def _advice(wrong: Sequence[tuple[_Seen, NaiveRow]]) -> Iterator[Advice]:
    rows = [row for _, row in wrong]
    switched = next((row for row in rows if row.switch), None)
    if switched is not None:
        yield Advice(
            "Run the model with the switch off as the message of its call says, compare its loss, and report"
            " the kernel to its maker with the row."
        )
    other = next(((run, row) for run, row in wrong if row.wrong and not row.switch), None)
    if other is not None:
        run, row = other
        yield Advice(
            "No switch mends the calls without one: see more of them, with their tensors saved.",
            (
                f"ray-precheck run_ut -api_info {_quoted(run.dump)} -k {shlex.quote(row.name)}"
                " --standard auto --tested device -save_error_data",
            ),
        )
    if any(row.reproducible == "no" for row in rows):
        yield Advice(
            "Two runs of this model cannot be compared bit for bit while equal runs of these calls differ."
        )


def _files_of(files: RunFiles) -> tuple[str, ...]:
    return file_names([files.result, files.details, files.settings, files.timeline])
