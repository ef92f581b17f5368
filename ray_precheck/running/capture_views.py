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

from ray_precheck.dump.mapped import MappedTensor, MappedTensors
from ray_precheck.errors import DumpError, NotCheckable
from ray_precheck.foreign import caught, first_line
from ray_precheck.numerics.arrays import CHUNK_ELEMENTS
from ray_precheck.running.recorded import value_text
from ray_precheck.running.views import FoundRun
from ray_precheck.schema.dtypes import Array
from ray_precheck.schema.view import (
    BlockMaxima,
    Fact,
    Floats,
    FlowGraph,
    HeatMap,
    Histogram,
    Integers,
    NotCompared,
    Tone,
)
from ray_precheck.trace.difference.measuring import open_item
from ray_precheck.trace.flow import Content, FlowRecord, flow_of
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide, call_entries, open_side, without_collector

# What a screen shows of a heat map; the worst rows stay.
_MOST_ROWS, _MOST_COLUMNS = 60, 64
# Elements of all tensors of a view that are read for histograms: two passes take about 4 s on one core.
_MOST_ELEMENTS = 1 << 27
_MOST_BLOCKS = 16
# A heat map has no infinities: they are none of JSON.
_BEYOND = 1e9
# Half decades from 1e-12, below which float64 sums have no digits, to 1e6.
_FIRST_DECADE, _LAST_DECADE, _BINS_OF_DECADE = -12, 6, 2
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
        title += f"; {_BEYOND:g} stands for what no number shows: NaN, infinities, other shapes or dtypes"
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
    for what, path in (("target", target), ("golden capture", golden)):
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
        f"{said}; the golden side says the same" if said == golden else f"{said}; golden: {golden}"
    )


@dataclass(slots=True)
class TensorBudget:
    """How many elements of tensors may still be read for a view."""

    left: int = _MOST_ELEMENTS


@dataclass(frozen=True, slots=True)
class ShownDifference:
    """Where two tensors differ, or why that is not shown."""

    histogram: Histogram | None = None
    blocks: BlockMaxima | None = None
    missing: str = ""


def shown_difference(
    pair: OpenedPair, items: tuple[Item, Item], budget: TensorBudget, limit: float = math.nan
) -> ShownDifference:
    """Return how the elements of two captured tensors differ, in units of the root mean square of the golden
    one: the root mean square of what is drawn is the relative L2 distance, of which `limit` is the limit."""
    path = items[0].path
    if not any(item.file for item in items):
        return ShownDifference(
            missing=f"the captures have no files of tensors: where in {path} they differ is not known"
        )
    opened: list[MappedTensor] = []
    for what, side, item in zip(
        ("target", "golden side"), (pair.target, pair.golden), items, strict=True
    ):
        if side is None or not item.file:
            return ShownDifference(missing=f"the {what} has no file of {item.path} on this machine")
        tensors = MappedTensors(side.data_folder)
        try:
            opened.append(open_item(item, tensors))
        except NotCheckable as reason:
            return ShownDifference(missing=f"{item.path} of the {what} cannot be read: {reason}")
    return difference_of_tensors(items[0].path, opened[0], opened[1], budget, limit=limit)


def difference_of_tensors(
    path: str,
    ours: MappedTensor,
    theirs: MappedTensor,
    budget: TensorBudget,
    *,
    limit: float = math.nan,
    names: tuple[str, str] = ("target", "golden"),
) -> ShownDifference:
    """Return how the elements of two tensors with these `names` differ, in units of the root mean square of
    the second one."""
    if ours.shape != theirs.shape:
        return ShownDifference(missing=f"{path} has other shapes on both sides")
    size = math.prod(ours.shape)
    if size > budget.left:
        return ShownDifference(
            missing=f"{path} has {size:,} elements, more than are read to be drawn"
        )
    budget.left -= size
    if not size:
        return ShownDifference()
    charts, error = caught(lambda: _charts_of(path, ours, theirs, limit, names))
    if charts is None:
        return ShownDifference(
            missing=f"{path} cannot be drawn: {first_line(error or ValueError())}"
        )
    return ShownDifference(*charts)


