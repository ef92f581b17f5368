"""What a bisect has found, as it is kept beside its rows: `bisect_findings_{timestamp}.json`.

Comes in: a `BisectReport` and its target, at the end of a run. Goes out: the file, and its content. Written
by the run, read for the `View`: without the target, which may be on another machine, the table of trials does
not say which set is guilty, or how it is switched off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_precheck.commands.bisect.closing import (
    BisectReport,
    TrialRows,
    bisect_exit_code,
    trial_number,
    trial_rows,
    unresolved_foot,
)
from ray_precheck.commands.bisect.job import search_limits
from ray_precheck.commands.bisect.options import ModelConfig
from ray_precheck.commands.bisect.target import Target
from ray_precheck.options.commands import UNUSABLE
from ray_precheck.searching.bisection import (
    Rung,
    RungFinding,
    Search,
    SearchEnd,
    Trial,
    TrialAnswer,
)
from ray_precheck.searching.strategy import ladder
from ray_precheck.store.kept import keep_found, kept_found
from ray_precheck.store.tables import RunFiles

FORMAT = 1
# What was suspected is computed anew for each bar: of more trials every second, third, ... one has a bar.
_MOST_BARS = 200


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """A `RungFinding` without its switches: `members` is how many there are, names stand in their order, and
    `sufficient` and `necessary` are numbers of trials. `said` and `code` are the target's lines on it."""

    rung: str
    title: str
    kind: SearchEnd
    is_ordered: bool
    members: int
    sets: tuple[tuple[str, ...], ...] = ()
    cure: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    grouped: tuple[tuple[str, ...], ...] = ()
    sufficient: tuple[str, ...] = ()
    necessary: tuple[str, ...] = ()
    error_rate: float = 0.0
    is_complete: bool = True
    said: tuple[str, ...] = ()
    code: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class KeptFindings:
    """What a run has found. `limit` is that of the metric of trials, None where they have none. `left` is how
    many switches were suspected after a trial, by its number. `notes` are those of the survey, `said` what
    the target says at the end."""

    exit_code: int
    target: str
    findings: tuple[KeptFinding, ...]
    left: tuple[tuple[str, int], ...] = ()
    limit: float | None = None
    notes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def findings_file(files: RunFiles) -> Path:
    """Return the path of the findings of a run."""
    return files.settings.with_name(
        files.result.name.replace("bisect_", "bisect_findings_", 1)
    ).with_suffix(".json")


def write_findings(target: Target, config: Any, report: BisectReport) -> None:
    """Keep what a run has found, as far as it came; where the file cannot be written its view lacks it."""
    rows = trial_rows(report)
    kept = KeptFindings(
        UNUSABLE if unresolved_foot(report) else bisect_exit_code(report),
        target.name,
        tuple(_kept(each, rows, *_lines(target, config, report, each)) for each in report.findings),
        tuple(_left_after(report, config, rows)),
        _limit_of(config),
        report.survey.notes,
        report.said,
    )
    keep_found(findings_file(report.files), kept, FORMAT)


def _lines(
    target: Target, config: Any, report: BisectReport, finding: RungFinding
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    lines = target.lines(config, report.survey, finding)
    return lines.said, lines.code


def _limit_of(config: Any) -> float | None:
    if not isinstance(config, ModelConfig) or config.check:
        return None
    return 1.0 if config.tolerance is None else config.tolerance


def _kept(
    finding: RungFinding,
    rows: TrialRows,
    said: tuple[str, ...],
    code: tuple[tuple[str, str], ...],
) -> KeptFinding:
    rung = finding.rung

    def named(names: frozenset[str]) -> tuple[str, ...]:
        return tuple(name for name in rung.members if name in names)

    def numbers(trials: tuple[Trial, ...]) -> tuple[str, ...]:
        return tuple(number for each in trials if (number := trial_number(rung, each, rows)))

    return KeptFinding(
        rung.name,
        rung.title,
        finding.kind,
        rung.is_ordered,
        len(rung.members),
        tuple(map(named, finding.sets)),
        named(finding.cure),
        named(finding.suspects),
        tuple(map(named, finding.grouped)),
        numbers(finding.sufficient),
        numbers(finding.necessary),
        finding.error_rate,
        finding.is_complete,
        said,
        code,
    )


def _left_after(report: BisectReport, config: Any, rows: TrialRows) -> list[tuple[str, int]]:
    """Return how many switches were suspected after trials of the first search, by their numbers."""
    strategy = ladder(report.survey.rungs, search_limits(config, report.survey))
    rungs: Mapping[str, Rung] = {rung.name: rung for rung in report.survey.rungs}
    history = [each for each in report.history if each[0].rung in rungs]
    step = -(-len(history) // _MOST_BARS) or 1
    known: dict[Trial, TrialAnswer] = {}
    found: list[tuple[str, int]] = []
    for place, (trial, answer) in enumerate(history):
        known[trial] = answer
        if place % step and place + 1 < len(history):
            continue
        last = Search(strategy, known).end()[-1]
        count = len(last.suspects or frozenset().union(*last.sets))
        if not count and last.kind is SearchEnd.BUDGET:
            count = len(last.rung.members)  # Neither end is known yet: any of them may be it.
        found.append((trial_number(rungs[trial.rung], trial, rows), count))
    return found


def read_findings(files: RunFiles) -> KeptFindings | None:
    """Return what a run has found, None where it was ended before it could keep that, or where the file is
    torn or of another version."""
    found = kept_found(findings_file(files), FORMAT)
    if found is None:
        return None
    try:
        kept = [
            KeptFinding(**{**each, "kind": SearchEnd[each["kind"]]}) for each in found["findings"]
        ]
        return KeptFindings(**{**found, "findings": tuple(kept)})
    except (KeyError, TypeError):
        return None
