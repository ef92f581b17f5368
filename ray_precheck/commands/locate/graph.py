"""The modules and the flow of calls of a search for the operator to blame, as charts.

Comes in: the rows of the table and the journals (`reading`), and the capture that has the first suspect;
where that is gone, the links between records that a journal has. Goes out: charts. Called by `report`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ray_precheck.commands.locate.cards import UNIT, OpenedDump
from ray_precheck.commands.locate.plan import MeasuredEvidence
from ray_precheck.commands.locate.reading import (
    LocatedRow,
    LocatedRun,
    measured_in,
)
from ray_precheck.commands.locate.search import MOST_LINKED, DumpToLocate
from ray_precheck.running.capture_views import (
    FlowNode,
    GoldenCalls,
    flow_graph,
    graph_of_links,
    module_name,
    parents_of,
    row_link,
)
from ray_precheck.running.views import (
    JudgedCall,
    module_tree,
)
from ray_precheck.schema.view import (
    Chart,
    Tone,
)
from ray_precheck.trace.flow import FlowRecord
from ray_precheck.trace.side import CaptureSide, call_entries


@dataclass(slots=True)
class ShownRecords:
    """What is known of the records of the dump that has a graph: the dtype of the first output of each."""

    dtypes: dict[str, str] = field(default_factory=dict)

    def see(self, record: FlowRecord) -> None:
        """Take note of a record."""
        found = next((item.dtype for item in record.outputs if item.dtype), "")
        if found:
            self.dtypes[record.entry.key] = found.rpartition(".")[2]


def charts_of_model(run: LocatedRun, first: OpenedDump, shown: ShownRecords) -> Iterator[Chart]:
    """Yield the tree of modules, and the graph of the dump of the first suspect, as far as there are any."""
    dump, target = first.dump, first.pair.target
    folder = target.folder if target is not None else None
    judged = [
        JudgedCall(module_name(row.module), row.tone, row_link(run.found, row.link), times=row.own)
        for row in run.rows
        if row.module
    ]
    nodes, starts = _nodes(run, dump)
    keys = {row.module for row in run.rows if row.module}
    if target is not None:
        # Calls without a row are in modules, too.
        for entry in call_entries(target):
            if entry.key not in nodes and (module := target.modules.get(entry.key, "")):
                judged.append(JudgedCall(module_name(module), Tone.PASS))
                keys.add(module)
    tree = module_tree("Modules", judged, parents_of(keys, folder))
    if tree is not None:
        yield tree
    if target is not None:
        yield _whole_graph(run, first, target, shown, nodes, starts)
        return
    links, label = _links(run)
    if links:
        linked = {key for link in links for key in link}
        unknown = FlowNode(Tone.PLAIN, text="it has no row")
        yield graph_of_links(
            f"Affected records of {label}, and what flows between them",
            UNIT,
            links,
            lambda key: nodes.get(key, unknown),
            [key for row in starts for key in row.keys if key in linked],
        )


def _whole_graph(
    run: LocatedRun,
    first: OpenedDump,
    target: CaptureSide,
    shown: ShownRecords,
    nodes: Mapping[str, FlowNode],
    starts: Sequence[LocatedRow],
) -> Chart:
    """Return the graph of all calls of a capture, with the golden ones that one of them has fused."""
    dump = first.dump
    measured = measured_in(run.files_of(dump))
    joined = _joined(first, nodes)
    place = f" ({dump.place.as_posix()})" if dump is not None and dump.place.parts else ""
    return flow_graph(
        f"Calls of the target, and what flows between them{place}",
        UNIT,
        target,
        lambda key: nodes.get(key) or _other_node(run, measured, key),
        [key for row in starts for key in row.keys],
        content=measured.content if measured.values else None,
        see=shown.see,
        golden=joined,
        golden_side=first.pair.golden if joined.records else None,
    )


def _nodes(
    run: LocatedRun, dump: DumpToLocate | None
) -> tuple[dict[str, FlowNode], list[LocatedRow]]:
    """Return what the table says of the records of a dump, by all that they may be called, and the roots in
    their order."""
    nodes: dict[str, FlowNode] = {}
    starts: list[LocatedRow] = []
    first = next(iter(run.roots), None)
    step = dump.step if dump is not None else first.step if first is not None else ""
    rank = dump.rank if dump is not None else first.each_rank[0] if first is not None else ""
    for row in sorted(run.rows, key=lambda row: row.place or math.inf):
        if row.step != step or (row.ranks and rank and rank not in row.each_rank):
            continue
        text = "; ".join(filter(None, [row.verdict, row.cause, row.message]))
        node = FlowNode(row.tone, row.own, row.inherited, text, row_link(run.found, row.link))
        for key in row.keys:
            nodes.setdefault(key, node)
        if row.place:
            starts.append(row)
    return nodes, starts


def _other_node(run: LocatedRun, measured: MeasuredEvidence, key: str) -> FlowNode:
    """Return what is known of a record without a row."""
    own = measured.errors.get(key)
    if own is not None:
        inherited = math.nan if own.inherited is None else own.inherited
        return FlowNode(Tone.PASS, own.own, inherited, own.message)
    if run.left_out:
        return FlowNode(Tone.PLAIN, text="it has no row, as it passes an error on at most")
    return FlowNode(Tone.PASS)


def _joined(first: OpenedDump, nodes: Mapping[str, FlowNode]) -> GoldenCalls:
    """Return the golden calls that a call of the target has fused, with the pairs."""
    aligned, golden = first.aligned, first.pair.golden
    if aligned is None or golden is None or not aligned.joined:
        return GoldenCalls()
    of_call: dict[str, list[str]] = defaultdict(list)
    for entry in golden.entries:
        of_call[entry.call].append(entry.key)
    records: dict[str, FlowNode] = {}
    pairs = []
    for call, partner in aligned.partners.items():
        for other in aligned.joined.get(partner, ()):
            for key in of_call[other]:
                direction = key.removeprefix(f"{other}.")
                own = f"{call}.{direction}"
                tone = nodes[own].tone if own in nodes else Tone.PASS
                records[key] = FlowNode(tone, text=f"{call} has fused it")
                pairs.append((own, key))
    return GoldenCalls(records, pairs)


def _links(run: LocatedRun) -> tuple[list[tuple[str, str]], str]:
    """Return the links between affected records in the journal of the first root's dump, and its label."""
    first = next(iter(run.roots), None)
    if first is None:
        return [], ""
    wanted = [first.step, first.each_rank[0]]
    for label, rows in run.pairs.items():
        digits = ["".join(filter(str.isdecimal, part)) for part in label.split("/")]
        if len(run.pairs) == 1 or digits == [each for each in wanted if each]:
            return rows.located.edges, label
    return [], ""


def no_flow_note(run: LocatedRun, first: OpenedDump) -> str:
    """Return why the graph lacks calls, "" where it has all."""
    if first.pair.target is not None or not run.roots:
        return ""
    if _links(run)[0]:
        return "the flow is that of affected records alone, which the run has noted: the capture is not there"
    why = f", as searches of more than {MOST_LINKED} pairs do without --graph"
    return (
        "no flow of calls is drawn: the capture is not there, and the run has noted no links"
        f"{why if len(run.pairs) > MOST_LINKED else ''}"
    )
