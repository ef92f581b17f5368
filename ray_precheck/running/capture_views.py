"""What the `View`s of commands that compare captures share: the flow of calls, and where two tensors differ.

Comes in: captures that a finished run has read, as far as they are still on this machine, and numbers of its
tables. Goes out: charts, facts of values, and sentences about what could not be shown. Called by the views of
`compare` and `locate`. Nothing is kept of the tensors but what is drawn.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ray_precheck.errors import DumpError
from ray_precheck.foreign import first_line, open_file
from ray_precheck.running.recorded import value_text
from ray_precheck.running.views import FoundRun
from ray_precheck.schema.view import (
    Fact,
    FlowGraph,
    HeatMap,
    Integers,
    NotCompared,
    Tone,
)
from ray_precheck.trace.flow import Content, FlowRecord, flow_of
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide, call_entries, open_side, without_collector
from ray_precheck.trace.sources import Modules

# What a screen shows of a heat map; the worst rows stay.
_MOST_ROWS, _MOST_COLUMNS = 60, 64
# A heat map has no infinities: they are none of JSON.
_BEYOND = 1e9
MOST_VALUES = 24
_DIRECTION = re.compile(r"\.(?:forward|backward)(?:\.\d+)?$")
_MODULE_PREFIX = re.compile(r"^(?:Module|Cell)\.")
_TONE_NUMBERS = {tone: number for number, tone in enumerate(Tone)}


def row_link(found: FoundRun, name: str) -> str:
    """Return what names a row of a run among those of several: `step0/rank1/Mint.add.0.forward`."""
    return f"{found.label}/{name}" if found.label else name


def step_of(found: FoundRun) -> str:
    """Return the step in the label of a run, "" where it has none."""
    first = found.label.partition("/")[0]
    return first if first.startswith("step") else ""


def number_in_name(text: str) -> int:
    """Return the digits of a name of a step or rank as a number, 0 where it has none."""
    digits = "".join(character for character in text if character.isdecimal())
    return int(digits) if digits.isascii() and 0 < len(digits) < 19 else 0


def module_name(key: str) -> str:
    """Return the name of a module from the key of its record: `layers.0.Linear` of
    `Module.layers.0.Linear.backward.1`, so that all of its calls have one."""
    return _MODULE_PREFIX.sub("", _DIRECTION.sub("", key))


def parents_of(keys: Iterable[str], folder: Path | None) -> dict[str, str]:
    """Return the module around each module by their names, as construct.json has it for the records of `keys`
    and what is around them."""
    modules = Modules(folder)
    found: dict[str, str] = {}
    for key in keys:
        while key and (name := module_name(key)) not in found:
            key = modules.of(key)
            found[name] = module_name(key) if key else ""
    return found


@dataclass(frozen=True, slots=True)
class MapCell:
    """A value for a heat map, and the row of a table that it opens."""

    row: str
    column: str
    value: float
    link: str


def worst_map(
    title: str, unit: str, cells: Iterable[MapCell], limit: float, titles: tuple[str, str]
) -> HeatMap | None:
    """Return the largest value of each row and column, None where there is none. The rows with the largest
    ones come first; where there are more than 60 of them, the title says so. `titles` are those of rows and
    columns. Columns stay in the order in which they come."""
    worst: dict[tuple[str, str], MapCell] = {}
    columns: dict[str, int] = {}
    of_row: dict[str, float] = {}
    for cell in cells:
        if math.isnan(cell.value):
            continue
        columns.setdefault(cell.column, len(columns))
        of_row[cell.row] = max(cell.value, of_row.get(cell.row, -math.inf))
        known = worst.get((cell.row, cell.column))
        if known is None or cell.value > known.value:
            worst[cell.row, cell.column] = cell
    if not worst:
        return None
    rows = sorted(of_row, key=lambda row: -of_row[row])[:_MOST_ROWS]
    if len(of_row) > len(rows):
        title += f" (the {len(rows)} worst of {len(of_row):,} {titles[0]}s)"
    shown = _shown_columns(columns, worst)
    if len(columns) > len(shown):
        title += f" (the {len(shown)} worst of {len(columns):,} {titles[1]}s)"
    values = np.full((len(rows), len(shown)), np.nan)
    links = {}
    for r, row in enumerate(rows):
        for c, column in enumerate(shown):
            found = worst.get((row, column))
            if found is not None:
                values[r, c], links[r, c] = min(found.value, _BEYOND), found.link
    if (values == _BEYOND).any():
        title += f"; {_BEYOND:g} stands for what no number shows, such as NaN or another shape"
    return HeatMap(title, unit, tuple(rows), tuple(shown), values, links, limit, *titles)


def _shown_columns(
    columns: Mapping[str, int], worst: Mapping[tuple[str, str], MapCell]
) -> list[str]:
    if len(columns) <= _MOST_COLUMNS:
        return list(columns)
    of_column: dict[str, float] = {}
    for (_, column), cell in worst.items():
        of_column[column] = max(cell.value, of_column.get(column, -math.inf))
    kept = sorted(of_column, key=lambda column: -of_column[column])[:_MOST_COLUMNS]
    return sorted(kept, key=columns.__getitem__)


@dataclass(frozen=True, slots=True)
class OpenedPair:
    """Both captures of a run, None for one that is not there, and sentences about those."""

    target: CaptureSide | None = None
    golden: CaptureSide | None = None
    missing: tuple[str, ...] = ()


def opened_pair(target: str, golden: str, held: ExitStack) -> OpenedPair:
    """Open the captures at two paths, as a run has noted them, "" for none; `held` closes them."""
    sides: list[CaptureSide | None] = []
    missing = []
    for what, path in (("target", target), ("golden run", golden)):
        side = None
        if path:
            try:
                side = held.enter_context(open_side(path))
            except DumpError as error:
                missing.append(
                    f"the {what} {path} cannot be read on this machine ({first_line(error)}), so that its"
                    " values, its tensors and its part of the flow are not shown"
                )
        sides.append(side)
    return OpenedPair(sides[0], sides[1], tuple(missing))


def unseen_reason(side: CaptureSide | None, what: str) -> tuple[NotCompared, ...]:
    """Return what a capture says of places of the step that it did not see."""
    if side is None or side.header.unseen.total <= 0:
        return ()
    unseen = side.header.unseen
    return (NotCompared(f"places that the {what} did not see", unseen.total, unseen.places[:20]),)


def stated_values(ours: Sequence[Item], theirs: Sequence[Item]) -> tuple[Fact, ...]:
    """Return the values of a record on both sides by their paths, at most 24; a golden one that says the same
    is not said twice. `theirs` is empty where there is no golden record."""
    others = {item.path: item for item in theirs}
    facts = []
    for item in ours[:MOST_VALUES]:
        said = value_text(item)
        if theirs:
            other = others.get(item.path)
            said = beside_golden(said, "not there" if other is None else value_text(other))
        facts.append(Fact(item.path, said))
    if len(ours) > MOST_VALUES:
        facts.append(Fact("...", f"and {len(ours) - MOST_VALUES} more values"))
    return tuple(facts)


def beside_golden(said: str, golden: str) -> str:
    """Return what is said of a value of the target, with what is said of the golden one."""
    return (
        f"{said}; the golden run has the same"
        if said == golden
        else f"{said}; the golden run: {golden}"
    )


@dataclass(slots=True)
class FlowNode:
    """A call of a flow graph before it is drawn: its errors in the unit of the graph, NaN where unknown, and
    the row that it opens, "" for none."""

    tone: Tone = Tone.PASS
    own: float = math.nan
    inherited: float = math.nan
    text: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class GoldenCalls:
    """Calls of the golden run that a graph of the target shows, too: `records` by key, with the tone and a
    sentence. `pairs` are keys of the target's calls, each with one of the golden run that stands for it."""

    records: Mapping[str, FlowNode] = field(default_factory=dict)
    pairs: Sequence[tuple[str, str]] = ()


