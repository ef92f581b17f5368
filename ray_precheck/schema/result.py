"""The result of checking one API call.

An `Outcome` tells how the run of a call ended, a `Verdict` whether its numbers are right; they are kept
apart because "the device crashed" and "the numbers are wrong" are different findings.
"""

from dataclasses import dataclass
from enum import Enum

from ray_precheck.schema.pickling import pickled_by_position

# The first words of the Message of a row that the machine has caused, not the numbers: a crash, a
# time-out, memory, a lost node. `--retry crash` finds these rows by them.
MACHINE_REASONS = (
    "killed its worker",
    "no answer in",
    "ran out of memory",
    "the worker process died on each of",
    "its worker was lost",  # The same, in files that earlier versions have written.
    "its worker gave no result",
)


class Outcome(Enum):
    """How the run of a call ended."""

    COMPLETED = "completed"
    SKIPPED = "skipped"
    RAISED = "raised"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"


class Verdict(Enum):
    """The verdict on the numbers of a call; the value is the cell of the CSV."""

    PASS = "pass"
    ERROR = "error"
    SKIP = "SKIP"
    NONE = ""


_VERDICTS_BY_CELL = {verdict.value.lower(): verdict for verdict in Verdict}
# msprobe's word for an error that its limits allow.
_VERDICTS_BY_CELL |= {verdict.value: verdict for verdict in Verdict}
_VERDICTS_BY_CELL["warning"] = Verdict.PASS
# The words of trials (`searching.bisection.TrialAnswer`).
_VERDICTS_BY_CELL |= {"fail": Verdict.ERROR, "unresolved": Verdict.SKIP}


def verdict_in(cell: str) -> Verdict:
    """Return the verdict that a cell of a CSV file holds; NONE for an empty or an unknown one."""
    found = _VERDICTS_BY_CELL.get(cell)  # Of millions of cells nearly all are as they are written.
    if found is not None:
        return found
    return _VERDICTS_BY_CELL.get(cell.strip().lower(), Verdict.NONE)


def call_verdict(forward: Verdict, backward: Verdict) -> Verdict:
    """Return the verdict of a whole call; everything that counts calls uses it.

    ERROR where either direction is in error. SKIP where either direction could not be checked, or
    where no direction was compared at all: a pass means that something was compared. PASS else.
    """
    if Verdict.ERROR in (forward, backward):
        return Verdict.ERROR
    if Verdict.SKIP in (forward, backward) or Verdict.PASS not in (forward, backward):
        return Verdict.SKIP
    return Verdict.PASS


@pickled_by_position
@dataclass(frozen=True, slots=True)
class Metrics:
    """The distance between a tested output and the bench, both as float64.

    `cosine` is None where it says nothing: for one element, and for no elements.
    `worst_index` is where |tested - bench| is largest; `bench_at_worst` the bench's value there and
    `bench_largest` its largest finite magnitude. `left_out` counts the NaN and infinite elements
    that agree. `mismatch` describes the first element where they do not, or is empty.
    """

    cosine: float | None
    max_abs_err: float
    max_rel_err: float
    worst_index: tuple[int, ...] = ()
    bench_at_worst: float = 0.0
    bench_largest: float = 0.0
    left_out: int = 0
    mismatch: str = ""


@pickled_by_position
@dataclass(frozen=True, slots=True)
class OutputCheck:
    """One detail row: an output (or a gradient) compared with the bench.

    `columns` are the cells of the columns that the standard adds, by their headings. `drawn` is what the
    statistics over all calls of a random operator need of this one, which stands behind its Message.
    """

    name: str
    bench_dtype: str
    tested_dtype: str
    shape: str
    metrics: Metrics | None
    verdict: Verdict
    message: str = ""
    columns: tuple[tuple[str, float | str], ...] = ()
    drawn: str = ""


@pickled_by_position
@dataclass(frozen=True, slots=True)
class TaskResult:
    """One result row and its detail rows; numbers and text only, cheap to send.

    The seconds are those that making the inputs, the device and the bench took, each where it ran;
    `began_s` is when the check began, in seconds since the epoch. `evidence` are files for
    `error_data`, by name, if the worker could not write them itself; `heats` are lines of `store.heat`,
    one for each output in error.
    """

    index: int
    name: str
    outcome: Outcome
    forward: Verdict
    backward: Verdict
    message: str = ""
    checks: tuple[OutputCheck, ...] = ()
    began_s: float = 0.0
    inputs_s: float = 0.0
    device_s: float = 0.0
    bench_s: float = 0.0
    evidence: tuple[tuple[str, bytes], ...] = ()
    heats: tuple[bytes, ...] = ()


def skipped(index: int, name: str, reason: str, has_backward: bool) -> TaskResult:
    """Return the result of a call that cannot be checked."""
    backward = Verdict.SKIP if has_backward else Verdict.NONE
    return TaskResult(index, name, Outcome.SKIPPED, Verdict.SKIP, backward, reason)


def failed(index: int, name: str, outcome: Outcome, reason: str, has_backward: bool) -> TaskResult:
    """Return the result of a call whose device crashed or gave no answer.

    Where its backward check was is unknown, so that cell says SKIP.
    """
    backward = Verdict.SKIP if has_backward else Verdict.NONE
    return TaskResult(index, name, outcome, Verdict.ERROR, backward, reason)


@dataclass(frozen=True, slots=True)
class Uncompared:
    """Stands in a bench's outputs for an output that only the tested kernel can know, with the
    reason.

    A dropout mask's seed, a buffer whose layout differs between versions: such an output exists,
    and any value of the tested side is right.
    """

    reason: str
