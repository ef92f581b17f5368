"""The findings of a run, read back from its files.

Comes in: the files of a run that has ended, or that is being written. Goes out: a `Summary`, with the reasons
why calls were not compared: those that differ in numbers and names only count as one. Called by `run` and by
the command `summary`; `closing` makes text of it. The CSV files are read row by row, so that the size of the
run does not matter.

How far an output is beyond its limit, as one number that orders the outputs of a run. It is made of the
columns that the files have:

    size = max(sqrt(2 * (1 - Cosine)), e)

is how large the error is beside the output: the first part is the root mean square of the error as a share
of that of the output, where both are of one length, and 1 or more where the output is all wrong; `e` is the
error of the worst element. `e` and the limit depend on the standard of the row:

    msprobe       e = min(MaxAbsErr, MaxRelativeErr); the limit is 1e-4, of the output itself where
                  that is larger than 1. So a gradient of 1e-5 that is all wrong is 10,000 times beyond
                  its limit, and a sum of 5,000 that is 0.0005 off is within it.
    auto          the larger of MaxAbsErr / HonestMaxAbsErr and RMSE / HonestRMSE
    benchmark     the largest of the ratios to the reference
    ulp           MaxUlpErr / the limit for single elements
    thousandth    size / 0.001
    others        size in units in the last place of the tested dtype

with e = min(MaxRelativeErr, 1) for all but msprobe. No number is larger than size in units in the last
place, so that a limit of nearly 0 (equal bits are expected) makes no number of 1e+36. It is infinite where
shapes, NaN or infinities differ. Limits of a user's file are not known here: the published ones count.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from ray_precheck.accuracy.standards.base import ROUNDING, STANDARD_HEADING
from ray_precheck.accuracy.standards.published import RATIO_HEADINGS
from ray_precheck.accuracy.thresholds import MAX_ABS_ERR_LIMIT, ULP_THRESHOLD, limit_of
from ray_precheck.descriptors.descriptor import read_dtype
from ray_precheck.numerics.arrays import machine_epsilon
from ray_precheck.schema.dtypes import is_differentiable
from ray_precheck.schema.environment import Environment, environment_from_dict
from ray_precheck.schema.result import Verdict, verdict_in
from ray_precheck.store.results import ResultRow, headings_of, parse_result_row, read_columns
from ray_precheck.store.settings import RunSettings, load_settings
from ray_precheck.store.tables import (
    DETAIL_COLUMNS,
    DISTRIBUTION,
    RESULT_COLUMNS,
    RunFiles,
    decode_name,
)
from ray_precheck.trace.sources import source_lines

Row = Mapping[str, str]
_THOUSANDTH = 1e-3
# A larger number tells a person no more than that the output is all wrong.
_LARGEST_SHOWN = 1e6
_HONEST = {"MaxAbsErr": "HonestMaxAbsErr", "RMSE": "HonestRMSE"}


def beyond_limit(row: Row) -> float:
    """Return how many times an output is beyond its limit; infinite where nothing can be measured.

    `row` are the cells of a detail row by their headings.
    """
    absolute, relative = number_in(row, "MaxAbsErr"), number_in(row, "MaxRelativeErr")
    if not math.isfinite(absolute):
        return math.inf
    if absolute == 0.0:
        return 0.0  # The cosine has its own rounding.
    standard = row.get(STANDARD_HEADING, "").split(" ")[0]
    angle = _angle(row)
    # A row without a relative error is judged by the absolute one.
    worst = relative if math.isfinite(relative) else absolute
    if standard in ("", "msprobe"):
        return max(angle, min(absolute, worst)) / MAX_ABS_ERR_LIMIT
    dtype = read_dtype(row.get("Tested Dtype", "")) or "float32"
    size = max(angle, min(worst, 1.0))
    most = size / _unit(dtype)
    measure = _MEASURES.get(standard)
    return most if measure is None else min(most, measure(row, dtype, size))


def times_cell(times: float) -> str:
    """Return how many times an output is beyond its limit as a table shows it: `0.0381`, `1746`,
    `>1e6`, `inf`."""
    if _LARGEST_SHOWN < times < math.inf:
        return ">1e6"
    return f"{times:.0f}" if 1000 <= times < math.inf else f"{times:.3g}"


def nearness(max_abs_err: str) -> float:
    """Return the error of an output that passes msprobe's rule, in units of its limit; 0 where the
    cell holds no number."""
    try:
        return float(max_abs_err) / MAX_ABS_ERR_LIMIT
    except ValueError:
        return 0.0


def is_rounding(message: str) -> bool:
    """Return whether the Message says that rounding explains the error, which no kernel can avoid."""
    return ROUNDING in message


def _angle(row: Row) -> float:
    """Return the error that the cosine shows, as a share of the output; 0 where there is no cosine."""
    cosine = number_in(row, "Cosine")
    return math.sqrt(2.0 * max(0.0, 1.0 - cosine)) if math.isfinite(cosine) else 0.0


def _unit(dtype: str) -> float:
    """Return one unit in the last place of 1; 1e-4 where the dtype has no places after the point."""
    return machine_epsilon(dtype) if is_differentiable(dtype) else MAX_ABS_ERR_LIMIT


def _to_honest(row: Row, dtype: str, size: float) -> float:
    pairs = [(number_in(row, own), number_in(row, honest)) for own, honest in _HONEST.items()]
    ratios = [own / honest for own, honest in pairs if own >= 0 and honest > 0]
    return max(ratios, default=math.inf)


def _to_reference(row: Row, dtype: str, size: float) -> float:
    ratios = [number_in(row, heading) for heading in RATIO_HEADINGS.values()]
    return max((ratio for ratio in ratios if ratio >= 0), default=math.inf)


def _to_units(row: Row, dtype: str, size: float) -> float:
    units = number_in(row, "MaxUlpErr")
    return units / limit_of(ULP_THRESHOLD, dtype) if units >= 0 else math.inf


def _to_thousandth(row: Row, dtype: str, size: float) -> float:
    return size / _THOUSANDTH


_MEASURES: dict[str, Callable[[Row, str, float], float]] = {
    "auto": _to_honest,
    "benchmark": _to_reference,
    "ulp": _to_units,
    "thousandth": _to_thousandth,
}


@dataclass(frozen=True, slots=True)
class MeasureBeyond:
    """What `beyond_limit` has measured of an output: `name` says what the number is, `limit` is what it may
    be, NaN where the standard has another one for each output, `unit` is what a multiple of it is called."""

    name: str
    unit: str
    limit: float = math.nan


TIMES = "times its limit"
_SIZE = "Error beside the size of the output"
_OF_STANDARDS: dict[str, MeasureBeyond] = {
    "auto": MeasureBeyond(
        "Error beside that of the worst honest implementation",
        "times the error of the worst honest implementation",
    ),
    "benchmark": MeasureBeyond(
        "Error beside that of the reference", "times the error of the reference"
    ),
    "thousandth": MeasureBeyond(_SIZE, TIMES, _THOUSANDTH),
}
_UNITS_OF_SIZE = MeasureBeyond(_SIZE, "units in the last place")


def measure_beyond(row: Row) -> MeasureBeyond:
    """Return what `beyond_limit` measures of an output, of whose limit or unit it returns a multiple."""
    standard = row.get(STANDARD_HEADING, "").split(" ")[0]
    if standard in ("", "msprobe"):
        return MeasureBeyond(_SIZE, TIMES, MAX_ABS_ERR_LIMIT)
    dtype = read_dtype(row.get("Tested Dtype", "")) or "float32"
    relative, absolute = number_in(row, "MaxRelativeErr"), number_in(row, "MaxAbsErr")
    size = max(_angle(row), min(relative if math.isfinite(relative) else absolute, 1.0))
    measure = _MEASURES.get(standard)
    if measure is None or size / _unit(dtype) < measure(row, dtype, size):
        return _UNITS_OF_SIZE
    if standard == "ulp":
        limit = float(limit_of(ULP_THRESHOLD, dtype))
        return MeasureBeyond("Largest error in units in the last place", TIMES, limit)
    return _OF_STANDARDS[standard]


def number_in(row: Row, heading: str) -> float:
    """Return the number in the cell of a column, NaN where there is none."""
    try:
        return float(row.get(heading, ""))
    except ValueError:
        return math.nan


# How many different reasons are kept apart; all others are counted as one.
_MOST_REASONS = 10_000
NAMES_KEPT = 3
OTHER_REASONS = "other reasons"
# The parts in which two Messages of the same reason may differ: quoted or bracketed text, dotted
# names and paths, numbers. Each stands for one sign in the key.
_VARIABLES = re.compile(
    r"""'[^']*' | "[^"]*" | `[^`]*` | \[[^\]]*\] | \([^)]*\)
        | \w*(?:[./]\w+)+ | [-+]?\d[\w.]*""",
    re.VERBOSE,
)
_DIRECTIONS = ("forward: ", "backward: ")
# Two reasons are the same where so many characters are; messages may have millions.
_LOOKED_AT = 300
_BACKWARD = re.compile(r"(?:^|; )(backward: .*)")


@dataclass(slots=True)
class Reason:
    """A reason as the first call gives it, how many calls have it, and the first few names."""

    text: str
    count: int = 0
    names: list[str] = field(default_factory=list)


class Reasons:
    """Counts reasons as they come in."""

    def __init__(self) -> None:
        self._found: dict[str, Reason] = {}

    def add(self, name: str, text: str) -> None:
        """Count the reason of a call."""
        key = reason_key(name, text)
        if key not in self._found and len(self._found) >= _MOST_REASONS:
            key = text = OTHER_REASONS
        reason = self._found.setdefault(key, Reason(text))
        reason.count += 1
        if len(reason.names) < NAMES_KEPT:
            reason.names.append(name)

    def merge(self, others: "Reasons", prefix: str) -> None:
        """Count those of another run, too; its names begin with `prefix` then."""
        for key, other in others._found.items():
            if key not in self._found and len(self._found) >= _MOST_REASONS:
                key = OTHER_REASONS
            reason = self._found.setdefault(
                key, Reason(OTHER_REASONS if key == OTHER_REASONS else other.text)
            )
            reason.count += other.count
            names = [f"{prefix}{name}" for name in other.names]
            reason.names = (reason.names + names)[:NAMES_KEPT]

    def commonest(self, most: int) -> Sequence[Reason]:
        """Return the commonest reasons, those that came first before others of the same count."""
        return sorted(self._found.values(), key=lambda reason: -reason.count)[:most]

    def __len__(self) -> int:
        return len(self._found)


def why_not_compared(message: str, *, forward: bool) -> str:
    """Return the part of a Message that says why a direction was not compared.

    With `forward` the forward check was not compared: its reason is the whole Message. If only the
    backward check was not compared, the part about the forward check is left out.
    """
    found = None if forward else _BACKWARD.search(message)
    return (found[1] if found else message) or "no reason is given"


def reason_key(name: str, text: str) -> str:
    """Return a reason without its numbers and names, equal for reasons that differ in them alone.

    `name` is the name of the call; it, the API and its last part are left out. The text after the first
    colon or semicolon is left out, too: it has the words of a framework.
    """
    direction = next((word for word in _DIRECTIONS if text.startswith(word)), "")
    rest = text[len(direction) :][:_LOOKED_AT]
    clause = direction + re.split(r"[:;] ", rest, maxsplit=1)[0]
    for own in _own_names(name):
        clause = clause.replace(own, "#")
    return re.sub(r"#(?:\W*#)*", "#", _VARIABLES.sub("#", clause))


def _own_names(name: str) -> list[str]:
    """Return the names of a call, the longest first; a short last part may be a word of the text."""
    type_name = name.rsplit(".", 1)[0]
    api = type_name.rsplit(".", 1)[-1]
    return [each for each in (name, type_name, api) if each and (len(each) > 4 or "." in each)]


WORST_OUTPUTS = 10
BROKEN_CALLS = 10
# Two directions of each may be one API; `WORST_OUTPUTS` of an API and direction are shown by name.
_KEPT_KINDS = 2 * WORST_OUTPUTS
# How many APIs are kept apart while the details are read; hostile files may have millions.
_MOST_KINDS = 10_000
_PASS = Verdict.PASS.value


@dataclass(slots=True)
class Direction:
    """The counts of the forward, or of the backward checks.

    `errors` counts errors by comparison, `broken` errors without anything to compare: the device
    raised, crashed or gave no answer. `missing` counts calls without a record of this direction.
    """

    passes: int = 0
    errors: int = 0
    broken: int = 0
    skips: int = 0
    missing: int = 0

    @property
    def compared(self) -> int:
        """How many were compared."""
        return self.passes + self.errors

    @property
    def total(self) -> int:
        """How many there are."""
        return self.compared + self.broken + self.skips

    def add(self, verdict: Verdict, *, broke: bool = False, count: int = 1) -> None:
        """Count calls with a verdict; `broke`: those in error could not be run."""
        if verdict is Verdict.PASS:
            self.passes += count
        elif verdict is Verdict.SKIP:
            self.skips += count
        elif verdict is Verdict.NONE:
            self.missing += count
        elif broke:
            self.broken += count
        else:
            self.errors += count


@dataclass(frozen=True, slots=True)
class WorstOutput:
    """The output of an API and direction that is farthest `beyond` its limit.

    `row` are its cells, `source` is the model's line, and `more` counts the other outputs of the API
    and direction that are in error; `others` are the worst of these, at most ten, each with how far it is
    beyond its limit.
    """

    row: dict[str, str]
    beyond: float
    source: str = ""
    more: int = 0
    others: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """The name of the output as the dump has it: `Mint.add.0.forward.output.0`."""
        return self.row["API Name"]

    @property
    def is_error(self) -> bool:
        """Whether the output is in error."""
        return verdict_in(self.row["Status"]) is Verdict.ERROR


@dataclass(slots=True)
class Summary:
    """Counts over all rows of a result CSV, the worst outputs, and the reasons and broken calls.

    `broken` are the first calls that the device could not run, with their Messages, `reasons` the
    reasons of calls that were not compared. `foreign` are rows of calls that the dump lacks, which are not
    counted. `settings` is None if the run has no settings file
    (msprobe's own runs).
    """

    files: RunFiles
    total: int = 0
    passes: int = 0
    errors: int = 0
    skips: int = 0
    forward: Direction = field(default_factory=Direction)
    backward: Direction = field(default_factory=Direction)
    broken: int = 0
    broken_calls: list[ResultRow] = field(default_factory=list)
    reasons: Reasons = field(default_factory=Reasons)
    error_types: Counter[str] = field(default_factory=Counter)
    worst: list[WorstOutput] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    settings: RunSettings | None = None
    environment: Environment = field(default_factory=Environment)

    @property
    def compared(self) -> int:
        """How many forward and backward passes were compared."""
        return self.forward.compared + self.backward.compared

    @property
    def checked_nothing(self) -> bool:
        """Whether no call passed or failed in any direction, so that the run says nothing of the
        device."""
        return not self.compared and not self.errors


class RowWatcher(Protocol):
    """Sees each row while a run is summed up, so that files of millions of rows are read once."""

    def call(self, cells: Sequence[str]) -> None:
        """Take the cells of a row of the result CSV."""

    def output(self, name: str, dtype: str, times: float, row: Row | None) -> None:
        """Take an output that was compared: its name as a cell, the tested dtype, and how many times it is
        beyond its limit; 0 for a pass by a standard whose columns do not tell. `row` are the cells of one
        that is in error, None for a pass."""


def summarise(files: RunFiles, watcher: RowWatcher | None = None) -> Summary:
    """Read the files of a run; a million rows take some seconds. `watcher` sees each row, too.

    Raises:
        OSError: a file cannot be read; a missing file counts as empty.
    """
    summary = Summary(files, settings=load_settings(files.settings))
    if summary.settings is not None:
        summary.environment = environment_from_dict(summary.settings.environment)
    # They say nothing of this dump; where there are none, nearly always, no name is looked at.
    foreign = set(summary.settings.foreign) if summary.settings is not None else set()
    fine: Counter[str] = Counter()
    for cells in read_columns(files.result, tuple(RESULT_COLUMNS)):
        if watcher is not None:
            watcher.call(cells)
        if foreign and decode_name(cells[0]) in foreign:
            summary.foreign.append(decode_name(cells[0]))
        elif cells[1] == _PASS and cells[2] in (_PASS, ""):
            fine[cells[2]] += 1  # Nearly all of millions of calls.
        else:
            _count(summary, parse_result_row(cells))
    for backward, count in fine.items():
        summary.total += count
        summary.passes += count
        summary.forward.passes += count
        summary.backward.add(verdict_in(backward), count=count)
    summary.worst = _with_sources(
        _worst_outputs(files.details, watcher, has_errors=summary.errors > 0), summary.environment
    )
    return summary


def _count(summary: Summary, call: ResultRow) -> None:
    summary.total += 1
    summary.forward.add(call.forward, broke=call.forward_broke)
    summary.backward.add(call.backward, broke=call.backward_broke)
    verdict = call.verdict
    if verdict is Verdict.ERROR:
        summary.errors += 1
        summary.error_types[call.name.rsplit(".", 1)[0]] += 1
        if call.broke:
            summary.broken += 1
            if len(summary.broken_calls) < BROKEN_CALLS:
                summary.broken_calls.append(call)
    elif verdict is Verdict.PASS:
        summary.passes += 1
    else:
        summary.skips += 1
        forward = call.forward is not Verdict.PASS
        summary.reasons.add(call.name, why_not_compared(call.message, forward=forward))


def _worst_outputs(
    path: Path, watcher: RowWatcher | None, *, has_errors: bool
) -> list[WorstOutput]:
    """Return the worst output of each API and direction, the worst of these first.

    Without errors those that came nearest to their limits count, where msprobe's rule is the judge: the
    columns of the others do not tell how near they are.
    """
    columns = tuple(dict.fromkeys([*DETAIL_COLUMNS, *headings_of(path)]))
    wanted = ("Status", "Message", "MaxAbsErr", "Tested Dtype")
    status, message, error, dtype = (columns.index(name) for name in wanted)
    tells_near = STANDARD_HEADING not in columns
    counts_passes = not has_errors and tells_near
    found: dict[str, _Kind] = {}
    floor = -1.0  # Of millions of passes nearly all are behind those that will be shown.
    for cells in read_columns(path, columns):
        if cells[status] == _PASS:
            near = nearness(cells[error]) if tells_near and cells[error] else 0.0
            if watcher is not None:
                watcher.output(cells[0], cells[dtype], near, None)
            if not counts_passes or not cells[error] or near <= floor:
                continue
            if _keep(found, (False, True, near, cells[0]), cells):
                floor = _floor(found)
        elif verdict_in(cells[status]) is Verdict.ERROR:
            row = dict(zip(columns, cells, strict=True))
            beyond = beyond_limit(row)
            if watcher is not None:
                watcher.output(cells[0], cells[dtype], beyond, row)
            _keep(found, (True, not is_rounding(cells[message]), beyond, cells[0]), cells)
        if len(found) > _MOST_KINDS:
            found = dict(heapq.nlargest(_KEPT_KINDS, found.items(), key=_rank_of))
    return [
        _worst_output(columns, kind)
        for _, kind in heapq.nlargest(_KEPT_KINDS, found.items(), key=_rank_of)
    ]


def _keep(
    found: dict[str, "_Kind"], rank: tuple[bool, bool, float, str], cells: tuple[str, ...]
) -> bool:
    """Keep the output if it is the worst of its API and direction yet, and count it if it is in error;
    return whether it was kept."""
    name = kind_of(cells[0])
    kind = found.get(name)
    if kind is None:
        found[name] = _Kind(rank, cells, int(rank[0]), [rank] if rank[0] else [])
        return True
    if rank[0]:
        kind.errors += 1
        push = heapq.heappush if len(kind.worst) <= WORST_OUTPUTS else heapq.heappushpop
        push(kind.worst, rank)
    if rank <= kind.rank:
        return False
    kind.rank, kind.cells = rank, cells
    return True


def _floor(found: Mapping[str, "_Kind"]) -> float:
    """Return the number that a pass must exceed to be among the worst; -1: every pass does."""
    if len(found) < _KEPT_KINDS:
        return -1.0
    return heapq.nlargest(_KEPT_KINDS, (kind.rank[2] for kind in found.values()))[-1]


@dataclass(slots=True)
class _Kind:
    """The worst output of an API and direction: errors first, those that rounding explains last of
    them, then by how far it is beyond its limit; how many are in error, and a heap of the worst of these."""

    rank: tuple[bool, bool, float, str]
    cells: tuple[str, ...]
    errors: int = 0
    worst: list[tuple[bool, bool, float, str]] = field(default_factory=list)


def _rank_of(item: tuple[str, _Kind]) -> tuple[bool, bool, float, str]:
    return item[1].rank


def worst_of(outputs: Iterable[tuple[str, WorstOutput]]) -> list[WorstOutput]:
    """Return the worst outputs of several runs, each with the label of its run before its name.

    An API and direction has one line for all runs.
    """
    found: dict[str, WorstOutput] = {}
    for label, output in outputs:
        kind = kind_of(output.name)
        named = replace(output, row={**output.row, "API Name": f"{label} {output.name}"})
        other = found.get(kind)
        if other is not None:
            worse = max(other, named, key=badness)
            count = sum(each.more + each.is_error for each in (other, named))
            named = replace(worse, more=max(count - 1, 0))
        found[kind] = named
    return heapq.nlargest(WORST_OUTPUTS, found.values(), key=badness)


def badness(output: WorstOutput) -> tuple[bool, bool, float, str]:
    """Return what orders outputs: errors, those that rounding does not explain, the farthest beyond."""
    return output.is_error, not is_rounding(output.row["Message"]), output.beyond, output.name


def kind_of(name: str) -> str:
    """Return API and direction: `Mint.add.backward` of `Mint.add.0.backward.output.1`."""
    parts = name.rsplit(".", 4)
    is_output = len(parts) == 5 and parts[-1] != DISTRIBUTION
    return f"{parts[0]}.{parts[2]}" if is_output else name


def _worst_output(columns: tuple[str, ...], kind: _Kind) -> WorstOutput:
    row = dict(zip(columns, kind.cells, strict=True))
    named = {**row, "API Name": decode_name(row["API Name"])}
    others = tuple(
        (decode_name(name), beyond)
        for *_, beyond, name in sorted(kind.worst, reverse=True)
        if name != kind.rank[3]
    )
    return WorstOutput(
        named, kind.rank[2], more=max(kind.errors - 1, 0), others=others[:WORST_OUTPUTS]
    )


def _with_sources(worst: list[WorstOutput], environment: Environment) -> list[WorstOutput]:
    """Return the outputs with the model's lines, where a `stack.json` stands beside the dump."""
    if not environment.dump:
        return worst
    # X.0.forward.output.1 is made where X.0.forward is called.
    calls = {output.name: output.name.rsplit(".", 2)[0] for output in worst if output.is_error}
    lines = source_lines(Path(environment.dump), set(calls.values()))
    return [replace(output, source=lines.get(calls.get(output.name, ""), "")) for output in worst]
