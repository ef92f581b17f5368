"""What the `View`s of all commands share: the facts of a run, its timeline, source lines, modules.

Comes in: the files of runs that have ended, were stopped, or go on. Goes out: parts of a `View`. Called by
the `report.py` of each command. Nothing here writes, and files that are torn are read as far as they go: what
could not be read is told as a sentence.
"""

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_precheck.foreign import open_file, open_text
from ray_precheck.options.commands import resume_command
from ray_precheck.schema.environment import environment_from_dict
from ray_precheck.schema.view import (
    Advice,
    CodeLine,
    Fact,
    Floats,
    ModuleNode,
    ModuleTree,
    TimelineChart,
    Tone,
    ViewState,
)
from ray_precheck.store.claim import running
from ray_precheck.store.resume import stamp_in
from ray_precheck.store.settings import RunSettings, load_settings
from ray_precheck.store.tables import RunFiles
from ray_precheck.store.timeline import CRASH

MOST_CARDS = 10
_MOST_NAMED = 10
# Spans in a page: more than a screen has pixels, and few enough to be sent by mail.
_MOST_SPANS = 200_000
_LINES_AROUND = 4
_LARGEST_SOURCE_BYTES = 4 << 20
_PLACE = re.compile(r"(?P<path>.+?):(?P<line>\d+)(?:, in |$)")
_USER_LINE = "; called by "


@dataclass(frozen=True, slots=True)
class FoundRun:
    """The files of one run: `main` is the table by which it was found, `stamp` the time in its names, `label`
    its step and rank (`step0/rank1`, "" for a single one)."""

    main: Path
    stamp: str
    label: str = ""


def found_run(main: Path, label: str = "") -> FoundRun:
    """Return the files of one run, of which `main` is the table by which it is found."""
    return FoundRun(main, stamp_in(main), label)


# The worst first.
_BY_BADNESS = (Tone.ERROR, Tone.UNMATCHED, Tone.WARNING, Tone.SKIP, Tone.PASS, Tone.PLAIN)


def worst_tone(tones: Iterable[Tone]) -> Tone:
    """Return the worst of some verdicts, `PLAIN` where there are none."""
    return min(tones, key=_BY_BADNESS.index, default=Tone.PLAIN)


def settings_of_run(files: RunFiles) -> RunSettings | None:
    """Return the settings of a run, None where they are missing or cannot be read."""
    try:
        return load_settings(files.settings)
    except OSError:
        return None


def state_of_run(files: RunFiles, settings: RunSettings | None) -> ViewState:
    """Return whether a run came to its end; without settings there is no mark of it, and it counts as
    finished."""
    if settings is None or settings.completed is not None:
        return ViewState.FINISHED
    return ViewState.RUNNING if running(files.lock) else ViewState.STOPPED


def facts_of_run(settings: RunSettings | None) -> tuple[Fact, ...]:
    """Return device, framework, standard, seed, dump and versions, as far as the settings tell."""
    if settings is None:
        return ()
    found = environment_from_dict(settings.environment)
    names = f" ({', '.join(found.device_names)})" if found.device_names else ""
    devices = f"{found.devices} {found.kind}{names}" if found.kind else ""
    if found.nodes > 1:
        devices += f" on {found.nodes} machines"
    tested = "the captured results" if found.tests_dump else ""
    facts = {
        "Device": devices,
        "Tested": tested,
        "Framework": found.framework or settings.fingerprint.get("framework", ""),
        "Standard": found.rule or settings.fingerprint.get("standard", ""),
        "Seed": settings.fingerprint.get("seed", ""),
        "Dump": found.dump,
        "Golden run": found.golden,
        "Versions": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
        "Limits of the device": "; ".join(found.caveats),
    }
    return tuple(Fact(name, value) for name, value in facts.items() if value)


def invocation_of(settings: RunSettings | None) -> str:
    """Return the command that makes the files again, with the folder where it ran; "" where it is not
    known."""
    if settings is None or not settings.command:
        return ""
    line = shlex.join(["ray-precheck", *settings.command])
    return f"cd {shlex.quote(settings.folder)} && {line}" if settings.folder else line


