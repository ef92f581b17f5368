"""The cards of a search for the operator to blame: the first suspects, with their values and own errors.

Comes in: a row of the table (`reading`) and the captures that it is of, as far as they are there. Goes out: a
`Card`. Called by `report`.
"""

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.plan import AlignedCalls, aligned_calls
from ray_precheck.commands.locate.reading import (
    LocatedRow,
    LocatedRun,
    key_in,
)
from ray_precheck.commands.locate.search import DumpToLocate
from ray_precheck.commands.locate.table import PLACES
from ray_precheck.commands.locate.walk.estimate import suspicious
from ray_precheck.commands.locate.walk.nouns import RootKind
from ray_precheck.dump.mapped import MappedTensor
from ray_precheck.errors import NotCheckable, PrecheckError, UsageError
from ray_precheck.foreign import first_line
from ray_precheck.running.capture_views import OpenedPair, opened_pair, row_link, stated_values
from ray_precheck.running.tensor_views import (
    ShownDifference,
    TensorBudget,
    difference_of_tensors,
    shown_difference,
)
from ray_precheck.running.views import (
    code_around,
    named_and_more,
    rounded_times,
    shown_times,
)
from ray_precheck.schema.view import (
    Bar,
    Card,
    Fact,
)
from ray_precheck.store.error_data import load_error_data
from ray_precheck.trace.difference.limits import number_of_cell
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide

UNIT = "times what rounding explains"
# Aligning more calls anew, to show golden values beside the others, takes longer than a reader waits.
_MOST_ALIGNED = 60_000
_LARGEST_SAVED_BYTES = 256 << 20
# As the messages of `accuracy.standards` say it.
_NUMBER = r"([\d.]+(?:e[+-]?\d+)?|inf|nan)"
_TOLD = re.compile(
    rf"(?:also )?([A-Za-z][A-Za-z ]*) is {_NUMBER}, must be at (most|least) {_NUMBER}"
)
_FIRST = re.compile(rf"([A-Za-z][A-Za-z ]*) is {_NUMBER}, must be at (most|least) {_NUMBER}")
_TINY = 1e-300
_POWER = re.compile(r"(?<![\w.])\d(?:\.\d+)?e\+\d+")
KINDS = {kind.value: kind for kind in RootKind}


@dataclass(slots=True)
class OpenedDump:
    """The captures of a dump and its golden one while the view is made, and what aligning them found."""

    dump: DumpToLocate | None
    pair: OpenedPair
    aligned: AlignedCalls | None = None
    note: str = ""


def open_dump_of(run: LocatedRun, dump: DumpToLocate | None, held: ExitStack) -> OpenedDump:
    """Open the captures of a dump and pair their calls again, as the search did; `held` closes them."""
    if dump is None:
        return OpenedDump(None, OpenedPair())
    golden = str(dump.golden) if dump.golden is not None else ""
    found = OpenedDump(dump, opened_pair(str(dump.target), golden, held))
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


def suspects_by_operator(roots: Sequence[LocatedRow]) -> list[list[LocatedRow]]:
    """Return the roots of each card, in the order of their first places: calls of one operator of which the
    same is to be said are one card; what is no operator's fault has one of its own."""
    groups: dict[tuple[str, ...], list[LocatedRow]] = {}
    for row in roots:
        key = (row.type_name, row.verdict) if row.is_operator else (str(row.place),)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def root_card(
    run: LocatedRun, rows: Sequence[LocatedRow], opened: OpenedDump, budget: TensorBudget
) -> Card:
    """Return the card of the first of some roots of one operator: its row, its saved call, what the captures
    add to them, and the other roots."""
    row = rows[0]
    told = _Told(row)
    facts = {
        "Place in the list of suspects": str(row.place),
        "Step": row.step,
        run.rank_word.capitalize(): row.ranks,
        "Worst element" if "[" in row.index else "Value": row.index,
        "Direction": row.direction,
        "Also": named_and_more([_in_short(run, each) for each in rows[1:]]),
        "In detail": told.rest,
    }
    code, no_code = code_around(row.source)
    saved = _saved_call(run, row, opened.dump)
    own = row.verdict
    if says_own(row):
        own += f", {shown_times(row.own)} {UNIT}"
    place = (
        opened.dump.place.as_posix() if opened.dump is not None and opened.dump.place.parts else ""
    )
    why = f"{own}: {told.first}" if told.first else own
    card = Card(
        row.keys[0],
        row.tone,
        f"{why[0].upper()}{why[1:]}",
        row_link(run.found, row.link),
        place,
        rounded_times(row.own) if says_own(row) else math.nan,
        tuple(Fact(name, value) for name, value in facts.items() if value),
        (),
        tuple(_bars(row, told)),
        cause=row.cause,
        module=row.module,
        source=row.source,
        code=code,
        reproduce=_reproduce(opened, row, saved),
        case=str(saved) if saved is not None else "",
        missing=(*opened.pair.missing, *filter(None, [opened.note, no_code])),
        unit=UNIT,
    )
    return _with_values(card, row, opened, saved, budget)


