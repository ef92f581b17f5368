"""The rows of `overflow_check_{timestamp}.csv`, and what they say of each other over ranks and steps.

Comes in: the findings of one dump; rows of all dumps. Goes out: rows. Called by the job, and by the session
when the last dump is done.

What is said of one record that met NaN or infinity. `Birth`, `OverflowFinding` and `Origin`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ray_precheck.options.declared import ranges_of
from ray_precheck.trace.overflow.records import NonFinite


class Birth(Enum):
    """What a record did with values that are not finite; FLAGGED: the device itself saw it overflow."""

    BORN = "birth"
    PASSED_ON = "passed on"
    MASKED = "masked"
    RE_EMERGED = "re-emerged"
    MEANT = "meant"
    CAST = "cast"
    CAME_IN = "came in"
    GONE = "taken away"
    FLAGGED = "flagged"


@dataclass(slots=True)
class OverflowFinding:
    """A record that met NaN or infinity.

    `key` is that of the record, `tensor` the name of the value in it, as `output.0`. `is_alarm`: an
    overflow was born here, or NaN or +inf came in from outside, and was not meant.
    """

    key: str
    tensor: str
    found: NonFinite
    birth: Birth
    dtype: str
    message: str
    is_alarm: bool = False

    @property
    def place(self) -> str:
        """The record and the value in it: `Torch.exp.0.forward.output.0`."""
        return f"{self.key}.{self.tensor}"


@dataclass(slots=True, eq=False)
class Origin:
    """Where values that are not finite came from, as they are followed through the records.

    `may_be_meant`: they are -inf that no operator has computed, as in a mask of attention; with `is_proven`
    an operator has made finite values of them. `is_masked`: so has one of the others, since they were
    last seen. `taken_by` is the key of the first record that took some of them away, "" for none, `reaches`
    that a loss, a gradient or a state may hold them, and `is_unsure` that statistics cannot follow them.
    """

    finding: OverflowFinding
    may_be_meant: bool = False
    is_proven: bool = False
    is_masked: bool = False
    taken_by: str = ""
    reaches: bool = False
    is_unsure: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether it is a constant of the program."""
        return self.finding.birth is Birth.CAME_IN and not self.finding.is_alarm


COLUMNS = (
    "Rank",
    "Step",
    "API Name",
    "Tensor",
    "Kind",
    "Birth",
    "Dtype",
    "Module",
    "Source",
    "Message",
    "Dump",
)
# What a collective's row begins with whose own rank had finite values.
ARRIVAL = "own values were finite"
# The word in the column Birth of a row that tells the headroom of a tensor, which stands in Kind.
HEADROOM = "headroom"
_GROUP = re.compile(r"\(group of ranks ([\d,-]+)\)")
_BORN = (Birth.BORN.value, Birth.CAST.value)
_SENDS = ("Distributed.send.", "Distributed.isend.", "Distributed.batch_isend_irecv.")
_RECEIVES = ("Distributed.recv.", "Distributed.irecv.", "Distributed.batch_isend_irecv.")


class OverflowRow(NamedTuple):
    """A row of the table; `dump` is the name of the dump that it belongs to."""

    rank: str
    step: str
    api: str
    tensor: str
    kind: str
    birth: str
    dtype: str
    module: str
    source: str
    message: str
    dump: str

    @property
    def is_born(self) -> bool:
        """Whether an operator has made NaN or infinity of finite values here."""
        return self.birth in _BORN

    @property
    def is_arrival(self) -> bool:
        """Whether it came through a collective from another rank, or was born in it."""
        return self.message.startswith(ARRIVAL)


def number_of(folder: str) -> str:
    """Return the number in the name of a step's or a rank's folder: 3 of step3; proc4711 stays."""
    return re.sub(r"^(step|rank)(?=\d)", "", folder)


def arrival(group: object) -> str:
    """Return the sentence about a value that a collective brought; `group` is the record's field."""
    ranks = group.get("group_ranks") if isinstance(group, dict) else None
    if not isinstance(ranks, list) or not ranks or not all(type(each) is int for each in ranks):
        return ARRIVAL
    return f"{ARRIVAL} (group of ranks {ranges_of(ranks)})"


def joined_rows(rows: Sequence[OverflowRow]) -> list[OverflowRow]:
    """Return the rows with what other ranks and earlier steps tell of them.

    A collective's row whose own rank had finite values is passed on where another rank gave the same
    collective of the same step something else, and a birth where all ranks of the group are there and
    gave finite values. What was said by an earlier joining is said anew.
    """
    given: dict[tuple[str, str], list[OverflowRow]] = defaultdict(list)
    finite: dict[tuple[str, str], set[str]] = defaultdict(set)
    first: dict[str, int] = {}
    for row in rows:
        if row.is_arrival:
            finite[row.step, row.api].add(row.rank)
        elif row.birth == Birth.PASSED_ON.value:
            given[row.step, _meeting(row.api, _SENDS)].append(row)
        if (row.is_born or row.is_arrival) and row.step.isdigit():
            first[row.rank] = min(int(row.step), first.get(row.rank, int(row.step)))
    found = []
    for row in rows:
        if row.is_arrival:
            row = _arrived(
                row, given[row.step, _meeting(row.api, _RECEIVES)], finite[row.step, row.api]
            )
        elif row.birth == Birth.CAME_IN.value and row.step.isdigit():
            row = _since(row, first.get(row.rank))
        found.append(row)
    return found


def _arrived(row: OverflowRow, given: Iterable[OverflowRow], finite: set[str]) -> OverflowRow:
    said = row.message.partition("; ")[0]
    source = next((each for each in given if each.rank != row.rank), None)
    if source is not None:
        message = f"{said}; rank {source.rank} brought it, {source.message}"
        return row._replace(birth=Birth.PASSED_ON.value, message=message)
    group = _GROUP.search(said)
    ranks = set(_numbers(group[1])) if group else set()
    if ranks and ranks <= finite:
        message = f"{said}; so were those of all its ranks: born in the collective"
        return row._replace(birth=Birth.BORN.value, message=message)
    message = f"{said}; it is from a rank whose record is not among these dumps"
    return row._replace(birth=Birth.CAME_IN.value, message=message)


def _since(row: OverflowRow, step: int | None) -> OverflowRow:
    said = row.message.partition("; since step ")[0]
    if step is not None and step < int(row.step):
        said += f"; since step {step} values of this rank are not finite"
    return row._replace(message=said)


def _meeting(api: str, words: tuple[str, ...]) -> str:
    """Return what the records of one communication have in common: the key, or that it is from one rank to
    another."""
    return "point to point" if api.startswith(words) else api


def _numbers(text: str) -> Iterable[str]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from (str(each) for each in range(int(first), int(last or first) + 1))
