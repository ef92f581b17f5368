"""What a person looks at of a search for the operator to blame: a `View` of its table.

Comes in: `locate_{timestamp}.csv`. Goes out: a `View`. Called by the command (`--json`, `--plot`) and by the
report. The journals beside it (`reading`) add own errors of records that are no suspects and links between
records; the captures, as far as they are on this machine, add values, tensors and the flow of calls.
"""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from ray_precheck.commands.compare.report import parents_of
from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.plan import AlignedCalls, MeasuredEvidence, aligned_calls
from ray_precheck.commands.locate.reading import (
    TONES,
    LocatedRow,
    LocatedRun,
    SearchCounts,
    counts_of,
    key_in,
    measured_in,
    read_location,
)
from ray_precheck.commands.locate.search import DumpToLocate
from ray_precheck.commands.locate.table import PLACES
from ray_precheck.commands.locate.walk.nouns import INHERITED, UNCHECKED, RootKind
from ray_precheck.commands.locate.walk.places import COLUMNS
from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.errors import NotCheckable, PrecheckError, UsageError
from ray_precheck.foreign import first_line
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED
from ray_precheck.running.capture_views import (
    FlowNode,
    GoldenCalls,
    MapCell,
    OpenedPair,
    ShownDifference,
    TensorBudget,
    difference_of_tensors,
    flow_graph,
    graph_of_links,
    module_name,
    opened_pair,
    row_link,
    shown_difference,
    stated_values,
    unseen_reason,
    worst_map,
)
from ray_precheck.running.views import (
    MOST_CARDS,
    FoundRun,
    JudgedCall,
    code_around,
    facts_of_run,
    file_names,
    invocation_of,
    module_tree,
    state_of_run,
    timeline_chart,
)
from ray_precheck.schema.view import (
    Advice,
    Bar,
    Card,
    CellKind,
    Chart,
    Count,
    Fact,
    NotCompared,
    RowColumn,
    RowTable,
    Tone,
    View,
    ViewState,
)
from ray_precheck.store.error_data import load_error_data
from ray_precheck.trace.flow import FlowRecord
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide, call_entries

_UNIT = "times what rounding explains"
_NAMED = 20
# Aligning more calls anew, to show golden values beside the others, takes longer than a reader waits.
_MOST_ALIGNED = 60_000
_LARGEST_SAVED_BYTES = 256 << 20
_MOST_RANKS = 64
_KINDS = {kind.value: kind for kind in RootKind}


@dataclass(slots=True)
class _Opened:
    """The captures of a dump and its golden one while the view is made, and what aligning them found."""

    dump: DumpToLocate | None
    pair: OpenedPair
    aligned: AlignedCalls | None = None
    note: str = ""


@dataclass(slots=True)
class _Shown:
    """What is known of the records of the dump that has a graph: the dtype of the first output of each."""

    dtypes: dict[str, str] = field(default_factory=dict)

    def see(self, record: FlowRecord) -> None:
        """Take note of a record."""
        found = next((item.dtype for item in record.outputs if item.dtype), "")
        if found:
            self.dtypes[record.entry.key] = found.rpartition(".")[2]


def view(found: Sequence[FoundRun]) -> View:
    """Return what the files of a search say; one table has all steps and ranks."""
    runs = [read_location(each) for each in found]
    run = runs[0]
    for other in runs[1:]:
        run.notes.append(f"{other.found.main} is another search, which is not shown here")
    counts = counts_of(run)
    with ExitStack() as held:
        opened: dict[str, _Opened] = {}

        def opened_of(row: LocatedRow | None) -> _Opened:
            dump = run.dump_of(row)
            label = dump.label if dump is not None else ""
            if label not in opened:
                opened[label] = _open(run, dump, held)
            return opened[label]

        budget = TensorBudget()
        roots = run.roots
        cards = tuple(_card(run, row, opened_of(row), budget) for row in roots[:MOST_CARDS])
        first = opened_of(roots[0] if roots else None)
        shown = _Shown()
        model = tuple(_model(run, first, shown))
        state = _state(run)
        notes = [*run.notes, *first.pair.missing, *filter(None, [first.note, _no_flow(run, first)])]
        return View(
            "locate",
            f"locate {run.there.dump or 'a capture'}",
            _sentence(run, roots, counts),
            Tone.ERROR if roots else Tone.PASS if counts.judged or counts.compared else Tone.SKIP,
            state,
            _exit_code(run, counts, state),
            tuple(_facts(run, counts)),
            invocation_of(run.settings),
            tuple(_counts(run, len(roots))),
            (*_reasons(run), *unseen_reason(first.pair.target, "target")),
            tuple(dict.fromkeys(notes)),
            cards,
            max(0, len(roots) - MOST_CARDS),
            tuple(_overview(run, shown)),
            model,
            tuple(filter(None, [_timeline(run)])),
            tuple(_tables(run)),
            tuple(_advice(run, roots, cards)),
            file_names(
                [
                    run.found.main,
                    *(
                        path
                        for each in run.parts
                        for path in (each.result, each.details, each.settings)
                    ),
                ]
            ),
        )


