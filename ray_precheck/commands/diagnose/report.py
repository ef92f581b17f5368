"""The `View` of `diagnose`: its sentence, its likeliest culprits, and what to do next.

Comes in: the page of a diagnosis that has ended, was stopped, or goes on, with what is kept beside it and the
tables of its parts. Goes out: a `View`; each part has a view of its own. Called by the command `report`, and
by the command itself.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from ray_precheck.commands.diagnose.kept import UNFINISHED, KeptDiagnosis, kept_file, read_diagnosis
from ray_precheck.commands.diagnose.parts import results_named
from ray_precheck.foreign import open_file
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED, resume_command
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

# Behind the name of a call: `Torch.add.0.forward`, `Torch.add.0.backward.output.1`.
_DIRECTION = re.compile(r"\.(?:forward|backward)(?:\.|$)")


# The rooms of the parts by the name of their table, with `*` for the stamp. The likeliest culprits first: an
# operator that was replayed errs on what it got. What only differs from the golden run comes last.
_PARTS = {
    "locate_*.csv": "locate",
    "overflow_check_*.csv": "overflow",
    "accuracy_checking_result_*.csv": "precheck",
    "compare_calls_*.csv": "compare",
}


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
    if kept is None and _is_unfinished(page):
        state = ViewState.RUNNING if running(page.with_suffix(".lock")) else ViewState.STOPPED
    parts = list(_parts(page.parent, stamp))
    cards = _cards(parts)
    tones = [part.tone for part in parts]
    code = _exit_code(kept, state, tones)
    first = parts[0] if parts else None
    return View(
        "diagnose",
        "What is wrong with a capture",
        f"{BEGIN_OF_SENTENCE[state]}{_sentence(kept, parts)}",
        Tone.ERROR if code == IN_ERROR else Tone.PASS if code == PASSED else worst_tone(tones),
        state,
        -1 if state is ViewState.RUNNING else code,
        (*_facts(kept), *(first.facts if first is not None and kept is None else ())),
        # That of a part is the command of the diagnosis, which began it.
        "" if first is None else first.invocation,
        tuple(_counts(parts)),
        tuple(reason for part in parts for reason in part.reasons),
        (*_lost(kept, state, page), *dict.fromkeys(n for part in parts for n in part.notes)),
        tuple(cards[:MOST_CARDS]),
        max(0, len(cards) - MOST_CARDS) + sum(part.more_cards for part in parts),
        tables=(_answers(kept),) if kept is not None else (),
        advice=tuple(_advice(kept, state, page)),
        files=file_names([page, kept_file(page)]),
    )


def _is_unfinished(page: Path) -> bool:
    """Return whether a page says that it has not come to its end, or begins to be written."""
    with open_file(page) as file:
        begin = file.read(len(UNFINISHED)).decode("utf-8", "replace")
    return begin in ("", UNFINISHED)


def _exit_code(kept: KeptDiagnosis | None, state: ViewState, tones: Sequence[Tone]) -> int:
    if state is not ViewState.FINISHED:
        return STOPPED
    if kept is not None:
        return kept.exit_code
    worst = worst_tone(tones)
    return IN_ERROR if worst is Tone.ERROR else PASSED if Tone.PASS in tones else NOTHING_CHECKED


def _lost(kept: KeptDiagnosis | None, state: ViewState, page: Path) -> Iterator[str]:
    if kept is None and state is ViewState.FINISHED:
        name = kept_file(page).name
        yield f"{name} is missing or cannot be read: the verdict is that of the parts, the page has the steps"


def _parts(folder: Path, stamp: str) -> Iterator[View]:
    for table, room in _PARTS.items():
        mains = sorted(results_named(folder, table.replace("*", stamp)))
        if mains:
            # Imported here, since each reads captures in its own way, and a diagnosis has not always all.
            module = import_module(f"ray_precheck.commands.{room}.report")
            yield module.view([FoundRun(main, stamp, _label(main, folder)) for main in mains])


def _label(main: Path, folder: Path) -> str:
    place = main.parent.relative_to(folder)
    return "" if place == Path() else place.as_posix()


def _cards(parts: Sequence[View]) -> list[Card]:
    """Return the cards of all parts, one for each call: what a later part knows more is added to it."""
    found: dict[tuple[str, str], Card] = {}
    for part in parts:
        for card in part.cards:
            name = _DIRECTION.split(card.name)[0]
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
