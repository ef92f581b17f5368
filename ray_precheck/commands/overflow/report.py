"""The `View` of `overflow_check`: births, where they spread, ranks x steps, headroom over steps.

Comes in: the files of searches that have ended, were stopped, or go on. Goes out: a `View`. Called by the
command `report`, and by the command itself.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_precheck.commands.overflow.closing import (
    births_by_turns,
    search_exit_code,
    shown_place,
    shown_rank,
)
from ray_precheck.commands.overflow.job import OVERFLOW_TABLES
from ray_precheck.commands.overflow.replay import REPLAY_TABLES
from ray_precheck.commands.overflow.replay_report import replay_view
from ray_precheck.commands.overflow.run import (
    TREND_COLUMNS,
    DumpResult,
    OverflowReport,
    read_search,
)
from ray_precheck.dump.folders import dumps_below
from ray_precheck.errors import DumpError
from ray_precheck.options.commands import worst_code
from ray_precheck.running.recorded import (
    is_module,
    module_parents,
    record_in,
    unseen_in,
    value_facts,
)
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
    Card,
    CellKind,
    Chart,
    ChartLine,
    Count,
    Fact,
    FlowGraph,
    HeatMap,
    LineChart,
    NotCompared,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import run_files
from ray_precheck.trace.items import INPUT, OUTPUT
from ray_precheck.trace.overflow.rows import COLUMNS, HEADROOM, Birth, OverflowRow

_TONES = {Verdict.PASS: Tone.PASS, Verdict.ERROR: Tone.ERROR, Verdict.SKIP: Tone.SKIP}
_BIRTH_TONES = {
    Birth.BORN.value: Tone.ERROR,
    Birth.CAST.value: Tone.ERROR,
    Birth.FLAGGED.value: Tone.ERROR,
    Birth.CAME_IN.value: Tone.WARNING,
    Birth.RE_EMERGED.value: Tone.WARNING,
    Birth.PASSED_ON.value: Tone.WARNING,
    HEADROOM: Tone.PLAIN,
}
# Lines that a chart can tell apart.
_MOST_LINES = 8
_NAMED = 5


def view(found: Sequence[FoundRun]) -> View:
    """Return the view of searches, of which each `main` is its `overflow_check_{timestamp}.csv`, or of
    replays, of which it is `run_overflow_check_result_{timestamp}.csv`.

    Raises:
        ResumeError: a file has other columns.
        OSError: a file cannot be read.
    """
    if found[0].main.name.startswith(REPLAY_TABLES.stem):
        return replay_view(found)
    searches = []
    for each in found:
        result = each.main.with_name(OVERFLOW_TABLES.file("result", each.stamp))
        files = run_files(result, OVERFLOW_TABLES)
        searches.append(_Seen(each, read_search(files), settings_of_run(files)))
    states = [state_of_run(each.report.files, each.settings) for each in searches]
    state = next((each for each in states if each is not ViewState.FINISHED), ViewState.FINISHED)
    births = births_by_turns(row for each in searches for row in each.births)
    suspects = births or [row for each in searches for row in _alarms(each.report)]
    codes = [search_exit_code(each.report) for each in searches]
    settings = searches[0].settings
    tones = [_TONES[dump.verdict] for each in searches for dump in each.report.dumps]
    places = _DumpPlaces(searches)
    return View(
        "overflow_check",
        "Births of NaN and infinity",
        _sentence(searches, births, state),
        worst_tone(tones),
        state,
        -1 if state is ViewState.RUNNING else worst_code(*codes),
        (*facts_of_run(settings), *_facts(searches)),
        invocation_of(settings),
        _counts(tones),
        (*_not_checked(searches), *unseen_in(places.paths)),
        tuple(_notes(searches)),
        tuple(_card(row, searches, places) for row in suspects[:MOST_CARDS]),
        max(0, len(suspects) - MOST_CARDS),
        tuple(_charts(searches)),
        (*_modules(searches, suspects, places), *_flow(searches, suspects)),
        _timeline(searches),
        tuple(table for each in searches for table in _tables(each.report)),
        (
            *(
                advice
                for each, one in zip(searches, states, strict=True)
                for advice in advice_to_go_on(each.settings, one, each.report.files.details)
            ),
            *_advice(searches, births, places),
        ),
        tuple(name for each in searches for name in _files_of(each.report)),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A search with its settings, None where they are missing."""

    found: FoundRun
    report: OverflowReport
    settings: RunSettings | None

    @property
    def births(self) -> list[OverflowRow]:
        return [row for row in self.report.rows if row.is_born or row.birth == Birth.FLAGGED.value]


