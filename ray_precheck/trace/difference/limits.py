"""How far a row of compare_result is beyond the limit of its standard, as its cells tell.

Comes in: the headings of compare_result, the standard of the run, and the cells of rows. Goes out: a multiple
of the limit, and bars of metrics beside their limits. Called by the views of comparisons, long after the
tensors were read: verdicts come from the column Result and are never made anew.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from ray_precheck.accuracy.thresholds import COSINE_LIMIT
from ray_precheck.numerics.arrays import epsilon_of
from ray_precheck.options.shared import MAX_ERR, MEGENGINE
from ray_precheck.schema.view import Bar
from ray_precheck.trace.difference.rows import ERROR, UNMATCHED
from ray_precheck.trace.difference.standards.auto import LEAST_FACTOR
from ray_precheck.trace.difference.standards.by_row import COSINE_TO_LIST, PTDBG_MAX_ABS_ERR
from ray_precheck.trace.difference.standards.megengine import error_told
from ray_precheck.trace.difference.standards.msprobe import OUTPUT_NORM, OUTPUT_SHARE

# The words of `auto`'s message: the multiple, and what is explained.
_TOLD = re.compile(r"(\S+) times what (?:rounding|noise of golden runs) explains \((\S+?)\)")
_UNITS = {
    "auto": "times what rounding or noise explains",
    "msprobe": "differing share or norm, in units of msprobe's limit",
    "ptdbg": "cosine or MaxAbsErr, whichever is nearer, in units of its limit",
    "precision_tool": "loss of cosine, in units of its limit",
    MEGENGINE: "error, in units of --max-err",
}
_METRICS = (
    "Cosine", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio", "RMSE",
    "MAPE", "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr", "Relative L2",
    "Noise Floor", "Share of Noise",
)  # fmt: skip
_LEAST = ("Cosine", "One Thousandth Err Ratio", "Five Thousandths Err Ratio")


class RowLimits:
    """Reads the cells of rows of compare_result under these `headings`, judged by `standard`. `max_err` is
    the limit of `megengine`, None for its default.

    `unit` names what `times` measures; `limit` is where errors begin in it, NaN where the standard has no
    number for it. With `auto` it is that of its strictest rule: some operators may be further off.
    """

    def __init__(
        self, headings: Sequence[str], standard: str, max_err: float | None = None
    ) -> None:
        self.unit = _UNITS.get(standard, "relative L2")
        self.limit = LEAST_FACTOR if standard == "auto" else 1.0 if standard in _UNITS else math.nan
        self._standard = standard
        self._max_err = MAX_ERR if max_err is None else max_err
        self._width = len(headings)
        self._at = {heading: place for place, heading in enumerate(headings)}

    def cell(self, cells: Sequence[str], heading: str) -> str:
        """Return a cell by its heading, "" where there is none."""
        place = self._at.get(heading, self._width)
        return cells[place] if place < len(cells) else ""

    def times(self, cells: Sequence[str]) -> float:
        """Return how far a row is apart, in `unit`: infinite for an error that no number shows, as of NaN or
        another shape, and NaN for a row without a partner, or without a number that passed. Of a row
        that passes `auto` it is at most this, and never beyond the limit."""
        result = self.cell(cells, "Result")
        if result == UNMATCHED:
            return math.nan
        found = self._measured(cells)
        if result == ERROR and not found > self.limit and not math.isnan(self.limit):
            return math.inf
        return math.inf if result == ERROR and math.isnan(found) else found

    def _measured(self, cells: Sequence[str]) -> float:
        if "NPU MD5" in self._at:  # Digests alone: equal, or nobody knows how far apart.
            same = self.cell(cells, "NPU MD5") == self.cell(cells, "BENCH MD5")
            return 0.0 if same else math.nan
        match self._standard:
            case "auto":
                told = _TOLD.search(self.cell(cells, "Err_message"))
                if told is not None:
                    return number_of_cell(told[1])
                # A row that passes does not say what explains it: at least the rounding of its dtype.
                unit = _unit_roundoff(
                    self.cell(cells, "NPU Dtype"), self.cell(cells, "Bench Dtype")
                )
                found = self._distance(cells) / (math.sqrt(2.0) * unit) if unit else math.nan
                return min(found, self.limit)
            case "ptdbg":
                loss = (1.0 - self._number(cells, "Cosine")) / (1.0 - COSINE_LIMIT)
                return min(loss, self._number(cells, "MaxAbsErr") / PTDBG_MAX_ABS_ERR)
            case "precision_tool":
                return (1.0 - self._number(cells, "Cosine")) / (1.0 - COSINE_TO_LIST)
            case "msprobe" if "NormRelativeErr" in self._at:
                return abs(self._number(cells, "NormRelativeErr")) / OUTPUT_NORM
            case "msprobe":
                share = self._number(cells, "One Thousandth Err Ratio")
                return (1.0 - share) / (1.0 - OUTPUT_SHARE)
            case standard if standard == MEGENGINE:
                return self._told_error(cells) / self._max_err
        return self._distance(cells)

    def _distance(self, cells: Sequence[str]) -> float:
        found = self._number(cells, "Relative L2")
        return abs(self._number(cells, "NormRelativeErr")) if math.isnan(found) else found

    def _number(self, cells: Sequence[str], heading: str) -> float:
        return number_of_cell(self.cell(cells, heading))

    def _told_error(self, cells: Sequence[str]) -> float:
        """Return the error by the measure of `megengine` that a message tells, NaN for none."""
        told = map(error_told, messages_in(self.cell(cells, "Err_message")))
        return next((error for error in told if error is not None), math.nan)

    def bars(self, cells: Sequence[str]) -> tuple[Bar, ...]:
        """Return the metrics of a row, each beside the limit that its standard has for it."""
        limits = self._limits(cells)
        found = []
        for name in dict.fromkeys(_METRICS):
            value = self._number(cells, name)
            if not math.isnan(value):
                found.append(Bar(name, value, limits.get(name, math.nan), name in _LEAST))
        told = _TOLD.search(self.cell(cells, "Err_message"))
        if told is not None and math.isnan(self._number(cells, "Relative L2")):
            limit = limits.get("Relative L2", math.nan)
            value = number_of_cell(told[1]) * number_of_cell(told[2])
            found.append(Bar("Relative L2, at least", value, limit))
        if not math.isnan(error := self._told_error(cells)):
            found.append(Bar("error", error, self._max_err))
        return tuple(found)

    def _limits(self, cells: Sequence[str]) -> Mapping[str, float]:
        told = _TOLD.search(self.cell(cells, "Err_message"))
        if self._standard == "auto" and told is not None:
            return {"Relative L2": LEAST_FACTOR * number_of_cell(told[2])}
        return {
            "ptdbg": {"Cosine": COSINE_LIMIT, "MaxAbsErr": PTDBG_MAX_ABS_ERR},
            "precision_tool": {"Cosine": COSINE_TO_LIST},
            "msprobe": {"One Thousandth Err Ratio": OUTPUT_SHARE, "NormRelativeErr": OUTPUT_NORM},
        }.get(self._standard, {})


def messages_in(cell: str) -> list[str]:
    """Return the messages in a cell of Err_message; none where others have changed it."""
    try:
        found = json.loads(cell) if cell[:1] == "[" else []
    except (ValueError, RecursionError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


@lru_cache(maxsize=64)
def _unit_roundoff(*dtypes: str) -> float:
    """Return the unit roundoff of the coarsest dtype, 0 where one is no float."""
    epsilons = [epsilon_of(dtype) for dtype in dtypes]
    return max(epsilons) / 2 if all(epsilons) else 0.0


def number_of_cell(cell: str) -> float:
    """Return the number in a cell, `12.5%` as 0.125; NaN for words and empty cells."""
    text = cell.strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return math.nan