def _charts_of(
    path: str, ours: MappedTensor, theirs: MappedTensor, limit: float, names: tuple[str, str]
) -> tuple[Histogram, BlockMaxima]:
    scale = _root_mean_square(theirs) or 1.0
    shape = ours.shape
    columns = shape[-1] if shape else 1
    rows = math.prod(shape) // columns
    row_blocks, column_blocks = min(_MOST_BLOCKS, rows), min(_MOST_BLOCKS, columns)
    row_edges = [rows * block // row_blocks for block in range(row_blocks + 1)]
    starts = np.array([columns * block // column_blocks for block in range(column_blocks)])
    values = np.full((row_blocks, column_blocks), np.nan)
    bins = (_LAST_DECADE - _FIRST_DECADE) * _BINS_OF_DECADE
    counts = np.zeros(bins + 2, np.int64)
    for block in range(row_blocks):
        most = np.full(columns, np.nan)
        for piece, column in _pieces_of_rows(row_edges[block], row_edges[block + 1], columns):
            apart = _distances(ours, theirs, piece) / scale
            counts += _counted(apart, bins)
            largest = apart.reshape(-1, min(columns, len(apart))).max(axis=0)
            here = slice(column, column + len(largest))
            most[here] = np.fmax(most[here], largest)
        values[block] = np.fmax.reduceat(most, starts)
    edges = [10.0 ** (_FIRST_DECADE + place / _BINS_OF_DECADE) for place in range(bins + 1)]
    same, infinite = int(counts[0]), int(counts[-1])
    said = [f"{same:,} of {math.prod(shape):,} elements are equal or below {edges[0]:g}"]
    if infinite:
        said.append(f"{infinite:,} beyond {edges[-1]:g}, NaN or infinite on one side")
    unit = f"|{names[0]} - {names[1]}| by the root mean square of {names[1]}"
    return (
        Histogram(
            f"{path}: {', '.join(said)}", unit, tuple(edges), tuple(counts[1:-1].tolist()), limit
        ),
        BlockMaxima(f"{path}: largest difference by place", unit, shape, values),
    )


def _pieces_of_rows(first: int, last: int, columns: int) -> Iterator[tuple[slice, int]]:
    """Yield the places of the elements of rows in pieces, with their first column: of whole rows, or of one
    row where that is long."""
    step = max(1, CHUNK_ELEMENTS // columns)
    for row in range(first, last, step):
        begin, end = row * columns, min(row + step, last) * columns
        if step > 1:
            yield slice(begin, end), 0
            continue
        for start in range(begin, end, CHUNK_ELEMENTS):
            yield slice(start, min(start + CHUNK_ELEMENTS, end)), start - begin


def _distances(ours: MappedTensor, theirs: MappedTensor, piece: slice) -> Floats:
    """Return |target - golden|; infinite where only one is finite, or both are infinite and differ."""
    one, other = (_wide(side.carrier(side.raw[piece])) for side in (ours, theirs))
    with np.errstate(all="ignore"):
        apart: Floats = np.abs(one - other).astype(np.float64, copy=False)
        same = (one == other) | ((one != one) & (other != other))
    apart[same] = 0.0
    apart[np.isnan(apart)] = np.inf
    return apart


def _wide(some: Array) -> Array:
    """Return float64, or complex128."""
    return some.astype(np.complex128 if some.dtype.kind == "c" else np.float64, copy=False)


def _counted(apart: Floats, bins: int) -> Integers:
    """Return how many elements are below the first bin, in each bin, and above the last."""
    with np.errstate(divide="ignore"):
        decades = (np.log10(apart) - _FIRST_DECADE) * _BINS_OF_DECADE
    places = np.clip(np.floor(decades), -1, bins).astype(np.int64) + 1
    return np.bincount(places, minlength=bins + 2)


def _root_mean_square(tensor: MappedTensor) -> float:
    squares = 0.0
    for start in range(0, tensor.raw.size, CHUNK_ELEMENTS):
        some = np.abs(_wide(tensor.carrier(tensor.raw[start : start + CHUNK_ELEMENTS])))
        some = some[np.isfinite(some)]
        with np.errstate(over="ignore"):
            squares += float(np.dot(some, some))
    found = math.sqrt(squares / max(1, tensor.raw.size))
    return found if math.isfinite(found) else 1.0


@dataclass(slots=True)
class FlowNode:
    """A call of a flow graph before it is drawn: its errors in the unit of the graph, NaN where unknown."""

    tone: Tone = Tone.PASS
    own: float = math.nan
    inherited: float = math.nan
    text: str = ""


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
    )


def graph_of_links(
    title: str,
    unit: str,
    links: Sequence[tuple[str, str]],
    node_of: Callable[[str], FlowNode],
    starts: Sequence[str],
) -> FlowGraph | None:
    """Return the graph of links between records that a journal has, None where there are neither links nor
    starts."""
    names = list(dict.fromkeys([*(key for link in links for key in link), *starts]))
    if not names:
        return None
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
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 1))
            last = file.read(1)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}): what it says is missing here"
    if size and last != b"\n":
        return f"{path} ends in the middle of a row: the whole rows before are shown"
    return f"{path} is empty" if not size else ""
