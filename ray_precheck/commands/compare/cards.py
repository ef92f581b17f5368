"""The cards of a comparison: the first suspects, each with its values on both sides and where these differ.

Comes in: a suspect with its rows (`reading`), and the captures as far as they are there. Goes out: a `Card`.
Called by `report`.
"""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ray_precheck.commands.compare.reading import (
    ComparedCall,
    ComparedRun,
    SuspectCall,
    split_value,
)
from ray_precheck.numerics.statistics import STATISTICS
from ray_precheck.running.capture_views import (
    MOST_VALUES,
    OpenedPair,
    beside_golden,
    row_link,
    stated_values,
)
from ray_precheck.running.tensor_views import TensorBudget, shown_difference
from ray_precheck.running.views import (
    code_around,
)
from ray_precheck.schema.environment import Environment
from ray_precheck.schema.view import (
    Bar,
    Card,
    Fact,
)
from ray_precheck.store.tables import decode_name
from ray_precheck.trace.alignment.align import How
from ray_precheck.trace.difference.limits import RowLimits
from ray_precheck.trace.difference.rows import NOT_THERE
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide

_NAMED = 20


def suspect_card(suspect: SuspectCall, pair: OpenedPair, budget: TensorBudget) -> Card:
    """Return the card of a call in error: its rows, and what the captures add to them."""
    run, call = suspect.run, suspect.call
    rows = run.kept.get(call.name, [])
    worst = _worst_row(run, rows)
    facts = {
        "Golden calls": call.golden if call.golden != call.name else "",
        "Paired": call.match if call.match != How.EXACT.value else "",
        "Values": f"{call.rows}, of which {call.errors} are in error" if call.errors else call.rows,
        "Relative L2 of the outputs": call.distance,
        "Also in": _several(suspect.also),
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


def _several(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return f"{', '.join(labels[:_NAMED])}{more}"


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
    found = shown_difference(pair, (target, golden_item), budget)
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