def _open(run: LocatedRun, dump: DumpToLocate | None, held: ExitStack) -> _Opened:
    if dump is None:
        return _Opened(None, OpenedPair())
    golden = str(dump.golden) if dump.golden is not None else ""
    found = _Opened(dump, opened_pair(str(dump.target), golden, held))
    target, other = found.pair.target, found.pair.golden
    if target is None or other is None:
        return found
    if len(target.entries) > _MOST_ALIGNED and _keys(target) != _keys(other):
        found.note = (
            f"the captures have {len(target.entries):,} records under other names, which are not paired again"
            " here: golden values are not shown"
        )
        return found
    match = run.settings.fingerprint.get("match", "") if run.settings is not None else ""
    options = SearchOptions(match=match) if match else SearchOptions()
    try:
        found.aligned = aligned_calls(target, other, options)
    except UsageError as error:
        found.note = first_line(error)
    return found


def _keys(side: CaptureSide) -> list[str]:
    return [entry.key for entry in side.entries]


def _state(run: LocatedRun) -> ViewState:
    """Return the state of the parts; the table is written when all have come to their ends."""
    if run.found.main.exists():
        return ViewState.FINISHED
    states = [state_of_run(files, run.settings) for files in run.parts]
    return ViewState.RUNNING if ViewState.RUNNING in states else ViewState.STOPPED


def _exit_code(run: LocatedRun, counts: SearchCounts, state: ViewState) -> int:
    if state is not ViewState.FINISHED:
        return STOPPED if state is ViewState.STOPPED else -1
    if run.roots:
        return IN_ERROR
    is_compared = counts.compared or run.there.golden
    return PASSED if counts.judged or is_compared else NOTHING_CHECKED


def _sentence(run: LocatedRun, roots: Sequence[LocatedRow], counts: SearchCounts) -> str:
    if not roots:
        if not run.found.main.exists():
            return "The search has not come to its end: no operator is ranked yet."
        if not (counts.judged or counts.compared or run.there.golden):
            return "Nothing could be judged."
        return "No operator is to blame: rounding explains what the records show."
    first = roots[0]
    kind = _KINDS.get(first.verdict)
    named = f"{first.name} ({first.direction})" if first.direction else first.name
    where = f" in {first.module}" if first.module else ""
    if kind is not None and kind.differs_from_start:
        return f"The runs were given different things: {first.verdict} at {named}{where}."
    if kind is RootKind.CALL:
        return f"The runs are not the same program: only one of them calls {named}{where}."
    if kind is RootKind.GAP:
        return f"No captured operator errs; something that was not captured does, before {named}{where}."
    own = f", {first.own:.4g} {_UNIT}" if not math.isnan(first.own) else ""
    if len(roots) == 1:
        return f"One operator is to blame: {named}{where} ({first.verdict}{own})."
    return f"{len(roots):,} suspects; the likeliest is {named}{where} ({first.verdict}{own})."


def _facts(run: LocatedRun, counts: SearchCounts) -> Iterator[Fact]:
    yield from facts_of_run(run.settings)
    if counts.judged:
        total = f" of {counts.records:,}" if counts.records else ""
        yield Fact("Records judged by themselves", f"{counts.judged:,}{total}")
    if counts.compared:
        yield Fact("Records with a partner", f"{counts.compared:,}")
    replays = sum(1 for each in run.parts if each.details.name.startswith("locate_values"))
    yield Fact(
        "Own errors",
        "by replay of captured inputs" if replays else "estimated, nothing was replayed",
    )
    steps = {row.step for row in run.rows if row.step}
    if len(steps) > 1:
        yield Fact("Steps", f"{len(steps):,}")


def _counts(run: LocatedRun, roots: int) -> Iterator[Count]:
    counts = run.counts
    yield Count("to blame", roots, Tone.ERROR)
    yield Count(INHERITED, counts[INHERITED], Tone.WARNING)
    yield Count(UNCHECKED, counts[UNCHECKED], Tone.SKIP)


