"""What all pairs of dumps of two forms have in common, whatever their numbers are.

Comes in: two forms (`trace.forms`). Goes out: a `PairForm`, None for forms with other records. Called by
`columns`, which reads the numbers of a pair: the ranks of a run, and often both runs, have one form.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ray_precheck.commands.locate.walk.estimate import floor_of, has_half_digits
from ray_precheck.commands.locate.walk.nouns import weights_among
from ray_precheck.numerics.statistics import FIELDS
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.flow import is_collective
from ray_precheck.trace.forms import DumpForm, blank_of
from ray_precheck.trace.items import INPUT, NUMBERS, OUTPUT, PARAMETERS, PARTS, Item, unfolded
from ray_precheck.trace.side import BACKWARD, FORWARD, RecordEntry, calls_among

NOBODY = -1
# The keyword of the tensors that a call only writes into.
_WRITTEN = "out"
_NO_BLANKS = (NOBODY,) * len(FIELDS)


class TensorKind(NamedTuple):
    """What tensors have in common: the dtype as the dump spells it and the shape; `bucket` is the number of
    dtype and count, which views of one tensor share."""

    dtype: str
    shape: tuple[int, ...]
    elements: int
    bucket: int


@dataclass(eq=False)
class PairForm:
    """What two dumps of two forms have in common, whatever their numbers are.

    `entries` are the records of calls in the order of the run. `begins` and `outputs` are, by record, its
    first tensor and the first of those that it gives. `kinds` is, by tensor, a place in `known`. `weights`
    are those that are got as weights, but for what only an update tells of. `blanks` are the blanks of the
    statistics of each tensor of the target, `their_blanks` of its partner, `(N, 4)` int64, `NOBODY` for none;
    `alone` are the tensors without a partner. Of the records, `unlike` differ from their partners in more
    than blanks, and `writers` get a tensor to write into (`out`). `compared` are records with a blank of
    theirs, and that of their partners, which are no statistics.
    """

    entries: Sequence[RecordEntry]
    begins: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    known: list[TensorKind] = field(default_factory=list)
    weights: set[int] = field(default_factory=set)
    blanks: Array = field(default_factory=lambda: _table([]))
    their_blanks: Array = field(default_factory=lambda: _table([]))
    alone: set[int] = field(default_factory=set)
    writers: set[int] = field(default_factory=set)
    unlike: set[int] = field(default_factory=set)
    compared: list[tuple[int, int, int]] = field(default_factory=list)
    _givers: list[int] = field(default_factory=list)
    _giver_keys: list[list[str]] = field(default_factory=list)

    def giver_keys(self, givers: list[int]) -> list[list[str]]:
        """Return the keys of the records that gave what each record got, one for each value, by the tensors
        that gave these: mostly those of the last pair."""
        if givers != self._givers:
            keys = [self.entries[owner].key for owner in self.owners.tolist()]
            self._giver_keys = [
                [keys[giver] for giver in givers[begin:end] if giver != NOBODY]
                for begin, end in zip(self.begins, self.outputs, strict=True)
            ]
            self._givers = givers
        return self._giver_keys

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The places of the records in the run by their keys."""
        return {entry.key: place for place, entry in enumerate(self.entries)}

    @cached_property
    def forwards(self) -> Mapping[str, int]:
        """The places of forward records by their calls."""
        return {
            entry.call: place
            for place, entry in enumerate(self.entries)
            if entry.direction == FORWARD
        }

    @cached_property
    def gradients(self) -> list[int]:
        """The places of backward records."""
        return [place for place, entry in enumerate(self.entries) if entry.direction == BACKWARD]

    @cached_property
    def ends(self) -> list[int]:
        """Behind which tensor each record ends."""
        return [*self.begins[1:], len(self.kinds)]

    @cached_property
    def owners(self) -> Array:
        """The record of each tensor, `(N,)` int64."""
        return np.repeat(np.arange(len(self.begins)), np.diff([*self.begins, len(self.kinds)]))

    @cached_property
    def are_outputs(self) -> Array:
        """Which tensors are given, `(N,)` bool."""
        outputs = np.array(self.outputs, np.int64)
        found: Array = np.arange(len(self.kinds)) >= outputs[self.owners]
        return found

    @cached_property
    def counts(self) -> Array:
        """The number of elements of each tensor, `(N,)` float64."""
        return self._of_kinds([kind.elements for kind in self.known], np.float64)

    @cached_property
    def buckets(self) -> Array:
        """The bucket of each tensor, `(N,)` int64, `NOBODY` for those that have no elements."""
        found = [kind.bucket if kind.elements else NOBODY for kind in self.known]
        return self._of_kinds(found, np.int64)

    @cached_property
    def floors(self) -> Array:
        """The least difference of the dtype of each tensor, `(N,)` float64."""
        return self._of_kinds([floor_of(kind.dtype) for kind in self.known], np.float64)

    @cached_property
    def halves(self) -> Array:
        """Which tensors have a half type, `(N,)` bool."""
        return self._of_kinds([has_half_digits(kind.dtype) for kind in self.known], np.bool_)

    @cached_property
    def are_weights(self) -> Array:
        """`weights` as `(N,)` bool."""
        found = np.zeros(len(self.kinds), dtype=bool)
        found[[*self.weights]] = True
        return found

    def _of_kinds(self, values: Sequence[float], dtype: type[np.generic]) -> Array:
        found: Array = np.array(values, dtype)[np.array(self.kinds, np.int64)]
        return found


