"""The tensors of two captures with the same records, as columns: what differs, and who gave what.

Comes in: two captures that were decoded as a whole. Goes out: `PairColumns`, None where the captures have not
the same records in the same order. Called by `screening`, which looks for the few records that the walk has
to visit.

The columns hold what `flow_of` and `statistics_difference` say of the same values, in a fifth of the time: no
`Item` is made of a value, and NumPy computes the differences of all of them at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, compress
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ray_precheck.commands.locate.walk.estimate import MASKED, is_masked, statistics_difference
from ray_precheck.commands.locate.walk.nouns import weights_among
from ray_precheck.numerics.statistics import FIELDS, NORM
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.flow import MOST_ALIKE, is_close, is_collective, mark_of
from ray_precheck.trace.items import INPUT, NUMBERS, OUTPUT, PARAMETERS, PARTS, Item, unfolded
from ray_precheck.trace.side import DecodedSide, RecordEntry, call_entries

NOBODY = -1
_NORM = FIELDS.index(NORM)
_statistics = itemgetter(*FIELDS)
_Statistics = tuple[Any, ...]
# What `mark_of` has, with the bucket for dtype and count.
_Mark = tuple[int, Any, Any]
_FLOATS = {float}
# The end of a mark that tells nothing: there is neither a statistic nor a digest.
_UNKNOWN = ("", None)
# The keyword of the tensors that a call only writes into.
_WRITTEN = "out"
_NO_STATISTICS = (None,) * len(FIELDS)


class TensorKind(NamedTuple):
    """What tensors have in common: the dtype as the dump spells it and the shape; `bucket` is the number of
    dtype and count, which views of one tensor share."""

    dtype: str
    shape: tuple[int, ...]
    elements: int
    bucket: int


@dataclass
class PairColumns:
    """The tensors of all records of the target in the order of the run, by their numbers.

    `begins` and `outputs` are, by record, its first tensor and the first of those that it gives. `kinds` is,
    by tensor, a place in `known`. `differences` are those from the golden run, NaN where they are not known.
    `givers` is the tensor that gave one, `NOBODY` where none did; `marks` tell tensors from each other.
    `weights` are those that are got as weights, but for what only an update tells of; `partners` has the
    elements of the golden run for the tensors that differ from it. Of the records, `unlike` differ from their
    partners in more than the statistics of tensors, `writers` get a tensor to write into (`out`), and
    `masked` have values of the size of a mask.
    """

    entries: Sequence[RecordEntry]
    begins: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    known: list[TensorKind] = field(default_factory=list)
    elements: list[Mapping[str, Any]] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    givers: list[int] = field(default_factory=list)
    marks: Sequence["_Mark | None"] = ()
    weights: set[int] = field(default_factory=set)
    partners: Mapping[int, Any] = field(default_factory=dict)
    writers: set[int] = field(default_factory=set)
    unlike: set[int] = field(default_factory=set)
    masked: set[int] = field(default_factory=set)

    @cached_property
    def ends(self) -> list[int]:
        """Behind which tensor each record ends."""
        return [*self.begins[1:], len(self.kinds)]

    @cached_property
    def used(self) -> set[int]:
        """The tensors that later records get."""
        return {*self.givers}

    @cached_property
    def firsts(self) -> Mapping[int, int]:
        """Of the tensors that were got and that nobody gave, the first with the same values."""
        known: dict[tuple[Any, ...], int] = {}
        found = {}
        for begin, end in zip(self.begins, self.outputs, strict=True):
            for tensor in range(begin, end):
                if self.givers[tensor] == NOBODY and self.marks[tensor] is not None:
                    item = self.item(tensor)
                    values = self.marks[tensor], item.norm, item.digest
                    found[tensor] = known.setdefault(values, tensor)
        return found

    @cached_property
    def owners(self) -> Array:
        """The record of each tensor, `(N,)` int64."""
        return np.repeat(np.arange(len(self.begins)), np.diff([*self.begins, len(self.kinds)]))

    def item(self, tensor: int) -> Item:
        """Return a tensor without its path."""
        return Item("", INPUT, self.elements[tensor])


def columns_of(target: DecodedSide, golden: DecodedSide) -> PairColumns | None:
    """Return the columns of a pair; None where both have not the same records in the same order, or values
    with an identity of their own, as captures of graphs have."""
    if [*target.decoded] != [*golden.decoded]:
        return None
    columns = PairColumns(call_entries(target))
    reading = _Reading(columns)
    for place, entry in enumerate(columns.entries):
        if not reading.take(place, entry, target.record(entry), golden.record(entry)):
            return None
    reading.measure()
    reading.follow()
    return columns


@dataclass(slots=True)
class _Reading:
    """The state while the records of a pair are read. `numbers` are the statistics of each tensor of the
    target; `differing` are tensors that are not as in the golden run, `theirs` what these are there."""

    columns: PairColumns
    numbers: list[_Statistics] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    theirs: list[Any] = field(default_factory=list)
    _kinds: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _parameters: set[int] = field(default_factory=set)
    _buckets: dict[tuple[str, int], int] = field(default_factory=dict)

    def take(
        self, place: int, entry: RecordEntry, ours: Mapping[str, Any], theirs: Mapping[str, Any]
    ) -> bool:
        """Take a record and its partner; returns False where a value has an identity of its own."""
        columns, given_from, as_weights = self.columns, NOBODY, weights_among(entry.call)
        kinds, known, weights = columns.kinds, self._kinds, columns.weights
        parameters = self._parameters
        columns.begins.append(len(kinds))
        fields = tuple(ours)
        if fields != tuple(theirs) and set(theirs) != set(ours):
            columns.unlike.add(place)
        for name, part in _parts_among(fields):
            if part == OUTPUT and given_from == NOBODY:
                given_from = len(kinds)
            names, mine, others = _paired(ours[name], theirs.get(name), name, entry)
            if names is not NUMBERS and any(each.startswith(_WRITTEN) for each in names):
                columns.writers.add(place)
            if others is None or (part == PARAMETERS and not names and ours[name] != theirs[name]):
                columns.unlike.add(place)
            if others is None:
                others = [None] * len(mine)
            for element, other, key in zip(mine, others, names, strict=False):
                if element is None or "dtype" not in element:
                    if element != other:
                        columns.unlike.add(place)
                    continue
                try:
                    of_kind = (element["type"], element["dtype"], *element["shape"])
                    kind = known[of_kind]
                    numbers = _statistics(element)
                except (KeyError, TypeError):
                    kind, numbers = self._new_kind(element), tuple(map(element.get, FIELDS))
                if element != other:
                    if kind == NOBODY or not _are_alike(element, other):
                        columns.unlike.add(place)
                    is_same = False
                else:
                    is_same = numbers[0] is not None
                if kind == NOBODY:
                    continue
                if "variable" in element or "origin" in element:
                    return False
                if not is_same:
                    self.differing.append(len(kinds))
                    self.theirs.append(other)
                if part != OUTPUT and (
                    kind in parameters
                    or key in as_weights
                    or part == PARAMETERS
                    or "parameter" in element
                    or "buffer" in element
                ):
                    weights.add(len(kinds))
                kinds.append(kind)
                columns.elements.append(element)
                self.numbers.append(numbers)
        columns.outputs.append(len(kinds) if given_from == NOBODY else given_from)
        return True

    def _new_kind(self, element: Mapping[str, Any]) -> int:
        """Return the number of the kind of a tensor, `NOBODY` for what is none."""
        item = Item("", INPUT, element)
        if not item.is_tensor:
            return NOBODY
        shape = item.shape or ()
        key = (element.get("type"), item.dtype, *shape)
        if key in self._kinds:
            return self._kinds[key]
        number, count = len(self.columns.known), math.prod(shape)
        bucket = self._buckets.setdefault((item.dtype, count), len(self._buckets))
        self.columns.known.append(TensorKind(item.dtype, shape, count, bucket))
        self._kinds[key] = number
        if item.type_name.endswith("Parameter"):
            self._parameters.add(number)
        return number

    def measure(self) -> None:
        """Compute the differences of all tensors: those of finite statistics at once."""
        columns = self.columns
        columns.differences = [0.0] * len(columns.kinds)
        try:
            theirs = [*map(_statistics, self.theirs)]
        except (KeyError, TypeError):  # Not all of them have statistics.
            theirs = [_NO_STATISTICS] * len(self.theirs)
            for number, other in enumerate(self.theirs):
                if type(other) is dict:
                    theirs[number] = tuple(map(other.get, FIELDS))
        columns.partners = dict(zip(self.differing, self.theirs, strict=True))
        ours = [self.numbers[tensor] for tensor in self.differing]
        are_plain = [True] * len(ours)
        if (
            not set(map(type, chain(chain.from_iterable(ours), chain.from_iterable(theirs))))
            <= _FLOATS
        ):
            are_plain = [
                set(map(type, mine)) == set(map(type, other)) == _FLOATS
                for mine, other in zip(ours, theirs, strict=True)
            ]
        plain = [*compress(range(len(ours)), are_plain)]
        counts = np.array([kind.elements for kind in columns.known], dtype=np.float64)
        kinds = np.array([columns.kinds[self.differing[each]] for each in plain], dtype=np.int64)
        found = np.full(len(ours), np.nan)
        found[plain] = _differences(
            _table([ours[each] for each in plain]),
            _table([theirs[each] for each in plain]),
            counts[kinds],
        )
        for number, difference in enumerate(found.tolist()):
            tensor = self.differing[number]
            if difference != difference:
                difference = self._unusual(tensor, self.theirs[number])
            columns.differences[tensor] = difference

    def _unusual(self, tensor: int, other: Any) -> float:
        """Return the difference of a tensor whose statistics are not all finite numbers."""
        item, golden = self.columns.item(tensor), Item("", INPUT, other)
        if not golden.is_tensor:
            return math.nan
        if item.shape != golden.shape:
            return math.inf
        return statistics_difference(item, golden).difference

    def follow(self) -> None:
        """Find who gave each tensor, as `flow_of` does."""
        columns = self.columns
        marks = columns.marks = self._marks()
        given: dict[_Mark, list[int]] = {}
        columns.givers = [NOBODY] * len(marks)
        for begin, outputs, end in zip(columns.begins, columns.outputs, columns.ends, strict=True):
            for tensor in range(begin, outputs):
                mark = marks[tensor]
                if mark is None:
                    continue
                if mark in given and mark[-1] not in _UNKNOWN:
                    columns.givers[tensor] = self._giver(tensor, given[mark])
            for tensor in range(outputs, end):
                mark = marks[tensor]
                if mark is None:
                    continue
                alike = given.setdefault(mark, [])
                alike.append(tensor)
                if len(alike) > MOST_ALIKE:
                    del alike[0]

    def _marks(self) -> list["_Mark | None"]:
        """Return what views of a tensor have in common, None for tensors that no link leads to or from."""
        columns = self.columns
        buckets = [kind.bucket if kind.elements else NOBODY for kind in columns.known]
        found: list[_Mark | None] = []
        masked = []
        for tensor, (kind, numbers) in enumerate(zip(columns.kinds, self.numbers, strict=True)):
            high, low, bucket = numbers[0], numbers[1], buckets[kind]
            if type(high) is float is type(low):
                if not -MASKED <= low <= high <= MASKED:
                    masked.append(tensor)
                found.append((bucket, high, low) if bucket != NOBODY else None)
                continue
            item = columns.item(tensor)
            if is_masked(item):
                masked.append(tensor)
            *_, high, low = mark_of(item)
            found.append((bucket, high, low) if bucket != NOBODY else None)
        columns.masked.update(columns.owners[masked].tolist())
        return found

    def _giver(self, tensor: int, alike: Sequence[int]) -> int:
        """Return the last of some tensors that are alike which Mean and Norm do not tell from this one."""
        mean, norm = self.numbers[tensor][2:]
        is_plain = type(mean) is float is type(norm)
        item = None
        for other in reversed(alike):
            numbers = self.numbers[other]
            if is_plain and numbers[2] == mean and numbers[3] == norm:
                return other
            item = item or self.columns.item(tensor)
            given = self.columns.item(other)
            if is_close(item, given.mean, given.norm):
                return other
        return NOBODY


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


def _table(rows: Sequence[_Statistics]) -> Array:
    """Return statistics as an array, `(N, 4)` float64."""
    return np.fromiter(chain.from_iterable(rows), np.float64, 4 * len(rows)).reshape(-1, 4)


def _differences(ours: Array, theirs: Array, counts: Array) -> Array:
    """Return the largest relative difference of the statistics of each tensor, as `statistics_difference`
    defines it, `(N,)` float64 of statistics `(N, 4)` and numbers of elements `(N,)`; NaN where a statistic is
    not finite."""
    with np.errstate(all="ignore"):
        norms = np.maximum(ours[:, _NORM], theirs[:, _NORM])
        norms[(ours[:, _NORM] == 0) | (theirs[:, _NORM] == 0)] = 0.0
        least = norms / np.sqrt(np.maximum(1, counts))
        sizes = np.maximum(np.maximum(np.abs(ours), np.abs(theirs)), least[:, None])
        shares = np.where(ours == theirs, 0.0, np.abs(ours - theirs) / sizes)
        found: Array = shares.max(axis=1)
    found[~(np.isfinite(ours).all(axis=1) & np.isfinite(theirs).all(axis=1))] = np.nan
    return found