def _alarms(report: OverflowReport) -> list[OverflowRow]:
    """Return the first row of each dump that is in error without a birth: something came in."""
    firsts = {each.name: each.first for each in report.dumps if each.verdict is Verdict.ERROR}
    by_dump: dict[str, OverflowRow] = {}
    for row in report.rows:
        if firsts.get(row.dump) == f"{row.api}.{row.tensor}":
            by_dump.setdefault(row.dump, row)
    return list(by_dump.values())


def _sentence(searches: Sequence[_Seen], births: Sequence[OverflowRow], state: ViewState) -> str:
    dumps = [dump for each in searches for dump in each.report.dumps]
    if births:
        count = len({row.dump for row in births})
        first = births[0]
        said = (
            f"NaN or infinity was born in {quantity(len(births), 'place')}, {count:,} of"
            f" {quantity(len(dumps), 'dump')}; the first is {first.kind} in {_at(first)}"
        )
    elif came := [row for each in searches for row in _alarms(each.report)]:
        said = (
            "No operator has borne NaN or infinity: it came in from outside; the first is"
            f" {came[0].kind} in {_at(came[0])}"
        )
    elif all(each.verdict is Verdict.SKIP for each in dumps):
        said = "Nothing could be checked: no record has statistics of floating values"
    else:
        records = sum(each.records or 0 for each in dumps)
        where = f"{quantity(records, 'record')} of {quantity(len(dumps), 'dump')}"
        said = f"No NaN and no infinity was born in {where}"
    return f"{BEGIN_OF_SENTENCE[state]}{said}."


def _at(row: OverflowRow) -> str:
    place = shown_place(row).removesuffix(": ")
    return f"{row.api}.{row.tensor}{f' of {place}' if place else ''}"


def _facts(searches: Sequence[_Seen]) -> Iterator[Fact]:
    dumps = [dump for each in searches for dump in each.report.dumps]
    yield Fact("Dumps", str(len(dumps)))
    yield Fact("Records", str(sum(each.records or 0 for each in dumps)))
    kinds = Counter(row.birth for each in searches for row in each.report.rows)
    yield from (Fact(f"Rows: {kind}", str(count)) for kind, count in kinds.items())


def _counts(tones: Sequence[Tone]) -> tuple[Count, ...]:
    names = {Tone.PASS: "pass", Tone.ERROR: "error", Tone.SKIP: "SKIP"}
    return tuple(Count(name, tones.count(tone), tone) for tone, name in names.items())


def _not_checked(searches: Sequence[_Seen]) -> Iterator[NotCompared]:
    by_reason: dict[str, list[str]] = {}
    for each in searches:
        for dump in each.report.dumps:
            if dump.verdict is Verdict.SKIP:
                by_reason.setdefault(dump.message, []).append(dump.name)
    for text, names in by_reason.items():
        yield NotCompared(text, len(names), tuple(names[:_NAMED]))


def _notes(searches: Sequence[_Seen]) -> Iterator[str]:
    for each in searches:
        yield from (each.settings.cut_short if each.settings is not None else ())
        for dump in each.report.dumps:
            if dump.verdict is not Verdict.SKIP and dump.message:
                yield f"{dump.name}: {dump.message}"
        gone = sum(row.birth == Birth.GONE.value for row in each.report.rows)
        if gone:
            yield f"masks took {quantity(gone, 'birth')} away again: no loss, gradient or state holds them"