# What is known of two forms is kept as long as they are.
_PAIRS: "WeakKeyDictionary[DumpForm, WeakKeyDictionary[DumpForm, PairForm | None]]" = (
    WeakKeyDictionary()
)


def form_of_pair(ours: DumpForm, theirs: DumpForm) -> PairForm | None:
    """Return what all pairs of dumps of two forms have in common; None where these have not the same records
    in the same order, or values with an identity of their own, as captures of graphs have."""
    known = _PAIRS.setdefault(ours, WeakKeyDictionary())
    if theirs not in known:
        known[theirs] = _read_pair(ours, theirs)
    return known[theirs]


def _read_pair(ours: DumpForm, theirs: DumpForm) -> PairForm | None:
    if [*ours.places] != [*theirs.places]:
        return None
    template = ours.template()
    golden = template if ours is theirs else theirs.template()
    if not (template and golden):
        return None
    reading = _PairReading(PairForm(calls_among(ours.entries)))
    for place, entry in enumerate(reading.form.entries):
        both = template[entry.key], golden[entry.key]
        mine, other = (each if isinstance(each, dict) else {} for each in both)
        if not reading.take(place, entry, mine, other):
            return None
    reading.form.blanks, reading.form.their_blanks = map(
        _table, (reading.blanks, reading.their_blanks)
    )
    return reading.form


def _table(blanks: Sequence[Sequence[int]]) -> Array:
    return np.array(blanks, np.int64).reshape(-1, len(FIELDS))


