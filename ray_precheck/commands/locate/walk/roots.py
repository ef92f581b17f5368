"""Where a difference between two runs, or an error of one, begins.

Goes out: the nouns `RootKind`, `Root`, `Passed`, `SharedRecord` and `Located`. Made by `walk`, ranked by
`places`.
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ray_precheck.trace.flow.meetings import Meeting

INFINITE = float("inf")
_GOLDEN = "golden "


class RootKind(Enum):
    """What a root is; the value is the cell of the column Verdict."""

    NON_FINITE = "non-finite"
    INPUT = "other input"
    WEIGHT = "other weight"
    MASK = "other random mask"
    CONFIGURATION = "other configuration"
    CALL = "other call"
    OPERATOR = "own error"
    ESTIMATE = "own error (estimate)"
    COLLECTIVE = "wrong collective"
    GAP = "not captured"

    @property
    def differs_from_start(self) -> bool:
        """Whether the runs were not given the same; no operator is to blame then."""
        return self in (RootKind.INPUT, RootKind.WEIGHT, RootKind.MASK, RootKind.CONFIGURATION)


# The Verdict of records that are no root.
INHERITED, UNCHECKED = "inherited", "not checked"


@dataclass(frozen=True, slots=True)
class Root:
    """A record at which something begins, or the reader of what a record gave that is not in the capture.

    `own` and `inherited` are in units of what rounding explains; None where they say nothing. `item` is the
    path of the value that shows it, `index` the place in it, `place` the record's place in the run. `before`
    is, of a gap, the record on its other side, "" if none is known. `reached` counts the records further
    down that the error reached. `is_golden`: `key` is of the golden run, which alone has that call.
    """

    kind: RootKind
    key: str
    direction: str
    place: int
    item: str = ""
    own: float | None = None
    inherited: float | None = None
    index: str = ""
    cause: str = ""
    message: str = ""
    before: str = ""
    reached: int = 0
    is_golden: bool = False

    @property
    def name(self) -> str:
        """The key as the reports look it up; that of a call of the golden run is none of the target."""
        return f"{_GOLDEN}{self.key}" if self.is_golden else self.key


@dataclass(frozen=True, slots=True)
class Passed:
    """A record that is no root: it passes an error on, or could not be judged (`verdict`)."""

    verdict: str
    key: str
    direction: str
    place: int
    own: float | None = None
    inherited: float | None = None
    message: str = ""


class SharedRecord(NamedTuple):
    """A record of a collective that got or gave what differs.

    `got` and `gave` are relative differences from the golden run, `got_norm` and `gave_norm` the norms of
    these values, 0 where they are not known; `floor` is the difference that rounding makes. It `arrives`
    where the rank's own values do not explain what it gave; else the rank brought what differs. `item`
    is the path of the value that it gave.
    """

    key: str
    direction: str
    place: int
    meeting: Meeting
    arrives: bool
    got: float
    got_norm: float
    gave: float
    gave_norm: float
    floor: float
    item: str = ""

    @property
    def got_size(self) -> float:
        """The absolute difference of what it got, as a norm."""
        size = self.got * self.got_norm
        return size if not math.isnan(size) else 0.0

    @property
    def strength(self) -> float:
        """How many times what it gave differs by more than its own rank explains."""
        return self.gave / max(self.got, self.floor) if self.floor else math.inf


@dataclass(slots=True)
class Located:
    """What was found in one dump, in the order of the run. `judged` counts the records whose own error is
    known, `compared` those with a partner; `edges` are the links between affected records, by their keys.
    `shared` are the records of collectives that differ, `left_out` counts the records that only pass an
    error on and are not in `passed`, `shared_left_out` those of collectives.
    """

    roots: list[Root] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    records: int = 0
    judged: int = 0
    compared: int = 0
    edges: list[tuple[str, str]] = field(default_factory=list)
    shared: list[SharedRecord] = field(default_factory=list)
    left_out: int = 0
    shared_left_out: int = 0
