"""Which births a mask takes away again, so that no loss, gradient or state holds them.

Comes in: what the walk through a capture sees, record by record. Goes out: marks on `Origin`s. Used by
`births`.

A tensor that holds a birth is open from the record that gives it until a later record gets it. A record
that gives such values on opens others; an operator of `MASKS` whose results are finite has taken them away.
A birth reaches something where a tensor stays open to the end (a loss, a state, what the program returned),
where a gradient or a single number holds it, and where any other operator makes finite values of it, as a
softmax does. Casts of infinities to whole numbers give extremes, which are followed, too. Tensors are told
apart by their statistics: where two have the same, nobody knows which one was masked.
"""

import math
from collections.abc import Iterable, Sequence

from ray_precheck.operators.effects import CASTS, MASKS, READS_NO_VALUES
from ray_precheck.trace.items import INPUT, OUTPUT, Item
from ray_precheck.trace.overflow.finding import Origin
from ray_precheck.trace.overflow.record import FollowedRecord, bad_of
from ray_precheck.trace.overflow.values import Values, dtype_name, is_floating, values_of

Origins = tuple[Origin, ...]


class Lineage:
    """The origins of values that were seen."""

    def __init__(self) -> None:
        self._by_mark: dict[tuple[str, ...], Origins] = {}
        self._in_place: dict[str, Origins] = {}
        self._by_call: dict[str, Origins] = {}

    def of(self, values: Values) -> Origins:
        """Return the origins of a value that a record gets; () where no record gave it.

        A change in place may have been made through a view of the tensor, whose statistics are others:
        then the last change of a tensor of that dtype counts, but not for a mask.
        """
        known = self._by_mark.get(values.mark)
        if known is None and values.found is not None and not values.found.is_mask:
            known = self._in_place.get(values.mark[0])
        return known or ()

    def knows(self, values: Values) -> bool:
        """Return whether a record gave a value with these statistics."""
        return values.mark in self._by_mark

    def note(self, given: Iterable[Values], origins: Origins, *, in_place: bool = False) -> None:
        """Take note of the values that a record gave.

        A mask does not take the place of a birth with the same statistics, but joins it.
        """
        are_masks = all(each.may_be_meant for each in origins)
        for values in given:
            before = self._by_mark.get(values.mark, ()) if are_masks else ()
            born = tuple(each for each in before if not each.may_be_meant and each not in origins)
            self._by_mark[values.mark] = (*born, *origins)
            if in_place and values.item.is_tensor:
                self._in_place[values.mark[0]] = origins

    def met(self, call: str, origins: Origins) -> None:
        """Take note that the forward pass of a call met values that are not finite."""
        self._by_call[call] = origins

    def of_forward(self, call: str) -> Origins:
        """Return the origins of what the forward pass of a call met."""
        return self._by_call.get(call, ())


_Mark = tuple[str, ...]
# A cast of an infinity gives about the last number of these dtypes; narrower ones wrap around to any.
_EXTREME = {"int64": 2.0**62, "int32": 2.0**30}
# Beside their result what they get goes on with the same statistics.
_COPIES = frozenset(("clone", "copy", "copy_", "deepcopy", "detach_copy", "tensor"))
_COMMUNICATION = ("Distributed.", "MintDistributed.", "Communication.")


class Held:
    """The tensors that hold births. `integers` are those of whole numbers that were made of infinities."""

    def __init__(self) -> None:
        self._open: dict[_Mark, Origins] = {}
        self.integers: dict[_Mark, Origins] = {}

    def see(self, record: FollowedRecord, solid: Origins) -> None:
        """Take note of what a call reads, and whether nothing is left of the origins of what it reads."""
        if not _only_asks(record):
            for values in bad_of(record.inputs):
                self._open.pop(values.mark, None)
        if solid and not record.bad_outputs:
            self._became_finite(record, solid, is_cast=record.is_of(CASTS))
        if self.integers:
            self._see_integers(record)

    def gave(self, record: FollowedRecord, origins: Origins) -> None:
        """Take note of what a call gave that is not finite."""
        if record.is_backward:
            reach(origins)
        self._opened(record, [each.item for each in record.bad_outputs], origins)

    def kept(self, values: Values, origins: Origins) -> None:
        """Take note that a module gave values, of which a record inside is known."""
        if origins:
            self._open[values.mark] = origins

    def end(self) -> None:
        """Take note that nothing reads any more what is open."""
        for origins in self._open.values():
            reach(origins)

    def _opened(self, record: FollowedRecord, items: Iterable[Item], origins: Origins) -> None:
        marks = {values_of(each).mark: each for each in items}
        is_copy = record.operator.rpartition(".")[2] in _COPIES
        read = [values_of(each).mark for each in record.items if each.part != OUTPUT]
        for mark, item in marks.items():
            if math.prod(item.shape or ()) == 1:
                reach(origins)
            if mark in self._open or (is_copy and mark in read):
                for origin in (*self._open.get(mark, ()), *origins):
                    origin.is_unsure = True
            self._open[mark] = origins

    def _became_finite(self, record: FollowedRecord, origins: Origins, *, is_cast: bool) -> None:
        given = [each for each in record.items if each.part == OUTPUT and each.is_tensor]
        extreme = [each for each in given if _is_extreme(each)]
        is_unknown = any(each.found is None for each in record.outputs)
        if record.is_backward or is_unknown or record.entry.key.startswith(_COMMUNICATION):
            reach(origins)
        elif extreme and is_cast:
            self.integers |= {values_of(each).mark: origins for each in extreme}
            self._opened(record, extreme, origins)
        elif _only_asks(record):
            return
        elif record.is_of(MASKS):
            for origin in origins:
                origin.taken_by = origin.taken_by or record.entry.key
        else:
            reach(origins)

    def _see_integers(self, record: FollowedRecord) -> None:
        """Follow the whole numbers that were made of infinities through a call, which may change them."""
        read = [each for each in record.items if each.part == INPUT and not is_floating(each)]
        if record.is_of(READS_NO_VALUES):
            read = [each for each in read if each.path != "input.0"]
        marks = [values_of(each).mark for each in read if each.is_tensor]
        found = {id(each): each for mark in marks for each in self.integers.get(mark, ())}
        if found and not _only_asks(record):
            for mark in marks:
                self._open.pop(mark, None)
            self._became_finite(record, tuple(found.values()), is_cast=True)


def reach(origins: Sequence[Origin]) -> None:
    """Take note that a gradient, or a result of finite values, is made of these origins."""
    for origin in origins:
        origin.reaches = True


def _only_asks(record: FollowedRecord) -> bool:
    """Return whether a call gives nothing but truth values and sizes: `isnan` of a loss takes no NaN away."""
    given = [each for each in record.items if each.part == OUTPUT]
    return all(not each.is_tensor or dtype_name(each) == "bool" for each in given)


def _is_extreme(item: Item) -> bool:
    limit = _EXTREME.get(dtype_name(item))
    return limit is not None and any(each is not None and abs(each) >= limit for each in item.ends)