@dataclass(slots=True)
class _PairReading:
    """The state while the templates of a pair are read."""

    form: PairForm
    blanks: list[Sequence[int]] = field(default_factory=list)
    their_blanks: list[Sequence[int]] = field(default_factory=list)
    _kinds: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _parameters: set[int] = field(default_factory=set)
    _buckets: dict[tuple[str, int], int] = field(default_factory=dict)

    def take(
        self, place: int, entry: RecordEntry, ours: Mapping[str, Any], theirs: Mapping[str, Any]
    ) -> bool:
        """Take a record and its partner; returns False where a value has an identity of its own."""
        form, given_from, as_weights = self.form, NOBODY, weights_among(entry.call)
        form.begins.append(len(form.kinds))
        fields = tuple(ours)
        if set(theirs) != set(ours):
            form.unlike.add(place)
        for name, part in _parts_among(fields):
            if part == OUTPUT and given_from == NOBODY:
                given_from = len(form.kinds)
            names, mine, others = _paired(ours[name], theirs.get(name), name, entry)
            if names is not NUMBERS and any(each.startswith(_WRITTEN) for each in names):
                form.writers.add(place)
            if others is None:
                form.unlike.add(place)
                others = [None] * len(mine)
            elif part == PARAMETERS and not names:
                self._compare(place, ours[name], theirs[name])
            for element, other, key in zip(mine, others, names, strict=False):
                kind = NOBODY
                if element is not None and "dtype" in element:
                    kind = self._kind(element)
                if kind == NOBODY:
                    self._compare(place, element, other)
                    continue
                if "variable" in element or "origin" in element:
                    return False
                if not _are_alike(element, other):
                    form.unlike.add(place)
                tensor = len(form.kinds)
                if part != OUTPUT and (
                    kind in self._parameters
                    or key in as_weights
                    or part == PARAMETERS
                    or "parameter" in element
                    or "buffer" in element
                ):
                    form.weights.add(tensor)
                if other is None:
                    form.alone.add(tensor)
                form.kinds.append(kind)
                self.blanks.append([blank_of(element.get(name)) for name in FIELDS])
                is_there = type(other) is dict
                self.their_blanks.append(
                    [blank_of(other.get(name)) for name in FIELDS] if is_there else _NO_BLANKS
                )
        form.outputs.append(len(form.kinds) if given_from == NOBODY else given_from)
        return True

    def _compare(self, place: int, mine: Any, other: Any) -> None:
        """Take note that a value has to be as its partner is."""
        found: list[tuple[int, int]] = []
        if _are_comparable(mine, other, found):
            self.form.compared += [(place, *each) for each in found]
        else:
            self.form.unlike.add(place)

    def _kind(self, element: Mapping[str, Any]) -> int:
        """Return the number of the kind of a tensor, `NOBODY` for what is none."""
        item = Item("", INPUT, element)
        if not item.is_tensor:
            return NOBODY
        shape = item.shape or ()
        key = (element.get("type"), item.dtype, *shape)
        if key in self._kinds:
            return self._kinds[key]
        number, count = len(self.form.known), math.prod(shape)
        bucket = self._buckets.setdefault((item.dtype, count), len(self._buckets))
        self.form.known.append(TensorKind(item.dtype, shape, count, bucket))
        self._kinds[key] = number
        if item.type_name.endswith("Parameter"):
            self._parameters.add(number)
        return number


def _are_comparable(mine: Any, other: Any, found: list[tuple[int, int]]) -> bool:
    """Return whether two values of templates are alike but for their blanks, which are found."""
    if type(mine) is dict is type(other):
        return mine.keys() == other.keys() and all(
            _are_comparable(each, other[name], found) for name, each in mine.items()
        )
    if type(mine) is list is type(other):
        return len(mine) == len(other) and all(
            _are_comparable(*each, found) for each in zip(mine, other, strict=True)
        )
    blanks = blank_of(mine), blank_of(other)
    if NOBODY not in blanks:
        found.append(blanks)
        return True
    return bool(mine == other)


@lru_cache(maxsize=256)
def _parts_among(fields: tuple[str, ...]) -> Sequence[tuple[str, str]]:
    """Return the fields of a record that hold values, in the order of a comparison, each with its part."""
    return [(name, part) for name, part in PARTS.items() if name in fields]


def _paired(
    mine: Any, others: Any, name: str, entry: RecordEntry
) -> tuple[Sequence[str], Sequence[Any], Sequence[Any] | None]:
    """Return the values of one field of a record with the ends of their paths, and those of its partner; None
    for these where they have other paths."""
    if not mine and others == mine:
        return (), (), ()
    if type(mine) is list and len(mine) <= len(NUMBERS) and not is_collective(entry.call):
        for each in mine:
            if type(each) is not dict or "type" not in each:
                break
        else:
            is_alike = type(others) is list and len(others) == len(mine)
            return NUMBERS, mine, others if is_alike else None
    names, mine = unfolded(mine, name)
    their_names, others = unfolded(others, name)
    return names, mine, others if names == their_names else None


def _are_alike(element: Mapping[str, Any], other: Any) -> bool:
    """Return whether a tensor and its partner differ in their statistics alone."""
    return (
        type(other) is dict
        and element["dtype"] == other.get("dtype")
        and element["shape"] == other.get("shape")
        and element.get("type") == other.get("type")
        and element.get("requires_grad") is other.get("requires_grad")
        and element.get("parameter") == other.get("parameter")
        and element.get("buffer") == other.get("buffer")
    )
