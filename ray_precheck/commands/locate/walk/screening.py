"""Which records of a pair of dumps the walk has to visit: those at which something can begin.

Comes in: the columns of two captures without tensors that have the same records (`columns`). Goes out: a
`Screen`, which `RootWalk` asks record by record. Called by the search of pairs.

Of nearly all records the columns show that the walk would find no root at them, whatever lies before them.
The conditions are bounds of those in `estimate` and `outside`: a record that is not cleared is no suspect,
but is visited, and judged there. Cleared are only records that have the same arguments as their partners;
collectives, updates of optimizers, and what gets a mask or memory that nothing had written, are visited.

Also here: what the walk knows of records that it has not visited, told from the columns when a visited record
asks for it.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ray_precheck.commands.locate.walk.columns import PairColumns
from ray_precheck.commands.locate.walk.estimate import (
    SAME_SUMS,
    STANDS_OUT,
    STEPPED,
    is_view,
    norm_of,
    suspicious,
)
from ray_precheck.commands.locate.walk.nouns import (
    OPTIMIZER,
    RECENT,
    RecentValue,
    Surroundings,
    Weights,
)
from ray_precheck.commands.locate.walk.outside import MOVED
from ray_precheck.commands.locate.walk.pair_form import NOBODY, PairForm
from ray_precheck.operators.effects import READS_NO_VALUES, UNINITIALISED
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.flow import Flow, FlowRecord, Producer, is_collective, writes_in_place
from ray_precheck.trace.items import Item
from ray_precheck.trace.side import FORWARD, CaptureSide, RecordEntry

# A bound that is a product is this much smaller than the quotient that it stands for, which is rounded.
_ROUNDED = 0.999


class LazyRecords(Mapping[str, FlowRecord]):
    """The records of a capture by their keys, read when they are asked for."""

    def __init__(self, side: CaptureSide, entries: Sequence[RecordEntry]) -> None:
        self._side = side
        self._entries = {entry.key: entry for entry in entries}
        self._read: dict[str, FlowRecord] = {}

    def __getitem__(self, key: str) -> FlowRecord:
        found = self._read.get(key)
        if found is None:
            entry = self._entries[key]
            found = self._read[key] = FlowRecord(entry, self._side.items(entry))
        return found

    def of_updates(self) -> Iterator[FlowRecord]:
        """Yield the updates of optimizers."""
        return (self[key] for key in self._entries if key.startswith(OPTIMIZER))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(slots=True)
class Screen:
    """What the columns tell of each record, by its place in the run.

    `is_cleared`: nothing can begin at the record. `is_judged`: there is an estimate of its own error.
    `worst` is the largest known difference of what it gave, NaN where none is known. `half_inputs` is the
    rounding of the half types that it got with a difference, `has_half_outputs` whether it gave some;
    `has_half_types`: a record has them. `giver_keys` are the records that gave what it got, `owners` the
    places of the records of all tensors, `given` the tensors that records gave. At the places `moved` a
    weight of a later step may differ by more than rounding; `writers` are the records that get a tensor to
    write into.
    """

    columns: PairColumns
    records: Mapping[str, FlowRecord]
    places: Mapping[str, int]
    giver_keys: Sequence[list[str]]
    owners: Sequence[int]
    given: Sequence[int]
    worst: Sequence[float]
    is_cleared: Sequence[bool]
    is_judged: Sequence[bool]
    half_inputs: Sequence[float]
    has_half_outputs: Sequence[bool]
    has_half_types: bool
    moved: Set[int]
    writers: Sequence[FlowRecord]
    _tensors: dict[str, dict[str, int]] = field(default_factory=dict)

    def forward(self, call: str, place: int) -> FlowRecord | None:
        """Return the forward record of a call before a place in the run; None where there is none."""
        found = self.columns.form.forwards.get(call, place)
        return self.records[self.columns.form.entries[found].key] if found < place else None

    def difference(self, key: str, path: str) -> float:
        """Return how a value that a record gave differs, 0 where that is not known."""
        tensor = self.tensor(key, path)
        found = self.columns.differences[tensor] if tensor != NOBODY else 0.0
        return found if found == found else 0.0

    def tensor(self, key: str, path: str) -> int:
        """Return the number of a tensor, `NOBODY` where the record has none of this path."""
        found = self._tensors.get(key)
        if found is None:
            begin = self.columns.form.begins[self.places[key]]
            paths = [item.path for item in self.records[key].items if item.is_tensor]
            # Of a path that stands twice the first one counts.
            found = {path: begin + at for at, path in reversed([*enumerate(paths)])}
            self._tensors[key] = found
        return found.get(path, NOBODY)

    def name_of(self, tensor: int) -> tuple[str, str]:
        """Return the key of the record and the path of a tensor."""
        place = self.owners[tensor]
        key = self.columns.form.entries[place].key
        tensors = [item for item in self.records[key].items if item.is_tensor]
        return key, tensors[tensor - self.columns.form.begins[place]].path


def screen_of(
    columns: PairColumns,
    target: CaptureSide,
    weights: Weights,
    golden_names: Mapping[tuple[object, ...], str],
    *,
    is_first_step: bool,
) -> Screen:
    """Return what the columns tell of each record; `weights` learns what optimizers update, `golden_names`
    has the parameters of the golden run by their values."""
    entries = columns.form.entries
    records = LazyRecords(target, entries)
    weights.learn(records.of_updates())
    arrays = _Arrays.of(columns)
    visited = np.zeros(len(entries), dtype=bool)
    hidden, unset = _hidden(columns, target.header.framework)
    visited[[*hidden, *columns.unlike, *columns.masked, *_with_zero_gradients(columns)]] = True
    visited[_readers(arrays, unset | columns.unlike)] = True
    # Of these a gradient cannot be told from the columns either: what its forward pass has kept is not known.
    at, forwards = columns.form.gradients, columns.form.forwards
    visited[at] |= visited[[forwards.get(entries[place].call, place) for place in at]]
    visited[arrays.owners[_given_otherwise(arrays, is_first_step=is_first_step)]] = True
    visited[arrays.owners[_erring(columns, arrays)]] = True
    visited[_first_with_other_weights(columns, arrays, weights)] = True
    visited[[*_named_otherwise(columns, arrays, weights, golden_names)]] = True
    has_moved = arrays.weights & (arrays.givers == NOBODY) & (arrays.known > _ROUNDED * MOVED)
    moved = np.zeros(0) if is_first_step else arrays.owners[has_moved & ~arrays.is_output]
    is_judged = _any_of(arrays, arrays.is_output & (arrays.floors > 0) & arrays.is_known)
    half_inputs = np.where(
        ~arrays.is_output & arrays.halves & (arrays.known > 0), arrays.floors, 0.0
    )
    has_half_outputs = _any_of(arrays, arrays.is_output & arrays.halves)
    return Screen(
        columns,
        records,
        columns.form.places,
        columns.form.giver_keys(columns.givers),
        arrays.owners.tolist(),
        np.flatnonzero(arrays.is_output & ~_left_out(columns, arrays)).tolist(),
        _largest(arrays, arrays.is_output, math.nan).tolist(),
        (~visited).tolist(),
        is_judged.tolist(),
        _by_record(arrays, half_inputs).tolist(),
        has_half_outputs.tolist(),
        bool(arrays.halves.any()),
        frozenset(moved.tolist()),
        [records[entries[place].key] for place in sorted(columns.form.writers)],
    )


class _Arrays(NamedTuple):
    """The columns as arrays, `(N,)`: `known` are the differences, -1 where they are not known; `floors` the
    least differences of the dtypes, `halves` and `weights` tell of half types and weights."""

    owners: Array
    givers: Array
    is_output: Array
    is_known: Array
    known: Array
    floors: Array
    halves: Array
    weights: Array
    records: int

    @classmethod
    def of(cls, columns: PairColumns) -> "_Arrays":
        form, differences = columns.form, np.array(columns.differences)
        is_known = ~np.isnan(differences)
        return cls(
            form.owners,
            np.array(columns.givers, dtype=np.int64),
            form.are_outputs,
            is_known,
            np.where(is_known, differences, -1.0),
            form.floors,
            form.halves,
            form.are_weights,
            len(form.begins),
        )


def _left_out(columns: PairColumns, arrays: _Arrays) -> Array:
    """Return which tensors have no values because those of the ranks were not put together, `(N,)` bool."""
    found = np.zeros(len(arrays.owners), dtype=bool)
    for tensor in np.flatnonzero(arrays.is_output & ~arrays.is_known).tolist():
        found[tensor] = columns.item(tensor).is_left_out
    return found


def _by_record(arrays: _Arrays, values: Array, least: float = 0.0) -> Array:
    """Return the largest of the values of the tensors of each record, `(R,)`, at least `least`."""
    found = np.full(arrays.records, least)
    np.maximum.at(found, arrays.owners, values)
    return found


def _any_of(arrays: _Arrays, chosen: Array) -> Array:
    """Return which records have a tensor that is chosen, `(R,)` bool."""
    found = np.zeros(arrays.records, dtype=bool)
    found[arrays.owners[chosen]] = True
    return found


def _largest(arrays: _Arrays, chosen: Array, unknown: float = 0.0) -> Array:
    """Return the largest known difference of the chosen tensors of each record, `(R,)`."""
    found = _by_record(arrays, np.where(chosen, arrays.known, -1.0), -1.0)
    return np.where(found < 0.0, unknown, found)


def _hidden(columns: PairColumns, framework: str) -> tuple[Set[int], Set[int]]:
    """Return the records whose values, or the judgement of which, are not what the columns say, and of these
    the ones that gave memory that nothing had written."""
    if columns.form not in _HIDDEN:
        _HIDDEN[columns.form] = _hidden_by_name(columns.form, framework)
    named = _HIDDEN[columns.form]
    unset = named.unset.union(_views_before_writers(columns))
    hidden = named.hidden | unset | columns.form.writers
    return hidden | (named.in_place if unset else set()), unset


class _HiddenByName(NamedTuple):
    """Of the records that are hidden because of their operators' names those that always are, those that gave
    memory that nothing had written, and those that are where a run has such memory."""

    hidden: frozenset[int]
    unset: frozenset[int]
    in_place: frozenset[int]


# The framework of a form is always the same.
_HIDDEN: "WeakKeyDictionary[PairForm, _HiddenByName]" = WeakKeyDictionary()


def _hidden_by_name(form: PairForm, framework: str) -> _HiddenByName:
    hidden, unset, in_place = set(), set(), set()
    for place, entry in enumerate(form.entries):
        name = entry.call.rpartition(".")[0]
        is_read, is_unset, is_written, is_other = _facts(name, framework)
        if is_unset:
            unset.add(place)
        if is_other or is_unset or (is_read and entry.direction == FORWARD):
            hidden.add(place)
        elif is_written:
            in_place.add(place)
    return _HiddenByName(frozenset(hidden), frozenset(unset), frozenset(in_place))


def _views_before_writers(columns: PairColumns) -> Iterator[int]:
    """Yield the views of tensors that a later record only writes into (`UnsetMemory.look_ahead`)."""
    for place in columns.form.writers:
        for tensor in range(columns.form.begins[place], columns.form.outputs[place]):
            giver = columns.givers[tensor]
            while giver != NOBODY:
                view = int(columns.form.owners[giver])
                if not is_view(columns.form.entries[view].call):
                    break
                yield view
                first = columns.form.begins[view]
                giver = columns.givers[first] if first < columns.form.outputs[view] else NOBODY


def _named_otherwise(
    columns: PairColumns,
    arrays: "_Arrays",
    weights: Weights,
    golden_names: Mapping[tuple[object, ...], str],
) -> Iterator[int]:
    """Yield the records that may get another parameter than their partners, as updates tell them apart."""
    is_other = ~arrays.is_output & (arrays.givers == NOBODY) & (arrays.known > 0)
    for tensor in np.flatnonzero(is_other).tolist():
        name = weights.name_of(columns.item(tensor))
        if name:
            golden = columns.partner(tensor)
            if golden is not None and golden_names.get(golden.mark, name) not in (name, ""):
                yield int(arrays.owners[tensor])


@lru_cache(maxsize=1 << 12)
def _facts(name: str, framework: str) -> tuple[bool, bool, bool, bool]:
    """Return of an operator, `Torch.empty`, whether it reads no values, gives memory that nothing has
    written, writes into its first argument, and is an exchange between ranks or an optimizer's update."""
    call = f"{name}.0"
    return (
        bool(READS_NO_VALUES.of(name, framework)),
        bool(UNINITIALISED.of(name, framework)),
        writes_in_place(call),
        is_collective(call) or call.startswith(OPTIMIZER),
    )


