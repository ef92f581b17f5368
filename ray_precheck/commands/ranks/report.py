"""The `View` of `ranks`: findings, groups, what was and was not checked, ranks x kinds.

Comes in: the files of checks that have ended, were stopped, or go on. Goes out: a `View`. Called by the
command `report`, and by the command itself.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_precheck.commands.ranks.closing import ranks_exit_code
from ray_precheck.commands.ranks.job import FINDING_COLUMNS, RANK_TABLES
from ray_precheck.commands.ranks.run import RankChecks, layout_file, read_rank_checks
from ray_precheck.dump.folders import dumps_below
from ray_precheck.errors import DumpError
from ray_precheck.options.commands import worst_code
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
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import run_files
from ray_precheck.trace.difference.rows import ERROR, WARNING
from ray_precheck.trace.flow import ranks_in
from ray_precheck.trace.items import INPUT
from ray_precheck.trace.ranks.nouns import RankFinding

_TONES = {ERROR: Tone.ERROR, WARNING: Tone.WARNING}
_DUMP_TONES = {Verdict.PASS.value: Tone.PASS, Verdict.SKIP.value: Tone.SKIP}


def view(found: Sequence[FoundRun]) -> View:
    """Return the view of checks, of which each `main` is its `ranks_{timestamp}.csv`.

    Raises:
        ResumeError: a file has other columns.
        OSError: a file cannot be read.
    """
    checks = []
    for each in found:
        files = run_files(each.main.with_name(RANK_TABLES.file("result", each.stamp)), RANK_TABLES)
        checks.append(_Seen(each, read_rank_checks(files), settings_of_run(files)))
    states = [state_of_run(each.report.files, each.settings) for each in checks]
    state = next((each for each in states if each is not ViewState.FINISHED), ViewState.FINISHED)
    findings = [finding for each in checks for finding in each.report.findings]
    tones = [_TONES[each.verdict] for each in findings]
    codes = [ranks_exit_code(each.report) for each in checks]
    settings = checks[0].settings
    if not findings and state is ViewState.FINISHED:
        tones = [Tone.PASS if worst_code(*codes) == 0 else Tone.SKIP]
    return View(
        "ranks",
        "Ranks against each other",
        _sentence(checks, findings, state),
        worst_tone(tones),
        state,
        -1 if state is ViewState.RUNNING else worst_code(*codes),
        (*facts_of_run(settings), *_facts(checks)),
        invocation_of(settings),
        tuple(Count(word, tones.count(tone), tone) for word, tone in _TONES.items()),
        tuple(_not_checked(checks)),
        tuple(sentence for each in checks for sentence in each.report.checked),
        tuple(_card(each, checks[0].settings) for each in findings[:MOST_CARDS]),
        max(0, len(findings) - MOST_CARDS),
        tuple(_charts(findings)),
        (),
        _timeline(checks),
        tuple(table for each in checks for table in _tables(each.report)),
        (
            *(
                advice
                for each, one in zip(checks, states, strict=True)
                for advice in advice_to_go_on(each.settings, one, each.report.files.details)
            ),
            *_advice(findings, checks),
        ),
        tuple(name for each in checks for name in _files_of(each.report)),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A check with its settings, None where they are missing."""

    found: FoundRun
    report: RankChecks
    settings: RunSettings | None


def _sentence(checks: Sequence[_Seen], findings: Sequence[RankFinding], state: ViewState) -> str:
    errors = [each for each in findings if each.verdict == ERROR]
    ranks = len({dump.name.rpartition("/")[2] for each in checks for dump in each.report.dumps})
    if errors:
        said = f"{quantity(len(errors), 'thing')} is wrong between the ranks; the first: {errors[0].message}"
        if len(errors) > 1:
            said = said.replace("things is", "things are", 1)
    elif findings:
        said = f"Nothing is in error; {quantity(len(findings), 'warning')}, the first: {findings[0].message}"
    elif state is not ViewState.FINISHED:
        said = f"{quantity(ranks, 'rank')} summarized"
    elif not any(each.report.groups for each in checks):
        said = "Nothing could be checked: no group of ranks is known"
    else:
        said = f"{quantity(ranks, 'rank')} agree in all that was checked"
    return f"{BEGIN_OF_SENTENCE[state]}{said}."


def _facts(checks: Sequence[_Seen]) -> Iterator[Fact]:
    dumps = [dump for each in checks for dump in each.report.dumps]
    yield Fact("Dumps", str(len(dumps)))
    yield Fact("Records", str(sum(each.records or 0 for each in dumps)))
    yield from (
        Fact(f"Group {number}", group)
        for number, group in enumerate(
            (group for each in checks for group in each.report.groups[:MOST_CARDS]), 1
        )
    )


def _not_checked(checks: Sequence[_Seen]) -> Iterator[NotCompared]:
    for each in checks:
        for sentence in each.report.not_checked:
            yield NotCompared(sentence, 1)
        unread = [dump for dump in each.report.dumps if dump.records is None]
        if unread:
            names = tuple(dump.name for dump in unread[:MOST_CARDS])
            yield NotCompared(unread[0].message, len(unread), names)


