"""What a person looks at of a comparison: a `View` of its tables and, where they are there, of its captures.

Comes in: the table of calls of each step and rank. Goes out: a `View`. Called by the command (`--json`,
`--plot`) and by the report. Tables of runs that go on or were torn are read as far as they go (`reading`);
the flow of calls and the differences of tensors are read from the captures when the view is made, and a
sentence says where they are gone.
"""

import math
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ray_precheck.commands.compare.cards import suspect_card
from ray_precheck.commands.compare.closing import comparison_code
from ray_precheck.commands.compare.job import CALL_COLUMNS
from ray_precheck.commands.compare.reading import (
    TONES,
    ComparedCall,
    ComparedRun,
    read_calls,
    read_rows,
    setting_of,
    suspects_in,
)
from ray_precheck.options.commands import NOTHING_CHECKED, PASSED, STOPPED, worst_code
from ray_precheck.running.capture_views import (
    FlowNode,
    GoldenCalls,
    MapCell,
    OpenedPair,
    flow_graph,
    module_name,
    opened_pair,
    parents_of,
    row_link,
    unseen_reason,
    worst_map,
)
from ray_precheck.running.tensor_views import TensorBudget
from ray_precheck.running.views import (
    FoundRun,
    JudgedCall,
    facts_of_run,
    file_names,
    invocation_of,
    module_tree,
    timeline_chart,
    worst_tone,
)
from ray_precheck.schema.view import (
    Advice,
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
from ray_precheck.trace.alignment.align import GOLDEN_ONLY, How
from ray_precheck.trace.difference.limits import RowLimits
from ray_precheck.trace.difference.rows import BY_STATISTICS, ComparisonMode
from ray_precheck.trace.side import CaptureSide

_NAMED = 20
_KINDS = {
    ComparisonMode.REAL.value: "files of tensors",
    ComparisonMode.STATISTICS.value: "statistics",
    ComparisonMode.DIGESTS.value: "digests",
}


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
        cards = tuple(suspect_card(each, opened[id(each.run)], budget) for each in suspects)
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
        _title(*_captures(runs, first)),
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
            *unseen_reason(pair.golden, "golden run"),
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
        tuple(_advice(runs, first, results, state)),
        file_names(files),
    )


def _captures(runs: Sequence[ComparedRun], first: ComparedRun) -> tuple[str, str]:
    """Return the paths of the captures, of several runs the folders that hold all; "" for unknown ones."""
    if len(runs) == 1:
        return first.there.dump, first.there.golden
    found = []
    for paths in ([run.there.dump for run in runs], [run.there.golden for run in runs]):
        found.append(os.path.commonpath(paths) if all(map(os.path.isabs, paths)) else "")
    return found[0], found[1]


def _title(target: str, golden: str) -> str:
    return f"{target} against {golden}" if target and golden else "two captures"


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
        verb = "is" if results["error"] == 1 else "are"
        where = f" in {first.module}" if first.module else ""
        said = f"{results['error']:,} of {total} pairs of records{many} {verb} in error;"
        said += f" the first is {first.name}{where}."
    elif not (results["pass"] or results["warning"]):
        said = f"Nothing could be compared in {total} pairs of records{many}."
    else:
        said = f"No pair of records is in error, of {total}{many}."
        if results["warning"]:
            said += (
                f" {results['warning']:,} {'has' if results['warning'] == 1 else 'have'} a warning."
            )
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
    found["Compared are"] = _KINDS.get(setting_of(first.settings, "mode"), "")
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
            side = "golden run" if is_golden else "target"
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


def _overview(runs: Sequence[ComparedRun]) -> Iterator[Chart]:
    limits = runs[0].limits
    by_type = worst_map(
        "The largest difference of each operator and dtype",
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
        "The largest difference of each module, step and rank",
        limits.unit,
        (
            MapCell(
                module_name(call.module) or _type_of(call.name),
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
        JudgedCall(
            module_name(call.module),
            call.tone,
            row_link(run.found, call.name),
            times=call.inherited if math.isnan(call.own) else call.own,
        )
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


def _graph(run: ComparedRun, pair: OpenedPair, target: CaptureSide, is_one_of_many: bool) -> Chart:
    nodes: dict[str, FlowNode] = {}
    split: list[tuple[str, str]] = []
    fused: list[tuple[str, str]] = []
    golden: dict[str, FlowNode] = {}
    starts: tuple[list[str], list[str]] = ([], [])
    for call in run.calls.values():
        link = row_link(run.found, call.name)
        if call.name.endswith(GOLDEN_ONLY) and call.result == "unmatched":
            for key in call.golden_keys:
                golden[key] = FlowNode(Tone.UNMATCHED, text=call.message, link=link)
            continue
        against = f"against {call.golden}: " if call.golden and call.golden != call.name else ""
        node = FlowNode(call.tone, call.own, call.inherited, f"{against}{call.message}", link)
        for key in (call.name, *call.members):
            nodes[key] = node
        split += [(call.name, key) for key in call.members]
        if len(call.golden_keys) > 1:
            fused += [(call.name, key) for key in call.golden_keys]
            for key in call.golden_keys:
                text = f"{call.match} with {call.name}"
                golden[key] = FlowNode(call.tone, text=text, link=link)
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


def _advice(
    runs: Sequence[ComparedRun], run: ComparedRun, results: Counter[str], state: ViewState
) -> Iterator[Advice]:
    there = run.there
    target, golden = _captures(runs, run)
    both = ("-tp", target, "-gp", golden)
    if state is ViewState.STOPPED:
        yield Advice("Go on with what was stopped: the command that it printed has -csv_path.")
    if not (target and golden):
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