def _with_zero_gradients(columns: PairColumns) -> Iterator[int]:
    """Yield backward records that gave a vector of zeros: of such a sum no cancellation can be estimated."""
    form = columns.form
    vectors = {number for number, kind in enumerate(form.known) if len(kind.shape) == 1}
    for place in form.gradients:
        given = range(form.outputs[place], form.ends[place])
        if any(form.kinds[each] in vectors and not norm_of(columns.item(each)) for each in given):
            yield place


def _readers(arrays: _Arrays, givers: Collection[int]) -> Array:
    """Return the records that got what some records gave."""
    has_giver = arrays.givers != NOBODY
    is_read = np.isin(arrays.owners[arrays.givers[has_giver]], [*givers])
    found: Array = arrays.owners[has_giver][is_read]
    return found


def _given_otherwise(arrays: _Arrays, *, is_first_step: bool) -> Array:
    """Return the tensors that were got and that may differ by more than what gave them explains, `(N,)` bool:
    where no record did, they may be inputs, weights, or results of what was not captured."""
    has_giver = arrays.givers != NOBODY
    expected = np.where(has_giver, arrays.known[arrays.givers], 0.0)
    limit = _ROUNDED * STANDS_OUT * np.maximum(expected, arrays.floors)
    limit[~has_giver] = np.minimum(limit[~has_giver], _ROUNDED * SAME_SUMS)
    limit[arrays.weights & ~has_giver] = _ROUNDED * SAME_SUMS if is_first_step else np.inf
    found: Array = ~arrays.is_output & ((arrays.known > limit) | (arrays.known == np.inf))
    return found


