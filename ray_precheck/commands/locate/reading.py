"""What a search for the operator to blame has left in its files, read again for its view.

Comes in: `locate_{timestamp}.csv`, with the journals below its folder. Goes out: a `LocatedRun`. Called by
`report`. Files may be torn or gone: what can be read counts, and a sentence says what cannot.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.commands.locate.plan import LOCATION_TABLES, MeasuredEvidence, read_measured
from ray_precheck.commands.locate.search import DumpToLocate, dumps_to_locate
from ray_precheck.commands.locate.table import PAIR_TABLES, LocatedRows, read_located
from ray_precheck.commands.locate.walk.nouns import INHERITED, UNCHECKED, RootKind
from ray_precheck.errors import PrecheckError
from ray_precheck.foreign import first_line
from ray_precheck.running.capture_views import torn_note
from ray_precheck.running.views import FoundRun, settings_of_run
from ray_precheck.schema.environment import Environment, environment_from_dict
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.view import Tone
from ray_precheck.store.results import read_columns
from ray_precheck.store.settings import RunSettings
from ray_precheck.store.tables import RunFiles, decode_name, run_files
from ray_precheck.trace.difference.limits import number_of_cell
from ray_precheck.trace.flow import ranks_in
from ray_precheck.trace.side import CaptureSide

TONES = {kind.value: Tone.ERROR for kind in RootKind} | {
    INHERITED: Tone.WARNING,
    UNCHECKED: Tone.SKIP,
}
_OF_OPERATORS = {
    kind.value
    for kind in (RootKind.NON_FINITE, RootKind.OPERATOR, RootKind.ESTIMATE, RootKind.COLLECTIVE)
}
_HEADINGS = (
    "Place", "Step", "Rank", "API Name", "Direction", "Own Error", "Inherited Error", "Verdict", "Index",
    "Module", "Source", "Cause", "Message",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocatedRow:
    """A row of the table: a root with its place from 1, or 0 for what is none. `own` and `inherited` are in
    units of what rounding explains, NaN where they are not known. `ranks` is the cell."""

    place: int
    step: str
    ranks: str
    name: str
    direction: str
    own: float
    inherited: float
    verdict: str
    index: str
    module: str
    source: str
    cause: str
    message: str

    @property
    def tone(self) -> Tone:
        """Its verdict."""
        return TONES.get(self.verdict, Tone.PLAIN)

    @property
    def keys(self) -> tuple[str, ...]:
        """What the record may be called: a call with its direction; the key of a module has it inside."""
        return (f"{self.name}.{self.direction}", self.name) if self.direction else (self.name,)

    @property
    def link(self) -> str:
        """The name of its row, as the table has it: the same call has one in each step, rank, direction."""
        name = f"{self.name}.{self.direction}" if self.direction else self.name
        return "/".join(filter(None, [self.step, self.ranks, name]))

    @property
    def type_name(self) -> str:
        """The operator: the name without the number of the call."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def is_operator(self) -> bool:
        """Whether an operator is to blame, and not what the runs were given, or what was not captured."""
        return self.verdict in _OF_OPERATORS

    @property
    def item(self) -> str:
        """The path of the value that shows it, "" where none does."""
        return self.index.partition("[")[0]

    @property
    def each_rank(self) -> tuple[str, ...]:
        """The ranks of the cell one by one."""
        return tuple(map(str, ranks_in(self.ranks))) or tuple(self.ranks.split(","))


@dataclass(slots=True)
class LocatedRun:
    """The files of a search, read. `parts` are the journals of its replays, `pairs` what the journal of the
    dumps without files of tensors has, by the label of the dump. `dumps` are the captures that the run has
    searched, as far as they are there. `left_out` is the sentence of the table about rows that it lacks."""

    found: FoundRun
    settings: RunSettings | None
    there: Environment
    rows: list[LocatedRow] = field(default_factory=list)
    left_out: str = ""
    parts: list[RunFiles] = field(default_factory=list)
    pairs: dict[str, LocatedRows] = field(default_factory=dict)
    dumps: Sequence[DumpToLocate] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def roots(self) -> list[LocatedRow]:
        """The rows that have a place, the likeliest culprit first."""
        return sorted((row for row in self.rows if row.place), key=lambda row: row.place)

    @property
    def counts(self) -> Counter[str]:
        """How many rows have each verdict."""
        return Counter(row.verdict for row in self.rows)

    @property
    def rank_word(self) -> str:
        """What the numbers of ranks are: a capture without ranks has folders of processes, `proc15071`."""
        places = [each.result.parent.name for each in self.parts]
        places += [dump.target.parent.name for dump in self.dumps]
        return "process" if any(place.startswith("proc") for place in places) else "rank"

    def files_of(self, dump: DumpToLocate | None) -> RunFiles | None:
        """Return the journal of the replay of a dump, None where it was not replayed."""
        place = Path() if dump is None else dump.place
        wanted = self.found.main.parent / place
        return next((files for files in self.parts if files.result.parent == wanted), None)

    def dump_of(self, row: LocatedRow | None) -> DumpToLocate | None:
        """Return the capture that a row is of: that of the first of its ranks; None where it is not there."""
        if row is None:
            return next(iter(self.dumps), None)
        fits = [dump for dump in self.dumps if dump.step == row.step]
        rank = row.each_rank[0]
        return next((dump for dump in fits if dump.rank == rank), next(iter(fits), None))


