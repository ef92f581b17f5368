"""The closing lines of the runs over several dumps: a line for each, and the lines of all together.

Comes in: the summary of each dump, or the reason why it was not checked. Goes out: one `Summary` of
all, and a text. Called by the command line.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ray_precheck.commands.precheck.closing import closing_lines, shown_text
from ray_precheck.commands.precheck.state import RunPhase, RunState
from ray_precheck.commands.precheck.summary import (
    BROKEN_CALLS,
    Direction,
    Summary,
    WorstOutput,
    worst_of,
)
from ray_precheck.store.resume import RunFiles

_FINISHED = RunState(RunPhase.FINISHED)


@dataclass(frozen=True, slots=True)
class RankSummary:
    """The summary of one dump; None where it was not checked, because of `problem`, which `is_error`
    unless nothing was asked of the dump. `state` and `exit_code` are those of its own run."""

    label: str
    summary: Summary | None
    problem: str = ""
    state: RunState = _FINISHED
    exit_code: int = 0
    is_error: bool = False


def format_ranks(ranks: Sequence[RankSummary], total: int, folder: Path) -> str:
    """Return the closing lines of the runs over `total` dumps, whose results stand in `folder`."""
    found = sum(rank.summary is not None for rank in ranks)
    width = max((len(rank.label) for rank in ranks), default=0)
    lines = [f"{found} of {total} dumps:"]
    for rank in ranks:
        if rank.summary is None:
            said = f"not checked: {shown_text(rank.problem)}"
        else:
            said = closing_lines(rank.summary)[0]
        lines.append(f"  {rank.label:{width}}  {said}")
    lines += ["", "All together:", *closing_lines(combined(ranks, folder))]
    return "\n".join([*lines, "", f"Results: {folder}, two CSV files in the folder of each dump"])


def combined(ranks: Sequence[RankSummary], folder: Path) -> Summary:
    """Return one summary of all dumps; names of outputs and calls begin with that of their dump.

    The settings and the place are those of the first dump, because they are the same for all. Its
    dump is the folder that holds all of them.
    """
    # There are no such files: the closing lines of several dumps name the folder.
    whole = Summary(RunFiles(folder, folder, folder, folder, folder, folder))
    worst: list[tuple[str, WorstOutput]] = []
    for rank in ranks:
        summary = rank.summary
        if summary is None:
            continue
        if whole.settings is None:
            whole.settings, whole.environment = summary.settings, summary.environment
        for name in ("total", "passes", "errors", "skips", "broken"):
            setattr(whole, name, getattr(whole, name) + getattr(summary, name))
        _add(whole.forward, summary.forward)
        _add(whole.backward, summary.backward)
        whole.reasons.merge(summary.reasons, f"{rank.label} ")
        whole.error_types.update(summary.error_types)
        whole.broken_calls += [
            call._replace(name=f"{rank.label} {call.name}") for call in summary.broken_calls
        ]
        whole.foreign += [f"{rank.label} {name}" for name in summary.foreign]
        worst += [(rank.label, output) for output in summary.worst]
    whole.broken_calls = whole.broken_calls[:BROKEN_CALLS]
    whole.worst = worst_of(worst)
    there = [rank.summary.environment for rank in ranks if rank.summary is not None]
    dumps = [each.dump for each in there if each.dump]
    whole.environment = replace(
        whole.environment,
        calls=sum(each.calls for each in there),
        caveats=tuple(dict.fromkeys(text for each in there for text in each.caveats)),
        dump=os.path.commonpath(dumps) if dumps else "",
    )
    return whole


def state_of_all(
    ranks: Sequence[RankSummary], whole: Summary, *, completed: bool, reason: str = ""
) -> RunState:
    """Return the state of the runs over several dumps; `ranks` are all of them, begun or not.

    The number of calls in dumps that were not begun is unknown.
    """
    progress = RunPhase.FINISHED if completed else RunPhase.STOPPED
    planned = whole.environment.calls if all(rank.summary for rank in ranks) else 0
    return RunState(progress, whole.total, planned, reason)


def _add(whole: Direction, part: Direction) -> None:
    for each in fields(Direction):
        setattr(whole, each.name, getattr(whole, each.name) + getattr(part, each.name))