GOLDEN_CALL = "golden: "


def flow_graph(
    title: str,
    unit: str,
    side: CaptureSide,
    node_of: Callable[[str], FlowNode],
    starts: Iterable[str],
    *,
    content: Content | None = None,
    see: Callable[[FlowRecord], None] | None = None,
    pairs: Iterable[tuple[str, str]] = (),
    golden: GoldenCalls | None = None,
    golden_side: CaptureSide | None = None,
) -> FlowGraph:
    """Return the calls of a capture in the order of the run, and which call gave what another one gets.

    `node_of` tells of the record of a key, `starts` are the keys at which the graph opens, `pairs` those of
    calls of the target that stand for each other. `content` is that of `flow_of`; `see` is shown each record,
    before `node_of` is asked. Records are read one after
    the other: memory holds names, edges and who gave each value.
    """
    with without_collector():
        names, edges = _flow_of(side, content, see)
    place = {name: at for at, name in enumerate(names)}
    nodes = [node_of(name) for name in names]
    linked = [(place[one], place[two]) for one, two in pairs if one in place and two in place]
    all_edges = [edges]
    if golden is not None and golden.records:
        there = {key: len(names) + at for at, key in enumerate(golden.records)}
        linked += [
            (place[one], there[two]) for one, two in golden.pairs if one in place and two in there
        ]
        nodes += golden.records.values()
        names += [f"{GOLDEN_CALL}{key}" for key in golden.records]
        if golden_side is not None:
            all_edges.append(_edges_between(golden_side, there))
    return FlowGraph(
        title,
        unit,
        tuple(names),
        np.array([_TONE_NUMBERS[node.tone] for node in nodes], np.uint8),
        np.array([node.own for node in nodes], np.float64),
        np.array([node.inherited for node in nodes], np.float64),
        np.concatenate(all_edges),
        np.array(linked, np.int64).reshape(-1, 2),
        tuple(place[key] for key in starts if key in place),
        tuple(node.text for node in nodes),
        tuple(node.link for node in nodes) if any(node.link for node in nodes) else (),
    )