def says_own(row: LocatedRow) -> bool:
    """Return whether the own error of a row is that of its call."""
    return KINDS.get(row.verdict) not in PLACES and not math.isnan(row.own)


def _in_short(run: LocatedRun, row: LocatedRow) -> str:
    where = [
        f"step {row.step}" if row.step else "",
        f"{run.rank_word} {row.ranks}" if row.ranks and row.ranks != run.rows[0].ranks else "",
        row.name,
        row.direction,
    ]
    times = f" ({shown_times(row.own)} times)" if says_own(row) else ""
    return f"{' '.join(filter(None, where))}{times}"


class _Told:
    """The message of a row: its first metric, and the rest without the cause, which a card has beside it."""

    def __init__(self, row: LocatedRow) -> None:
        clauses = [each for each in row.message.split("; ") if each != "also "]
        metric = _FIRST.match(row.message)
        self.first = clauses[0]
        # The own error that the worst metric would have at its limit: below it the call is not to blame.
        self.limit = math.nan
        if metric is not None:
            name, number, least, limit = metric.groups()
            self.first = f"{name} {number}, must be at {least} {limit}"
            excess = number_of_cell(number) / max(number_of_cell(limit), _TINY)
            if least == "most" and 1.0 < excess < math.inf and math.isfinite(row.own):
                self.limit = row.own / excess
        message = (
            row.message.partition(f"; likely cause: {row.cause}")[0] if row.cause else row.message
        )
        rest = message.removeprefix(clauses[0]).removeprefix("; ")
        self.rest = _POWER.sub(lambda found: shown_times(float(found[0])), rest)


def _bars(row: LocatedRow, told: _Told) -> Iterator[Bar]:
    if not math.isnan(row.own):
        yield Bar(f"own error: {UNIT}", row.own, told.limit)
    if not math.isnan(row.inherited):
        yield Bar(f"inherited error: {UNIT}", row.inherited, math.nan)
    for metric, number, least, limit in _TOLD.findall(row.message):
        yield Bar(metric, number_of_cell(number), number_of_cell(limit), least == "least")


def blamed_above(rows: Sequence[LocatedRow]) -> str:
    """Return above which own error a call is to blame, in words; "" where nothing tells."""
    limits = [limit for row in rows if not math.isnan(limit := _Told(row).limit)]
    if limits:
        least, most = (f"{each:.3g}" for each in (min(limits), max(limits)))
        numbers = least if least == most else f"{least} to {most}"
        return f"the limit of its standard, which is {numbers} {UNIT} for these calls (each card has its own)"
    if any(row.verdict == RootKind.ESTIMATE.value for row in rows):
        single, half = (f"{suspicious(dtype):g}" for dtype in ("float32", "float16"))
        return f"{single} {UNIT}, {half} of half types"
    return ""


def _saved_call(run: LocatedRun, row: LocatedRow, dump: DumpToLocate | None) -> Path | None:
    files = run.files_of(dump)
    if files is None or row.verdict == RootKind.CALL.value or "/" in row.name:
        return None
    path = files.errors.absolute() / f"{row.name}.json"
    return path if path.exists() else None


def _reproduce(opened: OpenedDump, row: LocatedRow, saved: Path | None) -> str:
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
    card: Card, row: LocatedRow, opened: OpenedDump, saved: Path | None, budget: TensorBudget
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
    """Return where the saved result of a call differs from the bench: its own error."""
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
    return difference_of_tensors(row.item, ours, theirs, budget, names=("result", "bench"))


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
