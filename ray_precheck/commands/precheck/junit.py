"""The file of `--junit FILE`: the verdicts of a run, for the pages of CI.

Comes in: a `Summary` and its state. Goes out: JUnit XML, written row by row. Called by the command line.
It has a test case for each call. A call in error by its numbers is a failure, one that the device could not
run an error, one that was not, or not wholly, compared is skipped. Its properties are the environment.
A run that has not finished has one more case, which is an error and says so. The runs over several dumps have
one file with a suite for each dump, whose name begins the class names of its cases.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import orjson

from ray_precheck.commands.precheck.closing import (
    RankSummary,
    RunPhase,
    RunState,
)
from ray_precheck.commands.precheck.summary import Summary
from ray_precheck.foreign import open_file
from ray_precheck.schema.result import Verdict
from ray_precheck.store.results import ResultRow, read_results


def environment_of(summary: Summary) -> dict[str, Any]:
    """Return the place and the settings of a run, by the names of the properties."""
    environment = summary.environment
    made_with = {} if summary.settings is None else summary.settings.fingerprint
    return {
        "framework": environment.framework or made_with.get("framework", ""),
        "device_type": environment.kind or made_with.get("device type", ""),
        "device_names": list(environment.device_names),
        "devices": environment.devices,
        "nodes": environment.nodes,
        "standard": environment.rule or made_with.get("standard", ""),
        "seed": made_with.get("seed", ""),
        "tested": "dump" if environment.tests_dump else "device",
        "dump": environment.dump,
        "caveats": list(environment.caveats),
        "versions": dict(environment.versions),
    }


SUITE = "ray_precheck"
WHOLE_RUN = "the whole run"
# Characters that XML 1.0 cannot hold in any form (section 2.2, Char).
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MICROSECONDS = 1e-6


def junit_lines(summary: Summary, state: RunState) -> Iterator[bytes]:
    """Yield the file piece by piece, in UTF-8."""
    rank = RankSummary(SUITE, summary, state=state)
    yield from _encoded(_document([_size_of(rank)], [_suite(rank, "")]))


def ranks_junit_lines(ranks: Sequence[RankSummary]) -> Iterator[bytes]:
    """Yield the file of several dumps piece by piece, in UTF-8."""
    suites = (_suite(rank, f"{rank.label.replace('/', '.')}.") for rank in ranks)
    yield from _encoded(_document([_size_of(rank) for rank in ranks], suites))


@dataclass(frozen=True, slots=True)
class _Size:
    """The attributes of a suite, or of all suites."""

    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        counts = f'tests="{self.tests}" failures="{self.failures}" errors="{self.errors}"'
        return f'{counts} skipped="{self.skipped}" time="{self.seconds:.6f}"'


def _size_of(rank: RankSummary) -> _Size:
    is_whole = rank.state.progress is RunPhase.FINISHED
    summary = rank.summary
    if summary is None:
        return _Size(1, errors=int(rank.is_error), skipped=int(not rank.is_error))
    return _Size(
        summary.total + (not is_whole),
        summary.errors - summary.broken,
        summary.broken + (not is_whole),
        summary.skips,
        sum(call_seconds(summary.files.timeline).values()),
    )


def _document(sizes: Sequence[_Size], suites: Iterable[Iterator[str]]) -> Iterator[str]:
    whole = _Size(*(sum(getattr(size, each.name) for size in sizes) for each in fields(_Size)))
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f"<testsuites {whole.text}>"
    for suite in suites:
        yield from suite
    yield "</testsuites>"


def _encoded(lines: Iterable[str]) -> Iterator[bytes]:
    for line in lines:
        yield f"{line}\n".encode()


def _suite(rank: RankSummary, prefix: str) -> Iterator[str]:
    """Yield the suite of a dump; `prefix` begins the class names of its cases."""
    yield f"<testsuite name={_attribute(rank.label)} {_size_of(rank).text}>"
    if rank.summary is not None:
        seconds = call_seconds(rank.summary.files.timeline)
        yield "<properties>"
        for name, value in _properties(rank.summary, rank.state).items():
            yield f"<property name={_attribute(name)} value={_attribute(value)}/>"
        yield "</properties>"
        for call in read_results(rank.summary.files.result):
            yield _case(call, prefix, seconds.get(call.name))
    is_whole = rank.summary is not None and rank.state.progress is RunPhase.FINISHED
    if not is_whole:
        said = rank.problem or rank.state.sentence
        kind = "error" if rank.summary is not None or rank.is_error else "skipped"
        class_name = _attribute(prefix.removesuffix(".") or SUITE)
        yield f'<testcase classname={class_name} name="{WHOLE_RUN}">'
        yield f"<{kind} message={_attribute(said)}/></testcase>"
    yield "</testsuite>"


def _properties(summary: Summary, state: RunState) -> dict[str, str]:
    found = {"state": state.sentence}
    for name, value in environment_of(summary).items():
        if isinstance(value, dict):
            found.update({f"{key} version": text for key, text in value.items()})
        else:
            found[name] = ", ".join(value) if isinstance(value, list) else str(value)
    return {**found, "result": str(summary.files.result), "details": str(summary.files.details)}


def _case(call: ResultRow, prefix: str, seconds: float | None) -> str:
    time = "" if seconds is None else f' time="{seconds:.6f}"'
    class_name = f"{prefix}{call.name.rsplit('.', 1)[0]}"
    head = f"<testcase classname={_attribute(class_name)} name={_attribute(call.name)}{time}"
    kind = _kind(call)
    if not kind:
        return f"{head}/>"
    directions = (
        f"forward: {call.forward.value or 'none'}, backward: {call.backward.value or 'none'}"
    )
    text = escape(_legal(f"{directions}\n{call.message}"))
    return f"{head}><{kind} message={_attribute(call.message)}>{text}</{kind}></testcase>"


def _kind(call: ResultRow) -> str:
    """Return the element for a call that did not pass, "" for a pass."""
    if call.verdict is Verdict.ERROR:
        return "error" if call.broke else "failure"
    return "" if call.verdict is Verdict.PASS else "skipped"


def _attribute(text: str) -> str:
    return quoteattr(_legal(text))


def _legal(text: str) -> str:
    r"""Return a text with characters that XML cannot hold as `\uXXXX`."""
    return _ILLEGAL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def call_seconds(timeline: Path) -> dict[str, float]:
    """Return how long each call took on all workers together, by its name, as the timeline says.

    {} for no timeline. Lines that are torn or something else are left out.
    """
    found: dict[str, float] = {}
    try:
        with open_file(timeline) as file:
            for line in file:
                try:
                    event = orjson.loads(line.strip().rstrip(b","))
                    if event["ph"] == "X":
                        name = event["name"]
                        found[name] = found.get(name, 0.0) + event["dur"] * _MICROSECONDS
                except (ValueError, KeyError, TypeError):
                    continue
    except OSError:
        return {}
    return found
