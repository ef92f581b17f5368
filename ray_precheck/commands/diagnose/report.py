"""The `View` of `diagnose`: its sentence, its likeliest culprits, and what to do next.

Comes in: the page of a diagnosis that has ended, was stopped, or goes on, with what is kept beside it and the
tables of its parts. Goes out: a `View`; each part has a view of its own. Called by the command `report`, and
by the command itself.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ray_precheck.commands.compare import report as compare_report
from ray_precheck.commands.diagnose.kept import KeptDiagnosis, kept_file, read_diagnosis
from ray_precheck.commands.diagnose.parts import results_named
from ray_precheck.commands.locate import report as locate_report
from ray_precheck.commands.overflow import report as overflow_report
from ray_precheck.commands.precheck import report as precheck_report
from ray_precheck.options.commands import STOPPED, resume_command
from ray_precheck.running.views import (
    BEGIN_OF_SENTENCE,
    MOST_CARDS,
    FoundRun,
    file_names,
    worst_tone,
)
from ray_precheck.schema.view import (
    Advice,
    Card,
    CellKind,
    Count,
    Fact,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.claim import running

_DIRECTIONS = (".forward", ".backward")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part: the name of its table with `*` for the stamp, and what makes its view."""

    table: str
    view: Callable[[Sequence[FoundRun]], View]


# The likeliest culprits first: an operator that was replayed errs on what it got. What only differs from the
# golden run comes last.
_PARTS = (
    _Part("locate_*.csv", locate_report.view),
    _Part("overflow_check_*.csv", overflow_report.view),
    _Part("accuracy_checking_result_*.csv", precheck_report.view),
    _Part("compare_calls_*.csv", compare_report.view),
)


def view(found: Sequence[FoundRun]) -> View:
    """Return the view of a diagnosis, whose `main` is its page `diagnose_{timestamp}.txt`; of several the
    first.

    Raises:
        ResumeError: a table of a part has other columns.
        OSError: a file cannot be read.
    """
    page, stamp = found[0].main, found[0].stamp
    kept = read_diagnosis(page)
    state = ViewState.FINISHED
    if kept is None:
        state = ViewState.RUNNING if running(page.with_suffix(".lock")) else ViewState.STOPPED
    parts = [part for part in _parts(page.parent, stamp) if part is not None]
    cards = _cards(parts)
    code = STOPPED if kept is None else kept.exit_code
    tones = [part.tone for part in parts]
    first = parts[0] if parts else None
    return View(
        "diagnose",
        "What is wrong with a capture",
        f"{BEGIN_OF_SENTENCE[state]}{_sentence(kept, parts)}",
        Tone.ERROR if code == 1 else Tone.PASS if code == 0 else worst_tone(tones),
        state,
        -1 if state is ViewState.RUNNING else code,
        (*_facts(kept), *(first.facts if first is not None and kept is None else ())),
        _invocation(kept) or (first.invocation if first is not None else ""),
        tuple(_counts(parts)),
        tuple(reason for part in parts for reason in part.reasons),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        tuple(cards[:MOST_CARDS]),
        max(0, len(cards) - MOST_CARDS) + sum(part.more_cards for part in parts),
        tables=(_answers(kept),) if kept is not None else (),
        advice=tuple(_advice(kept, state, page)),
        files=file_names([page, kept_file(page)]),
    )


def _parts(folder: Path, stamp: str) -> Iterator[View | None]:
    for part in _PARTS:
        name = part.table.replace("*", stamp)
        mains = sorted(results_named(folder, name))
        runs = [FoundRun(main, stamp, _label(main, folder)) for main in mains]
        yield part.view(runs) if runs else None


def _label(main: Path, folder: Path) -> str:
    place = main.parent.relative_to(folder)
    return "" if place == Path() else place.as_posix()


def _cards(parts: Sequence[View]) -> list[Card]:
    """Return the cards of all parts, one for each call: what a later part knows more is added to it."""
    found: dict[tuple[str, str], Card] = {}
    for part in parts:
        for card in part.cards:
            name = next(
                (card.name.removesuffix(end) for end in _DIRECTIONS if card.name.endswith(end)),
                card.name,
            )
            first = found.get((name, card.label))
            own = replace(card, row="")  # Its row is in the view of the part.
            found[name, card.label] = own if first is None else _joined(first, own)
    return list(found.values())


def _joined(card: Card, other: Card) -> Card:
    return replace(
        card,
        inputs=card.inputs or other.inputs,
        bars=card.bars or other.bars,
        histogram=card.histogram or other.histogram,
        blocks=card.blocks or other.blocks,
        cause=card.cause or other.cause,
        module=card.module or other.module,
        source=card.source or other.source,
        code=card.code or other.code,
        reproduce=card.reproduce or other.reproduce,
        case=card.case or other.case,
    )


def _sentence(kept: KeptDiagnosis | None, parts: Sequence[View]) -> str:
    if kept is not None:
        return kept.sentence
    return parts[0].sentence if parts else "no part has begun."


def _facts(kept: KeptDiagnosis | None) -> Iterator[Fact]:
    if kept is not None:
        yield Fact("Target", kept.target)
        if kept.golden:
            yield Fact("Golden", kept.golden)


def _invocation(kept: KeptDiagnosis | None) -> str:
    if kept is None or not kept.command:
        return ""
    line = shlex.join(["ray-precheck", *kept.command])
    return f"cd {shlex.quote(kept.folder)} && {line}" if kept.folder else line


def _counts(parts: Sequence[View]) -> Iterator[Count]:
    for part in parts:
        for count in part.counts:
            if count.number:
                yield Count(f"{part.command}: {count.name}", count.number, count.tone)


def _answers(kept: KeptDiagnosis) -> RowTable:
    """Return the questions of the page, with a row for each sentence."""
    columns = (RowColumn("Question", CellKind.TEXT), RowColumn("Answer", CellKind.TEXT))
    rows = ((title, sentence) for title, sentences in kept.sections for sentence in sentences)
    return RowTable("Questions and answers", columns, rows=tuple(rows))


def _advice(kept: KeptDiagnosis | None, state: ViewState, page: Path) -> Iterator[Advice]:
    for sentence, *commands in kept.steps if kept is not None else ():
        yield Advice(sentence, tuple(commands))
    if state is ViewState.STOPPED:
        line = resume_command(("diagnose",), page.parent.absolute())
        yield Advice("Go on with the diagnosis, with the options that it had (-tp, -gp).", (line,))
