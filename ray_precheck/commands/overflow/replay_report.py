"""The `View` of `run_overflow_check`: which calls overflow on the CPU, too, and which on the device alone.

Comes in: the files of replays, or a count of calls where no captured result was to be replayed. Goes out: a
`View`. Called by the command, and through `commands.overflow.report`.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ray_precheck.commands.overflow.replay import REPLAY_TABLES, read_replay, replay_exit_code
from ray_precheck.dump.folders import standing_for
from ray_precheck.options.commands import PASSED, worst_code
from ray_precheck.running.recorded import record_in, value_facts
from ray_precheck.running.views import (
    BEGIN_OF_SENTENCE,
    MOST_CARDS,
    FoundRun,
    advice_to_go_on,
    code_around,
    facts_of_run,
    file_names,
    invocation_of,
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
    Count,
    Fact,
    NotCompared,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.results import ResultRow
from ray_precheck.store.tables import run_files
from ray_precheck.trace.items import INPUT, OUTPUT
from ray_precheck.trace.sources import Modules, source_lines

_COMMAND, _TITLE = "run_overflow_check", "Overflows run again on the CPU"
_TONES = {
    Verdict.PASS: Tone.PASS,
    Verdict.ERROR: Tone.ERROR,
    Verdict.SKIP: Tone.SKIP,
    Verdict.NONE: Tone.PLAIN,
}
_WORDS = {Verdict.PASS: "normal", Verdict.ERROR: "abnormal", Verdict.SKIP: "SKIP"}


def finite_view(calls: int) -> View:
    """Return the view of a dump of so many calls whose captured results are all finite; it has no files."""
    sentence = f"The captured results of all {quantity(calls, 'call')} are finite."
    return View(_COMMAND, _TITLE, sentence, Tone.PASS, ViewState.FINISHED, PASSED)


def replay_view(found: Sequence[FoundRun]) -> View:
    """Return the view of replays, of which each `main` is its `run_overflow_check_result_{timestamp}.csv`.

    Raises:
        ResumeError: a file has other columns.
        OSError: a file cannot be read.
    """
    files = [run_files(each.main, REPLAY_TABLES) for each in found]
    settings = [settings_of_run(each) for each in files]
    states = list(map(state_of_run, files, settings))
    state = next((each for each in states if each is not ViewState.FINISHED), ViewState.FINISHED)
    reports = [
        read_replay(each, completed=one is ViewState.FINISHED)
        for each, one in zip(files, states, strict=True)
    ]
    rows = [row for report in reports for row in report.rows]
    wrong = [row for row in rows if row.is_error]
    named = environment_from_dict(settings[0].environment).dump if settings[0] is not None else ""
    dump = standing_for(Path(named)) if named else None
    dump = dump if dump is not None and dump.exists() else None
    timeline = timeline_chart(
        {each.label: own.timeline for each, own in zip(found, files, strict=True)}
    )
    tones = [_TONES[row.verdict] for row in rows]
    code = worst_code(*map(replay_exit_code, reports))
    return View(
        _COMMAND,
        _TITLE,
        f"{BEGIN_OF_SENTENCE[state]}{_sentence(rows, wrong)}.",
        worst_tone(tones),
        state,
        -1 if state is ViewState.RUNNING else code,
        tuple(fact for fact in facts_of_run(settings[0]) if fact.name != "Standard"),
        invocation_of(settings[0]),
        tuple(
            Count(word, sum(row.verdict is verdict for row in rows), _TONES[verdict])
            for verdict, word in _WORDS.items()
        ),
        tuple(_not_run(rows)),
        cards=tuple(_card(row, dump) for row in wrong[:MOST_CARDS]),
        more_cards=max(0, len(wrong) - MOST_CARDS),
        run=() if timeline is None else (timeline,),
        tables=tuple(_table(each.result) for each in files),
        advice=(*advice_to_go_on(settings[0], state, files[0].result), *_advice(wrong, dump)),
        files=file_names(
            [path for each in files for path in (each.result, each.settings, each.timeline)]
        ),
    )


def _sentence(rows: Sequence[ResultRow], wrong: Sequence[ResultRow]) -> str:
    calls = f"{quantity(len(rows), 'call')} whose captured results are not finite"
    if wrong:
        first = f"the first is {wrong[0].name}"
        return f"Of {calls}, {len(wrong)} overflowed on the device alone (abnormal); {first}"
    if all(row.is_skip for row in rows):
        return f"Of {calls} none could be run again"
    return f"Of {calls} none is finite on the CPU (normal)"


def _not_run(rows: Sequence[ResultRow]) -> Iterator[NotCompared]:
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.is_skip:
            by_reason.setdefault(row.message, []).append(row.name)
    for text, names in by_reason.items():
        yield NotCompared(text, len(names), tuple(names[:5]))


def _card(row: ResultRow, dump: Path | None) -> Card:
    direction = "forward" if row.forward is Verdict.ERROR else "backward"
    key = f"{row.name}.{direction}"
    if dump is None:
        missing = "the dump is not on this machine, so that what the call got cannot be shown"
        return Card(row.name, Tone.ERROR, f"{row.message}.", row.name, missing=(missing,))
    record = record_in(dump, key)
    source = source_lines(dump, [key]).get(key, "")
    code, why_not = code_around(source)
    facts = (Fact(f"Captured: {fact.name}", fact.value) for fact in value_facts(record, OUTPUT))
    return Card(
        row.name,
        Tone.ERROR,
        f"{row.message}.",
        row.name,
        facts=tuple(facts),
        inputs=value_facts(record, INPUT),
        module=Modules(dump.parent).of(key),
        source=source,
        code=code,
        reproduce=_check(row, dump),
        missing=(why_not,) if why_not else (),
    )


def _check(row: ResultRow, dump: Path) -> str:
    named = f"-api_info {shlex.quote(str(dump))} -k {shlex.quote(row.name)}"
    return f"ray-precheck run_ut {named} --standard auto --tested device"


def _advice(wrong: Sequence[ResultRow], dump: Path | None) -> Iterator[Advice]:
    if wrong:
        yield Advice(
            "Run the first of them alone on the device that made the capture.",
            () if dump is None else (_check(wrong[0], dump),),
        )


def _table(path: Path) -> RowTable:
    kinds = (CellKind.NAME, CellKind.TONE, CellKind.TONE, CellKind.TEXT)
    columns = (
        RowColumn(heading, kind) for heading, kind in zip(REPLAY_TABLES.result, kinds, strict=True)
    )
    words = {verdict.value: tone for verdict, tone in _TONES.items()}
    return RowTable("Calls", tuple(columns), path, tones=words)