def _reasons(run: LocatedRun) -> Iterator[NotCompared]:
    unchecked: dict[str, list[str]] = defaultdict(list)
    for row in run.rows:
        if row.verdict == UNCHECKED:
            unchecked[row.message].append(row.keys[0])
    for message, names in sorted(unchecked.items(), key=lambda each: -len(each[1]))[:_NAMED]:
        yield NotCompared(
            f"not checked: {message or 'no reason is given'}", len(names), tuple(names[:_NAMED])
        )
    if rest := sorted(map(len, unchecked.values()), reverse=True)[_NAMED:]:
        yield NotCompared("not checked for other reasons, which their rows say", sum(rest))
    if run.left_out:
        yield NotCompared(
            run.left_out, int(run.left_out.partition(" ")[0]) if run.left_out[0].isdecimal() else 0
        )
    for label, rows in run.pairs.items():
        if not rows.known:
            yield NotCompared(f"{label} was not searched: {rows.message}", 1)


def _card(run: LocatedRun, row: LocatedRow, opened: _Opened, budget: TensorBudget) -> Card:
    facts = {
        "Place": str(row.place),
        "Step": row.step,
        "Ranks": row.ranks,
        "Shown by": row.index,
        "Direction": row.direction,
    }
    code, no_code = code_around(row.source)
    saved = _saved_call(run, row, opened.dump)
    says_own = _KINDS.get(row.verdict) not in PLACES and not math.isnan(row.own)
    own = f"{row.verdict}, {row.own:.4g} {_UNIT} (limit 1)" if says_own else row.verdict
    place = (
        opened.dump.place.as_posix() if opened.dump is not None and opened.dump.place.parts else ""
    )
    card = Card(
        row.keys[0],
        row.tone,
        f"{own}: {row.message}" if row.message else own,
        row_link(run.found, row.name),
        place,
        row.own if says_own else math.nan,
        tuple(Fact(name, value) for name, value in facts.items() if value),
        (),
        tuple(_bars(row)),
        cause=row.cause,
        module=row.module,
        source=row.source,
        code=code,
        reproduce=_reproduce(opened, row, saved),
        case=str(saved) if saved is not None else "",
        missing=(*opened.pair.missing, *filter(None, [opened.note, no_code])),
    )
    return _with_values(card, row, opened, saved, budget)


def _bars(row: LocatedRow) -> Iterator[Bar]:
    for name, value in (("own error", row.own), ("inherited error", row.inherited)):
        if not math.isnan(value):
            yield Bar(f"{name}: {_UNIT}", value, 1.0)


def _saved_call(run: LocatedRun, row: LocatedRow, dump: DumpToLocate | None) -> Path | None:
    files = run.files_of(dump)
    if files is None or row.verdict == RootKind.CALL.value or "/" in row.name:
        return None
    path = files.errors / f"{row.name}.json"
    return path if path.exists() else None


def _reproduce(opened: _Opened, row: LocatedRow, saved: Path | None) -> str:
    """Return the command that makes a script of a saved call, or that asks the captures why a record errs."""
    if saved is not None:
        return shlex.join(("ray-precheck", "repro", str(saved)))
    dump = opened.dump
    if dump is None:
        return ""
    words = ["ray-precheck", "inspect", str(dump.target)]
    if dump.golden is not None:
        words += ["--with", str(dump.golden)]
    return shlex.join([*words, "why", row.keys[0]])


def _with_values(
    card: Card, row: LocatedRow, opened: _Opened, saved: Path | None, budget: TensorBudget
) -> Card:
    """Return a card with the values of its record on both sides, and where its worst value differs."""
    pair = opened.pair
    key, partner = key_in(pair.target, row), ""
    if pair.target is not None and not key:
        # A call that the golden run alone has.
        partner = key_in(pair.golden, row)
    elif opened.aligned is not None:
        partner = _partner(opened.aligned, row, key)
    ours = _items(pair.target, key)
    theirs = _items(pair.golden, partner)
    card = replace(card, inputs=stated_values(ours or theirs, theirs if ours else ()))
    found = _saved_difference(saved, row, budget) if saved is not None else None
    if found is None or found.histogram is None:
        found = _captured_difference(row, pair, ours, theirs, budget)
    missing = (*card.missing, found.missing) if found.missing else card.missing
    return replace(card, histogram=found.histogram, blocks=found.blocks, missing=missing)


