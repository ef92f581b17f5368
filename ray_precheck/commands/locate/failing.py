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
    failure,
    in_words,
    largest_error,
    scaled_error,
    variable_of,
)
from ray_precheck.trace.flow import Flow, FlowRecord, flow_of
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import CaptureSide

# As many variables are named in the message of a root.
_NAMED = 8
Place = tuple[str, str]


@dataclass(slots=True)
class _Measured:
    """A record with its partner: the rows of its inputs and outputs, each with its error."""

    record: FlowRecord
    place: int
    inputs: list[tuple[TensorRow, ScaledError | None]] = field(default_factory=list)
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
            search.take(_Measured(record, place), golden, other)
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
    """A search that goes through the records in the order of the run. `failing` has the errors of failing
    outputs by key and path; `read_by` the readers of a record whose outputs fail, too."""

    limit: float
    flow: Flow
    reading: Reading
    located: Located = field(default_factory=Located)
    failing: dict[Place, ScaledError] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def take(self, measured: _Measured, golden: CaptureSide, other: FlowRecord) -> None:
        """Measure a record and its partner, and tell whether it is a root or passes an error on."""
        record = measured.record
        rows = rows_of_operators(
            record.entry.key, other.entry.key, record.items, other.items, self.reading
        )
        for row in rows:
            if row.is_matched:
                pair = row, scaled_error(row, self.reading.mode)
                (measured.outputs if row.is_output else measured.inputs).append(pair)
        self.located.compared += 1
        self.located.judged += any(found is not None for _, found in measured.outputs)
        worst = measured.worst(self.limit)
        before = [*self._failing_inputs(measured)]
        if worst is None:
            return
        row, found = worst
        for each, error in measured.outputs:
            if error is not None and error.value > self.limit:
                self.failing[measured.key, each.item.path] = error
        self.names[measured.key] = _named(row.item) or measured.key
        entry = record.entry
        told = f"{variable_of(row.item)}{in_words(found, largest_error(e for _, e in measured.inputs))}"
        if before:
            self.located.edges += [(key, measured.key) for key in dict.fromkeys(before) if key]
            passed = Passed(INHERITED, entry.key, entry.direction, measured.place, message=told)
            self.located.passed.append(passed)
            return
        said = f"{told}; {failure(row, found, self.limit)}{_upstream(measured)}"
        kind = _kind(row.item)
        root = Root(kind, entry.key, entry.direction, measured.place, row.item.path, message=said)
        self.located.roots.append(root)

    def _failing_inputs(self, measured: _Measured) -> Iterator[str]:
        """Yield the records that gave a failing input; of a value that no record gave, which differs from the
        golden run's, "", and what the run was given is a root itself."""
        for row, found in measured.inputs:
            producer = self.flow.producer(measured.key, row.item.path)
            if producer is not None:
                if (producer.key, producer.path) in self.failing:
                    yield producer.key
            elif found is not None and found.value > self.limit:
                entry = measured.record.entry
                kind = RootKind.WEIGHT if row.item.state_name else RootKind.INPUT
                said = (
                    f"{in_words(found, None)}: no record gave it; {failure(row, found, self.limit)}"
                )
                self.located.roots.append(
                    Root(
                        kind,
                        entry.key,
                        entry.direction,
                        measured.place,
                        row.item.path,
                        message=said,
                    )
                )
                yield ""

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
        f"{_named(row.item) or row.item.path} with error {found.value:.6g}"
        for row, found in measured.inputs
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
