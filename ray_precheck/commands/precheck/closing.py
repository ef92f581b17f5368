"""The closing lines of a run: the counts, the devices, the verdicts, and where to look.

Comes in: a `Summary`. Goes out: text for a terminal of 100 columns. Called by the command line.

Also here: the closing lines of the runs over several dumps: a line for each, and the lines of all together;
whether a run has ended, is still running, or has stopped, going by its files.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path

from ray_precheck.commands.precheck.summary import (
    BROKEN_CALLS,
    WORST_OUTPUTS,
    Direction,
    Summary,
    WorstOutput,
    is_rounding,
    times_cell,
    worst_of,
)
from ray_precheck.descriptors.descriptor import package_of
from ray_precheck.foreign import printable
from ray_precheck.schema.environment import Environment
from ray_precheck.store.claim import running
from ray_precheck.store.tables import RunFiles

_LONGEST_NAME = 160
_LONGEST_TEXT = 200
WORST_TYPES = 10
COMMONEST_REASONS = 5
# If nothing is in error, this many of the outputs nearest to their limits are shown.
_NEAREST = 3
_ROUNDING, _CAUSE = "rounding:", "likely cause:"


def format_summary(summary: Summary) -> str:
    """Return the closing lines, with the names of both files."""
    files = f"Results: {summary.files.result}", f"Details: {summary.files.details}"
    return "\n".join([*closing_lines(summary), "", *files])


def closing_lines(summary: Summary) -> list[str]:
    """Return the closing lines without the names of files; the first has the counts of calls."""
    lines = [
        f"{summary.total} APIs: {summary.passes} pass, {summary.errors} error, {summary.skips} SKIP"
    ]
    if summary.foreign:
        rows = _counted(len(summary.foreign), "row is", "rows are")
        first = shown_name(summary.foreign[0])
        lines.append(f"{rows} of calls that the dump does not have ({first}), and not counted.")
    if summary.total:
        lines += [
            direction_line("Forward:", summary.forward),
            direction_line("Backward:", summary.backward),
        ]
    lines += _environment_lines(summary)
    if summary.checked_nothing:
        lines.append("Nothing was compared, so this says nothing about the device.")
    for part in (_reason_lines(summary), _broken_lines(summary), _worst_lines(summary)):
        if part:
            lines += ["", *part]
    if summary.error_types:
        lines += ["", "API types with most errors:"]
        common = summary.error_types.most_common(WORST_TYPES)
        lines += [f"  {count:6}  {shown_name(name)}" for name, count in common]
    return lines


def direction_line(title: str, direction: Direction) -> str:
    """Return the counts of a direction: calls that were compared, and the others by outcome."""
    parts = [
        f"{direction.compared} of {direction.total} compared"
        f" ({direction.passes} pass, {direction.errors} error)"
    ]
    if direction.broken:
        parts.append(f"{direction.broken} that the device could not run (error)")
    if direction.skips:
        parts.append(f"{direction.skips} not compared")
    return f"{title:9} {', '.join(parts)}" if direction.total else f"{title:9} none"


def _environment_lines(summary: Summary) -> Iterator[str]:
    settings = summary.settings
    if settings is None:
        return
    environment, made_with = summary.environment, settings.fingerprint
    tested = tested_text(environment) or f"{made_with.get('device type', '')}"
    if tested:
        yield f"Tested:   {tested}"
    for caveat in environment.caveats:
        yield f"Note:     {shown_text(caveat)}"
    rule = environment.rule or made_with.get("standard", "")
    said = [
        f"standard {rule}" if rule else "",
        f"seed {made_with['seed']}" if "seed" in made_with else "",
    ]
    if any(said):
        yield f"With:     {', '.join(filter(None, said))}"


def tested_text(environment: Environment) -> str:
    """Return the number, kind and name of the tested devices in words, "" if they are not known."""
    if not environment.kind:
        return ""
    versions = environment.versions
    package = package_of(environment.framework)
    software = f"{package} {versions.get(package, '')}".strip()
    names = ", ".join(environment.device_names)
    name = f" ({names})" if names else ""
    where = f" on {environment.nodes} nodes" if environment.nodes > 1 else ""
    devices = f"{environment.devices} {environment.kind}{name}{where}"
    if environment.tests_dump:
        return f"the captured results; results that the dump lacks are of {software} on {devices}"
    return f"{software} on {devices}"


def _reason_lines(summary: Summary) -> list[str]:
    if not summary.reasons:
        return []
    shown = summary.reasons.commonest(COMMONEST_REASONS)
    lines = [
        f"Why {_counted(summary.skips, 'call was', 'calls were')} not, or not wholly, compared:"
    ]
    for reason in shown:
        names = ", ".join(shown_name(name) for name in reason.names)
        more = (
            f", ... {reason.count - len(reason.names)} more"
            if reason.count > len(reason.names)
            else ""
        )
        lines += [f"  {reason.count:6}  {shown_text(reason.text)}", f"          ({names}{more})"]
    left = len(summary.reasons) - len(shown)
    if left:
        count = summary.skips - sum(reason.count for reason in shown)
        lines.append(
            f"  {count:6}  for {_counted(left, 'other reason', 'other reasons')}, in the Messages"
        )
    return lines


def _broken_lines(summary: Summary) -> list[str]:
    if not summary.broken:
        return []
    calls = summary.broken_calls
    lines = [f"{_counted(summary.broken, 'call', 'calls')} that the device could not run:"]
    lines += [f"  {shown_name(call.name)}: {shown_text(call.message)}" for call in calls]
    if summary.broken > len(calls):
        lines.append(f"  ... and {summary.broken - len(calls)} more")
    return lines


def _worst_lines(summary: Summary) -> list[str]:
    worst = [output for output in summary.worst if output.is_error][:WORST_OUTPUTS]
    title = "Worst output of each API, by how many times it is beyond its limit:"
    if worst and is_rounding(worst[-1].row["Message"]):
        title = f"{title[:-1]} (what rounding explains comes last):"
    if not summary.errors:
        worst = summary.worst[:_NEAREST]
        title = "Nearest to their limits, in units of the limit:"
    if not worst:
        return []
    lines = [title, f"  {'':5} {'times':>9} {'cosine':>10} {'MaxAbsErr':>10}  output"]
    for output in worst:
        lines += _output_lines(output)
    return lines


def _output_lines(output: WorstOutput) -> Iterator[str]:
    row = output.row
    numbers = f"{_short(row['Cosine']):>10} {_short(row['MaxAbsErr']):>10}"
    where = ", ".join(filter(None, (row["Tested Dtype"], row["Shape"])))
    suffix = f" ({where})" if where else ""
    more = f", and {output.more} more" if output.more else ""
    name = shown_name(output.name)
    yield f"  {row['Status']:5} {times_cell(output.beyond):>9} {numbers}  {name}{suffix}{more}"
    if output.is_error:
        yield f"        {shown_text(explanation(output))}"
    if output.source:
        yield f"        at {shown_text(output.source)}"


def explanation(output: WorstOutput) -> str:
    """Return the part of the Message that explains the error: the likely cause, or rounding; the
    whole Message if it has neither, or if the numbers say nothing."""
    message = output.row["Message"]
    for word in (_CAUSE, _ROUNDING) if math.isfinite(output.beyond) else ():
        _, found, rest = message.partition(word)
        if found:
            return f"{word}{rest}"
    return message


def _counted(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def shown_name(name: str) -> str:
    """Return a name for the terminal: short, and without control sequences."""
    return _shown(name, _LONGEST_NAME)


def shown_text(text: str) -> str:
    """Return a Message for the terminal: on one line, short, and without control sequences."""
    return _shown(" ".join(text.split()), _LONGEST_TEXT)


def _shown(text: str, longest: int) -> str:
    return printable(f"{text[: longest - 3]}..." if len(text) > longest else text)


def _short(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text


class RunPhase(Enum):
    """How far a run is; the value is the word in a --json file."""

    FINISHED = "finished"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is: `done` of `planned` calls have a row, 0 planned if their number is unknown.
    `reason` is why it stopped, if that is known, or the process that runs it."""

    progress: RunPhase
    done: int = 0
    planned: int = 0
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The state in words."""
        of = f" of {self.planned}" if self.planned else ""
        reason = f": {self.reason}" if self.reason else ""
        return {
            RunPhase.FINISHED: "finished",
            RunPhase.RUNNING: f"still running in {self.reason}, {self.done}{of} calls done",
            RunPhase.STOPPED: f"stopped before the end, {self.done}{of} calls done{reason}",
        }[self.progress]


def state_of(summary: Summary) -> RunState:
    """Return how far the run of these files is.

    Files without settings (msprobe's own) have no mark of their end, and count as finished.
    """
    planned = summary.environment.calls
    if summary.settings is None or summary.settings.completed is not None:
        return RunState(RunPhase.FINISHED, summary.total, planned)
    holder = running(summary.files.lock)
    progress = RunPhase.RUNNING if holder else RunPhase.STOPPED
    return RunState(progress, summary.total, planned, holder)


def state_of_end(summary: Summary, *, completed: bool, reason: str = "") -> RunState:
    """Return the state of a run that this process has just ended."""
    progress = RunPhase.FINISHED if completed else RunPhase.STOPPED
    return RunState(progress, summary.total, summary.environment.calls, reason)


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
