"""What a person looks at of a search for the operator to blame: a `View` of its table.

Comes in: `locate_{timestamp}.csv`. Goes out: a `View`. Called by the command (`--json`, `--plot`) and by the
report. The journals beside it (`reading`) add own errors of records that are no suspects and links between
records; the captures, as far as they are on this machine, add values, tensors and the flow of calls.
"""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from ray_precheck.commands.locate.cards import (
    KINDS,
    UNIT,
    OpenedDump,
    blamed_above,
    open_dump_of,
    root_card,
    says_own,
    suspects_by_operator,
)
from ray_precheck.commands.locate.graph import ShownRecords, charts_of_model, no_flow_note
from ray_precheck.commands.locate.reading import (
    TONES,
    LocatedRow,
    LocatedRun,
    SearchCounts,
    counts_of,
    read_location,
)
from ray_precheck.commands.locate.walk.nouns import INHERITED, UNCHECKED, RootKind
from ray_precheck.commands.locate.walk.places import COLUMNS
from ray_precheck.options.commands import IN_ERROR, NOTHING_CHECKED, PASSED, STOPPED, UNUSABLE
from ray_precheck.running.capture_views import (
    MapCell,
    module_name,
    number_in_name,
    row_link,
    unseen_reason,
    worst_map,
)
from ray_precheck.running.tensor_views import TensorBudget
from ray_precheck.running.views import (
    MOST_CARDS,
    FoundRun,
    facts_of_run,
    file_names,
    invocation_of,
    named_and_more,
    quantity,
    shown_times,
    state_of_run,
    timeline_chart,
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

_NAMED = 20
_REST = "; of what only passes an error on, too"
_MOST_RANKS = 64


def view(found: Sequence[FoundRun]) -> View:
    """Return what the files of a search say; one table has all steps and ranks."""
    runs = [read_location(each) for each in found]
    run = runs[0]
    for other in runs[1:]:
        run.notes.append(f"{other.found.main} is another search, which is not shown here")
    counts = counts_of(run)
    with ExitStack() as held:
        opened: dict[str, OpenedDump] = {}

        def opened_of(row: LocatedRow | None) -> OpenedDump:
            dump = run.dump_of(row)
            label = dump.label if dump is not None else ""
            if label not in opened:
                opened[label] = open_dump_of(run, dump, held)
            return opened[label]

        budget = TensorBudget()
        roots = run.roots
        groups = suspects_by_operator(roots)
        cards = tuple(
            root_card(run, rows, opened_of(rows[0]), budget) for rows in groups[:MOST_CARDS]
        )
        first = opened_of(roots[0] if roots else None)
        shown = ShownRecords()
        model = tuple(charts_of_model(run, first, shown))
        state = _state(run)
        notes = [
            *run.notes,
            *first.pair.missing,
            *filter(None, [first.note, no_flow_note(run, first)]),
        ]
        return View(
            "locate",
            run.there.dump or "a capture",
            _sentence(run, roots, counts),
            Tone.ERROR if roots else Tone.PASS if counts.judged or counts.compared else Tone.SKIP,
            state,
            _exit_code(run, counts, state),
            tuple(_facts(run, counts)),
            invocation_of(run.settings),
            tuple(_counts(run, len(roots), counts)),
            (*_reasons(run), *unseen_reason(first.pair.target, "target")),
            tuple(dict.fromkeys(notes)),
            cards,
            max(0, len(groups) - MOST_CARDS),
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
    if not all(each.known for each in run.pairs.values()):
        return UNUSABLE
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
    kind = KINDS.get(first.verdict)
    named = f"{first.name} ({first.direction})" if first.direction else first.name
    where = f" in {first.module}" if first.module else ""
    if kind is not None and kind.differs_from_start:
        return f"The runs were given different things: {first.verdict} at {named}{where}."
    if kind is RootKind.CALL:
        return f"The runs are not the same program: only one of them calls {named}{where}."
    if kind is RootKind.GAP:
        return f"No captured operator errs; something that was not captured does, before {named}{where}."
    own = f", {shown_times(first.own)} {UNIT}" if says_own(first) else ""
    if len(roots) == 1:
        return f"One operator is to blame: {named}{where} ({first.verdict}{own})."
    wrong = [row for row in roots if row.is_operator]
    types = list(dict.fromkeys(row.type_name for row in wrong))
    steps = len({row.step for row in wrong})
    many = "1 operator is" if len(types) == 1 else f"{len(types):,} operators are"
    order = ", the likeliest first" if len(types) > 1 else ""
    of_steps = f" of {steps:,} steps" if steps > 1 else ""
    return (
        f"{many} to blame{order}: {named_and_more(types)} ({quantity(len(wrong), 'suspect')}{of_steps});"
        f" the likeliest call is {named}{where} ({first.verdict}{own})."
    )


def _facts(run: LocatedRun, counts: SearchCounts) -> Iterator[Fact]:
    yield from facts_of_run(run.settings)
    said = []
    if counts.passes >= 0:
        said = [
            f"{counts.roots:,} to blame",
            f"{counts.affected:,} only pass an error on",
            f"{counts.unchecked:,} could not be checked",
            f"{counts.passes:,} pass, which have no row",
        ]
    how = [f"{counts.judged:,} were judged by themselves"] if counts.judged else []
    how += [f"{counts.compared:,} have a partner in the golden run"] if counts.compared else []
    if counts.records:
        parts = "; ".join(", ".join(each) for each in (said, how) if each)
        yield Fact(
            "Records (forward or backward passes of calls)",
            f"{counts.records:,}{f': {parts}' if parts else ''}",
        )
    if above := blamed_above(run.roots):
        yield Fact("A call is to blame above", above)
    replays = sum(1 for each in run.parts if each.details.name.startswith("locate_values"))
    yield Fact(
        "Own errors",
        "by replay of captured inputs" if replays else "estimated, nothing was replayed",
    )
    steps = {row.step for row in run.rows if row.step}
    if len(steps) > 1:
        yield Fact("Steps", f"{len(steps):,}")


def _counts(run: LocatedRun, roots: int, counts: SearchCounts) -> Iterator[Count]:
    """Yield the counts of records, which add up where the passes are known; else those of rows."""
    yield Count("to blame", counts.roots if counts.passes >= 0 else roots, Tone.ERROR)
    yield Count(INHERITED, counts.affected, Tone.WARNING)
    yield Count(UNCHECKED, counts.unchecked, Tone.SKIP)
    if counts.passes >= 0:
        yield Count("pass", counts.passes, Tone.PASS)


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


def _overview(run: LocatedRun, shown: ShownRecords) -> Iterator[Chart]:
    rows = [row for row in run.rows if row.verdict != UNCHECKED]
    above = _largest_pass(rows)
    by_type = worst_map(
        f"The largest own error of each operator and dtype{_REST}",
        UNIT,
        (
            MapCell(
                row.name.rpartition(".")[0],
                next(
                    (shown.dtypes[key] for key in row.keys if key in shown.dtypes),
                    "dtype not known",
                ),
                _size(row),
                row_link(run.found, row.link),
            )
            for row in rows
        ),
        above,
        ("operator type", "dtype"),
    )
    if by_type is not None:
        yield by_type
    cells = sorted(_cells_of_ranks(run, rows), key=lambda cell: _numbers_in(cell.column))
    if len({cell.column for cell in cells}) > 1:
        by_rank = worst_map(
            f"The largest own error of each module, step and {run.rank_word}{_REST}",
            UNIT,
            cells,
            above,
            ("module", f"step and {run.rank_word}"),
        )
        if by_rank is not None:
            yield by_rank


def _cells_of_ranks(run: LocatedRun, rows: Sequence[LocatedRow]) -> Iterator[MapCell]:
    for row in rows:
        module = module_name(row.module) or row.name.rpartition(".")[0]
        # A root is on few ranks or on all; of what all pass on the first ranks are enough.
        for rank in row.each_rank[: None if row.place else _MOST_RANKS]:
            label = ", ".join(
                filter(
                    None,
                    [
                        f"step {row.step}" if row.step else "",
                        f"{run.rank_word} {rank}" if rank else "",
                    ],
                )
            )
            yield MapCell(module, label, _size(row), row_link(run.found, row.link))


def _numbers_in(text: str) -> tuple[int, ...]:
    return tuple(number_in_name(part) for part in text.split(", "))


def _size(row: LocatedRow) -> float:
    """Return the own error of a row for a heat map; what has none and is to blame is beyond all numbers."""
    return math.inf if row.place and not says_own(row) else row.own


def _largest_pass(rows: Sequence[LocatedRow]) -> float:
    """Return the own error above which all rows are to blame, and below which none is; NaN where their limits
    are too different for one number."""
    passing = max(
        (row.own for row in rows if not row.place and not math.isnan(row.own)), default=1.0
    )
    blamed = min((_size(row) for row in rows if row.place), default=math.inf)
    return passing if blamed > passing else math.nan


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
    yield RowTable(
        "Suspects and affected records (what passes has no row)",
        columns,
        run.found.main,
        key=COLUMNS.index("API Name"),
        tones=TONES,
        label=run.found.label,
        name_parts=(COLUMNS.index("Step"), COLUMNS.index("Rank")),
        name_ends=(COLUMNS.index("Direction"),),
    )


def _advice(
    run: LocatedRun, roots: Sequence[LocatedRow], cards: Sequence[Card]
) -> Iterator[Advice]:
    there = run.there
    if cards and cards[0].case:
        commands = tuple(dict.fromkeys(card.reproduce for card in cards if card.case))
        one = "the operator" if len(commands) == 1 else "each operator"
        yield Advice(f"Run the likeliest call of {one} to blame alone.", commands)
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
