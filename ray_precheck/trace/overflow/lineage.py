"""Which origin values that are not finite have, by their statistics.

Comes in: values as records give and get them. Goes out: their `Origin`s. Used by the walk through a capture.
A tensor has no identity in a dump: values are followed by dtype, count and statistics, which a view keeps.
Where two tensors agree in all of these, as those of NaN alone do, the last one counts.
"""

from collections.abc import Iterable

from ray_precheck.trace.overflow.finding import Origin
from ray_precheck.trace.overflow.values import Values

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
