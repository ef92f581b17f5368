"""What a person looks at of a comparison: a `View` of its tables and, where they are there, of its captures.

Comes in: the table of calls of each step and rank. Goes out: a `View`. Called by the command (`--json`,
`--plot`) and by the report. Tables of runs that go on or were torn are read as far as they go (`reading`);
the flow of calls and the differences of tensors are read from the captures when the view is made, and a
sentence says where they are gone.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ray_precheck.commands.compare.closing import comparison_code
from ray_precheck.commands.compare.job import CALL_COLUMNS
from ray_precheck.commands.compare.reading import (
    TONES,
    ComparedCall,
    ComparedRun,
    SuspectCall,
    read_calls,
    read_rows,
    setting_of,
    split_value,
    suspects_in,
)
from ray_precheck.numerics.statistics import STATISTICS
from ray_precheck.options.commands import NOTHING_CHECKED, PASSED, STOPPED, worst_code
from ray_precheck.running.capture_views import (
    MOST_VALUES,
    FlowNode,
    GoldenCalls,
    MapCell,
    OpenedPair,
    TensorBudget,
    beside_golden,
    flow_graph,
    module_name,
    opened_pair,
    row_link,
    shown_difference,
    stated_values,
    unseen_reason,
    worst_map,
)
from ray_precheck.running.views import (
    FoundRun,
    JudgedCall,
    code_around,
    facts_of_run,
    file_names,
    invocation_of,
    module_tree,
    timeline_chart,
    worst_tone,
)
from ray_precheck.schema.environment import Environment
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
from ray_precheck.store.tables import decode_name
from ray_precheck.trace.alignment.align import GOLDEN_ONLY, How
from ray_precheck.trace.difference.limits import RowLimits
from ray_precheck.trace.difference.rows import BY_STATISTICS, NOT_THERE
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide
from ray_precheck.trace.sources import Modules

_NAMED = 20


def view(found: Sequence[FoundRun]) -> View:
    """Return what the files of a comparison say; several runs are those of steps and ranks.

    Reads the tables once, the captures of runs with suspects, and at most ten pairs of tensors.
    """
    runs = [read_calls(each) for each in found]
    suspects, more = suspects_in(runs)
    for run in runs:
        read_rows(run, {each.call.name for each in suspects if each.run is run})
    with ExitStack() as held:
        opened = {
            id(run): opened_pair(run.there.dump, run.there.golden, held)
            for run in runs
            if run is runs[0] or any(each.run is run for each in suspects)
        }
        budget = TensorBudget()
        cards = tuple(_card(each, opened[id(each.run)], budget) for each in suspects)
        first = suspects[0].run if suspects else runs[0]
        return _view(runs, cards, more, first, opened[id(first)])


def _view(
    runs: Sequence[ComparedRun],
    cards: tuple[Card, ...],
    more: int,
    first: ComparedRun,
    pair: OpenedPair,
) -> View:
    results = sum((run.results for run in runs), Counter[str]())
    state = _state(runs)
    model, missing = _model(runs, first, pair)
    notes = dict.fromkeys([*(note for run in runs for note in run.notes), *pair.missing, *missing])
    files = [
        path for run in runs for path in (run.files.result, run.files.details, run.files.settings)
    ]
    return View(
        "compare",
        f"compare {first.there.dump or 'two captures'}",
        _sentence(results, state, cards, runs),
        worst_tone(tone for word, tone in TONES.items() if results[word]),
        state,
        _exit_code(runs, state),
        (*_facts(runs), *_matches(runs)),
        invocation_of(first.settings),
        tuple(Count(word, results[word], tone) for word, tone in TONES.items()),
        (
            *_reasons(runs),
            *unseen_reason(pair.target, "target"),
            *unseen_reason(pair.golden, "golden capture"),
        ),
        tuple(notes),
        cards,
        more,
        tuple(_overview(runs)),
        model,
        tuple(
            filter(None, [timeline_chart({run.found.label: run.files.timeline for run in runs})])
        ),
        tuple(_tables(runs)),
        tuple(_advice(first, results, state)),
        file_names(files),
    )


def _state(runs: Sequence[ComparedRun]) -> ViewState:
    states = {run.state for run in runs}
    order = (ViewState.RUNNING, ViewState.STOPPED, ViewState.FINISHED)
    return next(state for state in order if state in states)


def _exit_code(runs: Sequence[ComparedRun], state: ViewState) -> int:
    if state is not ViewState.FINISHED:
        return STOPPED if state is ViewState.STOPPED else -1
    codes = []
    for run in runs:
        words = run.settings.command if run.settings is not None else ()
        code = comparison_code(run.results, run.lone_rows, strict="--strict" in words)
        is_cut = run.settings is not None and run.settings.cut_short
        codes.append(NOTHING_CHECKED if code == PASSED and is_cut else code)
    return worst_code(*codes)


def _sentence(
    results: Counter[str], state: ViewState, cards: Sequence[Card], runs: Sequence[ComparedRun]
) -> str:
    done = results.total()
    planned = sum(run.there.calls for run in runs)
    total = f"{done:,} of {planned:,}" if planned > done else f"{done:,}"
    many = f" of {len(runs)} pairs of captures" if len(runs) > 1 else ""
    if results["error"]:
        first = cards[0]
        where = f" in {first.module}" if first.module else ""
        said = f"{results['error']:,} of {total} pairs of records{many} are in error;"
        said += f" the first is {first.name}{where}."
    elif not (results["pass"] or results["warning"]):
        said = f"Nothing could be compared in {total} pairs of records{many}."
    else:
        said = f"No pair of records is in error, of {total}{many}."
        if results["warning"]:
            said += f" {results['warning']:,} have a warning."
    if state is not ViewState.FINISHED:
        said += (
            " The comparison still runs."
            if state is ViewState.RUNNING
            else " It was stopped before its end."
        )
    return said


def _facts(runs: Sequence[ComparedRun]) -> tuple[Fact, ...]:
    first = runs[0]
    found = {each.name: each.value for each in facts_of_run(first.settings)}
    found.setdefault("Standard", first.standard)
    found["How calls were paired"] = setting_of(first.settings, "match")
    is_noisy = "noise" in (first.settings.fingerprint if first.settings is not None else {})
    found["Noise"] = "measured with a second golden run" if is_noisy else ""
    found["Compared by"] = setting_of(first.settings, "mode")
    found["Rows"] = f"{sum(run.rows for run in runs):,}"
    return tuple(Fact(name, value) for name, value in found.items() if value)


def _matches(runs: Sequence[ComparedRun]) -> Iterator[Fact]:
    """Yield how many pairs were found in each way, besides by their names."""
    counts = Counter(call.match for run in runs for call in run.calls.values())
    for how, count in sorted(counts.items()):
        if how not in (How.EXACT.value, How.UNMATCHED.value, ""):
            yield Fact(f"Paired though their names differ: {how}", f"{count:,}")


def _reasons(runs: Sequence[ComparedRun]) -> Iterator[NotCompared]:
    alone: dict[bool, list[ComparedCall]] = {True: [], False: []}
    for run in runs:
        for call in run.calls.values():
            if call.result == "unmatched":
                alone[bool(call.golden)].append(call)
    for is_golden, calls in alone.items():
        if calls:
            side = "golden capture" if is_golden else "target"
            why = next((call.message for call in calls if call.message), "")
            text = f"only the {side} has these records" + (f" (of the first: {why})" if why else "")
            yield NotCompared(text, len(calls), tuple(call.name for call in calls[:_NAMED]))
    if lone := sum(run.lone_rows for run in runs):
        yield NotCompared("values of pairs that only one side has", lone)
    unread = [
        call.name
        for run in runs
        for call in run.calls.values()
        if call.result == "warning" and BY_STATISTICS in call.message
    ]
    if unread:
        text = "pairs whose files of tensors cannot be read: their statistics were compared"
        yield NotCompared(text, len(unread), tuple(unread[:_NAMED]))


def _card(suspect: SuspectCall, pair: OpenedPair, budget: TensorBudget) -> Card:
    run, call = suspect.run, suspect.call
    rows = run.kept.get(call.name, [])
    worst = _worst_row(run, rows)
    facts = {
        "Golden calls": call.golden if call.golden != call.name else "",
        "Paired": call.match if call.match != How.EXACT.value else "",
        "Values": f"{call.rows}, of which {call.errors} are in error" if call.errors else call.rows,
        "Relative L2 of the outputs": call.distance,
        "Also in": ", ".join(suspect.also[:_NAMED]),
    }
    code, no_code = code_around(call.source)
    card = Card(
        call.name,
        call.tone,
        call.message or f"{call.result}, without a message",
        row_link(run.found, call.name),
        run.found.label,
        _times(run.limits, call),
        tuple(Fact(name, value) for name, value in facts.items() if value),
        tuple(_stated_cells(run, rows)),
        _bars(run, call, worst),
        module=call.module,
        source=call.source,
        code=code,
        reproduce=_reproduce(run.there, call.name),
        missing=(*pair.missing, *filter(None, [no_code])),
    )
    return _with_tensors(card, run, call, worst, pair, budget)


def _times(limits: RowLimits, call: ComparedCall) -> float:
    """Return how many times its limit the worst output of a call is off, or an input where none is."""
    worst = call.inherited if math.isnan(call.own) else call.own
    return worst / limits.limit


def _worst_row(run: ComparedRun, rows: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the row that is furthest apart, an output before an input; () where there is none."""
    limits = run.limits

    def order(cells: tuple[str, ...]) -> tuple[bool, bool, float]:
        path = split_value(decode_name(limits.cell(cells, "NPU Name")))[1]
        times = limits.times(cells)
        is_error = limits.cell(cells, "Result") == "error"
        return (
            is_error,
            path.startswith(("output", "changed")),
            -1.0 if math.isnan(times) else times,
        )

    return max(rows, key=order, default=())


