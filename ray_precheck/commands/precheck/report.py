"""The `View` of a precheck: verdicts, the worst outputs, API types x dtypes, modules, how the run went.

Comes in: the files of runs that have ended, were stopped, or go on; several are ranks and steps of one run.
Goes out: a `View`. Called by the command `report`, and by `run_ut` and `summary` for --json and --plot. Each
table is read once, row by row: 1,000,000 rows take some seconds.
"""

import heapq
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from ray_precheck.commands.precheck.cards import (
    FoundCall,
    FoundOutput,
    RunBeside,
    broken_card,
    call_of_output,
    output_card,
    told_in,
    worst_measure,
)
from ray_precheck.commands.precheck.closing import (
    RankSummary,
    RunPhase,
    RunState,
    combined,
    direction_line,
    state_of,
)
from ray_precheck.commands.precheck.outcome import exit_code
from ray_precheck.commands.precheck.summary import (
    Row,
    Summary,
    badness,
    is_rounding,
    kind_of,
    summarise,
)
from ray_precheck.errors import UsageError
from ray_precheck.options.commands import resume_command, worst_code
from ray_precheck.running.capture_views import MapCell, module_name, row_link, torn_note, worst_map
from ray_precheck.running.recorded import is_module, module_parents, unseen_in
from ray_precheck.running.views import (
    BEGIN_OF_SENTENCE,
    MOST_CARDS,
    FoundRun,
    JudgedCall,
    facts_of_run,
    file_names,
    found_run,
    invocation_of,
    module_tree,
    named_and_more,
    quantity,
    settings_of_run,
    shown_times,
    state_of_run,
    timeline_chart,
)
from ray_precheck.schema.environment import environment_from_dict
from ray_precheck.schema.result import Verdict, call_verdict, verdict_in
from ray_precheck.schema.view import (
    Advice,
    Card,
    CellKind,
    Chart,
    ChartLine,
    Count,
    Fact,
    HeatMap,
    LineChart,
    NotCompared,
    RowColumn,
    RowTable,
    TimelineChart,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.heat import heat_file
from ray_precheck.store.results import (
    ResultRow,
    headings_of,
    parse_result_row,
    require_result_csv,
)
from ray_precheck.store.resume import error_folder
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import (
    ADDED_TEXTS,
    RESULT_COLUMNS,
    call_of_detail,
    decode_name,
    encode_name,
    run_files,
)
from ray_precheck.trace.sources import CONSTRUCT_FILE, source_lines

_TONES = {
    Verdict.PASS: Tone.PASS,
    Verdict.ERROR: Tone.ERROR,
    Verdict.SKIP: Tone.SKIP,
    Verdict.NONE: Tone.PLAIN,
}
_ERROR = Verdict.ERROR.value
_WORDS = {"pass": Tone.PASS, "error": Tone.ERROR, "SKIP": Tone.SKIP}
_TITLE = "Precheck of operators"
_NO_VERDICT = "Nothing was compared, so this says nothing about the device"
_MOST_REASONS = 20
# Crashes have cards also where ten outputs are farther beyond their limits.
_BROKEN_CARDS = 3
# Hostile files may have an API type for each row.
_MOST_TYPES = 20_000
# A larger construct.json would take more memory than everything else; its modules are not drawn then.
_LARGEST_CONSTRUCT_BYTES = 64 << 20
# Worse is all alike; a larger number would only flatten the colors of the others.
_LARGEST_TIMES = 1e6
# An output in error has at least this: the number that orders errors is not that of every limit.
_JUST_BEYOND = float(np.nextafter(1.0, 2.0))
_MOMENTS = 120
# Each has a line of facts.
_MOST_DUMPS = 64
# Rows of the table of what is in error; the page shows no more of a message than `_LONGEST`.
_MOST_IN_ERROR = 10_000
_LONGEST = 2_000
_NOT_RUN = "could not be run"
_TEXTS = ("Bench Dtype", "Tested Dtype", "Shape", "Message", *ADDED_TEXTS)


def view(found: Sequence[FoundRun]) -> View:
    """Return the view of the runs of which each `main` is its `accuracy_checking_result_{timestamp}.csv`.

    Raises:
        UsageError: a file is no result CSV, or cannot be read.
    """
    runs = [_look(each) for each in found]
    whole = runs[0].summary
    if len(runs) > 1:
        ranks = [RankSummary(run.found.label, run.summary) for run in runs]
        whole = combined(ranks, found[0].main.parent)
    state = next((run.state for run in runs if run.state is not ViewState.FINISHED), runs[0].state)
    codes = [exit_code(run.summary, state_of(run.summary)) for run in runs]
    suspects = list(_suspects(runs))
    cards = tuple(each.make() for each in suspects[:MOST_CARDS])
    types = list(dict.fromkeys(each.type_name for each in suspects))
    types += [name for name, _ in whole.error_types.most_common(MOST_CARDS) if name not in types]
    timeline = timeline_chart({run.found.label: run.summary.files.timeline for run in runs})
    settings = runs[0].summary.settings
    return View(
        "run_ut",
        _TITLE,
        f"{BEGIN_OF_SENTENCE[state]}{_sentence(whole, types, cards)}.",
        _tone(whole),
        state,
        -1 if state is ViewState.RUNNING else worst_code(*codes),
        (*facts_of_run(settings), *_facts(whole, runs)),
        invocation_of(settings),
        _counts(whole),
        (
            *(
                NotCompared(reason.text, reason.count, tuple(reason.names))
                for reason in whole.reasons.commonest(_MOST_REASONS)
            ),
            *unseen_in(run.beside.dump for run in runs if run.beside.dump is not None),
        ),
        tuple(_notes(runs)),
        cards,
        max(0, len(whole.error_types) - len({each.type_name for each in suspects[:MOST_CARDS]})),
        tuple(_overview(runs)),
        tuple(_model(runs)),
        tuple(_how_it_went(timeline)),
        tuple(_tables(runs)),
        tuple(_advice(runs, whole, cards, state)),
        tuple(name for run in runs for name in _files(run)),
    )


def ended_view(ranks: Sequence[RankSummary], state: RunState, code: int) -> View:
    """Return the view of a command that has just ended, with its exit code: of the runs over these dumps, of
    which some may not have been checked."""
    found = [
        found_run(rank.summary.files.result, rank.label)
        for rank in ranks
        if rank.summary is not None
    ]
    seen = view(found) if found else _nothing()
    is_over = state.progress is RunPhase.FINISHED
    if not is_over and seen.state is ViewState.FINISHED:  # It stopped between two dumps.
        begin = BEGIN_OF_SENTENCE[ViewState.STOPPED]
        seen = replace(seen, state=ViewState.STOPPED, sentence=f"{begin}{seen.sentence}")
    unchecked: dict[str, list[str]] = {}
    for rank in ranks:
        if rank.summary is None:
            unchecked.setdefault(rank.problem, []).append(rank.label)
    reasons = (NotCompared(text, len(each), tuple(each)) for text, each in unchecked.items())
    notes = () if is_over or not state.reason else (f"It stopped: {state.reason}.",)
    return replace(
        seen, exit_code=code, reasons=(*reasons, *seen.reasons), notes=(*notes, *seen.notes)
    )


def _nothing() -> View:
    """Return the view of a command that has no results: no dump could be checked."""
    return View("run_ut", _TITLE, f"{_NO_VERDICT}.", Tone.SKIP, ViewState.FINISHED)


@dataclass(slots=True)
class _Tally:
    """What the rows of a run add up to beside its summary.

    `verdicts` counts calls by API type and the cells of both directions, `worst` has for API type and dtype
    the largest multiple of a limit with the cell of its output. `parents` are the modules around records, as
    far as they are known; of each, `modules` counts the calls by verdict, with the cell of the first, and
    `worst_of_module` has the largest multiple of a limit. `in_error` is a heap of the worst of the `errors`
    outputs in error: whether rounding does not explain it, its multiple of a limit, its number, its cells.
    `broken` are calls that the device could not run.
    """

    parents: Mapping[str, str]
    verdicts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    worst: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    modules: dict[tuple[str, Tone], tuple[int, str]] = field(default_factory=dict)
    worst_of_module: dict[str, tuple[float, str]] = field(default_factory=dict)
    in_error: list[tuple[bool, float, int, Row]] = field(default_factory=list)
    errors: int = 0
    broken: list[ResultRow] = field(default_factory=list)

    def call(self, cells: Sequence[str]) -> None:
        """Count a row of the result CSV."""
        name, forward, backward = cells[:3]
        if _ERROR in (forward, backward) and len(self.broken) < _MOST_IN_ERROR:
            row = parse_result_row(cells)
            if row.broke:
                self.broken.append(row)
        key = name.rpartition(".")[0], forward, backward
        if key in self.verdicts or len(self.verdicts) < _MOST_TYPES:
            self.verdicts[key] += 1
        if not self.parents:
            return
        module = self.parents.get(f"{decode_name(name)}.forward", "")
        if module:
            verdict = call_verdict(verdict_in(forward), verdict_in(backward))
            count, first = self.modules.get((module, _TONES[verdict]), (0, name))
            self.modules[module, _TONES[verdict]] = count + 1, first

    def output(self, name: str, dtype: str, times: float, row: Row | None) -> None:
        """Count an output that was compared."""
        parts = name.rsplit(".", 4)
        type_name = parts[0] if len(parts) == 5 else name.rpartition(".")[0]
        if row is not None:
            if len(row["Message"]) > _LONGEST:
                row = {**row, "Message": row["Message"][:_LONGEST]}
            push = heapq.heappush if len(self.in_error) < _MOST_IN_ERROR else heapq.heappushpop
            # Its number is negative, so that of equal ones the first stay.
            push(self.in_error, (not is_rounding(row["Message"]), times, -self.errors, row))
            self.errors += 1
            module = self.parents.get(f"{decode_name(name.rsplit('.', 3)[0])}.forward", "")
            if module:
                before = self.worst_of_module.get(module, (-1.0, ""))
                self.worst_of_module[module] = max(before, (max(times, _JUST_BEYOND), name))
            times = min(max(times, _JUST_BEYOND), _LARGEST_TIMES)
        key = type_name, dtype
        known = self.worst.get(key)
        if known is None:
            if len(self.worst) < _MOST_TYPES:
                self.worst[key] = times, name
        elif times > known[0]:
            self.worst[key] = times, name


@dataclass(frozen=True, slots=True)
class _RowInError:
    """A row of the table of what is in error: its name as a cell, the cells behind it, and what orders it."""

    name: str
    cells: tuple[str, ...]
    unit: str
    rank: tuple[bool, bool, float, int]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A run that was read."""

    found: FoundRun
    summary: Summary
    state: ViewState
    tally: _Tally
    beside: RunBeside
    around: Mapping[str, str]
    in_error: Sequence[_RowInError] = ()


def _look(found: FoundRun) -> _Seen:
    files = run_files(found.main)
    if (
        found.main.exists() or not files.settings.exists()
    ):  # A run makes its CSV with the first row.
        require_result_csv(found.main)
    settings = settings_of_run(files)
    errors = error_folder(files, None, as_msprobe=False)
    parents = _parents(settings)
    tally = _Tally(parents)
    try:
        summary = summarise(files, tally)
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from None
    in_error = tuple(_rows_in_error(tally, summary.environment.dump))
    tally.parents = {}  # Of each of many runs it may have a million entries.
    suspects = [call_of_detail(output.name) for output in summary.worst]
    suspects += [call.name for call in summary.broken_calls]
    keys = (f"{name}.{direction}" for name in suspects for direction in ("forward", "backward"))
    modules = {key: parents[key] for key in keys if key in parents}
    files = replace(files, errors=errors)
    beside = RunBeside(found, files, summary.environment, settings, modules)
    around = {key: module for key, module in parents.items() if is_module(key)}
    state = state_of_run(files, settings)
    return _Seen(found, summary, state, tally, beside, around, in_error)


def _rows_in_error(tally: _Tally, dump: str) -> Iterator[_RowInError]:
    """Yield the rows of what is in error, in no order, and give up the cells that were kept for them."""
    keys = [call_of_output(decode_name(row["API Name"])) for *_, row in tally.in_error]
    both = {f"{key}.{each}" for key in keys for each in ("forward", "backward")}
    both |= {f"{call.name}.forward" for call in tally.broken}
    sources = source_lines(Path(dump), both) if dump and both else {}

    def place(call: str, direction: str) -> tuple[str, str]:
        names = (f"{call}.{direction}", f"{call}.forward")
        module, source = (
            next(filter(None, (known.get(name) for name in names)), "")
            for known in (tally.parents, sources)
        )
        return module, source

    for (is_wrong, times, number, row), call in zip(tally.in_error, keys, strict=True):
        name = row["API Name"]
        why, cause = told_in(row["Message"])
        worst = worst_measure(row, times)
        where = place(call, "backward" if ".backward." in name else "forward")
        cells = (repr(worst.times), _ERROR, cause, *where, why)
        rank = False, is_wrong, times, number
        yield _RowInError(name, tuple(cell[:_LONGEST] for cell in cells), worst.unit, rank)
    for number, lost in enumerate(tally.broken):
        where = place(lost.name, "backward" if lost.backward_broke else "forward")
        cells = ("", _NOT_RUN, "", *where, lost.message[:_LONGEST])
        rank = True, True, math.inf, -number
        yield _RowInError(encode_name(lost.name), cells, "", rank)
    tally.in_error = []


def _parents(settings: RunSettings | None) -> Mapping[str, str]:
    """Return the module around each record of the dump; {} where the dump is not on this machine, or has too
    many to be drawn."""
    dump = environment_from_dict(settings.environment).dump if settings is not None else ""
    if not dump:
        return {}
    try:
        size = (Path(dump).parent / CONSTRUCT_FILE).stat().st_size
    except OSError:
        return {}
    return module_parents(Path(dump)) if size <= _LARGEST_CONSTRUCT_BYTES else {}


def _sentence(whole: Summary, types: Sequence[str], cards: Sequence[Card]) -> str:
    """Return the verdict; `types` are the operators in error that are known by name, in the order of their
    `cards`."""
    if whole.checked_nothing:
        return _NO_VERDICT
    if not whole.errors:
        skips = f"; {whole.skips:,} could not be compared" if whole.skips else ""
        every = "All" if not whole.skips else f"{whole.passes:,} of"
        return f"{every} {quantity(whole.total, 'call')} pass{skips}"
    total = max(len(whole.error_types), len(types))
    names = named_and_more(types, total - len(types))
    calls = f"{whole.errors:,} of {quantity(whole.total, 'call')}"
    said = (
        f"{quantity(total, 'operator')} {'is' if total == 1 else 'are'} in error: {names} ({calls})"
    )
    if whole.broken:
        said += f"; the device could not run {quantity(whole.broken, 'call')}"
    worst = next((output for output in whole.worst if output.is_error), None)
    if worst is None:
        return said
    if is_rounding(worst.row["Message"]):
        return f"{said}; rounding explains every number that is beyond its limit"
    first = next((card for card in cards if card.bars), None)
    if first is None or math.isnan(first.times):
        return said
    name = f"{first.label} {first.name}" if first.label else first.name
    if math.isinf(first.times):
        return f"{said}; the worst output is {name}, of which nothing fits"
    what = first.bars[0].name
    measured = f"{what[:1].lower()}{what[1:]} is {shown_times(first.times)} {first.unit}"
    return f"{said}; the worst output is {name}: its {measured}"


def _tone(whole: Summary) -> Tone:
    if whole.errors:
        return Tone.ERROR
    return Tone.SKIP if whole.checked_nothing else Tone.PASS


def _facts(whole: Summary, runs: Sequence[_Seen]) -> Iterator[Fact]:
    if len(runs) > 1:
        yield Fact("Dumps", str(len(runs)))
        for run in runs[:_MOST_DUMPS]:
            found = run.summary
            counts = f"{found.passes:,} pass, {found.errors:,} error, {found.skips:,} SKIP"
            yield Fact(run.found.label, f"{quantity(found.total, 'call')}: {counts}")
    for name in ("Forward", "Backward"):
        direction = getattr(whole, name.lower())
        yield Fact(name, direction_line("", direction).strip())


def _counts(whole: Summary) -> tuple[Count, ...]:
    parts = (
        Count("forward in error", whole.forward.errors + whole.forward.broken, Tone.ERROR),
        Count("backward in error", whole.backward.errors + whole.backward.broken, Tone.ERROR),
        Count("could not be run", whole.broken, Tone.ERROR),
    )
    return (
        Count("pass", whole.passes, Tone.PASS),
        Count("error", whole.errors, Tone.ERROR),
        Count("SKIP", whole.skips, Tone.SKIP),
        *(part for part in parts if part.number),
    )


def _notes(runs: Sequence[_Seen]) -> Iterator[str]:
    for run in runs:
        settings = run.summary.settings
        yield from (f"{cut}." for cut in (settings.cut_short if settings is not None else ()))
        if settings is None:
            yield f"{run.found.main.name} has no settings beside it: how it was made is not known."
        if run.summary.foreign:
            rows = quantity(len(run.summary.foreign), "row")
            yield f"{rows} of calls that the dump does not have are not counted."
        if run.state is not ViewState.RUNNING:
            paths = (run.summary.files.result, run.summary.files.details)
            yield from (f"{note}." for path in paths if path.exists() and (note := torn_note(path)))


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An operator that has a card, and what makes it."""

    type_name: str
    make: Callable[[], Card]


def _suspects(runs: Sequence[_Seen]) -> Iterator[_Suspect]:
    """Yield the operators in error: those by how far their outputs are beyond their limits, those that
    rounding explains last, and before these the ones that the device could not run. An operator has one card
    for what is measured and one for calls that could not be run, whatever the directions, steps and ranks."""
    outputs: dict[str, list[FoundOutput]] = {}
    broken: dict[str, list[FoundCall]] = {}
    for run in runs:
        for output in run.summary.worst:
            if output.is_error:
                found = FoundOutput(run.beside, output)
                outputs.setdefault(_type_of(output.name), []).append(found)
        for call in run.summary.broken_calls:
            found_call = FoundCall(run.beside, call)
            broken.setdefault(call.name.rpartition(".")[0], []).append(found_call)
    for each in outputs.values():
        each.sort(key=lambda found: badness(found.output), reverse=True)
    ordered = sorted(outputs.items(), key=lambda each: badness(each[1][0].output), reverse=True)
    measured = [_Suspect(name, partial(output_card, each)) for name, each in ordered]
    is_wrong = [not is_rounding(each[0].output.row["Message"]) for _, each in ordered]
    wrong = is_wrong.count(True)  # They stand before those that rounding explains.
    room = max(MOST_CARDS - len(broken), MOST_CARDS - _BROKEN_CARDS)
    yield from measured[: min(wrong, room)]
    for type_name, calls in broken.items():
        yield _Suspect(type_name, partial(broken_card, calls))
    yield from measured[min(wrong, room) :]


def _type_of(output: str) -> str:
    return kind_of(output).rpartition(".")[0]


def _overview(runs: Sequence[_Seen]) -> Iterator[Chart]:
    cells = (
        MapCell(decode_name(type_name), dtype or "no tensor", times, _link(run, name))
        for run in runs
        for (type_name, dtype), (times, name) in run.tally.worst.items()
    )
    title = "The worst output of each API type and dtype"
    if any("Standard" in headings_of(run.summary.files.details) for run in runs):
        title += ", passes as 0"
    chart = worst_map(title, "times the limit", cells, 1.0, ("API type", "dtype"))
    if chart is not None:
        yield chart
    over_runs = _over_runs(runs) if len(runs) > 1 else None
    if over_runs is not None:
        yield over_runs


def _over_runs(runs: Sequence[_Seen]) -> HeatMap | None:
    """Return modules x steps and ranks with the worst output of each, API types where no module is known."""
    title = "The worst output in error of each module, step and rank; passes as 0"
    by_module = [cell for run in runs for cell in _module_cells(run)]
    if by_module:
        return worst_map(title, "times the limit", by_module, 1.0, ("module", "step and rank"))
    cells: dict[tuple[str, str], MapCell] = {}
    for run in runs:
        for (type_name, _), (times, name) in run.tally.worst.items():
            key = decode_name(type_name), run.found.label
            if key not in cells or times > cells[key].value:
                cells[key] = MapCell(*key, times, _link(run, name))
    title = "The worst output of each API type, step and rank"
    return worst_map(title, "times the limit", cells.values(), 1.0, ("API type", "step and rank"))


def _module_cells(run: _Seen) -> Iterator[MapCell]:
    for (module, _), (_, first) in run.tally.modules.items():
        times, output = run.tally.worst_of_module.get(module, (0.0, first))
        shown = min(times, _LARGEST_TIMES)
        yield MapCell(module_name(module), run.found.label, shown, _link(run, output))


def _link(run: _Seen, cell: str) -> str:
    return row_link(run.found, decode_name(cell))


def _model(runs: Sequence[_Seen]) -> Iterator[Chart]:
    """Yield the modules of all runs as one tree, with the calls of all."""
    around: dict[str, str] = {}
    for run in reversed(runs):
        around.update(run.around)
    tree = module_tree(
        "Modules of the model", (call for run in runs for call in _judged(run)), around
    )
    if tree is not None:
        yield tree


def _judged(run: _Seen) -> Iterator[JudgedCall]:
    for (module, tone), (count, first) in run.tally.modules.items():
        known = run.tally.worst_of_module.get(module) if tone is Tone.ERROR else None
        times, name = known or (0.0, first)
        yield JudgedCall(module, tone, _link(run, name), count, times)


def _how_it_went(timeline: TimelineChart | None) -> Iterator[Chart]:
    if timeline is None:
        return
    yield timeline
    if "longest of" in timeline.title:  # The others end at times that are not known.
        return
    ends = np.zeros(len(timeline.names))
    np.maximum.at(ends, timeline.name, timeline.begin + timeline.length)
    whole_s = float(ends.max())
    if whole_s <= 0:
        return
    moments = min(_MOMENTS, max(1, len(ends) // 4))
    counts, edges = np.histogram(ends, moments, (0.0, whole_s))
    line = ChartLine("calls", (edges[:-1] + edges[1:]) / 2, counts / (whole_s / moments))
    yield LineChart("Throughput", "seconds", "calls that ended in a second", (line,))


def _tables(runs: Sequence[_Seen]) -> Iterator[RowTable]:
    if any(run.in_error for run in runs):
        yield _error_table(runs)
    for run in runs:
        files, label = run.summary.files, run.found.label
        columns = tuple(
            RowColumn(heading, CellKind.NAME if heading == "API Name" else _result_kind(heading))
            for heading in RESULT_COLUMNS
        )
        if files.result.exists():
            yield RowTable("Calls", columns, files.result, tones=_WORDS, label=label)
        headings = headings_of(files.details)
        if headings:
            columns = tuple(RowColumn(heading, _detail_kind(heading)) for heading in headings)
            yield RowTable(
                "Outputs and gradients", columns, files.details, tones=_WORDS, label=label
            )
    yield _types_table(runs)


def _error_table(runs: Sequence[_Seen]) -> RowTable:
    """Return the outputs in error of all runs, the worst first; before them the calls that the device could
    not run."""
    rows = [(row, run.found.label) for run in runs for row in run.in_error]
    rows.sort(key=lambda each: each[0].rank, reverse=True)
    total = sum(run.tally.errors + len(run.tally.broken) for run in runs)
    title = "In error"
    if total > _MOST_IN_ERROR:
        title += f" (the {_MOST_IN_ERROR:,} worst of {total:,} outputs)"
    units = {row.unit for row, _ in rows if row.unit}
    heading = units.pop().capitalize() if len(units) == 1 else "Times its limit or unit"
    is_many = len(runs) > 1
    columns = (
        RowColumn("API Name", CellKind.NAME),
        *([RowColumn("Step and rank", CellKind.TEXT)] if is_many else []),
        RowColumn(heading, CellKind.NUMBER),
        RowColumn("Verdict", CellKind.TONE),
        *(RowColumn(each, CellKind.TEXT) for each in ("Cause", "Module", "Source", "Message")),
    )
    return RowTable(
        title,
        columns,
        rows=tuple(
            (row.name, *([label] if is_many else []), *row.cells)
            for row, label in rows[:_MOST_IN_ERROR]
        ),
        tones={_ERROR: Tone.ERROR, _NOT_RUN: Tone.ERROR},
        name_parts=(1,) if is_many else (),
        repeats=True,
    )


def _result_kind(heading: str) -> CellKind:
    return CellKind.TEXT if heading == "Message" else CellKind.TONE


def _detail_kind(heading: str) -> CellKind:
    if heading == "API Name":
        return CellKind.NAME
    if heading == "Status":
        return CellKind.TONE
    return CellKind.TEXT if heading in _TEXTS else CellKind.NUMBER


_TYPE_COLUMNS = ("calls", "pass", "error", "SKIP")


def _types_table(runs: Sequence[_Seen]) -> RowTable:
    """Return how many calls of each API type have which verdict, the types with most errors first."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        for (type_name, forward, backward), count in run.tally.verdicts.items():
            verdict = call_verdict(verdict_in(forward), verdict_in(backward))
            found = counts.setdefault(type_name, Counter())
            found["calls"] += count
            found[verdict.value] += count
    ordered = sorted(counts.items(), key=lambda each: (-each[1]["error"], -each[1]["calls"]))
    return RowTable(
        "API types",
        (
            RowColumn("API type", CellKind.NAME),
            *(RowColumn(heading, CellKind.NUMBER) for heading in _TYPE_COLUMNS),
        ),
        rows=tuple(
            (name, *(str(found[heading]) for heading in _TYPE_COLUMNS)) for name, found in ordered
        ),
    )


def _advice(
    runs: Sequence[_Seen], whole: Summary, cards: Sequence[Card], state: ViewState
) -> Iterator[Advice]:
    dump = whole.environment.dump
    if state is ViewState.STOPPED and dump:
        yield Advice("Go on with the run where it stopped.", (_resuming(runs, dump),))
    commands = tuple(dict.fromkeys(card.reproduce for card in cards if card.reproduce))[:3]
    if commands:
        yield Advice("Run the worst calls alone.", commands)
    is_default = (whole.environment.rule or "msprobe") == "msprobe"
    is_explained = any(is_rounding(output.row["Message"]) for output in whole.worst)
    if whole.errors and is_default and is_explained and dump:
        yield Advice(
            "Rounding explains some errors by msprobe's rule; judge by what honest implementations do.",
            (f"ray-precheck run_ut -api_info {shlex.quote(dump)} --standard auto",),
        )


def _resuming(runs: Sequence[_Seen], dump: str) -> str:
    """Return the command that goes on: the one that began the run, where that is known."""
    results = runs[0].found.main.absolute()
    if len(runs) > 1:  # Those of all dumps: the folder in which those of steps and ranks are.
        results = results.parents[len(Path(runs[0].found.label).parts)]
    settings = runs[0].summary.settings
    if settings is None or not settings.command:
        return resume_command(("run_ut", "-api_info", dump), results)
    line = resume_command(settings.command, results)
    return f"cd {shlex.quote(settings.folder)} && {line}" if settings.folder else line


def _files(run: _Seen) -> Iterator[str]:
    files = run.summary.files
    heat = heat_file(files.result)
    paths: list[Path] = [files.result, files.details, files.settings, files.timeline]
    yield from file_names([*paths, *([heat] if heat is not None else [])])
