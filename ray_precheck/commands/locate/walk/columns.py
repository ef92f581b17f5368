"""The tensors of two captures with the same records, as columns: what differs, and who gave what.

Comes in: two captures that were read by their forms. Goes out: `PairColumns`, None where these have not the
same records in the same order. Called by `screening`, which looks for the few records that the walk has to
visit.

The columns hold what `flow_of` and `statistics_difference` say of the same values, in a twentieth of the
time: all that does not depend on numbers is read once for two forms (`PairForm`), and NumPy computes the
differences and the givers of all tensors at once. No `Item` is made but of what it cannot tell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ray_precheck.commands.locate.walk.estimate import MASKED, is_masked, statistics_difference
from ray_precheck.commands.locate.walk.pair_form import NOBODY, PairForm, form_of_pair
from ray_precheck.numerics.statistics import FIELDS, MAX, MEAN, MIN, NORM
from ray_precheck.schema.dtypes import Array
from ray_precheck.trace.flow import MOST_ALIKE, is_close, mark_of
from ray_precheck.trace.forms import FormedSide, same_blanks
from ray_precheck.trace.items import Item

_HIGH, _LOW, _MEAN, _NORM = map(FIELDS.index, (MAX, MIN, MEAN, NORM))
# The end of a mark that tells nothing: there is neither a statistic nor a digest.
_UNKNOWN = ("", None)
# Odd numbers whose multiples spread over 64 bits: those of the golden ratio, and of xxHash.
_SPREAD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


@dataclass
class PairColumns:
    """The tensors of all records of the target in the order of the run, by their numbers.

    `differences` are those from the golden run, NaN where they are not known. `givers` is the tensor that
    gave one, `NOBODY` where none did; `marks` tell tensors from each other, `NOBODY` is the mark of those
    that no link leads to or from. Of the records, `unlike` differ from their partners in more than the
    statistics of tensors, and `masked` have values of the size of a mask.
    """

    form: PairForm
    target: FormedSide
    golden: FormedSide
    differences: list[float] = field(default_factory=list)
    givers: list[int] = field(default_factory=list)
    marks: Sequence[int] = ()
    unlike: set[int] = field(default_factory=set)
    masked: set[int] = field(default_factory=set)
    _read: dict[int, list[Item]] = field(default_factory=dict)

    @cached_property
    def used(self) -> set[int]:
        """The tensors that later records get."""
        return {*self.givers}

    @cached_property
    def firsts(self) -> Mapping[int, int]:
        """Of the tensors that were got and that nobody gave, the first with the same values."""
        known: dict[tuple[Any, ...], int] = {}
        found = {}
        for begin, end in zip(self.form.begins, self.form.outputs, strict=True):
            for tensor in range(begin, end):
                if self.givers[tensor] == NOBODY and self.marks[tensor] != NOBODY:
                    item = self.item(tensor)
                    values = self.marks[tensor], item.norm, item.digest
                    found[tensor] = known.setdefault(values, tensor)
        return found

    def item(self, tensor: int) -> Item:
        """Return a tensor."""
        place = int(self.form.owners[tensor])
        if place not in self._read:
            items = self.target.items(self.form.entries[place])
            self._read[place] = [item for item in items if item.is_tensor]
        return self._read[place][tensor - self.form.begins[place]]

    def partner(self, tensor: int) -> Item | None:
        """Return what the golden run has in the place of a tensor; None where it has nothing there."""
        if tensor in self.form.alone:
            return None
        path, entry = self.item(tensor).path, self.form.entries[int(self.form.owners[tensor])]
        return next((item for item in self.golden.items(entry) if item.path == path), None)


def columns_of(target: FormedSide, golden: FormedSide) -> PairColumns | None:
    """Return the columns of a pair; None where both have not the same records in the same order, or values
    with an identity of their own, as captures of graphs have."""
    form = form_of_pair(target.formed.form, golden.formed.form)
    if form is None:
        return None
    columns = PairColumns(form, target, golden, unlike={*form.unlike})
    ours, theirs = target.formed.values, golden.formed.values
    for place, mine, other in form.compared:
        if not same_blanks(ours[mine], theirs[other]):
            columns.unlike.add(place)
    statistics = target.formed.numbers[form.blanks]
    _measure(columns, statistics, golden.formed.numbers[form.their_blanks])
    _follow(columns, statistics)
    return columns


def _measure(columns: PairColumns, ours: Array, theirs: Array) -> None:
    """Compute the differences of all tensors: those of finite statistics `(N, 4)` at once."""
    found = _differences(ours, theirs, columns.form.counts)
    for tensor in np.flatnonzero(np.isnan(found)).tolist():
        found[tensor] = _unusual(columns.item(tensor), columns.partner(tensor))
    columns.differences = found.tolist()


def _unusual(item: Item, golden: Item | None) -> float:
    """Return the difference of a tensor whose statistics are not all finite numbers."""
    element = golden.element if golden is not None else None
    if item.element == element and item.statistic(MAX) is not None:
        return 0.0
    if golden is None or not golden.is_tensor:
        return math.nan
    if item.shape != golden.shape:
        return math.inf
    return statistics_difference(item, golden).difference


def _follow(columns: PairColumns, statistics: Array) -> None:
    """Find who gave each tensor, as `flow_of` does."""
    form = columns.form
    marks, is_linked = _marks(columns, statistics)
    columns.marks = marks.tolist()
    # The tensors of one mark stand together, in the order of the run.
    order = np.argsort(marks, kind="stable")
    places, is_output = np.arange(len(order)), form.are_outputs[order]
    given = np.maximum.accumulate(np.where(is_output, places, NOBODY))
    begins = np.searchsorted(marks[order], marks[order])
    is_given = ~is_output & is_linked[order] & (given >= begins)
    tensors, last = order[is_given], order[given[is_given]]
    found = np.full(len(order), NOBODY)
    sums = statistics[:, [_MEAN, _NORM]]
    is_same = (sums[tensors] == sums[last]).all(axis=1)
    found[tensors[is_same]] = last[is_same]
    columns.givers = found.tolist()
    if is_same.all():
        return
    outputs = np.flatnonzero(is_output)
    begins, ends = np.searchsorted(outputs, begins), np.searchsorted(outputs, places)
    for place in places[is_given][~is_same].tolist():
        alike = order[outputs[max(begins[place], ends[place] - MOST_ALIKE) : ends[place]]]
        columns.givers[order[place]] = _giver(columns, int(order[place]), alike.tolist())


def _giver(columns: PairColumns, tensor: int, alike: Sequence[int]) -> int:
    """Return the last of some tensors that are alike which Mean and Norm do not tell from this one."""
    item = columns.item(tensor)
    for other in reversed(alike):
        given = columns.item(other)
        if is_close(item, given.mean, given.norm):
            return other
    return NOBODY


def _marks(columns: PairColumns, statistics: Array) -> tuple[Array, Array]:
    """Return numbers of what views of a tensor have in common (`mark_of`), `(N,)` int64, `NOBODY` for tensors
    that no link leads to or from, and which of them tell something, `(N,)` bool."""
    form = columns.form
    highs, lows = statistics[:, _HIGH] + 0.0, statistics[:, _LOW] + 0.0  # Without -0.0.
    is_plain = ~(np.isnan(highs) | np.isnan(lows))
    is_masked_one = is_plain & ~((lows >= -MASKED) & (lows <= highs) & (highs <= MASKED))
    odd = np.zeros(len(highs), np.int64)
    is_linked = form.buckets != NOBODY
    known: dict[tuple[Any, ...], int] = {}
    for tensor in np.flatnonzero(~is_plain).tolist():
        item = columns.item(tensor)
        is_masked_one[tensor] = is_masked(item)
        *_, high, low = mark_of(item)
        is_linked[tensor] &= low not in _UNKNOWN
        if type(high) is float is type(low):
            highs[tensor], lows[tensor] = high + 0.0, low + 0.0
        else:
            highs[tensor] = lows[tensor] = 0.0
            odd[tensor] = known.setdefault((high, low), len(known) + 1)
    columns.masked.update(form.owners[is_masked_one].tolist())
    marks = _numbered(form.buckets + len(form.known) * odd, highs, lows)
    marks[form.buckets == NOBODY] = NOBODY
    return marks, is_linked


def _numbered(buckets: Array, highs: Array, lows: Array) -> Array:
    """Return a number for each triple that is the same for equal ones alone, `(N,)` int64 from 0."""
    keys = np.zeros(len(buckets), np.uint64)
    for factor, part in zip(_SPREAD, (buckets, highs, lows), strict=True):
        keys = (keys ^ (keys >> np.uint64(29)) ^ part.view(np.uint64)) * np.uint64(factor)
    order = np.argsort(keys)
    if _are_new(order, keys)[1:].tolist() != _are_new(order, buckets, highs, lows)[1:].tolist():
        order = np.lexsort((lows, highs, buckets))  # Two triples have one key.
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(_are_new(order, buckets, highs, lows)) - 1
    return found


def _are_new(order: Array, *columns: Array) -> Array:
    """Return which values differ from those before them in an order, `(N,)` bool; the first one does."""
    found = np.ones(len(order), bool)
    found[1:] = False
    for each in columns:
        found[1:] |= each[order][1:] != each[order][:-1]
    return found


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