class _DumpPlaces:
    """Where the dumps of searches stand on this machine, by their names; those that are not there are
    missing."""

    def __init__(self, searches: Sequence[_Seen]) -> None:
        self.named = ""
        self._paths: dict[str, Path] = {}
        for each in searches:
            settings = each.settings
            self.named = environment_from_dict(settings.environment).dump if settings else ""
            if self.named:
                with suppress(DumpError):
                    found = dumps_below(Path(self.named)).dumps
                    self._paths.update((dump.label, dump.path) for dump in found)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The dumps that are on this machine."""
        return tuple(path for path in self._paths.values() if path.exists())

    def of(self, name: str) -> Path | None:
        path = self._paths.get(name)
        return path if path is not None and path.exists() else None


def _card(row: OverflowRow, searches: Sequence[_Seen], places: _DumpPlaces) -> Card:
    dump = places.of(row.dump)
    record = {} if dump is None else record_in(dump, row.api)
    missing = []
    if dump is None:
        missing.append(
            f"the dump {places.named or row.dump} is not on this machine, so that the values that came in and"
            " went out cannot be shown"
        )
    code, why_not = code_around(row.source)
    call = next((row.api.removesuffix(end) for end in _DIRECTIONS if row.api.endswith(end)), "")
    is_alone = dump is not None and call and not call.startswith(_NOT_ALONE)
    followed = f"from {row.api}.{row.tensor}"
    passed = sum(
        each.dump == row.dump and each.birth == Birth.PASSED_ON.value and followed in each.message
        for search in searches
        for each in search.report.rows
    )
    facts = (
        Fact("Kind", row.kind),
        Fact("Birth", row.birth),
        Fact("Dtype", row.dtype),
        Fact("Dump", row.dump),
        *(Fact(f"Given: {fact.name}", fact.value) for fact in value_facts(record, OUTPUT)),
        *([Fact("Passed on by", quantity(passed, "record"))] if passed else []),
    )
    in_dtype = f" ({row.dtype})" if row.dtype else ""
    return Card(
        row.api,
        Tone.ERROR,
        f"{row.kind or 'an overflow'} in {row.tensor or 'its result'}{in_dtype}: {row.message}.",
        row.api,
        shown_place(row).removesuffix(": "),
        facts=tuple(fact for fact in facts if fact.value),
        inputs=value_facts(record, INPUT),
        module=row.module,
        source=row.source,
        code=code,
        reproduce=(
            f"ray-precheck run_ut -api_info {shlex.quote(str(dump))} -k {shlex.quote(call)}"
            " --standard auto"
            if is_alone
            else ""
        ),
        missing=tuple(filter(None, [*missing, why_not])),
    )


_DIRECTIONS = (".forward", ".backward")
# Modules are no calls of operators, and collectives need the other ranks.
_NOT_ALONE = ("Module.", "Cell.", "Distributed.", "MintDistributed.")


def _charts(searches: Sequence[_Seen]) -> Iterator[Chart]:
    dumps = [dump for each in searches for dump in each.report.dumps]
    rows = [row for each in searches for row in each.report.rows]
    born = Counter(row.dump for each in searches for row in each.births)
    if len(dumps) > 1:
        links = {row.dump: row.api for row in reversed(rows) if row.birth != HEADROOM}
        links |= {row.dump: row.api for each in searches for row in reversed(each.births)}
        yield _map_of(dumps, born, links)
    lines: dict[tuple[str, str, str, str], dict[float, float]] = {}
    for row in rows:
        if row.birth == HEADROOM:
            step = float(row.step) if row.step.isdigit() else 0.0
            by_step = lines.setdefault((row.rank, row.api, row.tensor, row.dtype), {})
            by_step[step] = min(float(row.kind), by_step.get(step, math.inf))
    if lines:
        yield _headroom_chart(lines)


def _map_of(
    dumps: Sequence[DumpResult], born: Mapping[str, int], links: Mapping[str, str]
) -> HeatMap:
    """Return ranks x steps with how many places of each dump have borne NaN or infinity."""
    places = {each.name: _step_and_rank(each.name) for each in dumps}
    steps = sorted({step for step, _ in places.values()}, key=_by_number)
    ranks = sorted({rank for _, rank in places.values()}, key=_by_number)
    values = np.full((len(ranks), len(steps)), np.nan)
    found: dict[tuple[int, int], str] = {}
    for each in dumps:
        step, rank = places[each.name]
        cell = ranks.index(rank), steps.index(step)
        if each.verdict is not Verdict.SKIP:
            # What came in from outside is one place, too.
            values[cell] = max(born[each.name], int(each.verdict is Verdict.ERROR))
        if each.name in links:
            found[cell] = links[each.name]
    return HeatMap(
        "Where NaN and infinity appeared",
        "places",
        tuple(rank or "the only rank" for rank in ranks),
        tuple(step or "the only step" for step in steps),
        values,
        found,
        0.0,
        "rank",
        "step",
    )


def _step_and_rank(name: str) -> tuple[str, str]:
    parts = name.split("/")
    steps = [each for each in parts if each.startswith("step")]
    return "".join(steps[:1]), "/".join(each for each in parts if each not in steps)


def _by_number(name: str) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, name))
    return int(digits or -1), name


def _headroom_chart(lines: Mapping[tuple[str, str, str, str], Mapping[float, float]]) -> LineChart:
    nearest = sorted(lines.items(), key=lambda line: line[1][max(line[1])])[:_MOST_LINES]
    more = len(lines) - len(nearest)
    series = []
    for (rank, api, tensor, dtype), by_step in nearest:
        label = f"{shown_rank(rank)}: " if rank else ""
        steps = sorted(by_step)
        values = np.array([by_step[step] for step in steps])
        series.append(ChartLine(f"{label}{api}.{tensor} ({dtype})", np.array(steps), values))
    title = "Headroom over steps"
    return LineChart(
        f"{title}, the {len(nearest)} nearest of {len(lines)} tensors" if more else title,
        "step",
        "powers of two below the limit of the dtype",
        tuple(series),
        0.0,
    )


def _modules(
    searches: Sequence[_Seen], suspects: Sequence[OverflowRow], places: _DumpPlaces
) -> Iterator[Chart]:
    """Yield the modules of the dump with the first suspect, as far as its capture knows them."""
    path = places.of(suspects[0].dump) if suspects else None
    if path is None:
        return
    rows = (row for each in searches for row in each.report.rows)
    tones = {
        row.api: _BIRTH_TONES.get(row.birth, Tone.PLAIN)
        for row in rows
        if row.dump == suspects[0].dump and row.birth != HEADROOM
    }
    parents = module_parents(path)
    calls = (
        JudgedCall(module, tones.get(key, Tone.PASS), key if key in tones else "")
        for key, module in parents.items()
        if not is_module(key)
    )
    tree = module_tree(f"Modules of {suspects[0].dump}", calls, parents)
    if tree is not None:
        yield tree


def _flow(searches: Sequence[_Seen], suspects: Sequence[OverflowRow]) -> Iterator[Chart]:
    """Yield what the first suspect's dump did with NaN and infinity: each birth with the records that its
    values reached."""
    if not suspects:
        return
    name = suspects[0].dump
    rows = [row for each in searches for row in each.report.rows if row.dump == name]
    rows = [row for row in rows if row.birth != HEADROOM]
    places = {f"{row.api}.{row.tensor}": place for place, row in reversed([*enumerate(rows)])}
    edges = [
        (start, place)
        for place, row in enumerate(rows)
        if (start := places.get(_origin_of(row), place)) != place
    ]
    tones = [_BIRTH_TONES.get(row.birth, Tone.PLAIN) for row in rows]
    members = list(Tone)
    reached = {place for _, place in edges}
    yield FlowGraph(
        f"How NaN and infinity spread in {name}",
        "births",
        tuple(row.api for row in rows),
        np.array([members.index(tone) for tone in tones], np.uint8),
        np.array([1.0 if tone is Tone.ERROR else 0.0 for tone in tones]),
        np.array([1.0 if place in reached else np.nan for place in range(len(rows))]),
        np.array(edges, np.int64).reshape(-1, 2),
        np.zeros((0, 2), np.int64),
        tuple(rows.index(row) for row in suspects if row.dump == name)[:MOST_CARDS],
        tuple(row.message for row in rows),
    )


def _origin_of(row: OverflowRow) -> str:
    """Return the place that the message of a row names as that from which its values came, "" for none."""
    return row.message.partition("from ")[2].partition(",")[0]


def _timeline(searches: Sequence[_Seen]) -> tuple[Chart, ...]:
    chart = timeline_chart({each.found.label: each.report.files.timeline for each in searches})
    return () if chart is None else (chart,)


def _tables(report: OverflowReport) -> Iterator[RowTable]:
    kinds = dict.fromkeys(COLUMNS, CellKind.NAME)
    kinds |= {"Birth": CellKind.TONE, "Source": CellKind.TEXT, "Message": CellKind.TEXT}
    kinds |= {"Kind": CellKind.TEXT, "Dtype": CellKind.TEXT}
    columns = tuple(RowColumn(heading, kind) for heading, kind in kinds.items())
    key = COLUMNS.index("API Name")
    yield RowTable("Findings", columns, report.files.details, key=key, tones=_BIRTH_TONES)
    words = {verdict.value: tone for verdict, tone in _TONES.items()}
    number, text = CellKind.NUMBER, CellKind.TEXT
    cells = (CellKind.NAME, CellKind.TONE, number, number, CellKind.NAME, text)
    columns = tuple(
        RowColumn(heading, cell)
        for heading, cell in zip(OVERFLOW_TABLES.result, cells, strict=True)
    )
    yield RowTable("Dumps", columns, report.files.result, tones=words)
    if report.headroom is not None:
        named = (*[CellKind.NAME] * 3, CellKind.TEXT, *[number] * 4)
        columns = tuple(map(RowColumn, TREND_COLUMNS, named))
        yield RowTable("Tensors near the limit of their dtype", columns, report.headroom, key=1)


def _advice(
    searches: Sequence[_Seen], births: Sequence[OverflowRow], places: _DumpPlaces
) -> Iterator[Advice]:
    path = places.of(births[0].dump) if births else None
    if births:
        dump = shlex.quote(str(path or "DUMP"))
        yield Advice(
            "See whether the CPU overflows, too, on what the calls got (`normal overflow`), or the device"
            " alone (`abnormal overflow`), and who gave the inputs of the first call.",
            (
                f"ray-precheck run_overflow_check -api_info {dump}",
                f"ray-precheck inspect {dump} up {shlex.quote(births[0].api)}",
            ),
        )
    report, named = searches[0].report, shlex.quote(places.named or "DUMP")
    if all(each.verdict is Verdict.SKIP for each in report.dumps):
        yield Advice(
            "Capture the step with statistics.",
            ("ray-precheck capture --task statistics -o dump -- python train.py",),
        )
    elif report.completed and report.headroom is None:
        yield Advice(
            "See which tensors come near the limit of their dtype before they overflow.",
            (f"ray-precheck overflow_check {named} --headroom",),
        )


def _files_of(report: OverflowReport) -> tuple[str, ...]:
    files = report.files
    others = [report.headroom] if report.headroom is not None else []
    return file_names([files.details, files.result, *others, files.settings, files.timeline])
