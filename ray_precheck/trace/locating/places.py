"""The rows of `locate_{timestamp}.csv`: roots with their places over ranks and steps, and what is no root.

Comes in: a `Located` for each dump. Goes out: rows. Called by the session.

Order of the places: NaN and infinities that a record made of finite values; then what the runs were given
differently from the start; then operators by their own error in units of what rounding explains, the
largest first, of a call and its gradient by the larger of both; then estimates and gaps, likewise. What is
alike stands in the order of steps, of the run, of ranks. An operator that errs in a later step than the first
difference is ranked behind those of that step: weights and states have brought it there.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ray_precheck.trace.locating.roots import Located, Passed, Root, RootKind

COLUMNS = (
    "Place",
    "Step",
    "Rank",
    "API Name",
    "Direction",
    "Own Error",
    "Inherited Error",
    "Verdict",
    "Index",
    "Module",
    "Source",
    "Cause",
    "Message",
)
_FEWEST_DIGITS = 4
_ORDER = {RootKind.ESTIMATE: 3, RootKind.GAP: 3}


class DumpRoots(NamedTuple):
    """What was found in the dump of one rank in one step; `step` and `rank` are numbers as text, "" where the
    dump has none."""

    step: str
    rank: str
    label: str
    located: Located


class RootPlace(NamedTuple):
    """A root with its dump; `place` counts from 1."""

    place: int
    dump: DumpRoots
    root: Root


def ranked(dumps: Iterable[DumpRoots]) -> list[RootPlace]:
    """Return all roots, the likeliest culprit first."""
    found = [(dump, root) for dump in dumps for root in dump.located.roots]
    found.sort(key=lambda each: _order(*each))
    return [RootPlace(place, *each) for place, each in enumerate(found, 1)]


def _order(dump: DumpRoots, root: Root) -> tuple[float, ...]:
    step = _number_in(dump.step)
    # What a wrong result does to its own gradient may be more than what it is: the call counts as a whole.
    call = root.key.removesuffix(f".{root.direction}")
    own = max(map(_size, (each for each in dump.located.roots if _is_of(each, call, root))))
    return (
        _class_of(root),
        step,
        -own,
        root.place,
        _number_in(dump.rank),
    )


def _is_of(each: Root, call: str, root: Root) -> bool:
    """Return whether a root is of this call, and as sure as another one."""
    same = each.key.removesuffix(f".{each.direction}") == call
    return same and _class_of(each) == _class_of(root)


def _size(root: Root) -> float:
    return root.own if root.own is not None and not math.isnan(root.own) else 0.0


def _class_of(root: Root) -> int:
    if root.kind is RootKind.NON_FINITE:
        return 0
    if root.kind.differs_from_start:
        return 1
    return _ORDER.get(root.kind, 2)


def _number_in(text: str) -> int:
    digits = "".join(character for character in text if character.isdigit())
    return int(digits) if digits else 0


def cells_of_root(found: RootPlace, module: str, source: str) -> Sequence[str]:
    """Return the row of a root."""
    root = found.root
    return (
        str(found.place),
        found.dump.step,
        found.dump.rank,
        _call(root.key, root.direction),
        root.direction,
        shown_error(root.own),
        shown_error(root.inherited),
        root.kind.value,
        f"{root.item}{root.index}" if root.item else root.index,
        module,
        source,
        root.cause,
        root.message,
    )


def passed_rows(dump: DumpRoots) -> Iterator[tuple[Passed, Sequence[str]]]:
    """Yield the rows of a dump's records that are no roots, without module and source."""
    for each in dump.located.passed:
        yield (
            each,
            (
                "",
                dump.step,
                dump.rank,
                _call(each.key, each.direction),
                each.direction,
                shown_error(each.own),
                shown_error(each.inherited),
                each.verdict,
                "",
                "",
                "",
                "",
                each.message,
            ),
        )


def _call(key: str, direction: str) -> str:
    """Return the name of a call: the key of its record without the direction."""
    return key.removesuffix(f".{direction}") if direction else key


def shown_error(value: float | None) -> str:
    """Return an error as a cell, with as many digits as it is worth; "" for what is not known."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.{_FEWEST_DIGITS}g}"
