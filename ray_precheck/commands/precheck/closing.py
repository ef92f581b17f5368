"""The closing lines of a run: the counts, the devices, the verdicts, and where to look.

Comes in: a `Summary`. Goes out: text for a terminal of 100 columns. Called by the command line.
"""

import math
from collections.abc import Iterator

from ray_precheck.commands.precheck.beyond import is_rounding, times_cell
from ray_precheck.commands.precheck.summary import Direction, Summary, WorstOutput
from ray_precheck.descriptors.descriptor import package_of
from ray_precheck.dump.shown import printable
from ray_precheck.schema.environment import Environment

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
            _direction_line("Forward:", summary.forward),
            _direction_line("Backward:", summary.backward),
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


def _direction_line(title: str, direction: Direction) -> str:
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
    worst = [output for output in summary.worst if output.is_error]
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