def _erring(columns: PairColumns, arrays: _Arrays) -> Array:
    """Return the tensors that were given and may differ by more than what their records got, `(N,)` bool.

    A gradient depends on what its forward pass has kept, too.
    """
    explained = _largest(arrays, ~arrays.is_output)
    kept = np.maximum(explained, _largest(arrays, arrays.is_output))
    calls = {place: columns.form.entries[place].call for place in columns.form.gradients}
    forwards = columns.form.forwards
    own = [place for place, call in calls.items() if forwards.get(call, place) < place]
    forward = [forwards[calls[place]] for place in own]
    explained[own] = np.maximum(explained[own], kept[forward])
    limits = np.where(_any_of(arrays, arrays.halves), suspicious("float16"), suspicious("float32"))
    limit = _ROUNDED * limits[arrays.owners] * np.maximum(explained[arrays.owners], arrays.floors)
    is_beyond = (arrays.floors > 0) & ((arrays.known > limit) | (arrays.known == np.inf))
    found: Array = arrays.is_output & is_beyond
    return found


def _first_with_other_weights(
    columns: PairColumns, arrays: _Arrays, weights: Weights
) -> Sequence[int]:
    """Return the first record whose weights differ so much that the walk has to know, in a list; none where
    there is none."""
    is_other = ~arrays.is_output & (arrays.known > STEPPED)
    if not weights.are_updated:
        is_other &= arrays.weights
    for tensor in np.flatnonzero(is_other).tolist():
        if arrays.weights[tensor] or weights.is_updated(columns.item(tensor)):
            return [int(arrays.owners[tensor])]
    return []


