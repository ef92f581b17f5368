"""The search of `--standard megengine`: the failing variables none of whose inputs fails.

Comes in: two open captures and the options. Goes out: a `Located`. Called by the search of pairs of dumps.
A variable fails by its error (`trace.difference.standards.megengine`); a failing variable is a root where
none of the variables that its operator got fails, as in MegEngine's tree of failures. Unlike there, variables
fail that are not finite or have another shape, and what the runs were given (inputs, weights) can be a root.
What is upstream of a root stands in its message, what is downstream in the links.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ray_precheck.commands.locate.options import SearchOptions
from ray_precheck.commands.locate.plan import aligned_calls, run_records_of
from ray_precheck.commands.locate.walk.nouns import (
    INHERITED,
    UNCHECKED,
    Located,
    Passed,
    Root,
    RootKind,
)
from ray_precheck.commands.locate.walk.places import reached_from
from ray_precheck.options.shared import MAX_ERR
from ray_precheck.trace.difference.measuring import Reading, reading_of, rows_of_operators
from ray_precheck.trace.difference.rows import TensorRow
from ray_precheck.trace.difference.standards.megengine import (
    ScaledError,
    error_in_words,
    failure,
    largest_known,
    scaled_error,
    variable_of,
)
from ray_precheck.trace.flow import Flow, FlowRecord, flow_of
from ray_precheck.trace.items import OUTPUT, Item
from ray_precheck.trace.side import CaptureSide

# As many variables are named in the message of a root.
_NAMED = 8
Place = tuple[str, str]


@dataclass(slots=True)
class _Measured:
    """A record with its partner: what it got and the rows that it gave, each with its error."""

    record: FlowRecord
    place: int
    inputs: list[tuple[Item, ScaledError | None]] = field(default_factory=list)
    outputs: list[tuple[TensorRow, ScaledError | None]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The key of the record."""
        return self.record.entry.key

    def worst(self, limit: float) -> tuple[TensorRow, ScaledError] | None:
        """Return the output with the largest error beyond a limit; None for none."""
        failing = [(row, found) for row, found in self.outputs if found and found.value > limit]
        return max(failing, key=lambda each: each[1].value, default=None)


def failing_in(target: CaptureSide, golden: CaptureSide, options: SearchOptions) -> Located:
    """Return the roots of the failing variables of a run, and what they reach.

    Raises:
        UsageError: the captures have no call in common.
    """
    limit = MAX_ERR if options.max_err is None else options.max_err
    aligned = aligned_calls(target, golden, options).partners
    records = run_records_of(target).records
    partners = _partners(golden, records, aligned)
    search = _Search(limit, flow_of(records), reading_of(target, golden))
    for place, record in enumerate(records):
        other = partners.get(record.entry.key)
        if other is None:
            search.leave_out(record, place)
        else:
            search.take(_Measured(record, place), other)
    return search.finish(len(records))


def _partners(
    golden: CaptureSide,
    records: Sequence[FlowRecord],
    aligned: Mapping[str, str],
) -> dict[str, FlowRecord]:
    """Return the golden record of each record of the target that has one."""
    there = {(entry.call, entry.direction): entry for entry in golden.entries}
    found = {}
    for record in records:
        entry = there.get((aligned.get(record.entry.call, ""), record.entry.direction))
        if entry is not None:
            found[record.entry.key] = FlowRecord(entry, golden.items(entry))
    return found


