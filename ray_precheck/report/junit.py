"""The file of `--junit FILE`: JUnit XML, a test case for each call, for the pages of CI.

Comes in: a `Summary` and its state. Goes out: an XML file, written row by row. Called by the command
line. A call in error by its numbers is a failure, one that the device could not run an error, one that
was not, or not wholly, compared is skipped. The suite's properties are the environment, as in --json.
A run that has not finished has one more case, which is an error and says so.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import orjson

from ray_precheck.report.calls import Call, read_calls
from ray_precheck.report.machine_file import environment_of
from ray_precheck.report.output_file import write_report
from ray_precheck.report.state import Progress, RunState
from ray_precheck.report.summary import Summary
from ray_precheck.schema.result import Verdict

SUITE = "ray_precheck"
WHOLE_RUN = "the whole run"
# What XML 1.0 cannot hold in any way (section 2.2, Char).
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MICROSECONDS = 1e-6


def write_junit(path: Path, summary: Summary, state: RunState) -> None:
    """Write the file.

    Raises:
        UsageError: it cannot be written.
    """
    write_report("--junit", path, junit_lines(summary, state))


def junit_lines(summary: Summary, state: RunState) -> Iterator[bytes]:
    """Yield the file piece by piece, in UTF-8."""
    for line in _lines(summary, state):
        yield f"{line}\n".encode()


def _lines(summary: Summary, state: RunState) -> Iterator[str]:
    seconds = call_seconds(summary.files.timeline)
    is_whole = state.progress is Progress.FINISHED
    counts = {
        "tests": summary.total + (not is_whole),
        "failures": summary.errors - summary.broken,
        "errors": summary.broken + (not is_whole),
        "skipped": summary.skips,
        "time": f"{sum(seconds.values()):.6f}",
    }
    shown = " ".join(f'{name}="{value}"' for name, value in counts.items())
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f"<testsuites {shown}>"
    yield f'<testsuite name="{SUITE}" {shown}>'
    yield "<properties>"
    for name, value in _properties(summary, state).items():
        yield f"<property name={_attribute(name)} value={_attribute(value)}/>"
    yield "</properties>"
    for call in read_calls(summary.files.result):
        yield _case(call, seconds.get(call.name))
    if not is_whole:
        yield f'<testcase classname="{SUITE}" name="{WHOLE_RUN}">'
        yield f"<error message={_attribute(state.sentence)}/></testcase>"
    yield "</testsuite>"
    yield "</testsuites>"


def _properties(summary: Summary, state: RunState) -> dict[str, str]:
    found = {"state": state.sentence}
    for name, value in environment_of(summary).items():
        if isinstance(value, dict):
            found.update({f"{key} version": text for key, text in value.items()})
        else:
            found[name] = ", ".join(value) if isinstance(value, list) else str(value)
    return {**found, "result": str(summary.files.result), "details": str(summary.files.details)}


def _case(call: Call, seconds: float | None) -> str:
    time = "" if seconds is None else f' time="{seconds:.6f}"'
    class_name = call.name.rsplit(".", 1)[0]
    head = f"<testcase classname={_attribute(class_name)} name={_attribute(call.name)}{time}"
    kind = _kind(call)
    if not kind:
        return f"{head}/>"
    directions = (
        f"forward: {call.forward.value or 'none'}, backward: {call.backward.value or 'none'}"
    )
    text = escape(_legal(f"{directions}\n{call.message}"))
    return f"{head}><{kind} message={_attribute(call.message)}>{text}</{kind}></testcase>"


def _kind(call: Call) -> str:
    """Return the element that says what became of a call, "" for a pass."""
    if call.verdict is Verdict.ERROR:
        return "error" if call.broke else "failure"
    return "" if call.verdict is Verdict.PASS else "skipped"


def _attribute(text: str) -> str:
    return quoteattr(_legal(text))


def _legal(text: str) -> str:
    r"""Return a text with what XML cannot hold as `\uXXXX`."""
    return _ILLEGAL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def call_seconds(timeline: Path) -> dict[str, float]:
    """Return how long each call took on all workers together, by its name, as the timeline says.

    {} for no timeline. Lines that are torn or something else are left out.
    """
    found: dict[str, float] = {}
    try:
        with timeline.open("rb") as file:
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