def _bars(run: ComparedRun, call: ComparedCall, worst: tuple[str, ...]) -> tuple[Bar, ...]:
    limits = run.limits
    both = (("outputs", call.own), ("inputs", call.inherited))
    bars = [
        Bar(f"{name}: {limits.unit}", value, limits.limit)
        for name, value in both
        if not math.isnan(value)
    ]
    return (*bars, *(limits.bars(worst) if worst else ()))


def _stated_cells(run: ComparedRun, rows: Sequence[tuple[str, ...]]) -> Iterator[Fact]:
    """Yield the values of a pair as its rows state them: dtype, shape and statistics of both sides."""
    limits = run.limits
    for cells in rows[:MOST_VALUES]:
        names = [decode_name(limits.cell(cells, each)) for each in ("NPU Name", "Bench Name")]
        name = names[0] if names[0] != NOT_THERE else names[1]
        sides = []
        for side, dtype, shape in (
            ("NPU", "NPU Dtype", "NPU Tensor Shape"),
            ("Bench", "Bench Dtype", "Bench Tensor Shape"),
        ):
            words = [f"{limits.cell(cells, dtype)} {limits.cell(cells, shape)}"]
            for each in STATISTICS:
                if (cell := limits.cell(cells, f"{side} {each.heading}")) not in ("", NOT_THERE):
                    words.append(f"{each.field} {cell.strip()}")
            sides.append(", ".join(words))
        said = f"{limits.cell(cells, 'Result')}: {beside_golden(*sides)}"
        yield Fact(split_value(name)[1] or name, said)
    if len(rows) > MOST_VALUES:
        yield Fact("...", f"and {len(rows) - MOST_VALUES} more values")


