"""The report of a bisect, and what is printed of it: culprits, their proofs, the lines that switch them off.

Comes in: a `BisectReport` and its target. Goes out: text, an exit code. Called by the command, and by the
module that keeps what was found.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ray_precheck.commands.bisect.job import enabled_cell
from ray_precheck.commands.bisect.target import Lines, Survey, Target
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED
from ray_precheck.searching.bisection import Rung, RungFinding, SearchEnd, Trial, TrialAnswer
from ray_precheck.store.tables import RunFiles, decode_name, encode_text

_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class TrialCells:
    """A row of `bisect_{timestamp}.csv`; all cells are text."""

    trial: str
    rung: str
    enabled: str
    repeat: str
    exit: str
    verdict: str
    metric: str
    seconds: str
    message: str


@dataclass(frozen=True, slots=True)
class BisectReport:
    """The report of a run. `completed` is False if it stopped before its end, for the reason `stop_reason` or
    on request; then `findings` are those of the rungs that were finished. `history` are the answers in the
    order in which they came, `said` what the target says at the end."""

    files: RunFiles
    survey: Survey
    findings: tuple[RungFinding, ...]
    trials: tuple[TrialCells, ...]
    history: tuple[tuple[Trial, TrialAnswer], ...]
    completed: bool
    stop_reason: str = ""
    said: tuple[str, ...] = ()


def survey_lines(survey: Survey) -> Iterator[str]:
    """Yield the rungs and their switches, for --dry-run."""
    for rung in survey.rungs:
        count = len(rung.members)
        yield (
            f"Rung {rung.name}{f' ({rung.title})' if rung.title else ''}:"
            f" {count} switch{'' if count == 1 else 'es'}"
        )
        yield from (f"  off by {language}: {line}" for language, line in rung.lines)
        by_name = {each.name: each for each in rung.switches}
        for number, name in enumerate(rung.members, 1):
            hits = by_name[name].hits
            counted = "" if hits is None else f" ({hits} hit{'' if hits == 1 else 's'})"
            lines = "".join(f"; {language}: {line}" for language, line in by_name[name].lines)
            yield f"  {number} {name}{counted}{lines}"
        stays = [each.name for each in rung.switches if each.stays]
        if stays:
            yield f"  always on: {', '.join(stays)}"
    for note in survey.notes:
        yield f"note: {note}"


def bisect_exit_code(report: BisectReport) -> int:
    """Return the exit code: 1 where a culprit is, 0 where everything is right, 4 where nothing was
    answered."""
    if not report.completed:
        return STOPPED
    found = report.findings
    if any(each.kind in (SearchEnd.FOUND, SearchEnd.WRONG_AT_FOOT) for each in found):
        return IN_ERROR
    unended = [each for each in found if each.kind is SearchEnd.BUDGET]
    if unended:
        is_wrong = any(each.suspects or each.sets for each in unended)
        return IN_ERROR if is_wrong else NOTHING_CHECKED
    # That it is right with everything off says nothing of what is on.
    above = [each for each in found if each is not found[0] or each.rung.members] or found
    kinds = {each.kind for each in above}
    return PASSED if kinds & {SearchEnd.CLEAN, SearchEnd.NOISE} else NOTHING_CHECKED


def unresolved_foot(report: BisectReport) -> str:
    """Return a sentence where no trial with everything off gave an answer, so that nothing can be told; ""
    where one did."""
    if (
        not (report.completed and report.findings)
        or report.findings[0].kind is not SearchEnd.UNRESOLVED
    ):
        return ""
    first = report.findings[0].rung
    off = [each for each in report.trials if each.enabled in ("none", "all")]
    if any(
        each.verdict != "UNRESOLVED" for each in off if each.enabled == "none" or not first.members
    ):
        return ""
    reason = next(
        (each.message or f"it ended with {each.exit}" for each in off), "no trial was run"
    )
    return (
        f"with everything off there is no answer: {decode_name(reason)}; mend what is run until it"
        " gives one, then begin again"
    )


def bisect_lines(target: Target, config: Any, report: BisectReport) -> Iterator[str]:
    """Yield the closing lines of a run."""
    rows = trial_rows(report)
    for finding in report.findings:
        yield from _finding_lines(finding, rows, target.lines(config, report.survey, finding))
    if not report.findings and report.completed:
        yield "Nothing was answered within the trials or the time allowed"
    seconds = sum(float(each.seconds or 0) for each in report.trials)
    yield f"{len(report.trials)} trials took {seconds:.1f} s together; rows: {report.files.result}"


TrialRows: TypeAlias = Mapping[tuple[str, str, str], TrialCells]


def trial_rows(report: BisectReport) -> TrialRows:
    """Return the rows of trials by their rung, what was on, and the repeat, as the table has them."""
    return {(each.rung, each.enabled, each.repeat): each for each in report.trials}


def _finding_lines(finding: RungFinding, rows: TrialRows, lines: Lines) -> Iterator[str]:
    rung = finding.rung
    title = f"{rung.name}{f' ({rung.title})' if rung.title else ''}"
    match finding.kind:
        case SearchEnd.CLEAN:
            yield f"{title}: right"
        case SearchEnd.WRONG_AT_FOOT:
            yield f"{title}: wrong with all of it off"
        case SearchEnd.NOISE:
            yield (
                f"{title}: numeric noise, no culprit: the result is wrong as often with all of it off as with"
                " all of it on"
            )
        case SearchEnd.UNRESOLVED:
            yield f"{title}: no answer{_reason(rung, rows)}"
        case SearchEnd.BUDGET:
            yield f"{title}: the trials or the time were used up before the search ended"
            yield from _known(finding)
        case SearchEnd.FOUND:
            yield f"{title}: wrong"
            yield from _found(finding, rows)
    yield from (f"  {said}" for said in lines.said)
    if lines.code:
        yield "  To switch it off:"
        yield from (f"    {language}: {line}" for language, line in lines.code)


def _known(finding: RungFinding) -> Iterator[str]:
    for each in finding.sets:
        yield f"  wrong alone, not proven to be all: {_named(finding.rung, each)}"
    if finding.suspects and not finding.sets:
        count = len(finding.suspects)
        yield f"  what is wrong is among these {count}: {_named(finding.rung, finding.suspects)}"


def _found(finding: RungFinding, rows: TrialRows) -> Iterator[str]:
    rung, sets = finding.rung, finding.sets
    if rung.is_ordered:
        yield f"  the first that makes it wrong: {_named(rung, sets[0])}"
    elif len(sets) == 1 and len(sets[0]) == 1:
        yield f"  {_named(rung, sets[0])} makes the result wrong"
    elif len(sets) == 1:
        yield f"  together, none of them alone: {_named(rung, sets[0])}"
    else:
        yield f"  {len(sets)} alternatives, each wrong by itself:"
        yield from (f"    {_named(rung, each)}" for each in sets)
    if len(finding.cure) > 1 or len(sets) > 1:
        yield f"  right without: {_named(rung, finding.cure)}"
    proofs = [("wrong with it alone", finding.sufficient), ("right without it", finding.necessary)]
    if rung.is_ordered:
        proofs = [("wrong with it", finding.sufficient), ("right before it", finding.necessary)]
    for what, trials in proofs:
        found = [number for trial in trials if (number := trial_number(rung, trial, rows))]
        said = f"trial {', '.join(found)}" if found else "no trial shows it"
        yield f"  {what}: {said}"
    for group in finding.grouped:
        yield f"  not told apart, as those trials gave no answer: {_named(rung, group)}"
    if not finding.is_complete:
        yield "  there may be more alternatives"
    if finding.error_rate:
        yield f"  equal trials disagree in up to {finding.error_rate:.0%}; decisions are of that many repeats"


def trial_number(rung: Rung, trial: Trial, rows: TrialRows) -> str:
    """Return the number of a trial of a rung in the table, "" where it has no row."""
    cell = encode_text(enabled_cell(rung, trial.enabled)) if trial.rung == rung.name else "all"
    found = rows.get((encode_text(trial.rung), cell, str(trial.repeat)))
    return "" if found is None else found.trial


def _reason(rung: Rung, rows: TrialRows) -> str:
    said = {
        each.message or each.exit
        for each in rows.values()
        if each.rung == encode_text(rung.name) and each.verdict == "UNRESOLVED"
    }
    return f": {sorted(said)[0]}" if said else ""


def _named(rung: Rung, names: frozenset[str]) -> str:
    ordered = [name for name in rung.members if name in names]
    more = f", and {len(ordered) - _MOST_NAMED} more" if len(ordered) > _MOST_NAMED else ""
    return f"{', '.join(ordered[:_MOST_NAMED])}{more}"