def read_location(found: FoundRun) -> LocatedRun:
    """Read the files of a search; the captures are looked for, and not opened."""
    parts = list(_journals(found))
    main = run_files(found.main.with_name(PAIR_TABLES.file("result", found.stamp)), PAIR_TABLES)
    settings = next(
        (each for files in (main, *parts) if (each := settings_of_run(files)) is not None), None
    )
    there = environment_from_dict(settings.environment) if settings is not None else Environment()
    run = LocatedRun(found, settings, there, parts=parts)
    run.notes += settings.cut_short if settings is not None else ()
    if note := torn_note(found.main):
        run.notes.append(note)
    for cells in read_columns(found.main, _HEADINGS):
        _take(run, cells)
    if main.result.exists() and main.details.exists():
        run.pairs = _pairs_in(main, run.notes)
        run.parts.append(main)
    if there.dump:
        golden = Path(there.golden) if there.golden else None
        try:
            said = settings.fingerprint if settings is not None else {}
            layouts = said.get("layout", ""), said.get("golden layout", "")
            folder = found.main.parent
            run.dumps, _ = dumps_to_locate(Path(there.dump), golden, folder, layouts, is_made=False)
        except PrecheckError as error:
            run.notes.append(
                f"the captures cannot be read on this machine ({first_line(error)}), so that values, tensors"
                " and most of the flow are not shown"
            )
    else:
        run.notes.append("the run does not say which captures it read: no values are shown")
    return run


def _journals(found: FoundRun) -> Iterator[RunFiles]:
    """Yield the files of the replays of a search: beside its table, and in folders of steps and ranks."""
    name = LOCATION_TABLES.file("result", found.stamp)
    folder = found.main.parent
    for pattern in (name, f"*/{name}", f"*/*/{name}"):
        for path in sorted(folder.glob(pattern)):
            yield run_files(path, LOCATION_TABLES)


def _pairs_in(files: RunFiles, notes: list[str]) -> dict[str, LocatedRows]:
    try:
        return read_located(files.result, files.details)
    except (PrecheckError, ValueError, TypeError, OSError) as error:
        notes.append(
            f"{files.details} cannot be read ({first_line(error)}): it has links between records"
        )
        return {}


def _take(run: LocatedRun, cells: Sequence[str]) -> None:
    place, step, ranks, name, direction, own, inherited, verdict, *others = cells
    if not name:
        run.left_out = others[-1]
        return
    number = int(place) if place.isdecimal() and place.isascii() and len(place) < 10 else 0
    run.rows.append(
        LocatedRow(
            number, step, ranks, decode_name(name), direction, number_of_cell(own),
            number_of_cell(inherited), verdict, *others,
        )
    )  # fmt: skip


def measured_in(files: RunFiles | None) -> MeasuredEvidence:
    """Return what a replay has measured, nothing where its table cannot be read."""
    if files is None or not files.details.exists() or files.details.name.startswith("locate_roots"):
        return MeasuredEvidence()
    try:
        return read_measured(files.details)
    except (PrecheckError, ValueError, IndexError, OSError):
        return MeasuredEvidence()


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """How many records of calls were searched, judged by themselves, and have a partner; 0 for unknown.
    `roots`, `affected`, `unchecked` and `passes` add up to all of them; passes are -1 where that is not
    known, as where an input is to blame, which is no record."""

    records: int = 0
    judged: int = 0
    compared: int = 0
    roots: int = 0
    affected: int = 0
    unchecked: int = 0
    passes: int = -1


def counts_of(run: LocatedRun) -> SearchCounts:
    """Return what the journals count."""
    located = [each.located for each in run.pairs.values()]
    records = sum(each.records for each in located)
    judged = sum(each.judged for each in located)
    for files in run.parts:
        if files.details.name.startswith("locate_values") and files.details.exists():
            for value, verdict in read_columns(files.details, ("Value", "Verdict")):
                records += not value
                judged += not value and verdict in (Verdict.PASS.value, Verdict.ERROR.value)
    compared = sum(each.compared for each in located)
    roots = {
        (row.step, rank, row.name, row.direction)
        for row in run.rows
        if row.place and row.is_operator
        for rank in row.each_rank
    }
    affected, unchecked = (
        sum(len(row.each_rank) for row in run.rows if row.verdict == verdict)
        for verdict in (INHERITED, UNCHECKED)
    )
    if run.left_out:
        number = run.left_out.partition(" ")[0]
        affected += int(number) if number.isdecimal() and number.isascii() else 0
    others = any(row.place and not row.is_operator for row in run.rows)
    passes = records - len(roots) - affected - unchecked
    return SearchCounts(
        records,
        judged,
        compared,
        len(roots),
        affected,
        unchecked,
        -1 if others else max(-1, passes),
    )


def key_in(side: CaptureSide | None, row: LocatedRow) -> str:
    """Return the key of the record of a row in a capture, "" where it has none."""
    wanted = row.keys
    there = {entry.key for entry in side.entries if entry.key in wanted} if side is not None else ()
    return next((key for key in wanted if key in there), "")