def _with_tensors(
    card: Card,
    run: ComparedRun,
    call: ComparedCall,
    worst: tuple[str, ...],
    pair: OpenedPair,
    budget: TensorBudget,
) -> Card:
    """Return a card with what the captures add: the layout of its values, and where its worst one differs."""
    if pair.target is None:
        return card
    ours = _items(pair.target, [call.name, *call.members])
    theirs = _items(pair.golden, call.golden_keys) if pair.golden is not None else {}
    is_pair = len(call.golden_keys) == 1 and not call.members
    if call.name in ours and is_pair:
        golden = theirs.get(call.golden_keys[0], [])
        card = replace(card, inputs=stated_values(ours[call.name], golden))
    if not worst:
        return card
    named = [
        _named_item(side, decode_name(run.limits.cell(worst, heading)))
        for side, heading in ((ours, "NPU Name"), (theirs, "Bench Name"))
    ]
    target, golden_item = named
    if target is None or golden_item is None or not (target.is_tensor and golden_item.is_tensor):
        return card
    limit = next((bar.limit for bar in card.bars if bar.name == "Relative L2"), math.nan)
    found = shown_difference(pair, (target, golden_item), budget, limit)
    missing = (*card.missing, found.missing) if found.missing else card.missing
    return replace(card, histogram=found.histogram, blocks=found.blocks, missing=missing)


