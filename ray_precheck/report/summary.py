"""What a run found, read back from its files.

Comes in: the files of a run that has ended, or that is being written. Goes out: a `Summary`. Called by
the session and by the command `summary`; `closing` makes text of it. The CSV files are read row by
row, so that the size of the run does not matter.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ray_precheck.report.beyond import beyond_limit, is_rounding
from ray_precheck.report.calls import Call, read_calls
from ray_precheck.report.reasons import Reasons, why_not_compared
from ray_precheck.report.sources import source_lines
from ray_precheck.report.tables import headings_of, read_columns
from ray_precheck.schema.environment import Environment, environment_from_dict
from ray_precheck.schema.result import Verdict, verdict_in
from ray_precheck.store.columns import DETAIL_COLUMNS, decode_name
from ray_precheck.store.resume import RunFiles
from ray_precheck.store.settings import RunSettings, load_settings

WORST_OUTPUTS = 10
BROKEN_CALLS = 10


@dataclass(slots=True)
class Direction:
    """What became of the forward, or of the backward checks.

    `errors` are in error by what was compared, `broken` because there was nothing to compare: the
    device raised, crashed or gave no answer. `missing` have no record of this direction.
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

    def add(self, verdict: Verdict, *, broke: bool) -> None:
        """Count one."""
        if verdict is Verdict.PASS:
            self.passes += 1
        elif verdict is Verdict.SKIP:
            self.skips += 1
        elif verdict is Verdict.NONE:
            self.missing += 1
        elif broke:
            self.broken += 1
        else:
            self.errors += 1


@dataclass(frozen=True, slots=True)
class WorstOutput:
    """An output by how far it is `beyond` its limit; `row` are its cells, `source` is the model's line."""

    row: dict[str, str]
    beyond: float
    source: str = ""

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
    """Counts over all rows of a result CSV, the worst outputs, and what there is to say besides.

    `broken` are the first calls that the device could not run, with their Messages, `reasons` those of
    what was not compared. `settings` is None where the files have none (msprobe's own).
    """

    files: RunFiles
    total: int = 0
    passes: int = 0
    errors: int = 0
    skips: int = 0
    forward: Direction = field(default_factory=Direction)
    backward: Direction = field(default_factory=Direction)
    broken: int = 0
    broken_calls: list[Call] = field(default_factory=list)
    reasons: Reasons = field(default_factory=Reasons)
    error_types: Counter[str] = field(default_factory=Counter)
    worst: list[WorstOutput] = field(default_factory=list)
    settings: RunSettings | None = None
    environment: Environment = field(default_factory=Environment)

    @property
    def compared(self) -> int:
        """How many forward and backward passes were compared."""
        return self.forward.compared + self.backward.compared

    @property
    def checked_nothing(self) -> bool:
        """Whether no call passed or failed in any direction: there is nothing to judge by."""
        return not self.compared and not self.errors


def summarise(files: RunFiles) -> Summary:
    """Read the files of a run; a million rows take some seconds.

    Raises:
        OSError: a file cannot be read; one that is missing counts as empty.
    """
    summary = Summary(files, settings=load_settings(files.settings))
    if summary.settings is not None:
        summary.environment = environment_from_dict(summary.settings.environment)
    for call in read_calls(files.result):
        _count(summary, call)
    worst = heapq.nlargest(WORST_OUTPUTS, _candidates(files.details), key=badness)
    summary.worst = _with_sources(worst, summary.environment)
    return summary


def _count(summary: Summary, call: Call) -> None:
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


def _candidates(path: Path) -> Iterator[WorstOutput]:
    """Yield the detail rows that may be among the worst, going by those that came before.

    So objects are made of some dozens of rows, not of millions.
    """
    columns = tuple(dict.fromkeys([*DETAIL_COLUMNS, *headings_of(path)]))
    status, message = columns.index("Status"), columns.index("Message")
    worst: list[tuple[bool, bool, float]] = []
    for cells in read_columns(path, columns):
        is_error = verdict_in(cells[status]) is Verdict.ERROR
        if not is_error and verdict_in(cells[status]) is not Verdict.PASS:
            continue
        row = dict(zip(columns, cells, strict=True))
        beyond = beyond_limit(row)
        if not is_error and not row["MaxAbsErr"]:
            continue
        badness = (is_error, not is_rounding(cells[message]), beyond)
        if len(worst) < WORST_OUTPUTS:
            heapq.heappush(worst, badness)
        elif badness < worst[0]:
            continue
        else:
            heapq.heapreplace(worst, badness)
        yield WorstOutput({**row, "API Name": decode_name(row["API Name"])}, beyond)


def badness(output: WorstOutput) -> tuple[bool, bool, float, str]:
    """Return what outputs are ordered by: errors first, those that rounding explains last of them; then by how far they are
    beyond their limit."""
    is_open = not is_rounding(output.row["Message"])
    return output.is_error, is_open, output.beyond, output.name


def _with_sources(worst: list[WorstOutput], environment: Environment) -> list[WorstOutput]:
    """Return the outputs with the model's lines, where a `stack.json` stands beside the dump."""
    if not environment.dump:
        return worst
    # X.0.forward.output.1 is made where X.0.forward is called.
    calls = {output.name: output.name.rsplit(".", 2)[0] for output in worst if output.is_error}
    lines = source_lines(Path(environment.dump), set(calls.values()))
    return [
        WorstOutput(output.row, output.beyond, lines.get(calls.get(output.name, ""), ""))
        for output in worst
    ]