@dataclass(slots=True)
class ColumnFlow(Flow):
    """The data flow of a capture as its columns have it."""

    screen: Screen = field(kw_only=True)

    def producer(self, key: str, path: str) -> Producer | None:
        """Return who gave a value to a record; None where no record did."""
        tensor = self.screen.tensor(key, path)
        giver = self.screen.columns.givers[tensor] if tensor != NOBODY else NOBODY
        if giver == NOBODY:
            return None
        return Producer(*self.screen.name_of(giver), self.screen.owners[giver], by_content=False)

    def first_use(self, key: str, path: str) -> tuple[str, str] | None:
        """Return where a value that no record gave was got first; None for another value."""
        first = self.screen.columns.firsts.get(self.screen.tensor(key, path))
        return None if first is None else self.screen.name_of(first)

    def is_used(self, key: str, path: str) -> bool:
        """Return whether a later record gets a value that a record gave."""
        return self.screen.tensor(key, path) in self.screen.columns.used

    def readers(self) -> Mapping[str, str]:
        """Return the first record that gets what one gave, by its key."""
        found: dict[int, int] = {}
        owners = self.screen.owners
        for tensor, giver in enumerate(self.screen.columns.givers):
            if giver != NOBODY:
                found.setdefault(owners[giver], owners[tensor])
        entries = self.screen.columns.form.entries
        return {entries[giver].key: entries[reader].key for giver, reader in found.items()}


class ColumnSurroundings(Surroundings):
    """The values that were given last, as the columns have them: of records that were visited the differences
    that the walk has noted."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen
        self._place = 0
        columns, given = screen.columns, screen.given
        kinds, first = np.unique(np.array(columns.form.kinds)[given], return_index=True)
        # The dtypes of what was given, each with the record that gave the first of them.
        self._dtypes = sorted(
            (screen.owners[given[at]], columns.form.known[kind].dtype)
            for kind, at in zip(kinds.tolist(), first.tolist(), strict=True)
        )

    def reach(self, place: int) -> None:
        """Take note of the place of the record that is visited."""
        super().reach(place)
        self._place = place
        for first, dtype in self._dtypes:
            if first >= place:
                break
            self.learn_dtype(dtype)

    def note(self, key: str, item: Item, difference: float, *, is_dangling: bool) -> None:
        """Take note of a value that a visited record gave."""
        self._screen.columns.differences[self._screen.tensor(key, item.path)] = difference

    def expected(self, item: Item) -> float:
        """Return the relative difference that a value may have."""
        self._fill()
        return super().expected(item)

    def before(self, item: Item) -> str:
        """Return the record that probably lies before a value."""
        self._fill()
        return super().before(item)

    def _fill(self) -> None:
        screen, columns = self._screen, self._screen.columns
        end = bisect_left(screen.given, columns.form.begins[self._place])
        self._recent.clear()
        for tensor in screen.given[max(0, end - RECENT) : end]:
            self._recent.append(
                RecentValue(
                    columns.form.entries[screen.owners[tensor]].key,
                    columns.form.known[columns.form.kinds[tensor]].elements,
                    columns.differences[tensor],
                    tensor not in columns.used,
                )
            )