def _items(side: CaptureSide | None, keys: Iterable[str]) -> dict[str, list[Item]]:
    if side is None:
        return {}
    wanted = set(keys)
    return {entry.key: side.items(entry) for entry in side.entries if entry.key in wanted}


def _named_item(records: dict[str, list[Item]], name: str) -> Item | None:
    """Return the value of a name, `Mint.add.0.forward.output.0`, among those of records."""
    for key, items in records.items():
        for item in items:
            if name == (f"{key}.{item.path}" if item.path else key):
                return item
    return None


def _reproduce(there: Environment, name: str) -> str:
    """Return the command that measures the values of a pair again, "" where the captures are not known."""
    if not there.dump or not there.golden:
        return ""
    words = ("ray-precheck", "inspect", there.dump, "--with", there.golden, "diff", name)
    return shlex.join(words)


def _overview(runs: Sequence[ComparedRun]) -> Iterator[Chart]:
    limits = runs[0].limits
    by_type = worst_map(
        "Outputs of operators by type and dtype",
        limits.unit,
        (
            MapCell(
                _type_of(call.name),
                call.dtype,
                _shown(call, limits),
                row_link(run.found, call.name),
            )
            for run in runs
            for call in run.calls.values()
            if call.dtype
        ),
        limits.limit,
        ("operator type", "dtype"),
    )
    if by_type is not None:
        yield by_type
    if len(runs) < 2:
        return
    by_run = worst_map(
        "Modules by step and rank",
        limits.unit,
        (
            MapCell(
                module_name(call.module) or "(no module)",
                run.found.label,
                _shown(call, limits),
                row_link(run.found, call.name),
            )
            for run in runs
            for call in run.calls.values()
        ),
        limits.limit,
        ("module", "step and rank"),
    )
    if by_run is not None:
        yield by_run


def _shown(call: ComparedCall, limits: RowLimits) -> float:
    """Return the error of a call for a heat map, which knows values above the limit as errors alone."""
    if call.result == "error":
        return call.own if not call.own <= limits.limit else max(call.inherited, call.own)
    return min(call.own, limits.limit) if not math.isnan(limits.limit) else call.own


def _type_of(name: str) -> str:
    """Return the type of a call by the key of its record, `Mint.add`, or the class of a module."""
    key = name.removesuffix(GOLDEN_ONLY)
    for word in (".forward", ".backward"):
        key = key.partition(word)[0] if word in key else key
    if key.startswith(("Module.", "Cell.")):
        return key.rpartition(".")[2]
    head, _, number = key.rpartition(".")
    return head if number.isdigit() else key


def _model(
    runs: Sequence[ComparedRun], first: ComparedRun, pair: OpenedPair
) -> tuple[tuple[Chart, ...], tuple[str, ...]]:
    """Return the tree of modules, and the flow of calls of the run with the first suspect."""
    charts: list[Chart] = []
    folder = Path(first.there.dump).parent if first.there.dump else None
    judged = [
        JudgedCall(module_name(call.module), call.tone, row_link(run.found, call.name))
        for run in runs
        for call in run.calls.values()
        if call.module
    ]
    keys = {call.module for run in runs for call in run.calls.values() if call.module}
    tree = module_tree("Modules", judged, parents_of(keys, folder))
    if tree is not None:
        charts.append(tree)
    if pair.target is None:
        told = (
            ()
            if pair.missing
            else ("the run does not say which captures it read: no flow is drawn",)
        )
        return tuple(charts), told
    charts.append(_graph(first, pair, pair.target, len(runs) > 1))
    return tuple(charts), ()


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