def _card(each: RankFinding, settings: RunSettings | None) -> Card:
    dump = _dump_of(each, settings)
    record = {} if dump is None or not each.key else record_in(dump, each.key)
    code, why_not = code_around(each.source)
    facts = {
        "Kind": each.kind.value, "Ranks": each.ranks, "Group": each.group, "Expected": each.expected,
        "Found": each.found, "Rests on": each.rests_on, "Record": each.key, "Dump": each.dump,
    }  # fmt: skip
    missing = [] if dump is not None else [f"the dump {each.dump} is not on this machine"]
    return Card(
        each.name,
        _TONES[each.verdict],
        each.message,
        each.name,
        f"step {each.step}, {each.group}",
        facts=tuple(Fact(name, value) for name, value in facts.items() if value),
        inputs=value_facts(record, INPUT),
        module=each.module,
        source=each.source,
        code=code,
        missing=tuple(filter(None, [*missing, why_not])),
    )


def _dump_of(each: RankFinding, settings: RunSettings | None) -> Path | None:
    named = environment_from_dict(settings.environment).dump if settings else ""
    if named:
        with suppress(DumpError):
            for found in dumps_below(Path(named)).dumps:
                if found.label == each.dump and found.path.exists():
                    return found.path
    return None


def _charts(findings: Sequence[RankFinding]) -> Iterator[Chart]:
    """Yield how many findings each rank has of each kind."""
    counts: Counter[tuple[int, str]] = Counter()
    links: dict[tuple[int, str], str] = {}
    for each in findings:
        for rank in ranks_in(each.ranks):
            counts[rank, each.kind.value] += 1
            links.setdefault((rank, each.kind.value), each.name)
    if not counts:
        return
    ranks = sorted({rank for rank, _ in counts})
    kinds = list(dict.fromkeys(each.kind.value for each in findings))
    values = np.array([[counts[rank, kind] for kind in kinds] for rank in ranks], np.float64)
    yield HeatMap(
        "Findings of each rank",
        "findings",
        tuple(f"rank {rank}" for rank in ranks),
        tuple(kinds),
        values,
        {(ranks.index(rank), kinds.index(kind)): name for (rank, kind), name in links.items()},
        float("nan"),
    )


def _timeline(checks: Sequence[_Seen]) -> tuple[Chart, ...]:
    chart = timeline_chart({each.found.label: each.report.files.timeline for each in checks})
    return () if chart is None else (chart,)


def _tables(report: RankChecks) -> Iterator[RowTable]:
    kinds = dict.fromkeys(FINDING_COLUMNS, CellKind.TEXT)
    kinds |= {"Step": CellKind.NUMBER, "Verdict": CellKind.TONE}
    kinds |= dict.fromkeys(("Name", "Module", "Record", "Dump"), CellKind.NAME)
    columns = tuple(RowColumn(heading, kind) for heading, kind in kinds.items())
    key = FINDING_COLUMNS.index("Name")
    if report.completed:  # until then the file holds summaries
        yield RowTable("Findings", columns, report.files.details, key=key, tones=_TONES)
    number, text = CellKind.NUMBER, CellKind.TEXT
    cells = (CellKind.NAME, CellKind.TONE, number, number, text)
    columns = tuple(
        RowColumn(heading, cell) for heading, cell in zip(RANK_TABLES.result, cells, strict=True)
    )
    yield RowTable("Dumps", columns, report.files.result, tones=_DUMP_TONES)
    path = layout_file(report.files)
    if path.exists():
        yield RowTable(
            "Groups, and what was checked",
            (RowColumn("Part", text), RowColumn("Sentence", text)),
            path,
        )


def _advice(findings: Sequence[RankFinding], checks: Sequence[_Seen]) -> Iterator[Advice]:
    settings = checks[0].settings
    named = environment_from_dict(settings.environment).dump if settings else ""
    first = next((each for each in findings if each.key and _dump_of(each, settings)), None)
    if first is not None:
        dump = shlex.quote(str(_dump_of(first, settings)))
        yield Advice(
            "Look at the record, and at what gave its inputs.",
            (f"ray-precheck inspect {dump} up {shlex.quote(first.key)}",),
        )
    unknown = any(" is not known (" in text for each in checks for text in each.report.not_checked)
    if unknown:
        yield Advice(
            "Say how the ranks are laid out.",
            (f"ray-precheck ranks {shlex.quote(named or 'DUMP')} --layout dp=2,tp=2",),
        )
    if any("--sketch" in text for each in checks for text in each.report.not_checked):
        yield Advice(
            "Capture with sketches, which see differences that leave the statistics as they are.",
            ("ray-precheck capture --sketch -o dump -- torchrun train.py",),
        )


def _files_of(report: RankChecks) -> tuple[str, ...]:
    files = report.files
    return file_names(
        [files.details, files.result, layout_file(files), files.settings, files.timeline]
    )
