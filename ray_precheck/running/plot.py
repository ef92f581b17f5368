"""A `View` on the screen: `--plot`.

Comes in: a `View`. Goes out: the error histogram of its first suspect, the flow around the first difference,
and how the set of suspects of a bisect shrank, drawn with rich. Called by the commands that have `--plot`,
which ask `require_rich` before their run begins, so that a run of hours does not end with a package that is
missing.

Colors only repeat what words say: a screen may have none.
"""

import math
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

import numpy as np
from numpy.typing import NDArray

from ray_precheck.errors import UsageError
from ray_precheck.foreign import printable
from ray_precheck.schema.view import FlowGraph, Histogram, StepChart, Tone, View

if TYPE_CHECKING:
    from rich.console import RenderableType

_HOPS = 3
# The flow is to be seen at a glance: about a screen of calls.
_MOST_CALLS = 24
_MOST_BINS = 20
_MOST_STEPS = 50
_BAR_CELLS = 30
_LONGEST_NAME = 120
_TONES = tuple(Tone)
_STYLES = {
    Tone.PASS: "green",
    Tone.WARNING: "yellow",
    Tone.ERROR: "red",
    Tone.SKIP: "blue",
    Tone.UNMATCHED: "magenta",
    Tone.PLAIN: "",
}


def require_rich() -> None:
    """Require the package that draws.

    Raises:
        UsageError: it is not installed; says how to install it.
    """
    if find_spec("rich") is None:
        raise UsageError("--plot draws with the package rich, which is missing: pip install rich")


def draw_view(view: View, screen: TextIO | None = None) -> None:
    """Draw the histogram of the first card that has one, the flow around the first start of the first
    `FlowGraph`, and each `StepChart`, on `screen` (None: the standard output). Says so where there is none of
    them."""
    from rich.console import Console
    from rich.text import Text

    parts: list[RenderableType] = []
    for card in view.cards:
        if card.histogram is not None:
            parts += [Text(f"\n{_shown(card.name)}"), *_histogram(card.histogram)]
            break
    graphs = (chart for chart in (*view.model, *view.overview) if isinstance(chart, FlowGraph))
    graph = next((each for each in graphs if each.starts), None)
    if graph is not None:
        parts += ["", _flow(graph)]
    for chart in view.overview:
        if isinstance(chart, StepChart) and chart.steps:
            parts += ["", _steps(chart)]
    if not parts:
        parts.append(
            "\n--plot: there is nothing to draw, as no suspect has an error histogram or a flow."
        )
    console = Console(file=screen or sys.stdout, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)


def _histogram(found: Histogram) -> "list[RenderableType]":
    """Return the title and the bars; bins that are empty at the ends are left out, and neighbors are put
    together where there are too many."""
    from rich.table import Table
    from rich.text import Text

    title = f"{_shown(found.title)}, in {_shown(found.unit)}"
    filled = [place for place, count in enumerate(found.counts) if count]
    if not filled:
        return [Text(f"{title}: no element has an error that can be shown")]
    first, last = filled[0], filled[-1] + 1
    step = math.ceil((last - first) / _MOST_BINS)
    bins = [
        (
            found.edges[begin],
            found.edges[min(begin + step, last)],
            sum(found.counts[begin : begin + step]),
        )
        for begin in range(first, last, step)
    ]
    most = max(count for _, _, count in bins)
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 1))
    table.add_column("error", justify="right", no_wrap=True)
    table.add_column("elements", justify="right", no_wrap=True)
    table.add_column("")
    for low, high, count in bins:
        is_beyond = low >= found.limit
        # A single element beyond the limit is what matters: it has a cell, too.
        bar = "█" * math.ceil(count / most * _BAR_CELLS)
        said = f"{bar} beyond the limit" if is_beyond and count else bar
        table.add_row(
            f"{low:.3g} to {high:.3g}", f"{count:,}", Text(said, "red" if is_beyond else "green")
        )
    return [table]


def _flow(graph: FlowGraph) -> "RenderableType":
    """Return a table of the calls around the first start, in the order of the run."""
    from rich.table import Table
    from rich.text import Text

    start = graph.starts[0]
    shown = _around(graph, start)
    title = f"{_shown(graph.title)}, {_HOPS} steps around {_shown(graph.names[start])}"
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 1))
    table.add_column("")
    table.add_column("call", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for heading in ("own error", "inherited"):
        table.add_column(Text(f"{heading} ({_shown(graph.unit)})"), justify="right")
    table.add_column("its inputs come from", overflow="fold")
    places = set(shown.tolist())
    for place in shown.tolist():
        tone = _TONES[graph.tones[place]]
        sources = graph.edges[graph.edges[:, 1] == place, 0].tolist() if len(graph.edges) else []
        names = [_shown(graph.names[each]) for each in sources if each in places]
        others = len(sources) - len(names)
        names += [f"{others} more"] if others else []
        own, inherited = float(graph.own[place]), float(graph.inherited[place])
        table.add_row(
            ">" if place == start else "",
            _shown(graph.names[place]),
            Text(_said(tone, own, inherited), _STYLES[tone]),
            Text(_number(own), "red" if tone is Tone.ERROR and own > 0 else ""),
            Text(_number(inherited), "yellow" if inherited > 0 else ""),
            Text(", ".join(names)),
        )
    return table


def _steps(chart: StepChart) -> "RenderableType":
    """Return a bar for each step; of more than a screen of them every second, third, ... and the last."""
    from rich.table import Table
    from rich.text import Text

    every = math.ceil(len(chart.steps) / _MOST_STEPS)
    title = f"{_shown(chart.title)}, in {_shown(chart.unit)}"
    if every > 1:
        title += f" (one of {every} of {len(chart.steps)} steps)"
    most = max(step.value for step in chart.steps) or 1.0
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 1))
    table.add_column("step", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    table.add_column("")
    for place, step in enumerate(chart.steps):
        if place % every and place + 1 < len(chart.steps):
            continue
        bar = "█" * math.ceil(step.value / most * _BAR_CELLS)
        style = _STYLES[step.tone]
        table.add_row(
            _shown(step.name), Text(step.tone.value, style), f"{step.value:g}", Text(bar, style)
        )
    return table


def _around(graph: FlowGraph, start: int) -> NDArray[np.int64]:
    """Return the indices of the calls at most three steps from the start, the nearest where there are too
    many, in their order."""
    near = np.array([start], np.int64)
    newest = near
    for _ in range(_HOPS):
        if not len(graph.edges) or len(near) >= _MOST_CALLS:
            break
        is_newest = np.zeros(len(graph.names), np.bool_)
        is_newest[newest] = True
        begins, ends = graph.edges[:, 0], graph.edges[:, 1]
        reached = np.concatenate((ends[is_newest[begins]], begins[is_newest[ends]]))
        newest = np.setdiff1d(reached, near)
        # Of the calls at the same distance those next to the start in the run.
        newest = newest[np.argsort(np.abs(newest - start), kind="stable")]
        near = np.concatenate((near, newest))[:_MOST_CALLS]
    return np.sort(near)


def _said(tone: Tone, own: float, inherited: float) -> str:
    """Return the verdict in words, of an error whether it is the call's own."""
    if tone not in (Tone.ERROR, Tone.WARNING) or (math.isnan(own) and math.isnan(inherited)):
        return tone.value
    is_own = math.isnan(inherited) or own >= inherited
    return f"{tone.value}, its own" if is_own else f"{tone.value}, inherited"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _shown(text: str) -> str:
    cut = f"{text[: _LONGEST_NAME - 3]}..." if len(text) > _LONGEST_NAME else text
    return printable(cut)