def _graph(run: ComparedRun, pair: OpenedPair, target: CaptureSide, is_one_of_many: bool) -> Chart:
    nodes: dict[str, FlowNode] = {}
    split: list[tuple[str, str]] = []
    fused: list[tuple[str, str]] = []
    golden: dict[str, FlowNode] = {}
    starts: tuple[list[str], list[str]] = ([], [])
    for call in run.calls.values():
        if call.name.endswith(GOLDEN_ONLY) and call.result == "unmatched":
            for key in call.golden_keys:
                golden[key] = FlowNode(Tone.UNMATCHED, text=call.message)
            continue
        against = f"against {call.golden}: " if call.golden and call.golden != call.name else ""
        node = FlowNode(call.tone, call.own, call.inherited, f"{against}{call.message}")
        for key in (call.name, *call.members):
            nodes[key] = node
        split += [(call.name, key) for key in call.members]
        if len(call.golden_keys) > 1:
            fused += [(call.name, key) for key in call.golden_keys]
            for key in call.golden_keys:
                golden[key] = FlowNode(call.tone, text=f"{call.match} with {call.name}")
        if call.result == "error":
            starts[not call.is_own].append(call.name)
    unknown = FlowNode(Tone.PLAIN, text="not compared yet")
    title = "Calls of the target, and what flows between them (own: outputs differ, inherited: inputs do)"
    if is_one_of_many:
        title += f" ({run.found.label})"
    return flow_graph(
        title,
        run.limits.unit,
        target,
        lambda key: nodes.get(key, unknown),
        [*starts[0], *starts[1]],
        pairs=split,
        golden=GoldenCalls(golden, fused),
        golden_side=pair.golden,
    )


def _tables(runs: Sequence[ComparedRun]) -> Iterator[RowTable]:
    for run in runs:
        label = f" of {run.found.label}" if run.found.label else ""
        columns = tuple(RowColumn(heading, _kind(heading)) for heading in CALL_COLUMNS)
        if run.files.result.exists():
            yield RowTable(
                f"Calls{label}", columns, run.files.result, tones=TONES, label=run.found.label
            )
        if run.headings:
            columns = tuple(RowColumn(heading, _kind(heading)) for heading in run.headings)
            yield RowTable(
                f"Values{label}", columns, run.files.details, tones=TONES, label=run.found.label
            )


_NAMES = ("Call", "Golden Call", "NPU Name", "Bench Name")
_TEXTS = (
    "Match", "Module", "Source", "Message", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape",
    "Bench Tensor Shape", "NPU Requires_grad", "Bench Requires_grad", "Requires_grad Consistent",
    "Err_message", "NPU_Stack_Info", "Data_name", "Digest Equal", "NPU MD5", "BENCH MD5",
)  # fmt: skip


def _kind(heading: str) -> CellKind:
    if heading in _NAMES:
        return CellKind.NAME
    if heading == "Result":
        return CellKind.TONE
    return CellKind.TEXT if heading in _TEXTS else CellKind.NUMBER


def _advice(run: ComparedRun, results: Counter[str], state: ViewState) -> Iterator[Advice]:
    there = run.there
    both = ("-tp", there.dump, "-gp", there.golden)
    if state is ViewState.STOPPED:
        yield Advice("Go on with what was stopped: the command that it printed has -csv_path.")
    if not (there.dump and there.golden):
        return
    if results["error"] or results["warning"]:
        words = shlex.join(("ray-precheck", "locate", *both))
        yield Advice("Find the operator to blame, and what only passes its error on.", (words,))
    if run.standard != "auto" and (results["error"] or results["warning"]):
        words = shlex.join(("ray-precheck", "compare", *both, "--standard", "auto"))
        yield Advice("Judge by what rounding explains, which fixed limits do not know.", (words,))
    if results["unmatched"]:
        words = shlex.join(("ray-precheck", "inspect", there.dump, "--with", there.golden))
        yield Advice("Look at the calls without a partner in both captures.", (words,))
