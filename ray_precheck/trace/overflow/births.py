"""The walk through the records of one capture that finds where NaN and infinity were born.

Comes in: an open capture. Goes out: what was found, in the order of the records. Called by the job of
`overflow_check`, once for each rank of each step.

An operator whose floating inputs are all finite and an output of which is not has borne it. One of whose
inputs it came has passed it on, or has masked it if all outputs are finite. -inf that no operator has
computed (a constant, or a tensor from outside) is no input of that kind in a forward pass, so that a mask of
attention is no alarm, and a row of softmax that is masked as a whole is a birth. A backward pass whose
forward pass met such values lets them re-emerge: the gradient of a logarithm of zero is not finite although
the logarithm itself was masked.

Which births a mask takes away again, so that no loss, gradient or state holds them. A tensor that holds a
birth is open from the record that gives it until a later record gets it. A record that gives such values on
opens others; an operator of `MASKS` whose results are finite has taken them away. A birth reaches something
where a tensor stays open to the end (a loss, a state, what the program returned), where a gradient or a
single number holds it, and where any other operator makes finite values of it, as a softmax does. Casts of
infinities to whole numbers give extremes, which are followed, too. Tensors are told apart by their
statistics: where two have the same, nobody knows which one was masked.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray_precheck.operators.effects import BRINGS_IN, CASTS, MASKS, READS_NO_VALUES, UNINITIALISED
from ray_precheck.trace.items import INPUT, OUTPUT, Item
from ray_precheck.trace.overflow.records import (
    FollowedRecord,
    NonFinite,
    Values,
    all_of,
    bad_of,
    cast_of,
    dtype_name,
    how_born,
    is_floating,
    opened,
    values_of,
)
from ray_precheck.trace.overflow.rows import Birth, Origin, OverflowFinding, arrival
from ray_precheck.trace.side import (
    API,
    BACKWARD,
    GRADIENTS,
    MODULE,
    CaptureSide,
    RecordEntry,
    record_from_json,
)
from ray_precheck.trace.sources import Modules

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


# Rows of records that only passed something on: after them a dump says how many more there were.
MOST_PASSED_ON = 10_000
# Words of JSON without which every number of a record is finite.
SUSPICIOUS = re.compile(rb"nan|inf", re.IGNORECASE)
COLLECTIVES = ("Distributed.", "MintDistributed.", "Communication.")


@dataclass(slots=True)
class Followed:
    """What a walk has found. `knows`: a floating value has statistics, so that something was checked;
    `passed_on` counts the records that passed something on, of which `MOST_PASSED_ON` have a finding.
    `unread` records are no JSON objects, or too large to be those of a call."""

    findings: list[OverflowFinding] = field(default_factory=list)
    records: int = 0
    knows: bool = False
    passed_on: int = 0
    unread: int = 0

    @property
    def births(self) -> int:
        """How many operators made NaN or infinity of finite values."""
        return sum(each.birth in (Birth.BORN, Birth.CAST) for each in self.findings)

    @property
    def alarms(self) -> list[OverflowFinding]:
        """The findings that are an alarm, in the order of the records."""
        return [each for each in self.findings if each.is_alarm]


def follow(side: CaptureSide) -> Followed:
    """Follow NaN and infinities through the records of a capture.

    Records that show none are not decoded, once one has shown that the capture has statistics.
    """
    has_calls = any(entry.kind == API for entry in side.entries)
    walk = Walk(side.header.framework, Modules(side.folder), has_calls=has_calls)
    for entry in side.entries:
        raw = side.raw(entry)
        if not walk.followed.knows or walk.held.integers or SUSPICIOUS.search(raw):
            fields = record_from_json(raw)
            walk.followed.unread += not fields and raw.strip() != b"{}"
            walk.see(entry, fields)
        elif entry.direction == BACKWARD:
            walk.saw_backward = True
        walk.followed.records += 1
    return walk.end()


class Walk:
    """What is known after the records that were seen, in their order.

    `has_calls`: operators have records, so that those of modules are asked only what these do not show.
    """

    def __init__(self, framework: str, modules: Modules, *, has_calls: bool) -> None:
        self.followed = Followed()
        self.saw_backward = False
        self._framework = framework
        self._lineage = Lineage()
        self.held = Held()
        self._modules = modules
        self._has_calls = has_calls
        self._origins: list[Origin] = []
        self._gradients: Origins = ()

    def see(self, entry: RecordEntry, fields: Mapping[str, Any]) -> None:
        """Judge one record."""
        record = opened(entry, fields, self._framework)
        known = [each for each in (*record.inputs, *record.outputs) if each.item.is_tensor]
        self.followed.knows |= any(each.found is not None for each in known)
        if entry.kind == GRADIENTS:
            self._see_gradients(record)
        elif entry.kind == API or (entry.kind == MODULE and not self._has_calls):
            self._see_call(record)
        elif entry.kind == MODULE:
            self._see_module(record)
        self.saw_backward |= record.is_backward

    def end(self) -> Followed:
        """Say which -inf were meant, and return what was found."""
        self.held.end()
        for origin in self._origins:
            _say_whether_gone(origin)
            if origin.may_be_meant and origin.is_proven:
                origin.finding.birth = Birth.MEANT
                origin.finding.message = f"{origin.finding.message}, and becomes finite: a mask"
        return self.followed

    def _see_call(self, record: FollowedRecord) -> None:
        if not bad_of(record.inputs) and not record.bad_outputs:
            self.held.see(record, ())
            return
        solid, masks = self._origins_of(record)
        self.held.see(record, solid)
        if not record.bad_outputs:
            self._masked(record, solid, masks)
        elif solid and not (record.makes_nan and all(each.is_constant for each in solid)):
            self._passed_on(record, solid)
        else:
            self._gave(record, solid, masks)

    def _origins_of(self, record: FollowedRecord) -> tuple[Origins, Origins]:
        """Return the origins of the tensors that a record gets, those of possible masks apart."""
        solid: dict[int, Origin] = {}
        masks: dict[int, Origin] = {}
        for values in bad_of(record.inputs):
            if not values.item.is_tensor:
                continue
            for origin in self._lineage.of(values) or self._from_outside(record, values):
                is_mask = origin.may_be_meant and values.found is not None and values.found.is_mask
                (masks if is_mask and not record.is_backward else solid)[id(origin)] = origin
        return tuple(solid.values()), tuple(masks.values())

    def _from_outside(self, record: FollowedRecord, values: Values) -> Origins:
        """Return the origin of a value that a record gets, and that no record gave."""
        if record.is_backward:
            if self._gradients:
                return self._gradients
            if self.saw_backward:
                said = (
                    "arrives so, and no operator gave it: born where autograd sums gradients, or in an"
                    " operator without a record"
                )
                return self._add(record, values, Birth.BORN, said, alarm=True)
            said = "comes in from outside: the gradient that the backward pass begins with"
            return self._add(record, values, Birth.CAME_IN, said, alarm=True)
        is_mask = values.found is not None and values.found.is_mask
        said = "comes in from outside: an input, a weight, or an operator without a record"
        found = self._add(record, values, Birth.CAME_IN, said, alarm=not is_mask, mask=is_mask)
        self._lineage.note([values], found)
        return found

    def _masked(self, record: FollowedRecord, solid: Origins, masks: Origins) -> None:
        if any(each.item.is_tensor for each in record.outputs):
            for origin in solid:
                origin.is_masked = True
            for origin in masks:
                origin.is_proven = True
        if solid and record.gives_tensors:
            values = next(x for x in bad_of(record.inputs) if x.item.is_tensor)
            what = "finite values" if record.outputs else "whole numbers or truth values"
            said = f"makes {what} of it; it is from {solid[0].finding.place}"
            self._report(record, values, Birth.MASKED, said)
        if solid and not record.is_backward:
            self._lineage.met(record.entry.call, solid)

    def _passed_on(self, record: FollowedRecord, solid: Origins) -> None:
        origin = solid[0]
        birth = Birth.RE_EMERGED if origin.is_masked else Birth.PASSED_ON
        for each in solid:
            each.is_masked = False
        self._inherit(record, solid)
        if record.entry.kind == MODULE and self._is_inside(record):
            return
        self.followed.passed_on += birth is Birth.PASSED_ON
        if birth is Birth.RE_EMERGED or self.followed.passed_on <= MOST_PASSED_ON:
            again = ", which was masked before" if birth is Birth.RE_EMERGED else ""
            said = f"from {origin.finding.place}{again}"
            self._report(record, record.bad_outputs[0], birth, said)

    def _gave(self, record: FollowedRecord, constants: Origins, masks: Origins) -> None:
        """Judge a record that gave what is not finite, and got nothing but constants and masks."""
        values, given = record.bad_outputs[0], all_of(record.bad_outputs)
        got = record.constants
        if constants:
            got |= all_of(record.inputs)
        elif masks:
            got |= NonFinite(negative=True)
        forward = self._lineage.of_forward(record.entry.call) if record.is_backward else ()
        if forward:
            reach(forward)
            said = f"its forward pass met {forward[0].finding.place}"
            self._report(record, values, Birth.RE_EMERGED, said, alarm=forward[0].finding.is_alarm)
            for origin in forward:
                origin.is_masked = False
            self._inherit(record, forward)
        elif any(got) and not given.beyond(got):
            constant = () if masks else self._constant(record, values, given)
            self._inherit(record, masks or constant, mark=False)
        elif record.entry.kind == MODULE and self._is_inside(record):
            return
        else:
            self._inherit(record, self._born(record, values, given, got))

    def _constant(self, record: FollowedRecord, values: Values, given: NonFinite) -> Origins:
        said = "comes in as a constant of the program"
        return self._add(record, values, Birth.CAME_IN, said, mask=given.is_mask)

    def _born(
        self, record: FollowedRecord, values: Values, given: NonFinite, got: NonFinite
    ) -> Origins:
        if record.entry.key.startswith(COLLECTIVES):
            said = arrival(record.fields.get("group"))
            return self._add(record, values, Birth.CAME_IN, said, alarm=True)
        if record.is_of(UNINITIALISED):
            said = "memory that nothing was written to yet"
            return self._add(record, values, Birth.CAME_IN, said)
        if not record.inputs and record.is_of(BRINGS_IN):
            said = "comes in from outside the operators"
            return self._add(record, values, Birth.CAME_IN, said, alarm=True)
        cast = cast_of(record, values, given)
        if cast:
            return self._add(record, values, Birth.CAST, cast, alarm=True)
        return self._add(record, values, Birth.BORN, how_born(record, got), alarm=True)

    def _see_module(self, record: FollowedRecord) -> None:
        """Judge a module whose operators have records: it may bear what none of them shows."""
        for values in record.bad_outputs:
            self.held.kept(values, self._lineage.of(values))
        unseen = record.bad_outputs and not bad_of(record.inputs) and not self._is_inside(record)
        if unseen and not record.is_backward:
            said = "no record of its operators shows it: born in an operator that has none"
            found = self._add(record, record.bad_outputs[0], Birth.BORN, said, alarm=True)
            self._inherit(record, found)

    def _see_gradients(self, record: FollowedRecord) -> None:
        """Judge the gradients of a module's parameters, which several calls may have added to."""
        reach([each for values in record.bad_outputs for each in self._lineage.of(values)])
        if record.bad_outputs and self.saw_backward and not self._gradients:
            said = "no operator gave it: born where gradients of a parameter are summed"
            origins = self._add(record, record.bad_outputs[0], Birth.BORN, said, alarm=True)
            self._gradients = origins

    def _is_inside(self, record: FollowedRecord) -> bool:
        """Return whether a record within a module explains what the module gave."""
        known = all(self._lineage.knows(each) for each in record.bad_outputs)
        if known or self._modules.holds(record.entry.key):
            self._modules.mark(record.entry.key)
            return True
        return False

    def _inherit(self, record: FollowedRecord, origins: Origins, *, mark: bool = True) -> None:
        """Take note of the origins of what a record gave."""
        self._lineage.note(record.bad_outputs, origins, in_place=record.is_in_place)
        self.held.gave(record, origins)
        if record.is_backward:
            self._gradients = origins
        elif mark:
            self._lineage.met(record.entry.call, origins)

    def _add(
        self,
        record: FollowedRecord,
        values: Values,
        birth: Birth,
        said: str,
        *,
        alarm: bool = False,
        mask: bool = False,
    ) -> Origins:
        """Report a new origin and return it."""
        finding = self._report(record, values, birth, said, alarm=alarm)
        origin = Origin(finding, may_be_meant=mask and not record.is_backward)
        self._origins.append(origin)
        return (origin,)

    def _report(
        self,
        record: FollowedRecord,
        values: Values,
        birth: Birth,
        said: str,
        *,
        alarm: bool = False,
    ) -> OverflowFinding:
        found = values.found or NonFinite()
        key, path = record.entry.key, values.item.path
        finding = OverflowFinding(key, path, found, birth, dtype_name(values.item), said, alarm)
        self.followed.findings.append(finding)
        if birth not in (Birth.PASSED_ON, Birth.MASKED):
            self._modules.mark(key)
        return finding


def _say_whether_gone(origin: Origin) -> None:
    """Call a birth taken away where masks took all of it, and say where nobody can tell."""
    finding = origin.finding
    if finding.birth not in (Birth.BORN, Birth.CAST) or not origin.taken_by or origin.reaches:
        return
    if origin.is_unsure:
        finding.message += (
            f"; {origin.taken_by} takes some of it away, but several tensors have its statistics, so that"
            " nobody can tell whether all"
        )
        return
    finding.birth, finding.is_alarm = Birth.GONE, False
    finding.message += f"; {origin.taken_by} takes it away: no loss, gradient or state holds it"
