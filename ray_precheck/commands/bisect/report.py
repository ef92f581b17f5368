"""The `View` of `bisect`: guilty sets with their proofs, the lines that switch them off, and the trials.

Comes in: the files of a run that has ended, was stopped, or goes on. Goes out: a `View`. Called by the
command `report`, and by the command itself.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ray_precheck.commands.bisect.closing import TrialCells
from ray_precheck.commands.bisect.findings import (
    KeptFinding,
    KeptFindings,
    findings_file,
    read_findings,
)
from ray_precheck.commands.bisect.job import TABLES
from ray_precheck.options.commands import STOPPED, UNUSABLE, worst_code
from ray_precheck.running.views import (
    BEGIN_OF_SENTENCE,
    MOST_CARDS,
    FoundRun,
    advice_to_go_on,
    facts_of_run,
    file_names,
    invocation_of,
    quantity,
    settings_of_run,
    state_of_run,
    timeline_chart,
    worst_tone,
)
from ray_precheck.schema.view import (
    Advice,
    Bar,
    Card,
    CellKind,
    ChartStep,
    Count,
    Fact,
    NotCompared,
    RowColumn,
    RowTable,
    StepChart,
    Tone,
    View,
    ViewState,
)
from ray_precheck.searching.bisection import SearchEnd
from ray_precheck.store.journal import decoded_rows
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import RunFiles, decode_name, run_files

_TONES = {"PASS": Tone.PASS, "FAIL": Tone.ERROR, "UNRESOLVED": Tone.SKIP}
_END_TONES = {
    SearchEnd.CLEAN: Tone.PASS,
    SearchEnd.FOUND: Tone.ERROR,
    SearchEnd.WRONG_AT_FOOT: Tone.ERROR,
    SearchEnd.NOISE: Tone.PASS,
    SearchEnd.UNRESOLVED: Tone.SKIP,
    SearchEnd.BUDGET: Tone.WARNING,
}
_MOST_NAMED = 12
_NAMED = 5


def view(found: Sequence[FoundRun]) -> View:
    """Return the view of runs, of which each `main` is its `bisect_{timestamp}.csv`.

    Raises:
        ResumeError: a file has other columns.
        OSError: a file cannot be read.
    """
    runs = [_seen(each) for each in found]
    settings = runs[0].settings
    state = next(
        (each.state for each in runs if each.state is not ViewState.FINISHED), runs[0].state
    )
    trials = [trial for each in runs for trial in each.trials]
    counts = Counter(each.verdict for each in trials)
    cards = [card for each in runs for card in _cards(each)]
    timeline = timeline_chart({each.label: each.files.timeline for each in runs})
    steps = tuple(step for each in runs for step in _steps(each))
    tones = [_END_TONES[one.kind] for each in runs for one in each.kept.findings]
    facts = [Fact("Bisected", runs[0].kept.target), Fact("Trials", str(len(trials)))]
    seconds = sum(float(each.seconds or 0) for each in trials)
    return View(
        "bisect",
        "What makes the result wrong",
        f"{BEGIN_OF_SENTENCE[state]}{_sentence(runs, len(trials))}.",
        worst_tone(tones),
        state,
        -1 if state is ViewState.RUNNING else worst_code(*(each.exit_code for each in runs)),
        (
            *(fact for fact in facts if fact.value),
            Fact("Seconds of all trials together", f"{seconds:.1f}"),
            *facts_of_run(settings),
        ),
        invocation_of(settings),
        tuple(Count(word, counts[word], tone) for word, tone in _TONES.items()),
        tuple(_unresolved(trials)),
        tuple(note for each in runs for note in (*each.kept.notes, *each.kept.said)),
        tuple(cards[:MOST_CARDS]),
        max(0, len(cards) - MOST_CARDS),
        (StepChart("How the set shrank", "switches suspected", steps),) if steps else (),
        run=() if timeline is None else (timeline,),
        tables=tuple(table for each in runs for table in _tables(each.files)),
        advice=tuple(advice for each in runs for advice in _advice(each)),
        files=tuple(name for each in runs for name in _files_of(each.files)),
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """A run; `kept` is empty where it has not kept what it found."""

    label: str
    files: RunFiles
    settings: RunSettings | None
    state: ViewState
    trials: tuple[TrialCells, ...]
    kept: KeptFindings

    @property
    def exit_code(self) -> int:
        return STOPPED if self.state is ViewState.STOPPED else self.kept.exit_code


def _seen(found: FoundRun) -> _Seen:
    files = run_files(found.main, TABLES)
    settings = settings_of_run(files)
    state = state_of_run(files, settings)
    rows = decoded_rows(files.result, TABLES.result)
    trials = tuple(TrialCells(*map(decode_name, cells)) for cells in rows)
    kept = read_findings(files)
    if kept is None:
        name = findings_file(files).name
        lost = (
            f"{name} is missing or cannot be read, so that the guilty switches are not known here"
        )
        notes = () if state is ViewState.RUNNING else (lost,)
        kept = KeptFindings(STOPPED, "", (), notes=notes)
    return _Seen(found.label, files, settings, state, trials, kept)


def _sentence(runs: Sequence[_Seen], trials: int) -> str:
    findings = [one for each in runs for one in each.kept.findings]
    said = quantity(trials, "trial")
    if any(each.kept.exit_code == UNUSABLE for each in runs):
        return f"With everything off there is no answer, in {said}"
    for kind in (SearchEnd.FOUND, SearchEnd.WRONG_AT_FOOT, SearchEnd.BUDGET):
        one = next((each for each in findings if each.kind is kind), None)
        if one is not None:
            return f"{_verdict(one)} ({said})"
    if any(each.kind is SearchEnd.NOISE for each in findings):
        return f"The result is wrong as often with everything off as on, in {said}: no culprit"
    if any(each.kind is SearchEnd.CLEAN and each.members for each in findings):
        return f"Right with everything on, in {said}: nothing makes a difference"
    return f"Nothing was answered, in {said}"


def _verdict(found: KeptFinding) -> str:
    if found.kind is SearchEnd.WRONG_AT_FOOT:
        return f"Wrong with all of {_title(found)} off"
    if found.kind is SearchEnd.BUDGET:
        names = found.sets[0] if found.sets else found.suspects
        what = (
            f"of {found.members} switches {len(names)} are suspected"
            if names
            else "nothing is known"
        )
        return f"The trials or the time were used up in {_title(found)}: {what}"
    if len(found.sets) > 1:
        return f"{len(found.sets)} alternatives{_of(found)} each make the result wrong"
    first = f"{_named(found.sets[0])}{_of(found)}"
    if found.is_ordered:
        return f"{first} is the first that makes the result wrong"
    verb = "makes" if len(found.sets[0]) == 1 else "together make"
    return f"{first} {verb} the result wrong"


def _of(found: KeptFinding) -> str:
    return f" of {found.title}" if found.title else ""


def _title(found: KeptFinding) -> str:
    return found.title or found.rung


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _unresolved(trials: Sequence[TrialCells]) -> Iterator[NotCompared]:
    by_reason: dict[str, list[str]] = {}
    for each in trials:
        if each.verdict == "UNRESOLVED":
            by_reason.setdefault(each.message or f"it ended with {each.exit}", []).append(
                each.trial
            )
    for text, numbers in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        yield NotCompared(text, len(numbers), tuple(f"trial {each}" for each in numbers[:_NAMED]))


def _cards(run: _Seen) -> Iterator[Card]:
    """Yield a card for each guilty set, then for what is suspected, or wrong with all of it off."""
    trials = {each.trial: each for each in run.trials}
    findings = sorted(run.kept.findings, key=lambda one: one.kind is not SearchEnd.FOUND)
    for found in findings:
        if found.kind is SearchEnd.WRONG_AT_FOOT:
            yield _card(
                run, found, (), f"the result is wrong with all of {_title(found)} off", trials
            )
        elif found.kind is SearchEnd.BUDGET and not found.sets and found.suspects:
            why = f"what is wrong is among these {len(found.suspects)} of {found.members} switches"
            yield _card(run, found, found.suspects, why, trials)
        for number, names in enumerate(found.sets):
            yield _card(run, found, names, _why(found, number), trials)


def _why(found: KeptFinding, number: int) -> str:
    if found.kind is SearchEnd.BUDGET:
        return "wrong alone, not proven to be all"
    proofs = [
        ("with it alone", found.sufficient[number : number + 1]),
        ("without it", found.necessary),
    ]
    if found.is_ordered:
        proofs = [("with it", found.sufficient), ("before it", found.necessary)]
    said = []
    for verdict, (what, numbers) in zip(("wrong", "right"), proofs, strict=True):
        shown = f"trial {', '.join(numbers)}" if numbers else "no trial shows it"
        said.append(f"{verdict} {what}: {shown}")
    return "; ".join(said)


def _card(
    run: _Seen,
    found: KeptFinding,
    names: tuple[str, ...],
    why: str,
    trials: Mapping[str, TrialCells],
) -> Card:
    # One for each set, in their order; of an ordered rung, or a budget that was spent, one at most.
    place = found.sets.index(names) if names in found.sets else 0
    proof = next((trials[each] for each in found.sufficient[place:] if each in trials), None)
    missing = [
        f"not told apart, as those trials gave no answer: {_named(group)}"
        for group in found.grouped
    ]
    if not found.is_complete:
        missing.append("there may be more alternatives")
    facts = [
        Fact("Rung", f"{found.rung} ({found.title})" if found.title else found.rung),
        Fact("Switches of the rung", str(found.members)),
        Fact("Right without", _named(found.cure) if len(found.cure) > 1 else ""),
        *(Fact(f"Off in {language}", line) for language, line in found.code),
        *(Fact("Found", each) for each in found.said),
        Fact(
            "Equal trials disagree in up to", f"{found.error_rate:.0%}" if found.error_rate else ""
        ),
        *([Fact(f"Trial {proof.trial}", f"{proof.verdict}, {proof.message}")] if proof else []),
    ]
    bars: tuple[Bar, ...] = ()
    value = math.nan
    limit = run.kept.limit
    if proof is not None and proof.metric and limit is not None:
        value = float(proof.metric)
        bars = (Bar(f"distance in trial {proof.trial}", value, limit),)
    return Card(
        _named(names) or _title(found),
        _END_TONES[found.kind],
        f"{why}.",
        "" if proof is None else proof.trial,
        run.label,
        value / limit if limit and bars else math.nan,
        tuple(fact for fact in facts if fact.value),
        bars=bars,
        missing=tuple(missing),
    )


def _steps(run: _Seen) -> Iterator[ChartStep]:
    trials = {each.trial: each for each in run.trials}
    for number, count in run.kept.left:
        trial = trials.get(number)
        if trial is not None:
            text = f"{trial.rung}, on: {trial.enabled}: {trial.verdict}, {count} suspected"
            tone = _TONES.get(trial.verdict, Tone.SKIP)
            yield ChartStep(f"trial {number}", float(count), tone, text)


def _tables(files: RunFiles) -> Iterator[RowTable]:
    kinds = {
        "Trial": CellKind.NUMBER,
        "Repeat": CellKind.NUMBER,
        "Metric": CellKind.NUMBER,
        "Distance": CellKind.NUMBER,
        "Seconds": CellKind.NUMBER,
        "Verdict": CellKind.TONE,
    }
    for title, path, headings in (
        ("Trials", files.result, TABLES.result),
        ("Outputs of trials", files.details, TABLES.details),
    ):
        columns = tuple(RowColumn(each, kinds.get(each, CellKind.TEXT)) for each in headings)
        if path.exists():
            yield RowTable(title, columns, path, key=headings.index("Trial"), tones=_TONES)


def _advice(run: _Seen) -> Iterator[Advice]:
    yield from advice_to_go_on(run.settings, run.state, run.files.result)
    if run.state is ViewState.RUNNING:
        return
    kinds = {each.kind for each in run.kept.findings}
    command = run.settings.command if run.settings is not None else ()
    again = shlex.join(["ray-precheck", *command]) if command else ""
    if SearchEnd.FOUND in kinds:
        yield Advice(
            "Switch the culprit off with the lines of its card, see that the deployed result is right, and"
            " report it to the maker of the framework with its trials."
        )
    elif SearchEnd.WRONG_AT_FOOT in kinds:
        yield Advice(
            "It is wrong with everything off: a single operator may be, which a capture of this run tells.",
            ("ray-precheck run_ut -api_info dump --standard auto",),
        )
    elif SearchEnd.BUDGET in kinds and again:
        yield Advice("Search on with more of `--trials` or `--minutes` than this had.", (again,))
    elif run.kept.exit_code == UNUSABLE:
        yield Advice("Mend what is run until it gives an answer with everything off.", (again,))


def _files_of(files: RunFiles) -> tuple[str, ...]:
    others = files.details, findings_file(files), files.settings, files.timeline
    return file_names([files.result, *others])
