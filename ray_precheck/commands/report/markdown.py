"""The page of a report as Markdown, for a pull request or an issue.

Comes in: views. Goes out: lines of GitHub's Markdown. Called by the command. Texts of a dump are escaped, so
that a name is never a heading, a mention, a link or HTML.
"""

import math
import re
from collections.abc import Iterator, Sequence

from ray_precheck.schema.view import Bar, Card, NotCompared, Tone, View, ViewState

MARK = "<!-- ray_precheck report -->"
_SIGNS = {
    Tone.PASS: "✅",
    Tone.WARNING: "⚠️",
    Tone.ERROR: "❌",
    Tone.SKIP: "⏭️",
    Tone.UNMATCHED: "≠",
    Tone.PLAIN: "·",
}
_LONGEST = 500
_REASONS = 10
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")


def markdown_lines(views: Sequence[View]) -> Iterator[str]:
    """Yield the lines of a page."""
    yield MARK
    for view in views:
        yield from _view_lines(view)


def _view_lines(view: View) -> Iterator[str]:
    yield f"## {_SIGNS[view.tone]} `{view.command}`: {_text(view.sentence)}"
    yield ""
    if view.title:
        yield f"*{_text(view.title)}*"
        yield ""
    if view.state is not ViewState.FINISHED:
        said = "still goes on" if view.state is ViewState.RUNNING else "stopped before its end"
        yield f"**The run {said}.**"
        yield ""
    if view.counts:
        yield ", ".join(f"{count.number:,} {_text(count.name)}" for count in view.counts)
        yield ""
    for note in view.notes:
        yield f"> {_text(note)}"
        yield ""
    for number, card in enumerate(view.cards, 1):
        yield from _card_lines(number, card)
    if view.more_cards:
        yield f"and {view.more_cards:,} more suspects"
        yield ""
    if view.advice:
        yield "### What to do next"
        yield ""
        for advice in view.advice:
            yield f"- {_text(advice.sentence)}"
            yield from _fenced(advice.commands, "  ")
        yield ""
    yield from _reason_lines(view.reasons)
    yield "<details><summary>device, versions, settings, files</summary>"
    yield ""
    yield from (f"- {_text(fact.name)}: {_text(fact.value)}" for fact in view.facts)
    if view.invocation:
        yield from _fenced((view.invocation,), "")
    yield from (f"- {_code(file)}" for file in view.files)
    yield ""
    yield "</details>"
    yield ""


def _card_lines(number: int, card: Card) -> Iterator[str]:
    label = f" ({_text(card.label)})" if card.label else ""
    beyond = "" if math.isnan(card.times) else f", {card.times:.3g} {_text(card.unit)}"
    yield f"### {number}. {_code(card.name)}{label}{beyond}"
    yield ""
    yield _text(card.why)
    yield ""
    if card.cause:
        yield f"- Likely cause: {_text(card.cause)}"
    if card.module:
        yield f"- In {_code(card.module)}"
    if card.source:
        yield f"- At {_code(card.source)}"
    yield from (f"- {_text(fact.name)}: {_text(fact.value)}" for fact in card.inputs[:5])
    yield ""
    if card.bars:
        yield "| metric | value | limit |"
        yield "|---|---|---|"
        yield from (f"| {_text(bar.name)} | {bar.value:.6g} | {_limit(bar)} |" for bar in card.bars)
        yield ""
    if card.code:
        yield from _fenced([f"{line.number:5} {line.text}" for line in card.code], "", "text")
        yield ""
    if card.reproduce:
        yield from _fenced((card.reproduce,), "")
        yield ""


def _limit(bar: Bar) -> str:
    return "-" if math.isnan(bar.limit) else f"{'≥' if bar.is_least else '≤'} {bar.limit:.6g}"


def _reason_lines(reasons: Sequence[NotCompared]) -> Iterator[str]:
    if not reasons:
        return
    yield "### What was not compared"
    yield ""
    yield from (f"- {reason.count:,}: {_text(reason.text)}" for reason in reasons[:_REASONS])
    if len(reasons) > _REASONS:
        yield f"- and {len(reasons) - _REASONS} more reasons"
    yield ""


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _text(text: str) -> str:
    """Return a text as Markdown shows it, letter by letter."""
    escaped = _SPECIAL.sub(r"\\\1", _cut(text)).replace("&", "&amp;").replace("<", "&lt;")
    # GitHub takes @name for a person and #1 for an issue.
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//")


def _code(text: str) -> str:
    line = _cut(text)
    ticks = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _fenced(lines: Sequence[str], indent: str, language: str = "sh") -> Iterator[str]:
    if not lines:
        return
    shown = [r"\n".join(line[:_LONGEST].splitlines()) for line in lines]
    most = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, most + 1)
    yield f"{indent}{fence}{language}"
    yield from (f"{indent}{line}" for line in shown)
    yield f"{indent}{fence}"