def graph_of_links(
    title: str,
    unit: str,
    links: Sequence[tuple[str, str]],
    node_of: Callable[[str], FlowNode],
    starts: Sequence[str],
) -> FlowGraph:
    """Return the graph of links between records that a journal has; `starts` are among them."""
    names = list(dict.fromkeys(key for link in links for key in link))
    place = {name: at for at, name in enumerate(names)}
    nodes = [node_of(name) for name in names]
    return FlowGraph(
        title,
        unit,
        tuple(names),
        np.array([_TONE_NUMBERS[node.tone] for node in nodes], np.uint8),
        np.array([node.own for node in nodes], np.float64),
        np.array([node.inherited for node in nodes], np.float64),
        np.array([(place[one], place[two]) for one, two in links], np.int64).reshape(-1, 2),
        np.empty((0, 2), np.int64),
        tuple(place[key] for key in starts),
        tuple(node.text for node in nodes),
        tuple(node.link for node in nodes) if any(node.link for node in nodes) else (),
    )


def _flow_of(
    side: CaptureSide,
    content: Content | None = None,
    see: Callable[[FlowRecord], None] | None = None,
) -> tuple[list[str], Integers]:
    """Return the keys of the records of calls, and the edges between them."""
    entries = call_entries(side)
    names = [entry.key for entry in entries]
    place = {name: at for at, name in enumerate(names)}

    def records() -> Iterator[FlowRecord]:
        for entry in entries:
            record = FlowRecord(entry, side.items(entry))
            if see is not None:
                see(record)
            yield record

    flow = flow_of(records(), content)
    count = max(1, len(names))
    codes = np.fromiter(
        (found.place * count + place[key] for (key, _), found in flow.producers.items()),
        np.int64,
        len(flow.producers),
    )
    codes = np.unique(codes)
    return names, np.stack((codes // count, codes % count), axis=1)


def _edges_between(side: CaptureSide, there: Mapping[str, int]) -> Integers:
    """Return the edges between some records of a capture, as their places in a graph."""
    with without_collector():
        names, edges = _flow_of(side)
    places = np.array([there.get(name, -1) for name in names], np.int64)
    found: Integers = places[edges]
    kept: Integers = found[(found >= 0).all(axis=1)]
    return kept


def torn_note(path: Path) -> str:
    """Return a sentence about a table that ends in the middle of a row or is gone; "" for a whole one."""
    try:
        with open_file(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 1))
            last = file.read(1)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}): what it says is missing here"
    if size and last != b"\n":
        return f"{path} ends in the middle of a row: the whole rows before are shown"
    return f"{path} is empty" if not size else ""
