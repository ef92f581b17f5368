"""What is done with two dumps of the same step: both are prechecked, and msprobe compares them.

Comes in: the paths of msprobe's dump.json and of ours. Goes out: the calls whose verdicts differ, and the
rows of msprobe's comparison that do not pass. Called by the main module.
"""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from ray_precheck.check.checker import Checker
from ray_precheck.check.settings import CheckSettings
from ray_precheck.dump.parse import open_dump
from ray_precheck.schema.result import Verdict
from ray_precheck.schema.task import Task
from scripts.measuring import ran, rows_of_table

VerdictsByCall = dict[str, tuple[Verdict, Verdict]]
# What msprobe says where the error of a norm grows from an input to an output, however small it is.
_GROWING_NORM = "warning: The norm relative error of output is 10 times that of input."
_NORM_ROUNDING_PERCENT = 0.05


def prechecked_verdicts(path: Path) -> VerdictsByCall:
    """Precheck a dump in this process; return the verdicts of each call, forward and backward."""
    with open_dump(path) as dump:
        settings = CheckSettings(dump.framework, dump.task, dump.data_folder)
        payloads = [dump.payload(Task(i, call.name, 0.0)) for i, call in enumerate(dump.calls)]
    checker = Checker(settings, "cpu")
    found = {}
    for payload in payloads:
        result = checker.check(payload)
        found[payload.name] = (result.forward, result.backward)
    return found


def other_verdicts(
    theirs: VerdictsByCall, ours: VerdictsByCall, incomplete: Container[str] = ()
) -> tuple[list[str], int]:
    """Return a line for each verdict that differs, and how many do because msprobe's record is incomplete.

    Of the calls that are `incomplete` there, a verdict is one of ours alone where msprobe's was skipped. A
    backward pass that only one of them has recorded is a difference of the keys, not of the verdicts.
    """
    explained = 0
    lines = []
    for name in theirs.keys() & ours.keys():
        pairs = zip(("forward", "backward"), theirs[name], ours[name], strict=True)
        for direction, their_verdict, our_verdict in pairs:
            found = (their_verdict, our_verdict)
            if their_verdict is our_verdict or Verdict.NONE in found:
                continue
            if their_verdict is Verdict.SKIP and name in incomplete:
                explained += 1
                continue
            lines.append(f"{name}.{direction}: {their_verdict.name}, ours {our_verdict.name}")
    return sorted(lines), explained


class ComparedRow(NamedTuple):
    """A row of msprobe's comparison that does not pass: the name of an element, and what it says."""

    name: str
    result: str
    message: str


class MsprobeRows(NamedTuple):
    """How many rows msprobe's comparison has, and those that do not pass.

    `by_rounding` are warnings that the error of a norm has grown, with norms that are equal but for rounding.
    """

    rows: int
    by_rounding: int
    failing: Sequence[ComparedRow]


def compare_with_msprobe(
    theirs: Path, ours: Path, out: Path, python_path: Sequence[str]
) -> MsprobeRows:
    """Let msprobe compare our dump (as the target) with its own (as the golden one)."""
    out.mkdir(parents=True, exist_ok=True)
    words = ("--target_path", ours, "--golden_path", theirs, "--output_path", out)
    ran("msprobe.msprobe", "compare", *words, path=python_path)
    return read_comparison(rows_of_table(out, "compare_result_*.csv"))


def read_comparison(rows: Sequence[dict[str, str]]) -> MsprobeRows:
    """Return what the rows of msprobe's comparison say."""
    by_rounding, failing = 0, []
    for row in rows:
        if row["Result"] == "pass":
            continue
        if _GROWING_NORM in row["Err_message"] and _is_rounding(row["NormRelativeErr"]):
            by_rounding += 1
        else:
            failing.append(ComparedRow(row["NPU Name"], row["Result"], row["Err_message"]))
    return MsprobeRows(len(rows), by_rounding, failing)


def _is_rounding(percent: str) -> bool:
    try:
        return abs(float(percent.rstrip("%"))) <= _NORM_ROUNDING_PERCENT
    except ValueError:
        return False