def _partner(aligned: AlignedCalls, row: LocatedRow, key: str) -> str:
    """Return the golden record of a record of the target."""
    if key != row.keys[0]:  # A module, whose key has its direction before the number.
        return key
    call = aligned.partners.get(row.name, "")
    return f"{call}.{row.direction}" if call and row.direction else call


def _items(side: CaptureSide | None, key: str) -> list[Item]:
    if side is None or not key:
        return []
    return next((side.items(entry) for entry in side.entries if entry.key == key), [])


def _saved_difference(saved: Path, row: LocatedRow, budget: TensorBudget) -> ShownDifference:
    """Return where the saved result of a call differs from the reference: its own error."""
    try:
        source = load_error_data(saved).source
        part, _, number = row.item.rpartition(".")
        both = [
            f"{source.stem}.{row.direction}.{part}.{side}.{number}.npy"
            for side in ("device", "bench")
        ]
        if any(name not in source.dtypes or Path(name).name != name for name in both):
            return ShownDifference()
        if sum((source.folder / name).stat().st_size for name in both) > _LARGEST_SAVED_BYTES:
            return ShownDifference(
                missing=f"the saved {row.item} is larger than what is read to be drawn"
            )
        tensors = [source.file(name) for name in both]
    except (PrecheckError, NotCheckable, OSError) as error:
        return ShownDifference(missing=f"the saved call cannot be read: {first_line(error)}")
    ours, theirs = (
        MappedTensor(each.dtype, each.data.shape, each.data.reshape(-1)) for each in tensors
    )
    return difference_of_tensors(row.item, ours, theirs, budget, names=("result", "reference"))


def _captured_difference(
    row: LocatedRow,
    pair: OpenedPair,
    ours: Sequence[Item],
    theirs: Sequence[Item],
    budget: TensorBudget,
) -> ShownDifference:
    """Return where the worst value of a record, or its first output, differs from the golden one."""
    wanted = row.item or next((item.path for item in ours if item.path.startswith("output")), "")
    one, other = (
        next((item for item in items if item.path == wanted), None) for items in (ours, theirs)
    )
    if one is None or other is None or not (one.is_tensor and other.is_tensor):
        return ShownDifference()
    return shown_difference(pair, (one, other), budget)


def _overview(run: LocatedRun, shown: _Shown) -> Iterator[Chart]:
    rows = [row for row in run.rows if row.verdict != UNCHECKED]
    by_type = worst_map(
        "Own errors of operators by type and dtype",
        _UNIT,
        (
            MapCell(
                row.name.rpartition(".")[0],
                next(
                    (shown.dtypes[key] for key in row.keys if key in shown.dtypes),
                    "dtype not known",
                ),
                _size(row),
                row_link(run.found, row.name),
            )
            for row in rows
        ),
        1.0,
        ("operator type", "dtype"),
    )
    if by_type is not None:
        yield by_type
    cells = list(_cells_of_ranks(run, rows))
    if len({cell.column for cell in cells}) > 1:
        by_rank = worst_map(
            "Modules by step and rank", _UNIT, cells, 1.0, ("module", "step and rank")
        )
        if by_rank is not None:
            yield by_rank


def _cells_of_ranks(run: LocatedRun, rows: Sequence[LocatedRow]) -> Iterator[MapCell]:
    for row in rows:
        module = module_name(row.module) or "(no module)"
        # A root is on few ranks or on all; of what all pass on the first ranks are enough.
        for rank in row.each_rank[: None if row.place else _MOST_RANKS]:
            label = "/".join(
                filter(None, [f"step{row.step}" if row.step else "", f"rank{rank}" if rank else ""])
            )
            yield MapCell(module, label, _size(row), row_link(run.found, row.name))


def _size(row: LocatedRow) -> float:
    """Return the own error of a row for a heat map, in which values above 1 are errors."""
    if row.place:
        return row.own if row.own > 1.0 else math.inf
    return min(row.own, 1.0)