@dataclass(slots=True)
class _Search:
    """A search that goes through the records in the order of the run. `errors` has those of outputs by key
    and path, `names` what failing records are called."""

    limit: float
    flow: Flow
    reading: Reading
    located: Located = field(default_factory=Located)
    errors: dict[Place, ScaledError | None] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def take(self, measured: _Measured, golden: FlowRecord) -> None:
        """Measure a record and its partner, and tell whether it is a root or passes an error on."""
        entry = measured.record.entry
        before = [*self._measure(measured, golden)]
        self.located.compared += 1
        self.located.judged += any(found is not None for _, found in measured.outputs)
        worst = measured.worst(self.limit)
        if worst is None:
            return
        row, found = worst
        self.names[entry.key] = _named(row.item) or entry.key
        brought = largest_known(error for _, error in measured.inputs)
        told = f"{variable_of(row.item)}{error_in_words(found, brought)}"
        if before:
            self.located.edges += [(key, entry.key) for key in dict.fromkeys(before) if key]
            passed = Passed(INHERITED, entry.key, entry.direction, measured.place, message=told)
            self.located.passed.append(passed)
            return
        said = f"{told}; {failure(row, found, self.limit)}{_upstream(measured)}"
        self._blame(_kind(row.item), measured, row.item, said)

    def _measure(self, measured: _Measured, golden: FlowRecord) -> Iterator[str]:
        """Measure the outputs, and the inputs that no measured record gave; yield the records that gave a
        failing input. What the run was given differently is a root itself, and yields ""."""
        key, items = measured.key, measured.record.items
        made = {item.path: self._maker(key, item) for item in items if item.part != OUTPUT}
        # A value that a record gave has been measured there.
        mine, others = (
            [item for item in each if made.get(item.path) is None] for each in (items, golden.items)
        )
        rows = rows_of_operators(key, golden.entry.key, mine, others, self.reading)
        measured.inputs = [
            (item, self.errors[place])
            for item in items
            if (place := made.get(item.path)) is not None
        ]
        yield from (
            maker[0] for maker in made.values() if maker and self._fails(self.errors[maker])
        )
        for row in rows:
            if not row.is_matched:
                continue
            found = scaled_error(row, self.reading.mode)
            if row.is_output:
                measured.outputs.append((row, found))
                self.errors[key, row.item.path] = found
                continue
            measured.inputs.append((row.item, found))
            if found is not None and self._fails(found):
                kind = RootKind.WEIGHT if row.item.state_name else RootKind.INPUT
                said = f"{error_in_words(found, None)}; {failure(row, found, self.limit)}"
                self._blame(kind, measured, row.item, said)
                yield ""

    def _maker(self, key: str, item: Item) -> Place | None:
        """Return the record and the path of the output that a record got; None for one not measured."""
        producer = self.flow.producer(key, item.path)
        place = (producer.key, producer.path) if producer is not None else None
        return place if place in self.errors else None

    def _fails(self, found: ScaledError | None) -> bool:
        return found is not None and found.value > self.limit

    def _blame(self, kind: RootKind, measured: _Measured, item: Item, message: str) -> None:
        entry = measured.record.entry
        root = Root(kind, entry.key, entry.direction, measured.place, item.path, message=message)
        self.located.roots.append(root)

    def leave_out(self, record: FlowRecord, place: int) -> None:
        """Take note of a record without a partner."""
        entry = record.entry
        self.located.passed.append(
            Passed(
                UNCHECKED,
                entry.key,
                entry.direction,
                place,
                message="the golden run has nothing like it",
            )
        )

    def finish(self, records: int) -> Located:
        """Return what was found; each root says which failing variables read it."""
        located = self.located
        located.records = records
        readers: dict[str, list[str]] = {}
        for key, reader in located.edges:
            readers.setdefault(key, []).append(self.names[reader])
        reached = reached_from(located.edges)
        located.roots = [
            replace(
                root,
                reached=reached(root.key),
                message=root.message + _listed("; failing readers: ", readers.get(root.key, [])),
            )
            for root in located.roots
        ]
        return located


def _kind(item: Item) -> RootKind:
    """Return what a root is, by the variable that shows it."""
    if item.is_finite is False:
        return RootKind.NON_FINITE
    if item.state_name:
        return RootKind.WEIGHT
    return RootKind.INPUT if item.model_name else RootKind.ESTIMATE


def _upstream(measured: _Measured) -> str:
    told = [
        f"{_named(item) or item.path} with error {found.value:.6g}"
        for item, found in measured.inputs
        if found is not None
    ]
    return _listed("; inputs: ", told)


def _named(item: Item) -> str:
    return variable_of(item).removesuffix(": ")


def _listed(title: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{title}{', '.join(names[:_NAMED])}{more}"