def timeline_chart(paths: Mapping[str, Path]) -> TimelineChart | None:
    """Return the timelines of runs as one chart, by their labels; None where no span could be read.

    Of more than 200,000 pieces some that followed each other on a lane are one span, named for the longest,
    and as long as they are together, so that idle time stays what it was; the title says so.
    """
    lanes: dict[str, int] = {}
    names: dict[str, int] = {}
    stages: dict[str, int] = {}
    rows: list[tuple[int, float, float, int, int]] = []
    crashes: list[tuple[float, str]] = []
    for label, path in paths.items():
        threads: dict[tuple[int, int], str] = {}
        machines: dict[int, str] = {}
        for event in _events(path):
            pid, tid = event.get("pid", 0), event.get("tid", 0)
            named = event.get("args", {}).get("name", "") if event.get("ph") == "M" else ""
            if event.get("name") == "process_name":
                machines[pid] = str(named)
            elif event.get("name") == "thread_name":
                threads[pid, tid] = str(named)
            elif event.get("ph") == "X":
                place = (label, machines.get(pid, ""), threads.get((pid, tid), str(tid)))
                where = " ".join(filter(None, place))
                if event.get("cat") == CRASH:
                    said = f"{event.get('name', '')} broke its worker on {where}"
                    crashes.append((event.get("ts", 0) / 1e6, said))
                    continue
                lane = lanes.setdefault(where, len(lanes))
                name = names.setdefault(str(event.get("name", "")), len(names))
                stage = stages.setdefault(str(event.get("cat", "")), len(stages))
                begin, length = event.get("ts", 0), event.get("dur", 0)
                rows.append((lane, begin / 1e6, length / 1e6, name, stage))
    if not rows:
        return None
    title = "What ran where"
    rows.sort()
    table = np.array(rows, np.float64)
    together = -(-len(rows) // _MOST_SPANS)
    if together > 1:
        title += f" ({len(rows):,} pieces, {together} that followed each other drawn as one)"
        table = _drawn_together(table, together)
    table = table[np.argsort(table[:, 1], kind="stable")]
    known = tuple(names)
    used, named = np.unique(table[:, 3].astype(np.int64), return_inverse=True)
    return TimelineChart(
        title,
        tuple(lanes),
        table[:, 0].astype(np.int64),
        table[:, 1] - table[0, 1],
        table[:, 2],
        tuple(known[name] for name in used),
        named.reshape(-1),
        tuple(stages),
        table[:, 4].astype(np.int64),
        tuple((moment - float(table[0, 1]), said) for moment, said in sorted(crashes)),
    )


def _drawn_together(table: Floats, count: int) -> Floats:
    """Return `(M, 5)` rows of spans, each of up to `count` of the `(N, 5)` given, which are sorted by lane
    and begin."""
    lanes = table[:, 0]
    first_of_lane = np.searchsorted(lanes, lanes)
    begins = np.flatnonzero((np.arange(len(table)) - first_of_lane) % count == 0)
    found = table[begins].copy()
    found[:, 2] = np.add.reduceat(table[:, 2], begins)
    group = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(table))))
    by_length = np.lexsort((table[:, 2], group))  # the longest of each group is the last of it
    longest = by_length[np.append(begins[1:], len(table)) - 1]
    found[:, 3:] = table[longest, 3:]
    return found


def _events(path: Path) -> Iterable[dict[str, Any]]:
    """Yield the events of a timeline, a line each; what is torn is left out."""
    try:
        with open_file(path) as file:
            for line in file:
                text = line.strip().strip(b",")
                if not text.startswith(b"{"):
                    continue
                try:
                    event = json.loads(text)
                except ValueError:
                    continue
                numbers = (event.get("ts", 0), event.get("dur", 0))
                if all(isinstance(number, int | float) for number in numbers):
                    yield event
    except OSError:
        return


def code_around(source: str) -> tuple[tuple[CodeLine, ...], str]:
    """Return the lines around a source line as `trace.sources` gives it, and a sentence on why there are
    none, "" where there are.

    Of a library's line and the user's own, the user's is shown.
    """
    own = source.rpartition(_USER_LINE)[2] or source
    place = _PLACE.match(own)
    if place is None:
        return (), "the capture has no source line of this call" if not source else ""
    path, number = Path(place["path"]), int(place["line"])
    try:
        if path.stat().st_size > _LARGEST_SOURCE_BYTES:
            return (), f"{path} is too large to be shown"
        with open_text(path) as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return (), f"{path} is not on this machine, so that its code cannot be shown"
    if not 0 < number <= len(lines):
        return (), f"{path} has {len(lines)} lines, not {number}: it is not the file that was run"
    first = max(1, number - _LINES_AROUND)
    last = min(len(lines), number + _LINES_AROUND)
    shown = (CodeLine(i, lines[i - 1][:300], i == number) for i in range(first, last + 1))
    return tuple(shown), ""


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """A call for `module_tree`: `module` is the key of the module around it, `link` its row. It may stand for
    `count` calls with the same verdict. Of equal verdicts the one with the largest `times` is the worst; NaN
    counts as 0."""

    module: str
    tone: Tone
    link: str = ""
    count: int = 1
    times: float = 0.0

    @property
    def rank(self) -> tuple[int, float]:
        """What orders calls, the worst first."""
        return _BY_BADNESS.index(self.tone), 0.0 if math.isnan(self.times) else -self.times