def _model(run: LocatedRun, first: _Opened, shown: _Shown) -> Iterator[Chart]:
    dump, target = first.dump, first.pair.target
    folder = target.folder if target is not None else None
    judged = [
        JudgedCall(module_name(row.module), row.tone, row_link(run.found, row.name))
        for row in run.rows
        if row.module
    ]
    nodes, starts = _nodes(run, dump)
    keys = {row.module for row in run.rows if row.module}
    for entry in call_entries(target) if target is not None else ():
        if entry.key not in nodes and (module := target.modules.get(entry.key, "")):
            judged.append(JudgedCall(module_name(module), Tone.PASS))
            keys.add(module)
    tree = module_tree("Modules", judged, parents_of(keys, folder))
    measured = measured_in(run.files_of(dump))
    graph: Chart | None
    title = "Calls of the target, and what flows between them"
    if dump is not None and dump.place.parts:
        title += f" ({dump.place.as_posix()})"
    if target is not None:
        joined = _joined(first, nodes)
        graph = flow_graph(
            title,
            _UNIT,
            target,
            lambda key: nodes.get(key) or _other_node(run, measured, key),
            starts,
            content=measured.content if measured.values else None,
            see=shown.see,
            golden=joined,
            golden_side=first.pair.golden if joined.records else None,
        )
    else:
        links, label = _links(run)
        unknown = FlowNode(Tone.PLAIN, text="it has no row")
        graph = (
            graph_of_links(
                f"Affected records of {label}, and what flows between them",
                _UNIT,
                links,
                lambda key: nodes.get(key, unknown),
                starts,
            )
            if links
            else None
        )
    if tree is not None:
        yield tree
    if graph is not None:
        yield graph


def _nodes(run: LocatedRun, dump: DumpToLocate | None) -> tuple[dict[str, FlowNode], list[str]]:
    """Return what the table says of the records of a dump, by all that they may be called, and the roots in
    their order."""
    nodes: dict[str, FlowNode] = {}
    starts: list[str] = []
    first = next(iter(run.roots), None)
    step = dump.step if dump is not None else first.step if first is not None else ""
    rank = dump.rank if dump is not None else first.each_rank[0] if first is not None else ""
    for row in sorted(run.rows, key=lambda row: row.place or math.inf):
        if row.step != step or (row.ranks and rank and rank not in row.each_rank):
            continue
        text = "; ".join(filter(None, [row.verdict, row.cause, row.message]))
        node = FlowNode(row.tone, row.own, row.inherited, text)
        for key in row.keys:
            nodes.setdefault(key, node)
        if row.place:
            starts += row.keys
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


def _joined(first: _Opened, nodes: Mapping[str, FlowNode]) -> GoldenCalls:
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


def _no_flow(run: LocatedRun, first: _Opened) -> str:
    if first.pair.target is not None or not run.roots:
        return ""
    if _links(run)[0]:
        return "the flow is that of affected records alone, which the run has noted: the capture is not there"
    return "no flow of calls is drawn: the capture is not there, and the run has noted no links"


def _timeline(run: LocatedRun) -> Chart | None:
    folder = run.found.main.parent
    return timeline_chart(
        {
            ""
            if each.result.parent == folder
            else each.result.parent.relative_to(folder).as_posix(): each.timeline
            for each in run.parts
        }
    )


_NUMBERS = ("Place", "Step", "Own Error", "Inherited Error")


def _tables(run: LocatedRun) -> Iterator[RowTable]:
    if not run.found.main.exists():
        return
    columns = tuple(
        RowColumn(
            heading,
            CellKind.NAME
            if heading == "API Name"
            else CellKind.TONE
            if heading == "Verdict"
            else CellKind.NUMBER
            if heading in _NUMBERS
            else CellKind.TEXT,
        )
        for heading in COLUMNS
    )
    key = COLUMNS.index("API Name")
    yield RowTable(
        "Suspects and affected records",
        columns,
        run.found.main,
        key=key,
        tones=TONES,
        label=run.found.label,
    )


def _advice(
    run: LocatedRun, roots: Sequence[LocatedRow], cards: Sequence[Card]
) -> Iterator[Advice]:
    there = run.there
    if cards and cards[0].case:
        yield Advice("Run the likeliest culprit alone.", (cards[0].reproduce,))
    elif cards and cards[0].reproduce:
        yield Advice("Ask the captures about the likeliest culprit.", (cards[0].reproduce,))
    if any(row.verdict == RootKind.ESTIMATE.value for row in roots):
        yield Advice(
            "Capture with --task tensor: then own errors are measured by replay, not estimated."
        )
    if there.dump and there.golden:
        words = (
            "ray-precheck",
            "compare",
            "-tp",
            there.dump,
            "-gp",
            there.golden,
            "--standard",
            "auto",
        )
        yield Advice("See every pair of records, not the suspects alone.", (shlex.join(words),))
    elif there.dump and not roots:
        yield Advice(
            "Name a golden run with -gp: it shows what no replay sees, such as other inputs."
        )
