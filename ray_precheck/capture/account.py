"""What a capture saw, wrote and did not see, as the sentence that is said at its end.

Comes in: an `Account` of each process, which the processes of a script leave as files. Goes out: one
sentence. Called by `Capture` for its own process, and by the command for all processes of a script.

Dark are the places of a captured step that have no record: a note for each call that ran out of the
recorder's sight (compiled code, an extension, another thread). They stand in the header of dump.json as the
field `dark`, which msprobe ignores. Each `StepRecorder` has `DarkPlaces`:

    recorder.dark.note("the compiled function f", module="blocks.0", place=place_of(frame, left_out))

    "dark": {"count": 1, "places": [{"what": "the compiled function f", "module": "blocks.0",
                                     "place": "train.py:12", "times": 3}]}

A count of 0 says that every call of the step has a record. The field is missing where calls are not
recorded at all (L0) or only chosen ones are, and nothing dark was met.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ray_precheck.capture.settings import BY_FORWARD, BY_OPTIMIZER, CaptureSettings
from ray_precheck.descriptors.descriptor import find_framework
from ray_precheck.options.declared import ranges_of

# A header has so many places; further ones are counted. A sentence names fewer.
MOST_PLACES = 100
NAMED_PLACES = 3
_LONGEST_TEXT = 200
COMPLETE = "it is complete"


@dataclass(slots=True)
class Account:
    """What one process saw so far.

    `steps` are those that ended, `captured` the numbers of steps that are written, `records` how many
    records these have, `dark` what had no record in them (None: not known). `why_unseen` says why no call of
    a model was seen. `is_open` is the folder of the step that is being captured. `rows` are those of a
    watch, and `fired` counts the captures that its rules have started. `has_ended` tells a process
    that came to its end from one that was killed.
    """

    process: int
    framework: str
    rank: int | None = None
    model_calls: int = 0
    steps: int = 0
    captured: list[int] = field(default_factory=list)
    removed: int = 0
    replaced: int = 0
    records: int = 0
    failure: str = ""
    why_unseen: str = ""
    cut_short: str = ""
    missing: dict[str, list[str]] = field(default_factory=dict)
    dark: dict[str, object] | None = None
    is_open: str = ""
    rows: int = 0
    fired: int = 0
    has_ended: bool = False

    def save(self, folder: Path) -> None:
        """Write the account into a folder, where it appears as a whole."""
        path = folder / f"{self.process}.{self.framework}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(part, path)


def read_accounts(folder: Path) -> list[Account]:
    """Return the accounts in a folder."""
    return [
        Account(**json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob("*.json"))
    ]


def closing_sentence(
    settings: CaptureSettings, accounts: Sequence[Account], left_over: Sequence[Path] = ()
) -> str:
    """Return what was captured and where, or that nothing was, and why."""
    wrote = [account for account in accounts if account.captured or account.is_open]
    watched = [account for account in accounts if account.rows]
    rows = [_rows(settings, watched)] if watched else []
    if rows and not wrote:
        return "; ".join([*rows, *_oddities(watched)])
    if not wrote:
        return f"nothing was captured: {_why_nothing(settings, accounts)}"
    parts = [*rows, _what(settings, wrote), *_steps_that_never_came(settings, wrote)]
    for account in wrote:
        if account.is_open and not account.has_ended:
            folder = Path(account.is_open).relative_to(settings.path)
            parts.append(
                f"process {account.process} was ended in the middle of {folder}, whose log can be read;"
                f" ray-precheck capture --finish {settings.path} makes a dump.json of it"
            )
    parts += [*_oddities(wrote), *_what_was_dark(wrote)]
    if left_over:
        names = sorted({str(folder.relative_to(settings.path)) for folder in left_over})
        shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        parts.append(f"{shown} are left of an earlier run")
    return "; ".join(parts)


def _rows(settings: CaptureSettings, watched: Sequence[Account]) -> str:
    ranks = {account.rank for account in watched if account.rank is not None}
    whose = f" of rank {ranges_of(ranks)}" if ranks else ""
    steps = max(account.rows for account in watched)
    # A process that was killed has not told of its last rows.
    count = f"{steps:,} step{'s' * (steps != 1)}" if all(a.has_ended for a in watched) else "steps"
    fired = max(account.fired for account in watched)
    rules = f", {fired or 'no'} capture{'s' * (fired != 1)} by rules" if settings.triggers else ""
    return f"{count}{whose} watched in {settings.path} (watch_*.csv){rules}"


def _what(settings: CaptureSettings, wrote: Sequence[Account]) -> str:
    steps = {step for account in wrote for step in account.captured}
    ranks = {account.rank for account in wrote if account.rank is not None}
    dumps = sum(len(account.captured) for account in wrote)
    records = sum(account.records for account in wrote)
    if not dumps:
        return f"no step came to its end, in {settings.path}"
    whose = f" of rank {ranges_of(ranks)}" if ranks else ""
    count = f"{dumps} dump{'s' * (dumps != 1)}, {records:,} record{'s' * (records != 1)}"
    replaced = ", in the place of an earlier run's" if any(a.replaced for a in wrote) else ""
    removed = sum(account.removed for account in wrote)
    kept = f", {removed} earlier dumps removed by --keep-steps" if removed else ""
    return f"step {ranges_of(steps)}{whose} captured in {settings.path} ({count}{kept}){replaced}"


def _steps_that_never_came(settings: CaptureSettings, wrote: Sequence[Account]) -> list[str]:
    if settings.steps is None:
        return []
    captured = {step for account in wrote for step in account.captured}
    reached = max(account.steps for account in wrote)
    missing = [step for step in settings.steps if step not in captured and step >= reached]
    if not missing:
        return []
    return [f"step {ranges_of(missing)} never came: {_made(settings, reached)}"]


def _what_was_dark(wrote: Sequence[Account]) -> list[str]:
    """Return what had no record, or that all is there, which is not said of a capture that was cut short."""
    said = dark_sentence(account.dark for account in wrote)
    is_whole = all(
        account.captured
        and not (account.failure or account.cut_short)
        and (account.has_ended or not account.is_open)
        for account in wrote
    )
    return [said] if said and (is_whole or said != COMPLETE) else []


def _oddities(accounts: Sequence[Account]) -> list[str]:
    found = [f"capturing stopped: {account.failure}" for account in accounts if account.failure]
    found += [
        f"the last step was cut short: {account.cut_short}"
        for account in accounts
        if account.cut_short
    ]
    return sorted({*found, *entries_without_a_call(accounts)})


def entries_without_a_call(accounts: Sequence[Account]) -> list[str]:
    """Return a sentence for each entry of the scope and the list that met no call."""
    missing: dict[str, list[str]] = {}
    for account in accounts:
        for entry, near in account.missing.items():
            missing.setdefault(entry, near)
    found = []
    for entry, near in missing.items():
        hint = f"; the nearest names are {', '.join(near)}" if near else ""
        found.append(f"{entry!r} of the scope or list met no call{hint}")
    return sorted(found)


def _why_nothing(settings: CaptureSettings, accounts: Sequence[Account]) -> str:
    """Return why nothing was captured, from what the process that came farthest saw."""
    if not accounts:
        return "neither PyTorch nor MindSpore was imported"
    failures = sorted({account.failure for account in accounts if account.failure})
    if failures:
        return "; ".join(failures)
    seen = max(accounts, key=lambda account: (account.model_calls, account.steps))
    framework = find_framework(seen.framework)
    model = framework.capturing.model if framework.capturing else "model"
    if not seen.model_calls and seen.why_unseen:
        return f"{framework.title} was imported, and {seen.why_unseen}"
    if not seen.model_calls:
        return (
            f"{framework.title} was imported, and no {model} with parameters was called, with"
            f" which a capture begins ({_made(settings, seen.steps)})"
        )
    if settings.steps is not None and min(settings.steps) >= seen.steps:
        return (
            f"steps {ranges_of(settings.steps)} were asked for, and {_made(settings, seen.steps)}"
        )
    ranks = {account.rank for account in accounts if account.rank is not None}
    if settings.ranks is not None and ranks.isdisjoint(settings.ranks):
        there = f"rank {ranges_of(ranks)}" if ranks else "no rank"
        return f"ranks {ranges_of(settings.ranks)} were asked for, and there was {there}"
    calls = f"a model was called {seen.model_calls} times"
    said = f"{framework.title} was imported, {calls}, and no step was reached"
    if settings.step_by != BY_OPTIMIZER:
        return said
    return f"{said}: no optimizer has stepped; --step-by forward lets the next call of the model end a step"


def _made(settings: CaptureSettings, steps: int) -> str:
    how = {BY_OPTIMIZER: "of the optimizer", BY_FORWARD: "from one call of the model to the next"}
    kind = how.get(settings.step_by, "by ray_precheck.capture.step()")
    return f"{steps or 'no'} step{'s' * (steps > 1)} {kind} {'was' if steps < 2 else 'were'} made"


@dataclass(slots=True)
class DarkPlace:
    """What ran unseen: in which module, at which line (`file:line`) of the program, and how often."""

    what: str
    module: str = ""
    place: str = ""
    times: int = 1

    def __str__(self) -> str:
        often = f"{self.times:,} times" if self.times > 1 else ""
        where = ", ".join(filter(None, (self.module, self.place, often)))
        return f"{self.what} ({where})" if where else self.what


class DarkPlaces:
    """Places by what ran there, each counted; the first `MOST_PLACES` are kept."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, str], DarkPlace] = {}
        self._others = 0

    def __len__(self) -> int:
        return len(self._places) + self._others

    def note(self, what: str, *, module: str = "", place: str = "", times: int = 1) -> None:
        """Take note that something ran unseen at a place, once more where it is known."""
        key = what[:_LONGEST_TEXT], module[:_LONGEST_TEXT], place[-_LONGEST_TEXT:]
        found = self._places.get(key)
        if found is not None:
            found.times += times
        elif len(self._places) < MOST_PLACES:
            self._places[key] = DarkPlace(*key, times)
        else:
            self._others += 1

    def header(self) -> dict[str, object]:
        """Return the field of a dump's header, and of an account."""
        return {"count": len(self), "places": [asdict(each) for each in self._places.values()]}

    def add(self, header: Mapping[str, Any]) -> None:
        """Add the places of another process or step, as `header` has them."""
        for each in header.get("places", ()):
            self.note(**each)
        self._others += max(0, header.get("count", 0) - len(header.get("places", ())))


def added(
    header: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> dict[str, object] | None:
    """Return the places of two steps together, None where neither can know."""
    if header is None and other is None:
        return None
    total = DarkPlaces()
    for each in (header, other):
        total.add(each or {})
    return total.header()


def dark_sentence(headers: Iterable[Mapping[str, Any] | None]) -> str:
    """Return what several steps or processes say of their dark places; None is of one that cannot know."""
    total, knows = DarkPlaces(), True
    for header in headers:
        knows = knows and header is not None
        total.add(header or {})
    if not len(total):
        return COMPLETE if knows else ""
    places = [str(each) for each in total._places.values()]
    is_one = len(total) == 1
    begin = "1 place is dark" if is_one else f"{len(total)} places are dark"
    rest = len(total) - len(places[:NAMED_PLACES])
    more = f", and {rest} more in the headers of the dumps" if rest else ""
    return f"{begin} (what ran there has no record): {'; '.join(places[:NAMED_PLACES])}{more}"
