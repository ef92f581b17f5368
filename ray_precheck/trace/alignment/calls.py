"""The calls of a capture, as the alignment sees them.

Comes in: a `CaptureSide`. Goes out: a `Call` for each call, module call, update of an optimizer and set of
gradients, in the order of the file. Called by the jobs that compare captures, before `align`.
"""

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

from ray_precheck.numerics.statistics import MAX, NORM
from ray_precheck.trace.alignment.families import family_of
from ray_precheck.trace.items import GRADIENTS as GRADIENTS_PART
from ray_precheck.trace.items import INPUT, OUTPUT, Item, items_of
from ray_precheck.trace.side import (
    API,
    BACKWARD,
    FORWARD,
    GRADIENTS,
    MODULE,
    CaptureSide,
    RecordEntry,
)

Shape = tuple[int, ...]
_RECOMPUTE = "recompute"
_GIVEN = (OUTPUT, GRADIENTS_PART)


class Call(NamedTuple):
    """A call as the alignment sees it.

    `name` is `RecordEntry.call` ("Torch.add.3"), `kind` one of `trace.side` (API, ...), `type_name` the name
    without number, `family` the operator whatever its spelling ("add"). `inputs` and `outputs` are the
    shapes of tensors, `digests` and `norms` are of the output tensors: () where the capture has no
    digests, NaN for a norm that is not known. `recompute_of` is the name of the first call if this one
    computes it again, else "".
    """

    name: str
    kind: str
    type_name: str
    family: str
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    digests: tuple[str, ...] = ()
    norms: tuple[float, ...] = ()
    recompute_of: str = ""


def calls_of(side: CaptureSide) -> list[Call]:
    """Return the calls of a capture in the order of the file.

    The forward record tells of a call; where there is none, the backward record tells the shapes, and no
    values; gradients come last first, so that calls in a row of which there is nothing else are turned round.
    A record that cannot be read is a call without shapes.
    """
    chosen: dict[str, RecordEntry] = {}
    for entry in side.entries:
        held = chosen.get(entry.call)
        if held is None or (held.direction == BACKWARD and entry.direction != BACKWARD):
            chosen[entry.call] = entry
    runs = groupby(chosen.values(), key=lambda entry: entry.direction == BACKWARD)
    ordered = (
        entry for is_turned, run in runs for entry in (reversed([*run]) if is_turned else run)
    )
    return [_call(entry, side.record(entry)) for entry in ordered]


def _call(entry: RecordEntry, record: Mapping[str, Any]) -> Call:
    type_name = _type_name(entry)
    inputs: list[Shape] = []
    outputs: list[Shape] = []
    given: list[Item] = []
    for item in items_of(record, entry.key):
        if item.element is None or "shape" not in item.element:
            continue
        shape = item.shape
        if shape is None:
            continue
        if item.part == INPUT:
            inputs.append(shape)
        elif item.part in _GIVEN and not item.is_changed:  # which dumps of others do not have
            outputs.append(shape)
            given.append(item)
    family = _family(entry, type_name)
    if entry.direction == BACKWARD:
        # The gradients that come in have the shapes of the outputs, those that go out of the inputs.
        return Call(entry.call, entry.kind, type_name, family, tuple(outputs), tuple(inputs))
    digests = tuple([item.digest for item in given])
    first = record.get(_RECOMPUTE)
    return Call(
        entry.call,
        entry.kind,
        type_name,
        family,
        tuple(inputs),
        tuple(outputs),
        digests if any(digests) else (),
        tuple([_size(item) for item in given]),
        first.removesuffix(f".{FORWARD}") if isinstance(first, str) else "",
    )


def _type_name(entry: RecordEntry) -> str:
    before, _, number = entry.call.rpartition(".")
    return before if before and number.isdigit() else entry.call


def _family(entry: RecordEntry, type_name: str) -> str:
    """Return the family of an operator, and the class of a module, whose path may differ."""
    if entry.kind == API:
        return family_of(type_name)
    if entry.kind == MODULE:
        return type_name.rpartition(".")[2]
    if entry.kind == GRADIENTS:
        return ".".join(type_name.split(".")[-2:])
    return type_name


def _size(item: Item) -> float:
    """Return the norm of a tensor, its largest value where there is none; NaN where neither is known."""
    norm = item.statistic(NORM)
    if type(norm) is float:  # nearly all of them
        return norm
    for name in (NORM, MAX):
        found = item.number(name)
        if found is not None:
            return found
    return math.nan
