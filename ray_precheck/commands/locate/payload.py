"""What travels between the driver and the workers of `locate`: a call of both runs, and what was measured.

Goes out: frozen nouns, and the two tables. Called by the job, its runner and the session, which reads the
tables again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ray_precheck.check.settings import CheckSettings
from ray_precheck.commands.compare.payload import GOLDEN, TARGET
from ray_precheck.commands.locate.walk.estimated import EstimatedEvidence
from ray_precheck.commands.locate.walk.evidence import OwnError, ValueEvidence
from ray_precheck.schema.pickling import pickled_by_position
from ray_precheck.schema.task import TaskPayload
from ray_precheck.store.repair import decoded_rows
from ray_precheck.store.tables import Tables, decode_name, encode_name, encode_row, encode_text
from ray_precheck.trace.items import Item

# `locate_calls_{timestamp}.csv` and `locate_values_{timestamp}.csv`. A row of the values is of a record
# (its Value is ""), with its own error, or of one of its values.
LOCATION_TABLES = Tables(
    "locate",
    ("Call", "Result", "Golden Call", "Message"),
    (
        "Record", "Value", "Difference", "Order", "Content", "Golden Content", "Verdict", "Own Error",
        "Inherited Error", "Golden Own Error", "Golden Verdict", "Output", "Index", "Cause", "Message",
        "Call",
    ),
    detail_parts=None,
    verdicts=1,
    needs_details=False,
    words=("calls", "values"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocationSettings:
    """The settings of every worker: how calls of the target are replayed, and those of the golden run, None
    without one, or where it is of another framework. `golden_folder` has its tensors, None without one.
    `same_framework`: arguments have the same names on both sides."""

    target: CheckSettings
    golden: CheckSettings | None = None
    golden_folder: Path | None = None
    same_framework: bool = True

    @property
    def folders(self) -> dict[str, Path]:
        """The folders of tensors of both sides; without a golden run nothing is read of the second."""
        target = self.target.data_folder
        return {TARGET: target, GOLDEN: self.golden_folder or target}


@pickled_by_position
@dataclass(frozen=True, slots=True)
class LocationPayload:
    """A call of the target, and its partner of the golden run, None where it has none.

    `is_replayed` is False where its values are compared alone: collectives.
    """

    index: int
    name: str
    target: TaskPayload
    golden: TaskPayload | None = None
    is_replayed: bool = True


class MeasuredValue(NamedTuple):
    """What was measured of a value: how it differs, and what tells its contents from others."""

    evidence: ValueEvidence
    content: str = ""
    golden_content: str = ""


@dataclass(slots=True)
class MeasuredEvidence:
    """What the table of the values holds, as the walk asks for it; `otherwise` estimates values that have no
    files on both sides."""

    values: dict[tuple[str, str], MeasuredValue] = field(default_factory=dict)
    errors: dict[str, OwnError] = field(default_factory=dict)
    otherwise: EstimatedEvidence = field(default_factory=EstimatedEvidence)
    estimates: bool = False
    sees_elements: bool = True

    def value(self, key: str, target: Item, golden: Item) -> ValueEvidence:
        """Return how a value of a record differs from its partner."""
        found = self.values.get((key, target.path))
        if found is not None and not math.isnan(found.evidence.difference):
            return found.evidence
        return self.otherwise.value(key, target, golden)

    def own(self, key: str) -> OwnError | None:
        """Return the own error of a record; None where it was not replayed."""
        return self.errors.get(key)

    def content(self, key: str, path: str) -> str:
        """Return what tells a value of the target from others, "" where it was not read."""
        found = self.values.get((key, path))
        return found.content if found is not None else ""

    def golden_contents(self, partners: Mapping[str, str]) -> dict[tuple[str, str], str]:
        """Return the contents of the golden run's values by key and path; `partners` has its records."""
        return {
            (partners[key], path): each.golden_content
            for (key, path), each in self.values.items()
            if each.golden_content and key in partners
        }


def encoded_value(call: str, record: str, path: str, value: MeasuredValue) -> bytes:
    """Return the row of a value."""
    difference = value.evidence.difference
    cells = [
        encode_name(record),
        encode_name(path),
        "" if math.isnan(difference) else repr(difference),
        encode_text(value.evidence.order),
        value.content,
        value.golden_content,
        *[""] * 9,
        encode_name(call),
    ]
    return encode_row(cells)


def encoded_error(call: str, record: str, error: OwnError) -> bytes:
    """Return the row of a record."""
    cells = [
        encode_name(record),
        *[""] * 5,
        error.verdict,
        number_cell(error.own),
        number_cell(error.inherited),
        number_cell(error.golden),
        error.golden_verdict,
        encode_name(error.output),
        encode_text(error.index),
        encode_text(error.cause),
        encode_text(error.message),
        encode_name(call),
    ]
    return encode_row(cells)


def number_cell(value: float | None) -> str:
    """Return an error as a cell that is read back as it was, "" for what is not known."""
    return "" if value is None or math.isnan(value) else repr(float(value))


def read_measured(path: Path) -> MeasuredEvidence:
    """Read the table of the values of a run."""
    found = MeasuredEvidence()
    for cells in decoded_rows(path, LOCATION_TABLES.details):
        record, value = decode_name(cells[0]), decode_name(cells[1])
        if value:
            difference = float(cells[2]) if cells[2] else math.nan
            evidence = ValueEvidence(difference, cells[3])
            found.values[record, value] = MeasuredValue(evidence, cells[4], cells[5])
        else:
            found.errors[record] = OwnError(
                cells[6],
                float(cells[7]) if cells[7] else math.nan,
                float(cells[8]) if cells[8] else None,
                float(cells[9]) if cells[9] else None,
                cells[10],
                decode_name(cells[11]),
                cells[12],
                cells[13],
                cells[14],
            )
    return found
