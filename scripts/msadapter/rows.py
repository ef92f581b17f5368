"""The table of the releases, as Markdown, and what does not work with each.

Comes in: what was found with each release. Goes out: text. Called by `main`.
"""

from collections.abc import Iterator, Mapping, Sequence

from scripts.matrix.trial import Verdict
from scripts.msadapter.trial import STANDARDS, Trialled, right_blame

_HEAD = (
    "| release | MindSpore | Python | imports | tested | calls captured "
    "| `msprobe`: pass, error, SKIP | `auto`: pass, error, SKIP | planted fault |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def adapter_table(found: Sequence[Trialled]) -> str:
    """Return a row for each release, and below them what is no pass, by release."""
    lines = [_HEAD, *map(_row_of, found), ""]
    for trialled in found:
        lines += [f"- {line}" for line in _troubles(trialled)]
    return "\n".join(lines) + "\n"


def _row_of(trialled: Trialled) -> str:
    adapter = trialled.adapter
    mindspore = next(each for each in adapter.host if each.startswith("mindspore"))
    cells = [adapter.requirement.replace("==", " "), mindspore.replace("==", " "), adapter.python]
    captured = trialled.captured
    if captured is None:
        return f"| {' | '.join([*cells, 'no', '', '', '', '', ''])} |"
    cells += [f"yes{', with registrations put back' if adapter.lost else ''}"]
    cells += ["the device" if adapter.runs else "captured results", str(captured.calls)]
    cells += [counted(trialled.checked.get(standard, {})) for standard in STANDARDS]
    return f"| {' | '.join([*cells, _fault(trialled)])} |"


def counted(verdicts: Mapping[str, Verdict]) -> str:
    """Return the calls that pass, are an error, are SKIP, as "1, 2, 3"; "" for none at all."""
    kinds = [_kind(verdict) for verdict in verdicts.values()]
    return ", ".join(str(kinds.count(kind)) for kind in ("pass", "error", "SKIP")) if kinds else ""


def _kind(verdict: Verdict) -> str:
    """Return the verdict of a whole call."""
    for kind in ("error", "SKIP"):
        if kind in verdict[:2]:
            return kind
    return "pass"


def _fault(trialled: Trialled) -> str:
    if trialled.failure:
        return "not tried"
    names = ", ".join(trialled.blamed)
    return f"blamed: {names}" if right_blame(trialled.blamed) else f"MISSED: {names or 'nothing'}"


def _troubles(trialled: Trialled) -> Iterator[str]:
    name = trialled.adapter.name
    if trialled.failure:
        yield f"{name}: {trialled.failure}"
    failed = trialled.captured.failed if trialled.captured else {}
    for call, reason in failed.items():
        yield f"{name}: {call} raised while it was captured: {reason}"
    for standard, verdicts in trialled.checked.items():
        for call, verdict in verdicts.items():
            if _kind(verdict) != "pass":
                yield f"{name}, {standard}: {call}: {verdict[2]}"