def module_tree(
    title: str, calls: Iterable[JudgedCall], parent_of: Mapping[str, str]
) -> ModuleTree | None:
    """Return the modules of calls as a tree, with the worst verdict and the counts of everything below each;
    None where no call has a module.

    `parent_of` gives the module around a module, "" of a root; a cycle ends at the module that closes it.
    """
    own: dict[str, list[JudgedCall]] = {}
    for call in calls:
        if call.module:
            own.setdefault(call.module, []).append(call)
    if not own:
        return None
    parents: dict[str, str] = {}
    for module in own:
        seen = set()
        while module and module not in parents and module not in seen:
            seen.add(module)
            parents[module] = above = parent_of.get(module, "")
            if above in seen:
                parents[module] = ""
            module = above
    children: dict[str, list[str]] = {}
    for module, above in parents.items():
        children.setdefault(above, []).append(module)
    order: list[str] = []
    waiting = list(reversed(children.get("", [])))
    while waiting:
        order.append(waiting.pop())
        waiting += reversed(children.get(order[-1], []))
    place = {module: index for index, module in enumerate(order)}
    nothing = JudgedCall("", Tone.PLAIN)
    worst = {
        module: min(own.get(module, ()), key=lambda call: call.rank, default=nothing)
        for module in order
    }
    counts = {module: sum(call.count for call in own.get(module, ())) for module in order}
    errors = {
        module: sum(call.count for call in own.get(module, ()) if call.tone is Tone.ERROR)
        for module in order
    }
    for module in reversed(order):
        above = parents[module]
        if above:
            counts[above] += counts[module]
            errors[above] += errors[module]
            worst[above] = min(worst[above], worst[module], key=lambda call: call.rank)
    nodes = (
        ModuleNode(
            module,
            place.get(parents[module], -1),
            worst[module].tone,
            counts[module],
            errors[module],
            worst[module].link,
        )
        for module in order
    )
    return ModuleTree(title, tuple(nodes))


# How the sentence of a run begins that has come to its end, or has not.
BEGIN_OF_SENTENCE = {
    ViewState.FINISHED: "",
    ViewState.RUNNING: "So far: ",
    ViewState.STOPPED: "Stopped before its end; so far: ",
}


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun: `1 place`, `1,200 places`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown_times(times: float) -> str:
    """Return a multiple as the page writes it: `0.0381`, `3,783`, `1.49e+7`, `inf`."""
    if not math.isfinite(times):
        return str(times)
    if abs(times) >= 1e7:
        digits, _, power = f"{times:.2e}".partition("e")
        return f"{digits}e+{int(power)}"
    return f"{rounded_times(times):,.0f}" if abs(times) >= 1000 else f"{times:.3g}"


def rounded_times(times: float) -> float:
    """Return a multiple to the four digits that a page shows of a larger one."""
    return float(f"{times:.4g}")


def named_and_more(names: Sequence[str], more: int = 0) -> str:
    """Return names as a text, at most ten of them, and how many there are more; `more` of them have no name
    here."""
    shown = ", ".join(names[:_MOST_NAMED])
    more += len(names) - _MOST_NAMED if len(names) > _MOST_NAMED else 0
    return f"{shown}, and {more:,} more" if more > 0 else shown


def advice_to_go_on(
    settings: RunSettings | None, state: ViewState, main: Path
) -> tuple[Advice, ...]:
    """Return how to go on with a run that was stopped, () for any other one."""
    if state is not ViewState.STOPPED or settings is None or not settings.command:
        return ()
    line = resume_command(settings.command, main.absolute())
    if settings.folder:
        line = f"cd {shlex.quote(settings.folder)} && {line}"
    return (Advice("Go on with the run that was stopped.", (line,)),)


def file_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the paths of the files that are there."""
    return tuple(str(path) for path in paths if path.exists())
